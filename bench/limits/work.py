"""The values to put and get: prepared before the clock runs, the same for both sides of a ratio."""

from __future__ import annotations

import gc
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Final, NamedTuple, Self, TypeAlias, TypeVar

from ...ops.operations import ABSENT
from ..workload import put_path, put_value

__all__ = [
    "EXPECTATIONS",
    "VALUE_BYTES",
    "Figures",
    "Item",
    "Step",
    "Stopwatch",
    "Work",
    "items",
    "parts",
    "steps",
    "work",
]

_T = TypeVar("_T")

VALUE_BYTES: Final = 100
#: What the puts of a conditional measurement expect of each path, one after the other: a claim of
#: a path that holds nothing, and two advances of what is there then.
EXPECTATIONS: Final = (ABSENT, 0, 1)

_CONFLICTING: Final = 10
# Far from every version that a path has here.
_WRONG_VERSION: Final = 7
# Of the operations that are measured, this part comes before them and is not counted.
_WARM_UP: Final = 0.15

#: What a measurement gave, by name: ``rate`` in operations a second; ``cpu``, the seconds of CPU
#: that the client spent on each; others in seconds.
Figures: TypeAlias = dict[str, float]

#: A path and its value.
Item: TypeAlias = tuple[str, bytes]


class Step(NamedTuple):
    """A put, what it expects, and the version that it must give; ``None`` if it must conflict."""

    path: str
    value: bytes
    expected: int | None
    version: int | None


@dataclass(frozen=True, slots=True)
class Work:
    """Items of fresh paths: those that warm up, and those that count."""

    warm_up: Sequence[Item]
    timed: Sequence[Item]


def items(root: str, count: int) -> list[Item]:
    """Return ``count`` paths below ``root``, each with a value of its own."""
    return [(put_path(root, number), put_value(number, VALUE_BYTES)) for number in range(count)]


def work(root: str, count: int) -> Work:
    """Return ``count`` items to be timed, and some before them."""
    warm_up = max(1, int(count * _WARM_UP))
    found = items(root, warm_up + count)
    return Work(found[:warm_up], found[warm_up:])


def steps(paths: Sequence[Item], conflicts: bool) -> list[Step]:
    """Return the conditional puts of the paths: for each of EXPECTATIONS one of every path.

    With ``conflicts`` one path in ten must be there already, at version 0, and all that is put
    there conflicts: by turns a create of what exists, and a put that expects a wrong version.
    """
    made = []
    for turn, expected in enumerate(EXPECTATIONS):
        wrong = _WRONG_VERSION if turn % 2 else ABSENT
        for number, (path, value) in enumerate(paths):
            if conflicts and conflicting(number):
                made.append(Step(path, value, wrong, None))
            else:
                made.append(Step(path, value, expected, turn))
    return made


def conflicting(number: int) -> bool:
    """Whether the path of this number is one whose puts conflict, where some do."""
    return number % _CONFLICTING == _CONFLICTING - 1


def parts(sequence: Sequence[_T], size: int) -> list[Sequence[_T]]:
    """Cut a sequence into parts of ``size``; the last may be shorter."""
    return [sequence[start : start + size] for start in range(0, len(sequence), size)]


class Stopwatch:
    """Takes the time of a block, and the CPU time that this process spent on it.

    What was prepared before is kept out of the collector's sight, as it is no part of what a
    caller would hold; the collector itself runs, as it does in everybody's process.
    """

    def __init__(self) -> None:
        self._seconds = self._cpu = 0.0

    def __enter__(self) -> Self:
        gc.collect()
        gc.freeze()
        self._seconds, self._cpu = time.perf_counter(), time.process_time()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._seconds = time.perf_counter() - self._seconds
        self._cpu = time.process_time() - self._cpu
        gc.unfreeze()

    def figures(self, count: int) -> Figures:
        """Return ``rate`` and ``cpu`` of this many operations."""
        return {"rate": count / self._seconds, "cpu": self._cpu / count}
