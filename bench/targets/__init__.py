"""The project's own targets: programs that run in a clone, on the installed package.

::

    ./run targets limits etcd                     how close the client comes to its server
    ./run targets limits zookeeper --only puts
    ./run targets spark                           how much of a store's capacity Spark reaches
    ./run targets kills etcd                      how many writes that a kill catches are settled
    ./run targets memory                          the memory of two million streamed puts

They start throw-away servers on this machine. ``python bench/targets limits etcd`` is the same
where the package and its extras are installed already.

- ``command``: the options
- ``rows``: the tables of targets, and what was measured for them
- ``report``: the results
- ``work``: the paths and values to put, and the clock
- ``limits``: each row is compared with a figure of the same rounds: of the store's raw ceiling, of
  its plain client, or of another row
- ``spark``: rates are compared with one process without Spark, or with Spark and the store's plain
  client
- ``kills``: a server that is killed under load
- ``memory``: a long stream of puts
"""
