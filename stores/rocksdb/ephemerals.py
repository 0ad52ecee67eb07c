"""Finds the ephemeral values of ended sessions, and removes or hides them."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator
from threading import Lock
from typing import Final

from rocksdict import WriteBatch

from .commits import Commits
from .database import Database
from .layout import EPHEMERALS, SESSIONS_FORMAT, Meta, ephemerals_of
from .sessions import lives
from .value_format import is_ours, session_of

__all__ = ["Departed", "remove_ephemerals", "sessions_in"]

# The number of values removed at a time, each with one revision.
_BATCH: Final = 10_000
# Seconds to wait for the write lock, which nobody else takes while a store is opened or closed.
_PATIENCE: Final = 60.0

_LISTED: Final = re.compile(re.escape(EPHEMERALS) + rb"([0-9a-f]{16})(/.*)", re.DOTALL)


def remove_ephemerals(database: Database, commits: Commits, session: int | None = None) -> int:
    """Remove the ephemeral values of a session, or of all, and return how many there were.

    The caller is the only writer. The values are removed in batches, so a kill during the removal
    leaves some for the next opener.

    Raises:
        MetadataStoreError: RocksDB failed.
    """
    prefix = EPHEMERALS[:-1] if session is None else ephemerals_of(session)
    removed = 0
    number = 0
    try:
        for listed in _batches(database, prefix):
            with commits.writing(time.monotonic() + _PATIENCE):
                batch = WriteBatch(raw_mode=True)
                keys = [key for _, _, key in listed]
                headers = database.headers(keys, commits.largest)
                there: list[bytes] = []
                for (entry, owner, key), header in zip(listed, headers, strict=True):
                    batch.delete(entry)
                    if header is not None and is_ours(header) and session_of(header) == owner:
                        batch.delete(key)
                        there.append(key)
                number = commits.write(batch, there)
                removed += len(there)
    except Exception as error:
        raise database.unreadable(error) from error
    if number:
        commits.wait(number, changed=True)
    return removed


def _batches(database: Database, prefix: bytes) -> Iterator[list[tuple[bytes, int, bytes]]]:
    """Yield the keys that list ephemeral values, each with the session and the value's key."""
    listed: list[tuple[bytes, int, bytes]] = []
    for entry in database.keys_below(prefix):
        if match := _LISTED.fullmatch(entry):
            listed.append((entry, int(match[1], 16), match[2]))
        if len(listed) == _BATCH:
            yield listed
            listed = []
    if listed:
        yield listed


class Departed:
    """The ephemeral values of ended sessions, which are in the database but no longer in the store.

    A store that is open to read shows one moment. The sessions that have values then are known, and
    only whether they still live can change. A session that has ended stays so. A store that is open
    for writing has removed such values before, and passes no sessions.

    Args:
        database: the database.
        sessions: the sessions that have values.
    """

    def __init__(self, database: Database, sessions: Iterable[int]) -> None:
        self._database = database
        self._lock = Lock()  # guards the fields below
        self._living = set(sessions)
        self._keys: frozenset[bytes] = frozenset()

    def keys(self) -> frozenset[bytes]:
        """Return the keys of the values whose sessions have ended by now.

        Raises:
            StoreUnavailableError: a lock file, or the store, cannot be read.
        """
        if not self._living:
            return self._keys
        with self._lock:
            for session in sorted(self._living):
                if not lives(self._database.directory, session):
                    batches = _batches(self._database, ephemerals_of(session))
                    ended = [key for batch in batches for _, _, key in batch]
                    # Readers hold the former set, so it must not change.
                    self._keys = self._keys.union(ended)
                    self._living.discard(session)
            return self._keys


def sessions_in(database: Database, meta: Meta) -> set[int]:
    """Return the sessions that have ephemeral values."""
    sessions: set[int] = set()
    if meta.format < SESSIONS_FORMAT:
        return sessions
    try:
        entries, _bound = database.below(EPHEMERALS)
        while entries.valid():
            if match := _LISTED.fullmatch(entries.key()):
                session = int(match[1], 16)
                sessions.add(session)
                entries.seek(ephemerals_of(session) + b"0")  # "0" follows "/" in ASCII
            else:
                entries.next()
        entries.status()
    except Exception as error:
        raise database.unreadable(error) from error
    return sessions
