"""Histories with transactions, sequences, watches and ephemeral values, on real stores."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from contextlib import ExitStack
from typing import Any, Self

import pytest

import batchkeeper as bk

from .checker import check, explain
from .contract import check_ephemerals, check_sequences, check_watch
from .contract_recorder import Numbered, Owner, Watched
from .history import Op
from .nemesis import Nemesis
from .recorder import PACE, Client, Workers

# Transactions join each path with one other.
PATHS = [f"/h/{number}" for number in range(8)]
NEEDED = {"ephemerals", "sequences", "transactions", "watches"}

# In order, however many outages there are: what may follow each event of a session.
FOLLOWING = {
    None: {"connection_lost", "session_lost"},
    "connection_lost": {"reconnected"},
    "reconnected": {"connection_lost", "session_lost"},
    "session_lost": {"session_reestablished", "connection_lost"},
    "session_reestablished": {"connection_lost", "session_lost"},
}


class ContractRun:
    """Clients at work with everything that a store offers, and the checks of their records.

    Args:
        url: the store, through what may harm the connection.
        direct: the same store without that.
        session_timeout: of the client whose values are ephemeral.
        pace: see :class:`Workers`.
        needed: what the store has to have. It is watched only if it has watches.
    """

    def __init__(
        self,
        url: str,
        direct: str,
        session_timeout: float = 30.0,
        pace: float = PACE,
        needed: AbstractSet[str] = NEEDED,
    ) -> None:
        self._url, self._direct = url, direct
        self._session_timeout = session_timeout
        self._pace = pace
        self._needed = needed
        self._stack = ExitStack()
        self.history: list[Op] = []
        self.workers = Workers(self.history, pace)

    def _open(self, url: str, **options: Any) -> bk.MetadataStore:
        options = {"connect_timeout": 60.0, **options}
        return self._stack.enter_context(bk.open_store(url, **options))

    def __enter__(self) -> Self:
        stores = [self._open(self._url) for _ in "ab"]
        assert stores[0].capabilities >= self._needed
        self.watches: list[Watched] = []
        if "watches" in self._needed:
            self.watches = [Watched(stores[0], "/h"), Watched(stores[1], "/h", max_events=100)]
        self.numbered = [Numbered(store, "/q", pace=self._pace) for store in stores]
        # Its looks do not pass through the faults.
        owner = self._open(self._url, session_timeout=self._session_timeout)
        self.owner = Owner(owner, self._open(self._direct), "/e")
        for name, store in zip("ab", stores, strict=True):
            self.workers.start(Client(store, name, self.history), PATHS, threads=4)
        self.progress(100)
        return self

    def progress(self, operations: int) -> None:
        """Wait until writes have succeeded, and an ephemeral value stands."""
        self.workers.progress(operations)
        self.workers.until(lambda: self.owner.values != [], "no ephemeral value was created")

    def until(self, holds: Callable[[], bool], otherwise: str) -> None:
        """Wait until ``holds`` is true."""
        self.workers.until(holds, otherwise)

    @property
    def events(self) -> list[str]:
        """The events of the owner's session so far."""
        return [event for event, _ in self.owner.events]

    def __exit__(self, *caught: object) -> None:
        with self._stack:
            self.workers.stop()
            for numbered in self.numbered:
                numbered.stop()
            self.owner.stop()
            last = self._open(self._direct)
            client = Client(last, "last", self.history)
            until = [watch.catch_up(client) for watch in self.watches]
            for watch in self.watches:
                watch.stop()
            read = [client.ask(bk.Get(path)) for path in PATHS]
            assert all(op.outcome == "done" for op in read)
            names = last.get_children("/q").result()
        if caught[0] is not None:
            return
        puts = [put for numbered in self.numbered for put in numbered.puts]
        violations = [
            *check(self.history),
            *check_sequences(puts, {"/q": names}),
            *check_ephemerals(self.owner.values, self.owner.looks),
        ]
        for watch, moment in zip(self.watches, until, strict=True):
            violations += check_watch(watch.record, self.history, moment)
        assert not violations, explain(violations)
        for before, after in zip([None, *self.events], self.events, strict=False):
            assert after in FOLLOWING[before], self.events


@pytest.mark.slow
def test_in_memory(fresh_url: Callable[[str], str]) -> None:
    """In memory, everything can be explained, and the watch has no gap."""
    url = fresh_url("memory")
    with bk.open_store(url), ContractRun(url, url) as run:
        run.progress(500)
    assert all(event.kind != "gap" for event in run.watches[0].record.events)


def run_on(nemesis: Nemesis, **options: Any) -> ContractRun:
    """Return a run on its own part of a server, through the faults."""
    place = f"/{uuid.uuid4().hex}"
    return ContractRun(nemesis.url + place, nemesis.server.url + place, **options)


@pytest.mark.full
def test_with_nothing_wrong(nemesis: Nemesis) -> None:
    """Without faults, the session has no events and the watches have no gap."""
    with run_on(nemesis) as run:
        run.progress(400)
    assert run.events == []
    assert all(event.kind != "gap" for event in run.watches[0].record.events)


def test_cut_off(nemesis: Nemesis) -> None:
    """Connections break, and lose requests or answers: the session stays, and watches go on."""
    with run_on(nemesis) as run:
        for lose in (nemesis.lose_answers, nemesis.lose_requests, nemesis.cut):
            lose()
            run.progress(100)
    assert "session_lost" not in run.events


def test_killed(nemesis: Nemesis, pytestconfig: pytest.Config) -> None:
    """A server that is killed and started again keeps the sessions, and watches go on."""
    with run_on(nemesis) as run:
        for _ in range(2 if pytestconfig.option.full else 1):
            nemesis.kill()
            nemesis.restart()
            run.progress(100)


def test_an_outage_longer_than_the_session(nemesis: Nemesis) -> None:
    """A client that was cut off for too long learns that its session and its values are gone."""
    with run_on(nemesis, session_timeout=2.0) as run:
        nemesis.isolate(8.0)
        run.until(lambda: "session_reestablished" in run.events, "no new session")
        run.progress(100)


@pytest.mark.full
def test_an_ended_session(nemesis: Nemesis) -> None:
    """A session that an operator ends takes its values along, and nothing else."""
    with run_on(nemesis) as run:
        run.owner.end()
        nemesis.end_session(run.owner.store)
        run.until(lambda: "session_reestablished" in run.events, "no new session")
        run.progress(100)
    assert run.events.count("session_lost") == 1
