"""How many writes that a kill of the server catches are settled.

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

import itertools
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

from batchkeeper import open_store
from batchkeeper.batching import MetadataStore
from batchkeeper.ops.errors import BadVersionError, IndeterminateError, MetadataStoreError
from batchkeeper.ops.operations import ABSENT, Put
from batchkeeper.stores.backend import (
    Answer,
    Backend,
    PassingBackend,
    RequestRefusedError,
    WriteRequest,
)
from batchkeeper.testing.servers import LocalServer

#: The seconds after the server's return within which a settled write counts, and the target for the
#: share of these writes: the eighth of the guarantees on broken connections.
WITHIN: Final = 5.0
TARGET: Final = 0.999


@dataclass(slots=True)
class Findings:
    """The writes that the kills caught, and how the creations of all paths ended.

    Attributes:
        kills: for each kill, the caught writes that were ``settled`` in time, ended as
            ``indeterminate``, or did not end in time (``late``).
        acknowledged: the paths of acknowledged creations. The threads share the lists.
        not_applied: the paths of those that ended as not applied.
        false_conflicts: the paths, all of them fresh, of those that ended with a conflict.
        there: the paths that exist at the end.
        interrupted: whether Ctrl-C came before the last kill.
    """

    kills: list[Counter[str]] = field(default_factory=list)
    acknowledged: list[str] = field(default_factory=list)
    not_applied: list[str] = field(default_factory=list)
    false_conflicts: list[str] = field(default_factory=list)
    there: set[str] = field(default_factory=set)
    interrupted: bool = False

    @property
    def caught(self) -> Counter[str]:
        """The writes that all kills caught."""
        return sum(self.kills, Counter[str]())

    @property
    def missing(self) -> int:
        """Acknowledged creations whose paths are missing at the end."""
        return len(set(self.acknowledged) - self.there)

    @property
    def false_failures(self) -> int:
        """Creations that ended as not applied, but whose paths exist."""
        return len(self.there & set(self.not_applied))

    @property
    def share(self) -> float:
        """The share of the caught writes that were settled in time."""
        return self.caught["settled"] / (self.caught.total() or 1)


@dataclass(slots=True, eq=False)
class _Write:
    """One call of ``write``, and how it ended."""

    requests: int
    indeterminate: int = 0
    done: threading.Event = field(default_factory=threading.Event)


class _Watched(PassingBackend):
    """A back end that shows its writes under way."""

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        self._lock = threading.Lock()  # guards _inside
        self._inside: set[_Write] = set()

    def inside(self) -> set[_Write]:
        """Return the running calls."""
        with self._lock:
            return set(self._inside)

    def write(self, requests: Sequence[WriteRequest], deadline: float) -> Sequence[Answer]:
        call = _Write(len(requests))
        with self._lock:
            self._inside.add(call)
        try:
            answers = super().write(requests, deadline)
            call.indeterminate = sum(isinstance(answer, IndeterminateError) for answer in answers)
        except MetadataStoreError as error:
            unknown = error.outcome == "unknown" and not isinstance(error, RequestRefusedError)
            call.indeterminate = len(requests) if unknown else 0
            raise
        finally:
            with self._lock:
                self._inside.discard(call)
            call.done.set()
        return answers


def _create(store: MetadataStore, name: int, stop: threading.Event, found: Findings) -> None:
    """Create fresh paths as fast as they can be, until the event is set."""

    def puts() -> Iterator[Put]:
        for number in itertools.count():
            if stop.is_set():
                return
            yield Put(f"/kills/{name}/{number}", b"x" * 100, ABSENT)

    for outcome in store.apply_stream(puts()):
        path, error = outcome.op.path, outcome.error
        if error is None:
            found.acknowledged.append(path)
        elif isinstance(error, BadVersionError):
            found.false_conflicts.append(path)
        elif isinstance(error, MetadataStoreError) and error.outcome == "not_applied":
            found.not_applied.append(path)


def measure(server: LocalServer, kills: int, threads: int, seed: int = 0) -> Findings:
    """Repeatedly kill a running server under load, and return the outcomes of the writes."""
    dice = random.Random(seed)
    watched: list[_Watched] = []

    def watch(backend: Backend) -> Backend:
        watched.append(_Watched(backend))
        return watched[-1]

    found, stop = Findings(), threading.Event()
    with (
        open_store(server.url, connect_timeout=60.0, wrap=watch) as store,
        ThreadPoolExecutor(threads) as pool,
    ):
        callers = [pool.submit(_create, store, name, stop, found) for name in range(threads)]
        try:
            for _ in range(kills):
                time.sleep(dice.uniform(0.3, 1.0))
                found.kills.append(_kill(server, watched[0]))
        except KeyboardInterrupt:
            found.interrupted = True
            server.start()
        finally:
            stop.set()
        for caller in callers:
            caller.result()
        reads = {
            path: store.exists(path, timeout=120.0)
            for path in (*found.acknowledged, *found.not_applied)
        }
        found.there = {path for path, read in reads.items() if read.result()}
    return found


def _kill(server: LocalServer, backend: _Watched) -> Counter[str]:
    before = backend.inside()
    server.kill()
    after = backend.inside()
    # Calls that ended in between were answered before the kill, unless they are indeterminate.
    caught = after | {call for call in before if call.indeterminate}
    server.start()
    end = time.monotonic() + WITHIN
    found: Counter[str] = Counter()
    for call in caught:
        if call.done.wait(max(0.0, end - time.monotonic())):
            settled = call.requests - call.indeterminate
            found.update(settled=settled, indeterminate=call.indeterminate)
        else:
            found["late"] += call.requests
    return found


def print_findings(findings: Findings) -> bool:
    """Print what was found; return whether the target was reached and no outcome was false."""
    caught = findings.caught
    sys.stdout.write(
        f"writes that {len(findings.kills)} kills caught: {caught.total()}\n"
        f"settled within {WITHIN:g} s of the return: {caught['settled']}, later: {caught['late']}, "
        f"indeterminate: {caught['indeterminate']}\n"
        f"share: {findings.share:.3%} (target {TARGET:.1%})\n"
        f"acknowledged creations: {len(findings.acknowledged)}, of these missing: "
        f"{findings.missing}\n"
        f"reported as not applied, but found: {findings.false_failures}\n"
        f"conflicts on fresh paths: {len(findings.false_conflicts)}\n"
    )
    sound = not (findings.false_failures or findings.false_conflicts)
    return findings.share >= TARGET and sound
