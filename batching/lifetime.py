"""Open stores when their process forks or ends, and threads that may outlast their tasks."""

from __future__ import annotations

import atexit
import os
import threading
import time
import warnings
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack
from typing import Final, Protocol, TypeVar

__all__ = ["closed", "on_thread", "opened"]

_T = TypeVar("_T")


class Engine(Protocol):
    """The part of an engine that this module uses."""

    name: str

    def close(self, timeout: float | None) -> None: ...

    def abandon(self) -> None: ...


# Seconds for draining the stores that were left open when the interpreter ends.
EXIT_DRAIN: Final = 5.0

# An engine's threads keep it alive, so no open engine disappears from this set.
_open: weakref.WeakSet[Engine] = weakref.WeakSet()


def opened(engine: Engine) -> None:
    """Register an engine, so that it is drained at exit and abandoned in a forked child."""
    _open.add(engine)
    # Exit handlers run in reverse order of registration. So this one runs before the back end's own
    # (kazoo's), which were registered when it connected and stop its threads.
    atexit.unregister(_drain_at_exit)
    atexit.register(_drain_at_exit)


def closed(engine: Engine) -> None:
    """Unregister an engine."""
    _open.discard(engine)


# The engines' threads are daemons, and still run when the interpreter calls this.
def _drain_at_exit() -> None:
    until = time.monotonic() + EXIT_DRAIN
    engines = list(_open)
    with ExitStack() as stack:  # Drains each, even if a warning or another drain raises.
        for engine in engines:
            stack.callback(_drain, engine, until)
        for engine in engines:
            warnings.warn(f"a store was not closed: {engine.name}", ResourceWarning, stacklevel=1)


def _drain(engine: Engine, until: float) -> None:
    engine.close(max(0.0, until - time.monotonic()))


def _abandon_in_child() -> None:
    for engine in list(_open):
        engine.abandon()
    _open.clear()


os.register_at_fork(after_in_child=_abandon_in_child)


def on_thread(call: Callable[..., _T], *args: object) -> Future[_T]:
    """Run a call on a thread for which neither an event loop nor Python waits when it ends.

    Both wait for the threads of executors, even if the task that started the call has given up.
    """
    future: Future[_T] = Future()
    future.set_running_or_notify_cancel()

    def run() -> None:
        try:
            future.set_result(call(*args))
        except BaseException as error:  # The waiting task gets it, whatever it is.
            future.set_exception(error)

    threading.Thread(target=run, name="batchkeeper", daemon=True).start()
    return future
