"""The records of a simulation: lines of JSON, one file per process."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Event:
    """An event of a process.

    Attributes:
        at: its time, by ``time.monotonic()``, which all processes of a machine share.
        source: the process that has recorded it.
        name: the kind of event.
        fields: the other fields, by name.
    """

    at: float
    source: str
    name: str
    fields: dict[str, Any]

    def __getitem__(self, name: str) -> Any:
        return self.fields[name]


class Recorder:
    """Records the events of one process.

    An event is in the file when the call returns. So a killed process loses no event whose effect
    others may have seen.
    """

    def __init__(self, file: Path) -> None:
        self._file = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def __call__(self, name: str, **fields: Any) -> float:
        """Record an event, and return its time."""
        at = time.monotonic()
        line = json.dumps({"at": at, "event": name, **fields}, separators=(",", ":"))
        os.write(self._file, f"{line}\n".encode())
        return at

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


class Tail:
    """Reads the records of a directory while they grow."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._read: dict[Path, int] = {}

    def new(self) -> Iterator[Event]:
        """Yield the events since the last call, those of each process in their order."""
        for file in sorted(self._directory.glob("*.jsonl")):
            with file.open("rb") as lines:
                lines.seek(self._read.get(file, 0))
                for line in lines:
                    if not line.endswith(b"\n"):
                        break  # A killed process may leave half a line.
                    shown = json.loads(line)
                    yield Event(shown.pop("at"), file.stem, shown.pop("event"), shown)
                    self._read[file] = self._read.get(file, 0) + len(line)
