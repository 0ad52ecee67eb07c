"""Hubs over TCP: a server in front of a hub, and connections for its clients. For asyncio.

A frame is four bytes of length, and a JSON object. Each request has an ``id``, which its answer
repeats, so that many are under way at a time::

    {"id": 1, "call": "publish", "who": "p", "topic": "t", "redirected": false, "body": BASE64}
    {"id": 1, "number": 7, "hub": ["hub-1:4080", 3]}
    {"id": 1, "redirect": ["hub-2:4080", 9]}
    {"id": 1, "error": "AccessDeniedError", "message": "..."}

    {"id": 2, "call": "subscribe", "who": "s", "topic": "t", "redirected": true, "mode": "attach"}
    {"id": 2, "subscription": 2}
    {"id": 3, "call": "take", "subscription": 2, "most": 100, "timeout": 5.0}
    {"id": 3, "messages": [[8, BASE64]]}

The other calls are ``consumed``, ``close`` and ``unsubscribe``. There is no encryption and no
authentication: put it behind something that has both, or on loopback.
"""

from __future__ import annotations

import asyncio
import json
from base64 import b64decode, b64encode
from contextlib import suppress
from typing import Any, Final, Self

from ...ops.errors import MetadataStoreError, error_class
from ...ops.log import get_logger
from .. import errors
from ..managers.data import HubInfo, SubscriptionPreferences
from ..names import name_text
from .async_hub import AsyncTopicHub
from .async_owned import AsyncSubscription
from .records import Message, Published, Redirect, SubscribeMode

__all__ = ["HubConnections", "HubServer", "RemoteHub", "RemoteSubscription"]

log = get_logger("batchkeeper.hubs")

_LENGTH: Final = 4
_LONGEST: Final = 64 * 1024 * 1024
# Seconds that one request may wait for messages. Whoever waits longer asks again.
_POLL: Final = 5.0


async def _read(reader: asyncio.StreamReader) -> dict[str, Any]:
    """Return the next frame.

    Raises:
        ConnectionError: there is none, or it is damaged.
    """
    try:
        length = int.from_bytes(await reader.readexactly(_LENGTH))
        if length > _LONGEST:
            raise ConnectionAbortedError(f"a frame of {length} bytes")
        frame = json.loads(await reader.readexactly(length))
    except (EOFError, ValueError) as error:
        raise ConnectionResetError("the connection was closed") from error
    if not isinstance(frame, dict):
        raise ConnectionAbortedError("a frame that is no object")
    return frame


def _write(writer: asyncio.StreamWriter, frame: dict[str, Any]) -> None:
    raw = json.dumps(frame).encode()
    writer.write(len(raw).to_bytes(_LENGTH) + raw)


class HubServer:
    """Lets clients reach a hub over TCP. Start it, and stop it.

    Listen first, because the hub's address has the port::

        server = HubServer()
        address = await server.listen()
        hub = AsyncTopicHub(store, region, address, logs)
        await hub.start()
        server.serve(hub)
    """

    def __init__(self) -> None:
        self._server: asyncio.Server | None = None
        self._hub: asyncio.Future[AsyncTopicHub] | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def listen(self, host: str = "127.0.0.1", port: int = 0) -> str:
        """Listen, and return the address. Requests wait until there is a hub.

        Args:
            host: the host to listen on.
            port: the port; 0 for any that is free.

        Raises:
            OSError: it cannot be listened there.
        """
        self._hub = asyncio.get_running_loop().create_future()
        self._server = await asyncio.start_server(self._accept, host, port)
        name, taken, *_ = self._server.sockets[0].getsockname()
        return f"[{name}]:{taken}" if ":" in name else f"{name}:{taken}"

    def serve(self, hub: AsyncTopicHub) -> None:
        """Answer requests with this hub."""
        assert self._hub is not None, "listen first"
        self._hub.set_result(hub)

    async def stop(self) -> None:
        """End all connections, and listen no more."""
        if self._server is None:
            return
        self._server.close()
        connections = [*self._connections]
        for task in connections:
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)
        await self._server.wait_closed()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        assert self._hub is not None
        self._connections.add(task)
        try:
            await _Client(await asyncio.shield(self._hub), writer).serve(reader)
        except asyncio.CancelledError:
            pass  # The server stops. asyncio would log it.
        finally:
            self._connections.discard(task)
            writer.close()


class _Client:
    """The connection of a client, at the server."""

    def __init__(self, hub: AsyncTopicHub, writer: asyncio.StreamWriter) -> None:
        self._hub = hub
        self._writer = writer
        self._subscriptions: dict[int, AsyncSubscription] = {}
        self._calls: set[asyncio.Task[None]] = set()

    async def serve(self, reader: asyncio.StreamReader) -> None:
        try:
            while True:
                frame = await _read(reader)
                call = asyncio.create_task(self._answer(frame))
                self._calls.add(call)
                call.add_done_callback(self._calls.discard)
        except ConnectionError:
            pass  # The client has gone.
        finally:
            for call in self._calls:
                call.cancel()
            for subscription in self._subscriptions.values():
                await subscription.close()

    async def _answer(self, frame: dict[str, Any]) -> None:
        try:
            answer = await self._call(frame)
        except (MetadataStoreError, OSError) as error:
            answer = {"error": type(error).__name__, "message": str(error)}
        except Exception as error:  # Of a listener, or a request that is none.
            log.exception("a request has failed", call=frame.get("call"))
            answer = {"error": type(error).__name__, "message": str(error)}
        with suppress(ConnectionError):
            _write(self._writer, {"id": frame.get("id"), **answer})
            await self._writer.drain()

    async def _call(self, frame: dict[str, Any]) -> dict[str, Any]:
        match frame["call"]:
            case "publish":
                body = b64decode(frame["body"])
                done = await self._hub.publish(
                    frame["who"], frame["topic"], body, frame["redirected"]
                )
                if isinstance(done, Redirect):
                    return _redirect(done)
                return {"number": done.number, "hub": _hub(done.hub)}
            case "subscribe":
                return await self._subscribe(frame)
            case "unsubscribe":
                gone = await self._hub.unsubscribe(
                    frame["who"], frame["topic"], frame["redirected"]
                )
                return _redirect(gone) if isinstance(gone, Redirect) else {"removed": gone}
        subscription = self._subscriptions.get(frame["subscription"])
        if subscription is None:
            raise errors.TopicLostError("this connection has no such subscription")
        match frame["call"]:
            case "take":
                messages = await subscription.take(frame["most"], min(frame["timeout"], _POLL))
                return {"messages": [[m.number, b64encode(m.body).decode()] for m in messages]}
            case "consumed":
                await subscription.consumed(frame["number"])
            case "close":
                del self._subscriptions[frame["subscription"]]
                await subscription.close()
        return {}

    async def _subscribe(self, frame: dict[str, Any]) -> dict[str, Any]:
        preferences = frame.get("preferences")
        made = await self._hub.subscribe(
            frame["who"],
            frame["topic"],
            frame["redirected"],
            frame["mode"],
            None if preferences is None else SubscriptionPreferences.of(preferences),
        )
        if isinstance(made, Redirect):
            return _redirect(made)
        self._subscriptions[frame["id"]] = made
        return {"subscription": frame["id"]}


class HubConnections:
    """Connects a client to hubs: one connection for each address. Close it at the end.

    It is what ``AsyncTopicClient`` takes as ``connect``::

        async with HubConnections() as connections:
            client = AsyncTopicClient(connections, ["hub-1:4080", "hub-2:4080"])

    Args:
        timeout: seconds for each request.
    """

    def __init__(self, timeout: float = 10.0) -> None:
        self._timeout = timeout
        self._hubs: dict[str, RemoteHub] = {}

    async def __call__(self, address: str) -> RemoteHub:
        """Return the connection to a hub, which is made when it is used."""
        hub = self._hubs.get(address)
        if hub is None:
            hub = self._hubs[address] = RemoteHub(address, self._timeout)
        return hub

    async def close(self) -> None:
        """End all connections."""
        hubs, self._hubs = self._hubs, {}
        for hub in hubs.values():
            hub.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class RemoteHub:
    """A hub that is reached over TCP, with the methods of ``AsyncTopicHub`` for clients.

    A request that gets no answer raises ``OSError``. The hub may have executed it.
    """

    def __init__(self, address: str, timeout: float = 10.0) -> None:
        self.address = address
        self._timeout = timeout
        self._connecting: asyncio.Task[asyncio.StreamWriter] | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._last = 0

    async def publish(
        self, publisher: str, topic: str | bytes, message: bytes, redirected: bool = False
    ) -> Published | Redirect:
        """See ``AsyncTopicHub.publish``."""
        answer = await self.call(
            "publish",
            who=publisher,
            topic=name_text(topic),
            redirected=redirected,
            body=b64encode(message).decode(),
        )
        if "redirect" in answer:
            return Redirect(HubInfo(*answer["redirect"]))
        return Published(answer["number"], HubInfo(*answer["hub"]))

    async def subscribe(
        self,
        subscriber: str | bytes,
        topic: str | bytes,
        redirected: bool = False,
        mode: SubscribeMode = "create_or_attach",
        preferences: SubscriptionPreferences | None = None,
    ) -> RemoteSubscription | Redirect:
        """See ``AsyncTopicHub.subscribe``."""
        answer = await self.call(
            "subscribe",
            who=name_text(subscriber),
            topic=name_text(topic),
            redirected=redirected,
            mode=mode,
            preferences=None if preferences is None else preferences.members(),
        )
        if "redirect" in answer:
            return Redirect(HubInfo(*answer["redirect"]))
        return RemoteSubscription(self, answer["subscription"])

    async def unsubscribe(
        self, subscriber: str | bytes, topic: str | bytes, redirected: bool = False
    ) -> bool | Redirect:
        """See ``AsyncTopicHub.unsubscribe``."""
        answer = await self.call(
            "unsubscribe",
            who=name_text(subscriber),
            topic=name_text(topic),
            redirected=redirected,
        )
        if "redirect" in answer:
            return Redirect(HubInfo(*answer["redirect"]))
        removed: bool = answer["removed"]
        return removed

    def close(self) -> None:
        """End the connection. Requests that are under way get an error."""
        if self._reading is not None:
            self._reading.cancel()
        self._end(ConnectionAbortedError(f"the connection to {self.address} was closed"))

    async def call(self, call: str, **members: Any) -> dict[str, Any]:
        """Send a request, and return its answer.

        Raises:
            OSError: there was none in time.
            MetadataStoreError: the hub has refused it.
        """
        try:
            async with asyncio.timeout(self._timeout):
                writer = await self._connected()
                self._last += 1
                number = self._last
                waiting = self._waiting[number] = asyncio.get_running_loop().create_future()
                try:
                    _write(writer, {"id": number, "call": call, **members})
                    await writer.drain()
                    answer = await waiting
                finally:
                    self._waiting.pop(number, None)
        except TimeoutError as error:
            why = f"hub {self.address} has not answered within {self._timeout:g} s"
            raise TimeoutError(why) from error
        if "error" in answer:
            raise _error(answer["error"], answer["message"])
        return answer

    async def _connected(self) -> asyncio.StreamWriter:
        if self._writer is not None:
            return self._writer
        # All who come meanwhile share the attempt, and its failure: thousands who ask for the
        # topics of a hub that has crashed must not try one after the other.
        if self._connecting is None or self._connecting.done():
            self._connecting = asyncio.create_task(self._connect())
        return await asyncio.shield(self._connecting)

    async def _connect(self) -> asyncio.StreamWriter:
        host, _, port = self.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host.strip("[]"), int(port))
        self._writer = writer
        self._reading = asyncio.create_task(self._read(reader, writer))
        return writer

    async def _read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        failure: OSError = ConnectionResetError(f"the connection to {self.address} has ended")
        try:
            while True:
                answer = await _read(reader)
                waiting = self._waiting.get(answer["id"])
                if waiting is not None and not waiting.done():
                    waiting.set_result(answer)
        except OSError as error:
            failure = error
        finally:
            writer.close()
            if self._writer is writer:
                self._end(failure)

    def _end(self, error: OSError) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(error)
                waiting.exception()  # Its caller may have gone.


class RemoteSubscription:
    """The connection of a subscriber at a hub that is reached over TCP."""

    def __init__(self, hub: RemoteHub, subscription: int) -> None:
        self._hub = hub
        self._id = subscription
        self._writer = hub._writer
        self._taking: asyncio.Task[dict[str, Any]] | None = None

    async def take(self, most: int = 100, timeout: float | None = None) -> list[Message]:
        """See ``AsyncSubscription.take``. If it is cancelled, the next call has the messages."""
        loop = asyncio.get_running_loop()
        end = None if timeout is None else loop.time() + timeout
        while True:
            left = _POLL if end is None else min(_POLL, max(0.0, end - loop.time()))
            if self._taking is None:
                self._taking = asyncio.create_task(self._call("take", most=most, timeout=left))
            try:
                answer = await asyncio.shield(self._taking)
            except (MetadataStoreError, OSError):
                self._taking = None
                raise
            self._taking = None
            messages = [Message(number, b64decode(body)) for number, body in answer["messages"]]
            if messages or (end is not None and loop.time() >= end):
                return messages

    async def consumed(self, number: int) -> None:
        """See ``AsyncSubscription.consumed``."""
        await self._call("consumed", number=number)

    async def close(self) -> None:
        """End the connection of the subscriber. The subscription stays."""
        if self._taking is not None:
            self._taking.cancel()
        if self._hub._writer is self._writer:  # Otherwise, it has ended.
            await self._call("close")

    async def _call(self, call: str, **members: Any) -> dict[str, Any]:
        if self._hub._writer is not self._writer:
            raise ConnectionResetError(f"the connection to {self._hub.address} has ended")
        return await self._hub.call(call, subscription=self._id, **members)


def _redirect(redirect: Redirect) -> dict[str, Any]:
    return {"redirect": _hub(redirect.hub)}


def _hub(info: HubInfo) -> list[Any]:
    return [info.address, info.incarnation]


def _error(name: str, message: str) -> Exception:
    """Return the error that a hub has raised."""
    known = getattr(errors, name) if name in errors.__all__ else error_class(name)
    if known is not None:
        error: MetadataStoreError = known(message)
        return error
    # It is one of the hub's machine, such as a full disk, or of a listener.
    return ConnectionAbortedError(f"the hub has failed: {name}: {message}")
