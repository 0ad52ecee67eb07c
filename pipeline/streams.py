"""Streams: reads the changes under a prefix as a stream, and writes streams of rows.

Reading (etcd only). The offset is a revision of the store. A micro-batch contains the changes after
one revision up to another. They come from the store's history, so a batch has the same rows when it
is read again after a failure or a restart. With Spark's checkpoint, each change arrives exactly
once.

Writing. A micro-batch may be written again: after a task has failed, beside a task that seemed
lost, and after a restart, if the driver ended between the last task and its note in the checkpoint.
A store takes no part in Spark's checkpoint, so each row's own condition decides:

- A conditional row whose effect is already there is ``already_applied``: neither done twice nor a
  conflict. If another client has changed its path in between, the row is a conflict.
- An unconditional row is written again: at least once.

The key of each part, (query, batch, partition), is the same in every attempt. It appears in log
events, in errors, and in the message of each task to the driver, so that first and repeated writes
can be distinguished. It is not used to skip a part, because Spark does not promise that a part has
the same rows after a restart (SPARK-28650).
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructField, StructType

from .. import (
    InvalidSettingError,
    MetadataStoreError,
    RevisionCompactedError,
    UnsupportedError,
)
from ..ops.log import get_logger
from ..ops.results import Change
from .clients import client
from .failures import plain_errors
from .foreign import warn_of_foreign
from .options import SourceOptions
from .partition import write_partition
from .reader import COLUMNS
from .row_report import Report, RowCounts, RowsFailedError, first_failed
from .rows import columns_of

try:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )
except ImportError as error:
    raise UnsupportedError(f"streams need PySpark 4.2 or newer ({error})") from error

__all__ = ["ChangesPartition", "ChangesReader", "Key", "StreamWriter", "StreamWritten"]

_log: Final = get_logger(__name__)

_REVISION: Final = "revision"  # the one field of an offset


class ChangesPartition(InputPartition):
    """The revisions that one task reads: those after ``after``, up to ``until``."""

    def __init__(self, after: int, until: int) -> None:
        super().__init__((after, until))
        self.after = after
        self.until = until


class ChangesReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the changes under the prefix, in micro-batches that can be read again.

    One instance lives on the driver as long as its query. The tasks have copies of another one.

    Raises:
        InvalidSettingError: the schema has a column that a change does not have, or an option does
            not apply to a stream.
    """

    def __init__(self, schema: StructType, options: SourceOptions) -> None:
        if options.revision is not None:
            raise InvalidSettingError(
                "a stream takes no revision: pass starting_revision, after which it begins"
            )
        self._schema = pa.schema([_field(field) for field in schema.fields])
        self._options = options
        self._target: int | None = None
        self._newest: int | None = None

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        """Return where a query without a checkpoint starts.

        Raises:
            UnsupportedError: the store keeps no history.
            InvalidSettingError: the store has not reached ``starting_revision``.
        """
        newest = self._newest_revision()
        start = self._options.starting_revision
        if start is not None and start > newest:
            with plain_errors():
                raise InvalidSettingError(
                    f"starting_revision is {start}, but the store is at revision {newest}"
                )
        return _offset(newest if start is None else start)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return the limit that Spark passes to ``latestOffset``."""
        most = self._options.max_revisions_per_batch
        # Spark has no limit on revisions: the limit on rows carries it.
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def latestOffset(  # noqa: N802 - Spark's name
        self, start: dict[str, int], limit: ReadLimit
    ) -> dict[str, int]:
        """Return the end of the next micro-batch: the store's revision, or the limit before it.

        Raises:
            InvalidSettingError: the store has not reached the revision of the checkpoint.
        """
        after = _revision(start)
        newest = self._newest_revision()
        if newest < after:
            with plain_errors():
                raise InvalidSettingError(
                    f"the store is at revision {newest}, but this stream has reached revision "
                    f"{after}: this is not the store of the checkpoint, or an older copy of it. "
                    "Start the stream with a new checkpoint"
                )
        if self._target is not None:
            newest = max(after, min(newest, self._target))
        if isinstance(limit, ReadMaxRows):
            newest = min(newest, after + limit.max_rows)
        return _offset(newest)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Record the store's revision, at which a query with ``availableNow`` ends."""
        self._target = self._newest_revision()

    def reportLatestOffset(self) -> dict[str, int] | None:  # noqa: N802 - Spark's name
        """Return the newest known revision of the store, for the query's progress reports."""
        return None if self._newest is None else _offset(self._newest)

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """Split the revisions of a micro-batch into partitions.

        Raises:
            RevisionCompactedError: the store no longer keeps the changes. The message says what to
                do.
            InvalidSettingError: the store does not have the revision.
        """
        after, until = _revision(start), _revision(end)
        if after >= until:
            return []
        with plain_errors():
            self._check_history(after)
        parts = min(self._options.partitions or 1, until - after)
        bounds = [after + (until - after) * part // parts for part in range(parts + 1)]
        return [ChangesPartition(*pair) for pair in pairwise(bounds)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the changes of a part, ordered by revision. Each call yields the same changes."""
        assert isinstance(partition, ChangesPartition)
        options = self._options
        with (
            plain_errors(),
            client(options, read_only=True) as store,
            closing(store.changes(options.prefix, partition.after, partition.until)) as changes,
        ):
            yield from _record_batches(
                changes, self._schema, options.batch_rows, options.batch_bytes
            )
            warn_of_foreign(changes.foreign, "changes not read")

    def _newest_revision(self) -> int:
        """Read the store's newest revision, on the driver."""
        with plain_errors(), client(self._options, read_only=True) as store:
            if "history" not in store.capabilities:
                raise UnsupportedError(
                    "a stream of changes needs a store with the capability 'history', such as "
                    f"etcd: {self._options.url}"
                )
            self._newest = store.revision()
        return self._newest

    def _check_history(self, after: int) -> None:
        """Refuse a batch whose changes are lost, before its tasks start."""
        options = self._options
        with client(options, read_only=True) as store:
            try:
                # The range is empty, but etcd checks whether it still has the revision.
                next(store.changes(options.prefix, after, after), None)
            except RevisionCompactedError as error:
                raise RevisionCompactedError(_lost(error, after), oldest=error.oldest) from error
            except InvalidSettingError as error:
                raise InvalidSettingError(_lost(error, after)) from error


def _lost(error: MetadataStoreError, after: int) -> str:
    return (
        f"{error}. This stream has reached revision {after} and cannot read the changes since "
        "then. Read or export the store at a revision, and start a new stream with a new "
        "checkpoint and starting_revision set to that revision. To avoid this, let etcd keep more "
        "history (--auto-compaction-retention) than the stream ever falls behind"
    )


def _offset(revision: int) -> dict[str, int]:
    return {_REVISION: revision}


def _revision(offset: Mapping[str, Any]) -> int:
    return int(offset[_REVISION])


def _field(field: StructField) -> pa.Field:
    spark, arrow = COLUMNS.get(field.name, (None, None))
    if spark != field.dataType:
        known = ", ".join(f"{name} {kind.simpleString()}" for name, (kind, _) in COLUMNS.items())
        raise InvalidSettingError(
            f"a change has no column {field.name!r} of type {field.dataType.simpleString()} "
            f"(its columns: {known})"
        )
    return pa.field(field.name, arrow, field.nullable)


def _record_batches(
    changes: Iterator[Change], schema: pa.Schema, rows: int, size: int
) -> Generator[pa.RecordBatch]:
    """Gather changes into Arrow batches, each of at most ``rows`` rows and ``size`` bytes.

    A larger row has a batch of its own.
    """
    gathered: list[Change] = []
    held = 0
    for change in changes:
        more = len(change.value or b"") + len(change.path)
        if gathered and (held + more > size or len(gathered) == rows):
            yield _batch(gathered, schema)
            gathered, held = [], 0
        gathered.append(change)
        held += more
    if gathered:
        yield _batch(gathered, schema)


def _batch(changes: Sequence[Change], schema: pa.Schema) -> pa.RecordBatch:
    # etcd keeps no times: those columns hold nulls.
    arrays = [
        pa.array([getattr(change, field.name, None) for change in changes], field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


class Key(NamedTuple):
    """Identifies the part of a micro-batch that a task writes. It is the same in every attempt.

    Attributes:
        query: the id of the query. Restarts from the same checkpoint keep it.
        batch: the number of the micro-batch.
        partition: the number of the part. Its rows may differ after a restart.
    """

    query: str
    batch: int
    partition: int

    def __str__(self) -> str:
        return f"query {self.query}, batch {self.batch}, partition {self.partition}"


@dataclass(frozen=True, slots=True)
class StreamWritten(WriterCommitMessage):
    """The message of a part's task to the driver."""

    key: Key
    report: Report


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes the rows of a stream, batch by batch. Each row ends with a known outcome.

    The driver creates it and pickles it to the tasks. The output mode is ``append``. Spark supports
    ``update`` for no data source in Python. For aggregates, use ``foreachBatch`` with ``df.write``
    inside; its rows may be written twice, too.

    Args:
        schema: the schema of the frame.
        options: the options of the data source.
        overwrite: whether Spark passes the whole result in each batch (``complete``).

    Raises:
        InvalidSettingError: a column or an option is invalid.
        UnsupportedError: the output mode is ``complete``.
    """

    def __init__(self, schema: StructType, options: SourceOptions, overwrite: bool) -> None:
        if overwrite:
            raise UnsupportedError(
                "a stream must be written with outputMode append: with complete, each batch would "
                "replace everything in the store"
            )
        self._columns = columns_of(
            (field.name, field.dataType.simpleString()) for field in schema.fields
        )
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of a part.

        Raises:
            RowsFailedError: with ``on_error=fail``, for the first slice with a row that failed.
            MetadataStoreError: the store cannot be opened.
        """
        key, attempt = _task()
        tally = RowCounts()
        part = write_partition(iterator, self._columns, self._options, tally)
        with plain_errors(), closing(part):
            for outcomes in part:
                failed = first_failed(outcomes)
                if failed is not None and self._options.on_error == "fail":
                    raise RowsFailedError(
                        f"a row failed, {failed.path!r}: {failed.status}: {failed.error} ({key}, "
                        f"attempt {attempt}). Rows written before stay, and are written again "
                        "with their batch when the query starts again. on_error=skip continues "
                        f"without failed rows. This part so far: {tally.report()}"
                    )
        report = tally.report()
        if report.rows:
            _log.debug("part written", **key._asdict(), attempt=attempt, report=str(report))
        return StreamWritten(key, report)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """End a batch after all its tasks have succeeded.

        Raises:
            RowsFailedError: rows failed, and ``on_error`` is not ``skip``.
        """
        report = _total(messages)
        if report.failed and self._options.on_error != "skip":
            with plain_errors():
                raise RowsFailedError(
                    f"{report.failed} of {report.rows} rows of batch {batchId} were not "
                    f"written\n{report}"
                )
        tell = _log.warning if report.failed else _log.info
        if report.rows:
            tell("batch written", batch=batchId, report=str(report))

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Log which rows of a failed batch stay written: a store cannot undo them."""
        _log.warning(
            "the batch failed, and its written rows stay. The parts that ended wrote the rows "
            "below; any other part may have written some of its rows. The query writes the batch "
            "again when it is started again",
            batch=batchId,
            parts_unknown=sum(message is None for message in messages),
            report=str(_total(messages)),
        )


def _task() -> tuple[Key, int]:
    """Return the key of the part that this task writes, and the number of the attempt."""
    context = TaskContext.get()
    assert context is not None, "write is called by Spark's tasks only"
    query = context.getLocalProperty("sql.streaming.queryId")
    batch = context.getLocalProperty("streaming.sql.batchId")
    key = Key(query or "unknown", int(batch or -1), context.partitionId())
    return key, context.attemptNumber()


def _total(messages: Sequence[WriterCommitMessage | None]) -> Report:
    return Report.total(
        message.report for message in messages if isinstance(message, StreamWritten)
    )
