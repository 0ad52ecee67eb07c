"""Measures the memory of a job, which runs in its own Spark and is watched from outside."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from ..limits.work import Figures

__all__ = ["JobFailedError", "peaks"]

# The seconds between two looks. Linux records the peak of each process, so a look only has to come
# before the process ends.
_LOOK: Final = 0.05
_JOB: Final = f"{__package__}.job"
_LONGEST: Final = 1800.0


class JobFailedError(RuntimeError):
    """A job ended with an error. The message has the end of its output."""


def peaks(job: str, url: str, root: str, parquet: Path, directory: Path) -> Figures:
    """Run a job in a separate process, and return the memory of its processes in bytes.

    ``worker`` is the peak of the largest Python worker, ``driver`` the peak of the driver's Python,
    ``jvm peak`` the peak of the driver's JVM, and ``jvm`` the size of its heap after the job.

    Raises:
        JobFailedError: the job failed.
    """
    directory.mkdir(parents=True)
    log = directory / "log"
    command = [sys.executable, "-m", _JOB, job, url, root, str(parquet), str(directory)]
    with log.open("wb") as errors:
        running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
        try:
            seen = _watch(running)
            assert running.stdout is not None
            said = running.stdout.read()
        finally:
            if running.poll() is None:
                running.kill()
            running.wait()
            if running.stdout is not None:
                running.stdout.close()
    if running.returncode:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-20:])
        raise JobFailedError(f"{job} ended with {running.returncode}:\n{tail}")
    return {**seen, "jvm": float(json.loads(said)["jvm"])}


def _watch(running: subprocess.Popen[str]) -> Figures:
    """Watch a process and its descendants until it ends; return the peaks by kind."""
    seen = {"driver": 0.0, "jvm peak": 0.0, "worker": 0.0}
    deadline = time.monotonic() + _LONGEST
    while running.poll() is None and time.monotonic() < deadline:
        for kind, peak in _look(running.pid):
            seen[kind] = max(seen[kind], peak)
        time.sleep(_LOOK)
    return seen


class _Process(NamedTuple):
    parent: int
    name: str
    peak: int


def _look(root: int) -> Iterator[tuple[str, int]]:
    """Yield the kind and the peak of a process and of each of its descendants."""
    found = {int(each.name): each for each in Path("/proc").iterdir() if each.name.isdigit()}
    processes = {pid: known for pid, each in found.items() if (known := _process(each))}
    if root in processes:
        yield "driver", processes[root].peak
    for pid, process in processes.items():
        above = [*_above(processes, pid)]
        if root not in above:
            continue
        if process.name == "java":
            yield "jvm peak", process.peak
        elif any(processes[each].name == "java" for each in above if each in processes):
            yield "worker", process.peak


def _above(processes: Mapping[int, _Process], pid: int) -> Iterator[int]:
    while pid in processes:
        pid = processes[pid].parent
        yield pid


def _process(directory: Path) -> _Process | None:
    try:
        lines = (directory / "status").read_text().splitlines()
    except OSError:
        return None  # The process has ended.
    said = dict(line.split(":", 1) for line in lines if ":" in line)
    if "VmHWM" not in said:
        return None  # A kernel thread, or a process that is ending.
    peak = int(said["VmHWM"].split()[0]) * 1024
    return _Process(int(said["PPid"]), said["Name"].strip(), peak)
