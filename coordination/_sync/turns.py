# Made from async_turns.py by `python tools/faces.py`: change that file, and run this command.
"""One at a time for each key, in the order of arrival."""

from __future__ import annotations

import threading
from collections import deque

from ...ops.errors import InvalidSettingError
from ..background import Signal

__all__ = ["Turns"]


class _Line:
    """Who waits for one key, and who has it."""

    __slots__ = ("owner", "waiting")

    def __init__(self, owner: int) -> None:
        self.owner = owner
        self.waiting: deque[Signal] = deque()


class Turns:
    """Lets one caller at a time work on a key. It keeps nothing for keys without callers."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards the following field
        self._lines: dict[str, _Line] = {}

    def enter(self, key: str) -> None:
        """Wait for one's turn.

        Raises:
            InvalidSettingError: this thread has it already, and would wait for itself.
        """
        me = threading.get_ident()
        with self._lock:
            line = self._lines.get(key)
            if line is None:
                self._lines[key] = _Line(me)
                return
            if line.owner == me:
                why = f"the function that updates {key} updates {key}: it would wait for itself"
                raise InvalidSettingError(why)
            turn = Signal()
            line.waiting.append(turn)
        try:
            turn.wait()
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
