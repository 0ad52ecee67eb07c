"""Spark at its limit: how much of what a store can take and give reaches it through the pipeline.

::

    python -m batchkeeper.bench.spark
    python -m batchkeeper.bench.spark etcd --rows 200000 --rounds 3

measures the rows of :mod:`.rows` on throw-away servers of this machine, from ``local[2]``: each
against one process without Spark, or Spark with the store's plain client, in the same rounds.
"""
