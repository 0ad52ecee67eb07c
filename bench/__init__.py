"""The benchmark harness.

- ``command``: the options of ``batchkeeper bench``
- ``arguments``: types of arguments
- ``target``: the store that is measured
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
- ``kills``: measures how many writes that a kill catches are settled
- ``memory``: measures the memory of two million streamed puts
- ``limits``: compares the client with the raw speed of its server
- ``spark``: compares Spark with one process without it
- ``simulation``: hubs that are killed while they serve
"""
