"""Writes a frame to a store: ``df.write.format("batchkeeper")``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from .. import parse_url
from ..ops.errors import InvalidSettingError
from ..ops.log import get_logger
from .clients import client, opened
from .failures import plain_errors
from .options import SourceOptions
from .overwrite import await_revision, delete_older
from .partition import write_partition
from .row_report import Report, RowCounts, RowOutcome, RowsFailedError, first_failed
from .rows import columns_of

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["BatchWriter", "Written"]

_log: Final = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Written(WriterCommitMessage):
    """The message of a partition's task to the driver."""

    report: Report


class BatchWriter(DataSourceArrowWriter):
    """Writes the rows of a frame. Each row ends with a known outcome.

    The columns are ``path`` (string) and ``value`` (binary), and optionally ``expected_version``
    (bigint; null for unconditional rows, -1 for a path that must hold no value) and ``op``
    (``put``, the default for null, or ``delete``).

    Any number of attempts may write conditional rows: a row whose effect is already there counts as
    done. A path may have only one conditional row in a job; a second one is a conflict. It is
    detected within 100,000 conditional rows of a partition. Beyond that its version decides, and a
    later attempt may find a conflict where the first found none. A later attempt would write an
    unconditional row of the same path again, over the conditional one. Unconditional rows are
    written at least once: a late attempt may overwrite a newer value. Rows of one path keep their
    order within a partition.

    The driver creates it before the first task, checks the columns, the options and the store, and
    pickles it to the tasks. ``write`` runs once for each attempt of a task, and ``commit`` or
    ``abort`` once at the end, in a process of their own.

    Args:
        schema: the schema of the frame.
        options: the options of the data source.
        overwrite: whether to delete the older values under the prefix.

    Raises:
        InvalidSettingError: a column or an option is invalid.
        MetadataStoreError: the store cannot be opened, or its revision cannot be read.
    """

    def __init__(self, schema: StructType, options: SourceOptions, overwrite: bool) -> None:
        self._columns = columns_of(
            (field.name, field.dataType.simpleString()) for field in schema.fields
        )
        self._options = options
        self._before: int | None = None
        if overwrite:
            self._check_overwrite()
        # If the store cannot be reached, fail here and not in every task.
        with opened(options) as store:
            if overwrite:
                self._before = store.revision()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of a partition.

        Raises:
            RowsFailedError: with ``on_error=fail``, for the first slice with a row that failed.
            MetadataStoreError: the store cannot be opened, or an overwrite would delete the rows.
        """
        # What an embedded store counts as its revision has no clock in it.
        if self._before is not None and not self._options.embedded:
            with plain_errors(), client(self._options) as store:
                await_revision(store, self._before, self._options.operation_timeout)
        tally = RowCounts()
        partition = write_partition(iterator, self._columns, self._options, tally)
        with plain_errors(), closing(partition):
            for outcomes in partition:
                if self._options.on_error == "fail":
                    _fail_for_the_first(outcomes, tally)
        return Written(tally.report())

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """End a job after all its tasks have succeeded.

        Raises:
            RowsFailedError: rows failed, and ``on_error`` is not ``skip``.
            MetadataStoreError: older values could not be deleted.
        """
        with plain_errors():
            self._commit(_total(messages))

    def _commit(self, report: Report) -> None:
        if report.failed and self._options.on_error != "skip":
            raise RowsFailedError(
                f"{report.failed} of {report.rows} rows were not written"
                + ("; nothing was deleted" if self._before is not None else "")
                + f"\n{report}"
            )
        if report.failed:
            _log.warning("rows skipped", report=str(report))
        else:
            _log.info("rows written", report=str(report))
        if self._before is not None:
            with opened(self._options) as store:
                deleted = delete_older(store, self._options.prefix, self._before)
            _log.info("older values deleted", count=deleted)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Log which rows of a failed job stay written: a store cannot undo them."""
        report = _total(messages)
        unknown = sum(message is None for message in messages)
        older = ""
        if self._before is not None:
            # The deletes start in commit, after all tasks have succeeded. So if all have, commit
            # failed, perhaps amid the deletes.
            begun = not (unknown or report.failed)
            older = (
                ". Some or all of the older values are deleted"
                if begun
                else ". No older value is deleted"
            )
        _log.warning(
            "the job failed, and its written rows stay. The partitions that ended wrote or deleted "
            "the rows of the report; any other partition may have written some of its rows. "
            "Running the job again is safe for conditional rows; other rows are written again"
            + older,
            partitions_ended=len(messages) - unknown,
            partitions_unknown=unknown,
            report=str(report),
        )

    def _check_overwrite(self) -> None:
        """Refuse an overwrite that could delete values by accident.

        Raises:
            InvalidSettingError: the overwrite is refused. The message says why.
        """
        options = self._options
        if self._columns.expected_version is not None:
            raise InvalidSettingError(
                "overwrite takes only unconditional rows: omit the column expected_version, or use "
                "the mode append"
            )
        if options.on_error == "skip":
            raise InvalidSettingError(
                "overwrite cannot skip rows: the older values at their paths would be deleted. "
                "Use on_error=fail or on_error=collect"
            )
        # The path of an embedded store's URL is the directory of the whole store.
        if options.prefix == "/" and (options.embedded or not parse_url(options.url).prefix()):
            where = "the option 'prefix'" if options.embedded else "the option 'prefix' or the URL"
            raise InvalidSettingError(
                f"overwrite needs a prefix, in {where}: without one, it would delete the whole "
                "store"
            )


def _fail_for_the_first(outcomes: Sequence[RowOutcome], tally: RowCounts) -> None:
    """Raise for the first row of a slice that is not done."""
    failed = first_failed(outcomes)
    if failed is not None:
        report = tally.report()
        raise RowsFailedError(
            f"{failed.path!r}: {failed.status}: {failed.error}. The {report.rows - report.failed} "
            "other rows that this task wrote stay. on_error=collect writes all other rows before "
            "the job fails; on_error=skip lets the job succeed without this row"
        )


def _total(messages: Iterable[WriterCommitMessage | None]) -> Report:
    return Report.total(message.report for message in messages if isinstance(message, Written))
