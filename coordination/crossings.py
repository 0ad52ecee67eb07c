"""Waits of threads for each other inside the functions of their callers, which would never end.

The asynchronous face has none: such a function is no coroutine, so it cannot wait for a task.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ..ops.errors import InvalidSettingError, MetadataStoreError

__all__ = ["waiting_for"]


_lock = threading.RLock()  # guards the following; a signal handler may wait, too
# For each thread that waits without limit, what returns the thread for which it waits, or 0.
_waits: dict[int, Callable[[], int]] = {}


@contextmanager
def waiting_for(
    owner: Callable[[], int], what: str, refusal: type[MetadataStoreError] = InvalidSettingError
) -> Iterator[None]:
    """Note that this thread waits in the block until another one gives up what it has.

    Args:
        owner: returns that other thread, or 0.
        what: what waits, for the error.
        refusal: the class of the error.

    Raises:
        MetadataStoreError: that thread waits for this one, through any number of others.
    """
    me = threading.get_ident()
    with _lock:
        at: Callable[[], int] | None = owner
        for _ in range(len(_waits) + 1):
            thread = 0 if at is None else at()
            if thread == me:
                raise refusal(
                    f"{what} would wait for itself: this thread is inside the function of an "
                    "update, or has a lock, that the other one waits for; do one after the other"
                )
            at = _waits.get(thread)
        _waits[me] = owner
    try:
        yield
    finally:
        with _lock:
            _waits.pop(me, None)


def _forget() -> None:
    # Other threads of the parent may have held the lock, or waited.
    global _lock  # noqa: PLW0603
    _lock = threading.RLock()
    _waits.clear()


os.register_at_fork(after_in_child=_forget)
