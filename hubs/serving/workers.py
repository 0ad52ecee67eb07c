"""The threads of the requests that a hub's server runs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Final, ParamSpec, TypeAlias, TypeVar

__all__ = ["Workers"]

_P = ParamSpec("_P")
_T = TypeVar("_T")

_Call: TypeAlias = tuple[Future[Any], Callable[[], Any]]

# Seconds after which a thread without a call ends.
_IDLE: Final = 5.0


class Workers(Executor):
    """Runs each call at once, in a daemon thread that has no other call, or in a new one.

    A standard pool's threads would keep a program that ends without ``stop`` waiting for its
    subscribers.
    """

    def __init__(self) -> None:
        self._calls: SimpleQueue[_Call] = SimpleQueue()  # of threads that are no longer in _idle
        self._lock = threading.Lock()  # guards the field
        self._idle = 0  # the threads that may be given a call

    def submit(self, call: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        """Start a call."""
        future: Future[_T] = Future()
        future.set_running_or_notify_cancel()
        made = future, partial(call, *args, **kwargs)
        with self._lock:
            found = self._idle > 0
            self._idle -= found
        if found:
            self._calls.put(made)
        else:
            threading.Thread(
                target=self._run, args=made, name="batchkeeper-request", daemon=True
            ).start()
        return future

    def _run(self, future: Future[Any], call: Callable[[], Any]) -> None:
        while True:
            try:
                future.set_result(call())
            except BaseException as error:  # For who waits for the future.
                future.set_exception(error)
            del future, call
            with self._lock:
                self._idle += 1
            try:
                future, call = self._calls.get(timeout=_IDLE)
            except Empty:
                with self._lock:
                    if self._idle:
                        self._idle -= 1
                        return
                future, call = self._calls.get()  # It was given one meanwhile.
