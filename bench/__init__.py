"""The benchmark harness, and throw-away real servers for it and for the tests.

- ``command``: the options of ``batchkeeper bench``
- ``target``: the store that is measured
- ``runner``: interleaved rounds of settings
- ``workload``: the hubs' work
- ``drive``: keeps that work under way, and times it
- ``readback``: checks that nothing acknowledged was lost
- ``baseline``: the plain clients' loop
- ``figures``: medians, spread, histograms, ratios
- ``tables``: the results as tables and as JSON
- ``progress``: what is going on, on standard error
- ``disk``: the disk below a directory
- ``servers``: throw-away real servers on loopback
- ``releases``: which servers there are, by version and place
- ``installing``: ``batchkeeper servers``, which installs others
- ``jars``: the jars of ZooKeepers, with their checksums
- ``kills``: how many of the writes that a kill catches are settled
- ``memory``: how much memory two million streamed puts take
- ``limits``: how near the client comes to what its server can do
- ``spark``: how much of that comes through Spark
"""
