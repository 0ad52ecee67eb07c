"""The threads of the requests that a hub's server runs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import ParamSpec, TypeVar

__all__ = ["Workers"]

_P = ParamSpec("_P")
_T = TypeVar("_T")


class Workers(Executor):
    """Runs each call in a daemon thread of its own.

    A pool's threads would keep a program that ends without ``stop`` waiting for its subscribers.
    """

    def submit(self, call: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        """Start a call."""
        future: Future[_T] = Future()

        def run() -> None:
            try:
                future.set_result(call(*args, **kwargs))
            except BaseException as error:
                future.set_exception(error)

        threading.Thread(target=run, name="batchkeeper-request", daemon=True).start()
        return future
