"""etcd's ceilings: flat transactions, as large as its default allows, with 4 in flight.

The requests are encoded beforehand. The responses are parsed, and ``succeeded`` is checked.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import cycle, islice
from typing import Any, Final, TypeAlias

import grpc

from ...stores.etcd.protos import messages
from ..target import Target
from ..workload import WrongAnswerError
from .ceilings import Ceiling
from .ours import seed
from .work import EXPECTATIONS, Figures, Item, Stopwatch, items, parts, work

__all__ = ["CEILINGS"]

_IN_FLIGHT: Final = 4
# etcd's --max-txn-ops is 128. A batch of conditional puts leaves one operation for a write id.
_PUTS: Final = 128
_CONDITIONAL_PUTS: Final = 127
_RANGES: Final = 128
_SEEDED: Final = 10_000
_TIMEOUT: Final = 60.0

#: Sends requests over a number of channels, and checks each response.
_Replay: TypeAlias = Callable[[Sequence[Any], Sequence[bytes]], None]


def _puts(replay: _Replay, channels: int, there: Target, count: int) -> Figures:
    """Measure puts of fresh keys."""
    made = work(there.root, _whole(count, _PUTS))
    warm_up, timed = (
        [_put_request(there, part) for part in parts(found, _PUTS)]
        for found in (made.warm_up, made.timed)
    )
    with _calls(there, channels) as calls:
        replay(calls, warm_up)
        with Stopwatch(there) as watch:
            replay(calls, timed)
        return watch.figures(len(made.timed))


def _conditional_puts(replay: _Replay, channels: int, there: Target, count: int) -> Figures:
    """Measure compares and puts of fresh keys, then of the same keys at their next versions."""
    return _compared(replay, channels, there, count, EXPECTATIONS)


def _creates(replay: _Replay, channels: int, there: Target, count: int) -> Figures:
    """Measure compares and puts of fresh keys."""
    return _compared(replay, channels, there, count, EXPECTATIONS[:1])


def _compared(
    replay: _Replay, channels: int, there: Target, count: int, expectations: Sequence[int]
) -> Figures:
    made = work(there.root, _whole(count // len(expectations), _CONDITIONAL_PUTS))

    def requests(found: Sequence[Item], expected: int) -> list[bytes]:
        return [_compare_request(there, p, expected) for p in parts(found, _CONDITIONAL_PUTS)]

    # Requests in flight have no order, so all puts of one version end before those of the next.
    warm_up = [requests(made.warm_up, expected) for expected in expectations]
    timed = [requests(made.timed, expected) for expected in expectations]
    with _calls(there, channels) as calls:

        def replay_all(stages: Sequence[Sequence[bytes]]) -> None:
            for stage in stages:
                replay(calls, stage)

        replay_all(warm_up)
        with Stopwatch(there) as watch:
            replay_all(timed)
        return watch.figures(len(made.timed) * len(timed))


def _gets(replay: _Replay, channels: int, there: Target, count: int) -> Figures:
    """Measure ranges of one existing key each."""
    seeded = items(there.root, min(_whole(count, _RANGES), _whole(_SEEDED, _RANGES)))
    with there.open() as store:
        seed(store, seeded)
    pages = [_range_request(there, part) for part in parts(seeded, _RANGES)]
    requests = [*islice(cycle(pages), max(1, count // _RANGES))]
    with _calls(there, channels) as calls:
        replay(calls, pages)
        with Stopwatch(there) as watch:
            replay(calls, requests)
        return watch.figures(len(requests) * _RANGES)


def _whole(count: int, size: int) -> int:
    """Return ``count``, rounded to a multiple of ``size``, at least one."""
    return max(1, round(count / size)) * size


def _key(there: Target, path: str) -> bytes:
    return (there.url.prefix() + path).encode()


def _put_op(there: Target, item: Item) -> Any:
    put = messages.PutRequest(key=_key(there, item[0]), value=item[1])
    return messages.RequestOp(request_put=put)


def _put_request(there: Target, found: Sequence[Item]) -> bytes:
    request = messages.TxnRequest(success=[_put_op(there, item) for item in found])
    encoded: bytes = request.SerializeToString()
    return encoded


def _compare_request(there: Target, found: Sequence[Item], expected: int) -> bytes:
    # etcd counts versions from 1; a missing key has version 0.
    compares = [
        messages.Compare(
            key=_key(there, path),
            target=messages.Compare.VERSION,
            result=messages.Compare.EQUAL,
            version=expected + 1,
        )
        for path, _ in found
    ]
    puts = [_put_op(there, item) for item in found]
    encoded: bytes = messages.TxnRequest(compare=compares, success=puts).SerializeToString()
    return encoded


def _range_request(there: Target, found: Sequence[Item]) -> bytes:
    ranges = [
        messages.RequestOp(request_range=messages.RangeRequest(key=_key(there, path)))
        for path, _ in found
    ]
    encoded: bytes = messages.TxnRequest(success=ranges).SerializeToString()
    return encoded


@contextmanager
def _calls(there: Target, channels: int) -> Iterator[list[Any]]:
    """Yield a call for transactions, which takes bytes, on each of ``channels`` channels."""
    address = there.url.addresses(2379)[0]
    with ExitStack() as stack:
        calls = []
        for _ in range(channels):
            options = (("grpc.use_local_subchannel_pool", 1),)  # or they would share a connection
            channel = stack.enter_context(grpc.insecure_channel(address, options=options))
            calls.append(
                channel.unary_unary(
                    "/etcdserverpb.KV/Txn",
                    request_serializer=None,
                    response_deserializer=messages.TxnResponse.FromString,
                )
            )
        yield calls


def _by_threads(calls: Sequence[Any], requests: Sequence[bytes]) -> None:
    """Replay with blocking calls, one thread for each request in flight."""
    shared = iter(requests)

    def sender(call: Any) -> None:
        for request in shared:
            _check(call(request, timeout=_TIMEOUT))

    with ThreadPoolExecutor(_IN_FLIGHT) as pool:
        chosen = islice(cycle(calls), _IN_FLIGHT)
        senders = [pool.submit(sender, call) for call in chosen]
    for ended in senders:
        ended.result()


def _by_futures(calls: Sequence[Any], requests: Sequence[bytes]) -> None:
    """Replay from one thread with gRPC's own futures."""
    under_way: deque[Any] = deque()
    for call, request in zip(cycle(calls), requests, strict=False):
        under_way.append(call.future(request, timeout=_TIMEOUT))
        if len(under_way) == _IN_FLIGHT:
            _check(under_way.popleft().result())
    for future in under_way:
        _check(future.result())


def _check(response: Any) -> None:
    if not response.succeeded:
        raise WrongAnswerError("a transaction of a ceiling did not succeed")


def _ways(measure: Callable[[_Replay, int, Target, int], Figures]) -> Ceiling:
    return {
        "4 threads with blocking calls": partial(measure, _by_threads, 1),
        "4 threads with blocking calls, a channel each": partial(measure, _by_threads, 4),
        "4 futures of gRPC, one thread": partial(measure, _by_futures, 1),
    }


#: See :func:`.ceilings.ceilings`.
CEILINGS: Final[Mapping[str, Ceiling]] = {
    "puts": _ways(_puts),
    "conditional puts": _ways(_conditional_puts),
    "creates": _ways(_creates),
    "gets": _ways(_gets),
}
