# async:
# `callbacks.py` is generated from this file: after a change, run `python tools/faces.py`.
# end
"""What tells an application that it leads, follows, or has lost the leadership."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Literal, Self

from ..ops.errors import InvalidSettingError
from ..ops.log import get_logger

__all__ = ["AsyncElectionCallback", "AsyncElectionListener", "ElectionEvent"]

log = get_logger("batchkeeper.coordination")

ElectionEvent = Literal["leading", "following", "lost"]

# async:
AsyncElectionCallback = Callable[[ElectionEvent], Awaitable[None] | None]
_CAUGHT = Exception
# sync:
# | ElectionCallback = Callable[[ElectionEvent], None]
# | _CAUGHT = BaseException  # SystemExit would end the thread before the next event.
# end


class AsyncElectionListener:
    """A listener of an election. Close it to get no more events; it is also a context manager.

    Args:
        callback: receives the events.
        lock: the election's lock, which guards the events, too.

    Raises:
        InvalidSettingError: the callback is not a function, or for threads a coroutine function.
    """

    def __init__(self, callback: AsyncElectionCallback, lock: threading.Lock) -> None:
        # async:
        refused = not callable(callback)
        # sync:
        # | refused = not callable(callback) or inspect.iscoroutinefunction(callback)
        # end
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

    async def run(self) -> None:
        """Call the callback for each event, in a task or a thread of its own."""
        while (event := self._next()) is not None:
            try:
                # async:
                called = self._callback(event)
                if inspect.isawaitable(called):
                    await called
            except asyncio.CancelledError:
                with self._lock:
                    self._running = False
                raise
            # sync:
            # |     self._callback(event)
            # end
            except _CAUGHT:
                log.exception("an election listener failed", election_event=event)

    def _next(self) -> ElectionEvent | None:
        with self._lock:
            if self._events and not self.closed:
                return self._events.popleft()
            self._running = False
            return None
