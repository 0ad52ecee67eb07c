"""The threads of the requests that a hub's server runs."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from typing import ParamSpec, TypeVar

from ...batching.lifetime import on_thread

__all__ = ["Workers"]

_P = ParamSpec("_P")
_T = TypeVar("_T")


class Workers(Executor):
    """Runs each call in a daemon thread of its own.

    A pool's threads would keep a program that ends without ``stop`` waiting for its subscribers.
    """

    def submit(self, call: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        """Start a call."""
        return on_thread(partial(call, *args, **kwargs))
