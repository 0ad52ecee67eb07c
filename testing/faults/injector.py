"""Faults that a test arms: each hits the next operations that it is meant for, and is recorded."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal, NamedTuple, Protocol, TypeAlias

from ...ops.errors import (
    IndeterminateError,
    InvalidSettingError,
    MetadataStoreError,
    StoreUnavailableError,
)
from ...ops.kinds import KINDS
from ...ops.operations import Options
from ...stores.backend import Backend
from .backend import FaultyBackend
from .calls import CHANGING, Call, Fault, Plan

__all__ = ["FaultInjector", "Hit", "Injection", "Target", "What"]

#: The faults: what can happen to an operation.
What: TypeAlias = Literal["fail", "refuse", "lose_answer", "delay", "cut"]

# What a fault can be meant for, beside the kinds of operations.
_METHODS: Final = frozenset(
    {"scan", "scan_stats", "split", "delete_recursive", "revision", "changes", "watch", "sync"}
)
_KINDS: Final = frozenset(KINDS) | _METHODS


class Target(Protocol):
    """What a predicate sees: an operation of a request, or a call of another method.

    ``kind`` is ``"get"``, ``"put"``, ``"delete"``, ``"get_children"``, ``"exists"`` or
    ``"transaction"``, or the name of the method: ``"scan"`` and ``"changes"`` for a page of these,
    ``"scan_stats"`` for a page without values, ``"split"``, ``"delete_recursive"``, ``"revision"``,
    ``"watch"`` or ``"sync"``. ``path`` is the path or the prefix.
    """

    @property
    def kind(self) -> str: ...
    @property
    def path(self) -> str | None: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def expected_version(self) -> int | None: ...
    @property
    def options(self) -> Options | None: ...


@dataclass(frozen=True, slots=True)
class _MethodCall:
    kind: str
    path: str | None
    value: None = None
    expected_version: None = None
    options: None = None


class Hit(NamedTuple):
    """An operation that a fault has hit.

    ``what`` is the name of the fault, ``kind`` and ``path`` are those of the operation (see
    :class:`Target`), and ``call`` is the number of the request, from 0.
    """

    what: What
    kind: str
    path: str | None
    call: int


@dataclass(eq=False)
class Injection:
    """A fault that is armed, or was. :class:`FaultInjector` makes it.

    Attributes:
        what: the name of the fault.
        hits: the operations that it has hit, in order.
    """

    what: What
    hits: list[Hit] = field(default_factory=list, init=False)
    _fault: Fault
    _matches: Callable[[Target], bool]
    _skip: int
    _left: float
    _injector: FaultInjector
    _calls: list[Call] = field(default_factory=list, init=False)
    _open: bool = field(default=False, init=False)

    @property
    def armed(self) -> bool:
        """Whether it will hit further operations."""
        return self in self._injector.armed

    def wait(self, count: int = 1, timeout: float = 10.0) -> list[Hit]:
        """Return the hits, as soon as there are at least ``count``.

        Raises:
            TimeoutError: there are fewer after ``timeout`` seconds.
        """
        return self._injector._wait(self.hits, count, timeout)

    def release(self) -> None:
        """Let the operations go on that ``delay`` holds back, and those that it will hit later."""
        with self._injector._changed:
            self._open = True
            calls = [*self._calls]
        for call in calls:
            call.release()

    def _due(self) -> bool:
        """Count an operation that it is meant for; say whether the fault hits it."""
        if not self._left:
            return False
        if self._skip:
            self._skip -= 1
            return False
        self._left -= 1
        return True

    def _fault_of(self, call: Call) -> Fault:
        """Return the fault of a call that it hits."""
        if self.what == "lose_answer" and call.method not in CHANGING:
            return Fault(error=StoreUnavailableError("an injected fault: the answer was lost"))
        if self.what == "delay":
            self._calls.append(call)
            if self._open:
                call.release()
        error = self._fault.error
        # One exception raised in several threads would collect all their tracebacks.
        return self._fault if error is None else replace(self._fault, error=copy.copy(error))

    def remove(self) -> None:
        """Disarm the fault. What it holds back, it releases."""
        with self._injector._changed:
            if self in self._injector._armed:
                self._injector._armed.remove(self)
        self.release()


class FaultInjector:
    """Makes a store fail where a test wants it to: ``open_store(url, wrap=FaultInjector())``.

    A fault is armed with one of the methods below. It hits the next operation that it is meant for,
    once unless ``times`` says otherwise, and is then recorded in ``hits``. Nothing happens by
    chance, and no fault needs a sleep: held operations wait until the test releases them.

    These arguments say what a fault is meant for. All given ones must hold:

    - ``kind``: the kind of the operation, such as ``"put"``, or the name of a method (see
      :class:`Target`).
    - ``path``: the path of the operation, of one of a transaction's operations, or the prefix.
    - ``where``: a predicate of the :class:`Target`. It runs on a thread of the store.
    - ``skip``: the number of such operations that pass before the first hit.
    - ``times``: the number of hits; ``None`` for all, until the fault is removed.

    A fault hits an operation when the store sends it. Operations in one batch travel in one
    request: ``refuse`` concerns only the operation that it hits; all other faults concern its whole
    request, as on a real server. With ``batching=BatchingConfig(enabled=False)``, every operation
    travels alone.

    An injector serves one store. It may be used from any thread. Closing the store ends what is
    held back.

    Args:
        plan: decides about each call for which no fault is armed; see ``Plan``.
    """

    def __init__(self, plan: Plan | None = None) -> None:
        self._plan = plan
        self._backend: FaultyBackend | None = None
        self._changed = threading.Condition()  # guards _armed, _hits and the injections
        self._armed: list[Injection] = []
        self._hits: list[Hit] = []

    def __call__(self, backend: Backend) -> Backend:
        """Put the injector around a back end, as ``open_store`` does."""
        if self._backend is not None:
            raise InvalidSettingError("an injector serves one store; make one for each store")
        self._backend = FaultyBackend(backend, self._decide)
        return self._backend

    # --- what has happened

    @property
    def hits(self) -> Sequence[Hit]:
        """The operations that faults have hit, in order."""
        with self._changed:
            return tuple(self._hits)

    @property
    def armed(self) -> Sequence[Injection]:
        """The faults that still wait for an operation to hit."""
        with self._changed:
            return tuple(self._armed)

    @property
    def calls(self) -> Sequence[Call]:
        """All requests of the store so far, in the order of their arrival."""
        backend = self._store
        with backend._arrived:
            return tuple(backend.calls)

    def wait_for_hits(self, count: int, timeout: float = 10.0) -> list[Hit]:
        """Return the hits of all faults, as soon as there are at least ``count``.

        Raises:
            TimeoutError: there are fewer after ``timeout`` seconds.
        """
        return self._wait(self._hits, count, timeout)

    # --- faults of operations

    def fail(
        self,
        kind: str | None = None,
        path: str | None = None,
        *,
        where: Callable[[Target], bool] | None = None,
        error: MetadataStoreError | None = None,
        skip: int = 0,
        times: int | None = 1,
    ) -> Injection:
        """Let the request fail before anything of it is applied.

        Args:
            kind: see the class, as for ``path``, ``where``, ``skip`` and ``times``.
            path: as above.
            where: as above.
            error: the error; ``StoreUnavailableError`` by default.
            skip: as above.
            times: as above.
        """
        if error is None:
            error = StoreUnavailableError("an injected fault: no server answered")
        fault = Fault(error=_checked(error))
        return self._arm("fail", fault, kind, path, where, skip, times)

    def refuse(
        self,
        error: MetadataStoreError,
        kind: str | None = None,
        path: str | None = None,
        *,
        where: Callable[[Target], bool] | None = None,
        skip: int = 0,
        times: int | None = 1,
    ) -> Injection:
        """Let one operation end with an error, unapplied. Others in its request are executed.

        Args:
            error: the error, such as ``BadVersionError`` or ``AuthenticationError``.
            kind: see the class, as for ``path``, ``where``, ``skip`` and ``times``.
            path: as above.
            where: as above.
            skip: as above.
            times: as above.
        """
        return self._arm(
            "refuse", Fault(refused={0: _checked(error)}), kind, path, where, skip, times
        )

    def lose_answer(
        self,
        kind: str | None = None,
        path: str | None = None,
        *,
        where: Callable[[Target], bool] | None = None,
        applied: bool = True,
        skip: int = 0,
        times: int | None = 1,
    ) -> Injection:
        """Let the answer be lost for good: a write ends with ``IndeterminateError``.

        A read ends with ``StoreUnavailableError``.

        Args:
            kind: see the class, as for ``path``, ``where``, ``skip`` and ``times``.
            path: as above.
            where: as above.
            applied: whether the request was applied before that. The client cannot know.
            skip: as above.
            times: as above.
        """
        error = IndeterminateError("an injected fault: the answer was lost")
        return self._arm(
            "lose_answer", Fault(error=error, applied=applied), kind, path, where, skip, times
        )

    def delay(
        self,
        kind: str | None = None,
        path: str | None = None,
        *,
        where: Callable[[Target], bool] | None = None,
        applied: bool = False,
        seconds: float | None = None,
        skip: int = 0,
        times: int | None = 1,
    ) -> Injection:
        """Hold the request back until ``release()`` of the injection, or its deadline.

        Args:
            kind: see the class, as for ``path``, ``where``, ``skip`` and ``times``.
            path: as above.
            where: as above.
            applied: whether the request is applied first, and only its answer held back.
            seconds: release it by itself after this time; by default never.
            skip: as above.
            times: as above.
        """
        fault = Fault(hold="after" if applied else "before", seconds=seconds)
        return self._arm("delay", fault, kind, path, where, skip, times)

    def cut(
        self,
        kind: str | None = None,
        path: str | None = None,
        *,
        where: Callable[[Target], bool] | None = None,
        applied: bool = False,
        skip: int = 0,
    ) -> Injection | None:
        """Cut the connection at the next such operation; at once if none is described.

        Until :meth:`restore`, no request is answered: those with time left wait, and the others end
        with ``StoreUnavailableError``, or with ``IndeterminateError`` if they were applied before.
        Watches receive nothing. Listeners of the session get ``"connection_lost"``.

        Args:
            kind: see the class, as for ``path``, ``where`` and ``skip``.
            path: as above.
            where: as above.
            applied: whether the operation's request is applied before the cut.
            skip: as above.
        """
        if kind is None and path is None and where is None:
            self._store.cut()
            return None
        return self._arm("cut", Fault(cut=True, applied=applied), kind, path, where, skip, 1)

    # --- the connection, the session and the watches

    def restore(self, *, gap: bool = False) -> None:
        """Restore the connection that :meth:`cut` has cut.

        Requests that wait go on. Listeners get ``"reconnected"``, and if the session was lost
        meanwhile, ``"session_lost"`` and ``"session_reestablished"``.

        Args:
            gap: whether open watches get a gap instead of the events that they have missed.
        """
        self._store.restore(gap=gap)

    def lose_session(self, *, end_ephemerals: bool = True) -> None:
        """Let the server end the session.

        Listeners get ``"session_lost"`` and ``"session_reestablished"``; after a cut, only when the
        connection is restored. Ephemeral puts that were submitted in the old session end with
        ``SessionLostError``.

        Args:
            end_ephemerals: whether the ephemeral values of the session are removed.

        Raises:
            UnsupportedError: the store has no sessions.
        """
        self._store.lose_session(end_ephemerals=end_ephemerals)

    def gap(self, prefix: str | None = None) -> int:
        """Deliver a gap to the open watches of a prefix, or to all; return their number."""
        return self._store.gap(prefix)

    def end_watches(self, error: MetadataStoreError, prefix: str | None = None) -> int:
        """End the open watches of a prefix, or all, with an error; return their number."""
        return self._store.end_watches(_checked(error), prefix)

    def clear(self) -> None:
        """Disarm all faults, release what they hold back, and restore the connection."""
        for injection in self.armed:
            injection.remove()
        if self._backend is not None:
            for call in self.calls:
                call.release()
            self._backend.restore()

    # --- internals

    @property
    def _store(self) -> FaultyBackend:
        if self._backend is None:
            raise InvalidSettingError(
                "the injector has no store yet: pass it to open_store(url, wrap=...)"
            )
        return self._backend

    def _wait(self, hits: list[Hit], count: int, timeout: float) -> list[Hit]:
        with self._changed:
            if not self._changed.wait_for(lambda: len(hits) >= count, timeout):
                raise TimeoutError(f"{len(hits)} hits instead of {count} in {timeout} s")
            return [*hits]

    def _arm(
        self,
        what: What,
        fault: Fault,
        kind: str | None,
        path: str | None,
        where: Callable[[Target], bool] | None,
        skip: int,
        times: int | None,
    ) -> Injection:
        if kind is not None and kind not in _KINDS:
            known = ", ".join(sorted(_KINDS))
            raise InvalidSettingError(f"no kind of operation: {kind!r:.80} (known: {known})")
        if where is not None and not callable(where):
            raise InvalidSettingError(f"where must be a predicate, not {where!r:.80}")
        for name, number, least in (("skip", skip, 0), ("times", times, 1)):
            if number is not None and (type(number) is not int or number < least):
                raise InvalidSettingError(f"{name} must be an int from {least}, not {number!r:.80}")

        def matches(target: Target) -> bool:
            return (
                (kind is None or target.kind == kind)
                and (path is None or path in _paths(target))
                and (where is None or bool(where(target)))
            )

        left = float("inf") if times is None else times
        injection = Injection(what, fault, matches, skip, left, self)
        with self._changed:
            self._armed.append(injection)
        return injection

    def _decide(self, call: Call) -> Fault | None:
        """Return the fault of a call. It runs on the thread that makes the call."""
        targets = [*_targets(call)]
        # Predicates are the test's own code, so they run without the lock.
        matching = [
            (place, target, injection)
            for place, target in enumerate(targets)
            for injection in self.armed
            if injection._matches(target)
        ]
        if not matching:
            return self._plan(call) if self._plan is not None else None
        chosen: Fault | None = None
        refused: dict[int, MetadataStoreError] = {}
        with self._changed:
            for place, target, injection in matching:
                taken = place in refused if injection.what == "refuse" else chosen is not None
                if taken or not injection._due():
                    continue
                hit = Hit(injection.what, target.kind, target.path, call.number)
                injection.hits.append(hit)
                self._hits.append(hit)
                if injection.what == "refuse":
                    (refused[place],) = injection._fault.refused.values()
                else:
                    chosen = injection._fault_of(call)
                if not injection._left:
                    self._armed.remove(injection)
            self._changed.notify_all()
        if chosen is None and not refused:
            return self._plan(call) if self._plan is not None else None
        return replace(chosen or Fault(), refused=refused)


def _targets(call: Call) -> Iterator[Target]:
    if call.method in ("read", "write"):
        yield from call.requests
    else:
        yield _MethodCall(call.method, call.paths[0] if call.paths else None)


def _paths(target: Target) -> Sequence[str | None]:
    if target.options is not None and target.options.parts:
        return [part.path for part in target.options.parts]
    return [target.path]


def _checked(error: MetadataStoreError) -> MetadataStoreError:
    if not isinstance(error, MetadataStoreError):
        raise InvalidSettingError(
            f"an injected error must be a MetadataStoreError, not {error!r:.80}"
        )
    return error
