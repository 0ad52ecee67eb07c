"""Histories of processes that use locks, and what stands on them, on real servers with faults."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, Self

import batchkeeper as bk

from .checker import Violation, explain
from .coordination import Fenced, Hold, Seen, check_fenced, check_holds
from .coordination_recorder import Member
from .nemesis import Nemesis

#: What each role of a member records.
PROOFS: dict[str, tuple[type, str]] = {
    "lock": (Hold, "/lock"),
    "keep": (Hold, "/lock"),
    "shared": (Hold, "/shared"),
    "semaphore": (Hold, "/semaphore"),
}
SESSION = 3.0


class CoordinationRun:
    """Processes at work, and the checks of what they have recorded.

    Args:
        urls: the stores of the processes, through what may harm the connection.
        direct: the same store without that.
        roles: what each process does.
        patience: seconds for caches to become like the store, in the end.
    """

    def __init__(
        self,
        urls: Sequence[str],
        direct: str,
        roles: Sequence[str] = ("lock", "shared", "semaphore"),
        patience: float = 60.0,
    ) -> None:
        self._urls, self._direct, self._roles = urls, direct, roles
        self._patience = patience
        self._stack = ExitStack()
        self.members: list[Member] = []
        self.violations: list[Violation] = []

    def add(self, url: str, fault: str | None = None, roles: Sequence[str] = ()) -> Member:
        """Start one more process."""
        name = f"m{len(self.members)}"
        member = Member(url, name, roles or self._roles, SESSION, fault)
        self.members.append(self._stack.enter_context(member))
        return member

    def __enter__(self) -> Self:
        for url in self._urls:
            self.add(url)
        self.progress(1)
        return self

    def progress(self, times: int = 3) -> None:
        """Wait until each process that runs has done everything ``times`` more times."""
        working = [
            (member, *PROOFS[role])
            for member in self.members
            if member.running and not member.paused
            for role in member.roles
        ]
        before = [len(member.at(*proof)) for member, *proof in working]
        for (member, *proof), count in zip(working, before, strict=True):
            member.until(
                lambda: len(member.at(*proof)) >= count + times,  # noqa: B023 - called at once
                f"it does nothing with {proof}",
            )

    def wait_for_hold(self, member: Member) -> None:
        """Wait for the begin of a hold of a process."""
        count = len(member.at(Hold, "/lock"))
        member.until(lambda: len(member.at(Hold, "/lock")) > count, "it does not get the lock")

    def of(self, kind: type[Any]) -> list[Any]:
        """Return the records of a kind of all processes."""
        return [record for member in self.members for record in member.of(kind)]

    def __exit__(self, *caught: object) -> None:
        with self._stack:
            if caught[0] is None:
                self.violations = self._check()

    def _check(self) -> list[Violation]:
        running = [member for member in self.members if member.running]
        for member in running:
            member.stop()
        with bk.open_store(self._direct, connect_timeout=60.0) as store:
            store.sync()
            found = store.get("/fenced").result()
            last = (
                [] if found is None else [Seen("/fenced", found.value.decode(), found.stat.version)]
            )
        holds = self.of(Hold)
        return [
            *check_holds(hold for hold in holds if hold.path != "/semaphore"),
            *check_holds((hold for hold in holds if hold.path == "/semaphore"), limit=2),
            *check_fenced(self.of(Fenced), self.of(Seen), last),
        ]


def run_on(nemesis: Nemesis) -> CoordinationRun:
    """Return a run of two processes behind the faults of a connection, and of one beside it."""
    place = f"/{uuid.uuid4().hex}"
    through, direct = nemesis.url + place, nemesis.server.url + place
    return CoordinationRun([through, through, direct], direct)


def test_with_nothing_wrong(nemesis: Nemesis) -> None:
    """Without faults, every hold, token and write can be explained."""
    with run_on(nemesis) as run:
        run.progress(10)
    assert not run.violations, explain(run.violations)


def test_cut_off(nemesis: Nemesis) -> None:
    """Connections break, and lose requests or answers."""
    with run_on(nemesis) as run:
        for lose in (nemesis.lose_answers, nemesis.lose_requests, nemesis.cut):
            lose()
            run.progress()
    assert not run.violations, explain(run.violations)


def test_outages_shorter_and_longer_than_the_session(nemesis: Nemesis) -> None:
    """The server pauses for all, and two processes are cut off for longer than their sessions."""
    with run_on(nemesis) as run:
        nemesis.pause(SESSION / 3)
        run.progress()
        nemesis.isolate(2.0 * SESSION)
        run.progress()
        nemesis.pause(2.0 * SESSION)
        run.progress()
    assert not run.violations, explain(run.violations)


def test_server_killed(nemesis: Nemesis) -> None:
    """The server is killed and started again."""
    with run_on(nemesis) as run:
        nemesis.kill()
        nemesis.restart()
        run.progress()
    assert not run.violations, explain(run.violations)


def test_processes_stopped_and_killed(nemesis: Nemesis) -> None:
    """Processes stop for longer than their sessions, and then go on, or die, as they hold locks."""
    with run_on(nemesis) as run:
        for member in run.members[:2]:
            run.wait_for_hold(member)
            member.pause()
            time.sleep(1.5 * SESSION)
            run.progress(1)
            member.go_on()
            run.progress()
        victim = run.members[2]
        run.wait_for_hold(victim)
        victim.kill()
        run.add(run.members[0].url)
        run.progress()
    assert not run.violations, explain(run.violations)


def test_a_lock_that_trusts_its_own_clock_is_found(nemesis: Nemesis) -> None:
    """A holder that counts its time by itself is stopped: another one holds the lock meanwhile."""
    violations = stop_holder(nemesis, "own clock", "keep")
    assert "too many holders at a time" in {violation.rule for violation in violations}


def stop_holder(nemesis: Nemesis, fault: str | None, role: str) -> list[Violation]:
    """Stop a process that holds, with a fault, until another one holds; return what is found."""
    url = f"{nemesis.server.url}/{uuid.uuid4().hex}"
    with CoordinationRun([], url) as run:
        first = run.add(url, fault, [role])
        first.until(lambda: bool(first.of(Hold)), "it does not hold")
        second = run.add(url, roles=[role])
        first.pause()
        second.until(lambda: bool(second.of(Hold)), "it does not hold")
        first.go_on()
    return run.violations
