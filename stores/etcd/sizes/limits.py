"""The limits of an etcd: probed when the client connects, and learned from refusals."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Final

from ....ops.errors import MetadataStoreError, UnsupportedError, ValueTooLargeError
from ....ops.log import get_logger
from ....ops.operations import Part
from ...backend import Limits
from ..wire.batches import even_parts
from ..wire.connection import EtcdConnection
from ..wire.errors import EtcdRefusedError, Reason
from ..wire.fields import field, never, none_within, otherwise, then, transaction, value_below
from ..wire.protos import messages
from .estimates import RequestBytes, oversize

__all__ = ["Capacity"]

log = get_logger(__name__)

# etcd's --max-txn-ops. etcd counts along a path into nested transactions: for each level, the
# largest of compares, operations on success and operations on failure, summed over the levels.
_MAX_TXN_OPS: Final = 128
# The most operations of a level in a batch's transaction. etcd would accept 64, but such a
# transaction takes 30 to 60 ms, during which etcd serves no other client.
_GROUP: Final = 32
# The levels below the groups: an operation's own transaction has two compares at most.
_INNERMOST: Final = 2
# Below this limit, nesting carries fewer operations than a flat transaction.
_FEWEST_FOR_NESTING: Final = 8
# Refusals of a probe that say nothing against the number of its operations.
_COUNTED_BEFORE: Final = (Reason.NOT_PERMITTED, Reason.NO_SPACE, Reason.REQUEST_TOO_LARGE)
# A write id takes one compare, one change and one read. A delete needs up to two beside each.
_WRITE_ID: Final = 1
_FEWEST_FOR_WRITE_IDS: Final = 3
# The operations on the way to a transaction in its batch: the write id, the group and the
# transaction itself; and the condition of its session.
_ABOVE: Final = 4
# The bytes of a write id without the prefix, which its fields contain three times.
_WRITE_ID_SIZE: Final = 256
# The bytes that a conditional put needs beside the value, with a short path.
_SPARE: Final = 256

# Two requests in flight keep an etcd on the same machine busy; the third covers the time in which a
# client makes the next one. With more, transactions wait for each other in etcd.
_IN_FLIGHT: Final = 3
# A transaction of reads is small, and is answered while the client is busy with others. With this
# many, the server always has one (167,000 gets a second against 144,000 with 3, 173,000 with 12).
_READS_IN_FLIGHT: Final = 8
# Single puts share etcd's fsyncs. Their throughput grows up to this number.
_SINGLES: Final = 64


class Capacity:
    """The limits of the server. Several threads use it; its numbers only become smaller.

    Args:
        connection: the calls to the cluster.
        prefix: precedes every path in the keys.
        deadline: for probing, by ``time.monotonic()``.
        weigh: returns the operations that the parts of a transaction take up in a request.
        flat_only: never nest transactions.

    Attributes:
        limits: the limits as the engine sees them.
        max_txn_ops: the most operations in a flat transaction.
        group: the operations in a group of a nested transaction; 0 means that nothing is nested.
        request_bytes: the most bytes of a request.
    """

    def __init__(
        self,
        connection: EtcdConnection,
        prefix: str,
        deadline: float,
        weigh: Callable[[Sequence[Part]], int],
        *,
        flat_only: bool,
    ) -> None:
        self._connection = connection
        self._weigh = weigh
        self._prefix = prefix
        self._flat_only = flat_only
        # Held by the thread that probes a limit. Others read without it; at worst, they send one
        # more request that is refused.
        self._learning = Lock()
        self.request_bytes = RequestBytes()
        self.max_txn_ops = self._probe_max_txn_ops(deadline, _MAX_TXN_OPS)
        self.group = self._probe_nesting(deadline)
        self.limits = self._make_limits()

    @property
    def write_ids(self) -> bool:
        """Whether a write id fits beside any operation."""
        return self.max_txn_ops >= _FEWEST_FOR_WRITE_IDS

    @property
    def direct(self) -> int:
        """The most operations along a path into a transaction, beside its write id."""
        return self.max_txn_ops - (_WRITE_ID if self.write_ids else 0)

    def stop_nesting(self) -> None:
        """Stop nesting: the member in use would not check permissions inside transactions."""
        with self._learning:
            self.group = 0
            self.limits = self._make_limits()

    def too_large(self, size: int) -> EtcdRefusedError:
        """Return the refusal of a request that is known to be too large."""
        error = ValueTooLargeError(
            f"the request has {size:,} bytes, more than the {self.request_bytes.most:,} that etcd "
            f"accepts (--max-request-bytes, 1.5 MiB by default)"
        )
        return EtcdRefusedError(error, Reason.REQUEST_TOO_LARGE)

    def learn_request_bytes(self, size: int, refusal: EtcdRefusedError, deadline: float) -> None:
        """Note that a request was refused as too large, and probe the limit."""
        with self._learning:
            if size > self.request_bytes.most:
                return  # another thread has learned it
            probe = field(b"\x12", field(b"\x0a", field(b"\x0a", bytes(oversize(size)))))
            probed = None
            try:
                self._connection.call("txn", probe, deadline, write=False)
            except EtcdRefusedError as error:
                probed = error.grpc_limit
            except MetadataStoreError:
                pass  # The refusal itself is enough to halve the distance.
            self.request_bytes.refused(size, refusal.grpc_limit, probed)
            self.limits = self._make_limits()
        log.info(
            "etcd's request limit is lower than assumed", request_bytes=self.request_bytes.most
        )

    def learn_max_txn_ops(self, assumed: Limits, deadline: float) -> None:
        """Note that a transaction had too many operations, and probe the limit."""
        with self._learning:
            if self.limits is not assumed:
                return  # another thread has learned it
            found = self._probe_max_txn_ops(deadline, self.max_txn_ops)
            if found == self.max_txn_ops:
                return
            self.max_txn_ops = found
            if self.group:
                self.group = self._probe_nesting(deadline)
            self.limits = self._make_limits()
        log.info("etcd's operation limit is lower than before", max_txn_ops=found)

    def _probe_max_txn_ops(self, deadline: float, most: int) -> int:
        """Return how many operations the server accepts in a flat transaction.

        The probe only reads, under conditions like those of a write, of which one never holds. It
        needs no permission: etcd counts before any other check.

        Raises:
            UnsupportedError: the server refuses such transactions, or ignores the conditions.
        """
        key = (self._prefix + "/").encode()
        conditions = [never(key), value_below(key, b""), none_within(key, key + b"\0")]
        read = otherwise(field(b"\x0a", field(b"\x0a", key) + b"\x48\x01"))  # only a count

        def accepts(number: int) -> bool:
            body = b"".join(conditions[:number]) + read * number
            return self._accepts(body, deadline, succeeds=False, answers=number)

        try:
            if accepts(most):
                return most
            # The accepted numbers come first, from 1 on, so their count is the limit.
            found = bisect_right(range(1, most), False, key=lambda number: not accepts(number))
        except EtcdRefusedError as refusal:
            raise UnsupportedError(
                f"the server at {self._connection.open(deadline).address} does not execute a "
                f"transaction of several operations with conditions as etcd does: {refusal.error}; "
                f"a server with a part of etcd's API, such as kine, cannot hold a store"
            ) from refusal
        return max(found, 1)

    def _probe_nesting(self, deadline: float) -> int:
        """Return how many operations fit in a group of a nested transaction, or 0 for none.

        etcd does not document how it counts. Another server with its API may not nest at all.
        """
        most = self.max_txn_ops
        link = self._connection.open(deadline)
        if self._flat_only or not link.nesting or most < _FEWEST_FOR_NESTING:
            return 0
        group = min(_GROUP, (most - _WRITE_ID - _INNERMOST) // 2)
        empty = b"\x12\x0a\x22\x08" + b"\x1a\x02\x22\x00" * _INNERMOST
        groups = even_parts([empty] * group**2, group)
        body = b"".join([then(transaction(some)) for some in groups])
        try:
            return group if self._accepts(body, deadline, succeeds=True, answers=group) else 0
        except EtcdRefusedError as refusal:
            log.warning("etcd does not nest transactions: batches are smaller", reason=str(refusal))
            return 0

    def _accepts(self, body: bytes, deadline: float, *, succeeds: bool, answers: int) -> bool:
        """Say whether etcd accepts the number of operations in a transaction that only reads.

        Raises:
            EtcdRefusedError: the server refuses it for another reason, or executes something else.
        """
        try:
            answer = self._connection.call("txn", body, deadline, write=False)
        except EtcdRefusedError as refusal:
            if refusal.reason in _COUNTED_BEFORE:
                return True
            if refusal.reason is not Reason.TOO_MANY_OPS:
                raise
            return False
        response = messages.TxnResponse.FromString(answer)
        if response.succeeded is not succeeds or len(response.responses) != answers:
            raise EtcdRefusedError(MetadataStoreError("its answer is that of another request"))
        return True

    def _make_limits(self) -> Limits:
        prefix = len(self._prefix.encode())
        request_bytes = self.request_bytes.most - _WRITE_ID_SIZE - 3 * prefix
        return Limits(
            write_ops=self.group**2 or self.direct,
            read_ops=self.max_txn_ops,
            request_bytes=request_bytes,
            # A conditional put contains its key three times, with about 45 bytes between them.
            op_bytes=128 + 3 * prefix,
            # A longer path leaves less room for the value; the operation's encoding shows that.
            value_bytes=max(0, request_bytes - _SPARE - 3 * prefix),
            in_flight=_IN_FLIGHT,
            singles=_SINGLES,
            reads_in_flight=_READS_IN_FLIGHT,
            # Most parts have one condition, but a delete has two or more. A transaction with too
            # many is refused when it is executed.
            transaction_ops=max(1, self.max_txn_ops - _ABOVE),
            weigh=self._weigh,
        )
