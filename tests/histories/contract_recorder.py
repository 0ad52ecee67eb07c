"""Clients that use sequences, watches and ephemeral values, and record what they did and saw."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from typing import Any

import batchkeeper as bk

from .contract import Look, Sequential, SessionRecord, WatchRecord
from .recorder import PACE, PATIENCE, Client

__all__ = ["Numbered", "Owner", "Watched"]


class _Worker:
    """A thread that repeats a step until it is stopped."""

    def __init__(self, step: Callable[[], None]) -> None:
        self._step = step
        self._stopping = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                self._step()
        except BaseException as error:  # reported by `stop`
            self._failure = error

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(2 * PATIENCE)
        assert not self._thread.is_alive(), "a worker hangs"
        if self._failure is not None:
            raise self._failure


class Numbered:
    """Threads that make sequential puts below one parent, several at a time, and then rest."""

    def __init__(
        self, store: bk.MetadataStore, parent: str, threads: int = 3, pace: float = PACE
    ) -> None:
        self.parent = parent
        self.puts: list[Sequential] = []
        self._store = store
        self._pace = pace
        self._workers = [_Worker(self._some) for _ in range(threads)]

    def _some(self) -> None:
        under_way: list[tuple[Sequential, Any]] = []
        for _ in range(8):
            put = Sequential(self.parent, time.monotonic())
            self.puts.append(put)
            future = self._store.put(f"{self.parent}/n-", b"", sequential=True)
            under_way.append((put, future))
        for put, future in under_way:
            error = future.exception(PATIENCE)
            put.completed = time.monotonic()
            if error is None:
                put.path, put.outcome = future.result().path, "done"
            elif error.outcome == "unknown":
                put.completed, put.outcome = float("inf"), "unknown"
            else:
                put.outcome = "not_applied"
        time.sleep(len(under_way) * self._pace)

    def stop(self) -> None:
        """Stop, and wait until all puts have ended."""
        for worker in self._workers:
            worker.stop()


class Watched:
    """A watch, and a thread that takes its events."""

    def __init__(self, store: bk.MetadataStore, prefix: str, **options: Any) -> None:
        self._watch = store.watch(prefix, **options)
        self.record = WatchRecord(prefix, time.monotonic())
        self._worker = _Worker(self._take)

    def _take(self) -> None:
        event = self._watch.next_event(0.1)
        if event is not None:
            self.record.events.append(event)

    def catch_up(self, client: Client) -> float:
        """Wait for the event of a last put; return the time before which all others ended."""
        until = time.monotonic()
        last = client.ask(bk.Put(f"{self.record.prefix}/last-{id(self)}", b"%d" % id(self)))
        assert last.outcome == "done", last
        give_up = time.monotonic() + PATIENCE
        while not any(event.path == last.path for event in self.record.events[-1000:]):
            assert time.monotonic() < give_up, "the event of the last put does not come"
            if self._gap_after(until):
                break
            time.sleep(0.01)
        return until

    def _gap_after(self, moment: float) -> bool:
        # A gap may stand in the place of the last put, and nothing comes after it.
        ended = time.monotonic() > moment + PATIENCE / 4
        return ended and bool(self.record.events) and self.record.events[-1].kind == "gap"

    def stop(self) -> None:
        """Stop, and close the watch."""
        self._worker.stop()
        self._watch.close()


class Owner:
    """A store that creates ephemeral values, and another one that looks at them.

    Args:
        owner: creates the values; its sessions may be lost.
        looker: has linearizable reads, by nature or by a ``sync``.
        place: the folder of the values.
    """

    def __init__(self, owner: bk.MetadataStore, looker: bk.MetadataStore, place: str) -> None:
        self.store = owner
        self.values: list[SessionRecord] = []
        self.looks: list[Look] = []
        self.events: list[tuple[bk.SessionEvent, float]] = []
        self._looker = looker
        self._numbers = itertools.count()
        self._place = place
        self._current: SessionRecord | None = None
        self._ending = False  # whether an operator is about to end the session
        self._listener = owner.add_session_listener(self._listen)
        self._workers = [_Worker(self._own), _Worker(self._look)]

    def _listen(self, event: bk.SessionEvent) -> None:
        now = time.monotonic()
        self.events.append((event, now))
        if event == "session_lost":
            self._ending = False
            for value in self.values:
                value.lost = min(value.lost, now)
            self._current = None

    def end(self) -> None:
        """Note that the session is about to be ended on purpose, which no client can foresee."""
        self._ending = True
        now = time.monotonic()
        for value in self.values:
            value.ended = min(value.ended, now)
        self._current = None

    def _own(self) -> None:
        """Have one value at a time, and claim no more for it than the session does."""
        value = self._current
        if value is None or value.lost < float("inf"):
            path, ending = f"{self._place}/e{next(self._numbers)}", self._ending
            before = self.store.session.id
            put = self.store.put(path, b"", bk.ABSENT, ephemeral=True)
            if put.exception(PATIENCE) is None and self.store.session.id == before:
                now = time.monotonic()
                self._current = SessionRecord(path, now, now if ending else float("inf"))
                self.values.append(self._current)
        else:
            session = self.store.session
            before, valid, after = session.id, session.valid_until(), session.id
            # Another session says nothing about this value.
            if before == after and value.lost == float("inf"):
                value.valid = max(value.valid, valid)
        time.sleep(0.02)

    def _look(self) -> None:
        for value in self.values[-3:]:
            invoked = time.monotonic()
            try:
                self._looker.sync()
                there = self._looker.exists(value.path).result(PATIENCE)
            except bk.MetadataStoreError:
                continue
            self.looks.append(Look(value.path, invoked, time.monotonic(), there))
        time.sleep(0.01)

    def stop(self) -> None:
        """Stop. The values stay as they are."""
        for worker in self._workers:
            worker.stop()
        self._listener.close()
