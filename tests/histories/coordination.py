"""Checks locks, elections, fenced writes, counters, caches and queues by what clients saw.

Each check takes records of one kind, and returns the violations:

- **Holds.** A lock has one holder at a time, an election one leader, a job one worker. A holder
  believes in its hold from the return of the call that began it, until it gives it up or notices
  its loss, and no longer than until the last ``held_until()`` that it has seen. All beliefs must be
  true, so no two of them may overlap. Tokens grow from each hold to the next.
- **Fenced writes.** No write is applied after one with a greater token.
- **Numbers.** No number of a counter comes twice, and a later call gets a greater one.
- **Reads of a cache.** No read is older than what its client had seen before. After all changes
  have ended, each cache shows what is in the store. No update is lost.
- **Jobs.** Each job is done, at least once, or still there.

All times are seconds of ``time.monotonic()``, which is one clock for all processes of a machine.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from .checker import Violation
from .history import Outcome

__all__ = [
    "Fenced",
    "Finish",
    "Hold",
    "Job",
    "Number",
    "Read",
    "Seen",
    "Update",
    "check_fenced",
    "check_holds",
    "check_jobs",
    "check_numbers",
    "check_reads",
    "check_updates",
]


@dataclass(slots=True)
class Hold:
    """A hold of a lock, a leader's term or a worker's claim for a job, as its holder saw it.

    Attributes:
        path: what is held.
        holder: who holds it.
        token: its fencing token.
        acquired: the time after the call that began it.
        until: the time up to which the holder believes in it without another look.
        released: the time before the call that gave it up.
        lost: the time before the first look that showed its loss.
        shared: whether other shared holds may exist at the same time.
    """

    path: str
    holder: str
    token: int
    acquired: float
    until: float = -math.inf
    released: float = math.inf
    lost: float = math.inf
    shared: bool = False

    def look(self, at: float, held_until: float, *, held: bool) -> None:
        """Take in the answer to a look of the holder that began at ``at``."""
        if held:
            # It was held at some time after `at`, whatever `held_until` says.
            self.until = max(self.until, held_until, at)
        else:
            self.lost = min(self.lost, at)

    @property
    def end(self) -> float:
        """The time at which the holder ceases to believe in it."""
        return min(self.until, self.released, self.lost)


def check_holds(holds: Iterable[Hold], limit: int = 1) -> list[Violation]:
    """Check the holds of locks, or of semaphores with a ``limit``."""
    return [
        violation
        for path, some in _by(holds, lambda hold: hold.path).items()
        for violation in [*_check_beliefs(path, some, limit), *_check_tokens(path, some, limit)]
    ]


def _believed(holds: Iterable[Hold]) -> list[Hold]:
    """Return the holds that were ever believed, in their order.

    Each began before its ``acquired``, and was there at that time. So this is the true order.
    """
    some = [hold for hold in holds if hold.acquired < hold.end]
    return sorted(some, key=lambda hold: hold.acquired)


def _check_beliefs(path: str, holds: Sequence[Hold], limit: int) -> Iterator[Violation]:
    current: list[Hold] = []
    for hold in _believed(holds):
        current = [other for other in current if other.end > hold.acquired]
        rivals = [other for other in current if not (hold.shared and other.shared)]
        if len(rivals) >= limit:
            yield Violation("too many holders at a time", path, f"{rivals}; {hold}")
        current.append(hold)


def _check_tokens(path: str, holds: Sequence[Hold], limit: int) -> Iterator[Violation]:
    for token, times in Counter(hold.token for hold in holds).items():
        if times > 1:
            yield Violation("a token was given twice", path, f"{token}")
    if limit > 1:  # Several hold at the same time, in no order.
        return
    greatest: dict[bool, Hold] = {}  # by `shared`
    for hold in _believed(holds):
        before = [greatest.get(False), None if hold.shared else greatest.get(True)]
        for other in before:
            if other is not None and other.token > hold.token:
                yield Violation("a token that did not grow", path, f"{other}; {hold}")
        kept = greatest.get(hold.shared)
        if kept is None or kept.token < hold.token:
            greatest[hold.shared] = hold


@dataclass(slots=True)
class Fenced:
    """A fenced put of a value that nobody else puts, to a path that nobody deletes."""

    path: str
    value: str
    token: int
    outcome: Outcome = "pending"
    version: int | None = None


@dataclass(slots=True)
class Seen:
    """What a read found."""

    path: str
    value: str
    version: int


def check_fenced(
    writes: Iterable[Fenced], seen: Iterable[Seen], last: Iterable[Seen] = ()
) -> list[Violation]:
    """Check fenced writes.

    Args:
        writes: the writes.
        seen: what was read at any time.
        last: what was read after the end of all writes.
    """
    last = list(last)
    reads = _by([*seen, *last], lambda read: read.path)
    finals = {read.path: read for read in last}
    return [
        violation
        for path, some in _by(writes, lambda write: write.path).items()
        for violation in _check_fenced(path, some, reads[path], finals.get(path))
    ]


def _check_fenced(
    path: str, writes: Sequence[Fenced], seen: Sequence[Seen], last: Seen | None
) -> Iterator[Violation]:
    yield from (
        Violation("never ended", path, str(one)) for one in writes if one.outcome == "pending"
    )
    by_value = {write.value: write for write in writes}
    applied: dict[int, Fenced] = {}  # by the version that it made
    evidence = [(one, one.version) for one in writes if one.version is not None]
    for read in seen:
        if (made := by_value.get(read.value)) is None:
            yield Violation("a value that nobody wrote", path, str(read))
        elif made.outcome in {"refused", "not_applied"}:
            yield Violation("a refused write was applied", path, f"{made}; {read}")
        else:
            evidence.append((made, read.version))
    for write, version in evidence:
        if (other := applied.setdefault(version, write)) is not write:
            yield Violation("two writes of one version", path, f"{version}: {other}; {write}")
    in_order = [write for _, write in sorted(applied.items(), key=lambda item: item[0])]
    for before, after in itertools.pairwise(in_order):
        if after.token < before.token:
            yield Violation("a write came after a greater token's", path, f"{before}; {after}")
    if last is not None and applied and max(applied) > last.version:
        yield Violation("an acknowledged write is missing", path, f"{applied[max(applied)]}")


@dataclass(slots=True)
class Number:
    """The numbers ``first`` to ``first + count - 1``, as a client got them from a counter.

    A ``client`` gets ever greater numbers.
    """

    path: str
    client: str
    invoked: float
    completed: float
    first: int
    count: int = 1


def check_numbers(numbers: Iterable[Number]) -> list[Violation]:
    """Check that no number comes twice, and that each client's numbers grow."""
    numbers = list(numbers)
    found = []
    for path, some in _by(numbers, lambda number: number.path).items():
        last: Number | None = None  # the one that reaches farthest
        for number in sorted(some, key=lambda number: number.first):
            if last is not None and number.first < last.first + last.count:
                found.append(Violation("a number came twice", path, f"{last}; {number}"))
            if last is None or number.first + number.count > last.first + last.count:
                last = number
    for (path, _), some in _by(numbers, lambda one: (one.path, one.client)).items():
        found += [
            Violation("a number that did not grow", path, f"{before}; {after}")
            for before, after in _falls(some, lambda number: number.first)
        ]
    return found


@dataclass(slots=True)
class Read:
    """The number that a client has read through its cache, or has written.

    The numbers of a path only grow, from 0, which stands for no value.
    """

    path: str
    client: str
    invoked: float
    completed: float
    number: int


def check_reads(
    reads: Iterable[Read], quiet: Iterable[Read] = (), last: Mapping[str, int] | None = None
) -> list[Violation]:
    """Check that no client's view goes back, and that it arrives at the truth.

    Args:
        reads: what was read at any time.
        quiet: what each client read after the end of all changes, and some time for their events.
        last: the numbers in the store.
    """
    quiet = list(quiet)
    found = [
        Violation("a read that is older than what was seen", path, f"{before}; {after}")
        for (path, _), some in _by([*reads, *quiet], lambda one: (one.path, one.client)).items()
        for before, after in _falls(some, lambda read: read.number)
    ]
    if last is not None:
        found += [
            Violation("a cache that is not like the store", read.path, f"{read}; {last[read.path]}")
            for read in quiet
            if read.number != last[read.path]
        ]
    return found


@dataclass(slots=True)
class Update:
    """An update that adds one to the number at a path."""

    path: str
    outcome: Outcome = "pending"


def check_updates(updates: Iterable[Update], last: Mapping[str, int]) -> list[Violation]:
    """Check that each update has had its effect, and once. ``last`` has the numbers in the end."""
    found = []
    for path, some in _by(updates, lambda update: update.path).items():
        outcomes = Counter(update.outcome for update in some)
        if outcomes["pending"]:
            found.append(Violation("never ended", path, f"{outcomes['pending']} updates"))
        least, most = outcomes["done"], outcomes["done"] + outcomes["unknown"]
        if not least <= last.get(path, 0) <= most:
            evidence = f"{last.get(path, 0)} after {least} to {most} updates"
            found.append(Violation("a lost update, or one that came twice", path, evidence))
    return found


@dataclass(slots=True)
class Job:
    """The put of a job with a name that no other has."""

    name: str
    outcome: Outcome = "pending"


@dataclass(slots=True)
class Finish:
    """A call that was to remove a job, by a worker that had done it."""

    name: str
    outcome: Outcome = "pending"


def check_jobs(
    jobs: Sequence[Job], finishes: Iterable[Finish], left: Iterable[str]
) -> list[Violation]:
    """Check that each job was done, at least once, or is left in the end."""
    left = set(left)
    by_name = _by(finishes, lambda finish: finish.name)
    names = {job.name for job in jobs}
    found = [Violation("a job that nobody put", name, "") for name in sorted(left - names)]
    for job in jobs:
        outcomes = Counter(finish.outcome for finish in by_name[job.name])
        evidence = f"{job}, finished {dict(outcomes)}"
        if "pending" in (job.outcome, *outcomes):
            found.append(Violation("never ended", job.name, evidence))
        if outcomes["done"] > 1:
            found.append(Violation("a job was finished twice", job.name, evidence))
        if job.outcome == "not_applied" and (outcomes or job.name in left):
            found.append(Violation("a job that was refused is there", job.name, evidence))
        if outcomes["done"] and job.name in left:
            found.append(Violation("a finished job is there", job.name, evidence))
        finished = outcomes["done"] or outcomes["unknown"]
        if job.outcome == "done" and not finished and job.name not in left:
            found.append(Violation("a job was lost", job.name, evidence))
    return found


# --- what the checks share


class _Timed(Protocol):
    @property
    def invoked(self) -> float: ...
    @property
    def completed(self) -> float: ...


_T = TypeVar("_T")
_K = TypeVar("_K")
_S = TypeVar("_S", bound=_Timed)


def _by(records: Iterable[_T], key: Callable[[_T], _K]) -> defaultdict[_K, list[_T]]:
    groups: defaultdict[_K, list[_T]] = defaultdict(list)
    for record in records:
        groups[key(record)].append(record)
    return groups


def _falls(records: Sequence[_S], rank: Callable[[_S], int]) -> Iterator[tuple[_S, _S]]:
    """Find records of a lower rank than others that had ended before they began."""
    ended = sorted(records, key=lambda record: record.completed)
    greatest, at = None, 0  # among the records that had ended before the call
    for record in sorted(records, key=lambda record: record.invoked):
        while at < len(ended) and ended[at].completed < record.invoked:
            if greatest is None or rank(ended[at]) > rank(greatest):
                greatest = ended[at]
            at += 1
        if greatest is not None and rank(greatest) > rank(record):
            yield greatest, record
