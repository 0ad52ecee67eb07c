"""Waits of threads for each other inside the functions of their callers, which would never end.

The asynchronous face has none: such a function is no coroutine, so it cannot wait for a task.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from ..ops.errors import InvalidSettingError, MetadataStoreError

__all__ = ["waiting_for"]


class Owned(Protocol):
    """What one thread at a time has: ``owner``, or no thread if that is 0."""

    @property
    def owner(self) -> int: ...


_lock = threading.Lock()  # guards the following
_waits: dict[int, Owned] = {}  # what each waiting thread waits for, without limit


@contextmanager
def waiting_for(
    wanted: Owned, what: str, refusal: type[MetadataStoreError] = InvalidSettingError
) -> Iterator[None]:
    """Note that this thread waits in the block until another one gives up what it has.

    Raises:
        MetadataStoreError: that thread waits for this one, through any number of others.
    """
    me = threading.get_ident()
    with _lock:
        at: Owned | None = wanted
        for _ in range(len(_waits) + 1):
            if at is not None and at.owner == me:
                raise refusal(
                    f"{what} would wait for itself: this thread is inside the function of an "
                    "update, or has a lock, that the other one waits for; do one after the other"
                )
            at = None if at is None else _waits.get(at.owner)
        _waits[me] = wanted
    try:
        yield
    finally:
        with _lock:
            del _waits[me]


def _forget() -> None:
    # Other threads of the parent may have held the lock, or waited.
    global _lock  # noqa: PLW0603
    _lock = threading.Lock()
    _waits.clear()


os.register_at_fork(after_in_child=_forget)
