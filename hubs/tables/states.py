# Made from async_states.py by `python tools/faces.py`: change that file, and run this command.
"""How a table changes a key only as long as nobody else has.

A put reads the record of its key, changes some fields, and writes it back on the condition that
nobody has changed it meanwhile. That must also hold if the key was removed meanwhile and put again.

- Where a put may expect a revision, that is the condition, because revisions never come back.
- ZooKeeper only has conditions on versions, which begin anew with each creation. There, the keys of
  a table share some *generations*: paths whose versions grow with each removal. A removal puts to
  the generation of its key; every other write checks it, in one transaction with the write itself.
  The record of a key has the generation of its creation, which is part of its version.
"""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, Protocol, TypeVar

from ...batching import MetadataStore
from ...ops.errors import BadVersionError, NotFoundError, TransactionRefusedError
from ...ops.operations import ABSENT, Check, Delete, Exists, Put
from ...ops.results import GetResult, Stat
from .records import DAMAGED, Record, encoded
from .versions import Version

__all__ = ["States", "Seen", "states_of"]

# The generations of a table. More of them are less often in the way of each other's keys.
_GENERATIONS: Final = 64
# The most keys that one transaction removes.
_PAGE: Final = 500

_T = TypeVar("_T")


class Seen(NamedTuple):
    """A record as it was read.

    Attributes:
        found: what its path holds.
        generation: the version of its generation, from before that was read.
    """

    found: GetResult
    generation: int = 0


class States(Protocol):
    """Conditional writes of the records of a table."""

    def version(self, found: GetResult, record: Record) -> Version:
        """Return the version of a record that was read."""

    def read(self, path: str) -> Seen | None:
        """Read a record that may be replaced or removed then; ``None`` if there is none."""

    def create(self, path: str, fields: dict[str, bytes]) -> Version:
        """Write the first record of a key.

        Raises:
            BadVersionError: the key is there.
        """

    def replace(self, path: str, seen: Seen, record: Record) -> Version:
        """Write another record instead of one that ``read`` has found.

        Raises:
            BadVersionError: it is not there any more.
        """

    def remove(self, path: str, seen: Seen) -> None:
        """Remove a record that ``read`` has found.

        Raises:
            BadVersionError: it is not there any more.
        """

    def remove_all(self, paths: list[str]) -> int:
        """Remove records, whatever they are. Return the number of those that were there."""


class ByRevision:
    """The revision of a path is the version of its key."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    def version(self, found: GetResult, record: Record) -> Version:
        return Version(0, found.stat.revision)

    def read(self, path: str) -> Seen | None:
        found = self._store.get(path).result()
        return None if found is None else Seen(found)

    def create(self, path: str, fields: dict[str, bytes]) -> Version:
        stat = self._store.put(path, encoded(Record(fields)), ABSENT).result()
        return Version(0, stat.revision)

    def replace(self, path: str, seen: Seen, record: Record) -> Version:
        revision = seen.found.stat.revision
        value = encoded(Record(record.fields))
        stat = self._store.put(path, value, expected_revision=revision).result()
        return Version(0, stat.revision)

    def remove(self, path: str, seen: Seen) -> None:
        try:
            self._store.delete(path, expected_revision=seen.found.stat.revision).result()
        except NotFoundError as error:
            raise BadVersionError(str(error), path=path) from error

    def remove_all(self, paths: list[str]) -> int:
        removed = 0
        for some in _pages(paths):
            for outcome in self._store.apply([Delete(path) for path in some]):
                if outcome.error is not None and not isinstance(outcome.error, NotFoundError):
                    raise outcome.error
                removed += outcome.ok
        return removed


class ByGeneration:
    """The generation and the version of a path are the version of its key.

    Args:
        store: the store.
        place: the path below which the table has its generations.
    """

    def __init__(self, store: MetadataStore, place: str) -> None:
        self._store = store
        self._place = place
        # The versions of the generations, as far as they are known, and the session in which they
        # were read. One that is outdated refuses the write that expects it, so any thread may read
        # and set them.
        self._known: dict[str, int] = {}
        self._session: object = None

    def version(self, found: GetResult, record: Record) -> Version:
        return Version(record.generation, found.stat.version)

    def read(self, path: str) -> Seen | None:
        while True:
            # In this order: whoever removes what is read here moves the generation on. Both reads
            # are from one session: the next one may begin on a server that lags behind this one.
            session = self._store.session.id
            if session != self._session:
                self._store.sync()
                self._known, self._session = {}, session
            generation = self._generation(self._at(path))
            found = self._store.get(path).result()
            if self._store.session.id == session:
                return None if found is None else Seen(found, generation)

    def create(self, path: str, fields: dict[str, bytes]) -> Version:
        at = self._at(path)
        while True:
            generation = self._generation(at)
            record = Record(fields, generation + 1)
            put = Put(path, encoded(record), ABSENT)
            try:
                return self._put(Check(at, generation), put, record)
            except _MovedOnError:
                pass  # Somebody has removed another key.

    def replace(self, path: str, seen: Seen, record: Record) -> Version:
        if record.generation == DAMAGED.generation:
            # No record of the key has had this generation and a version as great as the next one.
            record = Record(record.fields, seen.generation + 1)
        put = Put(path, encoded(record), seen.found.stat.version)
        return self._put(Check(self._at(path), seen.generation), put, record)

    def remove(self, path: str, seen: Seen) -> None:
        self._remove(self._at(path), seen.generation, [Delete(path, seen.found.stat.version)])

    def remove_all(self, paths: list[str]) -> int:
        by_generation: defaultdict[str, list[Delete]] = defaultdict(list)
        for path in paths:
            by_generation[self._at(path)].append(Delete(path))
        removed = 0
        for at, deletes in by_generation.items():
            for some in _pages(deletes):
                removed += self._remove_some(at, some)
        return removed

    def _remove_some(self, at: str, deletes: Sequence[Delete]) -> int:
        """Remove the records of one generation, whatever they are."""
        left = deletes
        while left:
            try:
                self._remove(at, self._generation(at), left)
                break
            except BadVersionError:  # Somebody has removed some of them, or others.
                self._store.sync()
                looks = self._store.apply([Exists(delete.path) for delete in left])
                left = [delete for delete, look in zip(left, looks, strict=True) if look.result]
        return len(left)

    def _put(self, check: Check, put: Put, record: Record) -> Version:
        _, stat = self._write(check, [put])
        assert stat is not None
        return Version(record.generation, stat.version)

    def _remove(self, at: str, generation: int, deletes: Sequence[Delete]) -> None:
        self._write(Put(at, b"", generation), deletes)
        self._known[at] = generation + 1

    def _write(self, generation: Check | Put, changes: Sequence[Put | Delete]) -> list[Stat | None]:
        """Execute changes together with the check of their generation, or its growth.

        Raises:
            BadVersionError: the generation, or a path that is changed, is not as expected. The
                error has the path.
        """
        try:
            return self._store.transaction([generation, *changes]).result()
        except TransactionRefusedError as refused:
            if not isinstance(refused.error, BadVersionError | NotFoundError):
                raise refused.error or refused from refused
            if refused.index:
                path = changes[refused.index - 1].path
                raise BadVersionError(str(refused), path=path) from refused
            self._known.pop(generation.path, None)
            self._store.sync()  # Otherwise, the next read may find the old one again.
            raise _MovedOnError(str(refused), path=generation.path) from refused

    def _generation(self, at: str) -> int:
        """Return the version of a generation; ``ABSENT`` if nothing was removed yet."""
        known = self._known.get(at)
        if known is None:
            found = self._store.get(at).result()
            known = self._known[at] = ABSENT if found is None else found.stat.version
        return known

    def _at(self, path: str) -> str:
        return f"{self._place}/{zlib.crc32(path.encode()) % _GENERATIONS}"


def _pages(items: Sequence[_T]) -> Iterator[Sequence[_T]]:
    """Yield the items in parts that fit into one transaction."""
    for start in range(0, len(items), _PAGE):
        yield items[start : start + _PAGE]


class _MovedOnError(BadVersionError):
    """A generation has grown."""


def states_of(store: MetadataStore, place: str) -> States:
    """Return how the tables of a store change keys. ``place`` is for generations."""
    if "expected_revisions" in store.capabilities:
        return ByRevision(store)
    return ByGeneration(store, place)
