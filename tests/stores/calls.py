"""Calls of back ends, as the engine makes them, and their answers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from struct import unpack_from
from typing import Any, NamedTuple

from batchkeeper.ops import Operation
from batchkeeper.stores import Backend
from batchkeeper.stores.zookeeper.backend import ZooKeeperBackend
from batchkeeper.stores.zookeeper.wire.jute import EMPTY_MULTI, MULTI

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
    zookeeper = isinstance(backend, ZooKeeperBackend)
    answered = _lose_after_a_multi(line) if zookeeper else _lose_from_now_on(line)
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(backend.write, operations, soon(within))
        try:
            until(answered, "no answer to the write was lost")
            meanwhile()
        finally:
            line.on_request = lambda: None
            line.restore()  # In any case, or the write would wait for ever.
        return writing.result(PATIENCE)


def _lose_from_now_on(line: Proxy) -> Callable[[], bool]:
    """Lose etcd's answers; return a function that says whether one of them was to a call.

    A server also answers keep-alives, which the client sends at any time. HTTP/2: length, type,
    flags and stream of each frame. Only a call that is not a stream ends, with headers (1) that end
    its stream (1).
    """
    line.lost = b""
    line.swallows = True
    return lambda: any(frame[3] == 1 and frame[4] & 1 for frame in _packets(line.lost, 9, 3))


def _lose_after_a_multi(line: Proxy) -> Callable[[], bool]:
    """Lose ZooKeeper's answers from the next write on; return whether all writes are answered."""
    line.lost = b""
    before = len(requests_to_zookeeper(line))

    def writes() -> set[int]:
        later = requests_to_zookeeper(line)[before:]
        return {r.xid for r in later if r.opcode == MULTI and r.body != EMPTY_MULTI}

    def lose() -> None:
        line.swallows = line.swallows or bool(writes())

    def answered() -> bool:
        answers = {unpack_from("!4xi", packet)[0] for packet in _packets(line.lost, 4, 4)}
        return bool(found := writes()) and answers >= found

    line.on_request = lose
    return answered


class Request(NamedTuple):
    """A request to ZooKeeper: its number on the connection, opcode and body."""

    xid: int
    opcode: int
    body: bytes


def requests_to_zookeeper(line: Proxy) -> list[Request]:
    """Return the requests that have come to a line, without greetings, pings and logins."""
    return [
        Request(xid, opcode, packet[12:])
        for sent in list(line.sent)
        for packet in [*_packets(bytes(sent), 4, 4)][1:]
        for xid, opcode in [unpack_from(">4xii", packet)]
        if xid > 0
    ]


def await_request(line: Proxy, path: str, *, write: bool) -> None:
    """Wait until a request with a path has come to a line, whether or not it goes on."""
    # A slot has a random name, which may begin like the path.
    wanted = re.compile(rb"(?<!/slots)" + re.escape(path.encode()))
    until(
        lambda: any(
            wanted.search(request.body) and (request.opcode == MULTI) == write
            for request in requests_to_zookeeper(line)
        )
    )


def _packets(data: bytes, head: int, digits: int) -> Iterator[bytes]:
    """Yield the whole packets in some bytes, each of which begins with its length."""
    start = 0
    while start + head <= len(data):
        end = start + head + int.from_bytes(data[start : start + digits], "big")
        if end > len(data):
            return
        yield data[start:end]
        start = end
