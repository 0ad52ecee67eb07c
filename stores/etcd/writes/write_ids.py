"""Write ids, which make it safe to send a write again after its answer was lost.

Every transaction that writes also sets a write id: it sets the key of a *slot* to its own number,
under the condition that the slot holds a smaller one. Numbers only grow, and one transaction at a
time uses a slot. So a transaction and its copy exclude each other, whichever arrives first and
however late the other arrives. If the transaction is not applied, the content of the slot shows
why:

- the transaction's own number: it was applied before, at the revision of the write id, where
  everything that it did can be read back;
- a larger one: it is shut out, and never will be applied;
- a smaller one, or nothing in a slot that was never used: nothing was applied (and some other
  condition did not hold), but an attempt that is still on its way could be;
- nothing in a slot that was used: its lease has ended, or etcd has lost acknowledged writes.
  Nothing is applied any more. Only in the latter case, when the slot's past is gone, too, is it
  certain that no earlier attempt was applied.

To shut a transaction out, another transaction moves its slot on.

The condition is "smaller", not "the one before", because of single etcds before 3.5.5. A kill can
remove one acknowledged transaction from the middle of their history (etcd #13766, #14370). Later
ones, when etcd executes them again from its log, must not depend on it.

The slots are bound to a lease of their own, so a client that disappears leaves nothing behind. Free
slots are used again, so there are as many slots as transactions under way.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections import deque
from typing import Any, Final

from ....ops.errors import (
    MetadataStoreError,
    StoreClosedError,
)
from ....ops.log import get_logger
from ....ops.paths import OWN
from ...backend import send_by
from ..wire.connection import EtcdConnection
from ..wire.errors import EtcdRefusedError, Reason
from ..wire.fields import VARINT, field
from ..wire.lineage import Lineage
from ..wire.protos import messages

__all__ = ["WriteId", "WriteIds"]

log = get_logger(__name__)

# Seconds. A transaction that is settled before its lease ends is settled for certain. So a lease is
# replaced after a third of the time that etcd has granted. If it grants no new one, the last one is
# used for twice as long. After a third without use, a slot may have lost its write id with it.
_LEASE: Final = 1800


class _IdSlot:
    """A key for write ids, and its content."""

    __slots__ = ("compare", "holds", "key", "lease", "on_lease", "put", "read", "since", "used")

    def __init__(self, key: bytes) -> None:
        self.key = key
        self.holds: bytes | None = None
        self.since = 0  # the revision of this content
        self.used = time.monotonic()
        # The constant parts of a transaction.
        size = VARINT[len(key)]
        self.compare = b"\x1a%b%b" % (size, key)
        self.put = b"\x0a%b%b" % (size, key)
        self.read = field(b"\x1a", field(b"\x0a", self.put))
        self.lease = 0
        self.on_lease = b""

    def hang_on(self, lease: int) -> None:
        """Bind later write ids to a lease."""
        if lease != self.lease:
            self.lease = lease
            self.on_lease = b"\x18" + VARINT[lease]


class WriteId:
    """One transaction's use of a slot.

    Attributes:
        value: the transaction's number, as the slot holds it.
        void_value: the slot's content if the transaction is shut out.
        before: the slot's last known content, ``None`` if it was never used.
        since: the revision of that content.
        lease: the lease of the write id.
        fields: the compare, change and read that precede those of the transaction.
    """

    __slots__ = ("before", "fields", "lease", "since", "slot", "value", "void_value")

    def __init__(self, slot: _IdSlot, number: int, lease: int) -> None:
        slot.hang_on(lease)
        self.slot = slot
        self.lease = lease
        # Values order like their numbers; a void value lies between its number and the next.
        self.value = number.to_bytes(8, "big")
        self.void_value = self.value + b"\x00"
        self.before = slot.holds
        self.since = slot.since
        self.fields = self._moving(self.value, self.before is None)

    def void(self, *, missing: bool = False) -> bytes:
        """Return a transaction that shuts this one out, unless it was applied before.

        Args:
            missing: whether the slot is empty although it was used.
        """
        return self._moving(self.void_value, missing or self.before is None)

    def undecided(self, holds: bytes | None) -> bool:
        """Say whether, with this content, the transaction was not applied but still may be."""
        return self.before is None if holds is None else holds < self.value

    def read(self, revision: int = 0) -> Any:
        """Return a request for the slot's content, now or at a revision."""
        return messages.RangeRequest(key=self.slot.key, revision=revision)

    def _moving(self, value: bytes, first: bool) -> bytes:
        slot = self.slot
        if first:  # a comparison of values never holds for a missing key
            compare = slot.compare + b"\x20\x00"  # its version is 0
        else:  # its value is LESS
            compare = b"\x08\x02\x10\x03%b\x3a\x08%b" % (slot.compare, self.value)
        put = b"%b\x12%b%b%b" % (slot.put, VARINT[len(value)], value, slot.on_lease)
        change = field(b"\x12", field(b"\x12", put))
        return b"%b%b%b" % (field(b"\x0a", compare), change, slot.read)


class WriteIds:
    """The slots of one client, and the lease of their write ids.

    Args:
        connection: the calls to the cluster.
        prefix: the prefix of all keys. Write ids lie below it, where the client has permissions.
        lineage: the history that the client has seen.
        permitted: whether a transaction has room for a write id.

    Attributes:
        permitted: whether a transaction has room for a write id. It becomes ``False`` if a lower
            limit of the server turns up.
        renew: seconds after which a lease is replaced, unless less time was granted.
        reconsider: seconds after which refused write ids are tried again, because permissions
            change.
    """

    renew: Final = _LEASE / 3
    reconsider: Final = 600

    def __init__(
        self, connection: EtcdConnection, prefix: str, lineage: Lineage, *, permitted: bool = True
    ) -> None:
        self._connection = connection
        self._lineage = lineage
        self._name = os.urandom(8).hex()
        self._place = f"{prefix}/{OWN}/write-ids/{self._name}/"
        self._lock = threading.Lock()  # guards the following fields
        self._free: deque[_IdSlot] = deque()
        self._slots = 0
        self._numbers = 0
        self._lease = 0
        self._granted = 0.0
        self._third = float(_LEASE)  # of the seconds that were granted
        self._under_way = 0
        self._closed = False
        self._granting = threading.Lock()  # held by the thread that requests a lease
        # Read without a lock: a thread with the old value writes one write id more, or one less.
        self._without_until = -math.inf  # set when etcd refuses write ids, under _granting
        self.permitted = permitted

    def take(self, deadline: float) -> WriteId | None:
        """Return a write id for one transaction; ``None`` without room or permission for it.

        Pass each write id to ``end``, whether or not its slot was given back first.

        Raises:
            EtcdRefusedError: etcd has no space for a lease.
            StoreClosedError: the store is closed.
            MetadataStoreError: there is no lease yet, and etcd granted none in time.
        """
        lease = self._current_lease(send_by(deadline))
        if lease is None:
            return None
        now = time.monotonic()
        with self._lock:
            if self._closed:
                raise StoreClosedError("the store is closed")
            self._under_way += 1
            self._numbers += 1
            number = self._numbers
            # The slot that came back last was used most recently.
            slot = self._free.pop() if self._free else None
            if slot is None or now - slot.used > self._third:
                self._slots += 1
                slot = _IdSlot(f"{self._place}{self._slots}".encode())
        return WriteId(slot, number, lease)

    def give_back(self, write_id: WriteId, holds: bytes | None, since: int) -> None:
        """Release a slot for further use, with its known content since a revision.

        Do not call it while the write id's transaction may still be applied.
        """
        slot = write_id.slot
        if holds != write_id.before:
            slot.used = time.monotonic()
        slot.holds, slot.since = holds, since
        if holds == write_id.value:
            self._lineage.saw(slot.key, since, holds)
        with self._lock:
            self._free.append(slot)

    def end(self, write_id: WriteId) -> None:
        """End the use of a write id. Its slot is used again only if it was given back."""
        with self._lock:
            self._under_way -= 1

    def start_over(self, write_id: WriteId) -> None:
        """Request a new lease and new slots: the lease of this write id is gone."""
        with self._lock:
            if self._lease == write_id.lease:
                self._lease = 0
                self._free.clear()

    def forbidden(self, write_id: WriteId, deadline: float) -> bool:
        """Say whether a transaction may have been refused because of its write id; then start over.

        A user's permissions can change while a lease is in use. The request for the next lease
        finds that out again, and reports it.
        """
        try:
            self._try(write_id.lease, deadline)
        except EtcdRefusedError as refusal:
            if refusal.reason is Reason.NOT_PERMITTED:
                self.start_over(write_id)
                return True
        return False

    def stands(self, write_id: WriteId, deadline: float) -> bool:
        """Say whether the lease of a write id exists, so that the transaction lacks another one."""
        try:
            self._try(write_id.lease, deadline)
        except EtcdRefusedError as refusal:
            return refusal.reason is not Reason.LEASE_GONE
        return True

    def close(self, deadline: float) -> None:
        """Revoke the lease, and with it all write ids, if a member is connected.

        The lease stays while transactions are under way, because their callers still need to find
        out the outcomes.
        """
        with self._lock:
            idle = not (self._closed or self._under_way) and self._connection.in_use
            lease, self._lease, self._closed = self._lease, 0, True
        if lease and idle:
            self._revoke(lease, deadline)

    def _current_lease(self, deadline: float) -> int | None:
        with self._lock:
            lease, age, third = self._lease, time.monotonic() - self._granted, self._third
        if not self._wanted():
            return None
        if lease and age < min(self.renew, third):
            return lease
        usable = lease and age < 2 * third
        patience = 0.0 if usable else max(0.0, deadline - time.monotonic())
        if not self._granting.acquire(timeout=patience):
            if usable:
                return lease
            raise self._connection.late("there is no lease yet; nothing was sent")
        try:
            if not self._wanted():
                return None
            # Only the thread that holds _granting grants a lease.
            if self._lease and time.monotonic() - self._granted < min(self.renew, self._third):
                return self._lease
            return self._grant(deadline)
        except EtcdRefusedError as refusal:
            # Without permission for write ids, every transaction with one is refused as well.
            if usable and refusal.reason is not Reason.NOT_PERMITTED:
                return lease
            if refusal.reason is Reason.NO_SPACE:
                raise  # for now
            self._without_until = time.monotonic() + self.reconsider
            log.warning(
                "etcd write ids refused: writes without an answer stay indeterminate",
                reason=str(refusal),
            )
            return None
        finally:
            self._granting.release()

    def _wanted(self) -> bool:
        return self.permitted and time.monotonic() >= self._without_until

    def _grant(self, deadline: float) -> int:
        while True:
            granted = time.monotonic()
            request = messages.LeaseGrantRequest(TTL=_LEASE)
            # A lease whose answer is lost ends by itself.
            granting = self._connection.call("grant", request, deadline, write=False, attempt=0)
            lease: int = granting.ID
            # Find out now whether write ids are permitted, not when a transaction is refused.
            try:
                self._try(lease, deadline)
            except EtcdRefusedError as refusal:
                if refusal.reason is Reason.LEASE_GONE:  # etcd was set up again meanwhile
                    continue
                self._revoke(lease, deadline)
                raise
            break
        with self._lock:
            if not self._closed:
                self._lease, self._granted, self._third = lease, granted, granting.TTL / 3
        return lease

    def _try(self, lease: int, deadline: float) -> None:
        """Send a write id alone, to find out whether write ids are permitted.

        Raises:
            EtcdRefusedError: they are not permitted, or the lease is gone.
        """
        trial = WriteId(_IdSlot(f"{self._place}0".encode()), 0, lease)
        self._connection.call("txn", trial.fields, deadline, write=False, attempt=0)

    def _revoke(self, lease: int, deadline: float) -> None:
        try:
            request = messages.LeaseRevokeRequest(ID=lease)
            self._connection.call("revoke", request, deadline, write=False)
        except MetadataStoreError as error:
            log.info("etcd lease left to expire", reason=str(error))
