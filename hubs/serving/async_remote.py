# async:
# `_sync/remote.py` is generated from this file: after a change, run `python tools/faces.py`.
# end
"""Hubs that clients reach over TCP; ``protocol.py`` defines the messages."""

from __future__ import annotations

import asyncio
import os
import threading
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, Self

from ...batching.settings import check_seconds
from ...coordination.async_background import AsyncGate, AsyncSignal, async_spawn
from ...coordination.deadlines import Deadline
from ...ops.errors import MetadataStoreError
from ..errors import IllegalOperationError
from ..managers.data import SubscriptionPreferences
from ..names import name_text
from .async_frames import AsyncFrames, async_connect
from .errors import check_message, of_parent
from .messages import Attempt, Message, Published, Redirect, SubscribeMode
from .protocol import Frame, decoded, encoded, error_in

__all__ = ["AsyncHubConnections", "AsyncRemoteHub", "AsyncRemoteSubscription"]

# The longest time in seconds that one request waits for messages, as on the server.
_POLL: Final = 5.0


class AsyncHubConnections:
    """Connects a client to hubs, with one connection per address. Close it at the end.

    Pass it to ``AsyncTopicClient`` as ``connect``::

        async with AsyncHubConnections() as connections:
            client = AsyncTopicClient(connections, ["hub-1:4080", "hub-2:4080"])

    A forked child opens its own connections.

    Args:
        timeout: seconds for each request.

    Raises:
        InvalidSettingError: ``timeout`` is not a number of seconds.
    """

    def __init__(self, timeout: float = 10.0) -> None:
        self._timeout = check_seconds("timeout", timeout)
        self._closed = False
        self._begin()

    def _begin(self) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()  # guards the field
        self._hubs: dict[str, AsyncRemoteHub] = {}

    async def __call__(self, address: str) -> AsyncRemoteHub:
        """Return the hub at an address. The connection is opened on first use.

        Raises:
            ConnectionAbortedError: the connections were closed.
        """
        if os.getpid() != self._process:  # The lock may be held for ever.
            self._begin()
        with self._lock:
            if self._closed:
                raise ConnectionAbortedError("the connections were closed")
            hub = self._hubs.get(address)
            if hub is None:
                hub = self._hubs[address] = AsyncRemoteHub(address, self._timeout)
        return hub

    async def close(self) -> None:
        """End all connections. Running requests raise ``OSError``."""
        if os.getpid() != self._process:
            self._begin()
        with self._lock:
            self._closed = True
            hubs, self._hubs = self._hubs, {}
        for hub in hubs.values():
            hub.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class AsyncRemoteHub:
    """A hub over TCP, with the methods of ``AsyncTopicHub`` for clients.

    A request without an answer raises ``OSError``; the hub may have executed it. Errors of the hub
    arrive as the same class. All requests share one connection, which is opened by the first
    request, and again after a failure.

    Args:
        address: the address, such as ``"hub-1:4080"``.
        timeout: seconds for each request.

    Raises:
        InvalidSettingError: ``timeout`` is not a number of seconds.
    """

    def __init__(self, address: str, timeout: float = 10.0) -> None:
        self.address = address
        self._timeout = check_seconds("timeout", timeout)
        self._process = os.getpid()
        self._gate = AsyncGate()  # Held while connecting.
        self._lock = threading.Lock()  # guards the following fields
        self._connection: _Connection | None = None
        self._closed = False
        # Guarded by the gate: the number of failed attempts to connect, and the last error.
        self._failures = 0
        self._failure = ""

    async def publish(
        self, publisher: str, topic: str | bytes, message: bytes, redirected: bool = False
    ) -> Published | Redirect:
        """See ``AsyncTopicHub.publish``.

        Raises:
            ValueTooLargeError: the message does not fit into a frame of 16 MiB.
        """
        check_message(message)
        connection, answer = await self._call(
            "publish",
            who=publisher,
            topic=name_text(topic),
            redirected=redirected,
            body=b64encode(message).decode(),
        )
        with connection.reading():
            return answer.redirect or answer.published

    async def subscribe(
        self,
        subscriber: str | bytes,
        topic: str | bytes,
        redirected: bool = False,
        mode: SubscribeMode = "create_or_attach",
        preferences: SubscriptionPreferences | None = None,
        attempt: Attempt | None = None,
    ) -> AsyncRemoteSubscription | Redirect:
        """See ``AsyncTopicHub.subscribe``."""
        connection, answer = await self._call(
            "subscribe",
            who=name_text(subscriber),
            topic=name_text(topic),
            redirected=redirected,
            mode=mode,
            preferences=None if preferences is None else preferences.members(),
            attempt=attempt,
        )
        with connection.reading():
            if (redirect := answer.redirect) is not None:
                return redirect
            number = answer.number("subscription")
        return AsyncRemoteSubscription(connection, number, self._timeout)

    async def unsubscribe(
        self, subscriber: str | bytes, topic: str | bytes, redirected: bool = False
    ) -> bool | Redirect:
        """See ``AsyncTopicHub.unsubscribe``."""
        connection, answer = await self._call(
            "unsubscribe",
            who=name_text(subscriber),
            topic=name_text(topic),
            redirected=redirected,
        )
        with connection.reading():
            return answer.redirect or answer.flag("removed")

    def close(self) -> None:
        """End the connection permanently. Running requests raise ``OSError``."""
        if os.getpid() != self._process:  # It is the parent's, and the lock may be held for ever.
            return
        with self._lock:
            self._closed = True
            connection, self._connection = self._connection, None
        if connection is not None:
            connection.end("was closed")

    async def _call(self, call: str, **members: Any) -> tuple[_Connection, Frame]:
        """Send a request, and return the connection and the answer.

        Raises:
            OSError: there was no answer in time.
            MetadataStoreError: the hub has refused it.
        """
        deadline = Deadline(self._timeout)
        connection = await self._connected(deadline)
        return connection, await connection.call(deadline, call, members)

    async def _connected(self, deadline: Deadline) -> _Connection:
        connection = self._present()
        if connection is not None:
            return connection
        failures = self._failures
        if not await self._gate.enter(deadline.left()):
            raise TimeoutError(f"hub {self.address} was not reached in time")
        try:
            connection = self._present()
            if connection is not None:  # Another call has opened it meanwhile.
                return connection
            if self._failures != failures:
                # Thousands of calls may need a hub that has crashed. All calls that arrive during
                # an attempt share its result; otherwise, they would try one after the other.
                raise ConnectionAbortedError(f"{self.address} is not reached: {self._failure}")
            try:
                frames = await async_connect(self.address, deadline.left())
            except OSError as error:
                self._failures += 1
                self._failure = str(error)
                raise
            made = _Connection(self.address, frames)
            with self._lock:
                closed = self._closed
                if not closed:
                    self._connection = made
            if closed:
                made.end("was closed")
            made.start()
            return made
        finally:
            self._gate.leave()

    def _present(self) -> _Connection | None:
        if os.getpid() != self._process:  # The lock and the gate may be held for ever.
            raise of_parent(self.address)
        with self._lock:
            if self._closed:
                raise ConnectionAbortedError(f"the connection to {self.address} was closed")
            if self._connection is not None and self._connection.ended:
                self._connection = None
            return self._connection


class AsyncRemoteSubscription:
    """The connection of a subscriber to a hub over TCP.

    It ends with its connection, or when one of its requests gets no answer, because the answer may
    have had messages. All later calls then raise ``OSError``. Subscribe again to get the unconsumed
    messages again.
    """

    def __init__(self, connection: _Connection, number: int, timeout: float) -> None:
        self._connection = connection
        self._number = number
        self._timeout = timeout
        self._poll = min(_POLL, timeout / 2)  # The answer must arrive in time.
        self._rest: list[Message] = []  # More than the last call asked for.
        self._failed = False
        # async:
        self._taking: asyncio.Task[list[Message]] | None = None
        # end

    async def take(self, most: int = 100, timeout: float | None = None) -> list[Message]:
        """See ``AsyncSubscription.take``. After a cancel, the next call has the messages."""
        deadline = Deadline(timeout)
        while not self._rest:
            left = deadline.within(self._poll)
            # async:
            # A cancelled call leaves the request running, because its answer has messages.
            taking = self._taking
            if taking is None:
                taking = self._taking = asyncio.create_task(self._take(most, left))
                taking.add_done_callback(_retrieve_error)
            await asyncio.wait([taking])
            if self._taking is taking:
                self._taking = None
                self._rest += taking.result()
            # sync:
            # | self._rest = self._take(most, left)
            # end
            if deadline.passed:
                break
        messages, self._rest = self._rest[:most], self._rest[most:]
        return messages

    async def consumed(self, number: int) -> None:
        """See ``AsyncSubscription.consumed``."""
        await self._call("consumed", number=number)

    async def close(self) -> None:
        """End the connection of the subscriber. The subscription stays."""
        if not self._connection.ended:  # Otherwise, the hub has ended it.
            await self._call("close")

    async def _take(self, most: int, timeout: float) -> list[Message]:
        if self._failed:
            raise ConnectionResetError("an answer with messages was lost: subscribe again")
        try:
            answer = await self._call("take", most=most, timeout=timeout)
            with self._connection.reading():
                return answer.messages
        except MetadataStoreError:
            raise
        except BaseException:
            self._failed = True
            raise

    async def _call(self, call: str, **members: Any) -> Frame:
        deadline = Deadline(self._timeout)
        return await self._connection.call(
            deadline, call, {"subscription": self._number, **members}
        )


class _Answer:
    """The place where the answer to a request arrives."""

    __slots__ = ("arrived", "frame")

    def __init__(self) -> None:
        self.arrived = AsyncSignal()
        self.frame: Frame | None = None  # None if the connection has ended


class _Connection:
    """A connection to a hub, from its beginning to its end."""

    def __init__(self, address: str, frames: AsyncFrames) -> None:
        self._address = address
        self._frames = frames
        self._process = os.getpid()
        self._lock = threading.Lock()  # guards the following fields
        self._waiting: dict[int, _Answer] = {}
        self._last = 0
        self._heard = 0  # The number of frames received.
        self._why = ""  # Why it has ended.

    @property
    def ended(self) -> bool:
        """Whether the connection has ended, or belongs to the parent of this process."""
        return bool(self._why) or os.getpid() != self._process

    def start(self) -> None:
        """Start to read answers."""
        try:
            async_spawn(f"connection to {self._address}", self._read)
        except BaseException:  # No thread is left.
            self._frames.close()
            raise

    async def call(self, deadline: Deadline, call: str, members: dict[str, Any]) -> Frame:
        """Send a request, and return its answer.

        Raises:
            OSError: there was no answer in time.
            MetadataStoreError: the hub has refused it.
        """
        number, answer, heard = self._begin()
        try:
            await self._frames.write(encoded({"id": number, "call": call, **members}))
            if not await answer.arrived.wait(deadline.left()):
                if heard == self._heard:  # No other request was answered either.
                    self.end("does not answer")
                raise TimeoutError(f"hub {self._address} has not answered in time")
        except BaseException:
            if call == "subscribe":
                self._abandon(number)
            raise
        finally:
            with self._lock:
                self._waiting.pop(number, None)
        if answer.frame is None:
            raise self._over()
        with self.reading():
            error = error_in(answer.frame)
        if error is not None:
            raise error
        return answer.frame

    def end(self, why: str) -> None:
        """End the connection. Running requests get an error."""
        with self._lock:
            self._why = self._why or why
            waiting, self._waiting = self._waiting, {}
        self._frames.cut()
        for answer in waiting.values():
            answer.arrived.set()

    @contextmanager
    def reading(self) -> Iterator[None]:
        """End the connection if the body cannot read an answer.

        Raises:
            ConnectionAbortedError: the answer is invalid.
        """
        try:
            yield
        except IllegalOperationError as error:
            why = "gives answers that are none"
            self.end(why)
            raise ConnectionAbortedError(f"hub {self._address} {why}: {error}") from error

    def _begin(self) -> tuple[int, _Answer, int]:
        if os.getpid() != self._process:  # The lock may be held for ever.
            raise of_parent(self._address)
        answer = _Answer()
        with self._lock:
            if self._why:
                raise self._over()
            self._last += 1
            self._waiting[self._last] = answer
            return self._last, answer, self._heard

    async def _read(self) -> None:
        why = "was closed by the hub"
        try:
            while True:
                self._arrived(decoded(await self._frames.read()))
        except OSError as error:
            why = f"has failed: {error}"
        finally:
            self.end(why)
            self._frames.close()

    def _arrived(self, frame: Frame) -> None:
        with self._lock:
            self._heard += 1
            answer = self._waiting.get(frame.id)
        if answer is not None:  # Otherwise, no call waits for it.
            answer.frame = frame
            answer.arrived.set()

    def _abandon(self, number: int) -> None:
        """Make the hub close a subscription whose answer no call received."""
        if self.ended:
            return
        with self._lock:
            self._last += 1
            frame = {"id": self._last, "call": "close", "subscription": number}
        async_spawn("close of a subscription", self._send, encoded(frame))

    async def _send(self, frame: bytes) -> None:
        with suppress(OSError):  # Then the hub has closed it.
            await self._frames.write(frame)

    def _over(self) -> ConnectionResetError:
        return ConnectionResetError(f"the connection to {self._address} {self._why}")


# async:
def _retrieve_error(task: asyncio.Task[list[Message]]) -> None:
    """Retrieve the error of a request whose caller has gone: asyncio would log it."""
    if not task.cancelled():
        task.exception()


# end
