"""Deliberate faults: a wrapper around a back end whose calls can be held or fail.

Pass it as ``open_store(url, wrap=FaultyBackend)``.

It tests the layers above a back end. A plan looks at each call as it arrives and decides what
happens to it. A held call waits until the test releases it, so tests wait for events and never
sleep, and answers arrive in any order that a test needs.

::

    backend = FaultyBackend(store, lambda call: Fault(hold="before") if call.number == 0 else None)
    ...                                  # submit operations
    (call,) = backend.wait_for_calls(1)
    call.release()
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, TypeVar

from ..ops.errors import (
    IndeterminateError,
    MetadataStoreError,
    OperationTimeoutError,
    StoreClosedError,
)
from ..ops.results import Change, Range, ScanResult, StatPage
from .backend import (
    Answer,
    Backend,
    History,
    PassingBackend,
    ReadRequest,
    Request,
    Scans,
    WriteRequest,
)

__all__ = ["Call", "Fault", "FaultyBackend", "Method", "Plan"]

_T = TypeVar("_T")
_R = TypeVar("_R", bound=Request)

#: The methods. Each page of ``scan``, ``scan_stats`` or ``changes`` is a call of its own.
Method: TypeAlias = Literal[
    "write", "read", "scan", "scan_stats", "split", "delete_recursive", "revision", "changes"
]
_CHANGING: Final = frozenset({"write", "delete_recursive"})


@dataclass(frozen=True, slots=True)
class Fault:
    """The fault of one call.

    Attributes:
        hold: wait for :meth:`Call.release` before the call is applied, or after it was applied and
            before its answers are returned. The call's deadline and ``close`` end the wait.
        error: the error to raise instead of the answers.
        applied: whether the call is applied before ``error`` is raised.
    """

    hold: Literal["before", "after"] | None = None
    error: MetadataStoreError | None = None
    applied: bool = False


class Call:
    """One call that reached the back end. A test can release it.

    Attributes:
        number: the number of the call, over all methods of the back end, from 0.
        method: the method.
        kinds: the kinds of the operations of a read or a write; empty for other methods.
        paths: the paths of these operations; for other methods, their prefix, if they have one.
    """

    def __init__(
        self, number: int, method: Method, kinds: Sequence[str], paths: Sequence[str]
    ) -> None:
        self.number = number
        self.method = method
        self.kinds = list(kinds)
        self.paths = list(paths)
        self._released = threading.Event()
        self._closed = False

    def release(self) -> None:
        """Let the call continue, even if it is held only later."""
        self._released.set()

    def _wait(self, applied: bool, deadline: float) -> None:
        released = self._released.wait(max(0.0, deadline - time.monotonic()))
        if released and not self._closed:
            return
        if applied and self.method in _CHANGING:
            raise IndeterminateError(
                "a fault held the call until the deadline, or until the store was closed"
            )
        if self._closed:
            raise StoreClosedError("the store was closed while a fault held the call")
        raise OperationTimeoutError("a fault held the call until the deadline")

    def _close(self) -> None:
        self._closed = True
        self._released.set()


#: Returns the fault of a call, or ``None``. Runs on the thread that makes the call.
Plan: TypeAlias = Callable[[Call], Fault | None]


class FaultyBackend(PassingBackend):
    """A back end that passes its calls on to ``backend``, with the faults of ``plan``.

    ``calls`` lists all calls so far, in the order of their arrival. Tests may replace ``plan``
    between calls. The facets wrap those of ``backend``, and ``plan`` applies to their calls, too.
    """

    def __init__(self, backend: Backend, plan: Plan | None = None) -> None:
        super().__init__(backend)
        self.plan = plan
        self.calls: list[Call] = []
        self._closed = False
        self._arrived = threading.Condition()  # guards calls and _closed
        scans, history = backend.scans, backend.history
        self._scans = None if scans is None else _FaultyScans(self, scans)
        self._history = None if history is None else _FaultyHistory(self, history)

    def write(self, requests: Sequence[WriteRequest], deadline: float) -> Sequence[Answer]:
        return self._execute("write", self._backend.write, requests, deadline)

    def read(self, requests: Sequence[ReadRequest], deadline: float) -> Sequence[Answer]:
        return self._execute("read", self._backend.read, requests, deadline)

    @property
    def scans(self) -> Scans | None:
        return self._scans

    @property
    def history(self) -> History | None:
        return self._history

    def close(self) -> None:
        with self._arrived:
            self._closed = True
            calls = list(self.calls)
        for call in calls:
            call._close()
        super().close()

    def wait_for_calls(self, count: int, timeout: float = 10.0) -> list[Call]:
        """Return the calls so far, as soon as there are at least ``count``.

        Raises:
            TimeoutError: there are fewer after ``timeout`` seconds.
        """
        with self._arrived:
            if not self._arrived.wait_for(lambda: len(self.calls) >= count, timeout):
                raise TimeoutError(f"{len(self.calls)} calls instead of {count} in {timeout} s")
            return list(self.calls)

    def _execute(
        self,
        method: Literal["write", "read"],
        forward: Callable[[Sequence[_R], float], Sequence[Answer]],
        requests: Sequence[_R],
        deadline: float,
    ) -> Sequence[Answer]:
        kinds, paths = [r.kind for r in requests], [r.path for r in requests]
        return self._run(method, kinds, paths, lambda: forward(requests, deadline), deadline)

    def _run(
        self,
        method: Method,
        kinds: Sequence[str],
        paths: Sequence[str],
        forward: Callable[[], _T],
        deadline: float,
    ) -> _T:
        with self._arrived:
            if self._closed:
                raise StoreClosedError("the store is closed")
            call = Call(len(self.calls), method, kinds, paths)
            self.calls.append(call)
            self._arrived.notify_all()
        fault = (self.plan(call) if self.plan else None) or Fault()
        if fault.hold == "before":
            call._wait(applied=False, deadline=deadline)
        if fault.error is not None and not fault.applied:
            if fault.hold == "after":
                call._wait(applied=False, deadline=deadline)
            raise fault.error
        result = forward()
        if fault.hold == "after":
            call._wait(applied=True, deadline=deadline)
        if fault.error is not None:
            raise fault.error
        return result

    def _of_facet(
        self, method: Method, path: str | None, forward: Callable[[], _T], timeout: float
    ) -> _T:
        paths = [] if path is None else [path]
        return self._run(method, [], paths, forward, time.monotonic() + timeout)

    def _pages(
        self,
        method: Method,
        path: str,
        pages: Generator[_T, None, None],
        timeout: float,
    ) -> Generator[_T, None, None]:
        """Yield pages. Each request for a page is a call, even the last one, which finds none."""
        with closing(pages):
            while True:
                page = self._of_facet(method, path, lambda: next(pages, None), timeout)
                if page is None:
                    return
                yield page


class _FaultyScans:
    def __init__(self, backend: FaultyBackend, scans: Scans) -> None:
        self._backend = backend
        self._scans = scans

    def scan(
        self, prefix: str, within: Range, revision: int | None, timeout: float
    ) -> Generator[Sequence[ScanResult], None, None]:
        pages = self._scans.scan(prefix, within, revision, timeout)
        return self._backend._pages("scan", prefix, pages, timeout)

    def scan_stats(
        self, prefix: str, within: Range, revision: int | None, timeout: float
    ) -> Generator[StatPage, None, None]:
        pages = self._scans.scan_stats(prefix, within, revision, timeout)
        return self._backend._pages("scan_stats", prefix, pages, timeout)

    def split(self, prefix: str, n: int, timeout: float) -> Sequence[Range]:
        return self._backend._of_facet(
            "split", prefix, lambda: self._scans.split(prefix, n, timeout), timeout
        )

    def delete_recursive(self, path: str, timeout: float) -> int:
        return self._backend._of_facet(
            "delete_recursive", path, lambda: self._scans.delete_recursive(path, timeout), timeout
        )

    def revision(self, timeout: float) -> int:
        return self._backend._of_facet(
            "revision", None, lambda: self._scans.revision(timeout), timeout
        )


class _FaultyHistory:
    def __init__(self, backend: FaultyBackend, history: History) -> None:
        self._backend = backend
        self._history = history

    def changes(
        self, prefix: str, after: int, until: int, timeout: float
    ) -> Generator[Sequence[Change], None, None]:
        pages = self._history.changes(prefix, after, until, timeout)
        return self._backend._pages("changes", prefix, pages, timeout)
