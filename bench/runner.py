"""The measurement: every batch setting and the plain client, in turn, several rounds of them.

A machine's pace changes from minute to minute by more than settings differ. So each round measures
all of them, the rounds begin at different ones, and only medians of the same rounds are compared.
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
#: What each setting is measured with: the hubs' work, and plain puts of new paths.
PHASES: Final = tuple(_CHAINS)


@dataclass(frozen=True, slots=True)
class Setting:
    """A batch setting with the name that it has in the report."""

    name: str
    batching: BatchingConfig


def settings_of(
    max_ops: Sequence[int], max_delay: Sequence[float], max_in_flight: Sequence[int]
) -> list[Setting]:
    """Return single execution, the default setting, and all combinations of what is given.

    Raises:
        InvalidSettingError: for a value out of its range.
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
    """What is to be measured, and for how long.

    Attributes:
        workload: the hubs' work.
        settings: in the order of the report, single execution first.
        rounds: how often each is measured.
        duration: of one measurement.
        threads: callers, who share the hubs' chains.
    """

    workload: Workload
    settings: Sequence[Setting]
    rounds: int
    duration: Duration
    threads: int


@dataclass(slots=True)
class Phase:
    """What one setting gave with one kind of work, a value for each round."""

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
        """Operations a second."""
        return Figure(tuple(self.rates))

    def latency(self, which: str = "all") -> dict[str, float]:
        """Return p50, p95 and p99, medians of the rounds, and the max of all, in seconds."""
        rounds = [percentiles(found) for found in self.latencies[which]]
        named = {name: Figure(tuple(r[name] for r in rounds)) for name in rounds[0]}
        return {
            name: figure.high if name == "max" else figure.median for name, figure in named.items()
        }


@dataclass(slots=True)
class Results:
    """All that was measured.

    Attributes:
        phases: by the setting's name and then the phase's.
        plain: the plain client's puts a second; empty where there is none.
        paths_read_back: that were compared with what had been acknowledged, all of them right.
    """

    phases: dict[str, dict[str, Phase]]
    plain: list[float] = field(default_factory=list)
    paths_read_back: int = 0

    def best(self, phase: str) -> str:
        """Return the name of the batch setting with the most operations a second in a phase."""
        batching = [name for name in self.phases if name != SINGLE]
        return max(batching, key=lambda name: self.phases[name][phase].rate.median)

    def times_single(self, name: str, phase: str) -> Ratio:
        """Return how many times single execution's operations a second a setting reached."""
        return ratio(self.phases[name][phase].rate, self.phases[SINGLE][phase].rate)

    def times_plain(self, name: str) -> Ratio:
        """Return how many times the plain client's puts a second a setting reached."""
        return ratio(self.phases[name]["puts"].rate, Figure(tuple(self.plain)))


def measure(target: Target, plan: Schedule, step: Callable[[str], None]) -> Results:
    """Measure everything in the plan; say with ``step`` what comes next.

    Raises:
        WrongAnswerError: the store did not keep what it had acknowledged.
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
    # By another store than the one that wrote, as whoever needs the data later would be.
    with target.open() as store:
        for chains, below in worked:
            results.paths_read_back += read_back(store, chains, below)
