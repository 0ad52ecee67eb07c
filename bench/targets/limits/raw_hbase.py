"""HBase's ceilings: the client's own changes in ``Multi``, and its reads with cell blocks.

All states of the rows are known beforehand, so the changes are encoded before the clock starts. An
unconditional put has to read its row first, as nothing else applies it once. 4 requests are in
flight, from 4 threads; of the single puts, one from one thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any, Final, NamedTuple

from batchkeeper.bench.target import Target
from batchkeeper.bench.workload import WrongAnswerError
from batchkeeper.ops.operations import ABSENT
from batchkeeper.stores.backend import Tally
from batchkeeper.stores.hbase.cluster import Cluster
from batchkeeper.stores.hbase.forms import STATES, STATES_AND_VALUES, gets, multi, put, scan
from batchkeeper.stores.hbase.layout import NO_ROW, Row
from batchkeeper.stores.hbase.wire.connection import Reply
from batchkeeper.stores.hbase.wire.fields import Encoded
from batchkeeper.stores.hbase.wire.messages import MESSAGES

from ..rows import Figures
from ..work import Step, items, timed
from .puts import in_threads, seed
from .variants import variant

_IN_FLIGHT: Final = 4
_TIMEOUT: Final = 60.0
_PAGE_ROWS: Final = 5_000
_PAGE_BYTES: Final = 4 << 20


class _Request(NamedTuple):
    """A request, encoded beforehand, and what says whether its answer is as expected."""

    content: Encoded
    fine: Callable[[Reply], bool]


class _HBase:
    read_size = 1000

    def __init__(self, cluster: Cluster, threads: int) -> None:
        self._cluster = cluster
        self._threads = threads
        self._region = cluster.region_of(b"/", _soon())
        self._states: dict[bytes, Row] = {}
        self._marks = count()

    def write_size(self, _expected: int | None) -> int:
        return 1 if self._threads == 1 else 1000

    def write(self, found: Sequence[Step], expected: int | None) -> list[_Request]:
        actions = []
        for step in found:
            key = step.path.encode()
            before = NO_ROW if expected in (None, ABSENT) else self._states[key]
            after = before.changed(before.version + 1, next(self._marks).to_bytes(16))
            self._states[key] = after
            actions.append(put(self._region.field, key, before, after, step.value))
        changes = _Request(multi(actions), lambda reply: _processed(reply, len(found)))
        if expected is None:
            return [self._gets(found, STATES, lambda reply: not reply.cells), changes]
        return [changes]

    def read(self, found: Sequence[Step]) -> list[_Request]:
        values = [step.value for step in found]

        def fine(reply: Reply) -> bool:
            return [cell.value for cell in reply.cells if cell.column == b"f:v"] == values

        return [self._gets(found, STATES_AND_VALUES, fine)]

    def _gets(
        self, found: Sequence[Step], columns: Sequence[Any], fine: Callable[[Reply], bool]
    ) -> _Request:
        keys = [step.path.encode() for step in found]
        return _Request(multi([gets(self._region.field, keys, columns)]), fine)

    def replay(self, requests: Sequence[list[_Request]]) -> None:
        def sender(shared: Iterator[list[_Request]]) -> None:
            for request in shared:
                for one in request:
                    if not one.fine(self.send("Multi", one.content, MESSAGES.MultiResponse)):
                        raise WrongAnswerError("a request of a ceiling was answered otherwise")

        in_threads(self._threads, sender, requests)

    def send(self, method: str, request: Any, response: type) -> Reply:
        begin, by = self._cluster.begin, _soon()
        return begin(self._region.address, method, request, response, by).wait(by)

    def scan(self, start: bytes, end: bytes) -> int:
        """Read the rows of a stretch, and return their number."""
        found = 0
        while True:
            request = scan(
                self._region.field, start, end, STATES_AND_VALUES, _PAGE_ROWS, _PAGE_BYTES
            )
            reply = self.send("Scan", request, MESSAGES.ScanResponse)
            found += len(reply.cells) // 2
            if not reply.message.more_results_in_region:
                return found
            start = reply.cells[-1].row + b"\0"


def _processed(reply: Reply, number: int) -> bool:
    return [action.processed for action in reply.message.region_action_result] == [True] * number


def _soon() -> float:
    return time.monotonic() + _TIMEOUT


@contextmanager
def opened(there: Target, threads: int = _IN_FLIGHT) -> Iterator[_HBase]:
    """Yield a ceiling with connections of its own, to a table with one region."""
    there.open().close()  # It makes the table.
    cluster = Cluster(
        there.url.addresses(16000), (b"default", b"batchkeeper"), "bench", _TIMEOUT, Tally()
    )
    try:
        yield _HBase(cluster, threads)
    finally:
        cluster.close()


# Scans. Both sides read the same rows again and again.

_SCANNED: Final = 20_000
_folders: dict[str, str] = {}


def _scanned(there: Target) -> str:
    """Return a folder with values, which is made once."""
    if (folder := _folders.get(there.url.text)) is None:
        folder = _folders[there.url.text] = f"{there.root}/scanned"
        with there.open() as store:
            seed(store, items(folder, _SCANNED))
    return folder


def _scans(there: Target, number: int, scan: Callable[[], int]) -> Figures:
    def run(times: int) -> None:
        for _ in range(times):
            if scan() != _SCANNED:
                raise WrongAnswerError("a scan left rows out")

    times = -(-number // _SCANNED)
    return timed(there, run, 1, times, times * _SCANNED)


@variant("scanned rows", grows=False, least=_SCANNED)
def scanned_rows(there: Target, number: int) -> Figures:
    """Measure a scan of values, page by page."""
    folder = _scanned(there)
    with there.open() as store:
        return _scans(there, number, lambda: sum(map(len, store.scan_pages(folder))))


@variant("bare scan", grows=False, least=_SCANNED)
def bare_scan(there: Target, number: int) -> Figures:
    """Measure the same by bare requests."""
    folder = _scanned(there).encode()
    with opened(there) as raw:
        return _scans(there, number, lambda: raw.scan(folder + b"/", folder + b"0"))
