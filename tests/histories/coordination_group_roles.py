"""What processes do with a group and a barrier, and what can be wrong with their code."""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import batchkeeper as bk
from batchkeeper.coordination import DoubleBarrier, Membership
from batchkeeper.coordination._sync.groups import Group, GroupEvent, GroupListener
from batchkeeper.coordination.members import Member

from .coordination import Hold, Read
from .coordination_groups import View, Visit
from .coordination_recorder import Me

__all__ = ["ENOUGH", "GROUP_FAULTS", "belong", "meet", "stay"]

#: The participants that a round of the barrier needs.
ENOUGH = 2

#: The names that the members of the group take from each other.
NAMES = ("a", "b", "c", "d")


class _Company:
    """The group as this process sees it, and the members of this process."""

    def __init__(self, me: Me) -> None:
        self._me = me
        self.group = Group(me.store, "/group")
        self._own: list[tuple[str, threading.Event]] = []  # all incarnations, and their ends
        self._last: Membership | None = None
        self._heard: dict[str, int] = {}
        self.group.add_listener(self._hear)
        me.view = self._view

    def read(self) -> dict[str, Member]:
        """Read the members, and report it."""
        invoked = time.monotonic()
        members = self.group.members()
        for member in members.values():
            self._report(member.name, member.incarnation, "reads", invoked)
        return members

    def join(self, name: str, timeout: float | None) -> Membership:
        """Become a member. Only the last membership may go on."""
        self._last = self.group.join(name, self._me.name.encode(), timeout=timeout)
        return self._last

    def keep(self, membership: Membership, done: Callable[[], bool]) -> None:
        """Report the incarnations of a membership, until ``done`` is true."""
        while not done():
            lost = membership.lost
            token = self._note(membership)
            if token is None:
                self._me.rest(0.05)
                continue
            hold = Hold(f"/group/{membership.name}", self._me.name, token, time.monotonic())
            self._report(membership.name, token, "reads", hold.acquired)

            def look(lost: threading.Event = lost) -> tuple[bool, float]:
                until = membership.held_until()
                # In this order: the time of a later incarnation must not count for this one.
                return not lost.is_set() and until > time.monotonic(), until

            with self._me.holding(hold, look):
                while not lost.is_set():
                    if done():
                        return
                    self._me.rest(0.05)

    def _note(self, membership: Membership) -> int | None:
        """Note the present incarnation, and return its number, if there is one."""
        lost, token = membership.lost, membership.incarnation
        if lost.is_set() or membership.lost is not lost:
            return None
        self._own.append((_label(membership.name, token), lost))
        return token

    def _hear(self, event: GroupEvent, member: Member) -> None:
        now = time.monotonic()
        self._report(member.name, member.incarnation, "hears", now)
        if event == "left":
            self._heard.pop(member.name, None)
        else:
            self._heard[member.name] = member.incarnation

    def _report(self, name: str, incarnation: int, how: str, invoked: float) -> None:
        client = f"{self._me.name} {how}"
        self._me.report(Read(f"/group/{name}", client, invoked, time.monotonic(), incarnation))

    def _view(self) -> View:
        if self._last is not None:
            self._note(self._last)
        heard = dict(self._heard)
        while True:
            with suppress(bk.MetadataStoreError):
                found = self.group.members()
                break
            time.sleep(0.05)
        return View(
            self._me.name,
            sorted({label for label, lost in self._own if not lost.is_set()}),
            sorted(_label(member.name, member.incarnation) for member in found.values()),
            sorted(itertools.starmap(_label, heard.items())),
        )


def _label(name: str, incarnation: int) -> str:
    return f"{name} {incarnation}"


def belong(me: Me) -> None:
    """Be a member for a while, under one name after the other. In the end, remain one."""
    company = _Company(me)
    while not me.stopping.is_set():
        try:
            membership = company.join(me.dice.choice(NAMES), timeout=0.5)
        except bk.MetadataStoreError:
            me.rest(0.1)
            continue
        # By the dice, not by the clock: it is to go on after a pause, and to join again.
        company.keep(membership, lambda: me.stopping.is_set() or me.dice.random() < 0.1)
        if me.stopping.is_set():
            return
        for act in (company.read, lambda: membership.update(b"leaves"), membership.leave):  # noqa: B023
            with suppress(bk.MetadataStoreError):
                act()


def stay(me: Me) -> None:
    """Be a member, under a name of its own."""
    company = _Company(me)
    company.keep(company.join(me.name, timeout=None), me.stopping.is_set)


def meet(me: Me) -> None:
    """Enter a barrier and leave it, again and again."""
    barrier = DoubleBarrier(me.store, "/barrier", ENOUGH, me.name.encode())
    while not me.stopping.is_set():
        session = me.store.session.id
        visit = Visit("/barrier", me.name, invoked=time.monotonic())
        number = me.report(visit)
        try:
            barrier.enter(timeout=0.5)
        except bk.MetadataStoreError:
            me.rest(0.1)
            continue
        visit.acquired, visit.token = time.monotonic(), barrier._round
        visit.certain = session is not None and session == me.store.session.id

        def look(session: str | None = session) -> tuple[bool, float]:
            until = me.store.session.valid_until()
            same = session == me.store.session.id
            return same and until > time.monotonic(), until

        with me.holding(visit, look, number):
            me.rest(0.1)
        for timeout in (0.5, 10.0):
            with suppress(bk.MetadataStoreError):
                barrier.leave(timeout)
                visit.left = time.monotonic()
                me.report(visit, number)
                break


# What can be wrong with the code of a process.


def _never_know_the_end() -> None:
    """Let a membership believe to be there, whatever becomes of its session."""
    Membership.check_session = lambda _membership: False  # type: ignore[method-assign]
    Membership.verify = lambda _membership, _seen: None  # type: ignore[method-assign]


def _never_hear_of_an_end() -> None:
    """Let listeners miss that somebody has left."""
    notify = GroupListener.notify
    known: dict[GroupListener, dict[str, Member]] = {}

    def add(listener: GroupListener, members: Mapping[str, Member]) -> None:
        known[listener] = {**known.get(listener, {}), **members}
        notify(listener, known[listener])

    GroupListener.notify = add  # type: ignore[method-assign]


def _enter_alone() -> None:
    """Let a participant of a barrier count somebody who is not there."""
    begin = DoubleBarrier.__init__

    def too_few(barrier: DoubleBarrier, store: Any, path: str, n: int, value: bytes) -> None:
        begin(barrier, store, path, n - 1, value)

    DoubleBarrier.__init__ = too_few  # type: ignore[assignment,method-assign]


def _leave_alone() -> None:
    """Let a participant of a barrier leave without a look at the others."""

    leave = DoubleBarrier.leave

    def go(barrier: DoubleBarrier, timeout: float | None = None) -> None:
        with suppress(bk.OperationTimeoutError):
            leave(barrier, min(timeout or math.inf, 0.05))

    DoubleBarrier.leave = go  # type: ignore[method-assign]


GROUP_FAULTS: dict[str, Callable[[], None]] = {
    "does not know its end": _never_know_the_end,
    "does not hear of an end": _never_hear_of_an_end,
    "enters alone": _enter_alone,
    "leaves alone": _leave_alone,
}
