"""Spark at its limit: how much of a store's capacity the pipeline reaches.

::

    python -m batchkeeper.bench.spark
    python -m batchkeeper.bench.spark etcd --rows 200000 --rounds 3

measures the rows of :mod:`.rows` on throw-away servers on this machine, from ``local[2]``. Rates
are compared with one process without Spark, or with Spark and the store's plain client, in the same
rounds. The memory of a job is compared with that for a tenth of the rows.

- ``command``: the options
- ``rows``: the table of ratios and targets
- ``rounds``: measures it
- ``work``: the rows that are loaded
- ``session``: the Spark that is measured
- ``writes``: loading through Spark, one process, the plain client
- ``reads``: reading the rows back, in the same ways
- ``job``: one job in a separate process
- ``memory``: watches jobs in separate processes
- ``tables``: the results
"""
