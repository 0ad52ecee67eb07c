"""Sends transactions to etcd, and learns from the answers how large they may be."""

from __future__ import annotations

import time
from typing import Any, Final

from ...backend import Limits
from ..wire.connection import EtcdConnection
from ..wire.errors import EtcdRefusedError, Reason
from ..wire.protos import messages
from .estimates import AnswerBytes, Pace
from .limits import Capacity

__all__ = ["Requests"]


class Requests:
    """The requests of a back end. Several threads use it at once.

    Args:
        connection: the calls to the cluster.
        capacity: the limits of the server.
    """

    def __init__(self, connection: EtcdConnection, capacity: Capacity) -> None:
        self._connection = connection
        self._capacity = capacity
        self._pace: Final = Pace(capacity.limits.write_ops)
        self._overwritten: Final = AnswerBytes()

    @property
    def limits(self) -> Limits:
        """The limits of one call of the back end."""
        return self._capacity.limits

    @property
    def most_writes(self) -> int:
        """The most writes for the next transaction."""
        return min(self._pace.writes, self.limits.write_ops)

    @property
    def most_overwrites(self) -> int:
        """The most writes for a transaction that is answered with the values before."""
        return self._overwritten.values

    def txn(
        self,
        body: bytes,
        deadline: float,
        *,
        write: bool,
        nested: bool = False,
        attempt: int | None = None,
        writes: int = 0,
    ) -> bytes:
        """Send a transaction. See ``EtcdConnection.call``.

        From those with a number of callers' ``writes``, it learns how many the next ones may have.

        Raises:
            EtcdRefusedError: it is too large, for this client or for etcd; or as from ``call``.
        """
        if len(body) > self._capacity.request_bytes.most:
            raise self._capacity.too_large(len(body))
        sent = time.monotonic()
        try:
            answer = self._connection.call(
                "txn", body, deadline, write=write, nested=nested, attempt=attempt
            )
        except EtcdRefusedError as refusal:
            if refusal.reason is not Reason.REQUEST_TOO_LARGE:
                raise
            self._capacity.learn_request_bytes(len(body), refusal, deadline)
            raise self._capacity.too_large(len(body)) from refusal
        if write:
            self._capacity.request_bytes.accepted(len(body))
        if writes:
            self._pace.took(writes, time.monotonic() - sent)
            # The values just written predict the next ones as well as the overwritten ones do.
            self._overwritten.saw(writes, max(len(body), len(answer)))
        return bytes(answer)

    def ranges(self, body: bytes, deadline: float) -> bytes:
        """Execute the ranges of a transaction as single calls.

        An etcd beyond its quota refuses every transaction, even one that only reads.
        """
        response = messages.TxnResponse()
        for operation in messages.TxnRequest.FromString(body).success:
            found = self.range(operation.request_range, deadline)
            response.header.CopyFrom(found.header)
            response.responses.add().response_range.CopyFrom(found)
        return bytes(response.SerializeToString())

    def range(self, request: Any, deadline: float) -> Any:
        """Read keys."""
        return self._connection.call("range", request, deadline, write=False, attempt=0)
