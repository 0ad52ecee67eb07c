# async:
# `_sync/listeners.py` is generated from this file: after a change, run `python tools/faces.py`.
# end
"""Calls functions of an application at events: one mechanism for elections, caches and groups.

Each listener has its own task (for threads: its own daemon thread) while events wait. So a callback
may block, and may call the object that it listens to. It delays only its own later calls, which
come one after the other.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from typing import Any, Final, Generic, Self, TypeVar

from ..ops.errors import InvalidSettingError
from ..ops.log import get_logger
from .async_background import async_spawn

# sync:
# | from .feeds import check_callback
# end

__all__ = ["AsyncListener", "still_open"]

log = get_logger("batchkeeper.coordination")

T = TypeVar("T")
# async:
# As with other callbacks of a loop, SystemExit ends the loop. What they await may be cancelled.
_CAUGHT = (Exception, asyncio.CancelledError)
# Seconds after which a callback that awaits nothing lets other tasks have their turn.
_TURN: Final = 0.01
# sync:
# | _CAUGHT = BaseException  # SystemExit would end the thread before the next event.
# | _LINGER: Final = 1.0  # Seconds: a thread for each of many events would cost more than they do.
# end

# The listener whose callback runs in this context.
_calling: Final[ContextVar[object]] = ContextVar("_calling", default=None)


class AsyncListener(Generic[T]):
    """A listener. Close it to get no more events; it is also a context manager.

    Args:
        of: the name of its subject, for logs.
        callback: called for each event. Its exceptions are logged.
        most: the limit of pending events. Above it, the oldest are dropped.

    Raises:
        InvalidSettingError: the callback is not a function, or for threads a coroutine function.
    """

    def __init__(self, of: str, callback: Callable[..., object], most: int | None = None) -> None:
        # async:
        if not callable(callback):
            raise InvalidSettingError(f"callback must be a function, not {callback!r:.80}")
        # sync:
        # | check_callback(callback)
        # end
        self._of = of
        self._callback = callback
        self.closed = False
        self._lock = threading.Condition()  # guards the following fields
        self._waiting: deque[T] = deque(maxlen=most)
        self._running = False

    def close(self) -> None:
        """End the listener. Any thread or its own callback may call it, even twice.

        A running call finishes.
        """
        self.closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def calling(self) -> bool:
        """Whether its own callback is asking."""
        return _calling.get() is self

    def notify(self, event: T) -> None:
        """Schedule a call of the callback, after the earlier events."""
        if self.add(event):
            self.start()

    def add(self, event: T) -> bool:
        """Queue an event, also under a lock; return whether ``start`` must be called."""
        with self._lock:
            if self.closed:
                return False
            self._append(event)
            self._lock.notify()
            start, self._running = not self._running, True
            return start

    def start(self) -> None:
        """Start to call the callback. Not under a lock: some loops start a task at once."""
        try:
            async_spawn(f"listener of {self._of}", self._run)
        except RuntimeError:  # No thread is left. The next event starts again.
            log.exception("a listener could not be called", of=self._of)
            with self._lock:
                self._running = False

    def _append(self, event: T) -> None:
        self._waiting.append(event)

    def _waits(self) -> bool:
        return bool(self._waiting)

    def _take(self) -> T:
        return self._waiting.popleft()

    def _calls(self, event: T) -> Iterable[tuple[object, ...]]:
        """Yield the arguments of each call for an event."""
        yield (event,)

    async def _run(self) -> None:
        _calling.set(self)
        # async:
        called_at = time.monotonic()
        # end
        while (event := self._next()) is not None:
            # async:
            if time.monotonic() - called_at > _TURN:
                await asyncio.sleep(0)
                called_at = time.monotonic()
            # end
            if self.closed:
                continue  # What was pending is let go.
            for arguments in self._calls(event):
                if self.closed:
                    break
                try:
                    # async:
                    called = self._callback(*arguments)
                    if inspect.isawaitable(called):
                        await called
                # sync:
                # |     self._callback(*arguments)
                # end
                except _CAUGHT:
                    # async:
                    task = asyncio.current_task()
                    if task is not None and task.cancelling():  # The loop is ending.
                        with self._lock:
                            self._running = False
                        raise
                    # end
                    log.exception("a listener failed", of=self._of, arguments=f"{arguments!r:.200}")

    def _next(self) -> T | None:
        with self._lock:
            # sync:
            # | self._lock.wait_for(self._waits, _LINGER)
            # end
            if self._waits():
                return self._take()
            self._running = False
            return None


L = TypeVar("L", bound=AsyncListener[Any])


def still_open(listeners: Iterable[L]) -> tuple[L, ...]:
    """Return the open listeners."""
    return tuple(listener for listener in listeners if not listener.closed)
