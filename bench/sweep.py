"""Measures several variants in turn, in several rounds.

Each round measures all variants, in an order of its own, and variants are compared within rounds.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from itertools import product
from typing import Any, Final

from ..batching import BatchingConfig
from ..ops.errors import InvalidSettingError
from .conditions import server_pids
from .load.callers import Pace
from .load.job import Job
from .load.mixes import Mix
from .load.parts import merged
from .load.peers import PEERS, Peer
from .load.processes import LocalCrew
from .results.runs import Measured, Run, Variant
from .results.statistics import stable, survivors
from .rounds import Rounds, Show
from .target import Target
from .workload import WrongAnswerError

#: Rounds of ``--until-stable``.
MOST_ROUNDS: Final = 40
_SCHEDULE: Final = ("rounds", "until_stable", "successive_halving", "p99_budget")
_FEWEST_ROUNDS: Final = 5
#: Rounds of each stage of ``--successive-halving``; the last stage has as many as were asked for.
_STAGE: Final = 3
_LEFT: Final = 4


@dataclass(frozen=True, slots=True)
class Sweep:
    """What to measure.

    Attributes:
        mix: the mix.
        variants: the variants, single execution first.
        pace: how all processes together load the store.
        seed: the seed of all random choices.
        rounds: each measures every variant once.
        until_stable: measure on, up to :data:`MOST_ROUNDS`, until the figures are known within this
            share; ``None`` for exactly ``rounds``.
        successive_halving: drop the worse half of the batch settings after every few rounds.
        p99_budget: the most seconds that the advice allows for 99 % of the operations; or ``None``.
        processes: the number of processes.
        spark: whether they are executors of Spark.
    """

    mix: Mix
    variants: Sequence[Variant]
    pace: Pace
    seed: int
    rounds: int
    until_stable: float | None = None
    successive_halving: bool = False
    p99_budget: float | None = None
    processes: int = 1
    spark: bool = False


def batching_variants(grid: Mapping[str, Sequence[Any]]) -> list[Variant]:
    """Return single execution, the default setting, and all combinations of the given values.

    Args:
        grid: the values of each field of ``BatchingConfig`` that is varied.

    Raises:
        InvalidSettingError: a value is out of its range.
    """
    single, default = BatchingConfig(enabled=False), BatchingConfig()
    variants = [
        Variant("single", "single", asdict(single), {"enabled": False}),
        Variant("default", "batching", asdict(default), {}),
    ]
    for values in product(*grid.values()):
        varied = dict(zip(grid, values, strict=True))
        batching = BatchingConfig(**varied)
        if varied and batching != default:
            name = " ".join(f"{field}={written(field, value)}" for field, value in varied.items())
            variants.append(Variant(name, "batching", asdict(batching), varied))
    return variants


def written(field: str, value: Any) -> str:
    """Return a value of a field as it is written on the command line."""
    if field == "max_delay":
        return f"{value * 1000:g}ms"
    if field.endswith("_bytes") and value and value % 1024 == 0:
        kib = value // 1024
        return f"{kib // 1024}MiB" if kib % 1024 == 0 else f"{kib}KiB"
    return str(value)


def peer_variants(peers: Sequence[Peer]) -> list[Variant]:
    """Return a variant for each peer. Its name is what the peer does."""
    return [Variant(peer.title, "peer", {}, {"peer": peer.name}) for peer in peers]


def planned(sweep: Sweep, command: Sequence[str], conditions: Mapping[str, Any]) -> Run:
    """Return the run of a sweep before anything is measured.

    Args:
        sweep: what to measure.
        command: the arguments of the command, for the results.
        conditions: the conditions, for the results.
    """
    pace = asdict(sweep.pace)
    return Run(
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        command=command,
        conditions=conditions,
        load={
            "mix": sweep.mix.as_table(),
            **{name: pace[name] for name in ("in_flight", "threads", "tasks", "rate")},
            **{name: getattr(sweep, name) for name in ("processes", "spark", "seed")},
        },
        schedule={
            **{name: pace[name] for name in ("seconds", "warm_up")},
            **{name: getattr(sweep, name) for name in _SCHEDULE},
        },
        variants=list(sweep.variants),
    )


def measure(target: Target, sweep: Sweep, crew: LocalCrew, show: Show, run: Run) -> None:
    """Measure everything in the sweep.

    Whatever ends it early, the run keeps what there is, and says in ``broken`` what happened, and
    at which variant and round. If the store went away within a timed part, nothing is raised.

    Args:
        target: the store.
        sweep: what to measure.
        crew: the processes that do it.
        show: shows it meanwhile.
        run: gets the results.

    Raises:
        WrongAnswerError: the store lost or changed an acknowledged write.
        MetadataStoreError: the store failed within a measurement.
        KeyboardInterrupt: the run was interrupted.
    """
    measuring = _Measuring(target, sweep, crew, show, run)
    try:
        measuring.all_rounds()
    except BaseException as error:
        run.broken = f"{measuring.turn}: {str(error) or 'interrupted'}"
        if isinstance(error, WrongAnswerError):
            raise WrongAnswerError(run.broken) from error
        raise


class _Measuring:
    def __init__(self, target: Target, sweep: Sweep, crew: LocalCrew, show: Show, run: Run) -> None:
        self._target = target
        self._sweep = sweep
        self._crew = crew
        self._run = run
        self._server = server_pids(target)
        self.turn = "before the first round"
        dice = random.Random(sweep.seed)
        self._turns = Rounds(show, lambda names, _: dice.sample(names, len(names)))

    def all_rounds(self) -> None:
        run, sweep = self._run, self._sweep
        variants = list(run.variants)
        # Open once, so that the first measurement does not pay for what is loaded on demand.
        self._target.open().close()
        if sweep.successive_halving:
            while len(variants) > _LEFT and not run.broken:
                self._rounds(variants, _STAGE)
                left = set(survivors(run))
                if len(left) == len(variants):
                    break
                variants = [variant for variant in variants if variant.name in left]
        if not run.broken:
            self._rounds(variants, max(sweep.rounds, _FEWEST_ROUNDS * bool(sweep.until_stable)))
        while sweep.until_stable and not run.broken and self._turns.number < MOST_ROUNDS:
            if stable(run, sweep.until_stable):
                return
            self._rounds(variants, 1)

    def _rounds(self, variants: Sequence[Variant], count: int) -> None:
        named = {variant.name: variant for variant in variants}
        self._turns.expect(count * len(named))
        for _ in range(count):
            for name in self._turns.turns(list(named)):
                self.turn = f"{name}, round {self._turns.number + 1}"
                found = self._measure(named[name])
                named[name].rounds.append(found)
                if found.broken:
                    self._run.broken = f"{self.turn}: {found.broken}"
                    return

    def _measure(self, variant: Variant) -> Measured:
        sweep, target = self._sweep, self._target
        number = self._run.variants.index(variant)
        pace = sweep.pace
        peer = PEERS[variant.varied["peer"]] if variant.kind == "peer" else None
        if peer is not None:
            pace = replace(
                pace, in_flight=peer.in_flight or pace.in_flight, threads=peer.threads, tasks=False
            )
        job = Job(
            url=target.url.text,
            connect_timeout=target.connect_timeout,
            root=f"{target.root}/{self._turns.number}-{number}",
            batching=None if peer else BatchingConfig(**variant.settings),
            peer=peer.name if peer else None,
            mix=sweep.mix,
            pace=pace,
            seed=sweep.seed + self._turns.number,
            server=self._server,
        )
        return merged(self._crew.measure(job), self._turns.number, pace.rate)


def check_processes(target: Target, sweep: Sweep) -> None:
    """Check that several processes can share a store.

    Raises:
        InvalidSettingError: they cannot.
    """
    kind = target.kind
    if (sweep.processes > 1 or sweep.spark) and (kind.in_process or kind.local_directory):
        raise InvalidSettingError(
            f"several processes cannot share {kind.title} ({target.name}); "
            f"leave out --processes and --spark, or name an etcd or a ZooKeeper"
        )
