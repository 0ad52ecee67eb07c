"""etcd's ceilings: flat transactions, as large as its default allows, with 4 in flight.

The requests are encoded beforehand. The responses are parsed, and ``succeeded`` is checked.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import cycle
from typing import Any, Final

import grpc

from batchkeeper.bench.target import Target
from batchkeeper.bench.workload import WrongAnswerError
from batchkeeper.stores.etcd.protos import messages

from ..work import Step
from .puts import in_threads

_THREADS: Final = "4 threads with blocking calls"
_CHANNELS: Final = "4 threads with blocking calls, a channel each"
_FUTURES: Final = "4 futures of gRPC, one thread"
WRITES: Final = (_THREADS, _CHANNELS, _FUTURES)
READS: Final = WRITES

_IN_FLIGHT: Final = 4
_TIMEOUT: Final = 60.0


class _Etcd:
    # etcd's --max-txn-ops.
    read_size = 128

    def __init__(self, prefix: str, calls: Sequence[Any]) -> None:
        self._prefix = prefix
        self._calls = calls

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

    def replay(self, requests: Sequence[bytes], way: str) -> None:
        calls = cycle(self._calls if way == _CHANNELS else self._calls[:1])
        if way == _FUTURES:
            under_way: deque[Any] = deque()
            for call, request in zip(calls, requests, strict=False):
                under_way.append(call.future(request, timeout=_TIMEOUT))
                if len(under_way) == _IN_FLIGHT:
                    _check(under_way.popleft().result())
            for future in under_way:
                _check(future.result())
            return

        def sender(shared: Iterator[bytes]) -> None:
            call = next(calls)
            for request in shared:
                _check(call(request, timeout=_TIMEOUT))

        in_threads(_IN_FLIGHT, sender, requests)

    def _key(self, step: Step) -> bytes:
        return (self._prefix + step.path).encode()


def _check(response: Any) -> None:
    if not response.succeeded:
        raise WrongAnswerError("a transaction of a ceiling did not succeed")


@contextmanager
def opened(there: Target) -> Iterator[_Etcd]:
    """Yield a ceiling with a call for transactions, which takes bytes, on each of 4 channels."""
    address = there.url.addresses(2379)[0]
    # Or they would share a connection.
    options = (("grpc.use_local_subchannel_pool", 1),)
    with ExitStack() as stack:
        channels = [
            stack.enter_context(grpc.insecure_channel(address, options=options))
            for _ in range(_IN_FLIGHT)
        ]
        calls = [
            channel.unary_unary(
                "/etcdserverpb.KV/Txn",
                request_serializer=None,
                response_deserializer=messages.TxnResponse.FromString,
            )
            for channel in channels
        ]
        yield _Etcd(there.url.prefix(), calls)
