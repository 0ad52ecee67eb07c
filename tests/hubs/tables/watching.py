"""What the tests of watchers share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Event
from typing import Any

import pytest

import batchkeeper as bk
from batchkeeper.hubs.errors import NoKeyError
from batchkeeper.hubs.tables import EventType, Table, Version

from ...held_watch import HeldEvents
from ...waiting import PATIENCE, result, until

__all__ = ["CHANGED", "REMOVED", "Calls", "arm", "held_events", "settle", "tells_revisions"]

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
    """Wait until all watchers of a table with earlier changes are called."""
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


@contextmanager
def held_events(
    table: Table, monkeypatch: pytest.MonkeyPatch, *, revisions: bool = True
) -> Iterator[HeldEvents]:
    """Hold back the events of a table, whose watch is in place, until ``release``."""
    held = HeldEvents(table.shelf.store, monkeypatch)
    held.revisions = revisions
    arm(table, "first", lambda *_: None)
    held.hold()
    try:
        yield held
    finally:
        held.release()
