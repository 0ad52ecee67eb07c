"""A process that works on a store until it is killed. Its history outlives it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

import batchkeeper as bk

from .history import Op
from .recorder import PATIENCE, Client, work

__all__ = ["Victim"]

_TESTS = Path(__file__).parents[1]
_MAIN = "import sys; sys.path.insert(0, sys.argv[1]); from histories.victim import main; main()"


class Victim:
    """A process that is killed, at the latest at the end of the ``with`` block.

    Attributes:
        history: its operations, complete after its end. Writes under way then have an unknown
            outcome, and cannot be applied after its end. Reads under way count as not applied.
    """

    def __init__(self, url: str, chain: str, paths: Sequence[str]) -> None:
        self.history: list[Op] = []
        self._ended = 0
        self._open: dict[int, Op] = {}  # operations that have not ended
        command = [sys.executable, "-c", _MAIN, str(_TESTS), url, chain, *paths]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def progress(self, operations: int) -> None:
        """Wait until ``operations`` more operations have ended."""
        goal, give_up = self._ended + operations, time.monotonic() + PATIENCE
        while self._ended < goal:
            assert self._process.poll() is None, "the victim died by itself"
            assert time.monotonic() < give_up, f"{self._ended} of {goal} operations"
            time.sleep(0.002)

    def kill(self) -> None:
        """Kill the process, as ``kill -9`` does."""
        self._process.kill()
        self._process.wait()
        died = time.monotonic()
        self._reader.join()  # All that the process has written is in the pipe.
        for op in self._open.values():
            op.end("unknown" if op.writes else "not_applied", died)
        self._open.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *caught: object) -> None:
        self.kill()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            number, fields = json.loads(line)
            _restore(fields)
            fields["parts"] = [Op(**_restore(part)) for part in fields["parts"]]
            if number not in self._open:
                self._open[number] = Op(**fields)
                self.history.append(self._open[number])
                continue
            op = self._open.pop(number)
            for name, value in fields.items():
                setattr(op, name, value)
            self._ended += 1


def _restore(fields: dict[str, Any]) -> dict[str, Any]:
    for name in ("value", "found"):
        if fields[name] is not None:
            fields[name] = fields[name].encode()
    return fields


# In the process


def _report(op: Op) -> None:
    text = json.dumps([id(op), asdict(op)], default=bytes.decode)
    # A single short write: it arrives in the pipe completely or not at all.
    os.write(sys.stdout.fileno(), text.encode() + b"\n")


class _Reported(list[Op]):
    """A history that reports every operation before it is submitted."""

    def append(self, op: Op) -> None:
        super().append(op)
        _report(op)


class _Client(Client):
    def submit(self, op: bk.Operation, timeout: float | None = None) -> tuple[Op, Any]:
        made, future = super().submit(op, timeout)
        if future is None:
            _report(made)
        return made, future

    def wait(self, made: Op, future: Any) -> None:
        super().wait(made, future)
        if future is not None:
            _report(made)


def main() -> None:
    """Work on a store, with threads that have one or several operations under way."""
    _, _, url, chain, *paths = sys.argv
    client = _Client(bk.open_store(url), chain, _Reported())
    depths = [1, 1, 1, 1, 10, 10]
    for number, depth in enumerate(depths):
        args = (client, f"{chain}.{number}", paths, depth, lambda: False)
        threading.Thread(target=work, args=args).start()
