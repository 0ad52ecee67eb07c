"""The client at its limit: how close it comes to the capacity of its server.

::

    python -m batchkeeper.bench.limits etcd
    python -m batchkeeper.bench.limits zookeeper --only puts

measures the rows of :mod:`.rows` on a throw-away server on this machine. Each row is compared with
a figure of the same rounds: of the store's raw ceiling, of its plain client, or of another row.

- ``command``: the options
- ``rows``: the table of ratios and targets
- ``rounds``: measures it
- ``work``: the paths and values to put and get
- ``places``: a separate place for each measurement
- ``ours``: the client's side of each ratio
- ``plain``: the plain clients' side
- ``ceilings``: the raw side: prepared requests, replayed
- ``raw_etcd``: the ceilings of etcd
- ``raw_zookeeper``: the ceilings of ZooKeeper
- ``raw_rocksdb``: the ceilings of RocksDB
- ``delays``: back ends that time calls, or only wait
- ``contract``: ephemeral and sequential puts, and transactions
- ``watched``: watches, and values that their clients leave behind
- ``locks``: locks without contenders, and with a hundred
- ``plain_locks``: the plain clients' locks
- ``caches``: hits and updates
- ``counters``: numbers, in one process and in four
- ``failover``: elections whose leader is killed
- ``claims``: topics that a hub claims
- ``subscribers``: consume marks, and the subscriptions of a topic
- ``recovery``: the topics of a hub that is killed
- ``processes``: another process that takes part
- ``neighbour``: another client of the same server
- ``tables``: the results
"""
