"""Which threads of a test wait for something, seen where all of them wait: in a condition."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

__all__ = ["noted_waits"]


@contextmanager
def noted_waits(*names: str) -> Iterator[Callable[[], int]]:
    """Return a function that counts the threads that wait now, if their names begin so."""
    waiting: set[threading.Thread] = set()
    wait = threading.Condition.wait

    def noted(condition: threading.Condition, timeout: float | None = None) -> bool:
        thread = threading.current_thread()
        waiting.add(thread)
        try:
            return wait(condition, timeout)
        finally:
            waiting.discard(thread)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading.Condition, "wait", noted)
        yield lambda: sum(thread.name.startswith(names) for thread in waiting.copy())
