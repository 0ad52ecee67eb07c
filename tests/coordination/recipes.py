"""What the tests of coordination share: calls in threads of their own, and processes."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, Final, ParamSpec, TypeVar

__all__ = ["BEGUN", "SHORT", "begun", "worker"]

P = ParamSpec("P")
T = TypeVar("T")

#: Seconds: a session that ends soon, as far as the servers allow it.
SHORT: Final = 2.0

# The name of the threads that ``begun`` makes.
BEGUN: Final = "begun"


def begun(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
    """Call a function in a thread of its own, which does not outlive a failed test."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(call(*args, **kwargs))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name=BEGUN, daemon=True).start()
    return future


@contextmanager
def worker(program: str, *arguments: Any) -> Iterator[subprocess.Popen[str]]:
    """Run a program of Python; it is killed at the end, also if it is stopped."""
    with subprocess.Popen(
        [sys.executable, "-c", program, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()
