"""Writes the rows of one task's partition, for frames and for streams."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import TYPE_CHECKING

from ..ops.errors import StoreUnavailableError
from .clients import client
from .options import SourceOptions
from .row_report import RowCounts, RowOutcome
from .rows import Columns, RowWriter

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["write_partition"]


def write_partition(
    batches: Iterable[pa.RecordBatch],
    columns: Columns,
    options: SourceOptions,
    tally: RowCounts,
) -> Generator[list[RowOutcome], None, None]:
    """Write the rows of a partition, and yield their outcomes in order, slice by slice.

    The first row opens the store, so an empty partition costs nothing. When the generator ends or
    is closed, all operations that were sent have ended.

    Args:
        batches: Arrow record batches.
        columns: the places of the columns in the batches.
        options: the store and its settings.
        tally: counts the rows.

    Raises:
        MetadataStoreError: the store cannot be opened.
    """
    filled = (batch for batch in batches if batch.num_rows)
    first = next(filled, None)
    if first is None:
        return
    with _one_task_at_a_time(options), client(options) as store:
        rows = RowWriter(
            store,
            columns,
            tally,
            prefix=options.prefix,
            parents_count=options.parents_count,
        )
        for batch in chain((first,), filled):
            yield from rows.write(batch)


@contextmanager
def _one_task_at_a_time(options: SourceOptions) -> Iterator[None]:
    """Explain the error if several tasks try to write one directory."""
    try:
        yield
    except StoreUnavailableError as error:
        if not options.embedded:
            raise
        raise StoreUnavailableError(
            "only one task at a time can write a RocksDB directory, and this one could not open "
            f"it: use df.coalesce(1), and close the directory elsewhere ({error})"
        ) from error
