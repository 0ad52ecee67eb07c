"""One watch: which changes it reports, and where it goes on."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, Protocol

from ....ops.errors import MetadataStoreError
from ....ops.log import get_logger
from ....ops.results import GetResult, Stat, ValueEvent, WatchEvent
from ...keys import path_of
from .messages import PUT

__all__ = ["EtcdWatch", "Keys"]

_log = get_logger(__name__)

# They create tuples without a call of Python code.
_event = partial(tuple.__new__, WatchEvent)
_result = partial(tuple.__new__, GetResult)
_stat = partial(tuple.__new__, Stat)


class Keys(NamedTuple):
    """The keys of a watch.

    Attributes:
        first: the key of its own path, or ``below`` for the whole store.
        below: the prefix of the keys of all paths below it.
        stop: the end of the keys.
        hidden: the prefix of the keys that this client keeps for itself.
        skip: the length of the prefix that precedes every path.
    """

    first: bytes
    below: bytes
    stop: bytes
    hidden: bytes
    skip: int


class _Watches(Protocol):
    """What a watch needs of all watches."""

    @property
    def forked(self) -> bool: ...
    def remove(self, watch: EtcdWatch) -> None: ...


@dataclass(slots=True, eq=False, repr=False)
class EtcdWatch:
    """One watch, and the handle that closes it.

    As soon as the thread of the stream knows the watch, that thread alone uses ``after``, ``held``,
    ``fresh``, ``lost``, ``doubted`` and ``endings``. The lock of the watches guards ``watch_id``,
    ``placed``, ``answered`` and ``error``.

    Attributes:
        prefix: its path.
        keys: its keys.
        after: the last revision of which everything was delivered; 0 until the watch of a deletion
            is in place.
        held: events of the newest revision, if that is incomplete.
        fresh: whether ``after`` was the newest revision a moment ago.
        lost: whether a gap is to be delivered as soon as the watch is placed.
        doubted: whether etcd has refused the watch, which may be because the login has expired.
        endings: how many times etcd has ended it since the last event.
        watch_id: its id in the present stream.
        placed: whether it is in place in the present stream.
        displaced_at: since when it has not been, by ``time.monotonic()``.
        answered: whether it has ever been in place.
        error: the error that has ended it.
        owns: says whether a lease is that of the client's session, if events are to have values.
    """

    _watches: _Watches
    prefix: str
    keys: Keys
    _deliver: Callable[[Sequence[WatchEvent]], None]
    _fail: Callable[[MetadataStoreError], None]
    after: int = 0
    held: list[WatchEvent] = field(default_factory=list)
    fresh: bool = False
    lost: bool = False
    doubted: bool = False
    endings: int = 0
    watch_id: int = 0
    placed: bool = False
    displaced_at: float = 0.0
    answered: bool = False
    error: MetadataStoreError | None = None
    owns: Callable[[int], bool] | None = None
    # Held during a delivery, so that `close` can wait for its end. Reentrant, because `deliver`
    # may call `close`.
    _delivering: threading.RLock = field(default_factory=threading.RLock)
    _closed: bool = False

    def change(self, changes: Any, *, fragment: bool) -> None:
        """Deliver the changes of all complete revisions in a response.

        Args:
            changes: the changes, at least one, in order.
            fragment: whether the next response continues the last revision.
        """
        newest = changes[-1].kv.mod_revision
        events = self.held + self._events(changes)
        self.held = []
        if fragment:
            complete = [event for event in events if event.revision != newest]
            self.held = events[len(complete) :]
            events = complete
            newest -= 1
        self.after = max(self.after, newest)
        self.endings = 0
        if events:
            self.take(events)

    def gap(self, revision: int) -> None:
        """Deliver a gap: the watch goes on after a revision."""
        self.after, self.lost = revision, False
        self.take([WatchEvent("gap", self.prefix)])

    def _events(self, changes: Any) -> list[WatchEvent]:
        """Return the events for callers."""
        after, owns = self.after, self.owns
        first, below, _, hidden, skip = self.keys
        events: list[WatchEvent] = []
        for change in changes:
            kv = change.kv
            revision = kv.mod_revision
            key = kv.key
            if revision <= after or key.startswith(hidden):
                continue
            if not key.startswith(below) and key != first:
                continue
            path = path_of(key[skip:])
            if path is None:
                continue
            if change.type != PUT:
                events.append(_event(("deleted", path, None, revision)))
                continue
            version = kv.version - 1
            event = _event(("modified" if version else "created", path, version, revision))
            if owns is not None:
                lease = kv.lease
                owned = lease != 0 and owns(lease)
                stat = _stat((path, version, revision, None, None, lease != 0, owned))
                event = ValueEvent.of(event, _result((kv.value, stat)))
            events.append(event)
        return events

    def displace(self) -> None:
        """Note that it is no longer in place. The caller holds the lock of the watches."""
        if self.placed:
            self.placed, self.displaced_at = False, time.monotonic()

    @property
    def lag(self) -> float:
        """See :class:`stores.backend.WatchHandle`."""
        return 0.0 if self.placed else time.monotonic() - self.displaced_at

    def take(self, events: Sequence[WatchEvent]) -> None:
        """Deliver events, unless the watch is closed."""
        with self._delivering:
            if self._closed:
                return
            try:
                self._deliver(events)
            except Exception:
                _log.exception("watch callback failed", prefix=self.prefix)

    def end(self, error: MetadataStoreError) -> None:
        """Deliver the error that ends the watch."""
        with self._delivering:
            if self._closed:
                return
            self._closed = True
            try:
                self._fail(error)
            except Exception:
                _log.exception("watch callback failed", prefix=self.prefix)

    def close(self) -> None:
        """End the watch. See :class:`stores.backend.WatchHandle`."""
        if self._watches.forked:
            return
        with self._delivering:
            if self._closed:
                return
            self._closed = True
        self._watches.remove(self)
