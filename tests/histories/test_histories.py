"""Histories of clients on real stores, with faults, checked for violations."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Self

import pytest

import batchkeeper as bk

from .checker import check, explain
from .history import Op
from .nemesis import Nemesis
from .recorder import Client, Workers
from .victim import Victim

PATHS = [f"/h/{number}" for number in range(8)]


class Run:
    """Clients at work on their own part of a store, and the check of their history.

    Args:
        nemesis: what may happen to the store, or the URL of one to which nothing does.
        options: go to ``open_store``.
    """

    def __init__(self, nemesis: Nemesis | str, **options: Any) -> None:
        if isinstance(nemesis, str):
            self._url = self._direct = nemesis
        else:
            place = f"/{uuid.uuid4().hex}"
            self._url = nemesis.url + place
            self._direct = nemesis.server.url + place
        self._options = {"connect_timeout": 60.0, **options}
        self._stack = ExitStack()
        self.history: list[Op] = []
        self.workers = Workers(self.history)

    def __enter__(self) -> Self:
        for name in "ab":
            store = self._stack.enter_context(bk.open_store(self._url, **self._options))
            client = Client(store, name, self.history)
            self.workers.start(client, PATHS, threads=4)
            self.workers.start(client, PATHS, threads=1, depth=20)
        self.workers.start_tasks(
            lambda: bk.open_async_store(self._url, **self._options), "c", PATHS, tasks=4
        )
        self.workers.progress(100)
        return self

    def __exit__(self, *caught: object) -> None:
        with self._stack:
            self.workers.stop()
            # The final state is a part of the history.
            with bk.open_store(self._direct, connect_timeout=60.0) as last:
                client = Client(last, "last", self.history)
                read = [client.ask(bk.Get(path)) for path in PATHS]
                assert all(op.outcome == "done" for op in read)
        if caught[0] is None:
            violations = check(self.history)
            assert not violations, explain(violations)


def left_open(history: Sequence[Op]) -> list[Op]:
    """Return the operations that ended without a result and without a refusal.

    But for one kind: ZooKeeper cannot tell a value at version 0 from a recreated parent, so a put
    that expects 0 and meets a delete and a creation by somebody else ends as unknown, faults or no.
    """
    return [
        op
        for op in history
        if op.outcome == "not_applied"
        or (op.outcome == "unknown" and not any(p.expected in {0, -1} for p in op.parts or [op]))
    ]


def under_way(history: Sequence[Op], moment: float) -> int:
    """Count the writes that were under way at a moment."""
    return sum(op.writes and op.invoked < moment < op.completed for op in history)


@pytest.mark.slow
def test_in_memory(fresh_url: Callable[[str], str]) -> None:
    """The clients of a store in memory agree on what happened."""
    with Run(fresh_url("memory")) as run:
        run.workers.progress(1000)
    assert not left_open(run.history)


@pytest.mark.slow
def test_a_killed_process_leaves_what_it_acknowledged(tmp_path: Path) -> None:
    """RocksDB's process is killed repeatedly: acknowledged writes are there, and in order."""
    database = tmp_path / "db"
    history: list[Op] = []
    caught = 0
    for number in range(4):
        with Victim(f"rocksdb://{database}", f"v{number}", PATHS) as victim:
            victim.progress(500)
            victim.kill()
        caught += sum(op.outcome == "unknown" for op in victim.history)
        history += victim.history
    assert caught
    with bk.open_store(f"rocksdb://{database}") as last:
        client = Client(last, "last", history)
        for path in PATHS:
            client.ask(bk.Get(path))
    violations = check(history)
    assert not violations, explain(violations)


@pytest.mark.full
def test_with_nothing_wrong(nemesis: Nemesis) -> None:
    """Without faults nothing is unknown, and everything can be explained."""
    with Run(nemesis) as run:
        run.workers.progress(400)
    assert not left_open(run.history)


@pytest.mark.full
def test_killed(nemesis: Nemesis) -> None:
    """Killed twice and started again: acknowledged writes are there, and nothing is made up."""
    with Run(nemesis) as run:
        for _ in range(2):
            nemesis.kill()
            nemesis.restart()
            assert under_way(run.history, nemesis.killed)
            run.workers.progress(200)


@pytest.mark.full
def test_paused_for_less_than_the_deadline(nemesis: Nemesis) -> None:
    """A server that is paused for a while makes operations late, and has no other effect."""
    with Run(nemesis) as run:
        for _ in range(2):
            nemesis.pause(0.7)
            run.workers.progress(200)
    assert not left_open(run.history)


def test_paused_for_longer_than_the_deadline(nemesis: Nemesis) -> None:
    """Operations that end at their deadline, or with the session, report the right outcome.

    Only those that meet the pause have so little time: on a machine with much to do, the others
    would need more.
    """
    with Run(nemesis, session_timeout=1.0) as run:
        for rounds in count(1):
            run.workers.hurry(max(1.0, 4 * run.workers.slowest()))
            nemesis.pause(2.0, until=partial(some_end_unsent, run, len(run.history)))
            run.workers.progress(100)
            # Unknown is a write that is on its way when the pause begins, and there may be none.
            if rounds >= 2 and any(op.outcome == "unknown" for op in run.history):
                break
            assert rounds < 10, "no write was on its way"


def some_end_unsent(run: Run, seen: int) -> None:
    """Wait until a recent operation has ended as not applied. Later ones have time again."""
    run.workers.until(
        lambda: any(op.outcome == "not_applied" for op in run.history[seen:]),
        "no operation has ended at its deadline",
    )
    run.workers.hurry(None)


@pytest.mark.full
def test_cut_off(nemesis: Nemesis) -> None:
    """Connections break, and lose requests or answers."""
    with Run(nemesis) as run:
        for lose in (nemesis.lose_answers, nemesis.lose_requests, nemesis.cut) * 2:
            lose()
            run.workers.progress(100)
