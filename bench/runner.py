"""Measures every batch setting and the plain client, in turn, in several rounds.

The speed of a machine changes from minute to minute by more than settings differ. So each round
measures all of them, rounds begin at different settings, and only medians over the same rounds are
compared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any, Final

from ..batching import BatchingConfig
from .baseline import measure_plain
from .drive import Duration, Samples, drive
from .figures import Batches, Figure, Ratio, batches_between, histogram, percentiles, ratio
from .readback import read_back
from .target import Target
from .workload import Chain, Workload, hub_chains, put_chains

__all__ = ["PHASES", "SINGLE", "Phase", "Schedule", "Results", "Setting", "measure", "settings_of"]

#: The setting that all others are compared with.
SINGLE: Final = "single"

_CHAINS: Final[Mapping[str, Callable[[Workload, str], Sequence[Chain]]]] = {
    "hub": hub_chains,
    "puts": put_chains,
}
#: The kinds of work that measure each setting: the hubs' work, and plain puts of new paths.
PHASES: Final = tuple(_CHAINS)


@dataclass(frozen=True, slots=True)
class Setting:
    """A batch setting with the name that it has in the report."""

    name: str
    batching: BatchingConfig


def settings_of(
    max_ops: Sequence[int], max_delay: Sequence[float], max_in_flight: Sequence[int]
) -> list[Setting]:
    """Return single execution, the default setting, and all combinations of the given values.

    Raises:
        InvalidSettingError: a value is out of its range.
    """
    settings = [
        Setting(SINGLE, BatchingConfig(enabled=False)),
        Setting("default", BatchingConfig()),
    ]
    for ops, delay, in_flight in product(max_ops, max_delay, max_in_flight):
        settings.append(
            Setting(
                f"{ops} ops, {delay * 1000:g} ms, {in_flight} in flight",
                BatchingConfig(max_ops=ops, max_delay=delay, max_in_flight=in_flight),
            )
        )
    return settings


@dataclass(frozen=True, slots=True)
class Schedule:
    """The work, the settings and the length of a measurement.

    Attributes:
        workload: the hubs' work.
        settings: the settings in the order of the report, single execution first.
        rounds: the number of rounds; each measures every setting once.
        duration: the length of the measurement of one setting.
        threads: the number of callers, which share the hubs' chains.
    """

    workload: Workload
    settings: Sequence[Setting]
    rounds: int
    duration: Duration
    threads: int


@dataclass(slots=True)
class Phase:
    """The results of one setting with one kind of work, a value for each round."""

    rates: list[float] = field(default_factory=list)
    batches: list[Batches] = field(default_factory=list)
    latencies: dict[str, list[Any]] = field(
        default_factory=lambda: {"all": [], "reads": [], "writes": []}
    )

    def add(self, samples: Samples) -> None:
        self.rates.append(samples.rate)
        self.batches.append(batches_between(samples.before, samples.after))
        self.latencies["all"].append(histogram(samples.reads, samples.writes))
        self.latencies["reads"].append(histogram(samples.reads))
        self.latencies["writes"].append(histogram(samples.writes))

    @property
    def rate(self) -> Figure:
        """Operations per second."""
        return Figure(tuple(self.rates))

    def latency(self, which: str = "all") -> dict[str, float]:
        """Return p50, p95 and p99 as medians of the rounds, and the max of all, in seconds."""
        rounds = [percentiles(found) for found in self.latencies[which]]
        named = {name: Figure(tuple(r[name] for r in rounds)) for name in rounds[0]}
        return {
            name: figure.high if name == "max" else figure.median for name, figure in named.items()
        }


@dataclass(slots=True)
class Results:
    """The results of a measurement.

    Attributes:
        phases: the results by the name of the setting, and then of the phase.
        plain: the plain client's puts per second, by round; empty if there is no plain client.
        paths_read_back: the number of paths that were compared with the acknowledged writes. All
            were right.
    """

    phases: dict[str, dict[str, Phase]]
    plain: list[float] = field(default_factory=list)
    paths_read_back: int = 0

    def best(self, phase: str) -> str:
        """Return the name of the batch setting with the most operations per second in a phase."""
        batching = [name for name in self.phases if name != SINGLE]
        return max(batching, key=lambda name: self.phases[name][phase].rate.median)

    def times_single(self, name: str, phase: str) -> Ratio:
        """Return a setting's operations per second, divided by those of single execution."""
        return ratio(self.phases[name][phase].rate, self.phases[SINGLE][phase].rate)

    def times_plain(self, name: str) -> Ratio:
        """Return a setting's puts per second, divided by those of the plain client."""
        return ratio(self.phases[name]["puts"].rate, Figure(tuple(self.plain)))


def measure(target: Target, plan: Schedule, step: Callable[[str], None]) -> Results:
    """Measure everything in the plan. ``step`` receives a description of each step.

    Raises:
        WrongAnswerError: the store lost or changed an acknowledged write.
        MetadataStoreError: the store failed.
    """
    results = Results({setting.name: {p: Phase() for p in PHASES} for setting in plan.settings})
    turns: list[Setting | None] = [*plan.settings, *([None] if target.plain else [])]
    for number in range(plan.rounds):
        first = number * len(turns) // plan.rounds
        for turn in turns[first:] + turns[:first]:
            root = f"{target.root}/{number}"
            said = f"round {number + 1} of {plan.rounds}"
            if turn is not None:
                step(f"{said}: {turn.name}")
                _measure_setting(target, plan, turn, f"{root}-{turns.index(turn)}", results)
            elif target.plain is not None:
                step(f"{said}: {target.plain.call}")
                results.plain.append(
                    measure_plain(
                        target.plain,
                        target.url,
                        f"{root}-plain",
                        plan.workload.value_bytes,
                        plan.duration,
                    ).rate
                )
    return results


def _measure_setting(
    target: Target, plan: Schedule, setting: Setting, root: str, results: Results
) -> None:
    worked: list[tuple[Sequence[Chain], str]] = []
    with target.open(setting.batching) as store:
        for phase in PHASES:
            below = f"{root}/{phase}"
            chains = _CHAINS[phase](plan.workload, below)
            samples = drive(store, chains, plan.duration, plan.threads)
            results.phases[setting.name][phase].add(samples)
            worked.append((chains, below))
    # Read back through another store, as a later reader would.
    with target.open() as store:
        for chains, below in worked:
            results.paths_read_back += read_back(store, chains, below)
