"""The load of the benchmark: what is done, by whom, at what rate, and whether it was done right.

- ``mixes``: which operations, keys and values; read from TOML files
- ``work``: draws operations and keys, and knows what each must answer
- ``callers``: threads and tasks that keep operations under way, or start them at a rate
- ``job``: one measurement in one process
- ``parts``: what processes measured, put together
- ``processes``: the same measurement in several processes
- ``executors``: in the executors of Spark
- ``spark``: the session of Spark
- ``peers``: other clients of the same stores, as their users write them
"""
