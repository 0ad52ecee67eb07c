"""Pages of a scan: their requests, and their entries in columns."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import grpc

from ....ops.acceleration import accelerated, bind
from ..wire.cancelling import cancel
from ..wire.connection import EtcdConnection
from ..wire.protos import messages

__all__ = ["LAST_TRY", "Page", "PendingPage", "parse_page"]

#: Seconds for finding out why there was no answer in the whole timeout.
LAST_TRY: Final = 0.05


class Page(NamedTuple):
    """The entries of an answer to a range.

    Attributes:
        revision: the newest revision at the time of the answer; 0 in all chunks of a stream but
            the last.
        total: the number of keys in the whole range.
        keys: the keys, in order.
        values: their values.
        versions: their versions, from 0 on.
        revisions: the revisions of their last changes.
        leases: the ids of their leases; 0 for a key without one.
        size: the bytes of the answer.
    """

    revision: int
    total: int
    keys: Sequence[bytes]
    values: Sequence[bytes]
    versions: Sequence[int]
    revisions: Sequence[int]
    leases: Sequence[int]
    size: int


@accelerated("etcd_page")
def parse_page(answer: bytes, chunk: bool, /) -> Page:
    """Return the page in an answer to a range, or in a chunk of a stream of them."""
    # On the wire, a RangeStreamResponse is a ResponseOp with a range: both have it as field 1.
    found = (
        messages.ResponseOp.FromString(answer).response_range
        if chunk
        else messages.RangeResponse.FromString(answer)
    )
    kvs = [*found.kvs]
    return Page(
        found.header.revision,
        found.count,
        [kv.key for kv in kvs],
        [kv.value for kv in kvs],
        [kv.version - 1 for kv in kvs],
        [kv.mod_revision for kv in kvs],
        [kv.lease for kv in kvs],
        len(answer),
    )


class PendingPage:
    """A range that was requested.

    The first attempt is under way while the caller works on the page before it. Further attempts
    are made when the caller asks for the result.
    """

    def __init__(self, connection: EtcdConnection, request: Any, timeout: float) -> None:
        self._connection = connection
        self.request = request
        self.timeout = timeout
        self._deadline = time.monotonic() + timeout
        self._process = os.getpid()
        self._pending = connection.begin(request, timeout)

    def result(self) -> Page:
        """Return the page. Raises the errors of ``EtcdConnection.call``."""
        asked = time.monotonic()
        deadline = self._deadline
        pending, self._pending = self._pending, None
        if pending is None or pending.done():
            # The timeout counts only while the caller waits.
            deadline = asked + self.timeout
        if pending is not None:
            try:
                return parse_page(pending.result(), False)
            except grpc.FutureCancelledError:  # because the store was closed
                pass
            except grpc.RpcError as error:
                if refusal := self._connection.refusal(error, self.request):
                    raise refusal from error
        deadline = max(deadline, time.monotonic() + LAST_TRY)
        return parse_page(self._connection.call("page", self.request, deadline, write=False), False)

    def give_up(self) -> None:
        """Cancel the request if it is still under way."""
        if self._pending is not None:
            cancel(self._pending, self._process)


bind(etcd_Page=Page)
