"""Background work, for threads; ``async_background.py`` does the same for tasks.

Both are written by hand, because the faces differ here in more than ``async`` and ``await``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import ParamSpec, TypeVar

from ..ops.errors import StoreUnavailableError
from ..ops.log import get_logger
from .reentry import refused

__all__ = ["Gate", "NoThreadError", "Signal", "each", "finish", "spawn"]

_P = ParamSpec("_P")
_T = TypeVar("_T")

log = get_logger("batchkeeper.coordination")


class NoThreadError(StoreUnavailableError, RuntimeError):
    """The system has no thread left: what passes, like an outage."""


def spawn(name: str, call: Callable[_P, None], *args: _P.args, **kwargs: _P.kwargs) -> None:
    """Run a function in its own daemon thread, and log its exceptions."""

    def run() -> None:
        try:
            call(*args, **kwargs)
        except Exception:
            log.exception("a background thread failed", thread_name=name)

    try:
        threading.Thread(target=run, name=f"batchkeeper-{name}", daemon=True).start()
    except RuntimeError as error:
        raise NoThreadError(f"the thread {name!r} cannot be started: {error}") from error


def each(call: Callable[[_T], object], items: Collection[_T], most: int) -> None:
    """Call a function for each item, with bounded concurrency; return when all have ended.

    If some calls raise, the others still run, and the first exception is raised at the end.
    """
    if items:
        with ThreadPoolExecutor(min(most, len(items)), "batchkeeper-each") as pool:
            ended = [pool.submit(call, item) for item in items]
        for one in ended:
            one.result()


def finish(call: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """Call a function. A thread cannot be cancelled; see ``async_background``."""
    return call(*args, **kwargs)


class Signal:
    """An event that happens once, and that any number of threads can await.

    A signal handler may set it in the middle of a wait, whose lock in ``threading.Event`` it would
    wait for. So this has no lock: a thread that waits shows its gate before it looks at the flag.
    """

    def __init__(self) -> None:
        self._set = False
        self._gates: list[threading.Lock] = []

    def set(self) -> None:
        """Say that it has happened."""
        self._set = True
        for gate in tuple(self._gates):
            with suppress(RuntimeError):  # Another call has opened it.
                gate.release()

    def is_set(self) -> bool:
        """Whether it has happened."""
        return self._set

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for it, at most ``timeout`` seconds; return whether it has happened."""
        gate = threading.Lock()
        gate.acquire()
        self._gates.append(gate)
        try:
            if not self._set:
                gate.acquire(timeout=-1 if timeout is None else max(timeout, 0.0))
        finally:
            self._gates.remove(gate)
        return self._set


class Gate:
    """Lets one thread through at a time; also a context manager."""

    __slots__ = ("_lock", "_threads")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._threads: set[int] = set()  # that wait, or were let through; each changes its own

    def enter(self, timeout: float | None = None) -> bool:
        """Wait for one's turn, at most ``timeout`` seconds; return whether it has come."""
        me, entered = threading.get_ident(), False
        if me in self._threads:  # A signal handler cannot wait for what it has interrupted.
            if timeout == 0:
                return False
            raise refused()
        try:
            self._threads.add(me)  # before the next line, after which a handler may run
            entered = self._lock.acquire(timeout=-1 if timeout is None else timeout)
        finally:
            if not entered:
                self._threads.discard(me)
        return entered

    def leave(self) -> None:
        """Let the next one through."""
        self._lock.release()
        self._threads.discard(threading.get_ident())

    def __enter__(self) -> None:
        self.enter()

    def __exit__(self, *_: object) -> None:
        self.leave()
