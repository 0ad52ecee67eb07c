"""How long the tests wait, and the ways to wait."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final, TypeVar

import batchkeeper as bk

T = TypeVar("T")

#: Seconds; long enough for a slow machine: a test that comes near it has failed.
PATIENCE: Final = 60.0


def soon(seconds: float = PATIENCE) -> float:
    """Return a deadline: one that no test comes near, or one that is to pass."""
    return time.monotonic() + seconds


def result(future: Future[T]) -> T:
    """Wait for a future and return its result."""
    return future.result(PATIENCE)


def error(future: Future[Any]) -> bk.MetadataStoreError:
    """Wait for a future and return the error that it has to end with."""
    found = future.exception(PATIENCE)
    assert isinstance(found, bk.MetadataStoreError), f"ended without an error: {future}"
    return found


def until(
    condition: Callable[[], T], otherwise: str = "waited in vain", within: float = PATIENCE
) -> T:
    """Wait for something that tells nobody when it happens; return what is true then."""
    give_up = soon(within)
    while not (found := condition()):
        assert time.monotonic() < give_up, otherwise
        time.sleep(0.0005)
    return found
