"""The disk below a directory: its file system, and what an fsync costs on it."""

from __future__ import annotations

import os
import re
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

__all__ = ["Disk", "examine"]

_WRITES: Final = 25
_BYTES: Final = 512
_UNKNOWN: Final = "unknown"


@dataclass(frozen=True, slots=True)
class Disk:
    """What was found out about a directory.

    Attributes:
        directory: that was examined.
        file_system: its type, such as ``ext4``; ``unknown`` where the system does not say.
        fsync: seconds that writing 512 bytes to the end of a file and its fsync take, the median.
    """

    directory: Path
    file_system: str
    fsync: float

    @property
    def in_memory(self) -> bool:
        """Whether nothing here ever reaches a disk, so that a sync costs nothing."""
        return self.file_system in {"tmpfs", "ramfs"}


def examine(directory: Path) -> Disk:
    """Find out about the disk below a directory, which exists.

    Raises:
        OSError: nothing can be written there.
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
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return _UNKNOWN  # Not Linux.
    above = {directory.resolve(), *directory.resolve().parents}
    found, depth = _UNKNOWN, 0
    for line in lines:
        # proc(5): id, parent, device, root, mount point, options..., "-", type, ...
        before, _, after = line.partition(" - ")
        escaped = before.split()[4]
        mounted_at = Path(re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), escaped))
        # The later of two at the same place hides the earlier.
        if mounted_at in above and len(mounted_at.parts) >= depth:
            found, depth = after.split()[0], len(mounted_at.parts)
    return found
