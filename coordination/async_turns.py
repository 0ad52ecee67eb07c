# async:
# `_sync/turns.py` is generated from this file: after a change, run `python tools/faces.py`.
# end
"""One at a time for each key, in the order of arrival."""

from __future__ import annotations

import threading
from collections import deque

from .async_background import AsyncSignal

# sync:
# | from ..ops.errors import InvalidSettingError
# end

__all__ = ["AsyncTurns"]


class _Line:
    """Who waits for one key, and who has it."""

    __slots__ = ("owner", "waiting")

    def __init__(self, owner: int) -> None:
        self.owner = owner
        self.waiting: deque[AsyncSignal] = deque()


class AsyncTurns:
    """Lets one caller at a time work on a key. It keeps nothing for keys without callers."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards the following field
        self._lines: dict[str, _Line] = {}

    async def enter(self, key: str) -> None:
        # async:
        """Wait for one's turn."""
        # sync:
        # | """Wait for one's turn.
        # |
        # | Raises:
        # |     InvalidSettingError: this thread has it already, and would wait for itself.
        # | """
        # end
        me = threading.get_ident()
        with self._lock:
            line = self._lines.get(key)
            if line is None:
                self._lines[key] = _Line(me)
                return
            # sync:
            # | if line.owner == me:
            # |     why = f"the function that updates {key} updates {key}: it would wait for itself"
            # |     raise InvalidSettingError(why)
            # end
            turn = AsyncSignal()
            line.waiting.append(turn)
        try:
            await turn.wait()
        except BaseException:
            with self._lock:
                late = turn not in line.waiting
                if not late:
                    line.waiting.remove(turn)
            if late:
                self.leave(key)
            raise
        line.owner = me

    def leave(self, key: str) -> None:
        """Let the next one in."""
        with self._lock:
            line = self._lines.get(key)
            if line is None:
                return  # ``forget`` has dropped it: this child was forked in a turn.
            if not line.waiting:
                del self._lines[key]
                return
            turn = line.waiting.popleft()
            line.owner = 0
        turn.set()

    def __len__(self) -> int:
        return len(self._lines)

    def forget(self) -> None:
        """Drop everything in a forked process, where another thread may have held the lock."""
        self._lock = threading.Lock()
        self._lines = {}
