"""The conditions of a measurement: versions, the store, its disk and servers, the machine."""

from __future__ import annotations

import contextlib
import os
import platform
import re
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

from ..testing.servers.releases import describe_etcd, describe_hbase, describe_zookeeper
from .target import Target

_PACKAGES: Final = ("etcd3", "grpcio", "kazoo", "protobuf", "rocksdict")
_SERVERS: Final = {"etcd": describe_etcd, "zookeeper": describe_zookeeper, "hbase": describe_hbase}
#: A machine with more of its processors in use disturbs what is measured.
_QUIET: Final = 0.1
_LOOPBACK: Final = ("localhost", "127.0.0.1", "[::1]")
_BUSY: Final = (
    "the machine is not quiet: {:.0%} of its processors were in use before the run; figures vary "
    "more, and only ratios within the run mean something"
)


def as_document(target: Target) -> dict[str, Any]:
    """Return the conditions, as results keep them; looks at the machine for half a second."""
    busy = _busy_share()
    return {
        "batchkeeper": _version("batchkeeper"),
        "python": platform.python_version(),
        "packages": {name: there for name in _PACKAGES if (there := _version(name))},
        "system": platform.platform(),
        "cpus": os.cpu_count(),
        "target": target.name,
        "store": target.url.text,
        "server": _server(target),
        "members": target.members,
        "disk": target.disk
        and {
            "directory": str(target.disk.directory),
            "file_system": target.disk.file_system,
            "fsync_seconds": target.disk.fsync,
        },
        "busy": busy,
        "warnings": [] if busy <= _QUIET else [_BUSY.format(busy)],
    }


def _server(target: Target) -> str | None:
    """Return the version of the server that was started for the measurement."""
    if target.members is None:
        return None
    return re.split(r" \(", _SERVERS[target.kind.scheme]())[0]


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None  # It is not installed, or runs from a checkout.


def _busy_share(seconds: float = 0.5) -> float:
    """Return the share of this machine's processors in use for some time, from 0 to 1."""
    import psutil

    return psutil.cpu_percent(interval=seconds) / 100


def server_pids(target: Target) -> tuple[int, ...]:
    """Return the ids of the target's servers that run here; empty if none is known.

    They are the servers that were started for the measurement, or those that listen on loopback at
    the addresses of the URL. The latter are found for the same user, or for root.
    """
    import psutil

    if target.groups:
        return target.groups
    if target.kind.in_process or target.kind.local_directory:
        return ()
    ports = set()
    for address in target.url.addresses(0):
        host, _, port = address.rpartition(":")
        if host in _LOOPBACK:
            ports.add(int(port))
    found = set()
    with contextlib.suppress(psutil.Error, OSError):
        for connection in psutil.net_connections("tcp"):
            listening = connection.status == psutil.CONN_LISTEN
            pid = connection.pid
            if pid and listening and getattr(connection.laddr, "port", None) in ports:
                found.add(pid)
    return tuple(found)


def server_use(pids: Sequence[int]) -> tuple[float, int] | None:
    """Return the seconds of CPU that the processes of servers have used so far, and their memory.

    Returns:
        ``None`` if no server is known, or one has gone.
    """
    import psutil

    try:
        processes = [psutil.Process(pid) for pid in pids]
        cpu = sum(sum(process.cpu_times()[:2]) for process in processes)
        memory = sum(process.memory_info().rss for process in processes)
    except psutil.Error:
        return None
    return (cpu, memory) if processes else None
