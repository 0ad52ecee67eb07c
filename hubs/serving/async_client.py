# async:
# `_sync/client.py` is generated from this file: after a change, run `python tools/faces.py`.
# end
"""A client that publishes and subscribes, and follows topics from hub to hub."""

from __future__ import annotations

import itertools
import random
import threading
import time
import uuid
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, NoReturn, Protocol, Self, TypeAlias, TypeVar

from ...batching.async_background import AsyncSignal
from ...batching.settings import check_seconds
from ...coordination.deadlines import Deadline
from ...ops.backoff import Backoff
from ...ops.errors import (
    InvalidSettingError,
    MetadataStoreError,
    OperationTimeoutError,
    SessionLostError,
    StoreClosedError,
    passes,
)
from ...ops.log import get_logger
from ..errors import (
    IllegalOperationError,
    NoHubError,
    NoSubscriptionStateError,
    SubscriberReplacedError,
    TooManyRedirectsError,
)
from ..managers.data import SubscriptionPreferences
from ..names import name_text
from .async_outages import AsyncOutages, AsyncSearch
from .errors import reader_closed
from .messages import Attempt, Message, Published, Redirect, SubscribeMode

__all__ = ["AsyncConnect", "AsyncDelivery", "AsyncHubConnection", "AsyncReader", "AsyncTopicClient"]

T = TypeVar("T")

log = get_logger("batchkeeper.hubs")

_BACKOFF: Final = Backoff(first=0.02, longest=1.0)
_MOST: Final = 100
# Seconds for which a hub that has not answered is not asked first.
_AVOIDED: Final = 3.0
# The limit of hubs that a client remembers from redirects.
_LEARNED: Final = 100
# Seconds for a closing reader to send its last consume mark.
_CLOSING: Final = 5.0


class AsyncDelivery(Protocol):
    """The connection of a subscriber, such as ``Subscription``."""

    async def take(self, most: int = _MOST, timeout: float | None = None) -> list[Message]:
        """Return the next messages."""

    async def consumed(self, number: int) -> None:
        """Confirm all messages up to a number."""

    async def close(self) -> None:
        """End the connection."""


class AsyncHubConnection(Protocol):
    """A hub as a client sees it: a ``TopicHub`` itself, or a connection to one.

    A call that cannot reach the hub raises ``OSError``, within a bounded time.
    """

    async def publish(
        self, publisher: str, topic: str | bytes, message: bytes, redirected: bool = False
    ) -> Published | Redirect:
        """Accept a message, or redirect to the hub that does."""

    async def subscribe(
        self,
        subscriber: str | bytes,
        topic: str | bytes,
        redirected: bool = False,
        mode: SubscribeMode = "create_or_attach",
        preferences: SubscriptionPreferences | None = None,
        attempt: Attempt | None = None,
    ) -> AsyncDelivery | Redirect:
        """Connect a subscriber, or redirect to the hub that does."""

    async def unsubscribe(
        self, subscriber: str | bytes, topic: str | bytes, redirected: bool = False
    ) -> bool | Redirect:
        """Remove a subscription, or redirect to the hub that does."""


#: Returns a connection to the hub at an address. The client calls it for each request.
AsyncConnect: TypeAlias = Callable[[str], Awaitable[AsyncHubConnection]]

_Ask = Callable[[AsyncHubConnection, bool], Awaitable[T | Redirect]]


class AsyncTopicClient:
    """A client of the hubs of a region. Any number of threads or tasks can share it.

    A call asks the hub that last served the topic, or any hub that the client knows, and follows
    redirects. If a hub does not answer, or has lost the topic, the call starts over after a pause,
    until its timeout expires. If no given hub answers, it asks those to which it was redirected.

    Args:
        connect: returns a connection to the hub at an address.
        hubs: the addresses of some hubs to start with; or a function that returns those of all live
            hubs, such as ``hosts.hubs`` of the region's ``Hosts``.
        timeout: seconds for each call.
        most_redirects: the limit of consecutive redirects. At the limit, or in a redirect loop, the
            client pauses and starts over: the owner may be changing.

    Raises:
        InvalidSettingError: an argument is out of its range.
    """

    def __init__(
        self,
        connect: AsyncConnect,
        hubs: Sequence[str] | Callable[[], Awaitable[Iterable[str]]],
        timeout: float = 60.0,
        most_redirects: int = 5,
    ) -> None:
        if not callable(hubs):
            if not hubs or isinstance(hubs, str):
                raise InvalidSettingError(f"hubs must be some addresses, not {hubs!r:.80}")
            hubs = [*hubs]
        if type(most_redirects) is not int or most_redirects < 1:
            raise InvalidSettingError(
                f"most_redirects must be an int from 1 on, not {most_redirects!r:.80}"
            )
        self._connect = connect
        self._hubs = hubs
        self._timeout = check_seconds("timeout", timeout)
        self._most = most_redirects
        self._outages = AsyncOutages()
        self._lock = threading.Lock()  # guards the following fields
        self._known: dict[str, str] = {}  # the last known hub of a topic
        self._avoided: dict[str, float] = {}  # until when other hubs are preferred
        self._learned: dict[str, None] = {}  # hubs to which others have redirected, newest last

    async def publish(
        self,
        publisher: str,
        topic: str | bytes,
        message: bytes,
        timeout: float | None = None,
    ) -> Published:
        """Publish a message, and return its position when it is in the log.

        If an answer is lost, the message is published again, so the log may have it twice.

        Raises:
            AccessDeniedError: an access rule does not allow it.
            TooManyRedirectsError: the hubs kept redirecting the client until the timeout.
            OperationTimeoutError: no hub accepted it in time. The error's cause says why.
            MetadataStoreError: a hub has refused it permanently.
        """

        async def ask(hub: AsyncHubConnection, redirected: bool) -> Published | Redirect:
            return await hub.publish(publisher, topic, message, redirected)

        return await self._ask(topic, ask, self._deadline(timeout))

    async def subscribe(
        self,
        subscriber: str | bytes,
        topic: str | bytes,
        mode: SubscribeMode = "create_or_attach",
        preferences: SubscriptionPreferences | None = None,
        timeout: float | None = None,
    ) -> AsyncReader:
        """Subscribe, and return a reader, which follows the topic from hub to hub.

        With the mode ``"create"``, ``SubscriptionStateExistsError`` can mean that an earlier
        attempt of the same call created the subscription, and its answer was lost.

        Raises:
            SubscriptionStateExistsError: the mode is ``"create"``, and the subscription exists.
            NoSubscriptionStateError: the mode is ``"attach"``, and there is no subscription.
            MetadataStoreError: as with :meth:`publish`.
        """
        again = partial(self._attach, subscriber, topic, _attempts())
        first = await again(self._deadline(timeout), None, mode, preferences)
        return AsyncReader(first, again)

    async def unsubscribe(
        self, subscriber: str | bytes, topic: str | bytes, timeout: float | None = None
    ) -> bool:
        """Remove a subscription; return whether it existed.

        Raises:
            MetadataStoreError: as with :meth:`publish`.
        """

        async def ask(hub: AsyncHubConnection, redirected: bool) -> bool | Redirect:
            return await hub.unsubscribe(subscriber, topic, redirected)

        return await self._ask(topic, ask, self._deadline(timeout))

    async def _attach(
        self,
        subscriber: str | bytes,
        topic: str | bytes,
        attempts: Iterator[Attempt],
        deadline: Deadline,
        ended: AsyncSignal | None,
        mode: SubscribeMode = "attach",
        preferences: SubscriptionPreferences | None = None,
    ) -> AsyncDelivery:
        async def ask(hub: AsyncHubConnection, redirected: bool) -> AsyncDelivery | Redirect:
            return await hub.subscribe(
                subscriber, topic, redirected, mode, preferences, next(attempts)
            )

        return await self._ask(topic, ask, deadline, ended)

    async def _ask(
        self,
        topic: str | bytes,
        ask: _Ask[T],
        deadline: Deadline,
        ended: AsyncSignal | None = None,
    ) -> T:
        """Ask hubs until one answers, or the caller is closed."""
        name = name_text(topic)
        search = AsyncSearch(self._outages, deadline, ended)
        with self._lock:
            address = self._known.get(name)
            if address is not None and self._avoided.get(address, 0.0) > time.monotonic():
                address = None  # Any other hub knows whether it still owns the topic.
        try:
            while True:
                chain = [] if address is None else [address]
                try:
                    if not chain:
                        chain.append(await self._any())
                    answer = await self._follow(chain, ask)
                except (MetadataStoreError, OSError) as error:
                    self._forget(name)
                    if not passing(error):
                        raise
                    failure: MetadataStoreError | OSError = error
                else:
                    with self._lock:
                        self._known[name] = chain[-1]
                    return answer
                if deadline.passed:
                    _give_up(name, failure)
                owner = None
                if isinstance(failure, OSError) and chain:
                    self._avoid(chain[-1])
                    if address is not None or len(chain) > 1:
                        owner = chain[-1]
                await search.pause(owner)
                address = None
        finally:
            search.end()

    async def _follow(self, chain: list[str], ask: _Ask[T]) -> T:
        """Ask a hub, and follow its redirects; the last hub of the chain has answered.

        Raises:
            TooManyRedirectsError: there was a redirect loop, or too many redirects.
        """
        while True:
            answer = await ask(await self._connect(chain[-1]), len(chain) > 1)
            if not isinstance(answer, Redirect):
                return answer
            address = answer.hub.address
            if address in chain or len(chain) > self._most:
                way = " -> ".join([*chain, address])
                raise TooManyRedirectsError(f"the hubs send the client on and on: {way:.500}")
            chain.append(address)
            with self._lock:
                self._learned.pop(address, None)
                self._learned[address] = None
                if len(self._learned) > _LEARNED:
                    del self._learned[next(iter(self._learned))]

    async def _any(self) -> str:
        """Return a hub to start with, preferably one that has not failed to answer recently.

        Each call to an unresponsive hub takes the whole request timeout.
        """
        given = [*(await self._hubs() if callable(self._hubs) else self._hubs)]
        now = time.monotonic()
        with self._lock:
            known = [*given, *self._learned]
            good = [hub for hub in known if self._avoided.get(hub, now) <= now]
        if not known:
            raise NoHubError("no hub is known: none is alive, and no other has named one")
        # Hubs to which others have redirected are asked if none of the given ones answers.
        best = [hub for hub in given if hub in good]
        return random.choice(best or good or known)  # noqa: S311 - no secret

    def _avoid(self, address: str) -> None:
        with self._lock:
            self._avoided[address] = time.monotonic() + _AVOIDED

    def _forget(self, name: str) -> None:
        with self._lock:
            self._known.pop(name, None)

    def _deadline(self, timeout: float | None) -> Deadline:
        return Deadline(self._timeout if timeout is None else timeout)


class AsyncReader:
    """Reads the messages of a subscription, from whichever hub serves its topic.

    When its hub crashes, loses or releases the topic, the reader resubscribes automatically, and
    continues after the last message that it returned. One task (or thread) takes messages. Close
    it, or use it as a context manager; the subscription stays.

    After a restart, the subscriber gets messages again if they were not consumed, or if their
    consume mark was not stored yet.
    """

    def __init__(
        self,
        first: AsyncDelivery,
        again: Callable[[Deadline, AsyncSignal | None], Awaitable[AsyncDelivery]],
    ) -> None:
        self._again = again
        self._attempts = 0
        self._ended = AsyncSignal()  # ends the search for a hub, too
        self._lock = threading.Lock()  # guards the following fields
        self._delivery: AsyncDelivery | None = first
        self._returned = 0  # the last message returned
        self._consumed = 0
        self._acknowledged = 0  # the part of it that the hub of the delivery knows
        self._superseded = False  # another one has subscribed, or the subscription is gone

    async def take(self, most: int = _MOST, timeout: float | None = None) -> list[Message]:
        """Return the next messages, in order; wait for one if there is none.

        Args:
            most: the most messages to return.
            timeout: seconds to wait; unlimited by default. Outages count as waiting.

        Returns:
            the messages; empty if none arrived in that time.

        Raises:
            SubscriberReplacedError: the subscriber has subscribed elsewhere.
            NoSubscriptionStateError: the subscription was removed.
            StoreClosedError: the reader was closed.
            MetadataStoreError: a hub has refused the subscriber permanently.
        """
        deadline = Deadline(timeout)
        while True:
            try:
                delivery = await self._connected(deadline)
                messages = await delivery.take(most, deadline.left())
                self._attempts = 0
            except (MetadataStoreError, OSError) as error:
                self._drop()
                if self._ended.is_set():
                    raise reader_closed() from error
                if not passing(error):
                    self._note_end(error)
                    raise
                if not deadline.passed:
                    await self._ended.wait(deadline.within(_BACKOFF.pause(self._attempts)))
                    self._attempts += 1
                messages = []
            with self._lock:
                # After resubscribing, some may come again.
                fresh = [message for message in messages if message.number > self._returned]
                if fresh:
                    self._returned = fresh[-1].number
            if fresh or deadline.passed:
                return fresh

    async def consumed(self, number: int) -> None:
        """Confirm all messages up to a number, so that they need not be delivered again.

        If the hub cannot be reached, the mark is sent with the next ``take``, or on ``close``.

        Raises:
            IllegalOperationError: there is no message with this number. If no hub can be reached,
                the next call of :meth:`take` raises it.
            MetadataStoreError: the mark cannot be stored.
        """
        if type(number) is not int or number < 0:
            raise IllegalOperationError(f"no number of a message: {number!r:.80}")
        with self._lock:
            self._consumed = max(self._consumed, number)
            delivery = self._delivery
        if delivery is None:
            return
        try:
            await self._send_consumed(delivery, number)
        except (MetadataStoreError, OSError) as error:
            if not passing(error):
                self._note_end(error)
                raise

    def _note_end(self, error: Exception) -> None:
        """Note that it must not subscribe again: that would end the connection of another one."""
        if isinstance(error, SubscriberReplacedError | NoSubscriptionStateError):
            self._superseded = True

    async def close(self, timeout: float = _CLOSING) -> None:
        """End the reader. The subscription stays. Closing twice is harmless.

        Sends the last consume mark, if it could not be sent earlier.

        Args:
            timeout: seconds to try. After that, a log message says that consumed messages will be
                delivered again.
        """
        with self._lock:
            closed = self._ended.is_set()
            self._ended.set()
            delivery, self._delivery = self._delivery, None
            consumed = self._consumed
            behind = not (closed or self._superseded) and consumed > self._acknowledged
        if delivery is not None:
            await _end(delivery)
        if behind:
            try:
                delivery = await self._again(Deadline(timeout), None)
                try:
                    await self._send_consumed(delivery, consumed)
                finally:
                    await _end(delivery)
            except (MetadataStoreError, OSError) as error:
                log.warning("a consume mark is lost", number=consumed, reason=str(error))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _connected(self, deadline: Deadline) -> AsyncDelivery:
        with self._lock:
            self._check_open()
            delivery = self._delivery
        if delivery is None:
            delivery = await self._again(deadline, self._ended)
            with self._lock:
                closed = self._ended.is_set()
                if not closed:
                    self._delivery, self._acknowledged = delivery, 0
            if closed:
                await _end(delivery)
                self._check_open()
        with self._lock:
            consumed = self._consumed if self._consumed > self._acknowledged else None
        if consumed is not None:  # The hub has not confirmed the mark.
            await self._send_consumed(delivery, consumed)
        return delivery

    async def _send_consumed(self, delivery: AsyncDelivery, number: int) -> None:
        """Send the consume mark to a hub."""
        try:
            await delivery.consumed(number)
        except IllegalOperationError:
            with self._lock:  # Otherwise, it would fail each later connection.
                if self._consumed == number:
                    self._consumed = self._acknowledged
            raise
        with self._lock:
            if self._delivery is delivery:
                self._acknowledged = max(self._acknowledged, number)

    def _check_open(self) -> None:
        if self._ended.is_set():
            raise reader_closed()

    def _drop(self) -> None:
        with self._lock:
            self._delivery = None


def _attempts() -> Iterator[Attempt]:
    """Return the attempts of one reader."""
    reader = uuid.uuid4().hex
    return (Attempt(reader, number) for number in itertools.count(1))


def _give_up(name: str, failure: MetadataStoreError | OSError) -> NoReturn:
    """Raise the error of a call that has timed out."""
    if isinstance(failure, TooManyRedirectsError):
        raise failure
    why = f"no hub could serve topic {name!r:.200} in time: {failure}"
    raise OperationTimeoutError(why) from failure


def passing(error: MetadataStoreError | OSError) -> bool:
    """Return whether another attempt, or another hub, may succeed."""
    if not isinstance(error, MetadataStoreError):
        return True
    return passes(error) or isinstance(error, SessionLostError | StoreClosedError)


async def _end(delivery: AsyncDelivery) -> None:
    # Otherwise, the hub has ended it, or will when the connection ends.
    with suppress(MetadataStoreError, OSError):
        await delivery.close()
