"""The data pipeline on Spark: a data source, bulk calls and jobs over metadata stores.

::

    from batchkeeper.pipeline import bulk_apply, register

    register(spark)         # needed only where Spark does not find the source by itself
    df = spark.read.format("batchkeeper").option("url", url).option("prefix", "/topics").load()
    df.write.format("batchkeeper").option("url", url).mode("append").save()
    outcomes = bulk_apply(df, url)

It needs the extra ``spark``. Importing this module does not import pyspark.

- ``source``: the data source, of which each process of Spark loads the part that it needs
- ``registration``: how Spark finds it
- ``options``: what a user may set
- ``clients``: the client that a worker keeps
- ``failures``: errors in one line
- ``reader``: reads in partitions of one revision
- ``filters``: Spark's filters
- ``bounds``: filters as bounds between valid paths
- ``foreign``: counts keys that are not valid paths, and warns of them
- ``rows``: rows to operations
- ``sending``: operations to outcomes: what is looked at, and what is sent again
- ``partition``: what a task does with its partition
- ``writer``: ``df.write``
- ``overwrite``: what an overwrite deletes
- ``bulk``: ``bulk_apply``
- ``streams``: changes as a stream, and streams that are written
- ``row_report``: what became of a job's rows
- ``throttle``: a job's rate
- ``java``: a Java that Spark starts on
- ``jobs``: the command ``batchkeeper spark``
- ``local_load``: the command ``batchkeeper load``, without Spark: lines to puts and outcomes
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["bulk_apply", "register"]

# The imports below wait for a call, so that the command and the workers do not load pyspark, which
# takes a second, where they do not need it.


def register(spark: SparkSession) -> None:
    """Make the data source ``batchkeeper`` known to a session, classic or Connect.

    Spark finds it by itself where the package is installed on the driver. It does not see an
    editable install, a folder on ``PYTHONPATH`` or an archive shipped with ``--py-files``: then,
    call this once per session. Calling it again does no harm.
    """
    from pyspark.errors import AnalysisException

    from .source import BatchkeeperSource

    try:
        spark.dataSource.register(BatchkeeperSource)
    except AnalysisException as error:
        # Spark 4.0 takes no second source of a name, not even of one that it has found by itself.
        if "DATA_SOURCE_ALREADY_EXISTS" not in str(error):
            raise


def bulk_apply(df: DataFrame, url: str, **options: object) -> DataFrame:
    """Put and delete the rows of a frame, and return how each of them ended.

    See :func:`batchkeeper.pipeline.bulk.bulk_apply`.
    """
    from .bulk import bulk_apply as apply

    return apply(df, url, **options)
