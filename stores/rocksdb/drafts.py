"""Decides the writes of one call, and collects what they change, before anything is written."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple, assert_never

from rocksdict import WriteBatch

from ...ops.errors import MetadataStoreError
from ...ops.operations import ABSENT
from ...ops.results import Stat
from ...ops.steps import Lowered, PutNext, PutValue, Step, lower, steps_in
from ..backend import Answer, WriteRequest
from ..refusals import State, decide, not_ours, transaction_refused
from .commits import Commits
from .database import Database
from .layout import SEQUENCE, ephemeral_key, sequence_key
from .sessions import RocksSession
from .value_format import (
    EPHEMERAL,
    EPHEMERAL_HEADER,
    HEADER,
    PLAIN,
    is_ours,
    session_of,
)

__all__ = ["Drafted", "draft"]

_new = tuple.__new__  # does the work of Stat(...) and State(...) in half the time


class Drafted(NamedTuple):
    """The decided writes of one call.

    Attributes:
        batch: the changes.
        answers: the answer to each write.
        keys: the keys of the changed values.
        largest: the size of the largest record.
        sessions: whether the batch has anything that needs the format for sessions.
    """

    batch: WriteBatch
    answers: list[Answer]
    keys: list[bytes]
    largest: int
    sessions: bool = False


def draft(
    database: Database,
    commits: Commits,
    session: RocksSession,
    requests: Sequence[WriteRequest],
) -> Drafted:
    """Decide writes of all kinds in order, within ``commits.writing``.

    Each write sees what those before it have changed. A session's lock file is created with its
    first ephemeral value.

    Args:
        database: the database.
        commits: its writes.
        session: the session of ephemeral values.
        requests: the writes.
    """
    lowered = [*map(lower, requests)]
    collected = _Draft(database, commits, session, lowered)
    answers: list[Answer] = [
        collected.transaction(write) if isinstance(write, list) else collected.apply(write)
        for write in lowered
    ]
    return collected.finish(answers)


class _Draft:
    """The values as the writes of a call leave them, on top of those in the database."""

    def __init__(
        self,
        database: Database,
        commits: Commits,
        session: RocksSession,
        lowered: Sequence[Lowered],
    ) -> None:
        self._database = database
        self._session = session
        self._revision = revision = commits.revision + 1
        self._now = now = time.time_ns() // 1_000_000
        self._fresh = HEADER.pack(PLAIN, 0, revision, now, now)
        self._counters: dict[bytes, int] = {}  # for each parent's counter, the next number
        named: list[bytes] = []
        sequential: list[bytes] = []
        for write in lowered:
            for path, _, effect in steps_in(write):
                (sequential if isinstance(effect, PutNext) else named).append(path.encode())
        self._named = frozenset(named)
        named += self._likely(sequential)
        headers = database.headers(named, commits.largest)
        # The headers of values in the database, and their records or headers now.
        self._found: dict[bytes, bytes | None] = dict(zip(named, headers, strict=True))
        self._values = self._found.copy()
        self._changed: dict[bytes, None] = {}  # in the order of the changes
        # For each path, the number of new values below it. Made when it is first needed.
        self._new_below: Counter[bytes] | None = None

    def apply(self, step: Step) -> Stat | MetadataStoreError | None:
        """Decide a step, carry it out if it may go, and return its answer."""
        path, condition, effect = step
        key = path.encode()
        if isinstance(effect, PutNext):
            # The condition is that of the new path.
            path, key = self._next(path, key)
            step = _new(Step, (path, condition, effect))
        header = self._values[key]
        if header is None:
            version, revision, created = ABSENT, None, self._now
        elif is_ours(header):
            _, version, revision, created, _ = HEADER.unpack_from(header)
        else:
            return not_ours(path)
        match effect:
            case PutValue() | PutNext():
                error = decide(step, _new(State, (version, revision, False)))
                return error or self._put(path, key, effect, version + 1, created)
            case "nothing":
                return decide(step, _new(State, (version, revision, False)))
            case "delete":
                error = decide(step, State(version, revision, self._occupied(key)))
                if error is None:
                    self._set(key, None)
                return error
            case _:
                assert_never(effect)

    def transaction(self, steps: list[Step]) -> Answer:
        """Apply steps together, or none of them, and return the answer."""
        results: list[Stat | None] = []
        before = len(self._changed)
        for index, step in enumerate(steps):
            answer = self.apply(step)
            if isinstance(answer, MetadataStoreError):
                # No other write of the call changes these paths, so they were unchanged before.
                for key in [*islice(self._changed, before, None)]:
                    self._set(key, self._found[key])
                    del self._changed[key]
                return transaction_refused(index, answer)
            results.append(answer)
        return results

    def finish(self, answers: list[Answer]) -> Drafted:
        """Return the draft as a batch."""
        batch = WriteBatch(raw_mode=True)
        largest = 0
        sessions = bool(self._counters)
        for key in self._changed:
            before, after = self._found[key], self._values[key]
            # Only its creation and its delete change whether a value is listed as ephemeral.
            if after is None:
                batch.delete(key)
                if before is not None and (ended := session_of(before)) is not None:
                    batch.delete(ephemeral_key(ended, key))
                continue
            batch[key] = after
            largest = max(largest, len(after))
            if before is None and after[0] == EPHEMERAL:
                sessions = True
                batch[ephemeral_key(self._session.key, key)] = b""
        if self._changed:
            for counter, number in self._counters.items():
                batch[counter] = SEQUENCE.pack(number)
        return Drafted(batch, answers, list(self._changed), largest, sessions)

    def _put(
        self, path: str, key: bytes, effect: PutValue | PutNext, version: int, created: int
    ) -> Stat | MetadataStoreError:
        header = self._values[key]
        session = None
        if header is not None:
            session = session_of(header)
        elif effect.ephemeral:
            try:
                self._session.lock()
            except MetadataStoreError as error:
                return error.for_path(path)
            session = self._session.key
        if session is not None:
            fields = (EPHEMERAL, version, self._revision, created, self._now, session)
            record = EPHEMERAL_HEADER.pack(*fields) + effect.value
        elif header is None:
            record = self._fresh + effect.value
        else:
            record = HEADER.pack(PLAIN, version, self._revision, created, self._now) + effect.value
        self._set(key, record)
        # Other sessions' values were removed when the store was opened.
        ephemeral = session is not None
        return _new(Stat, (path, version, self._revision, created, self._now, ephemeral, ephemeral))

    def _set(self, key: bytes, record: bytes | None) -> None:
        change = (record is not None) - (self._values[key] is not None)
        self._values[key] = record
        self._changed[key] = None
        if self._new_below is not None and self._found[key] is None and change:
            _count(self._new_below, key, change)

    def _occupied(self, key: bytes) -> bool:
        """Say whether there are values below ``key`` now."""
        if self._new_below is None:
            self._new_below = Counter()
            for changed in self._changed:
                if self._found[changed] is None and self._values[changed] is not None:
                    _count(self._new_below, changed, +1)
        if self._new_below[key]:
            return True
        values = self._values
        below = self._database.keys_below(key)
        return any(values.get(found, found) is not None for found in below)

    # Sequences

    def _next(self, path: str, prefix: bytes) -> tuple[str, bytes]:
        """Return the path of a sequential put, and its key, which is read by then.

        Paths that others have put, or put in this call, are passed over.
        """
        while True:
            number, key = self._numbered(prefix)
            if key in self._named:
                continue
            if key not in self._values:
                self._found[key] = self._values[key] = self._database.db.get(key)
            if self._values[key] is None:
                return f"{path}{number:010}", key

    def _numbered(self, prefix: bytes) -> tuple[int, bytes]:
        """Return the next number of a sequence, and the key with it."""
        counter = sequence_key(prefix)
        number = self._counters.get(counter)
        if number is None:
            record = self._database.db.get(counter)
            number = 0 if record is None else SEQUENCE.unpack(record)[0]
        self._counters[counter] = number + 1
        return number, b"%s%010d" % (prefix, number)

    def _likely(self, prefixes: Sequence[bytes]) -> list[bytes]:
        """Return the keys of sequential puts if no path has to be passed over.

        They are read together with the others.
        """
        likely = [self._numbered(prefix)[1] for prefix in prefixes]
        for prefix in prefixes:
            self._counters[sequence_key(prefix)] -= 1
        return [key for key in likely if key not in self._named]


def _count(below: Counter[bytes], key: bytes, change: int) -> None:
    """Add ``change`` values to the count of each path above ``key``."""
    end = key.rfind(b"/")
    while end > 0:
        below[key[:end]] += change
        end = key.rfind(b"/", 0, end)
