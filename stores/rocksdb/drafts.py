"""Decides the writes of one call, and collects what they change, before anything is written."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple, assert_never

from rocksdict import WriteBatch

from ...ops.errors import MetadataStoreError
from ...ops.operations import ABSENT
from ...ops.results import Stat
from ..backend import Answer, PartRequest, WriteRequest
from ..refusals import refusal, transaction_refused
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
    not_ours,
    session_of,
)

__all__ = ["Drafted", "draft"]

_new = tuple.__new__  # does the work of Stat(...) in half the time


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
    keys: Sequence[bytes],
) -> Drafted:
    """Decide writes of all kinds in order, within ``commits.writing``.

    Each write sees what those before it have changed. A session's lock file is created with its
    first ephemeral value.

    Args:
        database: the database.
        commits: its writes.
        session: the session of ephemeral values.
        requests: the writes.
        keys: the keys of their paths.
    """
    collected = _Draft(database, commits, session, requests, keys)
    return collected.finish([*map(collected.decide, requests, keys)])


class _Draft:
    """The values as the writes of a call leave them, on top of those in the database."""

    def __init__(
        self,
        database: Database,
        commits: Commits,
        session: RocksSession,
        requests: Sequence[WriteRequest],
        keys: Sequence[bytes],
    ) -> None:
        self._database = database
        self._session = session
        self._revision = revision = commits.revision + 1
        self._now = now = time.time_ns() // 1_000_000
        self._fresh = HEADER.pack(PLAIN, 0, revision, now, now)
        self._counters: dict[bytes, int] = {}  # for each parent's counter, the next number
        named: list[bytes] = []
        sequential: list[bytes] = []
        for request, key in zip(requests, keys, strict=True):
            options = request.options
            if options is None:
                named.append(key)
            elif options.sequential:
                sequential.append(key)
            elif options.parts:
                named += [part.path.encode() for part in options.parts]
            else:
                named.append(key)
        self._named = frozenset(named)
        named += self._likely(sequential)
        headers = database.headers(named, commits.largest)
        # The headers of values in the database, and their records or headers now.
        self._found: dict[bytes, bytes | None] = dict(zip(named, headers, strict=True))
        self._values = self._found.copy()
        self._changed: dict[bytes, None] = {}  # in the order of the changes
        # For each path, the number of new values below it. Made when it is first needed.
        self._new_below: Counter[bytes] | None = None

    def decide(self, request: WriteRequest, key: bytes) -> Answer:
        kind = request.kind
        if kind == "put":
            return self._put(request, key)
        if kind == "delete":
            return self._delete(request, key)
        if kind == "transaction":
            return self._transaction(request)
        assert_never(kind)

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

    def _put(self, part: PartRequest, key: bytes) -> Answer:
        path, options = part.path, part.options
        if options is not None and options.sequential:
            path, key = self._next(path, key)
        header = self._values[key]
        if header is None:
            version, revision, created, session = ABSENT, None, self._now, None
        elif is_ours(header):
            _, version, revision, created, _ = HEADER.unpack_from(header)
            session = session_of(header)
        else:
            return not_ours(path)
        if error := _unexpected(part, version, revision):
            return error
        if header is None and options is not None and options.ephemeral:
            try:
                self._session.lock()
            except MetadataStoreError as error:
                return error.for_path(path)
            session = self._session.key
        version += 1
        value = part.value or b""
        if session is not None:
            fields = (EPHEMERAL, version, self._revision, created, self._now, session)
            record = EPHEMERAL_HEADER.pack(*fields) + value
        elif header is None:
            record = self._fresh + value
        else:
            record = HEADER.pack(PLAIN, version, self._revision, created, self._now) + value
        self._set(key, record)
        # Other sessions' values were removed when the store was opened.
        ephemeral = session is not None
        return _new(Stat, (path, version, self._revision, created, self._now, ephemeral, ephemeral))

    def _delete(self, part: PartRequest, key: bytes) -> MetadataStoreError | None:
        header = self._values[key]
        version, revision = ABSENT, None
        if header is not None:
            if not is_ours(header):
                return not_ours(part.path)
            _, version, revision, _, _ = HEADER.unpack_from(header)
        if error := refusal(part, version, self._occupied(key), revision):
            return error
        self._set(key, None)
        return None

    def _check(self, part: PartRequest, key: bytes) -> MetadataStoreError | None:
        header = self._values[key]
        if header is None:
            return _unexpected(part, ABSENT, None)
        if not is_ours(header):
            return not_ours(part.path)
        _, version, revision, _, _ = HEADER.unpack_from(header)
        return _unexpected(part, version, revision)

    def _transaction(self, request: WriteRequest) -> Answer:
        results: list[Stat | None] = []
        done: list[bytes] = []
        assert request.options is not None
        for index, part in enumerate(request.options.parts):
            key = part.path.encode()
            answer: Answer
            if part.kind == "check":
                answer = self._check(part, key)
            elif part.kind == "put":
                answer = self._put(part, key)
            elif part.kind == "delete":
                answer = self._delete(part, key)
            else:
                assert_never(part.kind)
            if isinstance(answer, MetadataStoreError):
                # No other write of the call changes these paths, so they were unchanged before.
                for before in done:
                    self._set(before, self._found[before])
                    del self._changed[before]
                return transaction_refused(index, answer)
            if part.kind != "check":
                done.append(key)
            results.append(answer if isinstance(answer, Stat) else None)
        return results

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
        below, _bound = self._database.below(key + b"/")
        while below.valid():
            if self._values.get(found := below.key(), found) is not None:
                return True
            below.next()
        below.status()
        return False

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


def _unexpected(part: PartRequest, version: int, revision: int | None) -> MetadataStoreError | None:
    """Return the error of a put or check whose path is not as expected."""
    expected, options = part.expected_version, part.options
    if (expected is None or expected == version) and (
        options is None
        or options.expected_revision is None
        or options.expected_revision == revision
    ):
        return None
    return refusal(part, version, occupied=False, revision=revision)


def _count(below: Counter[bytes], key: bytes, change: int) -> None:
    """Add ``change`` values to the count of each path above ``key``."""
    end = key.rfind(b"/")
    while end > 0:
        below[key[:end]] += change
        end = key.rfind(b"/", 0, end)
