"""``rocksdict``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from ....ops.operations import ABSENT, Put
from ....stores.registry import parse_url
from .clients import rocksdict_client, synced
from .outcomes import Done, Operations, PeerFound, PeerStat, conflict, refused


class _Rocksdict:
    """``rocksdict``, with a version in each value, and a sync for each put.

    A directory of its own: the store's records have another form.
    """

    keeps_order = True

    def __init__(self, client: Any) -> None:
        self._client = client
        self._options = synced()
        self._batch = import_module("rocksdict").WriteBatch

    def load(self, puts: Iterable[Put]) -> None:
        """Put values, all at once."""
        batch = self._batch(raw_mode=True)
        for put in puts:
            batch.put(put.path.encode(), _record(0, put.value))
        self._client.write(batch, self._options)

    def get(self, path: str) -> Done:
        return Done(lambda: self._read(path))

    def put(
        self, path: str, value: bytes, expected: int | None = None, *, ephemeral: bool = False
    ) -> Done:
        del ephemeral  # A session ends with its process, and this one has none.

        def call() -> PeerStat:
            version = self._version(path)
            if expected not in (None, version):
                raise conflict(path)
            self._client.put(path.encode(), _record(version + 1, value), self._options)
            return PeerStat(version + 1)

        return Done(call)

    def put_new(self, path: str, value: bytes, expected: int | None = None) -> Done:
        """Put a value at a path that has none."""
        del expected

        def call() -> PeerStat:
            self._client.put(path.encode(), _record(0, value), self._options)
            return PeerStat(0)

        return Done(call)

    def delete(self, path: str, expected: int) -> Done:
        def call() -> None:
            if expected != self._version(path):
                raise conflict(path)
            self._client.delete(path.encode(), self._options)

        return Done(call)

    def get_children(self, path: str) -> Done:
        below = f"{path}/".encode()

        def call() -> list[str]:
            names = set()
            for key in self._client.keys(from_key=below):
                if not key.startswith(below):
                    break
                names.add(key[len(below) :].split(b"/")[0].decode())
            return sorted(names)

        return Done(call)

    def transaction(self, operations: Operations) -> Done:
        def call() -> list[PeerStat]:
            batch = self._batch(raw_mode=True)
            stats = []
            for one in operations:
                version = self._version(one.path)
                if one.expected_version not in (None, version):
                    raise refused(operations)
                if isinstance(one, Put):
                    batch.put(one.path.encode(), _record(version + 1, one.value))
                stats.append(PeerStat(version + 1))
            self._client.write(batch, self._options)
            return stats

        return Done(call)

    def _read(self, path: str) -> PeerFound | None:
        record = self._client.get(path.encode())
        if record is None:
            return None
        return PeerFound(record[4:], PeerStat(int.from_bytes(record[:4], "big")))

    def _version(self, path: str) -> int:
        found = self._read(path)
        if found is None:
            return ABSENT
        assert found.stat.version is not None
        return found.stat.version


def _record(version: int, value: bytes) -> bytes:
    return version.to_bytes(4, "big") + value


@contextmanager
def open_rocksdict(url: str, root: str) -> Iterator[_Rocksdict]:
    with rocksdict_client(parse_url(url), root.strip("/").replace("/", "-")) as client:
        yield _Rocksdict(client)
