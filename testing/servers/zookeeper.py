"""Throw-away ZooKeepers."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final, Self

from .local import LocalServer, ServerMember
from .processes import HOST
from .proxies import Route
from .releases import find_java, find_zookeeper_jars

__all__ = ["ZooKeeperServer"]

# The beginning of a connection for elections: the protocol, the id of the sender, and the length of
# the address that follows (org.apache.zookeeper.server.quorum.QuorumCnxManager.InitialMessage).
_GREETING: Final = struct.Struct(">qqi")


class ZooKeeperServer(LocalServer):
    """A ZooKeeper with a synced log, all four-letter words, and no admin server.

    Args:
        directory: see :class:`LocalServer`.
        members: the number of members.
        jvm_flags: further flags of Java, such as ``("-Djute.maxbuffer=65536",)``.
        tick_time: a tick in milliseconds. Sessions time out after 2 to 20 ticks, by default 4 to
            40 s, and up to a tick late. A leader and a follower give each other up after 5 ticks of
            silence.
        longest_session: the longest session timeout in milliseconds, instead of 20 ticks.
        heap_mib: the limit of Java's heap in MiB. A node with 100 bytes takes about half a KiB.
            Reading a hundred values of 0.8 MiB at once takes more than 512 MiB.
        proxied: see :class:`LocalServer`.
        start_timeout: the most seconds that a start may take.
    """

    name = "zookeeper"
    peer_ports = 2  # for followers of a leader, and for elections
    one_address = False

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        members: int = 1,
        jvm_flags: Sequence[str] = (),
        tick_time: int = 2000,
        longest_session: int | None = None,
        heap_mib: int = 1024,
        proxied: bool | None = None,
        start_timeout: float = 60.0,
    ) -> None:
        super().__init__(directory, members=members, proxied=proxied, start_timeout=start_timeout)
        self._jvm_flags = tuple(jvm_flags)
        self._tick_time = tick_time
        self._longest_session = longest_session or 20 * tick_time
        self._heap_mib = heap_mib

    @classmethod
    def for_bench(cls, directory: str | os.PathLike[str], *, members: int = 1) -> Self:
        """Return a server whose heap can hold the nodes of all settings and rounds of a bench.

        Each of them adds some ten thousand nodes, and a node of 100 bytes takes half a KiB.

        A single server has a short tick, as one would run it for short sessions: it ends a session
        up to a tick late. A cluster on a busy machine needs the long one.
        """
        return cls(
            directory,
            members=members,
            tick_time=500 if members == 1 else 2000,
            longest_session=40_000,
            heap_mib=2048,
            proxied=False,
        )

    def _command(self, member: ServerMember) -> list[str]:
        runtime, jars = find_java(), find_zookeeper_jars()
        (member.directory / "tmp").mkdir(exist_ok=True)
        # Relative paths, because Java reads property files as Latin-1, and the directory may have
        # any name.
        (member.directory / "zoo.cfg").write_text(
            f"dataDir=./data\n"
            f"clientPort={member.ports[0]}\n"
            f"clientPortAddress={HOST}\n"
            f"tickTime={self._tick_time}\n"
            f"maxSessionTimeout={self._longest_session}\n"
            f"maxClientCnxns=0\n"
            f"admin.enableServer=false\n"
            f"4lw.commands.whitelist=*\n"
            f"{self._ensemble(member)}"
        )
        if self.clustered:
            (member.directory / "data").mkdir(exist_ok=True)
            (member.directory / "data" / "myid").write_text(f"{member.number + 1}\n")
        (member.directory / "log4j2.properties").write_text(
            "appender.console.type = Console\n"
            "appender.console.name = console\n"
            "appender.console.layout.type = PatternLayout\n"
            "appender.console.layout.pattern = %d{ISO8601} %p [%t] %c{1}: %m%n\n"
            "rootLogger.level = info\n"
            "rootLogger.appenderRef.console.ref = console\n"
        )
        return [
            str(runtime),
            f"-Xmx{self._heap_mib}m",
            # Java would map a file for its counters in the system's temporary folder, and writes to
            # it can stall. Native libraries are unpacked to java.io.tmpdir.
            "-XX:-UsePerfData",
            "-Djava.io.tmpdir=./tmp",
            "-Djava.awt.headless=true",
            "-Dlog4j2.configurationFile=./log4j2.properties",
            # The log grows in steps of 16 MiB instead of 64: a test's server writes a few of them.
            "-Dzookeeper.preAllocSize=16384",
            *self._jvm_flags,
            *("-cp", os.pathsep.join(map(str, jars))),
            "org.apache.zookeeper.server.quorum.QuorumPeerMain",
            "./zoo.cfg",
        ]

    def _ensemble(self, member: ServerMember) -> str:
        if not self.clustered:
            return ""
        lines = ["initLimit=10", "syncLimit=5"]
        for one in self.members:
            # A member listens at the address that it has for itself.
            quorum, election = self._reach(member.number, one)
            lines.append(f"server.{one.number + 1}={HOST}:{quorum}:{election}")
        return "\n".join(lines) + "\n"

    def _routes(self) -> list[Route]:
        return [
            route._replace(opening=partial(_greeting, self._elects_at(route)))
            if route.port == self.members[route.target].ports[-1]  # the one for elections
            else route
            for route in super()._routes()
        ]

    def _elects_at(self, route: Route) -> str:
        """Return the address at which a route's target reaches its source for elections."""
        return f"{HOST}:{self._reach(route.target, self.members[route.source])[-1]}"

    def _environment(self) -> Mapping[str, str]:
        return os.environ

    def _answers(self, member: ServerMember) -> bool:
        mode = _mode(member)
        return mode in {"leader", "follower"} if self.clustered else mode == "standalone"

    def _leads(self, member: ServerMember) -> bool:
        return _mode(member) in {"leader", "standalone"}


async def _greeting(address: str, reader: asyncio.StreamReader) -> bytes:
    """Read the beginning of a connection for elections, and return it with another address.

    Of two members, the one with the greater id makes the connection. If the other one was first, it
    is called back at the address that it has announced. Thus a member that is cut off would still
    take part in elections, and win those that its longer log decides.
    """
    protocol, member, size = _GREETING.unpack(await reader.readexactly(_GREETING.size))
    await reader.readexactly(size)
    return _GREETING.pack(protocol, member, len(address)) + address.encode()


def _mode(member: ServerMember) -> str | None:
    """Return the mode that a member reports; ``None`` unless it serves requests."""
    # `srvr`, because `ruok` is answered before requests are served. A `srvr` that arrives during
    # the start is never answered, so the timeout is short.
    with socket.create_connection((HOST, member.ports[0]), timeout=0.25) as connection:
        connection.sendall(b"srvr")
        with connection.makefile("rb") as answer:
            for line in answer:
                if line.startswith(b"Mode: "):
                    return line.removeprefix(b"Mode: ").decode().strip()
    return None
