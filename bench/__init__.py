"""The benchmark harness, and throw-away real servers for it and for the tests.

- ``command``: the options of ``batchkeeper bench``
- ``arguments``: types of arguments
- ``target``: the store that is measured
- ``runner``: interleaved rounds of settings
- ``workload``: the hubs' work
- ``drive``: keeps that work under way, and times it
- ``readback``: checks that nothing acknowledged was lost
- ``baseline``: the plain clients' loop
- ``figures``: medians, spread, histograms, ratios
- ``results``: what a benchmark found, and what follows from it
- ``tables``: the results as tables and as JSON
- ``progress``: shows progress on standard error
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
