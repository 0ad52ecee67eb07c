"""Processes beside the tests' own that have a store open."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

#: Puts ephemeral values, says so, and keeps the store open.
WRITER = """
import sys, time
from batchkeeper.ops import Put
from batchkeeper.stores import ConnectOptions, connect
directory, *paths = sys.argv[1:]
store = connect("rocksdb://" + directory, ConnectOptions())
deadline = time.monotonic() + 60
for path in paths:
    prefix, _, count = path.partition("*")
    made = [prefix + str(number) for number in range(int(count))] if count else [prefix]
    store.write([Put(one, b"mine", ephemeral=True) for one in made], deadline)
"""

#: Waits for the end of its standard input.
WAIT = """
print("ready", flush=True)
sys.stdin.read()
"""


@contextmanager
def running(program: str, *arguments: Any) -> Iterator[subprocess.Popen[str]]:
    """Run a program of Python until it says that it is ready; it is killed at the end."""
    with subprocess.Popen(
        [sys.executable, "-c", program, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


@contextmanager
def writer(directory: Path, *paths: str) -> Iterator[subprocess.Popen[str]]:
    """Run a process with ephemeral values; ``"/e/*3"`` stands for ``/e/0``, ``/e/1``, ``/e/2``."""
    with running(WRITER + WAIT, directory, *paths) as process:
        yield process


def kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
