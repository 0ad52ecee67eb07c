"""Other clients of the same stores, used as their users write it: the peers of a comparison.

A peer has the methods of a store that a load calls. They return objects with the methods of a
future. What a peer cannot tell, such as the version of a put in ``etcd3``, is ``None``; and what it
cannot do in one request, such as a conditional put in RocksDB, it does as one would by hand.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any, Final, NamedTuple, TypeAlias

from ...ops.errors import BadVersionError, StoreUnavailableError, TransactionRefusedError
from ...ops.operations import ABSENT, Check, Put
from ...stores.registry import parse_url
from ..baseline import etcd3_client, kazoo_client

__all__ = ["PEERS", "Peer", "peers_of"]

_Operations: TypeAlias = "Sequence[Check | Put]"

#: The writes that `kazoo-multi` puts into one request.
_GROUP: Final = 100
_LEASE_SECONDS: Final = 300


class _Stat(NamedTuple):
    version: int | None


class _Found(NamedTuple):
    value: bytes
    stat: _Stat


@dataclass(frozen=True, slots=True)
class Peer:
    """Another client.

    Attributes:
        name: its name on the command line.
        title: what it does, for reports.
        scheme: the kind of stores that it is a client of.
        open: opens it on the store of a URL, for paths below a folder.
        in_flight: its operations at a time; ``None`` for as many as the compared client has.
        threads: the threads that call it.
        shared: whether it works on the same data; otherwise it has its own beside them.
    """

    name: str
    title: str
    scheme: str
    open: Callable[[str, str], AbstractContextManager[Any]]
    in_flight: int | None
    threads: int = 1
    shared: bool = True


class _Done:
    """The outcome of a call that has returned, with the methods of a future."""

    __slots__ = ("_error", "_result")

    def __init__(self, call: Callable[[], Any]) -> None:
        self._result: Any = None
        self._error: Exception | None = None
        try:
            self._result = call()
        except (BadVersionError, TransactionRefusedError) as error:
            self._error = error
        except Exception as error:
            raise StoreUnavailableError(f"the peer failed: {error!r}") from error

    def done(self) -> bool:
        return True

    def cancel(self) -> bool:
        return False

    def exception(self, timeout: float | None = None) -> Exception | None:
        del timeout
        return self._error

    def result(self) -> Any:
        return self._result

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        callback(self)


class _Etcd3:
    """``etcd3``: each call is a request, and waits for its answer."""

    keeps_order = True

    def __init__(self, client: Any, prefix: str) -> None:
        self._client = client
        self._prefix = prefix
        # For its ephemeral values, which last as long as the lease.
        self._lease = client.lease(_LEASE_SECONDS)

    def get(self, path: str) -> _Done:
        def call() -> _Found | None:
            value, stat = self._client.get(self._prefix + path)
            return None if value is None else _Found(value, _Stat(stat.version - 1))

        return _Done(call)

    def put(
        self, path: str, value: bytes, expected: int | None = None, *, ephemeral: bool = False
    ) -> _Done:
        key = self._prefix + path
        lease = self._lease if ephemeral else None
        if expected is None:
            return _Done(lambda: self._client.put(key, value, lease) and _Stat(None))
        made = self._client.transactions.put(key, value, lease)
        return _Done(lambda: self._conditional(path, expected, made))

    def delete(self, path: str, expected: int) -> _Done:
        made = self._client.transactions.delete(self._prefix + path)
        return _Done(lambda: self._conditional(path, expected, made))

    def get_children(self, path: str) -> _Done:
        below = f"{self._prefix}{path}/"

        def call() -> list[str]:
            found = self._client.get_prefix(below, keys_only=True)
            return sorted({stat.key.decode()[len(below) :].split("/")[0] for _, stat in found})

        return _Done(call)

    def transaction(self, operations: _Operations) -> _Done:
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

        def call() -> list[_Stat]:
            applied, _ = self._client.transaction(compare=compares, success=puts, failure=[])
            if not applied:
                raise _refused(operations)
            return [_Stat(None)] * len(operations)

        return _Done(call)

    def close(self) -> None:
        self._lease.revoke()

    def _conditional(self, path: str, expected: int, made: Any) -> _Stat:
        key = self._prefix + path
        holds = self._client.transactions.version(key) == expected + 1
        applied, _ = self._client.transaction(compare=[holds], success=[made], failure=[])
        if not applied:
            raise _conflict(path)
        return _Stat(None)


class _Kazoo:
    """``kazoo``: each call is a request. Its answer is awaited at once, or asked for later."""

    # Requests on one connection are executed in the order of their submission.
    keeps_order = True

    def __init__(self, client: Any, prefix: str, *, waiting: bool) -> None:
        self._client = client
        self._prefix = prefix
        self._waiting = waiting
        self._folders: set[str] = set()

    def get(self, path: str) -> Any:
        return self._sent(path, self._client.get_async(self._prefix + path), _as_found)

    def put(
        self, path: str, value: bytes, expected: int | None = None, *, ephemeral: bool = False
    ) -> Any:
        if expected == ABSENT:
            return self.put_new(path, value, ephemeral=ephemeral)
        version = -1 if expected is None else expected
        return self._sent(
            path, self._client.set_async(self._prefix + path, value, version), _as_stat
        )

    def put_new(
        self, path: str, value: bytes, expected: int | None = None, *, ephemeral: bool = False
    ) -> Any:
        del expected
        self._make_folder(path)
        asked = self._client.create_async(
            self._prefix + path, value, ephemeral=ephemeral, include_data=True
        )
        return self._sent(path, asked, lambda made: _as_stat(made[1]))

    def delete(self, path: str, expected: int) -> Any:
        asked = self._client.delete_async(self._prefix + path, expected)
        return self._sent(path, asked, lambda _: None)

    def get_children(self, path: str) -> Any:
        return self._sent(path, self._client.get_children_async(self._prefix + path), sorted)

    def transaction(self, operations: _Operations) -> Any:
        multi = self._client.transaction()
        for one in operations:
            if isinstance(one, Check):
                if one.expected_version == ABSENT:
                    # ZooKeeper has no check that a node is missing, but this is one.
                    self._make_folder(one.path)
                    multi.create(self._prefix + one.path, b"")
                    multi.delete(self._prefix + one.path)
                else:
                    multi.check(self._prefix + one.path, one.expected_version)
            else:
                self._add(multi, one)
        asked = multi.commit_async()

        def result(answers: Sequence[Any]) -> list[_Stat]:
            if any(isinstance(answer, Exception) for answer in answers):
                raise _refused(operations)
            return [_Stat(None)] * len(operations)

        return self._sent(operations[0].path, asked, result)

    def close(self) -> None:
        """Nothing: the client ends with its context."""

    def _add(self, multi: Any, put: Put) -> None:
        if put.expected_version == ABSENT:
            self._make_folder(put.path)
            multi.create(self._prefix + put.path, put.value)
        else:
            version = -1 if put.expected_version is None else put.expected_version
            multi.set_data(self._prefix + put.path, put.value, version)

    def _make_folder(self, path: str) -> None:
        folder = path[: path.rindex("/")]
        if folder in self._folders:
            return
        self._folders.add(folder)
        above = folder[: folder.rindex("/")]
        if above not in self._folders:
            self._folders.add(above)
            self._client.ensure_path(self._prefix + above)
        # Nobody waits for it: it is executed before what follows, and it may be there already.
        self._client.create_async(self._prefix + folder)

    def _sent(self, path: str, asked: Any, convert: Callable[[Any], Any]) -> Any:
        found = _Asked(path, asked, convert)
        if self._waiting:
            found.exception()
        return found


class _Asked:
    """A result of kazoo with the methods of a future."""

    __slots__ = ("_asked", "_convert", "_path")

    def __init__(self, path: str, asked: Any, convert: Callable[[Any], Any]) -> None:
        self._path = path
        self._asked = asked
        self._convert = convert

    def done(self) -> bool:
        return bool(self._asked.ready())

    def cancel(self) -> bool:
        return False

    def exception(self, timeout: float | None = None) -> Exception | None:
        if timeout is not None and not self._asked.wait(timeout):
            raise TimeoutError
        try:
            self.result()
        except (BadVersionError, TransactionRefusedError, StoreUnavailableError) as error:
            return error
        return None

    def result(self) -> Any:
        errors = import_module("kazoo.exceptions")
        try:
            return self._convert(self._asked.get())
        except errors.NoNodeError as error:
            if self._convert is _as_found:
                return None
            raise _conflict(self._path) from error
        except (errors.NodeExistsError, errors.BadVersionError) as error:
            raise _conflict(self._path) from error
        except (errors.KazooException, TimeoutError) as error:
            raise StoreUnavailableError(f"the peer failed: {error!r}") from error

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        self._asked.rawlink(lambda _: callback(self))


def _as_found(answer: Any) -> _Found:
    value, stat = answer
    return _Found(value, _Stat(stat.version))


def _as_stat(stat: Any) -> _Stat:
    return _Stat(stat.version)


class _KazooMulti(_Kazoo):
    """``kazoo`` with writes gathered by hand: a multi for each hundred.

    A multi that one write aborts is sent again, write by write.
    """

    keeps_order = False

    def __init__(self, client: Any, prefix: str) -> None:
        super().__init__(client, prefix, waiting=False)
        self._group: _Group | None = None

    def put(
        self, path: str, value: bytes, expected: int | None = None, *, ephemeral: bool = False
    ) -> Any:
        if ephemeral:
            return super().put(path, value, expected, ephemeral=True)
        return self._gathered(
            lambda multi: self._add(multi, Put(path, value, expected)),
            partial(super().put, path, value, expected),
        )

    def put_new(
        self, path: str, value: bytes, expected: int | None = None, *, ephemeral: bool = False
    ) -> Any:
        del expected
        if ephemeral:
            return super().put_new(path, value, ephemeral=True)
        return self._gathered(
            lambda multi: self._add(multi, Put(path, value, ABSENT)),
            partial(super().put_new, path, value),
        )

    def delete(self, path: str, expected: int) -> Any:
        return self._gathered(
            lambda multi: multi.delete(self._prefix + path, expected),
            partial(super().delete, path, expected),
        )

    def _gathered(self, add: Callable[[Any], None], alone: Callable[[], Any]) -> _Member:
        group = self._group
        if group is None or group.sent or group.size == _GROUP:
            group = self._group = _Group(self._client.transaction())
        member = group.add(add, alone)
        if group.size == _GROUP:
            group.send()
        return member


class _Group:
    """A multi, while it is gathered and afterwards."""

    def __init__(self, multi: Any) -> None:
        self._multi = multi
        self._asked: Any = None
        self.size = 0

    @property
    def sent(self) -> bool:
        return self._asked is not None

    def add(self, add: Callable[[Any], None], alone: Callable[[], Any]) -> _Member:
        add(self._multi)
        self.size += 1
        return _Member(self, self.size - 1, alone)

    def send(self) -> Any:
        if self._asked is None:
            self._asked = self._multi.commit_async()
        return self._asked


class _Member:
    """One write of a group, with the methods of a future."""

    __slots__ = ("_alone", "_at", "_group")

    def __init__(self, group: _Group, at: int, alone: Callable[[], Any]) -> None:
        self._group = group
        self._at = at
        self._alone: Any = alone

    def done(self) -> bool:
        return bool(self._group.send().ready())

    def cancel(self) -> bool:
        return False

    def exception(self, timeout: float | None = None) -> Exception | None:
        asked = self._group.send()
        if timeout is not None and not asked.wait(timeout):
            raise TimeoutError
        try:
            self.result()
        except (BadVersionError, StoreUnavailableError) as error:
            return error
        return None

    def result(self) -> Any:
        errors = import_module("kazoo.exceptions")
        try:
            answers = self._group.send().get()
        except (errors.KazooException, TimeoutError) as error:
            raise StoreUnavailableError(f"the peer failed: {error!r}") from error
        if any(isinstance(answer, Exception) for answer in answers):
            # Once: the answer is asked for twice.
            if callable(self._alone):
                self._alone = self._alone()
            return self._alone.result()
        answer = answers[self._at]
        return _Stat(getattr(answer, "version", None))

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        self._group.send().rawlink(lambda _: callback(self))


class _Rocksdict:
    """``rocksdict``, with a version in each value, and a sync for each put.

    A directory of its own: the store's records have another form.
    """

    keeps_order = True

    def __init__(self, client: Any) -> None:
        rocksdict = import_module("rocksdict")
        self._client = client
        self._options = rocksdict.WriteOptions()
        self._options.sync = True
        self._batch = rocksdict.WriteBatch

    def load(self, puts: Iterable[Put]) -> None:
        """Put values, all at once."""
        batch = self._batch(raw_mode=True)
        for put in puts:
            batch.put(put.path.encode(), _record(0, put.value))
        self._client.write(batch, self._options)

    def get(self, path: str) -> _Done:
        return _Done(lambda: self._read(path))

    def put(
        self, path: str, value: bytes, expected: int | None = None, *, ephemeral: bool = False
    ) -> _Done:
        del ephemeral  # A session ends with its process, and this one has none.

        def call() -> _Stat:
            version = self._version(path)
            if expected not in (None, version):
                raise _conflict(path)
            self._client.put(path.encode(), _record(version + 1, value), self._options)
            return _Stat(version + 1)

        return _Done(call)

    def delete(self, path: str, expected: int) -> _Done:
        def call() -> None:
            if expected != self._version(path):
                raise _conflict(path)
            self._client.delete(path.encode(), self._options)

        return _Done(call)

    def get_children(self, path: str) -> _Done:
        below = f"{path}/".encode()

        def call() -> list[str]:
            names = set()
            for key in self._client.keys(from_key=below):
                if not key.startswith(below):
                    break
                names.add(key[len(below) :].split(b"/")[0].decode())
            return sorted(names)

        return _Done(call)

    def transaction(self, operations: _Operations) -> _Done:
        def call() -> list[_Stat]:
            batch = self._batch(raw_mode=True)
            stats = []
            for one in operations:
                version = self._version(one.path)
                if one.expected_version not in (None, version):
                    raise _refused(operations)
                if isinstance(one, Put):
                    batch.put(one.path.encode(), _record(version + 1, one.value))
                stats.append(_Stat(version + 1))
            self._client.write(batch, self._options)
            return stats

        return _Done(call)

    def close(self) -> None:
        """Nothing: the client ends with its context."""

    def _read(self, path: str) -> _Found | None:
        record = self._client.get(path.encode())
        if record is None:
            return None
        return _Found(record[4:], _Stat(int.from_bytes(record[:4], "big")))

    def _version(self, path: str) -> int:
        found = self._read(path)
        if found is None:
            return ABSENT
        assert found.stat.version is not None
        return found.stat.version


def _record(version: int, value: bytes) -> bytes:
    return version.to_bytes(4, "big") + value


def _refused(operations: _Operations) -> TransactionRefusedError:
    path = operations[0].path
    return TransactionRefusedError("a version does not hold", path=path, error=_conflict(path))


def _conflict(path: str) -> BadVersionError:
    return BadVersionError("the version does not hold", path=path)


@contextmanager
def _open_etcd3(url: str, root: str) -> Iterator[_Etcd3]:
    del root
    parsed = parse_url(url)
    with etcd3_client(parsed) as client:
        peer = _Etcd3(client, parsed.prefix())
        try:
            yield peer
        finally:
            peer.close()


@contextmanager
def _open_kazoo(url: str, root: str, *, waiting: bool) -> Iterator[_Kazoo]:
    del root
    parsed = parse_url(url)
    with kazoo_client(parsed) as client:
        yield _Kazoo(client, parsed.prefix(), waiting=waiting)


@contextmanager
def _open_kazoo_multi(url: str, root: str) -> Iterator[_KazooMulti]:
    del root
    parsed = parse_url(url)
    with kazoo_client(parsed) as client:
        yield _KazooMulti(client, parsed.prefix())


@contextmanager
def _open_rocksdict(url: str, root: str) -> Iterator[_Rocksdict]:
    # Beside the store's own directory, and so on the same disk.
    name = root.replace("/", "-")
    directory = f"{parse_url(url).path.rstrip('/')}.plain{name}"
    os.makedirs(os.path.dirname(directory), exist_ok=True)
    rocksdict = import_module("rocksdict")
    try:
        client = rocksdict.Rdict(directory, rocksdict.Options(raw_mode=True))
        try:
            yield _Rocksdict(client)
        finally:
            client.close()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


_ALL: Final = (
    Peer("etcd3", "etcd3, one by one", "etcd", _open_etcd3, 1),
    Peer("etcd3-64", "etcd3, 64 threads", "etcd", _open_etcd3, 64, threads=64),
    Peer("kazoo", "kazoo, one by one", "zookeeper", partial(_open_kazoo, waiting=True), 1),
    Peer("kazoo-async", "kazoo, async", "zookeeper", partial(_open_kazoo, waiting=False), None),
    Peer("kazoo-multi", "kazoo, multis by hand", "zookeeper", _open_kazoo_multi, None),
    Peer("rocksdict", "rocksdict with sync", "rocksdb", _open_rocksdict, 1, shared=False),
)

#: The peers by their names.
PEERS: Final[Mapping[str, Peer]] = {peer.name: peer for peer in _ALL}


def peers_of(scheme: str) -> list[Peer]:
    """Return the peers for a kind of store."""
    return [peer for peer in _ALL if peer.scheme == scheme]
