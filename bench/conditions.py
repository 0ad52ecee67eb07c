"""The conditions of a measurement: versions, the machine and its load, the store and its disk."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

from ..testing.servers.releases import describe_etcd, describe_zookeeper
from .machine import busy_share
from .target import Target

__all__ = ["as_document"]

_PACKAGES: Final = ("etcd3", "grpcio", "kazoo", "protobuf", "rocksdict")
_SERVERS: Final = {"etcd": describe_etcd, "zookeeper": describe_zookeeper}
#: A machine with more of its processors in use disturbs what is measured.
_QUIET: Final = 0.1


def as_document(target: Target) -> dict[str, Any]:
    """Return the conditions, as results keep them; looks at the machine for half a second."""
    busy = busy_share()
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
        "disk": _disk(target),
        "busy": busy,
        "warnings": list(_warnings(busy)),
    }


def _warnings(busy: float) -> Iterator[str]:
    """Yield a warning if the machine was not quiet before the run."""
    if busy > _QUIET:
        yield (
            f"the machine is not quiet: {busy:.0%} of its processors were in use before the run; "
            f"figures vary more, and only ratios within the run mean something"
        )


def _server(target: Target) -> str | None:
    """Return the version of the server that was started for the measurement."""
    if target.members is None:
        return None
    return re.split(r" \(", _SERVERS[target.kind.scheme]())[0]


def _disk(target: Target) -> dict[str, Any] | None:
    disk = target.disk
    if disk is None:
        return None
    return {
        "directory": str(disk.directory),
        "file_system": disk.file_system,
        "fsync_seconds": disk.fsync,
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None  # It is not installed, or runs from a checkout.
