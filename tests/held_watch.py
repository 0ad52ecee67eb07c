"""Stands between a part and the watches of its store, and holds their events back."""

from __future__ import annotations

from threading import Event
from typing import Self

import pytest

import batchkeeper as bk

from .waiting import PATIENCE

__all__ = ["HeldEvents"]


class HeldEvents:
    """The events of the watches that a store makes from now on. Gaps are never held back.

    Attributes:
        handled: the events that the part has handled.
        waits: set when an event is held back, or was.
        revisions: whether the part gets the revisions of the events.
    """

    def __init__(self, store: bk.MetadataStore, monkeypatch: pytest.MonkeyPatch) -> None:
        self.handled: list[bk.WatchEvent] = []
        self.waits = Event()
        self.revisions = True
        self._open = Event()
        self._open.set()
        watch = store.watch
        monkeypatch.setattr(store, "watch", lambda prefix: _HeldWatch(self, watch(prefix)))

    def hold(self) -> None:
        """Hold events back from now on."""
        self._open.clear()

    def release(self) -> None:
        """Let them go."""
        self._open.set()

    def count(self, path: str) -> int:
        """Return how many events of a path were handled."""
        return sum(event.path == path for event in self.handled)

    def pass_on(self, event: bk.WatchEvent) -> bk.WatchEvent:
        """Return an event when it is not held back any more."""
        if not self._open.is_set():
            self.waits.set()
            assert self._open.wait(PATIENCE)
        return event if self.revisions else event._replace(revision=None)


class _HeldWatch:
    """A watch. Who asks it for the next event has handled the one before."""

    def __init__(self, held: HeldEvents, watch: bk.Watch) -> None:
        self._held = held
        self._watch = watch
        self._last: bk.WatchEvent | None = None

    def next_event(self, timeout: float | None = None) -> bk.WatchEvent | None:
        if self._last is not None:
            self._held.handled.append(self._last)
        self._last = None
        event = self._watch.next_event(timeout)
        if event is None or event.kind == "gap":
            return event
        self._last = self._held.pass_on(event)
        return self._last

    def close(self) -> None:
        self._watch.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
