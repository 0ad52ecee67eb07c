"""Opens a back end on ZooKeeper, and calls it as the engine does."""

from __future__ import annotations

from typing import Any, NamedTuple

from batchkeeper.ops import Operation, Put
from batchkeeper.stores import ConnectOptions, parse_url
from batchkeeper.stores.zookeeper import connect
from batchkeeper.stores.zookeeper.backend import ZooKeeperBackend

from ..foreign import end_zookeeper_session


def connected(url: str, **options: Any) -> ZooKeeperBackend:
    backend = connect(parse_url(url), ConnectOptions(**options))
    assert isinstance(backend, ZooKeeperBackend)
    return backend


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
    number = backend._connection.sessions if session is None else session
    return InSession(op.kind, op.path, op.value, op.expected_version, op.options, number)


def ephemeral(
    backend: ZooKeeperBackend, path: str, value: bytes = b"", *, sequential: bool = False
) -> Any:
    return in_session(backend, Put(path, value, ephemeral=True, sequential=sequential))


def end_session(backend: ZooKeeperBackend, url: str) -> None:
    """Let the server end the session of a back end."""
    end_zookeeper_session(parse_url(url).hosts[0], backend._connection._client)
