"""What a store answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import repeat
from typing import Final, Literal, NamedTuple, TypeAlias, TypeVar, overload

from .errors import MetadataStoreError
from .operations import Operation

__all__ = [
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
    "printable",
]

_T = TypeVar("_T")

# The foreign keys that are named one by one: enough to see where they come from.
_NAMED: Final = 10


# Named tuples, because one is made for every operation: a frozen dataclass with seven fields
# takes four times as long to make.
class Stat(NamedTuple):
    """What a store knows of a path beside its value.

    ``version`` is 0 after the creation and grows by one with every put of the path. ``revision``
    grows with every change of the path and serves as a fencing token (etcd's mod_revision,
    ZooKeeper's mzxid, a counter elsewhere); paths changed in one batch share it. ``created`` and
    ``modified`` are milliseconds since the epoch, ``None`` where the store keeps none (etcd).
    ``ephemeral`` says that the path ends with a session, ``owned`` that the session is ours.
    """

    path: str
    version: int
    revision: int
    created: int | None = None
    modified: int | None = None
    ephemeral: bool = False
    owned: bool = False


class GetResult(NamedTuple):
    """The value of a path, with its stat."""

    value: bytes
    stat: Stat


class ScanResult(NamedTuple):
    """What a scan finds at one path."""

    path: str
    value: bytes
    stat: Stat


class Change(NamedTuple):
    """One change of a path, as it stands in the store's history.

    ``op`` says what happened. ``value`` and ``version`` are what the path held from then on,
    ``None`` after a delete; ``revision`` is that of the change. Paths changed in one transaction
    share it. ``ephemeral`` says that the value ends with a session.
    """

    path: str
    op: Literal["put", "delete"]
    value: bytes | None
    version: int | None
    revision: int
    ephemeral: bool = False


class ChangePage(list[Change]):
    """Changes of a store, and the foreign keys whose changes were left out between them.

    Attributes:
        foreign: the keys, one for each of their changes; see :class:`ScanPage`.
    """

    __slots__ = ("foreign",)

    def __init__(self, changes: Sequence[Change], foreign: Sequence[bytes] = ()) -> None:
        super().__init__(changes)
        self.foreign = [*foreign]


@dataclass(slots=True)
class ForeignKeys:
    """Keys of a store that are not valid paths, and so were left out: a count that grows.

    Another client has written them: ``/a/``, ``/a//b``, a key without a leading slash. What this
    client keeps for itself is not counted.

    Attributes:
        count: how many there are.
        first: the first ten of them, without the store's prefix.
    """

    count: int = 0
    first: list[bytes] = field(default_factory=list)

    def add(self, keys: Sequence[bytes]) -> None:
        """Count more keys."""
        self.count += len(keys)
        self.first += keys[: _NAMED - len(self.first)]

    def merge(self, other: ForeignKeys) -> None:
        """Count what another part of the store holds."""
        self.count += other.count
        self.first += other.first[: _NAMED - len(self.first)]

    def names(self) -> list[str]:
        """Return the first ones as text, in which bytes that cannot be printed are escaped."""
        return [printable(key) for key in self.first]


def printable(key: bytes) -> str:
    """Return a key as text that can be printed: between ``$'`` and ``'`` a shell reads it back."""
    return "".join(
        character
        if character.isprintable() and character not in "\\'"
        else "".join(f"\\x{byte:02x}" for byte in character.encode(errors="surrogateescape"))
        for character in key.decode(errors="surrogateescape")
    )


class _Columns(Sequence[_T]):
    """What pages with and without values have in common."""

    __slots__ = (
        "created",
        "ephemeral",
        "foreign",
        "modified",
        "owned",
        "paths",
        "revisions",
        "versions",
    )

    def __init__(
        self,
        paths: Sequence[str],
        versions: Sequence[int],
        revisions: Sequence[int],
        ephemeral: Sequence[bool],
        created: Sequence[int | None] | None = None,
        modified: Sequence[int | None] | None = None,
        owned: Sequence[bool] | None = None,
        foreign: Sequence[bytes] = (),
    ) -> None:
        self.paths = paths
        self.versions = versions
        self.revisions = revisions
        self.ephemeral = ephemeral
        self.created = created
        self.modified = modified
        self.owned = owned
        self.foreign = foreign

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
    """Results of a scan, in columns: many of them cost a third of what they cost one by one.

    A page may be empty but for its foreign keys.

    Attributes:
        paths: in their order.
        values: of the paths; like all that follows, one for each of them.
        versions: see :class:`Stat`, as for the others.
        revisions: of their last changes.
        ephemeral: whether they end with a session.
        created: ``None`` where the store keeps none.
        modified: the same.
        owned: ``None`` where none of them is.
        foreign: keys in this part of the store that are not valid paths, and so are left out:
            as they are, without the store's prefix, in their order. As a rule there are none.
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
    """What a scan without values finds: stats, in the columns of a :class:`ScanPage`.

    Attributes:
        values: ``None``: they were not read.
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


# Without a call of Python code for each.
_stat = partial(tuple.__new__, Stat)
_result = partial(tuple.__new__, ScanResult)


class Range(NamedTuple):
    """The paths from ``start`` up to, and without, ``end``, in the byte order of UTF-8.

    ``None`` for no bound.
    """

    start: str | None = None
    end: str | None = None

    def __contains__(self, path: object) -> bool:
        """Say whether a path lies in the range."""
        if not isinstance(path, str):
            return False
        # Python compares code points, whose order is that of their bytes in UTF-8.
        return (self.start is None or self.start <= path) and (self.end is None or path < self.end)


#: A put gives a Stat; a get a GetResult or None; a delete None; get_children a list; exists a bool.
Result: TypeAlias = Stat | GetResult | list[str] | bool | None


class Outcome(NamedTuple):
    """How one operation of a bulk call ended: ``result`` or ``error``, at most one of the two.

    ``op`` is what was given, the same object; ``result`` is what the operation's future would
    have held (``None`` is the result of a delete and of a get of a missing path).
    """

    op: Operation
    result: Result = None
    error: MetadataStoreError | None = None

    @property
    def ok(self) -> bool:
        """Whether the operation ended without an error."""
        return self.error is None
