# async:
# `_sync/remote.py` is generated from this file: after a change, run `python tools/faces.py`.
# end
"""Hubs that clients reach by gRPC; ``schema`` has the messages."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from typing import Any, Final, Self

import grpc
from grpc import aio

from ...batching.async_background import AsyncSignal, async_spawn
from ...batching.settings import check_seconds
from ...coordination.deadlines import Deadline
from ..errors import IllegalOperationError, TopicLostError
from ..managers.data import SubscriptionPreferences
from .errors import of_parent
from .messages import Attempt, Message, Published, Redirect, SubscribeMode
from .schema import METHODS, SERVICE, messages
from .security import HubTLS, Token, bearer, check_loopback, place
from .wire import (
    CLIENT_OPTIONS,
    check_size,
    failure_in,
    hub_in,
    message_of,
    messages_in,
    name_bytes,
    redirect_in,
)

__all__ = ["AsyncHubConnections", "AsyncRemoteHub", "AsyncRemoteSubscription"]

_REMEDY: Final = "give the client tls="
# The requests of one connection at a time, apart from those of subscribers. gRPC cancels some of
# those beyond the server's limit, instead of letting them wait.
_UNDER_WAY: Final = 64
# What a subscription reads ahead at most, but for the last reply: messages, and their bytes.
_AHEAD: Final = 1_000
_AHEAD_BYTES: Final = 1024 * 1024


class AsyncHubConnections:
    """Connects a client to hubs, with one connection per address. Close it at the end.

    Pass it to ``AsyncTopicClient`` as ``connect``::

        async with AsyncHubConnections() as connections:
            client = AsyncTopicClient(connections, ["hub-1:4080", "hub-2:4080"])

    A forked child opens its own connections.

    Args:
        timeout: seconds for each request.
        tls: the TLS files of this client; without them, it connects to hubs on loopback only.
        token: the token of this client, or a function that returns the current one.

    Raises:
        InvalidSettingError: ``timeout`` is not a number of seconds.
    """

    def __init__(
        self, timeout: float = 10.0, *, tls: HubTLS | None = None, token: Token | None = None
    ) -> None:
        self._timeout = check_seconds("timeout", timeout)
        self._tls = tls
        self._token = token
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
                hub = self._hubs[address] = AsyncRemoteHub(
                    address, self._timeout, tls=self._tls, token=self._token
                )
        return hub

    async def close(self) -> None:
        """End all connections. Running requests raise ``OSError``."""
        if os.getpid() != self._process:
            self._begin()
        with self._lock:
            self._closed = True
            hubs, self._hubs = self._hubs, {}
        for hub in hubs.values():
            await hub._end()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class AsyncRemoteHub:
    """A hub over gRPC, with the methods of ``AsyncTopicHub`` for clients.

    A request without an answer raises ``OSError``; the hub may have executed it. Errors of the hub
    arrive as the same class. All requests share one connection, which is opened by the first
    request, and again after a failure.

    Args:
        address: the address, such as ``"hub-1:4080"``.
        timeout: seconds for each request.
        tls: the TLS files of this client; without them, the hub must be on loopback.
        token: the token of this client, or a function that returns the current one.

    Raises:
        InvalidSettingError: ``timeout`` is not a number of seconds.
    """

    def __init__(
        self,
        address: str,
        timeout: float = 10.0,
        *,
        tls: HubTLS | None = None,
        token: Token | None = None,
    ) -> None:
        self.address = address
        self._timeout = check_seconds("timeout", timeout)
        self._tls = tls
        self._token = token
        self._process = os.getpid()
        self._lock = threading.Lock()  # guards the following fields
        self._link: _Link | None = None
        self._closed = False

    async def publish(
        self, publisher: str, topic: str | bytes, message: bytes, redirected: bool = False
    ) -> Published | Redirect:
        """See ``AsyncTopicHub.publish``.

        Raises:
            ValueTooLargeError: the message has more than 16 MiB.
        """
        check_size(message)
        if not isinstance(publisher, str):
            raise IllegalOperationError(f"a publisher must be a text, not {publisher!r:.80}")
        request = message_of(
            "PublishRequest",
            who=name_bytes(publisher),
            topic=name_bytes(topic),
            body=message,
            redirected=redirected,
        )
        reply = await (await self._linked()).call("Publish", request, self._timeout)
        return redirect_in(reply) or Published(reply.number, hub_in(reply.hub))

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
        request = message_of(
            "SubscribeRequest",
            who=name_bytes(subscriber),
            topic=name_bytes(topic),
            redirected=redirected,
            mode=mode,
        )
        if preferences is not None:
            request.preferences = json.dumps(preferences.members()).encode()
        if attempt is not None:
            request.attempt.CopyFrom(message_of("Attempt", **attempt._asdict()))
        link = await self._linked()
        made = AsyncRemoteSubscription(link, link.stream("Subscribe", request), self._timeout)
        return await made._attached() or made

    async def unsubscribe(
        self, subscriber: str | bytes, topic: str | bytes, redirected: bool = False
    ) -> bool | Redirect:
        """See ``AsyncTopicHub.unsubscribe``."""
        request = message_of(
            "UnsubscribeRequest",
            who=name_bytes(subscriber),
            topic=name_bytes(topic),
            redirected=redirected,
        )
        reply = await (await self._linked()).call("Unsubscribe", request, self._timeout)
        return redirect_in(reply) or reply.removed

    def close(self) -> None:
        """End the connection permanently. Running requests raise ``OSError``."""
        # async:
        async_spawn("end of a connection", self._end)
        # sync:
        # | self._end()
        # end

    async def _end(self) -> None:
        if os.getpid() != self._process:  # It is the parent's, and the lock may be held for ever.
            return
        with self._lock:
            self._closed = True
            link, self._link = self._link, None
        if link is not None:
            await link.close()

    async def _linked(self) -> _Link:
        """Return the connection; make it if there is none.

        Raises:
            OSError: the address cannot be used.
            InvalidSettingError: the hub is not on loopback, and there is no TLS.
        """
        if os.getpid() != self._process:  # The lock may be held for ever.
            raise of_parent(self.address)
        with self._lock:
            link = self._present()
        if link is not None:
            return link
        host, _ = place(self.address)
        if self._tls is None:
            await asyncio.to_thread(check_loopback, host, _REMEDY)
        with self._lock:
            link = self._present()
            if link is None:  # Otherwise, another call has made it meanwhile.
                link = self._link = _Link(self.address, self._tls, self._token)
        return link

    def _present(self) -> _Link | None:
        if self._closed:
            raise ConnectionAbortedError(f"the connection to {self.address} was closed")
        if self._link is not None and self._link.failed:
            self._link = None
        return self._link


class _Link:
    """A connection to a hub.

    A failure ends its use: the next one reads the TLS files again, and looks the address up again.
    What still runs on it goes on.
    """

    def __init__(self, address: str, tls: HubTLS | None, token: Token | None) -> None:
        self.address = address
        self.failed = False  # Any thread sets it.
        self.heard = 0  # the number of replies; any thread counts, and none is relied on
        self._room = asyncio.Semaphore(_UNDER_WAY)
        self._token = token
        self._process = os.getpid()
        # async:
        made: Any = aio
        # sync:
        # | made: Any = grpc
        # end
        if tls is None:
            self._channel = made.insecure_channel(address, CLIENT_OPTIONS)
        else:
            self._channel = made.secure_channel(address, tls.of_client(), CLIENT_OPTIONS)
        self._calls = {
            name: (self._channel.unary_stream if streams else self._channel.unary_unary)(
                f"/{SERVICE}/{name}",
                messages[f"{name}Request"].SerializeToString,
                messages[f"{name}Reply"].FromString,
            )
            for name, streams in METHODS.items()
        }

    async def call(self, name: str, request: Any, timeout: float) -> Any:
        """Send a request, and return its reply.

        Raises:
            OSError: there was no reply in time.
            MetadataStoreError: the hub has refused it.
        """
        self.check_process()
        heard = self.heard
        try:
            async with self._room:
                reply = await self._calls[name](
                    request, timeout=timeout, metadata=bearer(self._token)
                )
        except grpc.RpcError as error:
            failure = self.failure(error)
            if isinstance(failure, TimeoutError):
                await self.check_alive(heard)
            raise failure from error
        except (ValueError, aio.UsageError) as error:  # It was closed meanwhile.
            raise self.closed() from error
        # async:
        except asyncio.CancelledError as error:
            # gRPC cancels its calls when the connection is closed, and so who awaits them.
            task = asyncio.current_task()
            if not self.failed or (task is not None and task.cancelling()):
                raise
            raise self.closed() from error
        # end
        self.heard += 1
        return reply

    def stream(self, name: str, request: Any) -> Any:
        """Send a request, and return the call, which has the replies.

        Raises:
            OSError: the connection was closed.
        """
        self.check_process()
        try:
            return self._calls[name](request, metadata=bearer(self._token))
        except (ValueError, aio.UsageError) as error:
            raise self.closed() from error

    async def check_alive(self, heard: int) -> None:
        """End the connection after a request that had no answer, if no other one had any either.

        Args:
            heard: the number of replies when the request was sent.
        """
        if heard == self.heard:
            await self.close()

    def failure(self, error: grpc.RpcError) -> Exception:
        """Return what a failed call raises, and note what it says about the connection."""
        failure = failure_in(error, self.address)
        if isinstance(failure, ConnectionError):
            self.failed = True
        elif not isinstance(failure, TimeoutError):
            self.heard += 1
        return failure

    def check_process(self) -> None:
        """Refuse to use the connection of the parent.

        Raises:
            ConnectionAbortedError: this process was forked after it had been made.
        """
        if os.getpid() != self._process:
            raise of_parent(self.address)

    async def close(self) -> None:
        """End the connection, and all that runs on it."""
        self.failed = True
        await self._channel.close()

    def closed(self) -> ConnectionResetError:
        """Return the error of a call on a connection that was closed."""
        return ConnectionResetError(f"the connection to {self.address} was closed")


class AsyncRemoteSubscription:
    """The connection of a subscriber to a hub over gRPC.

    It ends with an error: when the network fails, or when the hub loses the topic. All later calls
    raise it, too. Subscribe again to get the unconsumed messages again.
    """

    def __init__(self, link: _Link, call: Any, timeout: float) -> None:
        self._link = link
        self._call = call
        self._timeout = timeout
        self._process = os.getpid()
        self._key = b""
        self._lock = threading.Lock()  # guards the following fields
        self._first: Any = None
        self._messages: list[Message] = []
        self._bytes = 0  # of these messages
        self._error: Exception | None = None
        self._arrived = AsyncSignal()  # Set when there are messages or an error.
        self._room = AsyncSignal()  # Set when the next reply may be read.
        self._over = False  # whether the call has ended

    async def take(self, most: int = 100, timeout: float | None = None) -> list[Message]:
        """See ``AsyncSubscription.take``. After a cancel, the next call has the messages."""
        if type(most) is not int or most < 1:
            raise IllegalOperationError(f"most must be an int from 1 on, not {most!r:.80}")
        self._link.check_process()
        deadline = Deadline(timeout)
        while True:
            with self._lock:
                taken, self._messages = self._messages[:most], self._messages[most:]
                self._bytes -= sum(len(message.body) for message in taken)
                if self._has_room():
                    self._room.set()
                if not taken and self._error is not None:
                    raise self._error.with_traceback(None)
                if self._arrived.is_set():
                    self._arrived = AsyncSignal()
                arrived = self._arrived
            if taken or not await arrived.wait(deadline.left()):
                return taken

    async def consumed(self, number: int) -> None:
        """See ``AsyncSubscription.consumed``."""
        if type(number) is not int or not 0 <= number < 2**64:
            raise IllegalOperationError(f"no number of a message: {number!r:.80}")
        request = message_of("ConsumedRequest", subscription=self._key, number=number)
        await self._link.call("Consumed", request, self._timeout)

    async def close(self) -> None:
        """End the connection of the subscriber. The subscription stays."""
        if os.getpid() != self._process:  # It is the parent's, and the lock may be held for ever.
            return
        with self._lock:
            over = self._error is not None  # The hub has ended it.
            self._messages = []
            self._error = self._error or TopicLostError("the subscription was closed")
        try:
            if not over:
                request = message_of("CloseRequest", subscription=self._key)
                await self._link.call("Close", request, self._timeout)
        finally:
            self._call.cancel()

    async def _attached(self) -> Redirect | None:
        """Wait for the first reply; return it if it sends the client to another hub."""
        heard = self._link.heard
        self._call.add_done_callback(self._end)
        async_spawn(f"subscription at {self._link.address}", self._read)
        try:
            if not await self._arrived.wait(self._timeout):
                await self._link.check_alive(heard)
                raise TimeoutError(f"hub {self._link.address} has not answered in time")
            with self._lock:
                if self._first is None:
                    assert self._error is not None
                    raise self._error
                self._arrived = AsyncSignal()
            self._key = self._first.subscription
            redirect = redirect_in(self._first)
        except BaseException:
            self._call.cancel()
            raise
        self._room.set()
        return redirect

    def _has_room(self) -> bool:
        return len(self._messages) < _AHEAD and self._bytes < _AHEAD_BYTES

    async def _read(self) -> None:
        """Read the replies, and few ahead: what nobody takes stays at the hub."""
        error: Exception = self._link.closed()
        try:
            async for reply in self._call:
                self._link.heard += 1
                with self._lock:
                    if self._first is None:
                        self._first = reply
                    elif self._error is None:
                        found = messages_in(reply)
                        self._messages += found
                        self._bytes += sum(len(message.body) for message in found)
                    if self._room.is_set() and not (self._over or self._has_room()):
                        self._room = AsyncSignal()
                    room, arrived = self._room, self._arrived
                arrived.set()
                await room.wait()
        except grpc.RpcError as failed:
            error = self._link.failure(failed)
        finally:
            with self._lock:
                self._error = self._error or error
                arrived = self._arrived
            arrived.set()

    def _end(self, _: object) -> None:
        """Let ``_read`` find the end of the call. A thread of gRPC runs it, or the loop."""
        with self._lock:
            self._over = True
            room = self._room
        room.set()
