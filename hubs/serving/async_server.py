# async:
# `_sync/server.py` is generated from this file: after a change, run `python tools/faces.py`.
# end
"""A server that makes a hub reachable over TCP; ``protocol.py`` defines the messages.

Each connection has one task (or thread) that reads, and one for each running request. None of them
is ever cancelled: when a connection ends, its subscriptions are closed. That ends the calls that
wait for messages; all other calls end on their own. So both faces behave the same.
"""

from __future__ import annotations

import asyncio
import os
import threading
from typing import Any, Final

from ...coordination.async_background import AsyncSignal, async_spawn
from ...coordination.deadlines import Deadline
from ...ops.errors import InvalidSettingError, MetadataStoreError, QueueFullError
from ...ops.log import get_logger
from ..errors import IllegalOperationError, TopicLostError
from .async_frames import AsyncFrames, AsyncPort, async_listen
from .async_hub import AsyncTopicHub
from .async_owned import AsyncSubscription
from .messages import Message, Redirect
from .protocol import (
    Frame,
    decoded,
    encoded,
    error_members,
    fitting,
    hub_members,
    message_members,
    redirect_members,
)

__all__ = ["AsyncHubServer"]

log = get_logger("batchkeeper.hubs")

# Seconds that one request may wait for messages. To wait longer, a client asks again.
_POLL: Final = 5.0
# Seconds that `stop` gives to running requests.
_GRACE: Final = 5.0
# The limit of running requests per connection. Others wait in the connection. Requests for messages
# do not count, because they mostly wait: each subscription has at most one.
_MOST_REQUESTS: Final = 64
_MOST_SUBSCRIPTIONS: Final = 1000
# The limit of messages per request.
_MOST_MESSAGES: Final = 1000


class AsyncHubServer:
    """Makes a hub reachable over TCP. Listen, serve, and stop.

    Listen first, because the hub's address needs the port::

        server = AsyncHubServer()
        address = await server.listen()
        hub = AsyncTopicHub(store, region, address, logs)
        await hub.start()
        server.serve(hub)

    A connection has at most 64 running requests and 1,000 subscriptions, and a frame at most 16
    MiB. A client that sends something other than frames is disconnected.
    """

    def __init__(self) -> None:
        self._process = os.getpid()
        self._ready = AsyncSignal()  # Set when there is a hub, or never will be.
        self._lines = _Lines()
        self._lock = threading.Lock()  # guards the following fields
        self._hub: AsyncTopicHub | None = None
        self._port: AsyncPort | None = None
        self._clients: set[_Client] = set()
        self._stopped = False

    async def listen(self, host: str = "127.0.0.1", port: int = 0) -> str:
        """Start listening, and return the address. Requests wait until there is a hub.

        Args:
            host: the host to listen on.
            port: the port; 0 for any free port.

        Raises:
            OSError: listening on the port failed.
            InvalidSettingError: the server already listens, or was stopped.
        """
        if self._port is not None or self._stopped:
            raise InvalidSettingError("a server listens once")
        self._port = await async_listen(host, port, self._accept)
        return self._port.address

    def serve(self, hub: AsyncTopicHub) -> None:
        """Answer requests with this hub.

        Raises:
            InvalidSettingError: the server already has a hub.
        """
        with self._lock:
            if self._hub is not None:
                raise InvalidSettingError(f"the server serves {self._hub.address!r}")
            self._hub = hub
        self._ready.set()

    async def stop(self) -> None:
        """Stop listening, and end all connections. Stopping twice is harmless.

        Running requests have 5 seconds to finish and get their answers. Later requests get no
        answer. Subscribers must subscribe elsewhere, and continue from their consume marks.
        """
        if os.getpid() != self._process:  # The connections are the parent's.
            return
        with self._lock:
            self._stopped = True
            port, clients = self._port, [*self._clients]
        if port is not None:
            await port.close()
        self._ready.set()
        for client in clients:
            await client.end()
        deadline = Deadline(_GRACE)
        for client in clients:
            if not await client.ended.wait(deadline.left()):
                client.cut()

    def _accept(self, frames: AsyncFrames) -> None:
        client = _Client(frames, self._lines)
        with self._lock:
            if not self._stopped:
                self._clients.add(client)
        try:
            async_spawn("connection of a hub", self._serve, client)
        except RuntimeError:  # No thread is left.
            log.exception("a connection is cut off")
            frames.close()
            self._forget(client)

    async def _serve(self, client: _Client) -> None:
        try:
            await self._ready.wait()
            if self._hub is not None and not self._stopped:
                await client.serve(self._hub)
            await client.finish()
        finally:
            await client.close()
            self._forget(client)

    def _forget(self, client: _Client) -> None:
        with self._lock:
            self._clients.discard(client)


class _Place:
    """The place of a request in a queue."""

    __slots__ = ("_before", "_left", "line")

    def __init__(self, line: str | None, before: _Place | None) -> None:
        self.line = line
        self._before = before
        self._left = AsyncSignal()

    async def wait(self) -> None:
        """Wait until the previous request has ended."""
        if self._before is not None:
            await self._before._left.wait()
            self._before = None

    def leave(self) -> None:
        """Let the next request continue."""
        self._left.set()


class _Lines:
    """Orders the requests that begin or remove one subscription by their arrival.

    A client without an answer asks again. If its first request ended last, it would replace the
    connection that the client uses.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards the field
        self._last: dict[str, _Place] = {}

    def enter(self, line: str | None) -> _Place:
        """Return a place in a queue, or a place without a queue."""
        if line is None:
            return _Place(None, None)
        with self._lock:
            place = self._last[line] = _Place(line, self._last.get(line))
        return place

    def leave(self, place: _Place) -> None:
        """Let the next request continue."""
        if place.line is not None:
            with self._lock:
                if self._last[place.line] is place:
                    del self._last[place.line]
        place.leave()


class _Delivery:
    """A subscription of a connection, and the messages that did not fit into the last answer."""

    def __init__(self, subscription: AsyncSubscription) -> None:
        self._subscription = subscription
        self._lock = threading.Lock()  # guards the following fields
        self._rest: list[Message] = []
        self._taking = False

    async def take(self, most: int, timeout: float) -> list[Message]:
        with self._lock:
            if self._taking:
                raise IllegalOperationError("a request of this subscription waits for messages")
            self._taking = True
            rest, self._rest = self._rest, []
        try:
            if not rest:
                rest = await self._subscription.take(min(most, _MOST_MESSAGES), min(timeout, _POLL))
            count = fitting(rest[:most])
            with self._lock:
                self._rest = rest[count:]
            return rest[:count]
        finally:
            with self._lock:
                self._taking = False

    async def consumed(self, number: int) -> None:
        await self._subscription.consumed(number)

    async def close(self) -> None:
        await self._subscription.close()


class _Client:
    """The connection of a client.

    The next connection of a subscriber gets all unconsumed messages again, from its consume mark
    on. So no message is lost with a connection.
    """

    def __init__(self, frames: AsyncFrames, lines: _Lines) -> None:
        self._frames = frames
        self._lines = lines
        self._room = asyncio.Semaphore(_MOST_REQUESTS)
        self._idle = AsyncSignal()  # Set when it ends and no request is running.
        self.ended = AsyncSignal()
        self._lock = threading.Lock()  # guards the following fields
        self._under_way = 0  # requests
        self._ids: set[int] = set()  # the ids of running requests
        self._deliveries: dict[int, _Delivery] = {}
        self._unwanted: set[int] = set()  # Closed before they existed.
        self._ending = False

    async def serve(self, hub: AsyncTopicHub) -> None:
        """Answer requests until the connection ends."""
        try:
            while True:
                request = decoded(await self._frames.read())
                if not _waits(request):
                    await self._room.acquire()
                self._begin(request)
                # In order of arrival, so not in the request's own task or thread.
                place = self._lines.enter(_line(request))
                try:
                    async_spawn("request", self._answer, hub, request, place)
                except BaseException:  # No thread is left.
                    self._lines.leave(place)
                    self._finish(request)
                    raise
        except OSError as error:
            log.debug("the connection of a client has ended", reason=str(error))
        except RuntimeError:
            log.exception("a connection is cut off")

    async def end(self) -> None:
        """Accept no more requests, and end those that wait for messages."""
        self._frames.end()
        with self._lock:
            self._ending = True
            deliveries, self._deliveries = self._deliveries, {}
            if not self._under_way:
                self._idle.set()
        for delivery in deliveries.values():
            await delivery.close()

    async def finish(self) -> None:
        """Accept no more requests, and return when the running ones have ended."""
        await self.end()
        await self._idle.wait()

    async def close(self) -> None:
        """End the connection without waiting: a loop that ends may never start some requests."""
        await self.end()
        self._frames.close()
        self.ended.set()

    def cut(self) -> None:
        """End the connection at once."""
        self._frames.cut()

    def _begin(self, request: Frame) -> None:
        with self._lock:
            if self._ending:
                raise ConnectionAbortedError("the server stops")
            if request.id in self._ids or request.id in self._deliveries:
                raise ConnectionAbortedError(f"the id {request.id} is in use")
            self._ids.add(request.id)
            self._under_way += 1

    def _finish(self, request: Frame) -> None:
        if not _waits(request):
            self._room.release()
        with self._lock:
            self._under_way -= 1
            if self._ending and not self._under_way:
                self._idle.set()

    async def _answer(self, hub: AsyncTopicHub, request: Frame, place: _Place) -> None:
        try:
            await self._frames.write(await self._executed(hub, request, place))
        except OSError as error:
            log.debug("an answer was not sent", reason=str(error))
        finally:
            self._finish(request)

    async def _executed(self, hub: AsyncTopicHub, request: Frame, place: _Place) -> bytes:
        """Execute a request, and return the frame of its answer."""
        try:
            await place.wait()
            return encoded({"id": request.id, **await self._call(hub, request)})
        except (MetadataStoreError, OSError) as error:
            answer = error_members(error)
        except Exception as error:  # Of a listener, for example.
            log.exception("a request has failed", call=f"{request.members.get('call')!r:.80}")
            answer = error_members(error)
        finally:
            # Before the answer is sent: the client may reuse the id, or read no answers.
            self._lines.leave(place)
            with self._lock:
                self._ids.discard(request.id)
                self._unwanted.discard(request.id)
        return encoded({"id": request.id, **answer})

    async def _call(self, hub: AsyncTopicHub, request: Frame) -> dict[str, Any]:
        match request.text("call"):
            case "publish":
                done = await hub.publish(
                    request.text("who"),
                    request.name("topic"),
                    request.body("body"),
                    request.flag("redirected"),
                )
                if isinstance(done, Redirect):
                    return redirect_members(done)
                return {"number": done.number, "hub": hub_members(done.hub)}
            case "subscribe":
                return await self._subscribe(hub, request)
            case "unsubscribe":
                gone = await hub.unsubscribe(
                    request.name("who"), request.name("topic"), request.flag("redirected")
                )
                return redirect_members(gone) if isinstance(gone, Redirect) else {"removed": gone}
            case "take":
                delivery = self._delivery(request)
                return message_members(
                    await delivery.take(request.number("most", 1), request.seconds("timeout"))
                )
            case "consumed":
                await self._delivery(request).consumed(request.number("number"))
            case "close":
                await self._close(request.number("subscription"))
            case call:
                raise IllegalOperationError(f"no call of a hub: {call!r:.80}")
        return {}

    async def _subscribe(self, hub: AsyncTopicHub, request: Frame) -> dict[str, Any]:
        self._check_wanted(request.id)
        made = await hub.subscribe(
            request.name("who"),
            request.name("topic"),
            request.flag("redirected"),
            request.mode,
            request.preferences,
            request.attempt,
        )
        if isinstance(made, Redirect):
            return redirect_members(made)
        with self._lock:
            wanted = not self._ending and request.id not in self._unwanted
            if wanted:
                self._deliveries[request.id] = _Delivery(made)
        if not wanted:
            await made.close()
            self._check_wanted(request.id)
        return {"subscription": request.id}

    def _check_wanted(self, number: int) -> None:
        with self._lock:
            if self._ending or number in self._unwanted:
                raise TopicLostError("the client has gone")
            if len(self._deliveries) >= _MOST_SUBSCRIPTIONS:
                raise QueueFullError(
                    f"a connection has at most {_MOST_SUBSCRIPTIONS} subscriptions: open another"
                )

    async def _close(self, number: int) -> None:
        with self._lock:
            delivery = self._deliveries.pop(number, None)
            if delivery is None and number in self._ids:
                self._unwanted.add(number)
        if delivery is not None:
            await delivery.close()

    def _delivery(self, request: Frame) -> _Delivery:
        with self._lock:
            delivery = self._deliveries.get(request.number("subscription"))
        if delivery is None:
            raise TopicLostError("this connection has no such subscription")
        return delivery


def _waits(request: Frame) -> bool:
    """Return whether a request waits for messages."""
    return request.members.get("call") == "take"


def _line(request: Frame) -> str | None:
    """Return the queue of a request: the queue of its subscription, if it begins or removes one."""
    members = request.members
    if members.get("call") not in ("subscribe", "unsubscribe"):  # No set: it may be a list.
        return None
    return repr((members.get("topic"), members.get("who")))
