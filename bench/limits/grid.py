"""Compares the default settings with the best of sixty settings.

One short round of every setting at every load picks three settings: for each load, the one with the
highest rate. The best of sixty single measurements owes something to luck. So these three and the
default are measured again, and only the new figures count.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import product
from typing import Final, Literal, TypeAlias

from ...batching import BatchingConfig
from ...stores.kinds import BUILT_IN
from ..drive import Duration, drive
from ..figures import Figure, Ratio, ratio
from ..readback import remove_below
from ..runner import Setting
from ..target import Target
from ..workload import Workload, put_chains
from .places import fresh_place
from .work import VALUE_BYTES

__all__ = [
    "DEFAULT",
    "LEAST_RATE",
    "LOADS",
    "MOST_LATENCY",
    "GridExtent",
    "GridResults",
    "Point",
    "grid_extent",
    "measure_grid",
    "pick",
    "quick_grid",
    "settings",
]

#: The operations that a caller keeps under way: waiting for each one, as many as some threads, and
#: as many as it can.
LOADS: Final = (1, 64, 4096)
#: The least rate and the greatest median latency of the default, as parts of the best setting's.
LEAST_RATE: Final = 0.9
MOST_LATENCY: Final = 1.25

DEFAULT: Final = "default"
_PICKED: Final = 3

# The settings are all combinations of these. The first limit that a batch reaches, of operations or
# of bytes, ends it.
_KIB: Final = 1024
_SIZES: Final = ((64, 128), (250, 128), (1000, 64), (1000, 512), (4000, 1024))
_IN_FLIGHT: Final = (1, 2, 4, 8)
_WAITS: Final[Sequence[tuple[Literal["adaptive", "fixed"], float]]] = (
    ("adaptive", 0.001),
    ("adaptive", 0.02),
    ("fixed", 0.001),
)


@dataclass(frozen=True, slots=True)
class Point:
    """The result of a setting at a load: operations per second, and the median of the seconds."""

    rate: float
    latency: float


#: Results by setting and load.
Points: TypeAlias = Mapping[str, Mapping[int, Point]]


def settings() -> list[Setting]:
    """Return the sixty settings."""
    return [
        Setting(
            f"{ops} ops, {kib} KiB, {in_flight} in flight, {linger} {delay * 1000:g} ms",
            BatchingConfig(
                max_ops=ops,
                max_bytes=kib * _KIB,
                max_in_flight=in_flight,
                linger=linger,
                max_delay=delay,
            ),
        )
        for (ops, kib), in_flight, (linger, delay) in product(_SIZES, _IN_FLIGHT, _WAITS)
    ]


@dataclass(frozen=True, slots=True)
class GridExtent:
    """The extent of a measurement.

    Attributes:
        rounds: the number of rounds that measure the picked settings and the default.
        trial: the duration of the first measurement of each setting and load.
        fresh: the duration of each measurement in the rounds.
        settings: the settings to try.
    """

    rounds: int
    trial: Duration
    fresh: Duration
    settings: Sequence[Setting] = field(default_factory=settings)

    @property
    def steps(self) -> int:
        """The number of measurements."""
        return (len(self.settings) + self.rounds * (1 + _PICKED)) * len(LOADS)


def grid_extent(store: str, rounds: int) -> GridExtent:
    """Return the extent of a full measurement, for a kind of store."""
    most = 40_000 if BUILT_IN[store].keeps_in_heap else None
    return GridExtent(rounds, Duration(0.4, 0.1, most), Duration(1.0, 0.2, most))


def quick_grid(rounds: int) -> GridExtent:
    """Return an extent that only shows that everything works. Its figures mean nothing."""
    short = Duration(1.0, 0.0, 50)
    return GridExtent(rounds, short, short, settings()[:: len(settings()) // _PICKED])


@dataclass(slots=True)
class GridResults:
    """The results.

    Attributes:
        trials: the result of each setting's first measurement, by load.
        picked: the names of the settings that were measured again.
        points: a result for each round, by setting and load.
    """

    trials: dict[str, dict[int, Point]] = field(default_factory=dict)
    picked: list[str] = field(default_factory=list)
    points: dict[tuple[str, int], list[Point]] = field(default_factory=dict)

    def rate(self, name: str, load: int) -> Figure:
        """Return a setting's operations per second at a load."""
        return Figure(tuple(point.rate for point in self.points[name, load]))

    def latency(self, name: str, load: int) -> Figure:
        """Return a setting's median latency in seconds at a load."""
        return Figure(tuple(point.latency for point in self.points[name, load]))

    def best(self, load: int) -> str:
        """Return the picked setting with the highest rate at a load."""
        return max(self.picked, key=lambda name: self.rate(name, load).median)

    def rates(self, load: int) -> Ratio:
        """Return the default's rate, divided by the best setting's."""
        return ratio(self.rate(DEFAULT, load), self.rate(self.best(load), load))

    def latencies(self, load: int) -> Ratio:
        """Return the default's median latency, divided by that of the best setting."""
        return ratio(self.latency(DEFAULT, load), self.latency(self.best(load), load))

    def reached(self, load: int) -> bool:
        """Say whether the default reaches its targets at a load."""
        return self.rates(load).median >= LEAST_RATE and self.latencies(load).median <= MOST_LATENCY


def pick(trials: Points) -> list[str]:
    """Return the names of three different settings: the best at each load.

    If one is the best at several loads, the settings with the highest product of the rates at all
    loads take the free places.
    """
    picked: list[str] = []
    for load in LOADS:
        best = max(trials, key=lambda name: trials[name][load].rate)
        if best not in picked:
            picked.append(best)
    by_all = sorted(trials, key=lambda name: -math.prod(trials[name][n].rate for n in LOADS))
    picked += [name for name in by_all if name not in picked]
    return picked[:_PICKED]


def measure_grid(target: Target, extent: GridExtent, step: Callable[[str], None]) -> GridResults:
    """Try the settings, pick the best, and measure these and the default.

    Raises:
        WrongAnswerError: an answer was wrong.
        MetadataStoreError: the store failed.
    """

    def say(what: str) -> Callable[[str], None]:
        return lambda text: step(f"{what}: {text}")

    results = GridResults()
    for number, setting in enumerate(extent.settings):
        found = _measure(target, f"g{number:02d}", [setting], extent.trial, say("trial"))
        results.trials[setting.name] = {load: point for (_, load), point in found.items()}
    results.picked = pick(results.trials)
    turns = [Setting(DEFAULT, BatchingConfig())]
    turns += [setting for setting in extent.settings if setting.name in results.picked]
    for number in range(extent.rounds):
        turns.reverse()
        said = f"round {number + 1} of {extent.rounds}"
        found = _measure(target, f"f{number:02d}", turns, extent.fresh, say(said))
        for name, point in found.items():
            results.points.setdefault(name, []).append(point)
    return results


def _measure(
    target: Target,
    label: str,
    turns: Sequence[Setting],
    duration: Duration,
    step: Callable[[str], None],
) -> dict[tuple[str, int], Point]:
    """Measure settings at all loads: all settings at one load, then at the next.

    Their stores are open at the same time, each in a separate place.
    """
    points = {}
    with ExitStack() as stack:
        opened = []
        for number, setting in enumerate(turns):
            there = stack.enter_context(fresh_place(target, f"{label}{number}"))
            store = stack.enter_context(there.open(setting.batching))
            opened.append((setting.name, there.root, store))
        for load in LOADS:
            for name, root, store in opened:
                step(f"{load} under way, {name}")
                work = Workload(hubs=1, outstanding=load, topics=load, value_bytes=VALUE_BYTES)
                samples = drive(store, put_chains(work, f"{root}/{load}"), duration)
                latency = statistics.median(samples.writes) / 1e9
                points[name, load] = Point(samples.rate, latency)
                if target.kind.keeps_in_heap:
                    # Otherwise, the sixty settings would leave a few million nodes.
                    remove_below(store, f"{root}/{load}")
    return points
