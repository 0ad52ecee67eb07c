"""Java for the servers of tests: they live for minutes at most, and start often."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Final

from batchkeeper.testing.servers import ZooKeeperServer, releases

__all__ = ["SHORT_LIVED", "archive_classes", "use_archive", "zookeeper_flags"]

#: A test's Java would spend a third of its work on optimizing code.
SHORT_LIVED: Final = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")

_archives: list[Path] = []


def use_archive(archive: Path) -> None:
    """Let later ZooKeepers start from an archive of classes, once some process has made it."""
    _archives.append(archive)


def zookeeper_flags() -> tuple[str, ...]:
    """Return the flags of Java for a test's ZooKeeper.

    A start takes 0.7 CPU seconds with an archive of its classes, and 1.1 to 1.4 without one
    (2026-11-26, 2 cores, Java 17 and 25).
    """
    archive = next(filter(Path.is_file, _archives), None)
    return SHORT_LIVED if archive is None else (*SHORT_LIVED, f"-XX:SharedArchiveFile={archive}")


def archive_classes(archive: Path) -> None:
    """Archive the classes of a ZooKeeper, in three CPU seconds. Until then, there is no archive.

    A static archive: one that is written at an exit needs that of Java's own classes, which the
    wheel's Java does not have.
    """
    listed, unfinished = archive.with_suffix(".classes"), archive.with_suffix(".unfinished")
    flags = (*SHORT_LIVED, f"-XX:DumpLoadedClassList={listed}")
    with ZooKeeperServer(archive.with_suffix(""), jvm_flags=flags):
        pass
    command = [
        *(str(releases.find_java()), *SHORT_LIVED, "-Xshare:dump"),
        *(f"-XX:SharedClassListFile={listed}", f"-XX:SharedArchiveFile={unfinished}"),
        *("-cp", os.pathsep.join(map(str, releases.find_zookeeper_jars()))),
    ]
    if subprocess.run(command, capture_output=True, check=False).returncode == 0:
        unfinished.replace(archive)
