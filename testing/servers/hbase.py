"""Throw-away HBases."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from xml.sax.saxutils import escape

from ...ops.errors import InvalidSettingError
from .local import LocalServer, ServerMember
from .processes import HOST, ServerProcess, ServerStartError, free_ports
from .releases import find_hbase_jars, find_java

__all__ = ["HBaseServer"]

# What HBase's own start script opens for Java 11 and newer.
_OPENED: Final = ("java.lang", "java.lang.reflect", "java.nio", "java.util", "java.util.concurrent")
_MASTER: Final = "org.apache.hadoop.hbase.master.HMaster"
_REGION_SERVER: Final = "org.apache.hadoop.hbase.regionserver.HRegionServer"
# Seconds from one question to the next, while a start is awaited.
_PAUSE: Final = 0.1


class HBaseServer(LocalServer):
    """A standalone HBase: a master, a region server and a ZooKeeper in one process.

    Its log is synced by the local file system, so a kill loses nothing that was acknowledged.

    Args:
        directory: see :class:`LocalServer`.
        members: 1, the only number that a standalone HBase has.
        heap_mib: the limit of Java's heap in MiB.
        settings: further settings of ``hbase-site.xml``.
        start_timeout: the most seconds that a start may take.
    """

    name = "hbase"
    peer_ports = 2  # of its region server, and of its ZooKeeper
    one_address = False

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        members: int = 1,
        heap_mib: int = 512,
        settings: Mapping[str, str] | None = None,
        proxied: bool | None = None,
        start_timeout: float = 120.0,
    ) -> None:
        if members != 1:
            raise InvalidSettingError(f"a standalone HBase has 1 member, not {members}")
        super().__init__(directory, members=1, proxied=proxied, start_timeout=start_timeout)
        self._heap_mib = heap_mib
        self._others = itertools.count(1)  # the numbers of further region servers
        self._settings = dict(settings or {})

    @contextmanager
    def region_server(self) -> Iterator[ServerMember]:
        """Run another region server for a block, in a process of its own.

        It joins this server, which must run, and gets the regions that are moved to it. How soon
        the master notices a kill depends on ``zookeeper.session.timeout``.

        Yields:
            the region server, with its process and its port.

        Raises:
            ServerStartError: it did not answer within ``start_timeout``, or ended.
        """
        directory = self.directory / f"region-server-{next(self._others)}"
        directory.mkdir()
        (port,) = free_ports(1)
        member = ServerMember(1, ServerProcess(self.name, directory), (port,))
        settings = self._site(self.members[0]) | {
            "hbase.cluster.distributed": "true",
            "hbase.regionserver.port": str(port),
            "hbase.tmp.dir": str(directory / "tmp"),
        }
        process = member.process
        process.launch(self._java(directory, settings, _REGION_SERVER), self._environment())
        try:
            deadline = time.monotonic() + self._start_timeout
            while not _serves(f"{HOST}:{port}"):
                if not process.running or time.monotonic() > deadline:
                    raise ServerStartError(f"a region server did not start: {process.log}")
                time.sleep(_PAUSE)
            yield member
        finally:
            process.kill()

    def _command(self, member: ServerMember) -> list[str]:
        return self._java(member.directory, self._site(member), _MASTER)

    def _java(self, directory: Path, site: Mapping[str, str], main: str) -> list[str]:
        """Write the configuration of a process, and return its command."""
        conf = directory / "conf"
        conf.mkdir(parents=True, exist_ok=True)
        (directory / "tmp").mkdir(exist_ok=True)
        (conf / "hbase-site.xml").write_text(_xml({**site, **self._settings}))
        (conf / "log4j2.properties").write_text(
            "appender.console.type = Console\n"
            "appender.console.name = console\n"
            "appender.console.layout.type = PatternLayout\n"
            "appender.console.layout.pattern = %d{ISO8601} %p [%t] %c{1}: %m%n\n"
            "rootLogger.level = warn\n"
            "rootLogger.appenderRef.console.ref = console\n"
        )
        jars: Sequence[str] = [str(jar) for jar in find_hbase_jars()]
        return [
            str(find_java()),
            f"-Xmx{self._heap_mib}m",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            "-XX:-UsePerfData",
            "-Djava.io.tmpdir=./tmp",
            "-Djava.awt.headless=true",
            "-Djava.net.preferIPv4Stack=true",
            *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED),
            "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
            "--add-opens=java.base/jdk.internal.misc=ALL-UNNAMED",
            *("-cp", os.pathsep.join(["./conf", *jars])),
            main,
            "start",
        ]

    def _site(self, member: ServerMember) -> dict[str, str]:
        master, region_server, zookeeper = member.ports
        return {
            "hbase.rootdir": (member.directory / "data").as_uri(),
            "hbase.tmp.dir": str(member.directory / "tmp"),
            "hbase.cluster.distributed": "false",
            "hbase.unsafe.stream.capability.enforce": "false",
            # The default local file system keeps what was synced in memory.
            "fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
            "hbase.zookeeper.property.dataDir": str(member.directory / "zookeeper"),
            "hbase.zookeeper.property.clientPort": str(zookeeper),
            "hbase.zookeeper.quorum": HOST,
            "hbase.master.port": str(master),
            "hbase.regionserver.port": str(region_server),
            "hbase.master.info.port": "-1",
            "hbase.regionserver.info.port": "-1",
            **dict.fromkeys(
                (
                    "hbase.master.ipc.address",
                    "hbase.regionserver.ipc.address",
                    "hbase.master.hostname",
                    "hbase.regionserver.hostname",
                    "hbase.unsafe.regionserver.hostname",
                ),
                HOST,
            ),
            "hbase.client.registry.impl": "org.apache.hadoop.hbase.client.RpcConnectionRegistry",
            "hbase.client.bootstrap.servers": f"{HOST}:{region_server}",
            "hbase.regionserver.handler.count": "16",
            # A table takes 2 MiB of heap for each family otherwise.
            "hbase.hregion.memstore.mslab.enabled": "false",
            "hbase.procedure.remote.dispatcher.delay.msec": "10",
            "hbase.master.wait.on.regionservers.interval": "100",
        }

    def _environment(self) -> Mapping[str, str]:
        return os.environ

    def _answers(self, member: ServerMember) -> bool:
        # Not before: it loads protobuf, which who starts another server may not need.
        from ...stores.hbase.cluster import answers  # noqa: PLC0415

        return answers(f"{HOST}:{member.ports[0]}")

    def _leads(self, member: ServerMember) -> bool:
        return self._answers(member)


def _serves(address: str) -> bool:
    """Say whether a region server without regions is ready for some: whether it denies one."""
    from ...stores.hbase.wire.connection import (  # noqa: PLC0415 - as in _answers
        Connection,
        LostError,
        RemoteError,
    )
    from ...stores.hbase.wire.messages import MESSAGES  # noqa: PLC0415

    none = MESSAGES.RegionSpecifier(type=1, value=b"none,,1")
    nothing = MESSAGES.ScanRequest(region=none, scan=MESSAGES.Scan(), number_of_rows=1)
    by = time.monotonic() + 2.0
    try:
        connection = Connection(address, "ClientService", "batchkeeper", 1.0)
    except LostError:
        return False
    try:
        connection.begin("Scan", nothing, MESSAGES.ScanResponse, by).wait(by)
    except LostError:
        return False
    except RemoteError as error:
        return error.kind == "NotServingRegionException"
    finally:
        connection.close()
    return True


def _xml(settings: Mapping[str, str]) -> str:
    rows = "".join(
        f"<property><name>{escape(name)}</name><value>{escape(value)}</value></property>\n"
        for name, value in settings.items()
    )
    return f'<?xml version="1.0"?>\n<configuration>\n{rows}</configuration>\n'
