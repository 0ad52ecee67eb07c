# Made from async_marks.py by `python tools/faces.py`: change that file, and run this command.
"""Consume marks: the position of each subscriber, stored with few writes."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Final, Self

from ....batching.background import Gate, Signal, spawn
from ....batching.settings import check_seconds
from ....coordination._sync.kinds import check_face
from ....ops.errors import InvalidSettingError, MetadataStoreError, StoreClosedError, passes
from ....ops.log import get_logger
from ....ops.operations import Part
from ...errors import IllegalOperationError, NoSubscriptionStateError
from ...names import escaped, name_text
from ...tables import Version
from ..data import MessageSeqId
from .subscribers import SubscriptionDataManager

__all__ = ["ConsumeMarks"]

log = get_logger("batchkeeper.hubs")

# The largest number of marks per write, so that a subscriber's own write does not wait long.
_PAGE: Final = 10_000


class _Mark:
    """The mark of a subscriber.

    Attributes:
        topic: the topic.
        subscriber: the subscriber.
        stored: a lower bound of the stored number; -1 while nothing is known.
        newest: the newest mark.
        since: when ``newest`` became greater than ``stored``, or when the last attempt to write it
            was made.
    """

    __slots__ = ("newest", "since", "stored", "subscriber", "topic")

    def __init__(self, topic: str, subscriber: str) -> None:
        self.topic = topic
        self.subscriber = subscriber
        self.stored = -1
        self.newest: MessageSeqId | None = None
        self.since = 0.0

    @property
    def ahead(self) -> int:
        """The messages between the stored mark and the newest one."""
        return 0 if self.newest is None else self.newest.local - self.stored


class ConsumeMarks:
    """Keeps the positions of subscribers. Many marks of a subscriber become one write.

    A mark is written ``interval`` seconds after it was set, or earlier, when the subscriber is half
    of ``most`` messages ahead of its stored mark. While the subscriber is more than ``most``
    messages ahead, its calls return only when its mark is stored. The first call may also wait if
    the stored mark is not known; see ``set_stored``. Therefore, a subscriber gets at most ``most``
    consumed messages again after a crash. Marks of many subscribers are written together, and a
    stored mark never moves back.

    A failed write is retried after ``interval`` seconds. Calls that wait for it raise its error.
    Marks of a subscription that no longer exists are dropped. Call ``forget`` before you delete or
    reset a subscription.

    Any number of threads or tasks can share one object. Close it, or use it as a context manager.

    Args:
        subscriptions: the manager of the subscriptions.
        most: the largest number of messages between the stored mark of a subscriber and its newest
            one. The numbers of messages in a topic grow by one.
        interval: seconds until a mark is written.
        beside: see ``advance_marks`` of the manager.

    Raises:
        InvalidSettingError: an argument is out of its range.
    """

    def __init__(
        self,
        subscriptions: SubscriptionDataManager,
        most: int = 1000,
        interval: float = 1.0,
        beside: Callable[[str | bytes], Sequence[Part]] | None = None,
    ) -> None:
        check_face(subscriptions, "advance_marks", "consume marks need a manager")
        if type(most) is not int or most < 1:
            raise InvalidSettingError(f"most must be an int from 1 on, not {most!r:.80}")
        self._subscriptions = subscriptions
        self._most = most
        self._beside = beside
        self._interval = check_seconds("interval", interval)
        self._process = os.getpid()
        self._gate = Gate()  # Writers of marks hold it.
        self._lock = threading.RLock()  # guards the following fields, and all marks
        self._marks: dict[str, dict[str, _Mark]] = {}  # by topic and subscriber
        self._waiting: dict[_Mark, None] = {}  # marks to write, oldest first
        self._urgent = False  # whether some of them must not wait for the interval
        self._wake = Signal()
        self._running = False
        self._closed = False

    def consumed(self, topic: str | bytes, subscriber: str | bytes, mark: MessageSeqId) -> None:
        """Note that a subscriber has consumed all messages up to a mark.

        A mark that is not greater than an earlier one is ignored.

        Raises:
            IllegalOperationError: a name or the mark is invalid.
            StoreClosedError: the marks were closed.
            MetadataStoreError: the subscriber is too far ahead, and its mark cannot be stored.
        """
        _check_mark(mark)
        self._check_process()
        with self._lock:
            if self._closed:
                raise StoreClosedError("the consume marks were closed")
            found = self._mark(topic, subscriber)
            wake = self._advance(found, mark)
            wait = found.ahead > self._most
            if start := bool(self._waiting) and not self._running:
                self._running = True
        if start:
            self._start()
        if wake:
            self._wake.set()
        if wait:
            self._store([found])

    def set_stored(self, topic: str | bytes, subscriber: str | bytes, mark: MessageSeqId) -> None:
        """Note the stored mark of a subscriber, as the caller has read it.

        Otherwise, the first call of ``consumed`` may have to write its mark at once.

        Raises:
            IllegalOperationError: a name or the mark is invalid.
        """
        _check_mark(mark)
        self._check_process()
        with self._lock:
            found = self._mark(topic, subscriber)
            found.stored = max(found.stored, mark.local)

    def flush(
        self, topic: str | bytes | None = None, subscriber: str | bytes | None = None
    ) -> None:
        """Write the marks of one subscriber, of one topic, or of all topics.

        The call returns when they are stored.

        Raises:
            MetadataStoreError: a mark could not be stored.
        """
        self._check_process()
        self._store(self._in_line(topic, subscriber))

    def release(self, topic: str | bytes) -> None:
        """Write the marks of a topic that this hub has lost or releases, and forget the topic.

        The topic is forgotten even if its marks cannot be written.

        Raises:
            MetadataStoreError: a mark is not stored.
        """
        self._check_process()
        try:
            while marks := self._in_line(topic, forget=True):
                self._store(marks)
        except BaseException:
            self._forget(topic)
            raise

    def forget(self, topic: str | bytes, subscriber: str | bytes | None = None) -> None:
        """Forget the mark of a subscriber, for example because it is about to unsubscribe.

        Without a subscriber, forget the marks of all subscribers of the topic. A running write
        finishes.
        """
        self._check_process()
        if subscriber is None:
            self._forget(topic)
            return
        with self._lock:
            mark = self._marks.get(name_text(topic), {}).pop(name_text(subscriber), None)
            if mark is not None:
                self._waiting.pop(mark, None)

    def close(self) -> None:
        """Write all marks, and end. Later calls of ``consumed`` raise ``StoreClosedError``.

        Raises:
            MetadataStoreError: a mark is not stored.
        """
        if os.getpid() != self._process:  # The marks belong to the parent.
            return
        with self._lock:
            self._closed = True
        self._wake.set()
        self._store(self._in_line(None))

    # Inside

    def _check_process(self) -> None:
        if os.getpid() != self._process:  # The lock or the gate may be held for ever.
            raise StoreClosedError("these consume marks belong to the process that was forked")

    def _mark(self, topic: str | bytes, subscriber: str | bytes) -> _Mark:
        """Return the mark of a subscriber, which may be new, under the lock.

        Raises:
            IllegalOperationError: a name is invalid.
        """
        found = self._marks.get(name_text(topic), {}).get(name_text(subscriber))
        if found is not None:
            return found
        escaped(topic), escaped(subscriber)
        mark = _Mark(name_text(topic), name_text(subscriber))
        self._marks.setdefault(mark.topic, {})[mark.subscriber] = mark
        return mark

    def _advance(self, mark: _Mark, newest: MessageSeqId) -> bool:
        """Move a mark forward, under the lock; return whether it must be written early."""
        before = mark.ahead
        if newest.local <= mark.stored + before:
            return False
        mark.newest = newest
        if mark not in self._waiting:
            mark.since = time.monotonic()
            self._waiting[mark] = None
        if not 2 * before < self._most <= 2 * mark.ahead:
            return False
        self._urgent = True
        return True

    def _in_line(
        self,
        topic: str | bytes | None,
        subscriber: str | bytes | None = None,
        *,
        forget: bool = False,
    ) -> list[_Mark]:
        """Return the marks to write: all, or those of a topic or a subscriber.

        If there are none and the caller asks for it, forget the topic.
        """
        with self._lock:
            if topic is None:
                return [*self._waiting]
            of_topic = self._marks.get(name_text(topic), {})
            if subscriber is not None:
                mark = of_topic.get(name_text(subscriber))
                return [] if mark is None or mark not in self._waiting else [mark]
            waiting = [mark for mark in of_topic.values() if mark in self._waiting]
            if forget and not waiting:
                self._marks.pop(name_text(topic), None)
            return waiting

    def _forget(self, topic: str | bytes) -> None:
        with self._lock:
            for mark in self._marks.pop(name_text(topic), {}).values():
                self._waiting.pop(mark, None)

    def _start(self) -> None:
        try:
            spawn("consume marks", self._run)
        except RuntimeError:  # No thread is left. The next call starts again.
            log.exception("consume marks could not be written in the background")
            with self._lock:
                self._running = False

    def _run(self) -> None:
        """Write marks when they are due, until none waits."""
        try:
            while (next_due := self._next_due()) is not None:
                due, pause, wake = next_due
                if not due:
                    wake.wait(pause)
                    continue
                try:
                    self._store(due)
                except MetadataStoreError as error:
                    log.warning("consume marks could not be stored", reason=str(error))
        except BaseException:
            with self._lock:
                self._running = False
            raise

    def _next_due(self) -> tuple[list[_Mark], float, Signal] | None:
        """Return the marks to write now, or how long to wait, and the event that ends the wait.

        Return ``None`` if no mark waits, so that ``_run`` ends.
        """
        now = time.monotonic()
        with self._lock:
            if self._closed or not self._waiting:
                self._running = False
                return None
            if self._wake.is_set():
                self._wake = Signal()
            urgent, self._urgent = self._urgent, False
            latest = math.inf if urgent else now - self._interval
            due = [*takewhile(lambda mark: mark.since <= latest, self._waiting)]
            return due, next(iter(self._waiting)).since + self._interval - now, self._wake

    def _store(self, marks: Sequence[_Mark]) -> None:
        """Write marks that have not been written or forgotten in the meantime.

        Raises:
            MetadataStoreError: a mark could not be written.
        """
        failed: MetadataStoreError | None = None
        for start in range(0, len(marks), _PAGE):
            failed = self._store_some(marks[start : start + _PAGE]) or failed
            if failed is not None and passes(failed):
                break  # No server answers. The other marks stay queued.
        if failed is not None:
            raise failed

    def _store_some(self, marks: Sequence[_Mark]) -> MetadataStoreError | None:
        """Write marks, and return the error of one that could not be written."""
        failed: MetadataStoreError | None = None
        ended: Sequence[Version | MetadataStoreError | None]
        with self._gate:
            with self._lock:
                news = [
                    (mark, mark.newest)
                    for mark in marks
                    if mark in self._waiting and mark.newest is not None
                ]
            try:
                ended = self._subscriptions.advance_marks(
                    [(mark.topic, mark.subscriber, newest) for mark, newest in news], self._beside
                )
            except MetadataStoreError as failure:
                ended = [failure] * len(news)
            with self._lock:
                for (mark, newest), one in zip(news, ended, strict=True):
                    error = self._settle(mark, newest, one)
                    failed = failed or error
                wake = self._urgent
        if wake:
            self._wake.set()
        return failed

    def _settle(
        self, mark: _Mark, newest: MessageSeqId, ended: Version | MetadataStoreError | None
    ) -> MetadataStoreError | None:
        """Record the outcome of a mark's write, under the lock; return its error."""
        gone = isinstance(ended, NoSubscriptionStateError)
        error = ended if isinstance(ended, MetadataStoreError) and not gone else None
        if error is None and not gone:
            mark.stored = newest.local
        if mark not in self._waiting:  # It has been forgotten in the meantime.
            return error
        del self._waiting[mark]
        if gone and mark.newest is newest:
            self._marks.get(mark.topic, {}).pop(mark.subscriber, None)
        elif mark.ahead > 0:
            mark.since = time.monotonic()
            self._waiting[mark] = None
            if error is None and 2 * mark.ahead >= self._most:
                self._urgent = True
        return error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _check_mark(mark: object) -> None:
    if not isinstance(mark, MessageSeqId):
        raise IllegalOperationError(f"a mark must be a MessageSeqId, not {mark!r:.80}")
