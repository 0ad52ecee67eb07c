"""Turns rows into operations, and returns an outcome for each.

Rows are sent in slices, and a slice ends before the next begins. So only the rows of one slice can
overtake each other, and :class:`~batchkeeper.pipeline.sending.Sender` keeps the order of those with
the same path.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ..batching import MetadataStore
from ..ops.errors import InvalidPathError, InvalidSettingError, MetadataStoreError
from ..ops.operations import Delete, Put
from ..ops.paths import check_parent
from .row_report import RowCounts, RowOutcome
from .sending import PATIENCE, Patience, Sender, describe

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Columns", "RecentPaths", "RowWriter", "columns_of"]

_TEXT: Final = ("string", "large_string", "varchar", "char", "void", "null")
_BYTES: Final = ("binary", "large_binary", "void", "null")
_INTEGERS: Final = ("tinyint", "smallint", "int", "bigint", "int8", "int16", "int32", "int64")

# The types that each column may have, as Spark and Arrow name them, and the type named in messages.
_TYPES: Final[Mapping[str, tuple[tuple[str, ...], str]]] = {
    "path": (_TEXT[:4], "string"),
    "value": (_BYTES, "binary"),
    "expected_version": ((*_INTEGERS, "void", "null"), "bigint"),
    "op": (_TEXT, "string"),
}

# The fewest paths of conditional rows to remember, for detecting a second row of a path; the most
# is twice that number. The bound keeps a task's memory from growing with its rows.
_REMEMBERED: Final = 100_000


class Columns(NamedTuple):
    """The places of the columns in a batch; ``None`` for a missing column."""

    path: int
    value: int
    expected_version: int | None = None
    op: int | None = None


def columns_of(fields: Iterable[tuple[str, str]]) -> Columns:
    """Find the columns among the names and types of a schema, Spark's or Arrow's.

    Raises:
        InvalidSettingError: a column is missing, occurs twice, has the wrong type or is unknown.
    """
    found: dict[str, int] = {}
    for place, (name, kind) in enumerate(fields):
        if name not in _TYPES:
            raise InvalidSettingError(
                f"cannot write the column {name!r}: the columns are path, value and, optionally, "
                "expected_version and op. Select these, and rename columns if needed"
            )
        if name in found:
            raise InvalidSettingError(f"the column {name!r} occurs twice")
        allowed, wanted = _TYPES[name]
        if kind.split("(")[0].split(" ")[0] not in allowed:
            hint = " (an integer)" if name == "expected_version" else ""
            raise InvalidSettingError(
                f"the column {name!r} is {kind}, but must be {wanted}{hint}: "
                f"cast({name} as {wanted})"
            )
        found[name] = place
    for name in ("path", "value"):
        if name not in found:
            have = ", ".join(found) or "none"
            raise InvalidSettingError(f"the column {name!r} is missing (columns found: {have})")
    return Columns(**found)


class RowWriter:
    """Writes the rows of one partition, and returns the outcome of each.

    Args:
        store: the store to write.
        columns: the places of the columns in the batches.
        tally: counts the rows.
        prefix: rows outside this prefix are errors.
        parents_count: see :class:`Sender`.
        rate: operations per second; ``None`` for no limit.
        patience: how often rows are sent again.
        sleep: a function that waits for a number of seconds.

    Attributes:
        slice_rows: the most rows of a slice. Smaller slices leave the store idle more often, for
            the time of one request at the end of each. Larger slices hold more rows in memory.
        slice_bytes: the most bytes of a slice.
    """

    slice_rows: Final = 10_000
    slice_bytes: Final = 32 * 1024 * 1024

    def __init__(
        self,
        store: MetadataStore,
        columns: Columns,
        tally: RowCounts,
        *,
        prefix: str = "/",
        parents_count: bool = False,
        patience: Patience = PATIENCE,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._columns = columns
        self._prefix = check_parent(prefix)
        self._below = prefix if prefix == "/" else prefix + "/"
        self._sender = Sender(store, parents_count=parents_count, patience=patience, sleep=sleep)
        self._recent = RecentPaths()
        self._tally = tally

    def write(self, batch: pa.RecordBatch) -> Iterator[list[RowOutcome]]:
        """Write an Arrow record batch, and yield the outcomes of its rows in order, by slice.

        All rows of a slice have ended when it is yielded. Failed rows raise no exception.
        """
        size = max(1, batch.nbytes // max(1, batch.num_rows))
        rows = max(1, min(self.slice_rows, self.slice_bytes // size))
        for start in range(0, batch.num_rows, rows):
            yield self._write_slice(batch.slice(start, rows))

    def _write_slice(self, batch: pa.RecordBatch) -> list[RowOutcome]:
        outcomes: list[RowOutcome | None] = [None] * batch.num_rows
        places: list[int] = []
        ops: list[Put | Delete] = []
        for place, row in enumerate(self._rows(batch)):
            try:
                ops.append(self._operation(*row))
                places.append(place)
            except _SecondConditionalError as error:
                outcomes[place] = RowOutcome(row[0], "conflict", None, str(error))
            except MetadataStoreError as error:
                outcomes[place] = RowOutcome(_shown(row[0]), "error", None, describe(error))
        sender = self._sender
        for place, outcome in zip(places, sender.run(ops), strict=True):
            outcomes[place] = outcome
        ended = [outcome for outcome in outcomes if outcome is not None]
        self._tally.add(ended, sender.seconds, sender.resent)
        return ended

    def _rows(self, batch: pa.RecordBatch) -> Iterator[tuple[Any, Any, Any, Any]]:
        none = [None] * batch.num_rows
        lists = [none if place is None else _values(batch.column(place)) for place in self._columns]
        return zip(*lists, strict=True)

    def _operation(
        self, path: str | None, value: bytes | None, expected: int | None, op: str | None
    ) -> Put | Delete:
        """Return the operation of a row.

        Raises:
            MetadataStoreError: the row is invalid. The message says why.
        """
        if path is None:
            raise InvalidPathError("the path is null")
        made: Put | Delete
        if op is None or op == "put":
            if value is None:
                raise InvalidSettingError("the value of a put is null")
            made = Put(path, value, expected)
        elif op == "delete":
            made = Delete(path, expected)
        else:
            raise InvalidSettingError(f"op must be put or delete, not {op!r:.80}")
        if not (path.startswith(self._below) or path == self._prefix):
            raise InvalidPathError(f"the path lies outside the prefix {self._prefix!r}")
        if expected is not None and self._recent.seen_before(path):
            raise _SecondConditionalError(
                "another conditional row of this job has the same path; a path may have only one"
            )
        return made


def _values(column: pa.Array) -> list[Any]:
    """Return the values of a column. Bytes that are not valid UTF-8 become surrogates.

    Spark allows such text. Paths and operation names may not contain surrogates, so only the rows
    with such text are refused.
    """
    try:
        values: list[Any] = column.to_pylist()
    except UnicodeDecodeError:
        raw = column.cast("large_binary").to_pylist()
        return [None if text is None else text.decode(errors="surrogateescape") for text in raw]
    return values


def _shown(path: str | None) -> str | None:
    """Return a path as valid text, with escapes in place of surrogates."""
    if path is None:
        return None
    return path.encode(errors="surrogateescape").decode(errors="backslashreplace")


class _SecondConditionalError(MetadataStoreError):
    """A path has a second conditional row."""


class RecentPaths:
    """Remembers the latest paths, and at most twice as many.

    Args:
        fewest: the number of paths that it remembers at least.
    """

    def __init__(self, fewest: int = _REMEMBERED) -> None:
        self._fewest = fewest
        self._young: set[str] = set()
        self._old: set[str] = set()

    def seen_before(self, path: str) -> bool:
        """Say whether the path was seen before, and remember it."""
        if path in self._young or path in self._old:
            return True
        if len(self._young) >= self._fewest:
            self._young, self._old = set(), self._young
        self._young.add(path)
        return False
