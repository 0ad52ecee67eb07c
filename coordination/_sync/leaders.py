# Made from async_leaders.py by `python tools/faces.py`: change that file, and run this command.
"""The values of an election's leaders, one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Self

from ...batching import MetadataStore, Watch
from ...batching.background import Gate, Signal
from ...ops.backoff import Backoff
from ...ops.errors import MetadataStoreError, passes
from ...ops.results import WatchEvent
from ..contenders import Contender, line_of, parse
from .kinds import check_store

__all__ = ["LeaderWatch"]

_BACKOFF: Final = Backoff(first=0.05, longest=2.0)


class LeaderWatch(Iterator[bytes | None]):
    """The values of an election's leaders: first the current one, then one for each change.

    :meth:`Election.observe` creates it. ``None`` means that no candidate leads. A new leader is a
    change, and so is an update of the leader's value. The latest value always arrives, even after
    an outage; earlier ones may be skipped if they change faster than they are read. An observer
    need not be a candidate. The first step starts one watch, and nothing runs in the background.

    The iteration ends with :meth:`close`. If the store is closed, it raises ``StoreClosedError``.
    Several threads may share it; each value goes to one of them. It is also a context manager.
    """

    def __init__(self, store: MetadataStore, path: str) -> None:
        check_store(store, "a watch of leaders", "watches")
        self._store = store
        self._path = path
        self._closing = Signal()
        self._watch: Watch | None = None
        self._gate = Gate()  # guards the following fields
        self._line: set[Contender] | None = None  # ``None`` if it must be read
        self._stale = False  # whether the leader may have changed since its value was last read
        self._given: tuple[str, int] | None = ("", 0)  # name and version last returned
        self._value: bytes | None = None

    def close(self) -> None:
        """End the iteration, from any thread. A second call does nothing."""
        self._closing.set()
        watch = self._watch
        if watch is not None:
            watch.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> bytes | None:
        with self._gate:
            return self._next()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _next(self) -> bytes | None:
        failures = 0
        while not self._closing.is_set():
            try:
                watch = self._watching()
                if self._changed():
                    return self._value
                event = watch.next_event()
                if event is not None:
                    self._hear(event)
                failures = 0
            except MetadataStoreError as error:
                if self._closing.is_set():
                    break
                if not passes(error):
                    self.close()
                    raise
                self._closing.wait(_BACKOFF.pause(failures))
                failures += 1
        raise StopIteration

    def _watching(self) -> Watch:
        """Return the watch; start one if there is none, or if it has failed."""
        watch = self._watch
        if watch is None or watch.closed:
            self._line = None
            watch = self._watch = self._store.watch(self._path)
            if self._closing.is_set():  # It may have been set before ``_watch`` was.
                watch.close()
        return watch

    def _changed(self) -> bool:
        """Read the leader, if it may have changed; return whether it has."""
        if self._line is None:
            names = self._store.get_children(self._path).result()
            self._line, self._stale = set(line_of(names)), True
        if not self._stale:
            return False
        leader, value = None, None
        if self._line:
            name = min(self._line).name
            found = self._store.get(f"{self._path}/{name}").result()
            if found is None:  # It has just left, and an event will say so.
                self._stale = False
                return False
            leader, value = (name, found.stat.version), found.value
        self._stale = False
        if leader == self._given:
            return False
        self._given, self._value = leader, value
        return True

    def _hear(self, event: WatchEvent) -> None:
        parent, _, name = event.path.rpartition("/")
        contender = parse(name)
        if event.kind == "gap":
            self._line = None
        elif parent == self._path and self._line is not None and contender is not None:
            first = min(self._line, default=None)
            if event.kind == "created":
                self._line.add(contender)
            elif event.kind == "deleted":
                self._line.discard(contender)
            elif contender == first:
                self._stale = True
            self._stale |= min(self._line, default=None) != first
