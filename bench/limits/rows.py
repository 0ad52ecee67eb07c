"""The rows of the table: the figures to compare, and the targets to reach."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from ...ops.capabilities import Capability
from ...stores.kinds import BUILT_IN

__all__ = ["ROWS", "STORES", "Goal", "Row", "Verdict", "verdict"]

#: ``goal``: it reaches the long-term goal. ``target``: it is good enough. ``missed``: neither.
Verdict: TypeAlias = Literal["goal", "target", "missed"]


@dataclass(frozen=True, slots=True)
class Goal:
    """The target to reach, and optionally the more ambitious goal."""

    target: float
    goal: float | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table.

    Attributes:
        name: the name for ``--only`` and in the JSON.
        what: the description for readers.
        figure: the figure that is measured: a variant and the name of one of its figures.
        base: the figure to divide it by; ``None`` if the figure itself has a target, in its unit.
        goals: the goals by the kind of store; kinds without a goal do not have this row.
        less: whether less is better.
        beside: more figures to show, by their descriptions.
        needs: the capability that it needs; kinds without it do not have this row.
    """

    name: str
    what: str
    figure: tuple[str, str]
    base: tuple[str, str] | None
    goals: Mapping[str, Goal]
    less: bool = False
    beside: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    needs: Capability | None = None

    def fits(self, store: str) -> bool:
        """Say whether a kind of store has this row."""
        able = self.needs is None or self.needs in BUILT_IN[store].capabilities
        return able and store in self.goals


def _each(etcd: Goal, zookeeper: Goal, rocksdb: Goal) -> Mapping[str, Goal]:
    return {"etcd": etcd, "zookeeper": zookeeper, "rocksdb": rocksdb}


_SERVED_HALF: Final = {"etcd": Goal(0.5), "zookeeper": Goal(0.5)}

ROWS: Final[Sequence[Row]] = (
    Row(
        "puts",
        "unconditional puts, against the raw ceiling",
        ("puts", "rate"),
        ("raw puts", "rate"),
        _each(Goal(0.95, 1.1), Goal(1.0, 1.3), Goal(0.5, 0.7)),
    ),
    Row(
        "conditional",
        "conditional puts with a verdict each, against the raw ceiling",
        ("conditional puts", "rate"),
        ("raw conditional puts", "rate"),
        _each(Goal(0.85, 1.1), Goal(1.0, 1.3), Goal(0.45, 0.7)),
    ),
    Row(
        "creates",
        "creations with a verdict each, against the raw ceiling",
        ("creates", "rate"),
        ("raw creates", "rate"),
        {"etcd": Goal(0.85, 1.1)},
    ),
    Row(
        "gets",
        "gets, against the raw ceiling",
        ("gets", "rate"),
        ("raw gets", "rate"),
        _each(Goal(0.75, 0.9), Goal(20, 40), Goal(0.35, 0.7)),
    ),
    Row(
        "plain",
        "puts, against the plain client's in a loop",
        ("puts", "rate"),
        ("plain puts", "rate"),
        _each(Goal(30, 40), Goal(30, 40), Goal(15)),
    ),
    Row(
        "apply",
        "apply of puts, against futures",
        ("applied puts", "rate"),
        ("puts", "rate"),
        _each(Goal(1.3, 1.5), Goal(1.3, 1.5), Goal(1.3, 1.5)),
        beside={"the same with the making of the operations": ("applied puts", "making")},
    ),
    Row(
        "threads",
        "64 threads, a put each, against 64 threads on the plain client",
        ("puts of threads", "rate"),
        ("plain puts of threads", "rate"),
        _each(Goal(3, 5), Goal(3, 5), Goal(3, 5)),
        beside={"the same on a store that only takes as long": ("puts of threads", "bound")},
    ),
    Row(
        "tasks",
        "1,000 asyncio tasks, a put each, against the plain client's in a loop",
        ("puts of tasks", "rate"),
        ("plain puts", "rate"),
        _each(Goal(15, 20), Goal(15, 20), Goal(5)),
    ),
    Row(
        "idle",
        "one put at a time on an idle store: median latency, against the plain client's",
        ("lone puts", "latency"),
        ("plain puts", "latency"),
        _each(Goal(1.3, 1.15), Goal(1.3, 1.15), Goal(2.0, 1.5)),
        less=True,
    ),
    Row(
        "conflicts",
        "one operation in ten conflicts, against none",
        ("conflicting puts", "rate"),
        ("conditional puts", "rate"),
        _each(Goal(0.85), Goal(0.6), Goal(0.9)),
    ),
    Row(
        "neighbour",
        "another client's single puts while this one saturates the server: p99",
        ("neighbour's puts", "p99"),
        None,
        {"etcd": Goal(0.050), "zookeeper": Goal(0.050)},
        less=True,
        beside={"the same before, with the server idle": ("neighbour's puts", "alone")},
    ),
    Row(
        "ephemeral",
        "creations that are ephemeral, against others",
        ("ephemeral creates", "rate"),
        ("creates", "rate"),
        _each(Goal(0.9), Goal(0.9), Goal(0.9)),
        needs="ephemerals",
    ),
    Row(
        "sequential",
        "creations that are sequential, below one parent, against others",
        ("sequential creates", "rate"),
        ("creates", "rate"),
        _each(Goal(0.6), Goal(0.6), Goal(0.6)),
        needs="sequences",
    ),
    Row(
        "transactions",
        "transactions of a check and a put, against the same puts without",
        ("transactions", "rate"),
        ("conditional puts", "rate"),
        _each(Goal(0.6), Goal(0.6), Goal(0.6)),
        needs="transactions",
    ),
    Row(
        "fenced",
        "the same, where all check one path, the record of their owner",
        ("fenced puts", "rate"),
        ("conditional puts", "rate"),
        _each(Goal(0.6), Goal(0.6), Goal(0.6)),
        needs="transactions",
    ),
    Row(
        "watch",
        "events that one watch takes, against the puts that another process makes meanwhile",
        ("watched puts", "rate"),
        ("watched puts", "made"),
        {"etcd": Goal(0.8), "zookeeper": Goal(0.8)},
        needs="watches",
    ),
    Row(
        "event",
        "from the end of a put to its event at another client, on an idle store: median",
        ("watched puts alone", "delay"),
        None,
        {"etcd": Goal(0.002), "zookeeper": Goal(0.002)},
        less=True,
        needs="watches",
    ),
    Row(
        "abandoned",
        "10,000 ephemeral values of a killed process: gone, after the session timeout",
        ("abandoned values", "after"),
        None,
        {"etcd": Goal(2.0), "zookeeper": Goal(2.0)},
        less=True,
        needs="ephemerals",
    ),
    Row(
        "lock",
        "acquire and release of a lock that nobody else wants: median, against the plain client's",
        ("lone locks", "latency"),
        ("lone plain locks", "latency"),
        {"etcd": Goal(0.7), "zookeeper": Goal(1.5)},
        less=True,
        needs="ephemerals",
    ),
    Row(
        "line",
        "hand-overs of a lock among 100 threads that share a store, against kazoo's lock",
        ("locks in line", "rate"),
        ("plain locks in line", "rate"),
        {"zookeeper": Goal(2.0)},
        needs="watches",
    ),
    Row(
        "stores",
        "the same with ten stores, against ten clients of kazoo",
        ("locks in line of ten", "rate"),
        ("plain locks in line of ten", "rate"),
        {"zookeeper": Goal(2.0)},
        needs="watches",
    ),
    Row(
        "hand-over",
        "operations for each hand-over of a lock, with 100 threads in line on ten stores",
        ("locks in line of ten", "cost"),
        None,
        {"etcd": Goal(4), "zookeeper": Goal(4)},
        less=True,
        beside={"hand-overs": ("locks in line of ten", "rate")},
        needs="watches",
    ),
    Row(
        "hits",
        "hits of a cache in one thread",
        ("cache hits", "rate"),
        None,
        _each(Goal(1_500_000), Goal(1_500_000), Goal(1_500_000)),
        needs="watches",
    ),
    Row(
        "updates",
        "read_modify_updates of 8 threads, against conditional puts of 8 threads",
        ("updates", "rate"),
        ("puts of few threads", "rate"),
        _each(Goal(0.5), Goal(0.5), Goal(0.5)),
        needs="watches",
    ),
    Row(
        "numbers",
        "numbers of a counter with a block in hand",
        ("numbers", "rate"),
        None,
        _each(Goal(1_000_000), Goal(1_000_000), Goal(1_000_000)),
        beside={"the same with blocks of 1,000": ("numbers", "blocks")},
    ),
    Row(
        "processes",
        "numbers that four processes take at once, in blocks of 1,000: a million without a repeat",
        ("numbers of processes", "numbers"),
        None,
        {"etcd": Goal(200_000), "zookeeper": Goal(200_000)},
    ),
    Row(
        "failover",
        "from the kill of a leader to the next one, after the session timeout: median",
        ("failovers", "after"),
        None,
        {"etcd": Goal(0.5), "zookeeper": Goal(0.5)},
        less=True,
        needs="watches",
    ),
    Row(
        "claims",
        "first claims of topics in one call, in the layout of paths, against puts",
        ("claims in paths", "rate"),
        ("puts", "rate"),
        _SERVED_HALF,
    ),
    Row(
        "claims-tables",
        "the same in the layout of tables",
        ("claims in tables", "rate"),
        ("puts", "rate"),
        _SERVED_HALF,
    ),
    Row(
        "claims-ephemeral",
        "first claims of 1,000 tasks, one at a time each, ephemeral owners, against puts of tasks",
        ("ephemeral claims", "rate"),
        ("puts of tasks", "rate"),
        _SERVED_HALF,
        needs="ephemerals",
    ),
    Row(
        "claims-compared",
        "the same, compared owners",
        ("compared claims", "rate"),
        ("puts of tasks", "rate"),
        _SERVED_HALF,
        needs="transactions",
    ),
    Row(
        "claims-hub",
        "the same, by publishing to a hub, which claims the topic for the first message",
        ("publishes that claim", "rate"),
        ("puts of tasks", "rate"),
        _SERVED_HALF,
        needs="ephemerals",
    ),
    Row(
        "marks",
        "1,000,000 consume marks of 10,000 subscribers, until all are stored, against puts",
        ("mark updates", "rate"),
        ("puts", "rate"),
        _SERVED_HALF,
    ),
    Row(
        "subscriptions",
        "read_subscriptions of 10,000 subscribers",
        ("subscriptions read", "seconds"),
        None,
        {"etcd": Goal(1.0), "zookeeper": Goal(1.0)},
        less=True,
    ),
    Row(
        "recovery",
        "10,000 topics of a killed hub, ephemeral owners: all claimed, after the session timeout",
        ("ephemeral recovery", "after"),
        None,
        {"etcd": Goal(5.0), "zookeeper": Goal(5.0)},
        less=True,
        needs="ephemerals",
    ),
    Row(
        "recovery-compared",
        "the same, compared owners",
        ("compared recovery", "after"),
        None,
        {"etcd": Goal(5.0), "zookeeper": Goal(5.0)},
        less=True,
        needs="ephemerals",
    ),
)

#: The kinds of stores that are measured: those with a goal.
STORES: Final = tuple(dict.fromkeys(store for row in ROWS for store in row.goals))


def verdict(value: float, goal: Goal, *, less: bool) -> Verdict:
    """Say whether a value reaches its goal, its target or neither. ``less``: less is better."""
    if goal.goal is not None and _reaches(value, goal.goal, less):
        return "goal"
    return "target" if _reaches(value, goal.target, less) else "missed"


def _reaches(value: float, bound: float, less: bool) -> bool:
    return value <= bound if less else value >= bound
