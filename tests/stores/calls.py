"""Calls of back ends, as the engine makes them, and their answers."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from batchkeeper.ops import Operation
from batchkeeper.stores import Backend
from batchkeeper.stores.zookeeper.backend import ZooKeeperBackend
from batchkeeper.stores.zookeeper.exchanges import Exchange, TimedExchange

from ..proxy import Proxy
from ..waiting import PATIENCE, soon, until


def write(backend: Backend, *operations: Operation) -> list[Any]:
    return list(backend.write(operations, soon()))


def read(backend: Backend, *operations: Operation) -> list[Any]:
    return list(backend.read(operations, soon()))


def kinds(answers: Iterable[Any]) -> list[type]:
    """Return the type of each answer."""
    return [type(answer) for answer in answers]


def lose_the_answer(
    backend: Backend,
    line: Proxy,
    operations: Sequence[Operation],
    meanwhile: Callable[[], object] = lambda: None,
    within: float = PATIENCE,
) -> Any:
    """Let a server execute a write, lose its answer, cut the connection; return the result."""
    with ThreadPoolExecutor(1) as pool:
        line.lost = b""
        line.swallows = True
        writing = pool.submit(backend.write, operations, soon(within))
        try:
            until(lambda: _answered(backend, line.lost), "no answer to the write was lost")
            meanwhile()
        finally:
            line.restore()  # In any case, or the write would wait for ever.
        return writing.result(PATIENCE)


def _answered(backend: Backend, lost: bytes) -> bool:
    """Say whether the answers that were lost include that to the request of a write.

    A server also answers keep-alives, which the client sends at any time.
    """
    if not isinstance(backend, ZooKeeperBackend):
        # HTTP/2: length, type, flags and stream of each frame. Only a call that is not a stream
        # ends, with headers (1) that end its stream (1).
        return any(kind == 1 and flags & 1 for kind, flags in _packets(lost, ">xxxBBxxxx", 9, 3))
    answered = {xid for (xid,) in _packets(lost, ">4xi", 4, 4)}
    pending = [
        xid
        for request, _, xid in list(backend._connection._client._pending)
        if isinstance(request, Exchange) and not isinstance(request, TimedExchange)
    ]
    return bool(pending) and answered.issuperset(pending)


def _packets(data: bytes, form: str, head: int, digits: int) -> Iterator[tuple[Any, ...]]:
    """Yield fields of the packets in some bytes, each of which begins with its length."""
    size = struct.calcsize(form)
    while len(data) >= size:
        yield struct.unpack_from(form, data)
        data = data[head + int.from_bytes(data[:digits], "big") :]
