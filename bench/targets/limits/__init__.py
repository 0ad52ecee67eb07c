"""The client at its limit: how close it comes to the capacity of its server.

The ratios and their targets are in ``rows.toml``.

- ``measuring``: tries the variants, and measures them in rounds
- ``variants``: what a variant is
- ``puts``: the client's side of most ratios, and the plain clients'
- ``raw``: the raw side: prepared requests, replayed
- ``raw_etcd``: the ceilings of etcd
- ``raw_zookeeper``: the ceilings of ZooKeeper
- ``raw_rocksdb``: the ceilings of RocksDB
- ``raw_hbase``: the ceilings of HBase, and scans of it
- ``coordination``: locks, caches, counters, elections
- ``hubs``: topics that a hub claims, consume marks, subscriptions
- ``others``: other clients of the same server, which put or watch
"""
