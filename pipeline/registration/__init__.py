"""How Spark finds the data source ``batchkeeper`` by itself.

This folder is installed as the top-level package ``pyspark_batchkeeper``: at the first use of any
Python data source, Spark imports every top-level module whose name starts with ``pyspark_`` and
registers its ``DefaultSource``. One that failed would take all other data sources with it, so
nothing can fail here, and nothing is loaded that Spark has not loaded already.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

try:
    from pyspark.sql.datasource import DataSource
except ImportError:  # No Spark, or one before 4.0: there is nothing to register with.
    pass
else:
    if TYPE_CHECKING:
        from batchkeeper.pipeline.source import Options

    class DefaultSource(DataSource):
        """Stands for the data source until it is used; then it makes the one of the pipeline."""

        def __new__(cls, options: Options) -> DataSource:  # type: ignore[misc]
            """Return the data source itself; this is where batchkeeper is imported."""
            from batchkeeper.pipeline.source import BatchkeeperSource

            return BatchkeeperSource(options)

        @classmethod
        def name(cls) -> str:
            return "batchkeeper"
