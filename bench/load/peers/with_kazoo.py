"""``kazoo``, one by one, asynchronous, and with multis by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from importlib import import_module
from typing import Any, Final

from ....ops.errors import BadVersionError, StoreUnavailableError, TransactionRefusedError
from ....ops.operations import ABSENT, Check, Put
from ....stores.registry import parse_url
from .clients import kazoo_client
from .outcomes import Operations, PeerFound, PeerStat, conflict, refused

#: The number of writes gathered into one request by hand.
_GROUP: Final = 100


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
            self._make_folder(path)
            asked = self._client.create_async(
                self._prefix + path, value, ephemeral=ephemeral, include_data=True
            )
            return self._sent(path, asked, lambda made: _as_stat(made[1]))
        version = -1 if expected is None else expected
        asked = self._client.set_async(self._prefix + path, value, version)
        return self._sent(path, asked, _as_stat)

    def put_new(self, path: str, value: bytes, expected: int | None = None) -> Any:
        del expected
        return self.put(path, value, ABSENT)

    def delete(self, path: str, expected: int) -> Any:
        asked = self._client.delete_async(self._prefix + path, expected)
        return self._sent(path, asked, lambda _: None)

    def get_children(self, path: str) -> Any:
        return self._sent(path, self._client.get_children_async(self._prefix + path), sorted)

    def transaction(self, operations: Operations) -> Any:
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

        def result(answers: Sequence[Any]) -> list[PeerStat]:
            if any(isinstance(answer, Exception) for answer in answers):
                raise refused(operations)
            return [PeerStat(None)] * len(operations)

        return self._sent(operations[0].path, asked, result)

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
        found = _Answer(path, lambda: asked, convert)
        if self._waiting:
            found.exception()
        return found


class _Answer:
    """What kazoo answers, with the methods of a future.

    Args:
        path: the path.
        asked: returns the result of kazoo that it waits for.
        convert: makes the answer of what kazoo returns.
    """

    __slots__ = ("_asked", "_convert", "_path")

    def __init__(self, path: str, asked: Callable[[], Any], convert: Callable[[Any], Any]) -> None:
        self._path = path
        self._asked = asked
        self._convert = convert

    def result(self) -> Any:
        errors = import_module("kazoo.exceptions")
        try:
            return self._convert(self._asked().get())
        except errors.NoNodeError as error:
            if self._convert is _as_found:
                return None
            raise conflict(self._path) from error
        except (errors.NodeExistsError, errors.BadVersionError) as error:
            raise conflict(self._path) from error
        except (errors.KazooException, TimeoutError) as error:
            raise StoreUnavailableError(f"the peer failed: {error!r}") from error

    def done(self) -> bool:
        return bool(self._asked().ready())

    def cancel(self) -> bool:
        return False

    def exception(self, timeout: float | None = None) -> Exception | None:
        if timeout is not None and not self._asked().wait(timeout):
            raise TimeoutError
        try:
            self.result()
        except (BadVersionError, TransactionRefusedError, StoreUnavailableError) as error:
            return error
        return None

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        self._asked().rawlink(lambda _: callback(self))


def _as_found(answer: Any) -> PeerFound:
    value, stat = answer
    return PeerFound(value, PeerStat(stat.version))


def _as_stat(stat: Any) -> PeerStat:
    return PeerStat(stat.version)


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
        alone = partial(super().put, path, value, expected, ephemeral=ephemeral)
        if ephemeral:
            return alone()
        put = Put(path, value, expected)
        return self._gathered(path, lambda multi: self._add(multi, put), alone)

    def delete(self, path: str, expected: int) -> Any:
        return self._gathered(
            path,
            lambda multi: multi.delete(self._prefix + path, expected),
            partial(super().delete, path, expected),
        )

    def _gathered(self, path: str, add: Callable[[Any], None], alone: Callable[[], Any]) -> _Answer:
        group = self._group
        if group is None or group.asked is not None:
            group = self._group = _Group(self._client.transaction())
        add(group.multi)
        at = group.size
        group.size += 1
        if group.size == _GROUP:
            group.send()
        again = cache(alone)  # The answer is asked for twice.

        def convert(answers: Sequence[Any]) -> Any:
            if any(isinstance(answer, Exception) for answer in answers):
                return again().result()
            return PeerStat(getattr(answers[at], "version", None))

        return _Answer(path, group.send, convert)


class _Group:
    """A multi, while it is gathered and afterwards."""

    def __init__(self, multi: Any) -> None:
        self.multi = multi
        self.asked: Any = None
        self.size = 0

    def send(self) -> Any:
        if self.asked is None:
            self.asked = self.multi.commit_async()
        return self.asked


@contextmanager
def open_kazoo(url: str, root: str, *, waiting: bool) -> Iterator[_Kazoo]:
    del root
    parsed = parse_url(url)
    with kazoo_client(parsed) as client:
        yield _Kazoo(client, parsed.prefix(), waiting=waiting)


@contextmanager
def open_kazoo_multi(url: str, root: str) -> Iterator[_KazooMulti]:
    del root
    parsed = parse_url(url)
    with kazoo_client(parsed) as client:
        yield _KazooMulti(client, parsed.prefix())
