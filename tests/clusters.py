"""Clusters of three members for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from batchkeeper.testing.servers import EtcdServer, LocalServer, ZooKeeperServer

from .java import zookeeper_flags

__all__ = ["three_members"]


def three_members(kind: str, directory: Path, **options: Any) -> LocalServer:
    """Return a cluster that is not started yet. ZooKeeper's sessions can be a second long."""
    if kind == "etcd":
        return EtcdServer(directory / "cluster", members=3, **options)
    return ZooKeeperServer(
        directory / "cluster", members=3, tick_time=500, jvm_flags=zookeeper_flags(), **options
    )
