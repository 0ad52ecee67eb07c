"""The data source ``batchkeeper``. It passes Spark's requests to the other modules."""

from __future__ import annotations

import sys
from collections.abc import MutableMapping
from typing import Final, TypeAlias

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from .failures import plain_errors
from .options import parse_options

__all__ = ["SCHEMA", "STORED", "BatchkeeperSource", "Options"]

#: The options as Spark passes them: names in lower case, values as text.
Options: TypeAlias = MutableMapping[str, str]

#: The columns of a stored value. ``created`` and ``modified`` are milliseconds since the epoch, and
#: null if the store does not keep times (etcd).
STORED: Final = (
    "path string not null, value binary, version bigint, revision bigint not null, "
    "created bigint, modified bigint, ephemeral boolean not null"
)

#: The columns of a read if the caller names none. Spark does not say whether it reads a frame or a
#: stream, so both have the same columns. In a frame, ``op`` is always ``put``. In a stream of
#: changes, it may be ``delete``: ``value`` and ``version`` are null then, and only then.
SCHEMA: Final = f"{STORED}, op string not null"

# Spark passes filters in a separate process that runs this module, and only if
# spark.sql.python.filterPushdown.enabled is on.
_PUSHDOWN: Final = "pyspark.sql.worker.data_source_pushdown_filters"


class BatchkeeperSource(DataSource):
    """Reads and writes a metadata store, in batches and as streams.

    The options are those of :class:`batchkeeper.pipeline.options.SourceOptions`. Invalid options
    are refused here, on the driver.
    """

    # Spark calls each of these methods in a process of its own, and pickles the result for its
    # workers. So each method imports only the module that it needs.

    @classmethod
    def name(cls) -> str:
        return "batchkeeper"

    def schema(self) -> str:
        with plain_errors():
            parse_options(self.options)
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        from .reader import StoreReader

        kind = StoreReader
        if _PUSHDOWN in sys.modules:
            from .filters import FilteringReader

            kind = FilteringReader
        with plain_errors():
            return kind(schema, parse_options(self.options))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from .writer import BatchWriter

        with plain_errors():
            return BatchWriter(schema, parse_options(self.options), overwrite)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        from .streams import ChangesReader

        with plain_errors():
            return ChangesReader(schema, parse_options(self.options))

    def streamWriter(  # noqa: N802 - Spark's name
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamWriter:
        from .streams import StreamWriter

        with plain_errors():
            return StreamWriter(schema, parse_options(self.options), overwrite)
