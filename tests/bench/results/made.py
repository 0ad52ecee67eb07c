"""Makes runs from plain numbers."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from hdrh.histogram import HdrHistogram

from batchkeeper import BatchingConfig
from batchkeeper.bench.results.runs import (
    Latencies,
    Measured,
    Moment,
    Run,
    Variant,
    VariantKind,
)

PERCENTILES = {"p50": 50, "p90": 90, "p95": 95, "p99": 99, "p99.9": 99.9, "p99.99": 99.99}


@lru_cache(maxsize=64)
def latencies(p50: float = 0.001, p99: float = 0.004, count: int = 1000) -> Latencies:
    """Latencies with these percentiles, and a histogram of three values that shows them."""
    names = ("p50", "p90", "p95", "p99", "p99.9", "p99.99", "max")
    steps = (0.0, 0.4, 0.7, 1.0, 1.5, 2.0, 2.5)
    found = HdrHistogram(1, 3_600_000_000, 3)
    for name, step in zip(names, steps, strict=True):
        share = {"p50": 0.5, "p90": 0.4, "p95": 0.05, "p99": 0.04}.get(name, 0.003)
        found.record_value(_between(p50, p99, step, 1e6), max(1, int(count * share)))
    percentiles = {n: _between(p50, p99, s) for n, s in zip(names, steps, strict=True)}
    return Latencies(count, percentiles, found.encode().decode())


def _between(p50: float, p99: float, step: float, unit: float = 1.0) -> Any:
    value = p50 * (p99 / p50) ** step * unit
    return int(value) if unit > 1 else value


NONE = Latencies(0, {}, "")


def measured(number: int, rate: float, **fields: Any) -> Measured:
    """One second of a closed loop, with batches of ten."""
    operations = int(rate)
    p50, p99 = fields.pop("p50", 0.001), fields.pop("p99", 0.004)
    found = latencies(p50, p99) if operations else NONE
    whole = Measured(
        round=number,
        seconds=1.0,
        operations=operations,
        rate=rate,
        asked_rate=None,
        not_started=0,
        latencies={"all": found, "reads": NONE, "writes": found},
        queue_seconds={"mean": 0.0005, "p50": 0.0004, "p99": 0.002},
        store_seconds={"mean": 0.0005, "p50": 0.0004, "p99": 0.002},
        batches=operations // 10,
        batched=operations,
        causes={"ops": operations // 10 - operations // 40, "idle": operations // 40},
        fall_backs=0,
        waits=0,
        conflicts=0,
        errors={},
        client_cpu=operations * 40e-6,
        server_cpu=operations * 60e-6,
        client_memory=80 * 2**20,
        server_memory=60 * 2**20,
        answers_checked=operations,
        paths_read_back=100,
    )
    return dataclasses.replace(whole, **fields)


_KINDS: dict[str, VariantKind] = {"single": "single", "default": "batching"}


def variant(
    name: str, rates: Sequence[float], kind: VariantKind | None = None, **fields: Any
) -> Variant:
    """A variant with a round for each rate; ``max_ops=16`` is a setting, ``etcd3`` a peer."""
    kind = kind or _KINDS.get(name, "batching" if "=" in name else "peer")
    varied: dict[str, Any] = {}
    if kind == "single":
        varied = {"enabled": False}
    elif kind == "batching" and name != "default":
        varied = dict(map(_setting, name.split(", ")))
    settings = {} if kind == "peer" else dataclasses.asdict(BatchingConfig(**varied))
    rounds = [measured(number, rate, **fields) for number, rate in enumerate(rates)]
    return Variant(name, kind, settings, varied, rounds)


def _setting(text: str) -> tuple[str, Any]:
    name, value = text.split("=")
    if value.endswith("ms"):
        return name, float(value[:-2]) / 1000
    return name, int(value) if value.isdigit() else value


def run(*variants: Variant, **fields: Any) -> Run:
    """A run of these variants, as a closed loop on a throw-away etcd."""
    load: dict[str, Any] = {
        "mix": {"name": "hub", "reads": 0.4},
        "in_flight": 256,
        "threads": 1,
        "tasks": None,
        "processes": 1,
        "spark": False,
        "rate": None,
        "seed": 1,
    }
    schedule: dict[str, Any] = {
        "rounds": max((len(v.rounds) for v in variants), default=0),
        "seconds": 1.0,
        "warm_up": 0.5,
        "until_stable": None,
        "successive_halving": False,
        "p99_budget": None,
    }
    conditions: dict[str, Any] = {
        "batchkeeper": "0.1.0",
        "python": "3.11.2",
        "packages": {"grpcio": "1.83.0"},
        "system": "Linux-6.1-x86_64",
        "cpus": 2,
        "target": "etcd",
        "store": "etcd://127.0.0.1:2379",
        "server": "3.6.1",
        "members": 1,
        "disk": {"directory": "/data", "file_system": "ext4", "fsync_seconds": 0.0021},
        "busy": 0.03,
        "warnings": [],
    }
    load.update(fields.pop("load", {}))
    schedule.update(fields.pop("schedule", {}))
    conditions.update(fields.pop("conditions", {}))
    return Run(
        started=fields.pop("started", "2026-01-02T03:04:05+00:00"),
        command=fields.pop("command", ["etcd", "--max-ops", "16,64"]),
        conditions=conditions,
        load=load,
        schedule=schedule,
        variants=list(variants),
        **fields,
    )


def open_loop(asked: float, budget: float | None, *variants: Variant, **fields: Any) -> Run:
    """A run of these variants at a rate, with a budget for the 99th percentile."""
    for found in variants:
        found.rounds = [dataclasses.replace(m, asked_rate=asked) for m in found.rounds]
    return run(*variants, load={"rate": asked}, schedule={"p99_budget": budget}, **fields)


def noisy(rates: Mapping[str, float], rounds: int, noise: float = 0.05, seed: int = 1) -> Run:
    """A run on a machine that varies by 10 % between rounds, and by ``noise`` within them."""
    dice = random.Random(seed)
    machine = [dice.lognormvariate(0, 0.1) for _ in range(rounds)]
    return run(
        *(
            variant(name, [rate * m * dice.lognormvariate(0, noise) for m in machine])
            for name, rate in rates.items()
        )
    )


def series(operations: int, steps: int = 10) -> list[Moment]:
    """A second in tenths, with batches of ten."""
    each = operations // steps
    return [
        Moment((step + 1) / steps, each, each // 10, each, 20 + step, 2) for step in range(steps)
    ]
