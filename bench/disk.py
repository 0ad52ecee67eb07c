"""The disk of a directory: its file system, and the cost of an fsync."""

from __future__ import annotations

import os
import statistics
import time
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Final

_WRITES: Final = 25
_BYTES: Final = 512
_UNKNOWN: Final = "unknown"


@dataclass(frozen=True, slots=True)
class Disk:
    """The properties of a directory's disk.

    Attributes:
        directory: the directory.
        file_system: the type of the file system, such as ``ext4``, or ``unknown``.
        fsync: the median of the seconds for appending 512 bytes to a file and an fsync.
    """

    directory: Path
    file_system: str
    fsync: float


def examine(directory: Path) -> Disk:
    """Examine the disk of an existing directory.

    Raises:
        OSError: the directory cannot be written to.
    """
    return Disk(directory, _file_system(directory), _fsync(directory))


def _fsync(directory: Path) -> float:
    probe = directory / f".fsync-{os.getpid()}"
    times = []
    try:
        with probe.open("wb", buffering=0) as file:
            for _ in range(_WRITES):
                begun = time.perf_counter()
                file.write(b"." * _BYTES)
                os.fsync(file.fileno())
                times.append(time.perf_counter() - begun)
    finally:
        probe.unlink(missing_ok=True)
    return statistics.median(times)


def _file_system(directory: Path) -> str:
    try:
        partitions = import_module("psutil").disk_partitions(all=True)
    except ImportError:
        return _UNKNOWN
    # A later mount at the same place hides the earlier one.
    mounted = {partition.mountpoint: partition.fstype for partition in partitions}
    above = map(str, (directory.resolve(), *directory.resolve().parents))
    return next((mounted[place] for place in above if place in mounted), _UNKNOWN)
