"""Lets Spark find the data source ``batchkeeper`` by itself.

This folder is installed as the top-level package ``pyspark_batchkeeper``. At the first use of any
Python data source, Spark imports every top-level module whose name starts with ``pyspark_``, and
registers its ``DefaultSource``. An import that failed would disable all other data sources, too. So
nothing here can fail, and this module imports nothing that Spark has not loaded already.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

try:
    from pyspark.sql.datasource import DataSource
except ImportError:  # There is no Spark, or it is older than 4.0 and has no Python data sources.
    pass
else:
    if TYPE_CHECKING:
        from batchkeeper.pipeline.source import Options

    class DefaultSource(DataSource):
        """Stands for the pipeline's data source, and creates it when Spark first uses it."""

        def __new__(cls, options: Options) -> DataSource:  # type: ignore[misc]
            """Import batchkeeper, and return its data source."""
            from batchkeeper.pipeline.source import BatchkeeperSource

            return BatchkeeperSource(options)

        @classmethod
        def name(cls) -> str:
            return "batchkeeper"
