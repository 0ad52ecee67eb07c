"""Measures how many writes that a kill catches are settled: ``python -m batchkeeper.bench.kills``.

Threads create fresh paths as fast as they can. Meanwhile the server is repeatedly killed
(``kill -9``) and started. Each time, the benchmark notes the writes inside the back end's calls at
that moment, and their outcomes. A write is *settled* if it ends with a result, or with an error
that says that nothing was applied, within five seconds of the server's return. All others are
indeterminate or late. At the end every path is read: an acknowledged creation must be there, one
that ended as not applied must not, and a creation of a fresh path must never meet a conflict.

etcd before 3.5.5 may itself lose its last acknowledged writes (etcd #14370, #13766). Such losses
are counted separately.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from .. import open_store
from ..batching import MetadataStore
from ..ops.errors import BadVersionError, IndeterminateError, MetadataStoreError, QueueFullError
from ..ops.operations import ABSENT
from ..ops.results import Stat
from ..stores.backend import Answer, Backend, PassingBackend, RequestRefusedError, WriteRequest
from ..testing.servers import SERVERS, LocalServer

__all__ = ["Kill", "Findings", "main", "measure"]

#: The seconds after the server's return within which a settled write counts, and the target for the
#: share of these writes: the eighth of the guarantees on broken connections.
WITHIN: Final = 5.0
TARGET: Final = 0.999

# The operations that a thread keeps under way, queued or sent.
_AHEAD: Final = 1000


@dataclass(slots=True)
class Kill:
    """The writes that one kill caught, by outcome.

    Attributes:
        caught: the number of these writes.
        settled: those that were settled in time.
        indeterminate: those that ended as indeterminate.
        late: those that did not end in time.
        down: the seconds from the kill to the server's return.
        slowest: the seconds from the server's return to the end of the slowest write in time.
    """

    caught: int = 0
    settled: int = 0
    indeterminate: int = 0
    late: int = 0
    down: float = 0.0
    slowest: float = 0.0


@dataclass(slots=True)
class Findings:
    """The writes that the kills caught, and the result of reading all paths at the end.

    Attributes:
        kills: the result of each kill.
        writes: the number of acknowledged creations.
        missing: acknowledged creations whose paths are missing at the end.
        false_failures: creations that ended as not applied, but whose paths exist.
        false_conflicts: creations of fresh paths that ended with a conflict.
    """

    kills: list[Kill] = field(default_factory=list)
    writes: int = 0
    missing: int = 0
    false_failures: int = 0
    false_conflicts: int = 0

    @property
    def share(self) -> float:
        """The share of the caught writes that were settled in time."""
        caught = sum(kill.caught for kill in self.kills)
        return sum(kill.settled for kill in self.kills) / caught if caught else 0.0


@dataclass(slots=True, eq=False)
class _Write:
    """One call of ``write``, with the time and the manner of its end."""

    requests: int
    ended: float = 0.0
    indeterminate: int = 0
    done: threading.Event = field(default_factory=threading.Event)


class _Watched(PassingBackend):
    """A back end that shows its writes under way."""

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        self._lock = threading.Lock()  # guards _inside
        self._inside: set[_Write] = set()

    def inside(self) -> list[_Write]:
        """Return the calls that are under way now."""
        with self._lock:
            return list(self._inside)

    def write(self, requests: Sequence[WriteRequest], deadline: float) -> Sequence[Answer]:
        call = _Write(len(requests))
        with self._lock:
            self._inside.add(call)
        try:
            answers = super().write(requests, deadline)
            call.indeterminate = sum(isinstance(answer, IndeterminateError) for answer in answers)
        except RequestRefusedError:
            raise
        except MetadataStoreError as error:
            call.indeterminate = len(requests) if error.outcome == "unknown" else 0
            raise
        finally:
            call.ended = time.monotonic()
            with self._lock:
                self._inside.discard(call)
            call.done.set()
        return answers


class _Load:
    """Threads that create fresh paths, each with many operations under way."""

    def __init__(self, store: MetadataStore, threads: int) -> None:
        self._store = store
        self._stop = threading.Event()
        self.acknowledged: list[str] = []
        self.not_applied: list[str] = []
        self.conflicts = 0
        self._threads = [threading.Thread(target=self._run, args=(n,)) for n in range(threads)]
        for thread in self._threads:
            thread.start()

    def _run(self, name: int) -> None:
        under_way: deque[tuple[str, Future[Stat]]] = deque()
        number = 0
        while not self._stop.is_set():
            path = f"/kills/{name}/{number}"
            number += 1
            try:
                under_way.append((path, self._store.put(path, b"x" * 100, ABSENT)))
            except QueueFullError:
                self.not_applied.append(path)
            while len(under_way) >= _AHEAD or (under_way and under_way[0][1].done()):
                self._note(*under_way.popleft())
        for path, future in under_way:
            self._note(path, future)

    def _note(self, path: str, future: Future[Stat]) -> None:
        error = future.exception()
        if error is None:
            self.acknowledged.append(path)
        elif isinstance(error, BadVersionError):
            self.conflicts += 1
        elif isinstance(error, MetadataStoreError) and error.outcome == "not_applied":
            self.not_applied.append(path)

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()


def measure(server: LocalServer, kills: int, threads: int, seed: int = 0) -> Findings:
    """Repeatedly kill a running server under load, and return the outcomes of the writes."""
    dice = random.Random(seed)
    watched: list[_Watched] = []

    def watch(backend: Backend) -> Backend:
        watched.append(_Watched(backend))
        return watched[-1]

    report = Findings()
    with open_store(server.url, connect_timeout=60.0, wrap=watch) as store:
        load = _Load(store, threads)
        try:
            for _ in range(kills):
                time.sleep(dice.uniform(0.3, 1.0))
                report.kills.append(_kill(server, watched[0]))
        finally:
            load.stop()
        report.writes, report.false_conflicts = len(load.acknowledged), load.conflicts
        found = _there(store, [*load.acknowledged, *load.not_applied])
        report.missing = len(set(load.acknowledged) - found)
        report.false_failures = len(found & set(load.not_applied))
    return report


def _kill(server: LocalServer, backend: _Watched) -> Kill:
    before = backend.inside()
    server.kill()
    killed = time.monotonic()
    after = backend.inside()
    # Calls that ended in between were answered before the kill, unless they are indeterminate.
    caught = after + [call for call in before if call not in after and call.indeterminate]
    server.start()
    returned = time.monotonic()
    kill = Kill(down=returned - killed)
    for call in caught:
        call.done.wait(max(0.0, returned + WITHIN - time.monotonic()))
        kill.caught += call.requests
        if not call.done.is_set():
            kill.late += call.requests
        else:
            kill.indeterminate += call.indeterminate
            kill.settled += call.requests - call.indeterminate
            kill.slowest = max(kill.slowest, call.ended - returned)
    return kill


def _there(store: MetadataStore, paths: Sequence[str]) -> set[str]:
    reads = {path: store.exists(path, timeout=120.0) for path in paths}
    wait(reads.values())
    return {path for path, read in reads.items() if read.result()}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return 0 if the target was reached and no outcome was false."""
    parser = argparse.ArgumentParser("python -m batchkeeper.bench.kills", description=__doc__)
    parser.add_argument("store", choices=sorted(SERVERS))
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--dir", type=Path, default=None, help="folder for the server's data")
    chosen = parser.parse_args(arguments)
    with (
        tempfile.TemporaryDirectory(dir=chosen.dir) as directory,
        SERVERS[chosen.store](directory) as server,
    ):
        report = measure(server, chosen.kills, chosen.threads)
    sys.stdout.write(_text(report))
    sound = not (report.false_failures or report.false_conflicts)
    return 0 if report.share >= TARGET and sound else 1


def _text(report: Findings) -> str:
    lines = ["kill  caught  settled  indeterminate  late  down s  slowest s"]
    for number, kill in enumerate(report.kills):
        lines.append(
            f"{number:4} {kill.caught:7} {kill.settled:8} {kill.indeterminate:14} {kill.late:5} "
            f"{kill.down:7.2f} {kill.slowest:10.2f}"
        )
    caught = sum(kill.caught for kill in report.kills)
    settled = sum(kill.settled for kill in report.kills)
    lines += [
        f"settled within {WITHIN:g} s of the return: {settled} of {caught}",
        f"share: {report.share:.3%} (target {TARGET:.1%})",
        f"acknowledged creations: {report.writes}, of these missing: {report.missing}",
        f"reported as not applied, but found: {report.false_failures}",
        f"conflicts on fresh paths: {report.false_conflicts}",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
