"""Calls that a signal handler or a finalizer makes in the middle of other code of the package.

Python runs a handler on the main thread, and a finalizer on any thread, between two lines of what
runs there, also under a lock. The call must not wait for that lock, nor for a thread that does: the
lock is released only after the call has returned.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import _base
from threading import Condition, RLock
from types import CodeType, FrameType
from typing import Any, Final, TypeVar

from ..ops.errors import UnsupportedError

__all__ = [
    "add_lock",
    "await_change",
    "in_back_end",
    "in_the_way",
    "midway",
    "nested",
    "owned",
    "refused",
]

_F = TypeVar("_F", bound=Callable[..., object])

_midway: Final[set[CodeType]] = set()
_held: Final[list[Callable[[], bool]]] = []
_PACKAGE: Final = __name__.rpartition("batching.")[0]
_STORES: Final = f"{_PACKAGE}stores."
# These call wrappers and back ends of other packages, which may use other stores.
_PASSING: Final = {f"{_STORES}backend", f"{_STORES}registry"}


def owned(lock: RLock | Condition) -> bool:
    """Say whether this thread holds a reentrant lock."""
    return bool(lock._is_owned())  # type: ignore[union-attr]


def await_change(condition: Condition, timeout: float | None) -> None:
    """Wait for a condition's notice, and own its lock afterwards, even after Ctrl-C.

    ``Condition.wait`` releases the lock one step before it takes care to have it back.
    """
    try:
        condition.wait(timeout)
    except BaseException:
        if not owned(condition):
            condition.acquire()
        raise


def in_back_end() -> bool:
    """Say whether this thread is in the middle of a call of a back end, which may hold any lock."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if name.startswith(_STORES) and name not in _PASSING:
            return True
        frame = frame.f_back
    return False


def nested() -> bool:
    """Say whether code of others, such as a handler, calls this in the middle of the package's."""
    frame: FrameType | None = sys._getframe(1)
    ours, changes = True, 0
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith(_PACKAGE) is not ours:
            ours, changes = not ours, changes + 1
        frame = frame.f_back
    return changes > 1


def midway(function: _F) -> _F:
    """Mark a function for whose end others may wait, although it holds no lock."""
    _midway.add(function.__code__)
    return function


def add_lock(held: Callable[[], bool]) -> None:
    """Make a lock of the whole process known, by what says whether this thread holds it."""
    _held.append(held)


def in_the_way() -> bool:
    """Say whether other threads may wait for what this thread was doing before this call.

    It holds a lock of the whole process, or is in the middle of a back end, of a function that is
    ``midway``, or of a function of ``concurrent.futures`` that holds locks.
    """
    for held in _held:
        if held():
            return True
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        names = frame.f_globals
        if frame.f_code in _midway or (names is vars(_base) and _holds(frame.f_locals)):
            return True
        name = names.get("__name__", "")
        if name.startswith(_STORES) and name not in _PASSING:
            return True
        frame = frame.f_back
    return False


def _holds(names: dict[str, Any]) -> bool:
    """Say whether a function with these local variables holds a lock that a sender may take."""
    waiter = names.get("waiter")
    if waiter is not None:
        lock = getattr(waiter, "lock", None)
        if (lock is not None and lock.locked()) or waiter.event._cond._lock.locked():
            return True
    futures = names.get("fs") or (names.get("self"),)
    callers = [getattr(getattr(future, "_entry", None), "caller", None) for future in futures]
    conditions = [getattr(caller, "condition", None) for caller in callers]
    return any(condition is not None and owned(condition) for condition in conditions)


def refused(path: str | None = None) -> UnsupportedError:
    """Return the error of a call that would wait for the code that it has interrupted."""
    return UnsupportedError(
        "a signal handler or a finalizer called the store in the middle of another call, on the "
        "same thread, which holds a lock: let it call only close, or set a flag for other code",
        path=path,
    )
