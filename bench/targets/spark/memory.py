"""The memory of a job, which runs in its own Spark in another process and is watched from here."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

import psutil

from batchkeeper.bench.children import child
from batchkeeper.bench.load.spark import spark_session
from batchkeeper.ops.errors import StoreUnavailableError

from ..rows import Figures
from . import JobFailedError
from .rates import export_to, write

# The seconds between two looks. Linux records the peak of each process, so a look only has to come
# before the process ends.
_LOOK: Final = 0.05
# The JVM collects only when its heap is full. A small heap shows whether the data of a job fits.
_HEAP: Final = "512m"
_TAIL: Final = 20


def peaks(job: str, url: str, root: str, parquet: Path, directory: Path) -> Figures:
    """Run a job in a separate process, and return the memory of its processes in bytes.

    ``load`` loads a Parquet directory into a store; ``export`` writes the values below the root to
    another directory. ``worker`` is the peak of the largest Python worker, ``driver`` the peak of
    the driver's Python, ``jvm peak`` the peak of the driver's JVM, and ``jvm`` what it holds after
    the job.

    Raises:
        JobFailedError: the job failed. The message has the end of its output.
    """
    directory.mkdir(parents=True)
    seen = {"driver": 0.0, "jvm peak": 0.0, "worker": 0.0}
    log = directory / "log"
    try:
        with child(_run, job, url, root, parquet, directory, log) as running:
            running.begin()
            while not running.has_sent(_LOOK):
                for kind, peak in _look(running.pid):
                    seen[kind] = max(seen[kind], peak)
            held = running.receive()
    except StoreUnavailableError as error:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-_TAIL:])
        raise JobFailedError(f"{job} failed:\n{tail}") from error
    return {**seen, "jvm": float(held)}


def _look(driver: int) -> Iterator[tuple[str, float]]:
    """Yield the kind and the peak of a process and of each of its descendants."""
    with suppress(psutil.Error):
        yield "driver", _peak(driver)
        for process in psutil.Process(driver).children(recursive=True):
            if _runs_java(process):
                yield "jvm peak", _peak(process.pid)
            elif any(map(_runs_java, process.parents())):
                yield "worker", _peak(process.pid)


def _runs_java(process: psutil.Process) -> bool:
    # Not by its name: before it runs another program, a child has that of one of Java's threads,
    # and Java's memory.
    return Path(process.exe()).name == "java"


def _peak(pid: int) -> float:
    with suppress(OSError):  # It has ended.
        if found := re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text()):
            return float(found[1]) * 1024
    return 0.0


# In another process:


def _run(
    parent: Connection, job: str, url: str, root: str, parquet: Path, directory: Path, log: Path
) -> None:
    with log.open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    parent.send("ready")
    parent.recv()
    if job not in ("load", "export"):
        raise ValueError(f"no such job: {job}")
    with spark_session(directory, memory=_HEAP) as spark:
        if job == "load":
            write(spark.read.parquet(str(parquet)), url)
        else:
            export_to(spark, url, root, directory / "exported")
        # The stubs declare every attribute of the JVM as a callable.
        lang: Any = spark.sparkContext._jvm.java.lang  # type: ignore[union-attr]
        lang.System.gc()
        runtime = lang.Runtime.getRuntime()
        held = runtime.totalMemory() - runtime.freeMemory()
    parent.send(held)
