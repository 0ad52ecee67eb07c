"""The client at its limit: how near it comes to what its server can do.

::

    python -m batchkeeper.bench.limits etcd
    python -m batchkeeper.bench.limits zookeeper --grid

measures the rows of :mod:`.rows` on a throw-away server of this machine, each against something
that was measured in the same rounds: the raw ceiling of its store, or its plain client.

- ``command``: the options
- ``rows``: the table of ratios and targets
- ``rounds``: measures it
- ``work``: what is put and got
- ``places``: a place of its own for each measurement
- ``ours``: the client's side of each ratio
- ``plain``: the plain clients' side
- ``ceilings``: the raw side: requests made beforehand, replayed
- ``raw_etcd``: those of etcd
- ``raw_zookeeper``: those of ZooKeeper
- ``raw_rocksdb``: those of RocksDB
- ``delays``: back ends that time calls, or only take time
- ``neighbour``: another client of the same server
- ``grid``: holds the defaults against sixty settings
- ``tables``: the results
"""
