"""etcd's ceilings: flat transactions, as large as its default allows, from 4 threads.

The requests are encoded beforehand. The responses are parsed, and ``succeeded`` is checked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import grpc

from batchkeeper.bench.target import Target
from batchkeeper.bench.workload import WrongAnswerError
from batchkeeper.stores.etcd.wire.protos import messages

from ..work import Step
from .puts import in_threads

_IN_FLIGHT: Final = 4
_TIMEOUT: Final = 60.0


class _Etcd:
    # etcd's --max-txn-ops.
    read_size = 128

    def __init__(self, prefix: str, call: Any) -> None:
        self._prefix = prefix
        self._call = call

    def write_size(self, expected: int | None) -> int:
        # A batch of conditional puts leaves one operation for a write id.
        return 128 if expected is None else 127

    def write(self, found: Sequence[Step], expected: int | None) -> bytes:
        ops = [
            messages.RequestOp(
                request_put=messages.PutRequest(key=self._key(step), value=step.value)
            )
            for step in found
        ]
        version = 0 if expected is None else expected + 1
        compares = [
            # etcd counts versions from 1; a missing key has version 0.
            messages.Compare(
                key=self._key(step),
                target=messages.Compare.VERSION,
                result=messages.Compare.EQUAL,
                version=version,
            )
            for step in (() if expected is None else found)
        ]
        encoded: bytes = messages.TxnRequest(compare=compares, success=ops).SerializeToString()
        return encoded

    def read(self, found: Sequence[Step]) -> bytes:
        ranges = [
            messages.RequestOp(request_range=messages.RangeRequest(key=self._key(step)))
            for step in found
        ]
        encoded: bytes = messages.TxnRequest(success=ranges).SerializeToString()
        return encoded

    def replay(self, requests: Sequence[bytes]) -> None:
        def sender(shared: Iterator[bytes]) -> None:
            for request in shared:
                if not self._call(request, timeout=_TIMEOUT).succeeded:
                    raise WrongAnswerError("a transaction of a ceiling did not succeed")

        in_threads(_IN_FLIGHT, sender, requests)

    def _key(self, step: Step) -> bytes:
        return (self._prefix + step.path).encode()


@contextmanager
def opened(there: Target) -> Iterator[_Etcd]:
    """Yield a ceiling with a call for transactions, which takes bytes."""
    with grpc.insecure_channel(there.url.addresses(2379)[0]) as channel:
        call = channel.unary_unary(
            "/etcdserverpb.KV/Txn",
            request_serializer=None,
            response_deserializer=messages.TxnResponse.FromString,
        )
        yield _Etcd(there.url.prefix(), call)
