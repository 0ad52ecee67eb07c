"""Watches on real ZooKeepers: outages, overlaps, permissions and what the server keeps."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.security import make_digest_acl

import batchkeeper as bk
from batchkeeper.ops import (
    AuthenticationError,
    Delete,
    Get,
    MetadataStoreError,
    Put,
    StoreClosedError,
    StoreUnavailableError,
    UnsupportedError,
    WatchEvent,
)
from batchkeeper.stores import parse_url
from batchkeeper.stores.zookeeper.backend import ZooKeeperBackend
from batchkeeper.stores.zookeeper.watches import watches as watches_module
from batchkeeper.stores.zookeeper.watches.placing import Placing
from batchkeeper.stores.zookeeper.wire.errors import CONNECTION_LOSS, UNIMPLEMENTED
from batchkeeper.stores.zookeeper.wire.jute import ADD_WATCH
from batchkeeper.testing.servers import ZooKeeperServer

from ...forks import holds_in_a_child
from ...proxy import Proxy
from ...waiting import PATIENCE, result, soon, until
from ..foreign import said_by_zookeeper
from .opening import RecordingConnection, before_exchange, connected, end_session, recorded
from .secured import TlsZooKeeper

Change = tuple[str, str]

SASL = "org.apache.zookeeper.server.auth.SASLAuthenticationProvider"


class Seen:
    """The events of one watch."""

    def __init__(self, backend: ZooKeeperBackend, prefix: str, within: float = PATIENCE) -> None:
        self.events: list[WatchEvent] = []
        self.errors: list[MetadataStoreError] = []
        self.prefix = prefix
        self.handle = backend.watches.watch(
            prefix, None, self.events.extend, self.errors.append, soon(within)
        )

    def changes(self) -> list[Change]:
        return [(event.kind, event.path) for event in self.events]

    def await_path(self, path: str) -> list[Change]:
        """Wait for an event of a path; return the changes before it."""

        def found() -> list[Change] | None:
            changes = self.changes()
            return next((changes[:i] for i, (_, at) in enumerate(changes) if at == path), None)

        return until(lambda: (before := found()) is not None and [before])[0]


def await_all(backend: ZooKeeperBackend, all_: Seen) -> None:
    """Wait until every watch has the events of the puts before, when ``all_`` watches everything.

    Watches get the events of one delivery one after the other, and the next delivery follows.
    """
    for path in ("/end", "/end-of-all"):
        put(backend, path)
        all_.await_path(path)


@pytest.fixture
def backend_url(url: str) -> str:
    return url


@pytest.fixture
def store(url: str) -> Iterator[bk.MetadataStore]:
    with bk.open_store(url) as store:
        yield store


@pytest.fixture
def server(own_zookeeper: Callable[..., ZooKeeperServer]) -> ZooKeeperServer:
    return own_zookeeper()


@pytest.fixture
def proxied(server: ZooKeeperServer, proxy: Callable[[str], Proxy]) -> Proxy:
    return proxy(server.address)


def put(backend: ZooKeeperBackend, *paths: str) -> None:
    for path in paths:
        (answer,) = backend.write([Put(path, b"1")], soon())
        assert not isinstance(answer, MetadataStoreError), answer


def placed(server: ZooKeeperServer) -> list[str]:
    """Return the paths that the server watches."""
    lines = said_by_zookeeper(server.address, b"wchp").splitlines()
    return [line.strip() for line in lines if line.startswith("/")]


# --- values and nodes


def test_parents_from_before_the_watch(backend: ZooKeeperBackend, store: bk.MetadataStore) -> None:
    """The first value of a parent is its creation; a value with paths below it is modified."""
    for path in ("/parent/x", "/value", "/value/x", "/former/x"):
        result(store.put(path, b"1"))
    result(store.delete("/former/x"))
    seen = Seen(backend, "/")
    for path in ("/parent", "/value", "/former", "/parent"):
        result(store.put(path, b"2"))
    result(store.put("/end", b""))
    assert seen.await_path("/end") == [
        ("created", "/parent"),
        ("modified", "/value"),
        ("created", "/former"),
        ("modified", "/parent"),
    ]
    assert [event.version for event in seen.events] == [1, None, 1, None, 0]


def test_parents_of_an_earlier_watch(backend: ZooKeeperBackend, store: bk.MetadataStore) -> None:
    """The knowledge of a watch is void after it was closed."""
    result(store.put("/parent/x", b"1"))
    Seen(backend, "/").handle.close()
    result(store.put("/parent", b"1"))
    seen = Seen(backend, "/")
    result(store.put("/parent", b"2"))
    result(store.put("/end", b""))
    assert seen.await_path("/end") == [("modified", "/parent")]


def test_parents_from_after_the_watch(backend: ZooKeeperBackend, store: bk.MetadataStore) -> None:
    """A parent has no event until it has a value, and none when it goes without one."""
    seen = Seen(backend, "/")
    result(store.put("/a/b/c", b"1"))
    result(store.put("/a/b", b""))
    assert result(store.delete_recursive("/a")) == 2
    result(store.put("/end", b""))
    assert seen.await_path("/end") == [
        ("created", "/a/b/c"),
        ("created", "/a/b"),
        ("deleted", "/a/b/c"),
        ("deleted", "/a/b"),
    ]


def test_a_delete_that_follows_at_once(backend: ZooKeeperBackend, store: bk.MetadataStore) -> None:
    """A value that lives for a moment has its creation and its end, and each path its order."""
    seen = Seen(backend, "/")
    futures = []
    for i in range(300):
        path = f"/{i % 7}/{i % 3}"
        futures += [store.put(path, b"1"), store.put(path, b"2"), store.delete(path)]
    for future in futures:
        result(future)
    result(store.put("/end", b""))
    changes = seen.await_path("/end")
    for path in {path for _, path in changes}:
        kinds = [kind for kind, at in changes if at == path]
        assert kinds == ["created", "modified", "deleted"] * (len(kinds) // 3)
    assert len(changes) == 900


@pytest.mark.parametrize("way", ["batch", "transaction", "deep", "plain and transaction"])
def test_values_that_are_overwritten_at_once(
    backend: ZooKeeperBackend, store: bk.MetadataStore, way: str
) -> None:
    """A value and one below it that come together have both their creations, however brief."""
    seen = Seen(backend, "/")
    for i in range(150):
        top = f"/{i}"
        below = f"{top}/b/c" if way == "deep" else f"{top}/b"
        if way in ("transaction", "deep"):
            store.transaction([Put(top, b"1"), Put(below, b"1")])
        else:
            store.put(top, b"1")
            if way == "batch":
                store.put(below, b"1")
            else:
                store.transaction([Put(below, b"1")])
        result(store.put(top, b"2"))
    result(store.put("/end", b""))
    lives: dict[str, list[str]] = {}
    for kind, path in seen.await_path("/end"):
        lives.setdefault(path, []).append(kind)
    for i in range(150):
        assert lives.pop(f"/{i}") == ["created", "modified"]
    assert all(life == ["created"] for life in lives.values())
    assert len(lives) == 150


def test_values_of_other_clients(backend: ZooKeeperBackend, other: KazooClient) -> None:
    """A node that kazoo creates has empty data, which is a value; null data is not a value."""
    seen = Seen(backend, "/")
    other.ensure_path("/a/b")
    other.set("/a", b"1")
    other.create("/end", b"")
    assert seen.await_path("/end") == [("created", "/a"), ("created", "/a/b"), ("modified", "/a")]


def test_passed_over_suffixes_are_left_out(
    backend: ZooKeeperBackend, store: bk.MetadataStore, other: KazooClient
) -> None:
    """Nodes by which a batch passes over a suffix that is taken have no events."""
    result(store.put("/s/n-", b"1", sequential=True))
    other.create("/s/n-0000000001", b"")
    seen = Seen(backend, "/")
    stat = result(store.put("/s/n-", b"2", sequential=True))
    result(store.put("/end", b""))
    assert seen.await_path("/end") == [("created", stat.path)]


def test_large_values(backend: ZooKeeperBackend, store: bk.MetadataStore) -> None:
    """New values of any size are reported, and do not travel to the watcher."""
    seen = Seen(backend, "/")
    for i in range(8):
        result(store.put(f"/{i}", b"x" * 900_000))
    before = len(seen.events)
    result(store.put("/end", b""))
    assert seen.await_path("/end") == [("created", f"/{i}") for i in range(8)]
    assert before <= 8


def test_revisions_are_those_of_the_store(
    backend: ZooKeeperBackend, store: bk.MetadataStore
) -> None:
    """A creation has the revision of its put, and so do other events where the server sends it."""
    seen = Seen(backend, "/a")
    created, modified = [result(store.put("/a", value)) for value in (b"1", b"2")]
    until(lambda: len(seen.events) == 2)
    assert seen.events[0] == WatchEvent("created", "/a", 0, created.revision)
    assert seen.events[1] in (
        WatchEvent("modified", "/a", None, modified.revision),
        WatchEvent("modified", "/a", None, None),
    )


def test_short_lives_of_a_value_and_of_one_below_it(
    backend: ZooKeeperBackend, store: bk.MetadataStore
) -> None:
    """Two puts of one call, one below the other, have their events even if both soon are gone."""
    seen = Seen(backend, "/")
    pairs = [(f"/p{number}", f"/p{number}/c") for number in range(100)]
    for pair in pairs:
        assert all(outcome.ok for outcome in store.apply([bk.Put(path, b"") for path in pair]))
        result(store.transaction([bk.Delete(path) for path in reversed(pair)]))
    result(store.put("/end", b""))
    seen.await_path("/end")
    wanted: list[tuple[str, str]] = []
    for above, below in pairs:
        wanted += [("created", above), ("created", below), ("deleted", below), ("deleted", above)]
    assert seen.changes()[:-1] == wanted


# --- several watches


def test_watches_that_overlap(server: ZooKeeperServer) -> None:
    """Each gets each event once; the server keeps one watch for a path, as long as it is needed."""
    with closing(connected(server.url)) as backend:
        put(backend, "/before")
        seen = [Seen(backend, prefix) for prefix in ("/", "/a", "/a", "/a/b", "/c")]
        assert sorted(placed(server)) == ["/", "/a", "/a/b", "/c"]
        put(backend, "/a", "/a/b", "/a/bc", "/a/b/c", "/c")
        await_all(backend, seen[0])
        everything = ["/a", "/a/b", "/a/bc", "/a/b/c", "/c", "/end", "/end-of-all"]
        got = [[path for _, path in one.changes()] for one in seen]
        assert got == [everything, everything[:4], everything[:4], ["/a/b", "/a/b/c"], ["/c"]]

        seen[0].handle.close()
        seen[1].handle.close()
        until(lambda: sorted(placed(server)) == ["/a", "/a/b", "/c"])
        seen[2].handle.close()
        seen[2].handle.close()
        until(lambda: sorted(placed(server)) == ["/a/b", "/c"])
        put(backend, "/a/b", "/c")
        until(lambda: len(seen[4].events) == 2)
        assert seen[3].changes()[-1] == ("modified", "/a/b")
        assert [len(one.events) for one in seen[:3]] == [7, 4, 4]

        again = Seen(backend, "/a")
        put(backend, "/a", "/a/bc")
        until(lambda: len(again.events) == 2)
        assert again.changes() == [("modified", "/a"), ("modified", "/a/bc")]


def test_what_changes_while_a_watch_begins(
    backend: ZooKeeperBackend, store: bk.MetadataStore
) -> None:
    """Even beside another watch and under load, a new one tells created from modified."""
    outer = Seen(backend, "/")
    done = threading.Event()

    def turn(top: str) -> None:
        # A parent, its first value, its second value, and the end of both.
        while not done.is_set():
            result(store.put(f"{top}/x", b"1"))
            result(store.put(top, b"1"))
            result(store.put(top, b"2"))
            result(store.delete_recursive(top))

    threads = [threading.Thread(target=turn, args=(f"/{i}",)) for i in range(3)]
    for thread in threads:
        thread.start()
    inner = []
    for i in range(60):
        inner.append(Seen(backend, f"/{i % 3}"))
        time.sleep(0.01)
    done.set()
    for thread in threads:
        thread.join()
    await_all(backend, outer)
    for seen in (outer, *inner):
        kinds: dict[str, list[str]] = {}
        for kind, path in seen.changes():
            kinds.setdefault(path, []).append(kind)
        for path, life in kinds.items():
            if path.startswith("/end"):
                continue
            whole = r"(created (modified )?deleted )*"
            started = whole if seen is outer else rf"((modified )?deleted )?{whole}"
            assert re.fullmatch(started, " ".join([*life, ""])), (seen.prefix, path, life)


def test_what_has_changed_just_before_a_watch_begins(
    backend: ZooKeeperBackend,
    other: KazooClient,
    monkeypatch: pytest.MonkeyPatch,
    connection: RecordingConnection,
) -> None:
    """Events that the beginning of a watch has overtaken still reach the other watches."""
    other.create("/a", b"1")
    outer = Seen(backend, "/")
    begin = Placing.begin

    def begin_late(placing: Placing, prefix: str, deadline: float) -> dict[str, int] | None:
        other.delete("/a")
        other.create("/a", None)
        until(lambda: len(connection.events) >= 2)
        return begin(placing, prefix, deadline)

    monkeypatch.setattr(Placing, "begin", begin_late)
    Seen(backend, "/a")
    put(backend, "/end")
    until(lambda: ("created", "/end") in outer.changes())
    assert outer.changes() == [("deleted", "/a"), ("created", "/end")]


def test_what_changes_while_the_only_watch_begins(
    backend: ZooKeeperBackend,
    other: KazooClient,
    monkeypatch: pytest.MonkeyPatch,
    connection: RecordingConnection,
) -> None:
    """It knows the first value of a parent that was put just after its node was read."""
    other.create("/a/b", b"", makepath=True)
    other.set("/a", None)
    bare = Placing.bare

    def read_early(*args: Any) -> dict[str, int]:
        found = bare(*args)
        other.set("/a", b"1")
        until(lambda: connection.events)
        return found

    monkeypatch.setattr(Placing, "bare", read_early)
    seen = Seen(backend, "/a")
    other.set("/a", b"2")
    until(seen.changes)
    assert seen.changes() == [("modified", "/a")]


def test_many_watches(server: ZooKeeperServer) -> None:
    """Hundreds of watches share one connection and one thread."""
    with closing(connected(server.url)) as backend:
        put(backend, "/0/x")
        first = Seen(backend, "/0")
        before = set(threading.enumerate())  # some of other tests may be about to end
        seen = [first, *[Seen(backend, f"/{i}") for i in range(1, 300)]]
        assert set(threading.enumerate()) <= before
        put(backend, *[f"/{i}/x" for i in range(300)])
        until(lambda: all(one.events for one in seen))
        assert [one.changes() for one in seen[1:]] == [
            [("created", f"/{i}/x")] for i in range(1, 300)
        ]


def test_own_slots_are_left_out(backend: ZooKeeperBackend, connection: RecordingConnection) -> None:
    """A watch of everything costs nothing for the slots that each write sets."""
    put(backend, "/a")
    seen = Seen(backend, "/")
    put(backend, *["/a"] * 20)
    until(lambda: len(seen.events) == 20)
    assert len(connection.events) == 20


# --- outages


class View:
    """The knowledge of a caller that reads everything at each gap, and follows events otherwise."""

    def __init__(self, store: bk.MetadataStore) -> None:
        self.paths: set[str] = set()
        self.gaps = 0
        self._store = store
        self._watch = store.watch("/")
        self._thread = threading.Thread(target=self._follow)
        self._read()
        self._thread.start()

    def _read(self) -> None:
        self.paths = {found.path for found in self._store.scan("/")}

    def _follow(self) -> None:
        for kind, path, _, _ in self._watch:
            if kind == "gap":
                self.gaps += 1
                self._read()
            elif kind == "deleted":
                self.paths.discard(path)
            else:
                self.paths.add(path)
            if path == "/end":
                return

    def finish(self) -> set[str]:
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive(), "the end did not come"
        self._watch.close()
        return self.paths


@pytest.mark.parametrize("fault", ["cut", "kill", "swallow"])
def test_nothing_is_missed_without_a_gap(
    server: ZooKeeperServer, proxied: Proxy, fault: str
) -> None:
    """A caller that follows the events and reads at gaps has the right state after any outages."""
    with (
        bk.open_store(server.url) as writer,
        bk.open_store(f"zookeeper://{proxied.address}", session_timeout=4) as store,
    ):
        view = View(store)
        done = threading.Event()

        def write(turn: int) -> None:
            i = 0
            while not done.is_set():
                i += 1
                path = f"/{turn}/{i % 50}"
                change = writer.put(path, b"") if i % 3 else writer.delete(path)
                change.exception(PATIENCE)

        threads = [threading.Thread(target=write, args=(turn,)) for turn in range(4)]
        for thread in threads:
            thread.start()
        for _ in range(2):
            gaps = view.gaps
            time.sleep(0.3)
            if fault == "cut":
                proxied.cut()
            elif fault == "kill":
                server.kill()
                server.start()
            else:
                proxied.swallows = True
                proxied.swallowed.clear()
                proxied.swallowed.wait(PATIENCE)
                time.sleep(0.2)
                proxied.restore()
            until(lambda gaps=gaps: view.gaps > gaps)
        done.set()
        for thread in threads:
            thread.join()
        result(writer.put("/end", b""))
        assert view.finish() == {found.path for found in writer.scan("/")}
        assert view.gaps >= 2


def test_parents_after_an_outage(server: ZooKeeperServer, proxied: Proxy) -> None:
    """A node that became a parent, a value or nothing during the outage is known after it."""
    with (
        closing(connected(server.url)) as writer,
        closing(connected(f"zookeeper://{proxied.address}")) as backend,
    ):
        put(writer, "/filled/x", "/gone/x")
        seen = Seen(backend, "/")
        proxied.drops = True
        put(writer, "/filled", "/new/x")
        writer.write([Delete("/gone/x")], soon())
        writer.write([Delete("/gone")], soon())
        put(writer, "/gone")
        proxied.restore()
        until(lambda: ("gap", "/") in seen.changes())
        put(writer, "/filled", "/new", "/gone", "/end")
        changes = [change for change in seen.await_path("/end") if change != ("gap", "/")]
    # Events of the time before the cut may have come, as nothing was lost on their way.
    assert changes[-3:] == [("modified", "/filled"), ("created", "/new"), ("modified", "/gone")]


def test_what_changes_while_watches_are_placed_again(
    server: ZooKeeperServer, proxied: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gap stands for all changes until the tree was read, so nothing comes twice or wrong."""
    with (
        closing(connected(server.url)) as writer,
        closing((pair := recorded(f"zookeeper://{proxied.address}"))[0]) as backend,
    ):
        put(writer, "/parent/x")
        seen = Seen(backend, "/")
        events = pair[1].events
        bare = Placing.bare

        def write_and_read(*arguments: Any) -> dict[str, int]:
            before = len(events)
            put(writer, "/parent")
            until(lambda: len(events) > before)
            return bare(*arguments)

        monkeypatch.setattr(Placing, "bare", write_and_read)
        proxied.cut()
        until(lambda: seen.events)
        put(writer, "/end")
        assert seen.await_path("/end") == [("gap", "/")]


def test_what_was_read_before_an_outage_is_read_again(
    server: ZooKeeperServer, proxied: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A watch that begins after an outage knows the values that were put in it."""
    with (
        closing(connected(server.url)) as writer,
        closing(connected(f"zookeeper://{proxied.address}")) as backend,
    ):
        put(writer, "/w/parent/x")
        outer = Seen(backend, "/other")
        bare = Placing.bare
        outages: list[str] = []

        def read_and_miss(placing: Placing, prefix: str, *rest: Any) -> dict[str, int]:
            found = bare(placing, prefix, *rest)
            if prefix == "/w" and not outages:
                outages.append(prefix)
                proxied.swallows = proxied.drops = True
                proxied.cut()
                put(writer, "/w/parent")
                proxied.restore()
                until(lambda: outer.changes() == [("gap", "/other")])
            return found

        monkeypatch.setattr(Placing, "bare", read_and_miss)
        seen = Seen(backend, "/w")
        put(writer, "/w/parent", "/w/end")
        assert seen.await_path("/w/end") == [("modified", "/w/parent")]
        assert outages


def test_a_lost_session_is_a_gap_before_a_new_session(
    server: ZooKeeperServer, proxied: Proxy
) -> None:
    """``session_reestablished`` comes when all watches are back and have had their gaps."""
    order: list[str] = []
    with (
        closing(connected(server.url)) as writer,
        closing(connected(f"zookeeper://{proxied.address}")) as backend,
    ):
        backend.session.listen(order.append)
        for name in ("a", "b"):
            backend.watches.watch(
                f"/{name}",
                None,
                lambda events, name=name: order.extend(f"{e.kind} {name}" for e in events),
                lambda _: None,
                soon(),
            )
        session = backend.session.id
        proxied.drops = True
        proxied.cut()
        until(lambda: "connection_lost" in order)
        end_session(backend, server.url)
        proxied.restore()
        until(lambda: "session_reestablished" in order)
        assert backend.session.id != session
        put(writer, "/a")
        until(lambda: order[-1] == "created a")
    events = [event for event in order if not event.startswith("gap")]
    assert events == [
        *("connection_lost", "reconnected", "session_lost", "session_reestablished"),
        "created a",
    ]
    assert {"gap a", "gap b"} <= set(order[: order.index("session_reestablished")])


def test_a_watch_that_begins_during_an_outage(server: ZooKeeperServer, proxied: Proxy) -> None:
    """The call waits for a server until its deadline, and leaves nothing behind if none comes."""
    with (
        closing(connected(server.url)) as writer,
        closing(connected(f"zookeeper://{proxied.address}")) as backend,
    ):
        put(writer, "/before")
        server.pause()
        with pytest.raises(MetadataStoreError) as late:
            Seen(backend, "/late", within=0.3)
        assert late.value.retriable
        server.resume()
        server.kill()
        until(lambda: not backend.connected)
        with pytest.raises(StoreUnavailableError):
            Seen(backend, "/late", within=0.3)
        starting = threading.Timer(0.3, server.start)
        starting.start()
        seen = Seen(backend, "/a")
        starting.join()
        put(writer, "/a")
        until(lambda: seen.events[-1:] and seen.events[-1].path == "/a" and len(seen.events))
        assert ("created", "/a") in seen.changes()
        until(lambda: placed(server) == ["/a"])


def test_too_many_events_are_a_gap(
    backend: ZooKeeperBackend,
    store: bk.MetadataStore,
    monkeypatch: pytest.MonkeyPatch,
    connection: RecordingConnection,
) -> None:
    """If events come faster than they can be read, they are dropped, and a gap says so."""
    monkeypatch.setattr(watches_module, "_MOST_EVENTS", 10)
    blocked = threading.Event()
    events: list[WatchEvent] = []

    def deliver(some: Sequence[WatchEvent]) -> None:
        events.extend(some)
        blocked.wait(PATIENCE)

    backend.watches.watch("/", None, deliver, lambda _: None, soon())
    result(store.put("/first", b""))
    until(lambda: events)
    for future in [store.put(f"/{i}", b"") for i in range(100)]:
        result(future)
    until(lambda: len(connection.events) > 100)
    blocked.set()
    until(lambda: any(event.kind == "gap" for event in events))

    def ended() -> bool:
        # Another gap may take in some of these puts, if events are still on their way.
        result(store.put("/end", b""))
        return events[-1].path == "/end"

    until(ended)
    assert len([event for event in events if event.path != "/end"]) < 99


# --- ends


def test_closing(backend: ZooKeeperBackend) -> None:
    """A closed watch gets nothing, also one that closes itself; others go on."""
    closing_itself: list[WatchEvent] = []
    other = Seen(backend, "/")

    def deliver(events: Sequence[WatchEvent]) -> None:
        closing_itself.extend(events)
        handle.close()

    handle = backend.watches.watch("/", None, deliver, lambda _: None, soon())
    put(backend, "/a")
    until(lambda: closing_itself)
    put(backend, "/b", "/c")
    until(lambda: len(other.events) == 3)
    assert [event.path for event in closing_itself] == ["/a"]
    backend.close()
    assert other.errors == []
    with pytest.raises(StoreClosedError):
        Seen(backend, "/")


def test_closing_the_store_ends_a_call(server: ZooKeeperServer) -> None:
    """A call of ``watch`` that waits for the server ends when the store is closed."""
    backend, connection = recorded(server.url)
    put(backend, "/a")
    called = threading.Event()
    before_exchange(connection, called.set)
    server.pause()
    errors: list[Exception] = []

    def watch() -> None:
        try:
            Seen(backend, "/", within=10 * PATIENCE)
        except MetadataStoreError as failure:
            errors.append(failure)

    thread = threading.Thread(target=watch)
    thread.start()
    assert called.wait(PATIENCE)
    backend.close()
    thread.join(PATIENCE)
    assert [type(failure) for failure in errors] == [StoreClosedError]
    server.resume()


def test_a_watch_that_raises(backend: ZooKeeperBackend, caplog: pytest.LogCaptureFixture) -> None:
    """A fault in one watch is logged, and costs the others nothing."""

    def deliver(_: Sequence[WatchEvent]) -> None:
        raise RuntimeError("a fault")

    backend.watches.watch("/", None, deliver, lambda _: None, soon())
    seen = Seen(backend, "/")
    put(backend, "/a", "/b")
    until(lambda: len(seen.events) == 2)
    assert "a watch failed to take its events" in caplog.text


def test_no_history(backend: ZooKeeperBackend) -> None:
    """A watch cannot begin in the past, and says which capability that needs."""
    with pytest.raises(UnsupportedError, match="history"):
        backend.watches.watch("/", 1, print, print, soon())


@pytest.mark.parametrize("code", [UNIMPLEMENTED, CONNECTION_LOSS])
def test_a_server_without_persistent_watches(
    backend: ZooKeeperBackend,
    connection: RecordingConnection,
    monkeypatch: pytest.MonkeyPatch,
    code: int,
) -> None:
    """A server that refuses the request, or drops the connection for it, is unsupported at once."""
    exchange = connection.exchange

    def refuse(requests: Any, deadline: float, *, repeat: bool) -> Any:
        if requests and requests[0][0] == ADD_WATCH:
            return [code] * len(requests)
        return exchange(requests, deadline, repeat=repeat)

    monkeypatch.setattr(connection, "exchange", refuse)
    with pytest.raises(UnsupportedError, match="addWatch"):
        Seen(backend, "/")


def test_two_losses_are_no_lack_of_watches(proxied: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that has placed a watch knows them, however often the request is lost later."""
    backend, connection = recorded(f"zookeeper://{proxied.address}")
    exchange, losses = connection.exchange, iter(range(2))

    def lose(requests: Any, *rest: Any, **options: Any) -> Any:
        if requests and requests[0][0] == ADD_WATCH and next(losses, None) is not None:
            return [CONNECTION_LOSS] * len(requests)
        return exchange(requests, *rest, **options)

    with closing(backend):
        seen = Seen(backend, "/")
        monkeypatch.setattr(connection, "exchange", lose)
        proxied.cut()
        until(lambda: seen.changes() == [("gap", "/")])
        put(backend, "/a")
        until(lambda: seen.changes() == [("gap", "/"), ("created", "/a")])
    assert next(losses, None) is None


def test_a_fault_while_a_watch_is_placed(
    backend: ZooKeeperBackend, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A fault of the package ends the call with an error, is logged, and other watches go on."""
    seen = Seen(backend, "/")
    with monkeypatch.context() as patch:
        patch.setattr(Placing, "place", None)
        with pytest.raises(MetadataStoreError, match="TypeError"):
            Seen(backend, "/a")
    until(lambda: seen.changes() == [("gap", "/")])
    put(backend, "/a")
    until(lambda: seen.changes() == [("gap", "/"), ("created", "/a")])
    assert "zookeeper watches failed" in caplog.text


def test_a_forked_child(backend: ZooKeeperBackend) -> None:
    """A child process can neither begin nor close watches, and the parent's go on."""
    seen = Seen(backend, "/")

    def refused() -> bool:
        seen.handle.close()
        with pytest.raises(StoreClosedError):
            Seen(backend, "/")
        return True

    assert holds_in_a_child(refused)
    put(backend, "/a")
    until(lambda: seen.changes() == [("created", "/a")])


# --- security


@pytest.mark.server
def test_a_prefix_that_may_not_be_read(
    fresh_url: Callable[[str], str], zookeeper_server: ZooKeeperServer
) -> None:
    """Wrong credentials end the call at once, whether or not the path has children."""
    url = fresh_url("zookeeper")
    anna = {"username": "anna", "password": "anna's"}
    with closing(connected(f"{url}?acl=creator-all", **anna)) as owner:
        put(owner, "/leaf", "/parent/x")
        seen = Seen(owner, "/")
        with closing(connected(url, username="anna", password="wrong")) as intruder:
            for prefix in ("/", "/leaf", "/parent"):
                denied = f"denies user 'anna' access to '{prefix}'"
                with pytest.raises(AuthenticationError, match=denied) as refused:
                    Seen(intruder, prefix)
                assert "wrong" not in str(refused.value)
            chroot = parse_url(url).prefix()
            until(lambda: [p for p in placed(zookeeper_server) if p.startswith(chroot)] == [chroot])
        put(owner, "/leaf", "/new")
        until(lambda: seen.changes() == [("modified", "/leaf"), ("created", "/new")])


def test_a_prefix_that_may_not_be_read_any_more(
    url: str, zookeeper_server: ZooKeeperServer, proxy: Callable[[str], Proxy], other: KazooClient
) -> None:
    """Its watch ends with the next connection, and other watches go on."""
    line = proxy(zookeeper_server.address)
    other.add_auth("digest", "anna:anna's")
    for path in ("/hers", "/mine"):
        other.create(path, b"")
        other.create(f"{path}/x", b"")
    with closing(connected(url.replace(zookeeper_server.address, line.address))) as backend:
        hers, mine = Seen(backend, "/hers"), Seen(backend, "/mine")
        other.set_acls("/hers", [make_digest_acl("anna", "anna's", all=True)])
        line.cut()
        until(lambda: hers.errors and mine.events)
        assert [type(error) for error in hers.errors] == [AuthenticationError]
        put(backend, "/mine/y")
        until(lambda: ("created", "/mine/y") in mine.changes())
        assert mine.errors == []


def test_nodes_of_others_below_the_prefix(
    url: str, other: KazooClient, caplog: pytest.LogCaptureFixture
) -> None:
    """Nodes that may not be read do not end a watch; the log names those that it does not report.

    ZooKeeper before 3.8.4 and 3.9.2 reports them all the same, and says that they exist.
    """
    other.add_auth("digest", "anna:anna's")
    other.create("/a", b"")
    other.create("/a/hers", b"1", acl=[make_digest_acl("anna", "anna's", all=True)])
    with closing(connected(url)) as backend:
        seen = Seen(backend, "/a")
        named = "first=['/a/hers']" in caplog.text
        other.set("/a/hers", b"2")
        other.create("/a/hers/too", b"1", acl=[make_digest_acl("anna", "anna's", all=True)])
        put(backend, "/a/mine")
        until(lambda: ("created", "/a/mine") in seen.changes())
        hers = set() if named else {"/a/hers", "/a/hers/too"}
        assert {path for _, path in seen.changes()} == {"/a/mine", *hers}


def test_credentials_that_are_refused_later(
    own_zookeeper: Callable[..., ZooKeeperServer],
) -> None:
    """If the server refuses the login when the client connects again, the watch ends with that."""
    server = own_zookeeper()
    with closing(connected(server.url, username="anna", password="anna's")) as backend:
        seen = Seen(backend, "/")
        server.stop()
        until(lambda: not backend.connected)
        server._jvm_flags += (
            "-Dzookeeper.DigestAuthenticationProvider.enabled=false",
            f"-Dzookeeper.authProvider.1={SASL}",
            "-Dzookeeper.sessionRequireClientSASLAuth=true",
        )
        server.start()
        until(lambda: seen.errors)
        assert [type(failure) for failure in seen.errors] == [AuthenticationError]
        with pytest.raises(AuthenticationError):
            Seen(backend, "/")


# kazoo leaves the socket of an attempt that took too long to the garbage collector.
@pytest.mark.filterwarnings("ignore:.*SSLSocket:pytest.PytestUnraisableExceptionWarning")
@pytest.mark.server
def test_tls_with_certificates_and_a_login(own_directory: Callable[[str], Path]) -> None:
    """Over TLS, thousands of events arrive whole, and the session proves that it lives."""
    anna = {"username": "anna", "password": "anna's"}
    flags = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
    with TlsZooKeeper(own_directory("zookeeper"), jvm_flags=flags, tick_time=500) as server:
        url = f"{server.tls_url('anna')}&acl=creator-all"
        with bk.open_store(url, **anna) as store, closing(connected(url, **anna)) as backend:
            seen = Seen(backend, "/")
            first = backend.session.valid_until()
            paths = {f"/{i}" for i in range(5_000)}
            outcomes = list(store.apply_stream(Put(path, b"x" * 50) for path in sorted(paths)))
            assert all(outcome.ok for outcome in outcomes)
            until(lambda: len(seen.events) == 5_000)
            assert set(seen.changes()) == {("created", path) for path in paths}
            until(lambda: backend.session.valid_until() > first)
            # ZooKeeper logs a client in by its certificate, too.
            with (
                closing(connected(server.tls_url("eve"), username="anna", password="wrong")) as eve,
                pytest.raises(AuthenticationError),
            ):
                Seen(eve, "/0")
        # Its certificate alone is a login, too.
        with bk.open_store(f"{server.tls_url('bert')}&acl=read-all") as store:
            store.put("/bert", b"1").result()
            entries = store.get_acl("/bert").entries
            assert entries[0].startswith("x509:CN=bert,OU=")
            store.set_acl("/bert", ",".join(entries))
            assert store.get_acl("/bert").entries == entries


def test_nothing_comes_between_events_that_are_lost_and_their_gap(
    line: Proxy, url: str, backend: ZooKeeperBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the connection ends while a new node is read, later events on it are not delivered."""
    put(backend, "/a/known")
    reading, go_on = threading.Event(), threading.Event()

    def read(*_: object) -> Sequence[object]:
        monkeypatch.undo()
        reading.set()
        assert go_on.wait(PATIENCE)
        raise StoreUnavailableError("the connection is lost")

    chroot = parse_url(url).prefix()
    with closing(connected(f"zookeeper://{line.address}{chroot}")) as behind:
        seen = Seen(behind, "/a")
        monkeypatch.setattr(Placing, "read_nodes", read)
        put(backend, "/a/new")
        assert reading.wait(PATIENCE)
        put(backend, "/a/known")
        # This answer comes behind the event, and the next one on the next connection.
        for cut in (True, False):
            (found,) = behind.read([Get("/a/known")], soon())
            assert isinstance(found, bk.GetResult)
            assert found.stat.version == 1
            if cut:
                line.cut()
        go_on.set()
        until(lambda: ("gap", "/a") in seen.changes())
    assert seen.changes() == [("gap", "/a")]
