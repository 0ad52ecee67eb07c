"""The contents of a cache, and the rules for entering it. No I/O; any thread may call it.

Keys are paths for values, and tuples of one path for lists of children.

Each answer of the store has a *mark*: a value has its revision, an absent path has ``ABSENT``, and
a list of children has its names. Of two marks of one key, the greater revision is the newer one. No
other comparison decides which of two different marks is newer.

A *flight* is a running read or write. Until it ends, it sees the mark of everything that this cache
learns about its key: events, and the ends of other flights. Its own answer enters only if it covers
all of these marks, that is, if it is certainly not older. So an answer that was read before an
invalidation never enters after it, whatever the order in which answers and events arrive. ``clear``
begins a new epoch, and flights that began in an earlier epoch never enter. Without a watch, there
is no epoch, and nothing enters.

Reads of one key share one flight, unless the cache has learned something since it began.
"""

from __future__ import annotations

import enum
import math
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Generic, TypeAlias, TypeVar

from ..batching.reentry import refused
from ..ops.errors import InvalidSettingError, MetadataStoreError, ValueDecodeError
from ..ops.results import GetResult
from ..ops.serdes import decoded

__all__ = [
    "ABSENT",
    "NOT_CACHED",
    "UNKNOWN",
    "Entries",
    "Entry",
    "Flight",
    "Key",
    "Load",
    "Mark",
    "NotCached",
    "covers",
]

T = TypeVar("T")
S = TypeVar("S")

#: See the module.
Key: TypeAlias = str | tuple[str]
Mark: TypeAlias = int | tuple[str, ...]

#: The mark of a path without a value.
ABSENT: Final = 0
#: An unknown change: no answer covers this mark.
UNKNOWN: Final = -1

# The approximate bytes of an entry's objects, without its value.
_OVERHEAD: Final = 500


class NotCached(enum.Enum):
    """The type of :data:`NOT_CACHED`."""

    NOT_CACHED = "not cached"


#: The answer of ``get_if_cached`` for a path about which the cache knows nothing.
NOT_CACHED: Final = NotCached.NOT_CACHED


def covers(mark: Mark, seen: Mark) -> bool:
    """Return whether an answer with one mark is certainly not older than another mark."""
    if type(mark) is int and type(seen) is int:
        return mark == seen != UNKNOWN or 0 < seen < mark
    return mark == seen


class Entry(Generic[T]):
    """One answer of the store.

    Attributes:
        mark: its mark.
        found: the stored value, or ``None`` for an absent path or a list of children.
        names: the names of a list of children.
        value: the decoded value, after the first request for it; ``None`` for an absent path.
        error: the error of decoding the value.
        decoded: whether ``value`` is set.
        ready: whether ``value`` is set, and holds until the entry is removed.
        until: the time at which it becomes too old.
        used: whether it was used since the last round of evictions.
    """

    __slots__ = ("decoded", "error", "found", "mark", "names", "ready", "until", "used", "value")

    def __init__(
        self,
        found: GetResult | None,
        names: tuple[str, ...] | None = None,
        until: float = math.inf,
    ) -> None:
        self.found = found
        self.names = names
        self.until = until
        self.used = False
        self.value: T | None = None
        self.error: ValueDecodeError | None = None
        self.decoded = found is None
        self.ready = self.decoded and until == math.inf
        self.mark: Mark
        if names is not None:
            self.mark = names
        else:
            self.mark = ABSENT if found is None else found.stat.revision

    def decode(self, path: str, decode: Callable[[bytes], T]) -> T | None:
        """Return the decoded value; ``None`` for an absent path.

        Raises:
            ValueDecodeError: it cannot be decoded.
        """
        if self.decoded:
            return self.value
        error = self.error
        if error is None:
            assert self.found is not None
            try:
                self.value = decoded(path, self.found, decode)
            except ValueDecodeError as failed:
                self.error = error = failed
            else:
                self.decoded = True
                self.ready = self.until == math.inf
                return self.value
        # A copy: one exception raised in several threads would collect all their tracebacks.
        raise error.for_path(path) from error.__cause__

    def size(self, key: Key) -> int:
        """Return its approximate size in bytes, without the decoded value."""
        names = 0 if self.names is None else sum(map(len, self.names))
        value = 0 if self.found is None else len(self.found.value)
        path = key if isinstance(key, str) else key[0]
        return _OVERHEAD + len(path) + names + value


class Flight:
    """A running read or write."""

    __slots__ = ("epoch", "key", "seen")

    def __init__(self, key: Key, epoch: object | None) -> None:
        self.key = key
        self.epoch = epoch
        self.seen: Mark | None = None

    def see(self, mark: Mark) -> None:
        """Note a mark that the cache has learned in the meantime."""
        if self.seen is None or covers(mark, self.seen):
            self.seen = mark
        elif not covers(self.seen, mark):
            self.seen = UNKNOWN


class Load(Flight, Generic[T, S]):
    """A read that any number of callers wait for.

    Attributes:
        done: a signal that is set at its end.
        over: whether it has ended. Ctrl-C may keep ``done`` from being set, but not this.
        entry: its answer. Without an answer and without an error, the load was given up: read
            again.
        error: the error that ended it.
    """

    __slots__ = ("_thread", "done", "entry", "error", "over")

    def __init__(self, key: Key, done: S) -> None:
        super().__init__(key, None)
        self.done = done
        self.over = False
        self._thread = threading.get_ident()
        self.entry: Entry[T] | None = None
        self.error: MetadataStoreError | None = None

    def check_thread(self, path: str) -> None:
        """Refuse a signal handler that would wait for the read that it has interrupted."""
        if self._thread == threading.get_ident():
            raise refused(path)


class Entries(Generic[T, S]):
    """The entries of one cache, and the flights that may change them.

    Eviction is second-chance: the oldest entry is evicted, unless it was used since it was last
    considered. So a hit needs no lock: it finds an entry and sets a flag.

    Args:
        max_entries: the limit of entries.
        max_bytes: the limit of bytes of keys, values and names.
        signal: creates the signal of a load.
    """

    def __init__(self, max_entries: int, max_bytes: int, signal: Callable[[], S]) -> None:
        for name, most in (("max_entries", max_entries), ("max_bytes", max_bytes)):
            if type(most) is not int or most < 1:
                raise InvalidSettingError(f"{name} must be an int of 1 or more, not {most!r:.80}")
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._signal = signal
        # Guards the following fields. Reads of single entries do not need it.
        self._lock = threading.RLock()
        self._entries: OrderedDict[Key, Entry[T]] = OrderedDict()
        self._bytes = 0
        self._epoch: object | None = None
        self._flights: dict[Key, list[Flight]] = {}
        self._loads: dict[Key, Load[T, S]] = {}  # those that further callers may join
        #: Return the entry of a key, or ``None``.
        self.find: Callable[[Key], Entry[T] | None] = self._entries.get

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def bytes(self) -> int:
        """The approximate bytes of the entries."""
        return self._bytes

    @property
    def under_way(self) -> int:
        """The number of keys with flights."""
        return len(self._flights)

    def load(self, key: Key) -> Load[T, S]:
        """Return a new load, for ``join``."""
        return Load(key, self._signal())

    def join(self, own: Load[T, S]) -> Load[T, S]:
        """Return the running load of the same key; if there is none, ``own`` becomes it.

        In that case, the caller reads, and must end the load even if it is interrupted, because
        others may have joined it.
        """
        key = own.key
        with self._lock:
            load = self._loads.get(key)
            if load is not None:
                if not load.over:
                    return load
                self._land(load)
            own.epoch = self._epoch
            self._loads[key] = own
            self._flights.setdefault(key, []).append(own)
            return own

    def write(self, key: Key) -> Flight:
        """Begin a write."""
        with self._lock:
            flight = Flight(key, self._epoch)
            self._flights.setdefault(key, []).append(flight)
            return flight

    def end(self, flight: Flight, mark: Mark, entry: Entry[T] | None = None) -> None:
        """End a flight that has seen a mark. Its entry enters if the rules allow it."""
        key = flight.key
        with self._lock:
            self._land(flight)
            self._learn(key, mark)
            if (
                entry is not None
                and flight.epoch is self._epoch is not None
                and (flight.seen is None or covers(mark, flight.seen))
                and ((there := self._entries.get(key)) is None or covers(mark, there.mark))
            ):
                self._add(key, entry)

    def give_up(self, load: Load[T, S]) -> None:
        """End a load, if it has not ended or never started."""
        with self._lock:
            self._land(load)
            if self._loads.get(load.key) is load:
                del self._loads[load.key]

    def learn(self, key: Key, mark: Mark) -> None:
        """Note a change, with its revision if known; drop older entries."""
        with self._lock:
            self._learn(key, mark)

    def open(self) -> None:
        """Open the cache: from now on, all changes are learned. Earlier entries are dropped."""
        with self._lock:
            self._clear()
            self._epoch = object()

    def shut(self) -> None:
        """Drop all entries, and accept none until ``open``."""
        with self._lock:
            self._clear()
            self._epoch = None

    def clear(self) -> None:
        """Drop all entries. Running flights no longer enter."""
        with self._lock:
            self._clear()
            self._epoch = None if self._epoch is None else object()

    def forget(self) -> None:
        """Drop everything in a forked process, where another thread may have held the lock."""
        self._lock = threading.RLock()
        self._flights = {}
        self.shut()

    def _clear(self) -> None:
        self._entries.clear()
        self._loads.clear()
        self._bytes = 0

    def _land(self, flight: Flight) -> None:
        flights = self._flights.get(flight.key, [])
        if flight in flights:
            flights.remove(flight)
            if not flights:
                del self._flights[flight.key]

    def _learn(self, key: Key, mark: Mark) -> None:
        # Later callers may know this mark, and must not get an older answer.
        self._loads.pop(key, None)
        for flight in self._flights.get(key, ()):
            flight.see(mark)
        there = self._entries.get(key)
        if there is not None and not covers(there.mark, mark):
            self._remove(key, there)

    def _add(self, key: Key, entry: Entry[T]) -> None:
        entries = self._entries
        there = entries.get(key)
        if there is not None:
            self._remove(key, there)
        size = entry.size(key)
        if size > self._max_bytes:
            return
        entries[key] = entry
        self._bytes += size
        while len(entries) > self._max_entries or self._bytes > self._max_bytes:
            oldest, candidate = next(iter(entries.items()))
            if candidate.used:
                candidate.used = False
                entries.move_to_end(oldest)
            else:
                self._remove(oldest, candidate)

    def _remove(self, key: Key, entry: Entry[T]) -> None:
        del self._entries[key]
        self._bytes -= entry.size(key)
