"""Opens a back end on etcd, and records its calls."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any, TypeAlias

import pytest

from batchkeeper.ops import AuthenticationError
from batchkeeper.stores import parse_url
from batchkeeper.stores.etcd.backend import EtcdBackend
from batchkeeper.stores.etcd.wire import members
from batchkeeper.stores.etcd.wire.connection import EtcdConnection
from batchkeeper.stores.etcd.wire.errors import EtcdRefusedError, Reason
from batchkeeper.stores.etcd.wire.members import Credentials

from ...waiting import soon

Pair: TypeAlias = tuple[EtcdBackend, EtcdConnection]


@contextmanager
def recorded(url: str, *, flat_only: bool = False) -> Iterator[Pair]:
    """Open a back end that nests transactions if it can, or with ``flat_only`` never.

    All its requests but those of watches and keep-alives pass through ``call`` of the connection,
    where a test records or loses them.
    """
    parsed = parse_url(url)
    connection = EtcdConnection(parsed.addresses(2379), Credentials())
    with closing(EtcdBackend(connection, parsed.prefix(), soon(), flat_only=flat_only)) as backend:
        yield backend, connection


@contextmanager
def opened(url: str, *, flat_only: bool = False) -> Iterator[EtcdBackend]:
    """Open a back end as ``recorded`` does."""
    with recorded(url, flat_only=flat_only) as (backend, _):
        yield backend


def calls_to_etcd(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list to which each call adds the name of its method."""
    calls: list[str] = []
    call = EtcdConnection.call

    def counting(self: EtcdConnection, method: Any, *args: Any, **more: Any) -> Any:
        calls.append(method)
        return call(self, method, *args, **more)

    monkeypatch.setattr(EtcdConnection, "call", counting)
    return calls


def accept_answers(monkeypatch: pytest.MonkeyPatch, bytes_: int) -> None:
    """Let connections that are opened from now on accept answers of so many bytes only."""
    options = dict(members._CHANNEL_OPTIONS) | {"grpc.max_receive_message_length": bytes_}
    monkeypatch.setattr(members, "_CHANNEL_OPTIONS", tuple(options.items()))


def without_write_ids(connection: EtcdConnection) -> None:
    """Make a client one that may not write write ids: it cannot settle anything."""
    call = connection.call

    def refuse(method: Any, *args: Any, **more: Any) -> Any:
        if method == "grant":
            raise EtcdRefusedError(AuthenticationError("permission denied"), Reason.NOT_PERMITTED)
        return call(method, *args, **more)

    connection.call = refuse  # type: ignore[method-assign]
