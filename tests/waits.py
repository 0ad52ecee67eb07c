"""Which threads of a test wait for something, seen where they wait: in a condition, or a signal."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from batchkeeper.batching.background import Signal

__all__ = ["noted_waits"]


@contextmanager
def noted_waits(*names: str) -> Iterator[Callable[[], int]]:
    """Return a function that counts the threads that wait now, if their names begin so."""
    waiting: set[threading.Thread] = set()

    def noting(wait: Callable[[Any, float | None], bool]) -> Callable[..., bool]:
        def noted(at: Any, timeout: float | None = None) -> bool:
            thread = threading.current_thread()
            waiting.add(thread)
            try:
                return wait(at, timeout)
            finally:
                waiting.discard(thread)

        return noted

    with pytest.MonkeyPatch.context() as patch:
        for kind in (threading.Condition, Signal):
            patch.setattr(kind, "wait", noting(kind.wait))
        yield lambda: sum(thread.name.startswith(names) for thread in waiting.copy())
