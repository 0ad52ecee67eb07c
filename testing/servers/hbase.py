"""Throw-away HBases."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Final
from xml.sax.saxutils import escape

from ...ops.errors import InvalidSettingError
from .local import LocalServer, ServerMember
from .processes import HOST
from .releases import find_hbase_jars, find_java

__all__ = ["HBaseServer"]

# What HBase's own start script opens for Java 11 and newer.
_OPENED: Final = ("java.lang", "java.lang.reflect", "java.nio", "java.util", "java.util.concurrent")


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
        self._settings = dict(settings or {})

    def _command(self, member: ServerMember) -> list[str]:
        conf = member.directory / "conf"
        conf.mkdir(parents=True, exist_ok=True)
        (member.directory / "tmp").mkdir(exist_ok=True)
        (conf / "hbase-site.xml").write_text(_xml({**self._site(member), **self._settings}))
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
            "org.apache.hadoop.hbase.master.HMaster",
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


def _xml(settings: Mapping[str, str]) -> str:
    rows = "".join(
        f"<property><name>{escape(name)}</name><value>{escape(value)}</value></property>\n"
        for name, value in settings.items()
    )
    return f'<?xml version="1.0"?>\n<configuration>\n{rows}</configuration>\n'
