"""Proxies before the members of a cluster, which cut members off without root's rights.

All connections between members, and those of clients, pass through them. A member that is cut off
sees what it would see on a broken network: no connection ends, none is refused, and nothing arrives
any more. Later, what was sent meanwhile arrives late, as TCP would send it again. Before a member
that does not run, no proxy listens, so connections to it are refused as they would be without it.

Of ZooKeepers, each has its own addresses for the others, so there is a proxy for each pair. etcd's
members share one list of addresses. So a proxy before each of them asks the system which process
has made a connection, and knows the member at its other end. That needs Linux.

A member may tell the others its own address, at which they would reach it past the proxies. So a
proxy can pass on another beginning of a connection than it reads.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

from .processes import HOST

__all__ = ["ANY_MEMBER", "CLIENT", "Proxies", "Route", "process_group_at"]

#: The sources of connections that no certain member makes.
CLIENT: Final = -1
ANY_MEMBER: Final = -2

_CHUNK: Final = 65_536
# Seconds for which a proxy tries to connect to a member that does not listen, and between attempts.
_EARLY: Final = 2.0
_AGAIN: Final = 0.005


# From where bytes are read, and to where they are written.
_Way: TypeAlias = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Route(NamedTuple):
    """A proxy: the port at which it listens, and where it leads.

    Attributes:
        front: the port at which the proxy listens.
        port: the port of the member.
        source: the number of the member that connects here, ``CLIENT``, or ``ANY_MEMBER``.
        target: the number of the member at ``port``.
        opening: reads the first bytes that come from the source, and returns those to be passed on
            instead.
        host: the host of the member.
    """

    front: int
    port: int
    source: int
    target: int
    opening: Callable[[asyncio.StreamReader], Awaitable[bytes]] | None = None
    host: str = HOST


class Proxies:
    """The proxies of one cluster, on a thread of their own.

    Args:
        routes: the proxies.
        member_at: returns the number of the member that has connected from a local port to a remote
            one, or ``None`` if it has gone.
    """

    def __init__(self, routes: Sequence[Route], member_at: Callable[[int, int], int | None]):
        self._member_at = member_at
        # The event loop's thread alone uses the following.
        self._cut: set[int] = set()
        self._without_clients: set[int] = set()
        self._changed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._open_to: dict[Route, socket.socket] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="cluster-proxies", daemon=True
        )
        self._routes = routes
        self._thread.start()

    def listen(self, member: int) -> None:
        """Accept connections to a member, which is going to listen itself.

        Raises:
            OSError: a port is taken.
        """
        self._await(self._listen(member))

    def refuse(self, member: int) -> None:
        """Refuse connections to a member, which has ended."""
        self._await(self._refuse(member))

    def cut(self, member: int, *, clients: bool) -> None:
        """Hold everything between a member and the others, and its clients if that is wanted."""
        self._await(self._set(member, peers=True, clients=clients))

    def restore(self, member: int) -> None:
        """Let everything pass that was held for a member."""
        self._await(self._set(member, peers=False, clients=False))

    def close(self) -> None:
        """End all connections and the thread."""
        self._await(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _await(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result()

    # All of the following runs on the event loop.

    async def _listen(self, member: int) -> None:
        for route in self._routes:
            if route.target == member:
                listener = socket.create_server((HOST, route.front), backlog=1024)
                listener.setblocking(False)
                self._open_to[route] = listener
                # Not asyncio's server: if that is closed while it accepts, it loses connections.
                self._loop.add_reader(listener, self._accept, route, listener)

    async def _refuse(self, member: int) -> None:
        for route in self._routes:
            if route.target == member and (listener := self._open_to.pop(route, None)):
                self._loop.remove_reader(listener)
                listener.close()

    def _accept(self, route: Route, listener: socket.socket) -> None:
        with suppress(OSError):
            connection, _ = listener.accept()
            task = self._loop.create_task(self._serve(route, connection))
            self._tasks.add(task)
            task.add_done_callback(partial(self._served, connection))

    def _served(self, connection: socket.socket, task: asyncio.Task[None]) -> None:
        connection.close()
        self._tasks.discard(task)

    async def _set(self, member: int, *, peers: bool, clients: bool) -> None:
        for cut, wanted in ((self._cut, peers), (self._without_clients, clients)):
            (cut.add if wanted else cut.discard)(member)
        self._changed.set()
        self._changed = asyncio.Event()

    async def _end(self) -> None:
        for member in {route.target for route in self._routes}:
            await self._refuse(member)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, route: Route, connection: socket.socket) -> None:
        sides: list[asyncio.StreamWriter] = []
        with suppress(OSError, EOFError):
            try:
                source: int | None = route.source
                if source == ANY_MEMBER:
                    source = self._member_at(connection.getpeername()[1], route.front)
                if source is None:
                    return
                ends = (source, route.target)
                await self._until_open(ends)
                there, to_there = await self._connect(route)
                sides.append(to_there)
                here, to_here = await asyncio.open_connection(sock=connection)
                sides.append(to_here)
                if route.opening is not None:
                    opening = await route.opening(here)
                    await self._until_open(ends)
                    to_there.write(opening)
                await self._pass_both(ends, (here, to_there), (there, to_here))
            finally:
                for side in sides:
                    # At once, also with bytes in its buffer, which nobody would read.
                    side.transport.abort()

    async def _pass_both(self, ends: tuple[int, int], *ways: _Way) -> None:
        """Pass bytes on in both directions, until one side ends."""
        tasks = [self._loop.create_task(self._pass_on(ends, *way)) for way in ways]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            await self._until_open(ends)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _connect(self, route: Route) -> _Way:
        # A ZooKeeper that becomes the leader begins to listen for followers only then. A follower
        # is often sooner. It would try again if it were refused, but starts a new election if it is
        # accepted and then dropped.
        until = self._loop.time() + _EARLY
        while True:
            try:
                return await asyncio.open_connection(route.host, route.port)
            except ConnectionRefusedError:
                if self._loop.time() >= until or route not in self._open_to:
                    raise
            await asyncio.sleep(_AGAIN)

    async def _pass_on(
        self,
        ends: tuple[int, int],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        with suppress(OSError):
            while data := await reader.read(_CHUNK):
                await self._until_open(ends)
                writer.write(data)
                await writer.drain()

    async def _until_open(self, ends: tuple[int, int]) -> None:
        """Wait while everything between a source and a target is held."""
        source, target = ends
        while (
            target in self._without_clients if source == CLIENT else not self._cut.isdisjoint(ends)
        ):
            await self._changed.wait()


def process_group_at(port: int, remote: int, groups: Collection[int]) -> int | None:
    """Return which process group has a TCP connection from a local port to another one.

    Returns ``None`` if none of ``groups`` has it, or not any more, and on other systems than Linux.
    """
    name = _socket_at(port, remote)
    if name is None:
        return None
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # Processes end meanwhile, and close files.
            group = os.getpgid(int(process.name))
            if group in groups and _has_open(process, name):
                return group
    return None


def _has_open(process: Path, name: str) -> bool:
    for descriptor in (process / "fd").iterdir():
        with suppress(OSError):
            if os.readlink(descriptor) == name:
                return True
    return False


def _socket_at(port: int, remote: int) -> str | None:
    for table in ("tcp", "tcp6"):  # Java's connections are in the latter.
        with suppress(OSError):
            for line in Path("/proc/net", table).read_text().splitlines()[1:]:
                fields = line.split()
                ports = [int(end.rpartition(":")[2], 16) for end in fields[1:3]]
                if ports == [port, remote] and fields[9] != "0":
                    return f"socket:[{fields[9]}]"
    return None
