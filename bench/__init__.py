"""The benchmark harness, and throw-away real servers for it and for the tests.

- ``command``: the options of ``batchkeeper bench``
- ``arguments``: types of arguments
- ``target``: the store that is measured
- ``removing``: removes what was put there
- ``sweep``: interleaved rounds of variants
- ``load``: what is done to the store, by whom, and whether it was done right
- ``results``: what was found, and what follows from it
- ``live``: shows a run while it goes on
- ``conditions``: versions, the machine, the store and its disk
- ``machine``: how busy it is, and the servers that run on it
- ``workload``: what all loads share
- ``baseline``: the plain clients
- ``figures``: medians, spread, histograms, ratios
- ``progress``: shows the progress of the other benchmarks on standard error
- ``disk``: the disk below a directory
- ``servers``: throw-away real servers on loopback
- ``releases``: finds the servers of this machine, by version and place
- ``installing``: ``batchkeeper servers``, which installs others
- ``jars``: the jars of ZooKeepers, with their checksums
- ``kills``: measures how many writes that a kill catches are settled
- ``memory``: measures the memory of two million streamed puts
- ``limits``: compares the client with the raw speed of its server
- ``spark``: compares Spark with one process without it
- ``simulation``: hubs that are killed while they serve
"""
