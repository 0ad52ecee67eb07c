# Made from async_generations.py by `python tools/faces.py`: change that file, and run this command.
"""How a table on ZooKeeper changes a key only as long as nobody else has.

ZooKeeper only has conditions on versions, which begin anew with each creation.

- Each record has a random number, its *life*, which it keeps until it is removed. The life is part
  of its version, so no version of a key ever comes back.
- So that a write touches only the life that was read, all keys share some *generations*: paths
  whose versions grow with each removal. A removal puts to the generation of its key; a put of
  another value checks it, in one transaction with the put itself.
"""

from __future__ import annotations

import random
import zlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, TypeVar

from ...batching import MetadataStore
from ...ops.errors import (
    BadVersionError,
    MetadataStoreError,
    NotFoundError,
    TransactionRefusedError,
)
from ...ops.operations import ABSENT, Check, Delete, Exists, Get, Put, Transaction
from ...ops.results import GetResult, Outcome, Result, Stat
from .records import DAMAGED, Record, Seen, encoded
from .versions import Version

__all__ = ["ByGeneration"]

# More generations are less often in the way of each other's keys; emptying a table takes a
# transaction for each of them.
_GENERATIONS: Final = 256
# A fork does not repeat its numbers.
_RANDOM: Final = random.SystemRandom()
# The most keys that one transaction removes.
_PAGE: Final = 500

_T = TypeVar("_T")


class ByGeneration:
    """The life of a record and the version of its path are the version of its key.

    Args:
        store: the store.
        place: the path below which the generations are.
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
        return Version(record.life, found.stat.version)

    def read(self, path: str) -> Seen | None:
        while True:
            # In this order: whoever removes what is read here moves the generation on.
            session = self._enter_session()
            generation = self._generation(self._at(path))
            found = self._store.get(path).result()
            if self._store.session.id == session:
                return None if found is None else Seen(found, generation)

    def read_all(self, paths: Sequence[str]) -> list[Seen | MetadataStoreError | None]:
        while True:
            session = self._enter_session()
            generations = self._generations([self._at(path) for path in paths])
            outcomes = self._store.apply([Get(path) for path in paths])
            if self._store.session.id == session:
                return [
                    Seen(outcome.result, generation)
                    if isinstance(outcome.result, GetResult)
                    else outcome.error
                    for outcome, generation in zip(outcomes, generations, strict=True)
                ]

    def create(self, path: str, fields: dict[str, bytes]) -> Version:
        record = _begun(fields)
        stat = self._store.put(path, encoded(record), ABSENT).result()
        return Version(record.life, stat.version)

    def create_all(
        self, records: Sequence[tuple[str, dict[str, bytes]]]
    ) -> list[Version | MetadataStoreError]:
        begun = [_begun(fields) for _, fields in records]
        outcomes = self._store.apply(
            [
                Put(path, encoded(record), ABSENT)
                for (path, _), record in zip(records, begun, strict=True)
            ]
        )
        return [
            Version(record.life, outcome.result.version)
            if isinstance(outcome.result, Stat)
            else _error_of(outcome)
            for record, outcome in zip(begun, outcomes, strict=True)
        ]

    def replace(self, path: str, seen: Seen, record: Record) -> Version:
        replacement = self._replacement(path, seen, record)
        _, stat = self._execute(replacement.check, [replacement.put])
        assert stat is not None
        return Version(replacement.life, stat.version)

    def replace_all(
        self, records: Sequence[tuple[str, Seen, Record]]
    ) -> list[Version | MetadataStoreError]:
        replacements = [self._replacement(*record) for record in records]
        ops = [Transaction([one.check, one.put]) for one in replacements]
        ended: list[Version | MetadataStoreError] = []
        for one, outcome in zip(replacements, self._store.apply(ops), strict=True):
            match outcome:
                case Outcome(result=[_, Stat() as stat]):
                    ended.append(Version(one.life, stat.version))
                case Outcome(error=TransactionRefusedError() as refused):
                    ended.append(self._refusal(refused, one.check, [one.put]))
                case _:
                    ended.append(_error_of(outcome))
        return ended

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
            there = self._apply([Exists(delete.path) for delete in left])
            left = [delete for delete, found in zip(left, there, strict=True) if found]
        return len(left)

    def _remove(self, at: str, generation: int, deletes: Sequence[Delete]) -> None:
        self._execute(Put(at, b"", generation), deletes)
        self._known[at] = generation + 1

    def _execute(
        self, generation: Check | Put, changes: Sequence[Put | Delete]
    ) -> list[Stat | None]:
        """Execute changes together with the check of their generation, or its growth.

        Raises:
            BadVersionError: the generation, or a path that is changed, is not as expected. The
                error has the path.
        """
        try:
            return self._store.transaction([generation, *changes]).result()
        except TransactionRefusedError as refused:
            raise self._refusal(refused, generation, changes) from refused

    def _refusal(
        self,
        refused: TransactionRefusedError,
        generation: Check | Put,
        changes: Sequence[Put | Delete],
    ) -> MetadataStoreError:
        """Return why changes were refused, and forget a generation that has moved on."""
        if not isinstance(refused.error, BadVersionError | NotFoundError):
            return refused.error or refused
        if refused.index:
            return BadVersionError(str(refused), path=changes[refused.index - 1].path)
        self._known.pop(generation.path, None)
        return BadVersionError(str(refused), path=generation.path)

    def _enter_session(self) -> str | None:
        """Return the present session, after which reads show what was written before it.

        All reads of one ``read`` are from one session: the next one may begin on a server that lags
        behind this one.
        """
        session = self._store.session.id
        if session != self._session:
            self._store.sync()
            self._known, self._session = {}, session
        return session

    def _generation(self, at: str) -> int:
        """Return the version of a generation."""
        known = self._known.get(at)
        return self._generations([at])[0] if known is None else known

    def _generations(self, places: Sequence[str]) -> list[int]:
        """Return the versions of generations.

        Those that are missing are created: the check that a path is missing would cost ZooKeeper
        two changes in each transaction.
        """
        # Any thread may forget what is known, or begin anew.
        looks = {at: self._known.get(at) for at in places}
        known = {at: version for at, version in looks.items() if version is not None}
        while unknown := [*{*places} - known.keys()]:
            seen = self._apply([Get(at) for at in unknown])
            missing = [at for at, found in zip(unknown, seen, strict=True) if found is None]
            seen += self._apply([Put(at, b"", ABSENT) for at in missing])
            for found in seen:
                stat = found.stat if isinstance(found, GetResult) else found
                if isinstance(stat, Stat):
                    known[stat.path] = self._known[stat.path] = stat.version
            if len(known) < len({*places}):  # Somebody else has created one meanwhile.
                self._store.sync()
        return [known[at] for at in places]

    def _apply(self, ops: Sequence[Exists | Get | Put]) -> list[Result]:
        """Return the results of operations; ``None`` for a put that was refused."""
        outcomes = self._store.apply(ops)
        for outcome in outcomes:
            if outcome.error is not None and not isinstance(outcome.error, BadVersionError):
                raise outcome.error
        return [outcome.result for outcome in outcomes]

    def _replacement(self, path: str, seen: Seen, record: Record) -> _Replacement:
        if record.life == DAMAGED.life:
            record = record._replace(life=_RANDOM.getrandbits(63))
        put = Put(path, encoded(record), seen.found.stat.version)
        return _Replacement(Check(self._at(path), seen.generation), put, record.life)

    def _at(self, path: str) -> str:
        return f"{self._place}/{zlib.crc32(path.encode()) % _GENERATIONS}"


class _Replacement(NamedTuple):
    """A put of a record on the condition of its generation, and the life of the record."""

    check: Check
    put: Put
    life: int


def _begun(fields: dict[str, bytes]) -> Record:
    """Return a record in a new life."""
    return Record(fields, _RANDOM.getrandbits(63))


def _error_of(outcome: Outcome) -> MetadataStoreError:
    assert outcome.error is not None
    return outcome.error


def _pages(items: Sequence[_T]) -> Iterator[Sequence[_T]]:
    """Yield the items in parts that fit into one transaction."""
    for start in range(0, len(items), _PAGE):
        yield items[start : start + _PAGE]
