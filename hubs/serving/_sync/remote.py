# Made from async_remote.py by `python tools/faces.py`: change that file, and run this command.
"""Hubs that clients reach over TCP; ``protocol.py`` defines the messages."""

from __future__ import annotations

import os
import threading
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, Self

from ....batching.settings import check_seconds
from ....coordination.background import Gate, Signal, spawn
from ....coordination.deadlines import Deadline
from ....ops.errors import MetadataStoreError
from ...errors import IllegalOperationError
from ...managers.data import SubscriptionPreferences
from ...names import name_text
from ..errors import check_message, of_parent
from ..frames import Frames, connect
from ..messages import Attempt, Message, Published, Redirect, SubscribeMode
from ..protocol import Frame, decoded, encoded, error_in

__all__ = ["HubConnections", "RemoteHub", "RemoteSubscription"]

# The longest time in seconds that one request waits for messages, as on the server.
_POLL: Final = 5.0


class HubConnections:
    """Connects a client to hubs, with one connection per address. Close it at the end.

    Pass it to ``TopicClient`` as ``connect``::

        async with HubConnections() as connections:
            client = TopicClient(connections, ["hub-1:4080", "hub-2:4080"])

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
        self._hubs: dict[str, RemoteHub] = {}

    def __call__(self, address: str) -> RemoteHub:
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
                hub = self._hubs[address] = RemoteHub(address, self._timeout)
        return hub

    def close(self) -> None:
        """End all connections. Running requests raise ``OSError``."""
        if os.getpid() != self._process:
            self._begin()
        with self._lock:
            self._closed = True
            hubs, self._hubs = self._hubs, {}
        for hub in hubs.values():
            hub.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class RemoteHub:
    """A hub over TCP, with the methods of ``TopicHub`` for clients.

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
        self._gate = Gate()  # Held while connecting.
        self._lock = threading.Lock()  # guards the following fields
        self._connection: _Connection | None = None
        self._closed = False
        # Guarded by the gate: the number of failed attempts to connect, and the last error.
        self._failures = 0
        self._failure = ""

    def publish(
        self, publisher: str, topic: str | bytes, message: bytes, redirected: bool = False
    ) -> Published | Redirect:
        """See ``TopicHub.publish``.

        Raises:
            ValueTooLargeError: the message does not fit into a frame of 16 MiB.
        """
        check_message(message)
        connection, answer = self._call(
            "publish",
            who=publisher,
            topic=name_text(topic),
            redirected=redirected,
            body=b64encode(message).decode(),
        )
        with connection.reading():
            return answer.redirect or answer.published

    def subscribe(
        self,
        subscriber: str | bytes,
        topic: str | bytes,
        redirected: bool = False,
        mode: SubscribeMode = "create_or_attach",
        preferences: SubscriptionPreferences | None = None,
        attempt: Attempt | None = None,
    ) -> RemoteSubscription | Redirect:
        """See ``TopicHub.subscribe``."""
        connection, answer = self._call(
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
        return RemoteSubscription(connection, number, self._timeout)

    def unsubscribe(
        self, subscriber: str | bytes, topic: str | bytes, redirected: bool = False
    ) -> bool | Redirect:
        """See ``TopicHub.unsubscribe``."""
        connection, answer = self._call(
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

    def _call(self, call: str, **members: Any) -> tuple[_Connection, Frame]:
        """Send a request, and return the connection and the answer.

        Raises:
            OSError: there was no answer in time.
            MetadataStoreError: the hub has refused it.
        """
        deadline = Deadline(self._timeout)
        connection = self._connected(deadline)
        return connection, connection.call(deadline, call, members)

    def _connected(self, deadline: Deadline) -> _Connection:
        connection = self._present()
        if connection is not None:
            return connection
        failures = self._failures
        if not self._gate.enter(deadline.left()):
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
                frames = connect(self.address, deadline.left())
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


class RemoteSubscription:
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

    def take(self, most: int = 100, timeout: float | None = None) -> list[Message]:
        """See ``Subscription.take``. After a cancel, the next call has the messages."""
        deadline = Deadline(timeout)
        while not self._rest:
            left = deadline.within(self._poll)
            self._rest = self._take(most, left)
            if deadline.passed:
                break
        messages, self._rest = self._rest[:most], self._rest[most:]
        return messages

    def consumed(self, number: int) -> None:
        """See ``Subscription.consumed``."""
        self._call("consumed", number=number)

    def close(self) -> None:
        """End the connection of the subscriber. The subscription stays."""
        if not self._connection.ended:  # Otherwise, the hub has ended it.
            self._call("close")

    def _take(self, most: int, timeout: float) -> list[Message]:
        if self._failed:
            raise ConnectionResetError("an answer with messages was lost: subscribe again")
        try:
            answer = self._call("take", most=most, timeout=timeout)
            with self._connection.reading():
                return answer.messages
        except MetadataStoreError:
            raise
        except BaseException:
            self._failed = True
            raise

    def _call(self, call: str, **members: Any) -> Frame:
        deadline = Deadline(self._timeout)
        return self._connection.call(deadline, call, {"subscription": self._number, **members})


class _Answer:
    """The place where the answer to a request arrives."""

    __slots__ = ("arrived", "frame")

    def __init__(self) -> None:
        self.arrived = Signal()
        self.frame: Frame | None = None  # None if the connection has ended


class _Connection:
    """A connection to a hub, from its beginning to its end."""

    def __init__(self, address: str, frames: Frames) -> None:
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
            spawn(f"connection to {self._address}", self._read)
        except BaseException:  # No thread is left.
            self._frames.close()
            raise

    def call(self, deadline: Deadline, call: str, members: dict[str, Any]) -> Frame:
        """Send a request, and return its answer.

        Raises:
            OSError: there was no answer in time.
            MetadataStoreError: the hub has refused it.
        """
        number, answer, heard = self._begin()
        try:
            self._frames.write(encoded({"id": number, "call": call, **members}))
            if not answer.arrived.wait(deadline.left()):
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

    def _read(self) -> None:
        why = "was closed by the hub"
        try:
            while True:
                self._arrived(decoded(self._frames.read()))
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
        spawn("close of a subscription", self._send, encoded(frame))

    def _send(self, frame: bytes) -> None:
        with suppress(OSError):  # Then the hub has closed it.
            self._frames.write(frame)

    def _over(self) -> ConnectionResetError:
        return ConnectionResetError(f"the connection to {self._address} {self._why}")
