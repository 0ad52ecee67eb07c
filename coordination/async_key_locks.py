# async:
# `_sync/key_locks.py` is generated from this file: after a change, run `python tools/faces.py`.
# end
"""A lock for each key, which callers get in the order of arrival."""

from __future__ import annotations

import threading
from collections import deque
from typing import TypeAlias

from ..batching.async_background import AsyncSignal

# sync:
# | from .crossings import waiting_for
# end

__all__ = ["AsyncKeyLocks"]

# What is locked, or that in a store with this id.
Key: TypeAlias = str | tuple[str, int]


class _Line:
    """The owner of one key, and the callers that wait for it."""

    __slots__ = ("owner", "waiting")

    def __init__(self, owner: int) -> None:
        self.owner = owner
        self.waiting: deque[AsyncSignal] = deque()


class AsyncKeyLocks:
    """Locks by key. Unlocked keys take no memory."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # guards the following field
        self._lines: dict[Key, _Line] = {}

    async def lock(self, key: Key) -> None:
        # async:
        """Lock a key, as soon as all earlier callers have unlocked it."""
        # sync:
        # | """Lock a key, as soon as all earlier callers have unlocked it.
        # |
        # | Raises:
        # |     InvalidSettingError: its owner waits for this thread, or is this thread.
        # | """
        # end
        me = threading.get_ident()
        with self._lock:
            line = self._lines.get(key)
            if line is None:
                self._lines[key] = _Line(me)
                return
            admitted = AsyncSignal()
            line.waiting.append(admitted)
        try:
            # async:
            await admitted.wait()
            # sync:
            # | path = key if isinstance(key, str) else key[0]
            # | with waiting_for(lambda: line.owner, f"an update of {path}"):
            # |     admitted.wait()
            # end
        except BaseException:
            with self._lock:
                late = admitted not in line.waiting
                if not late:
                    line.waiting.remove(admitted)
            if late:
                self.unlock(key)
            raise
        line.owner = me

    def unlock(self, key: Key) -> None:
        """Unlock a key: the next caller gets it."""
        with self._lock:
            line = self._lines.get(key)
            if line is None:
                return  # ``forget`` has dropped it: this child was forked while it was locked.
            if not line.waiting:
                del self._lines[key]
                return
            admitted = line.waiting.popleft()
            line.owner = 0
        admitted.set()

    def __len__(self) -> int:
        return len(self._lines)

    def forget(self) -> None:
        """Drop everything in a forked process, where another thread may have held the lock."""
        self._lock = threading.RLock()
        self._lines = {}
