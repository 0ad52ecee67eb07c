"""Histories of processes that use locks, and what stands on them, on real servers with faults."""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, Final, Self

import pytest

import batchkeeper as bk
from batchkeeper.coordination import Group

from .checker import Violation, explain
from .coordination import (
    Fenced,
    Finish,
    Hold,
    Job,
    Number,
    Read,
    Seen,
    Update,
    check_fenced,
    check_holds,
    check_jobs,
    check_numbers,
    check_reads,
    check_updates,
)
from .coordination_group_roles import ENOUGH
from .coordination_groups import Visit, check_views, check_visits
from .coordination_recorder import Member
from .coordination_roles import CACHED
from .nemesis import Nemesis

#: What threads of every second process do, and tasks of the others.
BOTH: Final = ("lock", "lead")
#: What threads of all processes do.
THREADS: Final = (
    "shared",
    "semaphore",
    "count",
    "read",
    "update",
    "work",
    "belong",
    "meet",
)
#: What a role of a process records.
PROOFS: Final[dict[str, Callable[[Any], bool]]] = {
    "lock": lambda record: isinstance(record, Hold) and record.path == "/lock",
    "shared": lambda record: isinstance(record, Hold) and record.path == "/shared",
    "semaphore": lambda record: isinstance(record, Hold) and record.path == "/semaphore",
    "lead": lambda record: isinstance(record, Hold) and record.path == "/election",
    "count": lambda record: isinstance(record, Number),
    "read": lambda record: isinstance(record, Read) and record.path == CACHED[0],
    "update": lambda record: isinstance(record, Update),
    "work": lambda record: isinstance(record, Finish),
    "belong": lambda record: isinstance(record, Hold) and record.path.startswith("/group/"),
    "stay": lambda record: isinstance(record, Hold) and record.path.startswith("/group/"),
    "meet": lambda record: isinstance(record, Visit) and record.left < math.inf,
}
SESSION = 2.0


class CoordinationRun:
    """Processes at work, and the checks of what they have recorded.

    Args:
        urls: the stores of the processes, through what may harm the connection.
        direct: the same store without that.
        roles: what the threads of each process do; by default, everything.
        patience: seconds for caches and groups to become like the store, in the end.
    """

    def __init__(
        self,
        urls: Sequence[str],
        direct: str,
        roles: Sequence[str] | None = None,
        patience: float = 60.0,
    ) -> None:
        self.direct = direct
        self._urls, self._roles = urls, roles
        self._patience = patience
        self._stack = ExitStack()
        self.members: list[Member] = []
        self.violations: list[Violation] = []

    def add(self, url: str, fault: str | None = None) -> Member:
        """Start one more process."""
        number = len(self.members)
        everything = ((*THREADS, *BOTH), ()) if number % 2 else (THREADS, BOTH)
        roles, tasks = everything if self._roles is None else (self._roles, ())
        member = Member(url, f"m{number}", roles, tasks, SESSION, fault)
        self.members.append(self._stack.enter_context(member))
        return member

    def __enter__(self) -> Self:
        for url in self._urls:
            self.add(url)
        self.progress(1)
        return self

    def progress(self, times: int = 2) -> None:
        """Wait until each process that runs has done everything ``times`` more times."""
        working = [
            (member, role)
            for member in self.members
            if member.running and not member.paused
            for role in (*member.roles, *member.tasks)
        ]
        before = [member.count(PROOFS[role]) for member, role in working]
        for (member, role), count in zip(working, before, strict=True):
            member.until(
                lambda: member.count(PROOFS[role]) >= count + times,  # noqa: B023 - called at once
                f"it does nothing with {role!r}",
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
        with bk.open_store(self.direct, connect_timeout=60.0) as store:
            store.sync()
            fenced = [
                Seen("/fenced", found.value.decode(), found.stat.version)
                for found in [store.get("/fenced").result()]
                if found is not None
            ]
            cached = {path: store.get(path).result() for path in CACHED}
            numbers = {path: int(found.value) if found else 0 for path, found in cached.items()}
            jobs = [f"/queue/jobs/{name}" for name in store.get_children("/queue/jobs").result()]
            left = [store.get(path).result() for path in jobs]
        quiet = [
            read
            for member in running
            for read in {read.path: read for read in member.look(numbers, self._patience)}.values()
        ]
        holds = self.of(Hold)
        return [
            *self._views(running),
            *check_visits(self.of(Visit), ENOUGH),
            *check_holds(hold for hold in holds if hold.path != "/semaphore"),
            *check_holds((hold for hold in holds if hold.path == "/semaphore"), limit=2),
            *check_fenced(self.of(Fenced), self.of(Seen), fenced),
            *check_numbers(self.of(Number)),
            *check_reads(self.of(Read), quiet, numbers),
            *check_updates(self.of(Update), numbers),
            *check_jobs(self.of(Job), self.of(Finish), [job.value.decode() for job in left if job]),
        ]

    def _views(self, running: Sequence[Member]) -> list[Violation]:
        """Let the processes look at the group, until they agree, but not for ever."""
        give_up = time.monotonic() + self._patience
        while True:
            found = check_views([view for member in running for view in member.view()])
            if not found or time.monotonic() > give_up:
                return found
            time.sleep(0.05)


def run_on(nemesis: Nemesis) -> CoordinationRun:
    """Return a run of two processes behind the faults of a connection, and of one beside it."""
    place = f"/{uuid.uuid4().hex}"
    through, direct = nemesis.url + place, nemesis.server.url + place
    return CoordinationRun([through, through, direct], direct)


@pytest.mark.full
def test_cut_off(nemesis: Nemesis) -> None:
    """First nothing is wrong; then connections break, and lose requests or answers."""
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


@pytest.mark.full
def test_server_killed(nemesis: Nemesis) -> None:
    """The server is killed and started again."""
    with run_on(nemesis) as run:
        nemesis.kill()
        nemesis.restart()
        run.progress()
    assert not run.violations, explain(run.violations)


def test_processes_stopped_and_killed(nemesis: Nemesis) -> None:
    """Processes stop for longer than their sessions, and then go on, or die, as they hold locks.

    The first one holds them in tasks, the second one in threads.
    """
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


# The fault is in the process, so one server shows it.
@pytest.mark.parametrize("server", [pytest.param("etcd", marks=pytest.mark.server)], indirect=True)
@pytest.mark.parametrize(
    ("role", "fault", "found"),
    [
        ("keep a lock", None, set()),
        ("keep a lock", "own clock", {"too many holders at a time"}),
        ("keep a lock", "unfenced", {"a write came after a greater token's"}),
        # Where the machine is slow, the former leader may notice its loss in time.
        pytest.param(
            *("keep leading", "no deadline", {"too many holders at a time"}), marks=pytest.mark.full
        ),
    ],
    ids=["no fault", "own clock", "unfenced", "no deadline"],
)
def test_a_holder_with_a_fault_is_found(
    nemesis: Nemesis, role: str, fault: str | None, found: set[str]
) -> None:
    """A process is stopped until another one holds, and does not know it when it goes on."""
    in_time = False
    while not in_time:
        with CoordinationRun([], f"{nemesis.server.url}/{uuid.uuid4().hex}", [role]) as run:
            stop_holder(run, fault)
        first, second = (member.of(Hold)[0] for member in run.members)
        # If this machine is slow, the former holder loses its session before it is stopped. Or it
        # is stopped during a look, which finds the loss later, but counts from its begin.
        in_time = first.lost > second.acquired
    assert {violation.rule for violation in run.violations} == found, explain(run.violations)


def stop_holder(run: CoordinationRun, fault: str | None) -> None:
    """Stop a process until another one holds."""

    def puts(member: Member) -> int:
        return sum(write.outcome != "pending" for write in member.of(Fenced))

    first = run.add(run.direct, fault)
    first.until(lambda: any(hold.until > 0 for hold in first.of(Hold)), "it does not hold")
    first.pause()
    second = run.add(run.direct)
    second.until(lambda: bool(second.of(Hold)), "it does not hold")
    writes = "keep a lock" in second.roles
    if writes:
        second.until(lambda: puts(second) > 2, "it does not write")
    before = puts(first)
    first.go_on()
    if writes:
        first.until(lambda: puts(first) > before + 2, "it does not write")


@pytest.mark.full
def test_a_cache_that_forgets_an_invalidation_is_found(nemesis: Nemesis) -> None:
    """A cache misses one event, and stays behind the store."""
    url = f"{nemesis.server.url}/{uuid.uuid4().hex}"
    with bk.open_store(url) as store, CoordinationRun([], url, ["read"], patience=2.0) as run:
        # Before its watch begins, so that no event comes of it.
        store.put(CACHED[0], b"1").result()
        reader = run.add(url, "forgotten invalidation")
        reader.until(lambda: len(reader.at(Read, CACHED[0])) > 2, "it does not read")
        store.put(CACHED[0], b"2").result()
    assert [violation.rule for violation in run.violations] == [
        "a cache that is not like the store"
    ]


@pytest.mark.full
def test_views_of_a_group_that_are_not_true_are_found(nemesis: Nemesis) -> None:
    """One member never learns that its session has ended, and another one's listener does not."""
    url = f"{nemesis.server.url}/{uuid.uuid4().hex}"
    with CoordinationRun([], url, ["stay"], patience=1.0) as run:
        for fault in ("does not know its end", "does not hear of an end"):
            run.add(url, fault)
        run.progress(1)
        deaf, listener = run.members
        listener.until(lambda: bool(listener.at(Read, f"/group/{deaf.name}")), "it hears nothing")
        deaf.pause()
        with bk.open_store(url) as store:
            group = Group(store, "/group")
            listener.until(lambda: deaf.name not in group.members(), "its session does not end")
        deaf.go_on()
    assert {violation.rule for violation in run.violations} >= {
        "a member that does not know of its end",
        "a listener that does not know the members",
    }


@pytest.mark.full
def test_participants_of_a_barrier_that_do_not_wait_are_found(nemesis: Nemesis) -> None:
    """One enters alone, and the other one leaves alone."""
    url = f"{nemesis.server.url}/{uuid.uuid4().hex}"
    with CoordinationRun([], url, ["meet"]) as run:
        for fault, rule in (
            ("enters alone", "too few have entered"),
            ("leaves alone", "somebody is still inside"),
        ):
            run.add(url, fault).until(
                lambda: rule in {found.rule for found in check_visits(run.of(Visit), ENOUGH)},  # noqa: B023
                f"nothing is found of what {fault}",
            )
