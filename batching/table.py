"""The contents of a view: paths with their values and stats, and their children. No I/O.

An entry is one flat tuple, a third of a ``GetResult`` with its ``Stat``, because a view may hold
millions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import repeat
from typing import Final, Generic, TypeAlias, TypeVar

from ..ops.errors import ValueTooLargeError
from ..ops.paths import parent
from ..ops.results import CacheResult, GetResult, ScanPage, Stat, WatchEvent
from ..ops.serdes import decoded

__all__ = ["OVERHEAD", "Entry", "Table", "Update", "ViewSnapshot", "result", "stat_of"]

T = TypeVar("T")

#: The value, and the fields of the stat behind the path: version, revision, created, modified,
#: ephemeral, owned.
Entry: TypeAlias = tuple[bytes, int, int, int | None, int | None, bool, bool]
#: A path, its entry before a change and after it; ``None`` without a value.
Update: TypeAlias = tuple[str, Entry | None, Entry | None]

#: The bytes that an entry is counted with, beside its path and its value.
OVERHEAD: Final = 300


class Table:
    """The entries below one path. One thread changes it; others may look an entry up meanwhile.

    Args:
        prefix: that path.
        max_bytes: the limit of bytes, with :data:`OVERHEAD` for each entry.

    Attributes:
        entries: by path. Nobody else changes it.
        bytes: their bytes.
    """

    def __init__(self, prefix: str, max_bytes: int) -> None:
        self._prefix = prefix
        self._max_bytes = max_bytes
        self.entries: dict[str, Entry] = {}
        self.bytes = 0
        # By path, what lies right below it, with and without a value; made when it is asked for.
        self._children: dict[str, set[str]] | None = None

    def fill(self, page: ScanPage) -> None:
        """Add what a scan has found.

        Raises:
            ValueTooLargeError: the limit is exceeded.
        """
        owned = repeat(False) if page.owned is None else page.owned
        created = repeat(None) if page.created is None else page.created
        modified = repeat(None) if page.modified is None else page.modified
        self.entries.update(
            zip(
                page.paths,
                zip(
                    *(page.values, page.versions, page.revisions),
                    *(created, modified, page.ephemeral, owned),
                    strict=False,
                ),
                strict=True,
            )
        )
        self.bytes += sum(map(len, page.paths)) + sum(map(len, page.values))
        self.bytes += OVERHEAD * len(page.paths)
        self._check_room()

    def apply(self, events: Sequence[WatchEvent]) -> list[Update]:
        """Take in events with values; return what they have changed.

        An event that is older than the entry of its path changes nothing.

        Raises:
            ValueTooLargeError: the limit is exceeded.
        """
        updates: list[Update] = []
        entries = self.entries
        for event in events:
            _, path, _, revision = event
            found = event.found
            old = entries.get(path)
            if found is not None:
                value, stat = found
                if old is not None and old[2] >= stat[2]:
                    continue
                new = entries[path] = (value, *stat[1:])
                self.bytes += len(value)
                if old is None:
                    self.bytes += OVERHEAD + len(path)
                    if self._children is not None:
                        self._add(self._children, path)
            elif old is None or (revision is not None and old[2] > revision):
                continue
            else:
                new = None
                del entries[path]
                self.bytes -= OVERHEAD + len(path)
                if self._children is not None:
                    self._remove(path)
            if old is not None:
                self.bytes -= len(old[0])
            updates.append((path, old, new))
        self._check_room()
        return updates

    def updates_to(self, later: Table) -> list[Update]:
        """Return what differs in another table."""
        before, after = self.entries, later.entries
        return [
            *((path, old, None) for path, old in before.items() if path not in after),
            *((p, before.get(p), new) for p, new in after.items() if before.get(p) != new),
        ]

    def children(self, path: str) -> list[str]:
        """Return the sorted names right below a path."""
        if self._children is None:
            # Set when it is whole: Ctrl-C may end this, and a signal handler may look it up.
            children: dict[str, set[str]] = {}
            for one in self.entries:
                self._add(children, one)
            self._children = children
        skip = 1 if path == "/" else len(path) + 1
        return sorted(child[skip:] for child in self._children.get(path, ()))

    def _add(self, children: dict[str, set[str]], path: str) -> None:
        while path != self._prefix:
            above = parent(path)
            below = children.setdefault(above, set())
            if path in below:
                return
            below.add(path)
            path = above

    def _remove(self, path: str) -> None:
        children = self._children
        assert children is not None
        while path != self._prefix and path not in children and path not in self.entries:
            above = parent(path)
            below = children[above]
            below.discard(path)
            if below:
                return
            del children[above]
            path = above

    def _check_room(self) -> None:
        if self.bytes > self._max_bytes:
            raise ValueTooLargeError(
                f"the view of {self._prefix} takes more than its {self._max_bytes} bytes: "
                f"{len(self.entries)} values so far, with {OVERHEAD} bytes counted for each beside "
                "path and value; give it a larger max_bytes, or view a part",
                path=self._prefix,
            )


def stat_of(path: str, entry: Entry) -> Stat:
    """Return the stat of an entry."""
    return Stat(path, *entry[1:])


def result(path: str, entry: Entry, decode: Callable[[bytes], T]) -> CacheResult[T]:
    """Return an entry for callers.

    Raises:
        ValueDecodeError: the value cannot be decoded. The error has its version.
    """
    stat = stat_of(path, entry)
    return CacheResult(decoded(path, GetResult(entry[0], stat), decode), stat)


class ViewSnapshot(Mapping[str, CacheResult[T]], Generic[T]):
    """What a view held at one moment: a mapping that no longer changes.

    Attributes:
        revision: the revision of the store up to which it holds every change (etcd); ``None`` where
            changes of several paths may arrive one by one.
    """

    def __init__(
        self, entries: dict[str, Entry], decode: Callable[[bytes], T], revision: int | None
    ) -> None:
        self._entries = entries
        self._decode = decode
        self.revision = revision

    def __getitem__(self, path: str) -> CacheResult[T]:
        return result(path, self._entries[path], self._decode)

    def __contains__(self, path: object) -> bool:
        return path in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return f"<ViewSnapshot of {len(self)} paths at revision {self.revision}>"
