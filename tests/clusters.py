"""Clusters of three members for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from batchkeeper.testing.servers import EtcdServer, LocalServer, ZooKeeperServer
from batchkeeper.testing.servers.releases import find_durable_etcd

__all__ = ["SHORT_LIVED", "three_members"]

#: A test's Java lives for minutes at most, and would spend a third of its work on optimizing code.
SHORT_LIVED: Final = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")


def three_members(kind: str, directory: Path, **options: Any) -> LocalServer:
    """Return a cluster that is not started yet. ZooKeeper's sessions can be a second long."""
    if kind == "etcd":
        return EtcdServer(directory / "cluster", members=3, program=find_durable_etcd(), **options)
    return ZooKeeperServer(
        directory / "cluster", members=3, tick_time=500, jvm_flags=SHORT_LIVED, **options
    )
