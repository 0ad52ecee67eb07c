"""Tokens: what makes it safe to send a write again whose answer did not come.

Every transaction that writes also writes a token: the key of a *slot*, set to the transaction's own
id, under the condition that the slot still holds the id of the one before. So a transaction and a
copy of it that is sent again exclude each other, whichever arrives first and however late the other
does. When the condition does not hold, what the slot holds says why:

- the transaction's own id: it was applied before, at the revision of the token, where everything
  that it did can be read back;
- the id before: nothing was applied (and some other condition did not hold), but an attempt that is
  still on its way could be;
- anything else: the slot's history was lost. Nothing is applied any more; whether it was before is
  not known, unless there was no attempt before.

A transaction that is not wanted any more is shut out by another that moves the slot on.

Tokens hang on a lease of their own, so that nothing is left of a client that disappears. A slot
is used by one transaction at a time; those that come back are used again, so there are as many as
there are transactions under way.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from typing import Any, Final

from ...ops.errors import MetadataStoreError, OperationTimeoutError, StoreClosedError
from ...ops.log import get_logger
from ..backend import RequestRefusedError
from .connection import Connection
from .errors import NO_SPACE
from .protos import messages

__all__ = ["Token", "Tokens"]

log = get_logger(__name__)

# Seconds. What is settled before its lease ends is settled for certain; where etcd will not grant
# another one, the last is used for twice as long as else.
_LEASE: Final = 1800
_RENEW: Final = 600
_OVERDUE: Final = 1200
# A slot that has not been used for so long may have lost its token with the lease.
_STALE: Final = 600


class _Slot:
    """A key for tokens, and what is in it."""

    __slots__ = ("holds", "key", "used")

    def __init__(self, key: bytes) -> None:
        self.key = key
        self.holds: bytes | None = None
        self.used = time.monotonic()


class Token:
    """One transaction's use of a slot.

    Attributes:
        value: the transaction's id.
        before: what the slot has to hold, ``None`` for nothing.
        lease: the lease that it hangs on.
        fields: the first condition, change and look of the transaction, to be put before its own.
        void_value: the id of the transaction that shuts this one out.
    """

    __slots__ = ("before", "fields", "lease", "slot", "value", "void_value")

    def __init__(self, slot: _Slot, value: bytes, lease: int) -> None:
        self.slot = slot
        self.lease = lease
        self.value = value
        self.void_value = value + b" void"
        self.before = slot.holds
        self.fields = self._moving_to(value)

    @property
    def void(self) -> bytes:
        """A transaction that shuts this one out, if it was not applied before."""
        return self._moving_to(self.void_value)

    def _moving_to(self, value: bytes) -> bytes:
        key, before = self.slot.key, self.before
        if before is None:
            held = messages.Compare(key=key, target=messages.Compare.VERSION, version=0)
        else:
            held = messages.Compare(key=key, target=messages.Compare.VALUE, value=before)
        put = messages.PutRequest(key=key, value=value, lease=self.lease)
        look = messages.RangeRequest(key=key)
        request: bytes = messages.TxnRequest(
            compare=[held],
            success=[messages.RequestOp(request_put=put)],
            failure=[messages.RequestOp(request_range=look)],
        ).SerializeToString()
        return request

    def look(self) -> Any:
        """Return a request for what the slot holds now."""
        return messages.RangeRequest(key=self.slot.key)


class Tokens:
    """The slots of one client, and the lease that their tokens hang on.

    Args:
        connection: the calls to the cluster.
        prefix: of all keys. The tokens lie below it, where the client's permissions reach.
    """

    def __init__(self, connection: Connection, prefix: str) -> None:
        self._connection = connection
        self._name = os.urandom(8).hex()
        self._place = f"{prefix}/.batchkeeper/tokens/{self._name}/"
        self._lock = threading.Lock()  # guards what follows
        self._free: deque[_Slot] = deque()
        self._slots = 0
        self._numbers = 0
        self._lease = 0
        self._granted = 0.0
        self._under_way = 0
        self._closed = False
        self._granting = threading.Lock()  # held by the thread that asks for a lease
        # Set once, by that thread. Read by any without a lock: it then asks again, or does not.
        self._refused = False

    def take(self, deadline: float) -> Token | None:
        """Return a token for one transaction; ``None`` where the client may not write tokens.

        Every token is to be ended, with or without its slot being given back first.

        Raises:
            RequestRefusedError: etcd has no space for a lease.
            StoreClosedError: closed.
            MetadataStoreError: there is no lease yet, and none to be had by the deadline.
        """
        lease = self._current_lease(deadline)
        if lease is None:
            return None
        now = time.monotonic()
        with self._lock:
            if self._closed:
                raise StoreClosedError("the store is closed")
            self._under_way += 1
            self._numbers += 1
            value = f"{self._name} {self._numbers}".encode()
            # The one that came back last is the freshest.
            slot = self._free.pop() if self._free else None
            if slot is None or now - slot.used > _STALE:
                self._slots += 1
                slot = _Slot(f"{self._place}{self._slots}".encode())
        return Token(slot, value, lease)

    def give_back(self, token: Token, holds: bytes | None) -> None:
        """Let a slot be used again; ``holds`` is what is known to be in it.

        Not to be called while the token's transaction may yet be applied.
        """
        slot = token.slot
        if holds != token.before:
            slot.used = time.monotonic()
        slot.holds = holds
        with self._lock:
            self._free.append(slot)

    def end(self, token: Token) -> None:
        """Forget a token. Its slot is not used again unless it was given back."""
        with self._lock:
            self._under_way -= 1

    def start_over(self, token: Token) -> None:
        """Ask for a lease and slots anew: the one that the token hangs on is gone."""
        with self._lock:
            if self._lease == token.lease:
                self._lease = 0
                self._free.clear()

    def close(self, deadline: float) -> None:
        """Give up the lease, and with it all tokens, if that can be had at once.

        Not while transactions are under way: what became of them is to be known as long as their
        callers want to.
        """
        with self._lock:
            idle = not (self._closed or self._under_way) and self._connection.connected
            lease, self._lease, self._closed = self._lease, 0, True
        if lease and idle:
            try:
                request = messages.LeaseRevokeRequest(ID=lease)
                self._connection.call("revoke", request, deadline, write=False)
            except MetadataStoreError as error:
                log.info("etcd lease left to expire", reason=str(error))

    def _current_lease(self, deadline: float) -> int | None:
        with self._lock:
            lease, age = self._lease, time.monotonic() - self._granted
        if self._refused:
            return None
        if lease and age < _RENEW:
            return lease
        usable = lease and age < _OVERDUE
        patience = 0.0 if usable else max(0.0, deadline - time.monotonic())
        if not self._granting.acquire(timeout=patience):
            if usable:
                return lease
            raise OperationTimeoutError("no lease from etcd by the deadline; nothing was sent")
        try:
            if self._refused:
                return None
            # Only who holds _granting grants one.
            if self._lease and time.monotonic() - self._granted < _RENEW:
                return self._lease
            return self._grant(deadline)
        except RequestRefusedError as refusal:
            if usable:
                return lease
            if NO_SPACE in str(refusal):
                raise  # for now
            self._refused = True
            log.warning(
                "etcd tokens refused: writes without an answer stay indeterminate",
                reason=str(refusal),
            )
            return None
        finally:
            self._granting.release()

    def _grant(self, deadline: float) -> int:
        granted = time.monotonic()
        request = messages.LeaseGrantRequest(TTL=_LEASE)
        lease: int = self._connection.call("grant", request, deadline, write=False).ID
        # Whether tokens are permitted is found out now, not when a transaction is refused for it.
        trial = Token(_Slot(f"{self._place}0".encode()), b"trial", lease)
        self._connection.call("txn", trial.fields, deadline, write=False)
        with self._lock:
            if not self._closed:
                self._lease, self._granted = lease, granted
        return lease
