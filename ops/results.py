"""The results of operations, scans and bulk calls."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import repeat
from typing import Final, Generic, Literal, NamedTuple, TypeAlias, TypeVar, overload

from .errors import InvalidPathError, MetadataStoreError
from .operations import Operation
from .paths import reachable

__all__ = [
    "Acl",
    "CacheResult",
    "Change",
    "ChangePage",
    "ForeignKeys",
    "GetResult",
    "Outcome",
    "Range",
    "Result",
    "ScanPage",
    "ScanResult",
    "Stat",
    "StatPage",
    "ValueEvent",
    "WatchEvent",
    "key_named",
    "printable",
]

_T = TypeVar("_T")

# The number of foreign keys to name: enough to see where they come from.
_NAMED: Final = 10


# A named tuple, because every operation creates one. A frozen dataclass with seven fields takes
# four times as long to create.
class Stat(NamedTuple):
    """The metadata that a store keeps for a path.

    ``version`` is 0 after the creation and grows by one with every put of the path. ``revision``
    grows with every change of the path and serves as a fencing token (etcd's mod_revision,
    ZooKeeper's mzxid, a counter elsewhere); paths changed in one batch share it. ``created`` and
    ``modified`` are milliseconds since the epoch, or ``None`` if the store records no times (etcd).
    ``ephemeral`` is true if the path ends with a session, ``owned`` if that session is this
    store's.
    """

    path: str
    version: int
    revision: int
    created: int | None = None
    modified: int | None = None
    ephemeral: bool = False
    owned: bool = False


class Acl(NamedTuple):
    """The access control list of a path, as ``get_acl`` returns it.

    ``entries`` are texts such as ``"world:anyone:r"``. ``version`` is 0 after the creation of the
    path and grows by one with every change of the list.
    """

    path: str
    entries: tuple[str, ...]
    version: int


class GetResult(NamedTuple):
    """The value of a path, with its stat."""

    value: bytes
    stat: Stat


class CacheResult(NamedTuple, Generic[_T]):
    """The decoded value of a path, with its stat, as caches and views return it."""

    value: _T
    stat: Stat


class ScanResult(NamedTuple):
    """One result of a scan: a path with its value and stat."""

    path: str
    value: bytes
    stat: Stat


class Change(NamedTuple):
    """One change of a path in the store's history.

    ``value`` and ``version`` are those of the path after the change, or ``None`` after a delete.
    ``revision`` is the revision of the change; paths changed in one transaction share it.
    ``ephemeral`` is true if the value ends with a session.
    """

    path: str
    op: Literal["put", "delete"]
    value: bytes | None
    version: int | None
    revision: int
    ephemeral: bool = False


class ChangePage(list[Change]):
    """Changes of a store, and the foreign keys whose changes are left out.

    Attributes:
        foreign: the foreign keys, once for each of their changes; see :class:`ScanPage`.
    """

    __slots__ = ("foreign",)

    def __init__(self, changes: Sequence[Change], foreign: Sequence[bytes] = ()) -> None:
        super().__init__(changes)
        self.foreign = [*foreign]


@dataclass(slots=True)
class ForeignKeys:
    """A growing count of the keys that were left out because they are not valid paths.

    Another client wrote them: ``/a/``, ``/a//b``, a key without a leading slash. The client's own
    keys are not counted. On ZooKeeper, these are also the nodes that the login may not read; each
    counts once, with all below it.

    Attributes:
        count: the number of keys.
        first: the first ten keys, without the store's prefix.
    """

    count: int = 0
    first: list[bytes] = field(default_factory=list)

    def add(self, keys: Sequence[bytes]) -> None:
        """Count more keys."""
        self.count += len(keys)
        self.first += keys[: _NAMED - len(self.first)]

    def merge(self, other: ForeignKeys) -> None:
        """Add the keys of another part of the store."""
        self.count += other.count
        self.first += other.first[: _NAMED - len(self.first)]

    @property
    def unreadable(self) -> bool:
        """Whether a valid path is among the first ones, which the login may not read."""
        return any(reachable(key.decode(errors="surrogateescape")) for key in self.first)

    def names(self) -> list[str]:
        """Return the first keys as text; bytes that cannot be printed are escaped."""
        return [printable(key) for key in self.first]


def printable(key: bytes) -> str:
    """Return a key as printable text; between ``$'`` and ``'``, a shell reads it back."""
    return "".join(
        character
        if character.isprintable() and character not in "\\'"
        else "".join(f"\\x{byte:02x}" for byte in character.encode(errors="surrogateescape"))
        for character in key.decode(errors="surrogateescape")
    )


def key_named(name: bytes) -> bytes:
    """Return the key that :func:`printable` shows as ``name``.

    Raises:
        InvalidPathError: it shows no key like that, because of a backslash.
    """
    if re.search(rb"\\(?!x[0-9a-fA-F]{2})", name):
        raise InvalidPathError(f"write a backslash as \\x5c, a byte as \\xHH: {printable(name)}")
    return re.sub(rb"\\x(..)", lambda found: bytes.fromhex(found[1].decode()), name)


@dataclass(slots=True, eq=False, repr=False)
class _Columns(Sequence[_T]):
    """The columns that pages with and without values share."""

    paths: Sequence[str]
    versions: Sequence[int]
    revisions: Sequence[int]
    ephemeral: Sequence[bool]
    created: Sequence[int | None] | None = None
    modified: Sequence[int | None] | None = None
    owned: Sequence[bool] | None = None
    foreign: Sequence[bytes] = ()

    def __len__(self) -> int:
        return len(self.paths)

    @overload
    def __getitem__(self, index: int) -> _T: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[_T]: ...
    def __getitem__(self, index: int | slice) -> _T | Sequence[_T]:
        return [*self][index]

    def _stats(self) -> Iterator[Stat]:
        count = len(self.paths)
        stats = zip(
            self.paths,
            self.versions,
            self.revisions,
            repeat(None, count) if self.created is None else self.created,
            repeat(None, count) if self.modified is None else self.modified,
            self.ephemeral,
            repeat(False, count) if self.owned is None else self.owned,
            strict=True,
        )
        return map(_stat, stats)


class ScanPage(_Columns[ScanResult]):
    """Results of a scan, in columns. They cost a third of the same number of single results.

    A page may contain only foreign keys. Every column but ``foreign`` has one entry per path; see
    :class:`Stat` for their meaning.

    Attributes:
        paths: the paths, in order.
        values: their values.
        versions: their versions.
        revisions: the revisions of their last changes.
        ephemeral: whether each path ends with a session.
        created: times of creation; ``None`` if the store records no times.
        modified: times of the last changes; ``None`` if the store records no times.
        owned: whether the session of each path is this store's; ``None`` if none is.
        foreign: the keys in this part of the store that are left out because they are not valid
            paths, or may not be read (see :class:`ForeignKeys`): raw bytes in order, without the
            store's prefix. Most pages have none.
    """

    __slots__ = ("values",)

    def __init__(
        self,
        paths: Sequence[str],
        values: Sequence[bytes],
        versions: Sequence[int],
        revisions: Sequence[int],
        ephemeral: Sequence[bool],
        created: Sequence[int | None] | None = None,
        modified: Sequence[int | None] | None = None,
        owned: Sequence[bool] | None = None,
        foreign: Sequence[bytes] = (),
    ) -> None:
        super().__init__(paths, versions, revisions, ephemeral, created, modified, owned, foreign)
        self.values = values

    @classmethod
    def of(cls, results: Sequence[ScanResult], foreign: Sequence[bytes] = ()) -> ScanPage:
        """Return results in columns."""
        if isinstance(results, ScanPage):
            return results
        if not results:
            return cls([], [], [], [], [], foreign=foreign)
        paths, values, stats = zip(*results, strict=True)
        _, versions, revisions, created, modified, ephemeral, owned = zip(*stats, strict=True)
        columns = (versions, revisions, ephemeral, created, modified, owned)
        return cls(paths, values, *columns, foreign)

    def __iter__(self) -> Iterator[ScanResult]:
        return map(_result, zip(self.paths, self.values, self._stats(), strict=True))


class StatPage(_Columns[Stat]):
    """Results of a scan without values: stats, in the columns of a :class:`ScanPage`.

    Attributes:
        values: always ``None``, because the scan did not read them.
    """

    __slots__ = ()

    values: Final = None

    @classmethod
    def of(cls, stats: Sequence[Stat], foreign: Sequence[bytes] = ()) -> StatPage:
        """Return stats in columns."""
        if not stats:
            return cls([], [], [], [], foreign=foreign)
        paths, versions, revisions, created, modified, ephemeral, owned = zip(*stats, strict=True)
        return cls(paths, versions, revisions, ephemeral, created, modified, owned, foreign)

    def __iter__(self) -> Iterator[Stat]:
        return self._stats()


# These create a tuple without a call of Python code.
_stat = partial(tuple.__new__, Stat)
_result = partial(tuple.__new__, ScanResult)


class Range(NamedTuple):
    """The paths from ``start`` (included) to ``end`` (excluded), in the byte order of UTF-8.

    ``None`` means no bound.
    """

    start: str | None = None
    end: str | None = None

    def __contains__(self, path: object) -> bool:
        """Say whether a path lies in the range."""
        if not isinstance(path, str):
            return False
        # Python compares code points. Their order is that of their bytes in UTF-8.
        return (self.start is None or self.start <= path) and (self.end is None or path < self.end)


class WatchEvent(NamedTuple):
    """One event of a watch.

    ``kind`` is ``"created"``, ``"modified"`` or ``"deleted"``, with the path that has changed. Its
    ``version`` and ``revision`` are those after the change, or ``None`` where the store does not
    tell; a deleted path has no version.

    ``kind`` is ``"gap"`` where events are missing: the watch was read too slowly, or the store
    cannot give what happened during an outage. ``path`` is then the prefix of the watch. A program
    that keeps a view of the paths reads it again.
    """

    kind: Literal["created", "modified", "deleted", "gap"]
    path: str
    version: int | None = None
    revision: int | None = None

    @property
    def found(self) -> GetResult | None:
        """The value with its stat, for a put and if the watch was asked for values, else ``None``.

        etcd sends the value of the very change. Where the client reads it after the event, it may
        be that of a later change, or ``None`` because the path is gone again; an event of its own
        follows in both cases.
        """
        return None

    @property
    def value(self) -> bytes | None:
        """The value of ``found``; ``None`` without one."""
        found = self.found
        return None if found is None else found.value


class ValueEvent(WatchEvent):
    """An event of a watch that was asked for values: the same tuple, with ``found`` beside it."""

    found: GetResult | None = None

    @classmethod
    def of(cls, event: WatchEvent, found: GetResult | None) -> ValueEvent:
        """Return an event with what was found at its path."""
        made = tuple.__new__(cls, event)
        made.found = found
        return made

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}, found={self.found!r})"


#: A put gives a Stat; a get a GetResult or None; a delete None; get_children a list; exists a bool;
#: a transaction a list with a Stat or None for each of its operations.
Result: TypeAlias = Stat | GetResult | list[str] | bool | list[Stat | None] | None


class Outcome(NamedTuple):
    """How one operation of a bulk call ended.

    ``op`` is the object that the caller passed. ``error`` is ``None`` if the operation succeeded.
    ``result`` is then the same as that of the operation's future; it is ``None`` for a delete and
    for a get of a missing path.
    """

    op: Operation
    result: Result = None
    error: MetadataStoreError | None = None

    @property
    def ok(self) -> bool:
        """Whether the operation ended without an error."""
        return self.error is None
