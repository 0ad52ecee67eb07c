# Made from async_callbacks.py by `python tools/faces.py`: change that file, and run this command.
"""What tells an application that it leads, follows, or has lost the leadership."""

from __future__ import annotations

import inspect
import threading
from collections import deque
from collections.abc import Callable
from typing import Literal, Self

from ..ops.errors import InvalidSettingError
from ..ops.log import get_logger

__all__ = ["ElectionCallback", "ElectionListener", "ElectionEvent"]

log = get_logger("batchkeeper.coordination")

ElectionEvent = Literal["leading", "following", "lost"]

ElectionCallback = Callable[[ElectionEvent], None]
_CAUGHT = BaseException  # SystemExit would end the thread before the next event.


class ElectionListener:
    """A listener of an election. Close it to get no more events; it is also a context manager.

    Args:
        callback: receives the events.
        lock: the election's lock, which guards the events, too.

    Raises:
        InvalidSettingError: the callback is not a function, or for threads a coroutine function.
    """

    def __init__(self, callback: ElectionCallback, lock: threading.Lock) -> None:
        refused = not callable(callback) or inspect.iscoroutinefunction(callback)
        if refused:
            raise InvalidSettingError(f"callback must be a function, not {callback!r:.80}")
        self._callback = callback
        self.closed = False
        self._lock = lock  # guards the following fields
        self._events: deque[ElectionEvent] = deque()
        self._running = False

    def close(self) -> None:
        """End the listener. Its own callback may call it, too; a call under way goes on."""
        self.closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def add(self, event: ElectionEvent) -> bool:
        """Take in an event, with the lock; return whether ``run`` must be started."""
        self._events.append(event)
        start, self._running = not self._running, True
        return start

    def forget_untrue(self) -> None:
        """Drop the last events, which a resignation has made untrue, with the lock."""
        while self._events and self._events[-1] != "lost":
            self._events.pop()

    def run(self) -> None:
        """Call the callback for each event, in a task or a thread of its own."""
        while (event := self._next()) is not None:
            try:
                self._callback(event)
            except _CAUGHT:
                log.exception("an election listener failed", election_event=event)

    def _next(self) -> ElectionEvent | None:
        with self._lock:
            if self._events and not self.closed:
                return self._events.popleft()
            self._running = False
            return None
