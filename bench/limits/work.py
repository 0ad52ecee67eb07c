"""The values to put and get: prepared before the clock runs, the same for both sides of a ratio."""

from __future__ import annotations

import gc
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Final, NamedTuple, Self, TypeAlias, TypeVar

from ...ops.operations import ABSENT
from ...testing.servers.processes import cpu_seconds
from ..target import Target
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
#: The versions that the conditional puts of each path expect, one after the other: one creates the
#: path, and two update it.
EXPECTATIONS: Final = (ABSENT, 0, 1)

_CONFLICTING: Final = 10
# No path ever has this version here.
_WRONG_VERSION: Final = 7
# The operations of the warm-up, as a part of those that are measured. They are not counted.
_WARM_UP: Final = 0.15

#: The figures of a measurement, by name: ``rate`` in operations per second; ``cpu`` and
#: ``server``, the CPU seconds of client and server for each operation; others in seconds.
Figures: TypeAlias = dict[str, float]

#: A path and its value.
Item: TypeAlias = tuple[str, bytes]


class Step(NamedTuple):
    """A put with its expected version, and the version that must result (``None``: a conflict)."""

    path: str
    value: bytes
    expected: int | None
    version: int | None


@dataclass(frozen=True, slots=True)
class Work:
    """Items with fresh paths, for the warm-up and for the measurement."""

    warm_up: Sequence[Item]
    timed: Sequence[Item]


def items(root: str, count: int) -> list[Item]:
    """Return ``count`` paths below ``root``, each with a different value."""
    return [(put_path(root, number), put_value(number, VALUE_BYTES)) for number in range(count)]


def work(root: str, count: int) -> Work:
    """Return ``count`` items to time, and some more for the warm-up."""
    warm_up = max(1, int(count * _WARM_UP))
    found = items(root, warm_up + count)
    return Work(found[:warm_up], found[warm_up:])


def steps(paths: Sequence[Item], conflicts: bool) -> list[Step]:
    """Return the conditional puts of paths: for each of ``EXPECTATIONS``, one put of every path.

    With ``conflicts``, one path in ten must already exist at version 0, and all its puts conflict:
    alternately a create of the existing path, and a put that expects a wrong version.
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
    """Say whether the puts of the path with this number conflict, in a run with conflicts."""
    return number % _CONFLICTING == _CONFLICTING - 1


def parts(sequence: Sequence[_T], size: int) -> list[Sequence[_T]]:
    """Cut a sequence into parts of ``size``; the last may be shorter."""
    return [sequence[start : start + size] for start in range(0, len(sequence), size)]


class Stopwatch:
    """Measures the time of a block, and the CPU time that client and server spend on it.

    The client is this process. The server's CPU time is measured if the bench has started it.

    The garbage collector runs, as it does in any process. It ignores the objects prepared before
    the block, because a real caller would not hold them.
    """

    def __init__(self, there: Target | None = None) -> None:
        self._groups = () if there is None else there.groups
        self._seconds = self._cpu = 0.0
        self._server: float | None = None

    def __enter__(self) -> Self:
        gc.collect()
        gc.freeze()
        self._server = cpu_seconds(self._groups)
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
        if self._server is not None:
            self._server = (cpu_seconds(self._groups) or 0.0) - self._server
        gc.unfreeze()

    def figures(self, count: int) -> Figures:
        """Return ``rate``, ``cpu`` and ``server`` for ``count`` operations in the block."""
        found = {"rate": count / self._seconds, "cpu": self._cpu / count}
        return found if self._server is None else {**found, "server": self._server / count}
