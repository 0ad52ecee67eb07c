"""Finds out whether any client has a session, and so may have ephemeral values.

While none has, puts need not mind leases, which saves etcd a quarter of its time for them. Each
group of such puts carries one condition, the *guard*: there is no session key below the prefix. A
session key exists before the first ephemeral value of its session, and as long as the last one. So
the guard is exact; what the client remembers only decides which form it tries first.
"""

from __future__ import annotations

import time
from typing import Final

from ....ops.paths import OWN
from ..wire.connection import EtcdConnection
from ..wire.errors import EtcdRefusedError, Reason
from ..wire.fields import none_within
from ..wire.protos import messages

__all__ = ["Guard"]

# Seconds after which a client that knows of sessions looks again.
_AGAIN: Final = 30.0


class Guard:
    """The condition that there are no sessions. Several threads use it.

    Args:
        connection: the calls to the cluster.
        prefix: the prefix of all keys. Clients with another prefix have other sessions.
        deadline: for the first look, by ``time.monotonic()``.

    Attributes:
        free: whether there are no sessions, as far as the client knows.
        leased: whether the client has met a lease of somebody else, which the guard does not show:
            of a client with another prefix, or of another program. From then on, it minds leases.
    """

    def __init__(self, connection: EtcdConnection, prefix: str, deadline: float) -> None:
        self._connection = connection
        place = f"{prefix}/{OWN}/sessions"
        self._start, self._end = f"{place}/".encode(), f"{place}0".encode()
        self._condition = none_within(self._start, self._end)
        # Read and written without a lock: a thread with an old value sends one more request, or
        # looks once more.
        self.leased = False
        self.free = self._read(deadline)
        self._checked = time.monotonic()

    def met_lease(self) -> None:
        """Note a key with a lease."""
        self.leased, self.free = True, False

    def condition(self, deadline: float) -> bytes:
        """Return the condition for a transaction; empty if there are sessions.

        Raises:
            MetadataStoreError: no member answers; nothing was sent.
        """
        if not self.free and time.monotonic() - self._checked > _AGAIN:
            self._checked = time.monotonic()  # Other threads need not look, too.
            self.free = self._read(deadline)
        return self._condition if self.free else b""

    def failed(self) -> None:
        """Note that there are sessions, or that this client is about to have one."""
        self.free, self._checked = False, time.monotonic()

    def forbidden(self, deadline: float) -> bool:
        """Say whether a transaction may have been refused because of the guard.

        A user's permissions can change. Without permission to read the session keys, the client
        does without the guard.
        """
        self.free, self._checked = self._read(deadline), time.monotonic()
        return not self.free

    def _read(self, deadline: float) -> bool:
        """Say whether there are no sessions, as far as the user may know."""
        if self.leased:
            return False
        request = messages.RangeRequest(
            key=self._start, range_end=self._end, limit=1, keys_only=True
        )
        try:
            return not self._connection.call("range", request, deadline, write=False).kvs
        except EtcdRefusedError as refusal:
            if refusal.reason is Reason.NOT_PERMITTED:
                return False
            raise
