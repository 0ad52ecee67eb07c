# async:
# `marks.py` is generated from this file: after a change, run `python tools/faces.py`.
# end
"""Consume marks: how far each subscriber is, kept with few writes."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence
from itertools import takewhile
from typing import Final, Self

from ...batching.settings import check_seconds
from ...coordination.async_background import AsyncGate, AsyncSignal, async_spawn
from ...ops.errors import InvalidSettingError, MetadataStoreError, StoreClosedError
from ...ops.log import get_logger
from ..errors import IllegalOperationError, NoSubscriptionStateError
from ..names import escaped, name_text
from ..tables import Version
from .async_subscribers import AsyncSubscriptionDataManager
from .data import MessageSeqId

__all__ = ["AsyncConsumeMarks"]

log = get_logger("batchkeeper.hubs")

# The most marks that are written together, so that a subscriber's own write does not wait long.
_PAGE: Final = 10_000


class _Mark:
    """The mark of a subscriber.

    Attributes:
        topic: the topic.
        subscriber: the subscriber.
        stored: the number that the store has, as far as is known.
        newest: the newest mark; ``None`` before the first one.
        since: when ``newest`` became greater than ``stored``.
    """

    __slots__ = ("newest", "since", "stored", "subscriber", "topic")

    def __init__(self, topic: str, subscriber: str, stored: int) -> None:
        self.topic = topic
        self.subscriber = subscriber
        self.stored = stored
        self.newest: MessageSeqId | None = None
        self.since = 0.0

    @property
    def ahead(self) -> int:
        """The messages between the stored mark and the newest one."""
        return 0 if self.newest is None else self.newest.local - self.stored


class AsyncConsumeMarks:
    """Keeps how far subscribers are. Many marks of a subscriber become one write.

    A mark is written ``interval`` seconds after it was set, or earlier, when the subscriber is half
    of ``most`` messages ahead of its stored mark. A call that would bring it further ahead than
    ``most`` waits until its mark is stored. So after a crash, a subscriber gets at most ``most``
    messages again that it has consumed. Marks of many subscribers are written together, and a
    stored mark never goes back.

    A write that fails is tried again after ``interval`` seconds. Its error is raised by calls that
    wait for it. Marks of a subscription that is not there any more are dropped.

    Any number of threads or tasks can share one object. Close it, or use it as a context manager.

    Args:
        subscriptions: the manager of the subscriptions.
        most: the most messages between the stored mark of a subscriber and its newest one. The
            numbers of messages in a topic grow by one.
        interval: seconds until a mark is written.

    Raises:
        InvalidSettingError: an argument is out of its range.
    """

    def __init__(
        self, subscriptions: AsyncSubscriptionDataManager, most: int = 1000, interval: float = 1.0
    ) -> None:
        if type(most) is not int or most < 1:
            raise InvalidSettingError(f"most must be an int from 1 on, not {most!r:.80}")
        self._subscriptions = subscriptions
        self._most = most
        self._interval = check_seconds("interval", interval)
        self._gate = AsyncGate()  # Whoever writes marks has passed it.
        self._lock = threading.Lock()  # guards the following fields, and all marks
        self._marks: dict[str, dict[str, _Mark]] = {}  # by topic and subscriber
        self._waiting: dict[_Mark, None] = {}  # those to write, the oldest first
        self._urgent = False  # whether some must not wait for the interval
        self._wake = AsyncSignal()
        self._running = False
        self._closed = False

    async def consumed(
        self, topic: str | bytes, subscriber: str | bytes, mark: MessageSeqId
    ) -> None:
        """Say that a subscriber has consumed all messages up to a mark.

        A mark that is not greater than an earlier one is ignored.

        Raises:
            IllegalOperationError: an argument is no name or no mark.
            StoreClosedError: the marks were closed.
            MetadataStoreError: the subscriber is too far ahead, and its mark cannot be stored.
        """
        if not isinstance(mark, MessageSeqId):
            raise IllegalOperationError(f"a mark must be a MessageSeqId, not {mark!r:.80}")
        start = False
        with self._lock:
            if self._closed:
                raise StoreClosedError("the consume marks were closed")
            found = self._marks.get(name_text(topic), {}).get(name_text(subscriber))
            if found is None:
                found = self._begin(topic, subscriber, mark.local - 1)
            before = found.ahead
            if mark.local <= found.stored + before:
                return
            found.newest = mark
            if found not in self._waiting:
                self._waiting[found] = None
                found.since = time.monotonic()
                start, self._running = not self._running, True
            if wake := 2 * before < self._most <= 2 * found.ahead:
                self._urgent = True
            wait = found.ahead > self._most
        if start:
            async_spawn("consume marks", self._run)
        if wake:
            self._wake.set()
        if wait:
            await self._store([found])

    async def flush(self, topic: str | bytes | None = None) -> None:
        """Write the marks of a topic, or all of them, and return when they are stored.

        Raises:
            MetadataStoreError: one of them is not.
        """
        with self._lock:
            marks = [*self._waiting]
            if topic is not None:
                marks = [*self._marks.get(name_text(topic), {}).values()]
        await self._store(marks)

    async def release(self, topic: str | bytes) -> None:
        """Write the marks of a topic, and forget the topic: this hub has lost it, or gives it up.

        The topic is forgotten, too, if its marks cannot be written.

        Raises:
            MetadataStoreError: a mark is not stored.
        """
        try:
            await self.flush(topic)
        finally:
            with self._lock:
                for mark in self._marks.pop(name_text(topic), {}).values():
                    self._waiting.pop(mark, None)

    async def close(self) -> None:
        """Write all marks, and end. Later calls of ``consumed`` raise ``StoreClosedError``.

        Raises:
            MetadataStoreError: a mark is not stored.
        """
        with self._lock:
            self._closed = True
        self._wake.set()
        await self.flush()

    # Inside

    def _begin(self, topic: str | bytes, subscriber: str | bytes, stored: int) -> _Mark:
        """Return the first mark of a subscriber.

        Raises:
            IllegalOperationError: an argument is no name.
        """
        escaped(topic), escaped(subscriber)
        mark = _Mark(name_text(topic), name_text(subscriber), stored)
        self._marks.setdefault(mark.topic, {})[mark.subscriber] = mark
        return mark

    async def _run(self) -> None:
        """Write marks in time, until none waits."""
        try:
            while (look := self._look()) is not None:
                due, pause, wake = look
                if not due:
                    await wake.wait(pause)
                    continue
                try:
                    await self._store(due)
                except MetadataStoreError as error:
                    log.warning("consume marks could not be stored", reason=str(error))
        except BaseException:
            with self._lock:
                self._running = False
            raise

    def _look(self) -> tuple[list[_Mark], float, AsyncSignal] | None:
        """Return the marks to write now, the seconds to wait otherwise, and what ends the wait.

        It is ``None`` if no mark waits, so that ``_run`` ends.
        """
        now = time.monotonic()
        with self._lock:
            if self._closed or not self._waiting:
                self._running = False
                return None
            if self._wake.is_set():
                self._wake = AsyncSignal()
            urgent, self._urgent = self._urgent, False
            latest = math.inf if urgent else now - self._interval
            due = [*takewhile(lambda mark: mark.since <= latest, self._waiting)]
            return due, next(iter(self._waiting)).since + self._interval - now, self._wake

    async def _store(self, marks: Sequence[_Mark]) -> None:
        """Write marks, unless they were written meanwhile.

        Raises:
            MetadataStoreError: one of them could not be written.
        """
        await self._gate.enter()
        try:
            for start in range(0, len(marks), _PAGE):
                await self._store_some(marks[start : start + _PAGE])
        finally:
            self._gate.leave()

    async def _store_some(self, marks: Sequence[_Mark]) -> None:
        with self._lock:
            news = [(mark, mark.newest) for mark in marks if mark.newest and mark.ahead > 0]
        ended: Sequence[Version | MetadataStoreError | None]
        try:
            ended = await self._subscriptions.advance_marks(
                [(mark.topic, mark.subscriber, newest) for mark, newest in news]
            )
        except MetadataStoreError as error:
            ended = [error] * len(news)
        with self._lock:
            for (mark, newest), one in zip(news, ended, strict=True):
                self._settle(mark, newest, one)
        for one in ended:
            if isinstance(one, MetadataStoreError) and not isinstance(
                one, NoSubscriptionStateError
            ):
                raise one

    def _settle(
        self, mark: _Mark, newest: MessageSeqId, ended: Version | MetadataStoreError | None
    ) -> None:
        """Note how the write of a mark ended."""
        if isinstance(ended, NoSubscriptionStateError):
            self._marks.get(mark.topic, {}).pop(mark.subscriber, None)
            self._waiting.pop(mark, None)
            return
        if not isinstance(ended, MetadataStoreError):
            mark.stored = newest.local
        if mark in self._waiting:  # Otherwise, the topic was released meanwhile.
            del self._waiting[mark]
            if mark.ahead > 0:
                mark.since = time.monotonic()
                self._waiting[mark] = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
