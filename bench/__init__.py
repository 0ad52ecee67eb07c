"""The benchmark harness.

- ``command``: the options of ``batchkeeper bench``
- ``target``: the store that is measured
- ``rounds``: interleaved rounds of variants, and how far they are
- ``sweep``: rounds of batch settings and peers
- ``load``: what is done to the store, by whom, and whether it was done right
- ``results``: what was found, and what follows from it
- ``conditions``: versions, the machine, the store, its disk and its servers
- ``workload``: what all loads share
- ``figures``: histograms of latencies
- ``options``: declares options, writes files, and tells
- ``page``: pages of HTML
- ``children``: another process that takes part
- ``disk``: the disk below a directory
- ``simulation``: a simulation of failing hubs
- ``targets``: measures the project's own targets; run in a clone, and not installed
"""
