"""Views, and watches with values, on real servers: etcd sends values, ZooKeeper's are read."""

from __future__ import annotations

import asyncio
import itertools
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any, Final

import grpc
import pytest

import batchkeeper as bk
from batchkeeper.batching import feeds
from batchkeeper.stores.etcd.wire.protos import grpc_stubs, messages
from batchkeeper.testing.faults import FaultInjector
from batchkeeper.testing.servers import EtcdServer, LocalServer, ZooKeeperServer

from ..proxy import Proxy
from ..waiting import PATIENCE, result, soon, until
from .etcd.live import other_client
from .secured import LIMITED, ROOT, secured

both: Final = pytest.mark.parametrize("kind", ["etcd", "zookeeper"])
pytestmark = pytest.mark.server


def contents(store: bk.MetadataStore, prefix: str) -> dict[str, bk.GetResult]:
    return {path: bk.GetResult(value, stat) for path, value, stat in store.scan(prefix)}


def values(view: bk.View[bytes]) -> dict[str, bytes]:
    return {path: found.value for path, found in view.items()}


def follows(view: bk.View[bytes], store: bk.MetadataStore) -> None:
    """Wait until a view equals the store, which nobody changes any more."""
    expected = contents(store, view.prefix)
    until(lambda: dict(view.items()) == expected, "the view does not follow")
    until(lambda: view.lag == 0.0)


@both
def test_values_with_events(kind: str, fresh_url: Callable[[str], str]) -> None:
    """Each event of a put has a value at least as new as the event, and its stat."""
    with bk.open_store(fresh_url(kind)) as store, store.watch("/a", values=True) as watch:
        result(store.put("/a/b", b"1"))
        result(store.put("/a/b", b"2"))
        result(store.delete("/a/b"))
        stat = result(store.put("/a/e", b"3", ephemeral=True))
        events: list[bk.WatchEvent] = []
        while len(events) < 4:
            events += watch.next_events(PATIENCE)
        assert [event.kind for event in events] == ["created", "modified", "deleted", "created"]
        assert events[2].found is None
        assert events[3].found == (b"3", stat)
        seen = [event.value for event in events[:2]]
        assert seen == [b"1", b"2"] if kind == "etcd" else {*seen} <= {b"1", b"2", None}
        assert watch.lag > 0.0  # The reader may still work on what it has taken.
        assert (watch.next_events(0), watch.lag) == ([], 0.0)


@both
def test_values_are_bounded(
    kind: str, fresh_url: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A watch that nobody reads holds so many bytes of values, and says that some are gone."""
    monkeypatch.setattr(feeds, "MAX_BYTES", 250)
    with bk.open_store(fresh_url(kind)) as store, store.watch("/", values=True) as watch:
        for name in "abcd":
            result(store.put(f"/{name}", b"x" * 100))
        until(lambda: watch._feed.received == 4)
        assert watch.lag > 0
        assert [event.path for event in watch.next_events(0)] == ["/", "/c", "/d"]
        result(store.put("/e", b"x" * 100))
        assert [event.kind for event in watch.next_events(PATIENCE)] == ["created"]


@both
def test_a_view(kind: str, fresh_url: Callable[[str], str]) -> None:
    """It is complete, follows every change, and tells listeners the old and the new value."""
    told: dict[str, list[int | None]] = {}

    def tell(path: str, old: Any, new: Any) -> None:
        before = told.setdefault(path, [None])
        assert before[-1] == (old and old.value)
        before.append(new and new.value)

    with bk.open_store(fresh_url(kind)) as store:
        result(store.put("/a/b/c", b"1"))
        result(store.put("/ab", b"not below"))
        with store.view("/a", bk.Serde(lambda n: b"%d" % n, int)) as view:
            assert dict(view.items()) == {"/a/b/c": (1, result(store.get("/a/b/c")).stat)}
            assert view.children("/a") == ["b"]
            listener = view.add_listener(tell, replay=True)
            result(store.put("/a/b/c", b"2"))
            result(store.put("/a/e", b"3", ephemeral=True))
            result(store.delete("/a/b/c"))
            until(lambda: [path[-1] for path in told.values()] == [None, 3])
            assert told["/a/b/c"][:2] == [None, 1]
            assert ("/a/b/c" in view, view.get("/a/b/c"), len(view)) == (False, None, 1)
            assert (view["/a/e"].value, view["/a/e"].stat.owned) == (3, True)
            assert view.children("/a") == ["e"]
            before = view.snapshot()
            listener.close()
            stat = result(store.put("/a/e", b"no number"))
            until(lambda: view._table.entries["/a/e"][0] == b"no number")
            with pytest.raises(bk.ValueDecodeError):
                view["/a/e"]
            assert before["/a/e"].value == 3
            assert view.revision == (stat.revision if kind == "etcd" else None)
        assert store.metrics().watches == 0
        with pytest.raises(bk.StoreClosedError):
            view["/a/e"]


def test_a_slow_listener(fresh_url: Callable[[str], str]) -> None:
    """Changes of one path become one while it is busy; what came and went is not told."""
    told: list[Any] = []
    goes_on = threading.Event()

    def tell(path: str, old: Any, new: Any) -> None:
        told.append((path, old and old.value, new and new.value))
        assert goes_on.wait(PATIENCE)

    with bk.open_store(fresh_url("etcd")) as store, store.view("/") as view:
        listener = view.add_listener(tell)
        result(store.put("/first", b"0"))
        until(lambda: told)
        for value in (b"1", b"2", b"3"):
            result(store.put("/a", value))
        result(store.put("/gone", b""))
        result(store.delete("/gone"))
        result(store.put("/last", b"9"))
        until(lambda: "/last" in view)
        assert listener._changes.keys() == {"/a", "/last"}
        goes_on.set()
        until(lambda: told[-1][0] == "/last")
        assert told == [("/first", None, b"0"), ("/a", None, b"3"), ("/last", None, b"9")]


class Writer:
    """Writes two paths in one transaction, and many others, until it is closed."""

    pair: Final = ("/a/1", "/a/b/2")

    def __init__(self, store: bk.MetadataStore) -> None:
        self._store = store
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._write)
        self._put(0)
        self._thread.start()

    def _put(self, number: int) -> None:
        puts = [bk.Put(path, b"%d" % number) for path in self.pair]
        others = [bk.Put(f"/a/n/{number % 50}", b""), bk.Delete(f"/a/n/{number % 7}")]
        self._store.apply(others)
        self._store.apply([bk.Transaction(puts)])

    def _write(self) -> None:
        for number in itertools.count(1):
            if self._ended.is_set():
                return
            self._put(number)

    def close(self) -> None:
        self._ended.set()
        self._thread.join()


@both
def test_failures(kind: str, request: pytest.FixtureRequest, proxy: Callable[[str], Proxy]) -> None:
    """Cut connections, a killed server, a lost session: nothing is missed, nothing mixed up.

    On etcd, no snapshot has only a part of a transaction.
    """
    server: LocalServer = request.getfixturevalue(f"own_{kind}")()
    line = proxy(server.address)
    wrong: list[Any] = []
    told: dict[str, bytes | None] = {}

    def tell(path: str, old: Any, new: Any) -> None:
        if (old and old.value) != told.get(path):
            wrong.append((path, old, told.get(path)))
        told[path] = new and new.value
        found = view.snapshot()
        if kind == "etcd" and len({found[one].value for one in Writer.pair}) != 1:
            wrong.append(found)

    with (
        bk.open_store(server.url) as other,
        closing(Writer(other)) as writer,
        bk.open_store(f"{kind}://{line.address}", session_timeout=4.0) as store,
        store.view("/a") as view,
    ):
        view.add_listener(tell, replay=True)
        for lasts in (False, False, True):
            line.drops = lasts  # What is sent then is lost without a word, and the session ends.
            line.cut()
            until(lambda: view.lag > (5.0 if line.drops else 0.0))
            line.restore()
            until(lambda: view.lag == 0.0)
        server.kill()
        until(lambda: view.lag > 0.0)
        server.restart()
        until(lambda: view.lag == 0.0)
        seen = view[Writer.pair[0]].stat.version
        until(lambda: view[Writer.pair[0]].stat.version > seen)
        writer.close()
        follows(view, other)
        until(lambda: {p: v for p, v in told.items() if v is not None} == values(view))
        assert wrong == []


def test_the_state_of_one_revision(
    fresh_url: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On etcd a view never has a value that is newer than its revision, from the beginning."""
    with bk.open_store(fresh_url("etcd")) as store:
        ask = store.revision

        def revision(path: str) -> int:
            found = ask(path)
            result(store.put("/a/b", b"put before the values are read"))
            return found

        monkeypatch.setattr(store, "revision", revision)
        with store.view("/a") as view:
            first = view.snapshot()
            assert first.revision is not None
            assert all(found.stat.revision <= first.revision for found in first.values())
            until(lambda: "/a/b" in view)
            assert store.session.state == "new"  # All puts would have to mind one.


def test_a_compaction(own_etcd: Callable[[], EtcdServer], proxy: Callable[[str], Proxy]) -> None:
    """What etcd no longer keeps is read again, and listeners learn what has changed meanwhile."""
    server = own_etcd()
    line = proxy(server.address)
    told: list[str] = []
    with bk.open_store(server.url) as other, bk.open_store(f"etcd://{line.address}") as store:
        result(other.put("/a/1", b"1"))
        with store.view("/a") as view, other_client(server.address) as client:
            result(other.put("/a/2", b"2"))
            until(lambda: "/a/2" in view)  # So the watch is in place.
            view.add_listener(lambda path, *_: told.append(path))
            line.drops = True
            line.cut()
            result(other.delete("/a/1"))
            client.compact(result(other.put("/a/3", b"3")).revision)
            line.restore()
            follows(view, other)
            until(lambda: sorted(told) == ["/a/1", "/a/3"])


def test_one_that_outgrows_its_limit(fresh_url: Callable[[str], str]) -> None:
    """It ends with an error that each lookup raises; a view of too much is refused."""
    with bk.open_store(fresh_url("etcd")) as store:
        with store.view("/a", max_bytes=1000) as view:
            for name in "bcde":
                result(store.put(f"/a/{name}", b""))
            until(lambda: isinstance(view.error, bk.ValueTooLargeError))
            with pytest.raises(bk.ValueTooLargeError, match="larger max_bytes"):
                view.get("/a/b")
            with pytest.raises(bk.ValueTooLargeError):
                len(view)
        with pytest.raises(bk.ValueTooLargeError, match="larger max_bytes"):
            store.view("/a", max_bytes=1000)
        assert store.metrics().watches == 0


def test_permissions(own_etcd: Callable[[], EtcdServer], proxy: Callable[[str], Proxy]) -> None:
    """A login that may read the prefix alone suffices. Without it, the view is refused or ends."""
    server = own_etcd()
    secured(server)
    line = proxy(server.address)
    login = {"username": LIMITED.username, "password": LIMITED.password}
    with (
        other_client(server.address, ROOT) as root,
        bk.open_store(f"etcd://{line.address}", **login) as store,
    ):
        with store.view("/ok/x") as view:
            root.put(b"/ok/x/1", b"1")
            until(lambda: "/ok/x/1" in view)
            link = root.connection.open(soon())
            with grpc.insecure_channel(link.address) as channel:
                revoked = messages.AuthRoleRevokePermissionRequest(
                    role="some", key=b"/ok", range_end=b"/ok0"
                )
                stub = grpc_stubs.AuthStub(channel)
                stub.RoleRevokePermission(revoked, metadata=link.metadata)
            line.cut()  # etcd goes on until then.
            until(lambda: view._error is not None, "the view goes on")
            with pytest.raises(bk.AuthenticationError):
                view["/ok/x/1"]
        with pytest.raises(bk.AuthenticationError):
            store.view("/ok/x")


def waits(until_then: threading.Event) -> Iterator[Any]:
    """Yield no pages, and that late."""
    assert until_then.wait(PATIENCE)
    yield from ()


@both
def test_the_end(
    kind: str, fresh_url: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A closed store ends its views, a forked child has none, and bad input is refused."""
    with bk.open_store(fresh_url(kind)) as store:
        view, watch = store.view("/a"), store.watch("/ends", values=True)
        for asked, words in (
            ({"prefix": "a"}, "must start with"),
            ({"prefix": "/a", "serde": int}, "serde must be a Serde"),
            ({"prefix": "/a", "max_bytes": 0}, "max_bytes must be an int of 1 or more, not 0"),
            ({"prefix": "/a", "timeout": -1}, "timeout"),
        ):
            with pytest.raises((bk.InvalidPathError, bk.InvalidSettingError), match=words):
                store.view(**asked)  # type: ignore[call-overload]
        with pytest.raises(bk.InvalidPathError, match="is not below /a"):
            view["/b"]
        with pytest.raises(KeyError):
            view["/a/b"]
        goes_on = threading.Event()
        with monkeypatch.context() as held:
            held.setattr(store, "scan_pages", lambda *_, **__: waits(goes_on))
            with pytest.raises(bk.OperationTimeoutError):
                store.view("/a", timeout=0.01)
            goes_on.set()
        until(lambda: store.metrics().watches == 2)

        def is_closed() -> bool:
            try:
                len(view)
            except bk.StoreClosedError:
                return True
            return False

        assert not is_closed()
        other = store.view("/b")
        other._forget()  # as in a forked child
        with pytest.raises(bk.StoreClosedError, match="parent process"):
            len(other)
    until(is_closed)
    assert [*watch] == []
    until(lambda: not any("values of /ends" in thread.name for thread in threading.enumerate()))


def test_a_path_that_may_not_be_read() -> None:
    """It is left out, as a scan does it, and the view goes on."""
    faults = FaultInjector()
    with bk.open_store(f"memory://{uuid.uuid4()}", wrap=faults) as store, store.view("/a") as view:
        denied = bk.AuthenticationError("denied", path="/a/secret")
        faults.refuse(denied, "get", denied.path, times=None)
        result(store.put("/a/secret", b""))
        result(store.put("/a/b", b""))
        until(lambda: "/a/b" in view)
        assert [*view] == ["/a/b"]


def test_tasks(fresh_url: Callable[[str], str]) -> None:
    """The view of tasks is the same, with coroutine functions as listeners."""

    async def main() -> None:
        told = asyncio.Event()

        async def tell(path: str, old: Any, new: Any) -> None:
            assert (path, old, new.value) == ("/a/b", None, b"1")
            told.set()

        async with bk.open_async_store(fresh_url("zookeeper")) as store:
            async with await store.view("/a") as view:
                view.add_listener(tell)
                await store.put("/a/b", b"1")
                await asyncio.wait_for(told.wait(), PATIENCE)
                assert [path async for path in _each(view)] == ["/a/b"]
            task = asyncio.ensure_future(store.view("/a"))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            view = await store.view("/a")
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()
            assert await view._closing.wait(PATIENCE)
            with pytest.raises(bk.StoreClosedError):
                len(view)

    async def _each(view: Any) -> Any:
        for path in view:
            yield path

    asyncio.run(main())


def test_a_lost_session(own_zookeeper: Callable[[], ZooKeeperServer]) -> None:
    """Ephemeral values of a session that has ended leave the view."""
    server = own_zookeeper()
    with bk.open_store(server.url) as store, store.view("/a") as view:
        with bk.open_store(server.url) as other:
            result(other.put("/a/e", b"", ephemeral=True))
            until(lambda: "/a/e" in view)
            assert not view["/a/e"].stat.owned
        until(lambda: "/a/e" not in view)
