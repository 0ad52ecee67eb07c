"""The verdicts: the promises of hubs, checked against the records. Pure functions."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import Final, NamedTuple, TypeAlias

from .events import Event
from .history import FaultTime, History
from .plan import Plan

#: The published messages by topic: their sequence numbers, in the order of the log.
Logs: TypeAlias = Mapping[str, Sequence[int]]

# The number of violations that a verdict shows.
_SHOWN: Final = 3
# Seconds after the session timeout within which half of a crashed hub's topics must have a new
# owner.
_AFTER_SESSION: Final = 1.0
# Seconds without any change before a time counts as steady.
_CALM: Final = 2.0


class Verdict(NamedTuple):
    """One promise, and the result of its check.

    Attributes:
        promise: the condition that must hold.
        found: the result, in words.
        violations: the violations, in words; empty if the promise holds.
        timed: whether the promise is a time limit, which a busy machine can exceed.
    """

    promise: str
    found: str
    violations: tuple[str, ...] = ()
    timed: bool = False

    @property
    def holds(self) -> bool:
        """Whether it holds."""
        return not self.violations

    def cells(self) -> tuple[str, str, str]:
        """Return the promise, whether it holds, and what was found, for a table."""
        found = "\n".join((self.found, *self.violations))
        return self.promise, "yes" if self.holds else "NO", found


def judge(plan: Plan, history: History, logs: Logs) -> list[Verdict]:
    """Return the verdicts on a simulation.

    Args:
        plan: the plan.
        history: the history of the records.
        logs: the sequence numbers in the log of each topic.
    """
    return [
        _one_owner(history),
        _fenced(history),
        _order(history, logs),
        _nothing_lost(plan, history, logs),
        _deliveries(history, logs),
        _marks(history),
        _all_accepted(history),
        _after_crashes(plan, history),
        _steady(plan, history),
    ]


def _verdict(promise: str, found: str, violations: Sequence[str]) -> Verdict:
    more = len(violations) - _SHOWN
    shown = [*violations[:_SHOWN], *([f"and {more} more"] if more > 0 else [])]
    return Verdict(promise, found, tuple(shown))


def _one_owner(history: History) -> Verdict:
    wrong: list[str] = []
    for topic, owners in history.owners.items():
        for before, after in pairwise(owners):
            if after.epoch <= before.epoch:
                wrong.append(
                    f"{topic}: epoch {after.epoch} of {after.hub} follows epoch {before.epoch} of "
                    f"{before.hub}"
                )
            elif after.begun < before.ended:
                both = before.ended - after.begun
                wrong.append(
                    f"{topic}: {before.hub} (epoch {before.epoch}) and {after.hub} (epoch "
                    f"{after.epoch}) both served it for {both:.3f} s"
                )
    count = sum(map(len, history.owners.values()))
    return _verdict("one owner of a topic at a time", f"{count} ownerships", wrong)


def _fenced(history: History) -> Verdict:
    began: dict[str, list[Event]] = defaultdict(list)
    for event in history.named("began"):
        began[event["topic"]].append(event)
    wrong = [
        f"{event['topic']}: a message of epoch {event['epoch']} was taken after epoch "
        f"{later['epoch']} had begun"
        for event in history.named("appended")
        for later in began[event["topic"]]
        if later["epoch"] > event["epoch"] and event["begun"] > later.at
    ]
    late = len(history.named("refused"))
    return _verdict("no late message of an earlier owner", f"{late} refused by the log", wrong)


def _order(history: History, logs: Logs) -> Verdict:
    wrong: list[str] = []
    repeated = 0
    for topic, sequences in logs.items():
        greatest = 0
        seen: set[int] = set()
        for sequence in sequences:
            if sequence in seen:
                repeated += 1  # Its answer was lost, so it was published again.
            elif sequence < greatest:
                wrong.append(f"{topic}: message {sequence} stands behind {greatest}")
            seen.add(sequence)
            greatest = max(greatest, sequence)
    found = f"{sum(map(len, logs.values())):,} messages, {repeated} of them twice"
    return _verdict("the order of each topic", found, wrong)


def _nothing_lost(plan: Plan, history: History, logs: Logs) -> Verdict:
    wrong: list[str] = []
    accepted = history.named("accepted")
    for event in accepted:
        log = logs.get(event["topic"], ())
        number, sequence = event["number"], event["sequence"]
        if number > len(log) or log[number - 1] != sequence:
            wrong.append(
                f"{event['topic']}: message {sequence} was accepted as number {number}, and is "
                "not there"
            )
    silent = set(plan.topic_names) - {event["topic"] for event in accepted}
    wrong += [f"{topic}: nothing was accepted" for topic in sorted(silent)]
    return _verdict("accepted messages are in the log", f"{len(accepted):,} accepted", wrong)


def _deliveries(history: History, logs: Logs) -> Verdict:
    wrong: list[str] = []
    last: dict[str, int] = defaultdict(int)  # taken by the current reader
    most: dict[str, int] = defaultdict(int)  # taken by any
    fresh: set[str] = set()
    again = greatest = 0
    for event in _merged(history, "subscribed", "taken"):
        who, log = _subscriber(event), logs.get(event["topic"], ())
        if event.name == "subscribed":
            fresh.add(who)
            continue
        for number, sequence in event["messages"]:
            if who in fresh:
                fresh.discard(who)
                repeated = max(0, most[who] - number + 1)
                again, greatest = again + repeated, max(greatest, repeated)
                in_order = number <= most[who] + 1
            else:
                in_order = number == last[who] + 1
            if not in_order:
                wrong.append(f"{who} got message {number} after {last[who]}")
            if number > len(log) or log[number - 1] != sequence:
                wrong.append(f"{who} got message {number}, which is another one")
            last[who], most[who] = number, max(most[who], number)
    done = set(map(_subscriber, history.named("finished")))
    every = dict.fromkeys(map(_subscriber, history.named("subscribed")))
    wrong += [f"{w} did not get all messages (last {most[w]})" for w in every if w not in done]
    wrong += [f"the clients have failed: {event['why']}" for event in history.named("broken")]
    found = f"{sum(most.values()):,} delivered, {again} of them again (at most {greatest} at once)"
    return _verdict("every subscriber gets every message, in order", found, wrong)


def _marks(history: History) -> Verdict:
    wrong: list[str] = []
    stored: dict[str, int] = defaultdict(int)
    taken: dict[str, int] = defaultdict(int)
    for event in _merged(history, "mark", "taken"):
        who = _subscriber(event)
        if event.name == "taken":
            taken[who] = max(taken[who], event["messages"][-1][0])
            continue
        if event["mark"] < stored[who]:
            wrong.append(f"{who} went back from {stored[who]} to {event['mark']}")
        if event["mark"] > taken[who]:
            wrong.append(f"{who} is at {event['mark']}, but got {taken[who]}")
        stored[who] = event["mark"]
    for event in history.named("finished"):
        who = _subscriber(event)
        if stored[who] < event["consumed"]:
            wrong.append(f"{who} consumed {event['consumed']}, but {stored[who]} is stored")
    changes = len(history.named("mark"))
    return _verdict("consume marks never go back", f"{changes:,} changes seen", wrong)


def _subscriber(event: Event) -> str:
    return f"{event['topic']}: {event['subscriber']}"


def _all_accepted(history: History) -> Verdict:
    wrong = [
        f"{event['topic']}: message {event['sequence']}: {event['why']}"
        for event in history.named("failed")
    ]
    wrong += [
        f"{event['process']} ended with code {event['code']}" for event in history.named("died")
    ]
    waits = sorted(event.at - event["begun"] for event in history.named("accepted"))
    found = "none"
    if waits:
        found = f"half within {1e3 * median(waits):.1f} ms, all within {waits[-1]:.1f} s"
    return _verdict("every message is accepted in the end", found, wrong)


def _after_crashes(plan: Plan, history: History) -> Verdict:
    began = [event.at for event in history.named("publishing")]
    published = min(began, default=history.begun) + plan.seconds
    killed = {fault.source: fault for fault in history.faults if fault.kind == "kill"}
    gaps: list[float] = []
    for owners in history.owners.values():
        for owned, after in pairwise([*owners, None]):
            if owned is None or owned.end != "killed" or owned.source not in killed:
                continue
            crash = killed[owned.source].begun
            if after is not None:
                gaps.append(after.begun - crash)
            elif crash + 2 * plan.session_timeout < published:
                gaps.append(math.inf)
    limit = plan.session_timeout + _AFTER_SESSION
    promise = f"after a crash, half of its topics have an owner within {limit:g} s"
    crashes = f"{len(killed)} crash{'es' * (len(killed) != 1)}"
    if not gaps:
        return Verdict(promise, f"{crashes}, no topics")
    middle, longest = median(gaps), max(gaps)
    found = f"{crashes}, {len(gaps)} topics: half {middle:.1f} s, all {longest:.1f} s"
    ends = [_session_end(history, fault) - fault.begun for fault in killed.values()]
    ends = [seconds for seconds in ends if math.isfinite(seconds)]
    if ends:
        # ZooKeeper ends a session up to a tick late, 2 s by default. Hubs cannot change that.
        limit = max(limit, median(ends) + _AFTER_SESSION)
        found += f"; the store ended the sessions after {median(ends):.1f} s"
    late = middle > limit or math.isinf(longest)
    return Verdict(promise, found, (found,) if late else (), timed=True)


def _session_end(history: History, fault: FaultTime) -> float:
    """Return when the hub that was killed was seen to have gone."""
    gone = history.named("gone")
    after = (event.at for event in gone if event["hub"] == fault.hub and event.at > fault.begun)
    return min(after, default=math.inf)


def _steady(plan: Plan, history: History) -> Verdict:
    """Judge the periods in which no hub and no topic changes."""
    changes = sorted(
        event.at
        for name in ("acquired", "lost", "fault", "healed", "serving", "failed", "died")
        for event in history.named(name)
    )
    published = asked = background = 0
    seconds = 0.0
    for before, after in _samples(history):
        if bisect_left(changes, before.at - _CALM) < bisect_right(changes, after.at):
            continue
        if any(
            fault.begun < after.at and before.at < fault.ended + plan.session_timeout
            for fault in history.faults
        ):
            continue
        published += after["appended"] - before["appended"]
        spent = {
            about: count - before["asked"].get(about, 0) for about, count in after["asked"].items()
        }
        asked += spent.pop("topics", 0)
        background += sum(spent.values())
        seconds += after.at - before.at
    promise = "no store operation for a publish in the steady state"
    if not published:
        return Verdict(promise, "never steady: try fewer faults")
    found = (
        f"{asked / published:g} of {published:,} messages; for reports and marks "
        f"{background / seconds:.1f} a second and hub"
    )
    return _verdict(promise, found, [found] if asked else [])


def _samples(history: History) -> Iterator[tuple[Event, Event]]:
    """Yield the pairs of adjacent samples of each process."""
    by_source: dict[str, list[Event]] = defaultdict(list)
    for event in history.named("sample"):
        by_source[event.source].append(event)
    for samples in by_source.values():
        yield from pairwise(samples)


def _merged(history: History, *names: str) -> list[Event]:
    """Return the events of some names in the order of time."""
    events = [event for name in names for event in history.named(name)]
    return sorted(events, key=lambda event: event.at)
