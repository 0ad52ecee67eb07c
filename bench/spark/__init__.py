"""Spark at its limit: how much of what a store can take and give reaches it through the pipeline.

::

    python -m batchkeeper.bench.spark
    python -m batchkeeper.bench.spark etcd --rows 200000 --rounds 3

measures the rows of :mod:`.rows` on throw-away servers of this machine, from ``local[2]``: each
against one process without Spark, or Spark with the store's plain client, in the same rounds.

- ``command``: the options
- ``rows``: the table of ratios and targets
- ``rounds``: measures it
- ``work``: the rows that are loaded
- ``session``: the Spark that is measured
- ``writes``: loading through Spark, one process, the plain client
- ``reads``: reading back likewise
- ``job``: one job in a process of its own
- ``memory``: watches jobs in processes of their own
- ``tables``: the results
"""
