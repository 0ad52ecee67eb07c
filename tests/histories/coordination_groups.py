"""Checks groups and barriers by what clients saw.

A member's hold of its name is a ``Hold``, and what it reads of the group is a ``Read``; see
``coordination``. Here is what groups and barriers promise beyond that:

- **Rounds of a barrier.** Nobody passes ``enter`` before enough have called it. Nobody passes
  ``leave`` while somebody who has entered with him believes to be inside.
- **Views of a group.** After all changes have ended, each process reads all that live and nobody
  else, its listener got the same, and it knows which of its incarnations have ended.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from .checker import Violation
from .coordination import Hold

__all__ = ["View", "Visit", "check_views", "check_visits"]


@dataclass(slots=True)
class Visit(Hold):
    """A call of ``enter``, and what came of it. As a hold, it is the time inside.

    Attributes:
        token: the round that it takes part in, or -1 before ``enter`` has returned.
        invoked: the time before the call of ``enter``.
        certain: whether the session was the same before and after ``enter``. Otherwise it may have
            stood for several rounds, and nobody knows whether it was inside.
        left: the time after the return of ``leave``.
    """

    token: int = -1
    acquired: float = math.inf
    invoked: float = 0.0
    certain: bool = False
    left: float = math.inf

    @property
    def passed(self) -> bool:
        """Whether ``enter`` has returned."""
        return self.token >= 0

    @property
    def inside(self) -> bool:
        """Whether it was ever certain to be inside."""
        return self.certain and self.acquired < self.end


def check_visits(visits: Iterable[Visit], n: int) -> list[Violation]:
    """Check the visits of a barrier for ``n`` participants."""
    calls: dict[str, list[Visit]] = {}
    for visit in sorted(visits, key=lambda visit: visit.invoked):
        calls.setdefault(visit.holder, []).append(visit)
    found = []
    for some in calls.values():
        passed = [visit for visit in some if visit.passed]
        for before, after in itertools.pairwise(passed):
            if after.token <= before.token:
                found.append(Violation("a round that did not grow", after.path, f"{after}"))
    stood = [
        (visit, *_rounds(some, at)) for some in calls.values() for at, visit in enumerate(some)
    ]
    for visit, *_ in stood:
        if not visit.passed:
            continue
        there = {
            other.holder
            for other, first, last in stood
            if first <= visit.token <= last and other.invoked < visit.acquired
        }
        if len(there) < n:
            found.append(Violation("too few have entered", visit.path, f"{there}; {visit}"))
        found += [
            Violation("somebody is still inside", visit.path, f"{visit}; {other}")
            for other, *_ in stood
            if other.token == visit.token
            and other.holder != visit.holder
            and other.inside
            and other.end > visit.left
        ]
    return found


def _rounds(calls: Sequence[Visit], at: int) -> tuple[float, float]:
    """Return the first and the last round for which a call of one participant may have stood.

    One that has not passed stands for one round after the other, until the next call.
    """
    visit = calls[at]
    if visit.passed and visit.certain:
        return visit.token, visit.token
    first = max((other.token for other in calls[:at]), default=-1) + 1
    if visit.passed:
        return first, visit.token
    return first, min((other.token for other in calls[at:] if other.passed), default=math.inf) - 1


@dataclass(slots=True)
class View:
    """How a process sees a group. Each member is a string of its name and its incarnation.

    Attributes:
        client: the process.
        own: the members that it believes to be.
        read: what it has read.
        heard: the events of its listener.
    """

    client: str
    own: list[str]
    read: list[str]
    heard: list[str]


def check_views(views: Sequence[View]) -> list[Violation]:
    """Check the views of all processes that live, after the end of all changes."""
    return list(_check_views(views))


def _check_views(views: Sequence[View]) -> Iterator[Violation]:
    living = {member for view in views for member in view.own}
    for view in views:
        if set(view.own) - set(view.read):
            yield Violation("a member that does not know of its end", view.client, str(view))
        if set(view.read) - living:
            yield Violation("a member that does not live", view.client, str(view))
        if set(view.heard) != set(view.read):
            yield Violation("a listener that does not know the members", view.client, str(view))
