"""The results of a run, and their form as JSON.

A *variant* is one way of executing the load: a batch setting, single execution, or a peer, which is
another client of the same store. A run measures each variant once in each of its *rounds*, so all
variants that took part in a round met the same machine. ``--successive-halving`` drops variants, so
not every variant took part in every round; figures of two variants are compared in the rounds that
they share.

Times are in seconds, sizes in bytes, rates in operations per second.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, TypeVar

from ...ops.errors import InvalidSettingError

SCHEMA: Final = "batchkeeper.bench"
#: Grows when a field changes its meaning or goes. New fields do not change it.
SCHEMA_VERSION: Final = 2

_T = TypeVar("_T")

VariantKind: TypeAlias = Literal["batching", "single", "peer"]


@dataclass(frozen=True, slots=True)
class Latencies:
    """The latencies of some operations.

    Attributes:
        count: the number of operations.
        percentiles: seconds by name: ``p50``, ``p90``, ``p95``, ``p99``, ``p99.9``, ``p99.99`` and
            ``max``; empty without operations.
        histogram: all of them, as the text of an HdrHistogram (V2, compressed) in microseconds.
    """

    count: int
    percentiles: Mapping[str, float]
    histogram: str


@dataclass(frozen=True, slots=True)
class Moment:
    """What a store did in one tenth of a second or so of a measurement.

    Attributes:
        at: seconds since the timed part began, at the end of this time.
        operations: operations that ended in this time.
        batches: batches that were sent in this time.
        batched: operations that were sent in these batches.
        queued: operations in the queues, at the end of this time.
        in_flight: batches under way, at the end of this time.
    """

    at: float
    operations: int
    batches: int
    batched: int
    queued: int
    in_flight: int


@dataclass(frozen=True, slots=True)
class Measured:
    """One variant in one round, over all threads and processes.

    Attributes:
        round: the number of the round, from 0.
        seconds: the length of the timed part.
        operations: operations that ended in it.
        rate: operations that ended, per second.
        asked_rate: the rate that was asked for; ``None`` for a closed loop.
        not_started: operations that were due before the end and had not been started; 0 for a
            closed loop.
        latencies: by ``all``, ``reads`` and ``writes``. For an open loop they count from the moment
            at which an operation was due.
        queue_seconds: time in the queue before sending: ``mean``, ``p50``, ``p99``; none for peers.
        store_seconds: time of a batch at the store, the same.
        batches: batches sent.
        batched: operations sent in them.
        causes: batches by the cause of their flush.
        fall_backs: operations executed singly because a queue was full.
        waits: calls that waited for room in a queue.
        conflicts: operations refused because of a version or a missing or existing path. All were
            expected.
        errors: other errors, by class name.
        client_cpu: seconds of CPU of the processes with the load generator and the client.
        server_cpu: seconds of CPU of the server; ``None`` where it runs elsewhere or in the client.
        client_memory: the greatest resident memory of these processes together.
        server_memory: the server's resident memory at the end; ``None`` likewise.
        series: the timed part in small steps; empty for peers.
        answers_checked: answers that were compared with what they had to be.
        paths_read_back: paths that were read again at the end, through another client.
        paths_unsure: paths that were not, because an operation on them had failed.
        broken: why the measurement ended early; ``None`` if it did not.
    """

    round: int
    seconds: float
    operations: int
    rate: float
    asked_rate: float | None
    not_started: int
    latencies: Mapping[str, Latencies]
    queue_seconds: Mapping[str, float]
    store_seconds: Mapping[str, float]
    batches: int
    batched: int
    causes: Mapping[str, int]
    fall_backs: int
    waits: int
    conflicts: int
    errors: Mapping[str, int]
    client_cpu: float
    server_cpu: float | None
    client_memory: int
    server_memory: int | None
    series: Sequence[Moment] = ()
    answers_checked: int = 0
    paths_read_back: int = 0
    paths_unsure: int = 0
    broken: str | None = None


@dataclass(slots=True)
class Variant:
    """A variant with its measurements.

    Attributes:
        name: its name in the report, such as ``default``, ``single`` or ``max_ops=16``.
        kind: ``batching``, ``single`` (``BatchingConfig(enabled=False)``) or ``peer``.
        settings: all fields of its ``BatchingConfig``; empty for a peer.
        varied: those of the fields that this run varies, or that differ from the default.
        rounds: a measurement for each round in which it took part, in order.
    """

    name: str
    kind: VariantKind
    settings: Mapping[str, Any]
    varied: Mapping[str, Any]
    rounds: list[Measured] = field(default_factory=list)


@dataclass(slots=True)
class Run:
    """The results of a run.

    Attributes:
        started: when it began, in ISO 8601 with the time zone.
        command: the arguments after ``batchkeeper bench``.
        conditions: versions, machine, store, disk, and the load of the machine before the run:
            ``batchkeeper``, ``python``, ``packages`` (versions by name), ``system``, ``cpus``,
            ``target``, ``store`` (the URL), ``server`` (its version or ``None``), ``members``,
            ``disk`` (``directory``, ``file_system``, ``fsync_seconds``, or ``None``), ``busy`` (the
            share of the processors in use before the run, 0 to 1, or ``None``) and ``warnings``.
        load: what was asked for: ``mix`` (its table), ``in_flight``, ``threads``, ``tasks``,
            ``processes``, ``spark``, ``rate``, ``seed``.
        schedule: ``rounds``, ``seconds``, ``warm_up``, ``until_stable``, ``successive_halving``,
            ``p99_budget``.
        variants: in the order of the report: ``single``, ``default``, the others, peers.
        broken: why the run ended early; ``None`` if it did not.
    """

    started: str
    command: Sequence[str]
    conditions: Mapping[str, Any]
    load: Mapping[str, Any]
    schedule: Mapping[str, Any]
    variants: list[Variant]
    broken: str | None = None


def write_run(run: Run, summary: Mapping[str, Any]) -> str:
    """Return a run as JSON, with its ``summary`` for those who do not compute their own."""
    document = {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        **dataclasses.asdict(run),
        "summary": summary,
    }
    return json.dumps(document, indent=1)


def read_run(file: Path) -> Run:
    """Return the run of a file that :func:`write_run` wrote.

    Raises:
        InvalidSettingError: the file cannot be read, is no result of the benchmark, or is one of
            another schema version. The message says which.
    """
    try:
        document = json.loads(file.read_text())
    except OSError as error:
        raise InvalidSettingError(f"{file} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise InvalidSettingError(f"{file} is not JSON: {error}") from error
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise InvalidSettingError(
            f'{file} is not a result of `batchkeeper bench`: it does not say "schema": "{SCHEMA}"'
        )
    if document.get("schema_version") != SCHEMA_VERSION:
        raise InvalidSettingError(
            f"{file} has version {document.get('schema_version')!r} of the schema, and this "
            f"batchkeeper reads version {SCHEMA_VERSION}: measure again, or use the batchkeeper "
            f"that wrote it"
        )
    try:
        return _run(document)
    except (KeyError, TypeError, AttributeError) as error:
        raise InvalidSettingError(f"{file} is damaged: {error!r}") from error


def _run(document: Mapping[str, Any]) -> Run:
    variants = []
    for variant in document["variants"]:
        rounds = [_measured(measured) for measured in variant["rounds"]]
        variants.append(_known(Variant, {**variant, "rounds": rounds}))
    return _known(Run, {**document, "variants": variants})


def _measured(document: Mapping[str, Any]) -> Measured:
    latencies = {name: _known(Latencies, part) for name, part in document["latencies"].items()}
    series = [_known(Moment, part) for part in document["series"]]
    return _known(Measured, {**document, "latencies": latencies, "series": series})


def _known(kind: Callable[..., _T], document: Mapping[str, Any]) -> _T:
    """Make an object of the fields that this version knows; later ones may have been added."""
    names = inspect.signature(kind).parameters
    return kind(**{name: document[name] for name in names if name in document})
