"""Tells an application about the engine's work as it happens.

A hook is an object with one or more of the methods below. ``open_store(..., hooks=...)`` takes one
or several. Without hooks, the engine makes one comparison for each batch, and none for each
operation.
"""

from __future__ import annotations

import inspect
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, Final, Protocol, TypeAlias

from ..ops.errors import InvalidSettingError, MetadataStoreError
from ..ops.log import get_logger
from ..ops.sessions import SessionEvent
from .accumulator import Cause
from .entry import Entry, common, total_weight
from .recording import CONFLICTS, RESULTS, all_results

__all__ = [
    "Batch",
    "BatchEndedHook",
    "BatchSentHook",
    "Conflict",
    "ConflictHook",
    "EndedBatch",
    "Hook",
    "Hooks",
    "SessionChange",
    "SessionHook",
    "check_hooks",
]

log = get_logger("batchkeeper.hooks")


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch that is sent to the store, or an operation that is executed singly.

    Attributes:
        store: the URL with which the store was opened.
        number: the number of the batch in the store, from 1.
        lane: ``reads``, ``writes``, or ``singles`` for a single execution.
        cause: the reason for which it is sent, as in ``LaneMetrics.causes``.
        operations: the number of operations.
        kinds: the number of operations by kind.
        bytes: bytes of paths and values, and an estimate of the encoding's overhead.
        sent_at: the time at which it was sent, in seconds since the epoch.
    """

    store: str
    number: int
    lane: str
    cause: str
    operations: int
    kinds: Mapping[str, int]
    bytes: int
    sent_at: float


@dataclass(frozen=True, slots=True)
class EndedBatch:
    """A batch whose operations have ended.

    Attributes:
        batch: the batch, the same object as when it was sent.
        seconds: the seconds at the store, with retries and parts.
        errors: the operations that ended with an error, by the error's class name. An operation
            that ended at its deadline, before its batch, is not among them.
    """

    batch: Batch
    seconds: float
    errors: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Conflict:
    """A write that failed because the state of its path forbade it.

    Attributes:
        store: the URL with which the store was opened.
        kind: the kind of the operation, such as ``put``.
        path: its path.
        error: ``BadVersionError``, ``NotFoundError`` or ``NotEmptyError``, as its caller gets it.
    """

    store: str
    kind: str
    path: str
    error: MetadataStoreError


@dataclass(frozen=True, slots=True)
class SessionChange:
    """An event of the store's session.

    Attributes:
        store: the URL with which the store was opened.
        event: as a session listener receives it.
    """

    store: str
    event: SessionEvent


class BatchSentHook(Protocol):
    """Called for each batch, immediately before it goes to the store."""

    def on_batch_sent(self, batch: Batch, /) -> object: ...


class BatchEndedHook(Protocol):
    """Called for each batch that has ended, after its callers have their results."""

    def on_batch_ended(self, ended: EndedBatch, /) -> object: ...


class ConflictHook(Protocol):
    """Called for each conflict, after its caller has the error, before the batch has ended.

    ``Metrics.conflicts`` counts the same events.
    """

    def on_conflict(self, conflict: Conflict, /) -> object: ...


class SessionHook(Protocol):
    """Called for each event of the session, like a session listener.

    It begins a session if the store has none yet. A store without sessions never calls it.
    """

    def on_session(self, change: SessionChange, /) -> object: ...


#: An object with at least one of the methods.
Hook: TypeAlias = BatchSentHook | BatchEndedHook | ConflictHook | SessionHook

_METHODS: Final = ("on_batch_sent", "on_batch_ended", "on_conflict", "on_session")


def check_hooks(hooks: Hook | Sequence[Hook]) -> tuple[Hook, ...]:
    """Return hooks as a tuple.

    Raises:
        InvalidSettingError: one of them has none of the methods, or has one that cannot be called
            by a thread.
    """
    several = tuple(hooks) if isinstance(hooks, Sequence) else (hooks,)
    for hook in several:
        methods = {name: getattr(hook, name) for name in _METHODS if hasattr(hook, name)}
        if not methods:
            raise InvalidSettingError(
                f"a hook must have at least one of the methods {', '.join(_METHODS)}; "
                f"{hook!r:.80} has none"
            )
        for name, method in methods.items():
            if not callable(method) or inspect.iscoroutinefunction(method):
                raise InvalidSettingError(
                    f"{name} of a hook must be an ordinary method, not {method!r:.80}"
                )
    return several


class Hooks:
    """Calls the hooks of one store. The engine's lock is never held meanwhile.

    The methods of batches and conflicts run on the thread that sends the batch, so several of them
    may run at the same time. An exception in a method is logged the first time, with its traceback;
    later ones of the same method are logged as debug events.

    Args:
        hooks: at least one.
        store: the store's URL.
    """

    def __init__(self, hooks: Sequence[Hook], store: str) -> None:
        def methods(name: str) -> Sequence[Callable[[Any], object]]:
            return [getattr(hook, name) for hook in hooks if hasattr(hook, name)]

        self._store = store
        self._numbers = count(1)
        self._sent = methods("on_batch_sent")
        self._ended = methods("on_batch_ended")
        self._conflict = methods("on_conflict")
        self._session = methods("on_session")
        self._failed: set[int] = set()  # the ids of methods that have failed

    @property
    def of_batches(self) -> bool:
        """Whether there are hooks for batches or conflicts."""
        return bool(self._sent or self._ended or self._conflict)

    @property
    def of_sessions(self) -> bool:
        """Whether there are hooks for the session."""
        return bool(self._session)

    def sent(self, lane: str, cause: Cause, entries: Sequence[Entry]) -> Batch:
        """Tell the hooks that a batch is sent, and return it."""
        kind = common(entries, "kind")
        batch = Batch(
            self._store,
            next(self._numbers),
            lane,
            cause,
            len(entries),
            {kind: len(entries)} if kind else Counter(entry.kind for entry in entries),
            total_weight(entries),
            time.time(),
        )
        for method in self._sent:
            self._call(method, batch)
        return batch

    def ended(self, batch: Batch, entries: Sequence[Entry], seconds: float) -> None:
        """Tell the hooks that a batch has ended, and which of its operations were conflicts.

        ``entries`` are those that ended with the batch, and not before.
        """
        errors: Counter[str] = Counter()
        # Errors are looked for one by one only where there are some.
        for entry in () if all_results(entries, RESULTS) else entries:
            if isinstance(error := entry.answer, MetadataStoreError):
                name = type(error).__name__
                errors[name] += 1
                if self._conflict and name in CONFLICTS:
                    conflict = Conflict(self._store, entry.kind, entry.path, error)
                    for method in self._conflict:
                        self._call(method, conflict)
        if self._ended:
            ended = EndedBatch(batch, seconds, errors)
            for method in self._ended:
                self._call(method, ended)

    def session(self, event: SessionEvent) -> None:
        """Tell the hooks of an event of the session."""
        for method in self._session:
            self._call(method, SessionChange(self._store, event))

    def _call(self, method: Callable[[Any], object], argument: object) -> None:
        try:
            method(argument)
        except BaseException:  # SystemExit as well: it would end a sender.
            name = getattr(method, "__qualname__", repr(method))
            if id(method) in self._failed:
                log.debug("a hook failed again", hook=name, store=self._store, exc_info=True)
            else:
                self._failed.add(id(method))
                log.exception("a hook failed", hook=name, store=self._store)
