"""The events of a watch, between the back end that reports them and the caller that takes them.

The back end must never wait for a caller, and a caller may be slow. So a feed holds a bounded
number of events. If there are more, it drops the oldest, and one gap stands in their place.

Threads, and what each does:

- A thread of the back end calls ``deliver`` and ``fail``. They take the feed's lock for a moment.
- The caller takes events: a thread in ``Watch``, a task in ``AsyncWatch``, or a ``Caller``, which
  passes them to a callback on the dispatcher's thread or on the loop.
- Any thread closes the feed. Only its first close, outside the feed's lock, closes the back end's
  watch, because that may wait for a delivery.

After a fork, the child has a copy of the feed whose lock may be held for ever. It refuses to give
events, and does not touch the back end.
"""

from __future__ import annotations

import inspect
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from threading import Condition, RLock, current_thread, main_thread
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from ..ops.errors import InvalidSettingError, MetadataStoreError, StoreClosedError
from ..ops.log import get_logger
from ..ops.operations import check_revision
from ..ops.paths import check_parent
from ..ops.results import WatchEvent
from ..stores.backend import BeginWatch, WatchHandle, to_its_end
from .reentry import await_change, in_back_end, owned, refused
from .settings import check_flag

__all__ = [
    "MAX_BYTES",
    "MAX_EVENTS",
    "AskedWatch",
    "Caller",
    "Feed",
    "Feeds",
    "WatchCallback",
    "check_callback",
    "check_watch",
]

log = get_logger("batchkeeper.watches")

#: The default of ``max_events``.
MAX_EVENTS: Final = 10_000

#: The most bytes of values that a watch holds.
MAX_BYTES: Final = 64 << 20

#: Receives the events of a watch.
WatchCallback: TypeAlias = Callable[[WatchEvent], object]

# The number of events that a callback gets before the other callbacks of the store have their turn.
_TURN: Final = 256

# Seconds after which the main thread looks again. A signal handler that closes the watch after the
# look, and before the thread waits, has nobody to wake.
_AGAIN: Final = 1.0

# Seconds between the deliveries whose times a feed notes.
_RESOLUTION: Final = 0.05

# ``ended``: the store was closed, or the back end has ended the watch; the events before that can
# still be taken. ``closed``: the caller has closed the watch and gets no more events.
_State: TypeAlias = Literal["open", "ended", "closed"]


class AskedWatch(NamedTuple):
    """The checked arguments of a call of ``watch``."""

    prefix: str
    after: int | None
    max_events: int
    callback: WatchCallback | None
    values: bool


def check_watch(
    prefix: str,
    after: int | None = None,
    max_events: int = MAX_EVENTS,
    callback: WatchCallback | None = None,
    *,
    values: bool = False,
) -> AskedWatch:
    """Return the arguments of a call of ``watch``, if they are valid.

    Raises:
        InvalidPathError: the prefix is not a valid path.
        InvalidSettingError: another argument is invalid.
    """
    check_parent(prefix)
    if after is not None:
        check_revision("after", after)
    if type(max_events) is not int or max_events < 1:
        raise InvalidSettingError(f"max_events must be an int of 1 or more, not {max_events!r:.80}")
    if callback is not None:
        check_callback(callback)
    check_flag("values", values)
    return AskedWatch(prefix, after, max_events, callback, values)


def check_callback(callback: Callable[..., Any]) -> None:
    """Refuse a callback that cannot be called, or whose call would do nothing.

    Raises:
        InvalidSettingError: the callback is not a function, or is a coroutine function.
    """
    if not callable(callback):
        raise InvalidSettingError(f"callback must be a function, not {callback!r:.80}")
    if inspect.iscoroutinefunction(callback) or (
        inspect.iscoroutinefunction(getattr(callback, "__call__", None))  # noqa: B004 - of an object
    ):
        raise InvalidSettingError(
            f"callback must be a plain function, not the coroutine function {callback!r:.80}: "
            f"nothing would await it. Let it create a task, or iterate with 'async for'"
        )


class Feed:
    """The events of one watch, at most ``max_events`` of them.

    Args:
        prefix: the prefix of the watch.
        max_events: the number of events that it holds. If there are more, the oldest are dropped.
        values: whether events have values, of which it holds :data:`MAX_BYTES`.
        wake: is called, without the feed's lock, when there is something to take after
            :meth:`take` has found nothing. ``None`` if only threads wait, in :meth:`wait`.

    Attributes:
        error: the error that has ended the watch, or ``None``.
        abandoned: nobody can take events any more: the watch that callers hold was dropped without
            a close, or its loop is closed. Set without the lock, by finalizers. The next delivery
            closes the feed.
        received: the events that the back end has reported.
        dropped: those of them that nobody has taken, because there were too many.
    """

    def __init__(
        self,
        prefix: str,
        max_events: int,
        wake: Callable[[], None] | None = None,
        *,
        values: bool = False,
    ) -> None:
        self.prefix = prefix
        self.abandoned = False
        self._max_events = max_events
        self._values = values
        self._wake = wake
        self._process = os.getpid()
        # Guards the following fields. Reentrant, because a signal handler that closes the watch may
        # run in a thread that is just taking an event. See `shut`.
        self._lock = RLock()
        self._changed = Condition(self._lock)
        self._state: _State = "open"
        self._events: deque[WatchEvent] = deque()
        self._gap = False  # whether a gap stands before `_events`
        self._bytes = 0  # of the values in `_events`
        # The events that were taken last: the caller still works on them, until it asks for more.
        self._taken = 0
        # The value of `received` and the time, at some deliveries since the oldest of these.
        self._times: deque[tuple[int, float]] = deque()
        self._asked = False  # whether to call `wake` at the next change
        self._handle: WatchHandle | None = None
        self._on_close: Callable[[Feed], None] | None = None
        self.error: MetadataStoreError | None = None
        self.received = 0
        self.dropped = 0

    # The back end's side

    def deliver(self, events: Sequence[WatchEvent]) -> None:
        """Take in events. Never blocks."""
        if self.abandoned:
            handle = self.shut()
            if handle is not None:
                handle.close()
            return
        with self._lock:
            if self._state != "open" or not events:
                return
            held = self._events
            now = time.monotonic()
            if not self._times or now - self._times[-1][1] > _RESOLUTION:
                self._times.append((self.received, now))
                self._oldest()
            held.extend(events)
            self.received += len(events)
            if self._values:
                self._bytes += sum(map(_value_bytes, events))
            while len(held) > self._max_events or self._bytes > MAX_BYTES:
                self._gap = True
                self.dropped += 1
                self._leave(held.popleft())
            wake = self._notify()
        if wake is not None:
            wake()

    def _leave(self, event: WatchEvent) -> None:
        """Note that an event is no longer held. The caller holds the lock."""
        if self._values:
            self._bytes -= _value_bytes(event)

    def fail(self, error: MetadataStoreError) -> None:
        """End the watch. The events before the error can still be taken."""
        self._end(error)

    def attach(self, handle: WatchHandle, on_close: Callable[[Feed], None]) -> None:
        """Take the back end's watch, to close it with the feed."""
        with self._lock:
            late = self._state != "open"
            if not late:
                self._handle, self._on_close = handle, on_close
        if late:
            on_close(self)
            handle.close()

    # The end

    def end(self) -> None:
        """End the feed with its store. The events before that can still be taken."""
        handle = self._handle
        self._end(None)
        if handle is not None:  # One that reads values has a thread.
            handle.close()

    def _end(self, error: MetadataStoreError | None) -> None:
        with self._lock:
            if self._state != "open":
                return
            self._state = "ended"
            self.error = error
            self._handle = None  # The back end has closed it.
            on_close, self._on_close = self._on_close, None
            wake = self._notify()
        if on_close is not None:
            on_close(self)
        if wake is not None:
            wake()

    def close(self) -> None:
        """Give no more events, and close the back end's watch. Later calls do nothing."""
        if in_back_end():  # whose locks the close would take; the next delivery closes it
            self.abandoned = True
            return
        handle = self.shut()
        if handle is not None:
            handle.close()

    def shut(self) -> WatchHandle | None:
        """Give no more events; return the back end's watch, which the caller must close."""
        if os.getpid() != self._process:
            return None
        with self._lock:
            if self._state == "closed":
                return None
            self._state = "closed"
            # A new one, because this thread may be in the middle of a change of the old one.
            self._events = deque()
            self._gap = False
            self._bytes = self._taken = 0
            handle, self._handle = self._handle, None
            on_close, self._on_close = self._on_close, None
            wake = self._notify()
        if on_close is not None:
            on_close(self)
        if wake is not None:
            wake()
        return handle

    @property
    def closed(self) -> bool:
        """Whether no more events will come: the watch or the store was closed, or it failed."""
        return self._state != "open"

    def _notify(self) -> Callable[[], None] | None:
        """Wake the threads that wait; return what to call without the lock, if anything."""
        self._changed.notify_all()
        wake, self._asked = (self._wake if self._asked else None), False
        return wake

    # The caller's side

    def take(self) -> WatchEvent | None:
        """Return the next event, or ``None`` if there is none now. ``wake`` is then called later.

        Raises:
            StopIteration: there will be no more events.
            MetadataStoreError: the watch has failed, and its last event was taken.
            StoreClosedError: the process was forked after the watch was made.
        """
        self._check_process()
        with self._lock:
            event = self._next()
            if event is None:
                self._asked = True
            return event

    def rest(self) -> list[WatchEvent]:
        """Return the events that wait behind one that was taken. What belongs together, is."""
        with self._lock:
            rest = [*self._events]
            self._events.clear()
            self._bytes = 0
            self._taken += len(rest)
            return rest

    @property
    def lag(self) -> float:
        """See :attr:`Watch.lag`."""
        self._check_process()
        with self._lock:
            behind: float = getattr(self._handle, "lag", 0.0)
            if self._events or self._gap or self._taken:
                behind = max(behind, time.monotonic() - self._oldest())
        return behind

    def _oldest(self) -> float:
        """Return when the oldest event has arrived that waits, or was taken last."""
        times, place = self._times, self.received - len(self._events) - self._taken
        while len(times) > 1 and times[1][0] <= place:
            times.popleft()
        return times[0][1]

    def wait(self, timeout: float | None) -> WatchEvent | None:
        """Return the next event, or ``None`` if none comes within ``timeout`` seconds.

        Raises:
            StopIteration: there will be no more events.
            MetadataStoreError: the watch has failed, and its last event was taken.
            StoreClosedError: the process was forked after the watch was made.
        """
        self._check_process()
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._lock:
            while (event := self._next()) is None:
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    return None
                if in_back_end():
                    raise refused(self.prefix)
                if current_thread() is main_thread():
                    left = _AGAIN if left is None else min(left, _AGAIN)
                await_change(self._changed, left)
            return event

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise StoreClosedError(
                "the store was opened before this process was forked; open it here"
            )

    def _next(self) -> WatchEvent | None:
        held = self._events
        self._taken = 1
        if self._gap:
            self._gap = False
            return self._gap_before(held)
        if held:
            event = held.popleft()
            self._leave(event)
            return event if event.kind != "gap" else self._gap_before(held)
        self._taken = 0
        if self._state == "open":
            return None
        if self._state == "ended" and self.error is not None:
            # A copy: one exception raised in several threads would collect all their tracebacks.
            raise self.error.for_path(self.prefix)
        raise StopIteration

    def _gap_before(self, held: deque[WatchEvent]) -> WatchEvent:
        """Return one gap for all that stand next to each other."""
        while held and held[0].kind == "gap":  # It has no value to leave.
            held.popleft()
        return WatchEvent("gap", self.prefix)


class Caller:
    """Passes the events of a feed to a callback, one by one and in order.

    Args:
        callback: the callback. An exception in it is logged, and the next event follows.
        dispatch: runs :meth:`run_callbacks` soon, on the dispatcher's thread or on the loop.
        caught: the exceptions to log. Others are raised where the callback runs.
    """

    def __init__(
        self,
        callback: WatchCallback,
        dispatch: Callable[[Caller], None],
        caught: type[BaseException],
    ) -> None:
        self._callback = callback
        self._dispatch = dispatch
        self._caught = caught
        self.feed: Feed | None = None

    def wake(self) -> None:
        """Run the callback soon. Never blocks."""
        self._dispatch(self)

    def run_callbacks(self) -> None:
        """Pass on the waiting events, up to one turn."""
        feed = self.feed
        assert feed is not None
        for _ in range(_TURN):
            try:
                event = feed.take()
            except StopIteration:
                return
            except MetadataStoreError:
                log.exception("a watch has failed", prefix=feed.prefix)
                # Whoever keeps a view learns that it is out of date, and finds `error` set.
                self._call(WatchEvent("gap", feed.prefix))
                return
            if event is None:
                return
            self._call(event)
        # The feed may be at its end by now; then this finds it.
        self._dispatch(self)

    def _call(self, event: WatchEvent) -> None:
        try:
            self._callback(event)
        except self._caught:
            log.exception("a watch's callback failed", path=event.path)


def _value_bytes(event: WatchEvent) -> int:
    return 0 if event.found is None else len(event.found.value)


class Feeds:
    """The feeds of the open watches of one store, and their numbers."""

    def __init__(self) -> None:
        self._lock = RLock()  # guards the following fields; reentrant as in a feed
        self._open: set[Feed] = set()
        self._closed = False
        # Of the closed watches:
        self._received = 0
        self._dropped = 0

    def start(self, feed: Feed, begin: BeginWatch, after: int | None, seconds: float) -> None:
        """Begin a watch. Blocks until it is in place.

        Raises:
            StoreClosedError: the store or the watch was closed meanwhile.
            MetadataStoreError: the watch is not in place, as for a read.
        """
        deadline = time.monotonic() + seconds
        with self._lock:
            if self._closed:
                raise StoreClosedError("the store is closed")
            self._open.add(feed)

        def place() -> None:
            handle = begin(feed.prefix, after, feed.deliver, feed.fail, deadline)
            feed.attach(handle, self._discard)

        try:
            to_its_end(place)
        except BaseException:
            feed.close()
            self._discard(feed)
            raise
        if self._closed:
            raise StoreClosedError("the store was closed", path=feed.prefix)

    def _discard(self, feed: Feed) -> None:
        with self._lock:
            if feed in self._open:
                self._open.remove(feed)
                self._received += feed.received
                self._dropped += feed.dropped

    def close(self) -> None:
        """End all feeds, because the store is closed. Waiting events can still be taken."""
        with self._lock:
            self._closed = True
            feeds = list(self._open)
        for feed in feeds:
            feed.end()
            self._discard(feed)

    def held(self) -> bool:
        """Say whether this thread holds a lock that a delivery takes."""
        return owned(self._lock) or any(owned(feed._lock) for feed in list(self._open))

    def numbers(self) -> tuple[int, int, int]:
        """Return the open watches, the events reported to watches, and those dropped."""
        with self._lock:
            feeds = list(self._open)
            received = self._received + sum(feed.received for feed in feeds)
            dropped = self._dropped + sum(feed.dropped for feed in feeds)
        return sum(not feed.closed for feed in feeds), received, dropped
