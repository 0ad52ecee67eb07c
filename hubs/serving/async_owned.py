# async:
# `_sync/owned.py` is generated from this file: after a change, run `python tools/faces.py`.
# end
"""A topic that a hub owns, and its connected subscribers."""

from __future__ import annotations

import copy
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final, Self

from ...batching.async_background import AsyncGate, AsyncSignal, async_finish
from ...coordination.deadlines import Deadline
from ...ops.errors import MetadataStoreError
from ..errors import IllegalOperationError, SubscriberReplacedError, TopicLostError
from ..topics.region import Claim
from .async_logs import AsyncLogs
from .messages import Attempt, Message
from .shedding import Held

__all__ = ["AsyncOwnedTopic", "AsyncSubscription"]

# The default number of messages that one call delivers.
_MOST: Final = 100


class _Waiting:
    """A message on its way into the log."""

    __slots__ = ("body", "error", "number")

    def __init__(self, body: bytes) -> None:
        self.body = body
        self.number = 0
        self.error: BaseException | None = None


class AsyncOwnedTopic:
    """A topic, from the claim of its hub to its release or loss.

    Args:
        claim: the claim.
        logs: the logs.
        last: the number of its last message.
        check: raises ``TopicLostError`` while the hub must not serve the claim.
        now: the time of the claim.
    """

    def __init__(
        self,
        claim: Claim,
        logs: AsyncLogs,
        last: int,
        check: Callable[[Claim], None],
        now: float,
    ) -> None:
        self.claim = claim
        self.last = last
        self._logs = logs
        self._check = check
        self._claimed = self._used = now
        self._gate = AsyncGate()  # Held while appending to the log.
        self._lock = threading.Lock()  # guards the following fields
        self._waiting: list[_Waiting] = []
        self._subscriptions: dict[str, AsyncSubscription] = {}
        self._closed = False
        self._published = 0
        self._rated = now, 0, 0.0  # the time, the messages until then, the rate

    async def publish(self, body: bytes) -> int:
        """Add a message to the log, and return its number. Concurrent calls share one append.

        Raises:
            TopicLostError: the hub no longer serves the topic.
            StaleEpochError: another hub has become the owner.
        """
        one = _Waiting(body)
        self._check(self.claim)
        with self._lock:
            self._check_open()
            self._waiting.append(one)
        # A cancelled caller must not cancel the append that others share.
        await async_finish(self._append)
        if one.error is not None:
            raise _own(one.error)
        return one.number

    def subscribe(
        self,
        subscriber: str,
        position: int,
        window: int,
        mark: _MarkCall,
        attempt: Attempt | None = None,
        bound: int | None = None,
        keep: Callable[[Message], bool] | None = None,
    ) -> AsyncSubscription:
        """Connect a subscriber at a position. Its previous connection ends.

        Args:
            subscriber: the subscriber.
            position: the last message that it does not get.
            window: the limit of delivered, unconsumed messages.
            mark: stores its consume mark.
            attempt: its attempt.
            bound: the limit of undelivered messages; older ones are skipped.
            keep: returns whether it gets a message; ``None`` for all messages.

        Raises:
            TopicLostError: the hub no longer serves the topic.
            SubscriberReplacedError: a later attempt of the same reader is connected.
        """
        made = AsyncSubscription(self, subscriber, position, window, mark, attempt, bound, keep)
        self._check(self.claim)
        with self._lock:
            self._check_open()
            before = self._subscriptions.get(subscriber)
            if before is not None and before.follows(made):
                raise _replaced(made)
            self._subscriptions[subscriber] = made
        self.use()
        if before is not None:
            before.end(_replaced(before))
        return made

    def unsubscribe(self, subscriber: str, error: MetadataStoreError | None = None) -> None:
        """End the connection of a subscriber, if there is one."""
        with self._lock:
            found = self._subscriptions.pop(subscriber, None)
        if found is not None:
            found.end(error)

    def disconnect(self, subscription: AsyncSubscription) -> None:
        """Forget a connection."""
        with self._lock:
            if self._subscriptions.get(subscription.subscriber) is subscription:
                del self._subscriptions[subscription.subscriber]
        self.use()

    async def close(self) -> None:
        """Accept no more messages, and return when all accepted ones are in the log."""
        with self._lock:
            self._closed = True
        await self._append()

    @property
    def ended(self) -> bool:
        """Whether it accepts no more messages."""
        return self._closed

    def end(self, error: MetadataStoreError) -> bool:
        """Accept no more messages, refuse those that wait, and end all subscriptions.

        Return whether the topic was open until now.
        """
        with self._lock:
            was_open, self._closed = not self._closed, True
            waiting, self._waiting = self._waiting, []
            for one in waiting:
                one.error = error
        self.disconnect_all(error)
        return was_open

    def disconnect_all(self, error: MetadataStoreError) -> None:
        """End the connections of all subscribers."""
        with self._lock:
            subscriptions, self._subscriptions = self._subscriptions, {}
        for subscription in subscriptions.values():
            subscription.end(error)

    def use(self) -> None:
        """Note that the topic is in use."""
        self._used = time.monotonic()

    def rate(self, now: float) -> None:
        """Measure the messages per second since the previous call."""
        with self._lock:
            then, count, _ = self._rated
            if now > then:
                self._rated = now, self._published, (self._published - count) / (now - then)

    @property
    def held(self) -> Held:
        """The state that decides whether the hub keeps the topic."""
        return Held(
            self.claim.topic,
            self._rated[2],
            len(self._subscriptions),
            self._claimed,
            self._used,
        )

    async def read(self, after: int, most: int) -> list[Message]:
        """Read messages from the log."""
        self._check(self.claim)
        return await self._logs.read(self.claim.topic, after, most)

    def _check_open(self) -> None:
        if self._closed:
            raise TopicLostError(f"this hub gives up topic {self.claim.topic!r:.200}: ask again")

    async def _append(self) -> None:
        """Append all waiting messages, unless another call has done so in the meantime."""
        async with self._gate:
            with self._lock:
                waiting, self._waiting = self._waiting, []
            if waiting:
                await self._append_all(waiting)

    async def _append_all(self, waiting: list[_Waiting]) -> None:
        try:
            last = await self._logs.append(self.claim, [one.body for one in waiting])
        except BaseException as error:
            for one in waiting:
                one.error = error
            if not isinstance(error, Exception):
                raise
            return
        for number, one in enumerate(waiting, last - len(waiting) + 1):
            one.number = number
        with self._lock:
            self.last = last
            self._published += len(waiting)
            subscriptions = [*self._subscriptions.values()]
        self.use()
        for subscription in subscriptions:
            subscription.wake()


_MarkCall = Callable[[int], Awaitable[object]]


class AsyncSubscription:
    """The connection of a subscriber to its topic, at the hub. One task (or thread) takes messages.

    It ends with an error when the hub loses or releases the topic. Then the subscriber must
    subscribe again, which ``AsyncTopicClient`` does automatically. Close it, or use it as a context
    manager.
    """

    def __init__(
        self,
        topic: AsyncOwnedTopic,
        subscriber: str,
        position: int,
        window: int,
        mark: _MarkCall,
        attempt: Attempt | None = None,
        bound: int | None = None,
        keep: Callable[[Message], bool] | None = None,
    ) -> None:
        self.subscriber = subscriber
        self._attempt = attempt
        self._topic = topic
        self._window = window
        self._bound = bound
        self._keep = keep
        self._mark = mark
        self._lock = threading.Lock()  # guards the following fields
        self._position = position  # the last message that was delivered or skipped
        self._unconsumed: deque[int] = deque()  # the numbers of the delivered messages
        self._wake = AsyncSignal()
        self._error: MetadataStoreError | None = None

    @property
    def topic(self) -> str:
        """The topic."""
        return self._topic.claim.topic

    async def take(self, most: int = _MOST, timeout: float | None = None) -> list[Message]:
        """Return the next messages, in order; wait for one if there is none.

        The window limits the delivered messages: call :meth:`consumed` to make room.

        Args:
            most: the most messages to return.
            timeout: seconds to wait; unlimited by default.

        Returns:
            the messages; empty if none arrived in that time.

        Raises:
            TopicLostError: the hub does not serve the topic, or no longer does.
            SubscriberReplacedError: the subscriber has subscribed again.
            IllegalOperationError: ``most`` is not an int from 1 on.
            MetadataStoreError: the log cannot be read.
        """
        if type(most) is not int or most < 1:  # It would wait for ever.
            raise IllegalOperationError(f"most must be an int from 1 on, not {most!r:.80}")
        deadline = Deadline(timeout)
        while True:
            wake, position, last, room = self._next(most)
            if room > 0 and position < last:
                # The log may already have messages that are still being published.
                messages = await self._topic.read(position, min(room, last - position))
                if not messages:
                    why = f"the log of topic {self.topic!r:.200} has no message {position + 1}"
                    raise MetadataStoreError(why)
                kept = self._deliver(position, messages)
                if kept or (kept is not None and deadline.passed):
                    return kept
            elif not await wake.wait(deadline.left()):
                return []

    async def consumed(self, number: int) -> None:
        """Confirm all messages up to a number, so that they need not be delivered again.

        If too many marks are unstored, the call returns when this one is stored.

        Raises:
            IllegalOperationError: there is no message with this number.
            TopicLostError: the hub no longer serves the topic.
            MetadataStoreError: the mark cannot be stored.
        """
        if type(number) is not int or not 0 <= number <= self._topic.last:
            last = self._topic.last
            raise IllegalOperationError(
                f"topic {self.topic!r:.200} has messages 1 to {last}, not {number!r:.80}"
            )
        with self._lock:
            if self._error is not None:
                raise _own(self._error)
            self._position = max(self._position, number)
            while self._unconsumed and self._unconsumed[0] <= number:
                self._unconsumed.popleft()
        self.wake()
        await self._mark(number)

    async def close(self) -> None:
        """End the connection. The subscription stays."""
        self._topic.disconnect(self)
        self.end(None)

    def follows(self, other: AsyncSubscription) -> bool:
        """Return whether it is a later attempt of the reader that made another subscription."""
        mine, its = self._attempt, other._attempt
        return mine is not None and its is not None and mine > its and mine.reader == its.reader

    def wake(self) -> None:
        """Make waiting calls check again."""
        with self._lock:
            wake = self._wake
        wake.set()

    def end(self, error: MetadataStoreError | None) -> None:
        """End the subscription; later calls raise the error."""
        with self._lock:
            if self._error is None:
                self._error = error or TopicLostError(
                    f"the connection of {self.subscriber!r:.200} to {self.topic!r:.200} was closed"
                )
        self.wake()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _next(self, most: int) -> tuple[AsyncSignal, int, int, int]:
        """Return what a call needs to take messages.

        That is a signal for new messages, the position, the last message, and the most to read.
        """
        with self._lock:
            if self._error is not None:
                raise _own(self._error)
            if self._wake.is_set():
                self._wake = AsyncSignal()
            last = self._topic.last
            if self._bound is not None:
                self._position = max(self._position, last - self._bound)
            room = min(most, self._window - len(self._unconsumed))
            return self._wake, self._position, last, room

    def _deliver(self, position: int, messages: list[Message]) -> list[Message] | None:
        """Note the delivery of messages; return those to deliver, or ``None`` if none may be."""
        kept = messages if self._keep is None else [*filter(self._keep, messages)]
        with self._lock:
            if self._error is not None or self._position != position:
                return None
            self._position = messages[-1].number
            self._unconsumed += [message.number for message in kept]
            return kept


def _own(error: BaseException) -> BaseException:
    """Return a copy for one caller: an error raised in several would collect their tracebacks."""
    own = copy.copy(error)
    own.__cause__ = error.__cause__
    return own


def _replaced(subscription: AsyncSubscription) -> SubscriberReplacedError:
    return SubscriberReplacedError(
        f"{subscription.subscriber!r:.200} has subscribed to {subscription.topic!r:.200} again"
    )
