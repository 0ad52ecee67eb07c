"""Opens a back end on ZooKeeper, and calls it as the engine does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from batchkeeper.ops import Operation, Put
from batchkeeper.stores import ConnectOptions, parse_url
from batchkeeper.stores.zookeeper import connect
from batchkeeper.stores.zookeeper.backend import ZooKeeperBackend
from batchkeeper.stores.zookeeper.session.connection import ZooKeeperConnection

from ..foreign import end_zookeeper_session

#: The opcode and the body of each request.
Requests = Sequence[tuple[int, bytes]]


def connected(url: str, **options: Any) -> ZooKeeperBackend:
    backend, _ = recorded(url, **options)
    return backend


class RecordingConnection(ZooKeeperConnection):
    """Keeps the packets with events of watches, after they were passed on.

    A test records or loses requests where all of them pass: by another ``begin``.
    """

    def __init__(self, *args: Any) -> None:
        self.events: list[bytes] = []
        super().__init__(*args)

    def receive_events(self, receiver: Callable[[list[bytes]], None]) -> None:
        def receive(packets: list[bytes]) -> None:
            receiver(packets)
            self.events += packets

        super().receive_events(receive)


def recorded(url: str, **options: Any) -> tuple[ZooKeeperBackend, RecordingConnection]:
    """Open a back end, and return it with its connection."""
    opened: list[RecordingConnection] = []

    def open_connection(*args: Any) -> ZooKeeperConnection:
        opened.append(RecordingConnection(*args))
        return opened[0]

    backend = connect(parse_url(url), ConnectOptions(**options), open_connection)
    assert isinstance(backend, ZooKeeperBackend)
    return backend, opened[0]


def before_exchange(connection: ZooKeeperConnection, *actions: Callable[[], object]) -> None:
    """Run one of the actions before each of the next exchanges with the server."""
    begin = connection.begin
    left = iter(actions)

    def act_and_begin(*args: Any, **options: Any) -> Any:
        next(left, lambda: None)()
        return begin(*args, **options)

    connection.begin = act_and_begin  # type: ignore[method-assign]


def bodies_of(connection: ZooKeeperConnection, opcode: int) -> list[bytes]:
    """Return a list to which each request with an opcode will add its body."""
    begin = connection.begin
    bodies: list[bytes] = []

    def note_and_begin(requests: Requests, *args: Any, **options: Any) -> Any:
        bodies.extend(body for code, body in requests if code == opcode)
        return begin(requests, *args, **options)

    connection.begin = note_and_begin  # type: ignore[method-assign]
    return bodies


class InSession(NamedTuple):
    """An operation of a client's session, as the engine hands it to a back end."""

    kind: Any
    path: str
    value: bytes | None
    expected_version: int | None
    options: Any
    session: int


def in_session(backend: ZooKeeperBackend, op: Operation, session: int | None = None) -> Any:
    """Return an operation of the session of now, or of the session with a number."""
    number = backend.session.number if session is None else session
    return InSession(op.kind, op.path, op.value, op.expected_version, op.options, number)


def ephemeral(
    backend: ZooKeeperBackend, path: str, value: bytes = b"", *, sequential: bool = False
) -> Any:
    return in_session(backend, Put(path, value, ephemeral=True, sequential=sequential))


def end_session(backend: ZooKeeperBackend, url: str) -> None:
    """Let the server end the session of a back end."""
    end_zookeeper_session(parse_url(url).hosts[0], backend.session.id)
