"""Opens a back end on etcd, and records its calls."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest

from batchkeeper.stores import parse_url
from batchkeeper.stores.etcd.backend import EtcdBackend
from batchkeeper.stores.etcd.connection import EtcdConnection
from batchkeeper.stores.etcd.members import Credentials

from ...waiting import soon


@contextmanager
def opened(url: str, *, flat_only: bool = False) -> Iterator[EtcdBackend]:
    """Open a back end that nests transactions if it can, or with ``flat_only`` never."""
    parsed = parse_url(url)
    connection = EtcdConnection(parsed.addresses(2379), Credentials())
    with closing(EtcdBackend(connection, parsed.prefix(), soon(), flat_only=flat_only)) as backend:
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
