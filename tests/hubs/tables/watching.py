"""What the tests of watchers share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Event
from typing import Any, Self

import pytest

import batchkeeper as bk
from batchkeeper.hubs.errors import NoKeyError
from batchkeeper.hubs.tables import EventType, Table, Version

from ...waiting import PATIENCE, result, until

__all__ = ["CHANGED", "REMOVED", "Calls", "Held", "arm", "held_events", "settle", "tells_revisions"]

CHANGED, REMOVED = EventType.CHANGED, EventType.REMOVED


class Calls(list[tuple[str, EventType]]):
    """A watcher that notes its calls."""

    def __call__(self, key: str, event: EventType) -> None:
        self.append((key, event))

    def wait(self, *expected: tuple[str, EventType]) -> None:
        """Wait for as many calls as are expected; they must be just these."""
        until(lambda: len(self) >= len(expected), f"waited for {expected}, but found {self}")
        assert self == [*expected]


def arm(table: Table, key: str, watcher: Any) -> None:
    """Arm a watcher, whether the key is there or not."""
    with suppress(NoKeyError):
        table.get(key, watcher=watcher)


def settle(table: Table) -> None:
    """Wait until all watchers of a table are called that are to be told of earlier changes."""
    told = Event()
    arm(table, "settle", lambda *_: told.set())
    with suppress(NoKeyError):
        table.remove("settle", Version.ANY)
    with suppress(bk.MetadataStoreError):
        table.put("settle", {}, Version.NEW)
    assert told.wait(PATIENCE)


def tells_revisions(store: bk.MetadataStore) -> bool:
    """Say whether all events have revisions. Those of ZooKeeper before 3.9 have not."""
    with store.watch("/probe") as watch:
        for _ in range(2):
            result(store.put("/probe", b""))
        return all(next(watch).revision is not None for _ in range(2))


class Held:
    """Stands between a table and the watches of its store: events wait for ``release``.

    They lose their revisions if ``revisions`` is not set. ``handled`` counts those that the table
    has handled, and ``held`` is set when one waits.
    """

    def __init__(self, revisions: bool) -> None:
        self.revisions = revisions
        self.held = Event()
        self.handled = 0
        self.released = Event()

    def release(self) -> None:
        self.released.set()


class HeldWatch:
    """A watch whose events are held."""

    def __init__(self, held: Held, watch: bk.Watch) -> None:
        self._held = held
        self._watch = watch
        self._given = False  # whether the table handles an event

    def next_event(self, timeout: float | None = None) -> bk.WatchEvent | None:
        held = self._held
        held.handled += self._given
        event = self._watch.next_event(timeout)
        self._given = event is not None and event.kind != "gap"
        if event is None or not self._given:
            return event
        held.held.set()
        assert held.released.wait(PATIENCE)
        return event if held.revisions else event._replace(revision=None)

    def close(self) -> None:
        self._watch.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextmanager
def held_events(
    table: Table, monkeypatch: pytest.MonkeyPatch, *, revisions: bool = True
) -> Iterator[Held]:
    """Hold back the events of a table, whose watch is in place, until ``release``."""
    held, store = Held(revisions), table.shelf.store
    watch = store.watch
    monkeypatch.setattr(store, "watch", lambda prefix: HeldWatch(held, watch(prefix)))
    arm(table, "first", lambda *_: None)
    try:
        yield held
    finally:
        held.release()
