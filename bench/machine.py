"""This machine: how busy it is, and the servers that run on it."""

from __future__ import annotations

import contextlib
import ipaddress
from collections.abc import Sequence

from .target import Target

__all__ = ["busy_share", "server_pids", "server_use"]


def busy_share(seconds: float = 0.5) -> float:
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
        if _loopback(host):
            ports.add(int(port))
    found = set()
    with contextlib.suppress(psutil.Error, OSError):
        for connection in psutil.net_connections("tcp"):
            listening = connection.status == psutil.CONN_LISTEN
            pid = connection.pid
            if pid and listening and getattr(connection.laddr, "port", None) in ports:
                found.add(pid)
    return tuple(found)


def _loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


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
