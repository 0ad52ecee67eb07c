"""The data pipeline on Spark: a data source, bulk calls and jobs over metadata stores.

::

    from batchkeeper.pipeline import bulk_apply, register

    register(spark)         # needed only where Spark does not find the source by itself
    df = spark.read.format("batchkeeper").option("url", url).option("prefix", "/topics").load()
    df.write.format("batchkeeper").option("url", url).mode("append").save()
    outcomes = bulk_apply(df, url)

It needs the extra ``spark``. Importing this module does not import pyspark.

- ``source``: the data source; each process of Spark loads only the part that it needs
- ``registration``: lets Spark find it
- ``options``: the options of the data source
- ``clients``: the client that a worker keeps
- ``failures``: shows errors in one line
- ``reader``: reads in partitions of one revision
- ``filters``: Spark's filters
- ``bounds``: filters as bounds between valid paths
- ``foreign``: reports keys that are not valid paths, and prefixes without values
- ``rows``: turns rows into operations
- ``sending``: executes operations, and decides which are checked or sent again
- ``partition``: writes the rows of one task
- ``writer``: ``df.write``
- ``overwrite``: deletes older values after an overwrite
- ``bulk``: ``bulk_apply``
- ``streams``: reads changes as a stream, and writes streams
- ``row_report``: counts the outcomes of a job's rows
- ``parallelism``: the number of tasks that Spark runs at a time
- ``java``: finds a Java on which Spark starts
- ``arguments``: options that commands of several groups share
- ``jobs``: the command ``batchkeeper spark``
- ``local_load``: the command ``batchkeeper load``, without Spark: lines to puts and outcomes
- ``load_limits``: the limits that both commands for loading share
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["bulk_apply", "register"]

# The functions below import when they are called: importing pyspark takes a second, and the command
# and the workers do not always need it.


def register(spark: SparkSession) -> None:
    """Register the data source ``batchkeeper`` in a session, classic or Connect.

    Spark finds the data source by itself if the package is installed on the driver. It does not
    find an editable install, a folder on ``PYTHONPATH`` or an archive shipped with ``--py-files``.
    In these cases, call this function once per session. Further calls do no harm.
    """
    from pyspark.errors import AnalysisException

    from .source import BatchkeeperSource

    try:
        spark.dataSource.register(BatchkeeperSource)
    except AnalysisException as error:
        # Spark 4.0 refuses to register a name twice, even if it found the first source by itself.
        if "DATA_SOURCE_ALREADY_EXISTS" not in str(error):
            raise


def bulk_apply(df: DataFrame, url: str, **options: object) -> DataFrame:
    """Put and delete the rows of a frame, and return the outcome of each row.

    The call works in classic sessions and over Spark Connect. Batchkeeper must be installed on the
    executors, too. Conditional rows, which have an expected version, are safe to repeat; others are
    written at least once.

    Args:
        df: a frame with the columns ``path`` (string) and ``value`` (binary), and optionally
            ``expected_version`` (bigint; null for unconditional rows, -1 for a path that must hold
            no value) and ``op`` (``put``, the default for null, or ``delete``, which takes no
            value).
        url: the store's URL.
        options: the options of the data source. ``on_error`` is refused, because every row is
            returned with its own error.

    Returns:
        A frame with one row for each row of ``df``, in the same order within a partition: ``path``,
        ``status``, ``version`` (of the path afterwards, if known) and ``error`` (null for
        successful rows). The frame is lazy: each action on it writes the rows again. Save or cache
        it before you use it several times.

    Raises:
        InvalidSettingError: a column or an option is invalid.
        UnsupportedError: the store cannot be used from Spark.
    """
    from .bulk import bulk_apply as apply

    return apply(df, url, **options)
