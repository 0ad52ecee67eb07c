"""Helpers for waiting, with the time that tests wait at most."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final, TypeVar

import batchkeeper as bk

__all__ = ["PATIENCE", "error", "result", "soon", "until"]

T = TypeVar("T")

#: Seconds. This is long enough for a slow machine: a test that waits as long has failed.
PATIENCE: Final = 60.0


def soon(seconds: float = PATIENCE) -> float:
    """Return a deadline: by default one that no test reaches, or one that will pass."""
    return time.monotonic() + seconds


def result(future: Future[T]) -> T:
    """Wait for a future and return its result."""
    return future.result(PATIENCE)


def error(future: Future[Any]) -> bk.MetadataStoreError:
    """Wait for a future, which must end with an error, and return the error."""
    found = future.exception(PATIENCE)
    assert isinstance(found, bk.MetadataStoreError), f"ended without an error: {future}"
    return found


def until(
    condition: Callable[[], T], otherwise: str = "waited in vain", within: float = PATIENCE
) -> T:
    """Poll a condition until it returns something true, and return that."""
    give_up, pause = soon(within), 0.0005
    while not (found := condition()):
        assert time.monotonic() < give_up, otherwise
        time.sleep(pause)
        pause = min(pause * 1.1, 0.01)  # A long wait need not keep a core busy.
    return found
