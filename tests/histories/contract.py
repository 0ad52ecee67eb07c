"""Checks sequences, watches and ephemeral values against what clients did and saw.

Each check takes records of one kind, and returns the violations:

- **Sequences.** No suffix is given twice. A put that was called after the end of another one below
  the same parent has the greater suffix. Every put that succeeded is there, and nothing else but
  puts with an unknown outcome.
- **Watches.** The events of a path follow each other as its changes do: created, modified any
  number of times, deleted. Revisions never go back. No event comes twice, none is invented, and
  every change that was made after the watch began has its event, unless a gap stands in its place.
- **Ephemeral values.** A value is there from the end of its creation for as long as its session is
  certain to live, and it is gone after its session was reported as lost.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import batchkeeper as bk

from .checker import Violation
from .history import Op, Outcome

__all__ = [
    "Look",
    "Sequential",
    "SessionRecord",
    "WatchRecord",
    "check_ephemerals",
    "check_sequences",
    "check_watch",
]

_DIGITS = 10


@dataclass(slots=True)
class Sequential:
    """A sequential put. All times are seconds of the same monotonic clock."""

    parent: str
    invoked: float
    completed: float = math.inf
    outcome: Outcome = "pending"
    path: str | None = None  # the path in the stat of a put that succeeded

    @property
    def suffix(self) -> int:
        assert self.path is not None
        return int(self.path[-_DIGITS:])


def check_sequences(
    puts: Iterable[Sequential], there: Mapping[str, Sequence[str]] | None = None
) -> list[Violation]:
    """Check sequential puts.

    Args:
        puts: the puts.
        there: the names below each parent in the end, if nothing was deleted.
    """
    by_parent: defaultdict[str, list[Sequential]] = defaultdict(list)
    for put in puts:
        by_parent[put.parent].append(put)
    return [
        violation
        for parent, some in by_parent.items()
        for violation in _check_parent(parent, some, there)
    ]


def _check_parent(
    parent: str, puts: Sequence[Sequential], there: Mapping[str, Sequence[str]] | None
) -> Iterator[Violation]:
    for put in puts:
        if put.outcome == "pending":
            yield Violation("never ended", parent, str(put))
    done = [put for put in puts if put.outcome == "done"]
    for suffix, times in Counter(put.suffix for put in done).items():
        if times > 1:
            yield Violation("a suffix was used twice", parent, f"{suffix}")
    yield from _check_growth(parent, done)
    if there is None:
        return
    found = {f"{parent.rstrip('/')}/{name}" for name in there[parent]}
    acknowledged = {put.path for put in done}
    for path in acknowledged - found:
        yield Violation("an acknowledged value is missing", parent, str(path))
    unknown = sum(put.outcome == "unknown" for put in puts)
    if len(surplus := found - acknowledged) > unknown:
        yield Violation(
            "values that nobody put, or one that was put twice",
            parent,
            f"{sorted(surplus)} beside {unknown} puts with unknown outcome",
        )


def _check_growth(parent: str, done: Sequence[Sequential]) -> Iterator[Violation]:
    ended = sorted(done, key=lambda put: put.completed)
    greatest, at = None, 0  # among the puts that had ended before the call
    for put in sorted(done, key=lambda put: put.invoked):
        while at < len(ended) and ended[at].completed < put.invoked:
            if greatest is None or ended[at].suffix > greatest.suffix:
                greatest = ended[at]
            at += 1
        if greatest is not None and greatest.suffix > put.suffix:
            yield Violation("a suffix that did not grow", parent, f"{greatest}; {put}")


@dataclass(slots=True)
class WatchRecord:
    """What one watch has delivered.

    Attributes:
        prefix: the prefix of the watch.
        began: the time after the call that began it.
        events: its events, in the order of delivery.
        before: the paths that had a value when it began.
    """

    prefix: str
    began: float
    events: list[bk.WatchEvent] = field(default_factory=list)
    before: set[str] = field(default_factory=set)

    def covers(self, path: str) -> bool:
        """Say whether a path lies under the prefix."""
        return self.prefix == "/" or path == self.prefix or path.startswith(self.prefix + "/")


def check_watch(watch: WatchRecord, history: Iterable[Op], until: float) -> list[Violation]:
    """Check a watch against all writes to its paths, with their outcomes.

    Args:
        watch: the watch.
        history: the operations of all clients, transactions among them.
        until: changes that ended before this time must have arrived.
    """
    writes = [
        part
        for op in history
        for part in (op.parts or [op])
        if part.kind in {"put", "delete"} and watch.covers(part.path)
    ]
    return [*_check_order(watch), *_check_completeness(watch, writes, until)]


def _check_order(watch: WatchRecord) -> Iterator[Violation]:
    there: dict[str, bool | None] = dict.fromkeys(watch.before, True)
    versions: dict[str, int] = {}
    last = -1
    known = True  # whether a path that has not been seen was missing when the watch began
    for number, event in enumerate(watch.events):
        evidence = f"{number}: {event}, after {watch.events[max(0, number - 3) : number]}"
        if event.kind == "gap":
            there.clear()
            versions.clear()
            known = False
            continue
        if not watch.covers(event.path):
            yield Violation("an event of another path", watch.prefix, evidence)
        if event.revision is not None:
            if event.revision < last:
                yield Violation("a revision that goes back", watch.prefix, evidence)
            last = max(last, event.revision)
        exists = there.get(event.path, False if known else None)
        if exists is not None and exists == (event.kind == "created"):
            yield Violation("an event that cannot follow the one before", event.path, evidence)
        there[event.path] = event.kind != "deleted"
        if event.version is None:
            versions.pop(event.path, None)
            continue
        expected = 0 if event.kind == "created" else versions.get(event.path, event.version - 1) + 1
        if event.version != expected:
            yield Violation("a version that does not follow", event.path, evidence)
        versions[event.path] = event.version


def _check_completeness(
    watch: WatchRecord, writes: Sequence[Op], until: float
) -> Iterator[Violation]:
    changes = [event for event in watch.events if event.kind != "gap"]
    if any(event.revision is None for event in changes):
        yield from _check_counts(watch, writes, until)
        return
    seen = Counter((event.path, event.revision) for event in changes)
    for (path, revision), times in seen.items():
        if times > 1:
            yield Violation("an event came twice", path, f"revision {revision}, {times} times")
    puts = {(op.path, op.revision) for op in writes if op.kind == "put" and op.outcome == "done"}
    in_doubt = {op.path for op in writes if op.outcome in {"unknown", "pending"}}
    for event in changes:
        caused = (event.path, event.revision) in puts or event.path in in_doubt
        if event.kind != "deleted" and not caused:
            yield Violation("an event that nobody caused", event.path, str(event))
    for op in writes:
        put = op.kind == "put" and op.outcome == "done" and op.revision is not None
        due = op.invoked >= watch.began and op.completed <= until
        if put and due and (op.path, op.revision) not in seen and not _excused(watch, op):
            around = f"{op}, but {_around(watch, op)}"
            yield Violation("an event is missing, and there is no gap", op.path, around)


def _around(watch: WatchRecord, op: Op) -> str:
    """Return the events before and after the place of a change that has none."""
    assert op.revision is not None
    place = next(
        (n for n, event in enumerate(watch.events) if (event.revision or 0) > op.revision),
        len(watch.events),
    )
    return " | ".join(map(str, watch.events[max(0, place - 4) : place + 3]))


def _excused(watch: WatchRecord, op: Op) -> bool:
    """Say whether there is a gap between the events before and after a change."""
    assert op.revision is not None
    gap = False
    for event in watch.events:
        if event.kind == "gap":
            gap = True
        elif event.revision is not None:
            if event.revision > op.revision:
                return gap
            gap = False
    return gap


def _check_counts(watch: WatchRecord, writes: Sequence[Op], until: float) -> Iterator[Violation]:
    """Count the events of each path, where the store reports no revisions."""
    if any(event.kind == "gap" for event in watch.events):
        return
    events = Counter((event.path, event.kind == "deleted") for event in watch.events)
    least: Counter[tuple[str, bool]] = Counter()
    most: Counter[tuple[str, bool]] = Counter()
    for op in writes:
        if op.outcome in {"refused", "not_applied"}:
            continue
        key = (op.path, op.kind == "delete")
        most[key] += op.completed >= watch.began
        least[key] += op.outcome == "done" and watch.began <= op.invoked and op.completed <= until
    for key in events.keys() | least.keys():
        path, deleted = key
        what = f"{events[key]} {'deletes' if deleted else 'puts'}"
        if events[key] < least[key]:
            yield Violation(
                "an event is missing, and there is no gap", path, f"{what}, at least {least[key]}"
            )
        if events[key] > most[key]:
            yield Violation("an event came twice", path, f"{what}, at most {most[key]}")


@dataclass(slots=True)
class SessionRecord:
    """One session of a store, and an ephemeral value that was created in it.

    Attributes:
        path: the path of the value. No other operation changes it.
        created: the time after its creation was acknowledged.
        ended: the time of the call that ended it deliberately (a delete, a close, a kill), if any.
        valid: the greatest ``valid_until()`` that was read before ``ended``.
        lost: the time at which its client learned that the session is lost.
    """

    path: str
    created: float
    ended: float = math.inf
    valid: float = -math.inf
    lost: float = math.inf


@dataclass(slots=True)
class Look:
    """A linearizable look at a path by somebody else."""

    path: str
    invoked: float
    completed: float
    there: bool


def check_ephemerals(sessions: Iterable[SessionRecord], looks: Iterable[Look]) -> list[Violation]:
    """Check that each value is there exactly while its session may live."""
    by_path: defaultdict[str, list[Look]] = defaultdict(list)
    for look in looks:
        by_path[look.path].append(look)
    return [
        violation
        for session in sessions
        for violation in _check_ephemeral(session, by_path[session.path])
    ]


def _check_ephemeral(session: SessionRecord, looks: Sequence[Look]) -> Iterator[Violation]:
    gone: Look | None = None
    for look in sorted(looks, key=lambda look: look.invoked):
        certain = min(session.valid, session.ended)
        if not look.there and session.created < look.invoked and look.completed < certain:
            yield Violation(
                "an ephemeral value went before its session", session.path, f"{session}; {look}"
            )
        if look.there and look.invoked > session.lost:
            yield Violation(
                "an ephemeral value survived its session", session.path, f"{session}; {look}"
            )
        if look.there and gone is not None and gone.completed < look.invoked:
            yield Violation(
                "an ephemeral value came back", session.path, f"{session}; {gone}; {look}"
            )
        if not look.there and look.invoked > session.created and gone is None:
            gone = look
