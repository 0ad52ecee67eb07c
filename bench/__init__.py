"""The benchmark harness.

- ``command``: the options of ``batchkeeper bench``
- ``arguments``: types of arguments
- ``target``: the store that is measured
- ``rounds``: interleaved rounds of variants
- ``sweep``: rounds of batch settings and peers
- ``load``: what is done to the store, by whom, and whether it was done right
- ``results``: what was found, and what follows from it
- ``live``: shows a run while it goes on
- ``conditions``: versions, the machine, the store and its disk
- ``machine``: how busy it is, and the servers that run on it
- ``workload``: what all loads share
- ``figures``: histograms of latencies
- ``progress``: messages on standard error
- ``disk``: the disk below a directory
- ``simulation``: a simulation of failing hubs
- ``targets``: measures the project's own targets; run in a clone, and not installed
"""
