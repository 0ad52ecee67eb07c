"""``etcd3``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from ....ops.operations import Put
from ....stores.registry import parse_url
from .clients import etcd3_client
from .outcomes import Done, Operations, PeerFound, PeerStat, conflict, refused

_LEASE_SECONDS: Final = 300


class _Etcd3:
    """``etcd3``: each call is a request, and waits for its answer."""

    keeps_order = True

    def __init__(self, client: Any, prefix: str, lease: Any) -> None:
        self._client = client
        self._prefix = prefix
        self._lease = lease  # Its ephemeral values last as long.

    def get(self, path: str) -> Done:
        def call() -> PeerFound | None:
            value, stat = self._client.get(self._prefix + path)
            return None if value is None else PeerFound(value, PeerStat(stat.version - 1))

        return Done(call)

    def put(
        self, path: str, value: bytes, expected: int | None = None, *, ephemeral: bool = False
    ) -> Done:
        key = self._prefix + path
        lease = self._lease if ephemeral else None
        if expected is None:
            return Done(lambda: self._client.put(key, value, lease) and PeerStat(None))
        made = self._client.transactions.put(key, value, lease)
        return Done(lambda: self._conditional(path, expected, made))

    def delete(self, path: str, expected: int) -> Done:
        made = self._client.transactions.delete(self._prefix + path)
        return Done(lambda: self._conditional(path, expected, made))

    def get_children(self, path: str) -> Done:
        below = f"{self._prefix}{path}/"

        def call() -> list[str]:
            found = self._client.get_prefix(below, keys_only=True)
            return sorted({stat.key.decode()[len(below) :].split("/")[0] for _, stat in found})

        return Done(call)

    def transaction(self, operations: Operations) -> Done:
        transactions = self._client.transactions
        compares = [
            transactions.version(self._prefix + one.path) == one.expected_version + 1
            for one in operations
            if one.expected_version is not None
        ]
        puts = [
            transactions.put(self._prefix + one.path, one.value)
            for one in operations
            if isinstance(one, Put)
        ]

        def call() -> list[PeerStat]:
            applied, _ = self._client.transaction(compare=compares, success=puts, failure=[])
            if not applied:
                raise refused(operations)
            return [PeerStat(None)] * len(operations)

        return Done(call)

    def _conditional(self, path: str, expected: int, made: Any) -> PeerStat:
        key = self._prefix + path
        holds = self._client.transactions.version(key) == expected + 1
        applied, _ = self._client.transaction(compare=[holds], success=[made], failure=[])
        if not applied:
            raise conflict(path)
        return PeerStat(None)


@contextmanager
def open_etcd3(url: str, root: str) -> Iterator[_Etcd3]:
    del root
    parsed = parse_url(url)
    with etcd3_client(parsed) as client:
        lease = client.lease(_LEASE_SECONDS)
        try:
            yield _Etcd3(client, parsed.prefix(), lease)
        finally:
            lease.revoke()
