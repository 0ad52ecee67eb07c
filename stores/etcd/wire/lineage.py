"""Finds out whether etcd still has the history that the client has seen.

An etcd that was restored from a backup, or got an old data directory, has another history from some
revision on. Its cluster may have the same id, and its revisions may have overtaken those that the
client knows. So the client remembers the newest change that it has seen, in an event, an answer or
a write of its own. After each outage, it looks whether that change still stands at its revision.
"""

from __future__ import annotations

import threading
from typing import Any, NamedTuple

from ....ops.log import get_logger
from .connection import EtcdConnection
from .errors import EtcdRefusedError, Reason
from .protos import messages

__all__ = ["Lineage"]

_log = get_logger(__name__)


class _Seen(NamedTuple):
    """A change: of a key, at a revision.

    Attributes:
        key: the key.
        revision: the revision.
        value: stands for the value; ``None`` if it is not known.
        there: whether the key exists since; otherwise it was deleted.
    """

    key: bytes
    revision: int
    value: int | None
    there: bool


class Lineage:
    """The history that one client has seen. Any thread may call it.

    Args:
        connection: the calls to the cluster.

    Attributes:
        number: grows when etcd turns out to have another history.
        watched: whether the client has watches, so that what it reads matters later.
    """

    def __init__(self, connection: EtcdConnection) -> None:
        self.number = 0
        self.watched = False
        self._connection = connection
        # Written without a lock: if two threads write at once, the older change may stay, which
        # shows almost as much.
        self._seen: _Seen | None = None
        self._lock = threading.Lock()  # guards the changes of the number and the field below
        self._known = (0, 0)  # the cluster's id, and raft's term, which never runs back

    def saw(
        self, key: bytes, revision: int, value: bytes | None = None, *, there: bool = True
    ) -> None:
        """Remember a change, if it is the newest one."""
        seen = self._seen
        if seen is None or revision > seen.revision:
            self._seen = _Seen(key, revision, None if value is None else _brief(value), there)

    def header(self, key: bytes, deadline: float) -> Any:
        """Return the header of a linearizable read of a key, which has the newest revision.

        Raises:
            EtcdRefusedError: the key may not be read.
            MetadataStoreError: as for a read.
        """
        seen, (cluster, term) = self._seen, self._known
        request = messages.RangeRequest(key=key, limit=1, count_only=True)
        header = self._connection.call("range", request, deadline, write=False).header
        if header.cluster_id != (cluster or header.cluster_id) or header.raft_term < term:
            self._other(seen)
        with self._lock:
            self._known = (header.cluster_id, max(self._known[1], header.raft_term))
        return header

    def check(self, deadline: float) -> None:
        """Look whether the newest change still stands; otherwise, increase the number.

        Raises:
            MetadataStoreError: as for a read.
        """
        seen = self._seen
        if seen is not None and not self._stands(seen, deadline):
            self._other(seen)

    def _other(self, seen: _Seen | None) -> None:
        with self._lock:
            if self._seen is seen:  # Otherwise, another thread has found it.
                _log.warning("etcd has another history than before: it may have been restored")
                self.number += 1
                self._seen, self._known = None, (0, 0)

    def _stands(self, seen: _Seen, deadline: float) -> bool:
        """Say whether a change is part of etcd's history, as far as etcd remembers it."""
        try:
            now = self._read(seen.key, seen.revision, deadline)
            if not seen.there:
                # What is missing may never have been there.
                return not now and bool(self._read(seen.key, seen.revision - 1, deadline))
        except EtcdRefusedError as refusal:
            if refusal.reason is not Reason.COMPACTED:
                return refusal.reason is not Reason.FUTURE
            # As after a restore that bumps revisions. A key's own revision never runs back.
            now = self._read(seen.key, 0, deadline)
            return not now or now[0].mod_revision >= seen.revision
        if not now or now[0].mod_revision != seen.revision:
            return False
        return seen.value is None or _brief(now[0].value) == seen.value

    def _read(self, key: bytes, revision: int, deadline: float) -> Any:
        request = messages.RangeRequest(key=key, revision=revision)
        return self._connection.call("range", request, deadline, write=False).kvs


def _brief(value: bytes) -> int:
    """Return a number that differs for other values, most probably."""
    return hash((len(value), value[:512], value[-512:]))
