"""A back end whose calls can be held, fail or lose their answers, and whose connection can be cut.

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
from collections.abc import Callable, Sequence
from typing import Final, Literal, TypeVar

from ...ops.errors import (
    IndeterminateError,
    MetadataStoreError,
    StoreClosedError,
    StoreUnavailableError,
    UnsupportedError,
)
from ...stores.backend import (
    Answer,
    Backend,
    History,
    PassingBackend,
    PlainWrite,
    ReadRequest,
    Request,
    Scans,
    Session,
    Watches,
    WriteRequest,
    send_by,
)
from ...stores.spans import EVERYTHING
from .calls import CHANGING, Call, Fault, Method, Plan
from .facets import FaultyHistory, FaultyScans
from .sessions import FaultySession
from .watches import FaultyWatches

__all__ = ["FaultyBackend"]

_T = TypeVar("_T")
_R = TypeVar("_R", bound=Request)

# Seconds for each request of the removal of a lost session's values.
_REMOVAL: Final = 30.0


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
        self._line = threading.Event()  # set while the connection stands
        self._line.set()
        # Held while the connection or the session changes, so that one change ends before the next.
        self._changing = threading.Lock()
        self._lost_while_cut = False  # guarded by _changing
        # Held while ephemeral writes are applied, so that none of a lost session comes late.
        self._applying = threading.Lock()
        run = self._of_facet
        scans, history, session = backend.scans, backend.history, backend.session
        watches = backend.watches
        self._scans = None if scans is None else FaultyScans(run, scans)
        self._history = None if history is None else FaultyHistory(run, history)
        self._session = None if session is None else FaultySession(session)
        self._watches = None if watches is None else FaultyWatches(run, watches)

    def write(self, requests: Sequence[WriteRequest], deadline: float) -> Sequence[Answer]:
        return self._execute("write", self._write, requests, deadline)

    def read(self, requests: Sequence[ReadRequest], deadline: float) -> Sequence[Answer]:
        return self._execute("read", self._backend.read, requests, deadline)

    def sync(self, deadline: float) -> None:
        self._of_facet("sync", None, lambda: self._backend.sync(deadline), deadline)

    @property
    def connected(self) -> bool:
        return self._line.is_set() and self._backend.connected

    @property
    def scans(self) -> Scans | None:
        return self._scans

    @property
    def history(self) -> History | None:
        return self._history

    @property
    def session(self) -> Session | None:
        return self._session

    @property
    def watches(self) -> Watches | None:
        return self._watches

    def close(self) -> None:
        with self._arrived:
            self._closed = True
            calls = list(self.calls)
        self._line.set()
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

    # --- the connection, the session and the watches

    def cut(self) -> None:
        """Cut the connection. Calls wait until it is restored, and watches receive no events."""
        with self._changing:
            if self._closed or not self._line.is_set():
                return
            self._line.clear()
            if self._watches is not None:
                self._watches.hold()
            if self._session is not None:
                self._session.suspend()

    def restore(self, *, gap: bool = False) -> None:
        """Restore the connection. With ``gap``, watches have missed the events of the outage."""
        with self._changing:
            if self._line.is_set():
                return
            lost, self._lost_while_cut = self._lost_while_cut, False
            if self._watches is not None:
                self._watches.resume(gap=gap)
            self._line.set()
            if self._session is not None:
                if lost:
                    self._session.end_loss(reconnected=True)
                else:
                    self._session.resume()

    def lose_session(self, *, end_ephemerals: bool = True) -> None:
        """Let the server end the session, with its ephemeral values if ``end_ephemerals``.

        Without a connection, the client learns of it when the connection is restored.

        Raises:
            UnsupportedError: the store has no sessions.
        """
        session = self._session
        if session is None:
            raise UnsupportedError("this store has no sessions ('ephemerals') that could be lost")
        with self._changing:
            if not self._lost_while_cut:
                with self._applying:
                    session.begin_loss()
                    if end_ephemerals:
                        self._end_ephemerals()
            if self._line.is_set():
                session.end_loss(reconnected=False)
            else:
                self._lost_while_cut = True

    def gap(self, prefix: str | None = None) -> int:
        """Deliver a gap to the open watches of a prefix, or to all; return their number."""
        return 0 if self._watches is None else self._watches.gap(prefix)

    def end_watches(self, error: MetadataStoreError, prefix: str | None = None) -> int:
        """End the open watches of a prefix, or all, with an error; return their number."""
        return 0 if self._watches is None else self._watches.end(prefix, error)

    def _end_ephemerals(self) -> None:
        scans = self._backend.scans
        assert scans is not None
        owned = [
            stat.path
            for page in scans.scan_stats("/", EVERYTHING, None, _REMOVAL)
            for stat in page
            if stat.owned
        ]
        # From the bottom up, because a delete is refused while there are values below.
        for path in sorted(owned, reverse=True):
            self._backend.write([PlainWrite("delete", path)], time.monotonic() + _REMOVAL)

    # --- calls

    def _write(self, requests: Sequence[WriteRequest], deadline: float) -> Sequence[Answer]:
        """Execute writes without the faults of the plan, in the session of each."""
        session = self._session
        if session is None or not any(r.options and r.options.ephemeral for r in requests):
            return self._backend.write(requests, deadline)
        with self._applying:
            refused = session.ended(requests)
            return _without(
                refused,
                requests,
                lambda rest: self._backend.write(session.translated(rest), deadline),
            )

    def _execute(
        self,
        method: Literal["write", "read"],
        forward: Callable[[Sequence[_R], float], Sequence[Answer]],
        requests: Sequence[_R],
        deadline: float,
    ) -> Sequence[Answer]:
        kinds, paths = [r.kind for r in requests], [r.path for r in requests]
        call = self._arrive(method, kinds, paths, requests)
        return self._run(
            call,
            lambda refused: _without(refused, requests, lambda rest: forward(rest, deadline)),
            deadline,
        )

    def _of_facet(
        self, method: Method, path: str | None, forward: Callable[[], _T], deadline: float
    ) -> _T:
        call = self._arrive(method, [], [] if path is None else [path])
        return self._run(call, lambda _: forward(), deadline)

    def _arrive(
        self,
        method: Method,
        kinds: Sequence[str],
        paths: Sequence[str],
        requests: Sequence[Request] = (),
    ) -> Call:
        with self._arrived:
            if self._closed:
                raise StoreClosedError("the store is closed")
            call = Call(len(self.calls), method, kinds, paths, requests)
            self.calls.append(call)
            self._arrived.notify_all()
        return call

    def _run(
        self, call: Call, forward: Callable[[dict[int, MetadataStoreError]], _T], deadline: float
    ) -> _T:
        fault = (self.plan(call) if self.plan else None) or Fault()
        if fault.cut and not fault.applied:
            self.cut()
        unsent = send_by(deadline) if call.method == "write" else deadline
        self._wait_for_line(call, applied=False, deadline=unsent)
        if fault.hold == "before":
            call._wait(applied=False, deadline=deadline, seconds=fault.seconds)
        if fault.error is not None and not fault.applied:
            if fault.hold == "after":
                call._wait(applied=False, deadline=deadline, seconds=fault.seconds)
            raise fault.error
        result = forward(dict(fault.refused))
        if fault.cut and fault.applied:
            self.cut()
        # An answer that is under way when the connection is cut arrives, settled, after that.
        self._wait_for_line(call, applied=True, deadline=deadline)
        if fault.hold == "after":
            call._wait(applied=True, deadline=deadline, seconds=fault.seconds)
        if fault.error is not None:
            raise fault.error
        return result

    def _wait_for_line(self, call: Call, *, applied: bool, deadline: float) -> None:
        if self._line.is_set():
            return
        restored = self._line.wait(max(0.0, deadline - time.monotonic()))
        if restored and not self._closed:
            return
        if applied and call.method in CHANGING:
            raise IndeterminateError("a fault cut the connection before the answer arrived")
        if self._closed:
            raise StoreClosedError("the store was closed while a fault had cut its connection")
        raise StoreUnavailableError("a fault has cut the connection")


def _without(
    refused: dict[int, MetadataStoreError],
    requests: Sequence[_R],
    forward: Callable[[Sequence[_R]], Sequence[Answer]],
) -> Sequence[Answer]:
    """Execute the accepted requests; return the answers of all, in order."""
    if not refused:
        return forward(requests)
    rest = [request for place, request in enumerate(requests) if place not in refused]
    answers = iter(forward(rest) if rest else ())
    return [
        refused[place].for_path(request.path) if place in refused else next(answers)
        for place, request in enumerate(requests)
    ]
