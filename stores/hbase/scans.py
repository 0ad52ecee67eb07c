"""Walks over the rows of the table, in the order of paths.

Each page is a scan of its own, which begins after the last row of the page before. So nothing has
to be kept at a server, and a page that fails is asked for again, wherever its region is by then.
While the caller works on a page, the next one is on its way.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, Final, NamedTuple

from ...ops.errors import InvalidPathError, MetadataStoreError, NotFoundError
from ...ops.operations import ABSENT
from ...ops.results import Range, ScanPage, ScanResult, StatPage, printable
from ..keys import Sorted, own, sort_keys
from ..refusals import partly_removed
from ..spans import evenly, with_outside
from .cluster import Region
from .forms import STATES, STATES_AND_VALUES, scan
from .layout import FOREIGN, NO_ROW, Row, next_key, rows_in, too_long
from .requests import Requests
from .wire.connection import LostError, Pending, RemoteError
from .wire.errors import meaning_of, repeatable
from .wire.messages import MESSAGES

__all__ = ["HBaseScans", "Walk"]

_PAGE_BYTES: Final = 4 * 1024 * 1024
_PAGE_ROWS: Final = 5_000
# Rows that a removal deletes at a time.
_REMOVAL: Final = 1_000
_MILLISECOND: Final = 0.001


class _Page(NamedTuple):
    """A page that was asked for."""

    start: bytes
    region: Region
    pending: Pending | LostError


class Walk:
    """The rows of a stretch that hold values, in pages.

    Args:
        requests: reads the sessions of ephemeral values.
        timeout: seconds for each page.
        columns: what to read of each row.
        rows: the most rows to read for a page.
        hides: whether values of ended sessions are left out.
    """

    def __init__(
        self,
        requests: Requests,
        timeout: float,
        columns: Sequence[Any],
        rows: int = _PAGE_ROWS,
        *,
        hides: bool = True,
    ) -> None:
        self._requests = requests
        self._hides = hides
        self._cluster = requests.cluster
        self._timeout = timeout
        self._columns = columns
        self._rows = rows

    def pages(
        self, start: bytes, end: bytes | None, deadline: float | None = None
    ) -> Iterator[list[tuple[bytes, Row]]]:
        """Yield the rows from ``start`` to ``end``, which is left out; ``None`` for no end.

        The first page is asked for at once. With ``deadline``, all pages have time until then.

        Raises:
            MetadataStoreError: a page cannot be read in its time.
        """
        return self._pages(self._ask(start, end, self._by(deadline)), end, deadline)

    def _pages(
        self, asked: _Page | None, end: bytes | None, deadline: float | None
    ) -> Iterator[list[tuple[bytes, Row]]]:
        while asked is not None:
            rows, after = self._take(asked, end, self._by(deadline))
            asked = None if after is None else self._ask(after, end, self._by(deadline))
            if self._hides and any(row.owner for _, row in rows):
                rows = [*self._requests.living(dict(rows), self._by(deadline)).items()]
            living = [(key, row) for key, row in rows if row.version != ABSENT]
            if living:
                yield living

    def _by(self, deadline: float | None) -> float:
        return time.monotonic() + self._timeout if deadline is None else deadline

    def _take(
        self, asked: _Page, end: bytes | None, by: float
    ) -> tuple[list[tuple[bytes, Row]], bytes | None]:
        """Return the rows of a page, and where the next one begins, if there is one."""
        attempts = 0
        while True:
            try:
                if isinstance(asked.pending, LostError):
                    raise asked.pending
                reply = asked.pending.wait(by)
                break
            except (LostError, RemoteError) as error:
                if meaning_of(error) == "refused" or not self._cluster.pause(attempts, by):
                    raise repeatable(error) from error
                if meaning_of(error) != "busy":
                    self._cluster.moved(by)
                self._cluster.tally.add("retry")
            asked = self._ask(asked.start, end, by)
            attempts += 1
        rows = rows_in(reply.cells)
        if reply.message.more_results_in_region:
            # A page may be empty, if the server took long to find a row.
            after = next_key(rows[-1][0]) if rows else reply.message.cursor.row or asked.start
        else:
            after = asked.region.end
            if not after or (end is not None and after >= end):
                return rows, None
        return rows, after

    def _ask(self, start: bytes, end: bytes | None, deadline: float) -> _Page:
        self._cluster.check()
        region = self._cluster.region_of(start, deadline)
        request = scan(region.field, start, end or b"", self._columns, self._rows, _PAGE_BYTES)
        try:
            pending: Pending | LostError = self._cluster.begin(
                region.address, "Scan", request, MESSAGES.ScanResponse, deadline
            )
        except LostError as error:
            pending = error
        return _Page(start, region, pending)


class HBaseScans:
    """The facet for scans.

    Args:
        requests: sends to the servers.
        own: returns this client's session, or 0.
        remove: removes the values of paths, also those that another program wrote, and returns how
            many there were.
    """

    def __init__(
        self,
        requests: Requests,
        remove: Callable[[Sequence[str], float], int],
        own: Callable[[], int],
    ) -> None:
        self._requests = requests
        self._own = own
        self._remove = remove

    def scan(
        self, prefix: str, within: Range, revision: int | None, timeout: float
    ) -> Generator[Sequence[ScanResult], None, None]:
        """Yield the values under ``prefix``, each as it was when its page was read."""
        walk = Walk(self._requests, timeout, STATES_AND_VALUES)
        for found, rows in self._sorted(walk, prefix, within):
            own = self._own()
            stats = [row.stat(path, own) for path, row in zip(found.paths, rows, strict=True)]
            yield ScanPage(
                found.paths,
                [row.value for row in rows],
                [stat.version for stat in stats],
                [stat.revision for stat in stats],
                [stat.ephemeral for stat in stats],
                owned=[stat.owned for stat in stats],
                foreign=found.foreign,
            )

    def scan_stats(
        self, prefix: str, within: Range, revision: int | None, timeout: float
    ) -> Generator[StatPage, None, None]:
        """Yield the stats of the results of :meth:`scan`. The server sends no values."""
        walk = Walk(self._requests, timeout, STATES)
        for found, rows in self._sorted(walk, prefix, within):
            own = self._own()
            yield StatPage.of(
                [row.stat(path, own) for path, row in zip(found.paths, rows, strict=True)],
                found.foreign,
            )

    def split(self, prefix: str, n: int, timeout: float) -> Sequence[Range]:
        """Return ranges of equally many values, from a read of all keys."""
        walk = Walk(self._requests, timeout, STATES)
        return evenly(
            [path for found, _ in self._sorted(walk, prefix, Range()) for path in found.paths],
            n,
        )

    def delete_recursive(self, path: str, timeout: float) -> int:
        """Remove the values under ``path``, its own as the last. See :class:`Scans`."""
        walk = Walk(self._requests, timeout, STATES, _REMOVAL)
        removed = 0
        try:
            for found, _ in self._sorted(walk, path, Range(), removes=True):
                removed += self._remove(found.paths, time.monotonic() + timeout)
        except MetadataStoreError as error:
            raise partly_removed(removed, path, error) from error
        return removed

    def delete_foreign(self, key: bytes, timeout: float, *, dry_run: bool) -> None:
        """Remove a foreign key. See ``stores.keys.ForeignRemoval``."""
        if own(key):
            raise InvalidPathError(f"'{printable(key)}' is reserved")
        deadline = time.monotonic() + timeout
        there = self._requests.read([key], STATES, deadline).get(key, NO_ROW).version != ABSENT
        if there and not dry_run:
            there = self._remove([key.decode(errors="surrogateescape")], deadline) == 1
        if not there:
            raise NotFoundError(f"nothing to delete at '{printable(key)}'")

    def revision(self, timeout: float) -> int:
        """Return the clock of this client: see ``layout`` for revisions of different paths."""
        self._requests.cluster.check()
        now = time.time_ns() // 1_000_000
        time.sleep(_MILLISECOND)  # so that later changes are in another one
        return now

    def _sorted(
        self, walk: Walk, prefix: str, within: Range, *, removes: bool = False
    ) -> Iterator[tuple[Sorted, Sequence[Row]]]:
        """Yield the paths of each page, and their rows.

        For a removal, what another program wrote is among them, and the path itself is the last.

        Raises:
            ValueTooLargeError: the prefix or a bound is too long for a key.
        """
        for path in (prefix, *within):
            if path is not None and (error := too_long(path)):
                raise error
        stretches = with_outside(prefix, within)
        for start, end in reversed(stretches) if removes else stretches:
            for rows in walk.pages(start.encode(), None if end is None else end.encode()):
                found = sort_keys([key for key, _ in rows])
                theirs = found.of([row for _, row in rows])
                if not removes and any(row.version == FOREIGN for row in theirs):
                    found, theirs = _without_foreign(found, theirs)
                if found.paths or found.foreign:  # Not only rows of the client itself.
                    yield found, theirs


def _without_foreign(found: Sorted, rows: Sequence[Row]) -> tuple[Sorted, Sequence[Row]]:
    """Count the paths whose values another program wrote among the foreign keys."""
    theirs = [place for place, row in enumerate(rows) if row.version != FOREIGN]
    paths = [found.paths[place] for place in theirs]
    foreign = {path.encode() for path in found.paths} - {path.encode() for path in paths}
    left = Sorted(paths, theirs, sorted([*found.foreign, *foreign]))
    return left, left.of(rows)
