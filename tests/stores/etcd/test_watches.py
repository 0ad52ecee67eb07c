"""Watches on real etcds: every change once, in order, or a gap."""

from __future__ import annotations

import http.client
import itertools
import logging
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from functools import partial
from typing import Any

import grpc
import pytest

from batchkeeper.ops import (
    AuthenticationError,
    Delete,
    Get,
    InvalidSettingError,
    MetadataStoreError,
    OperationTimeoutError,
    Put,
    Range,
    RevisionCompactedError,
    StoreClosedError,
    WatchEvent,
)
from batchkeeper.stores import connect
from batchkeeper.stores.etcd.backend import EtcdBackend
from batchkeeper.stores.etcd.session.keep_alives import KeepAlives
from batchkeeper.stores.etcd.watches import stream as watch_stream
from batchkeeper.stores.etcd.watches import watches as module
from batchkeeper.stores.etcd.watches.messages import cancel_request
from batchkeeper.stores.etcd.watches.stream import WatchStream
from batchkeeper.stores.etcd.watches.watch import EtcdWatch
from batchkeeper.stores.etcd.watches.watches import EtcdWatches
from batchkeeper.stores.etcd.wire.errors import Reason
from batchkeeper.stores.etcd.wire.members import tells_progress
from batchkeeper.stores.etcd.wire.protos import grpc_stubs, messages
from batchkeeper.testing.servers import EtcdServer

from ...histories.nemesis import commit_everything
from ...proxy import Proxy
from ...waiting import PATIENCE, soon, until
from ..foreign import KEYS, OUTSIDE, OWN
from ..secured import LIMITED, ROOT, TlsEtcd, secured
from .live import Other, Told, opened, other_client
from .opening import accept_answers


@pytest.fixture
def server(own_etcd: Callable[..., EtcdServer]) -> EtcdServer:
    """An etcd for one test."""
    return own_etcd()


@pytest.fixture
def other(server: EtcdServer) -> Iterator[Other]:
    """Another client of that etcd."""
    with other_client(server.address) as client:
        yield client


@pytest.fixture
def backend(fresh_url: Callable[[str], str], etcd_server: object) -> Iterator[EtcdBackend]:
    """An empty store."""
    with opened(fresh_url("etcd")) as made:
        yield made


def watch(backend: EtcdBackend, prefix: str, told: Told, after: int | None = None) -> Any:
    return backend.watches.watch(prefix, after, told.events, told.fail, soon())


def put(backend: EtcdBackend, *paths: str) -> int:
    """Put paths in one batch, and return their revision."""
    stats: list[Any] = list(backend.write([Put(path, b"") for path in paths], soon()))
    return int(stats[0].revision)


def seen(told: Told, path: str) -> Callable[[], bool]:
    """Return a condition: an event of a path has come."""
    return lambda: any(event.path == path for event in told.all)


def streams_of(monkeypatch: pytest.MonkeyPatch) -> list[WatchStream]:
    """Return a list that grows by each stream that is opened."""
    streams: list[WatchStream] = []
    open_stream = WatchStream.open

    def noted(self: WatchStream) -> Any:
        streams.append(self)
        return open_stream(self)

    monkeypatch.setattr(WatchStream, "open", noted)
    return streams


def see_nothing(self: EtcdWatches) -> bool:
    """Stand in for the look at the revisions before watches are placed again."""
    for watch in self._watches:
        watch.fresh = False
    return True


def ends_with(told: Told, event: object) -> bool:
    return told.all[-1:] == [event]


def gap(prefix: str) -> WatchEvent:
    return WatchEvent("gap", prefix, None, None)


# --- the events


def test_every_change_is_told_once_in_order(backend: EtcdBackend) -> None:
    """The path itself and all below it, with versions and revisions, and nothing of neighbours."""
    told = Told()
    put(backend, "/a")
    watch(backend, "/a", told)
    first = put(backend, "/a", "/a/b", "/a-b", "/a.b/c", "/ab", "/a0")
    second = put(backend, "/a/b")
    (deleted,) = backend.write([Delete("/a/b")], soon())
    assert deleted is None
    last = put(backend, "/a/b/c")
    until(seen(told, "/a/b/c"))
    transaction = set(told.all[:2])
    assert transaction == {
        WatchEvent("modified", "/a", 1, first),
        WatchEvent("created", "/a/b", 0, first),
    }
    assert told.all[2:] == [
        WatchEvent("modified", "/a/b", 1, second),
        WatchEvent("deleted", "/a/b", None, second + 1),
        WatchEvent("created", "/a/b/c", 0, last),
    ]


def test_the_whole_store_is_watched_without_what_is_hidden(server: EtcdServer) -> None:
    """Keys of this client, and keys that are not valid paths, are left out."""
    told = Told()
    with opened(server.url) as backend, other_client(server.address) as other:
        watch(backend, "/", told)
        for key in (*KEYS, *OUTSIDE, *OWN):
            other.put(key)
        put(backend, "/a/b", "/z")
        until(seen(told, "/z"))
        assert {path for _, path, _ in told.brief()} == {"/a/b", "/z"}


def test_a_prefix_in_the_url_bounds_the_watch(server: EtcdServer) -> None:
    """The root of a store is its prefix, and stores beside it are not seen."""
    told = Told()
    with opened(f"{server.url}/one") as one, opened(f"{server.url}/one-more") as two:
        watch(one, "/", told)
        put(two, "/x")
        put(one, "/y")
        until(seen(told, "/y"))
        assert told.brief() == [("created", "/y", 0)]


def test_a_watch_begins_when_it_is_in_place(backend: EtcdBackend) -> None:
    """Earlier puts are not reported, later puts are, however close."""
    for number in range(30):
        told = Told()
        put(backend, f"/{number}/before")
        handle = watch(backend, f"/{number}", told)
        put(backend, f"/{number}/after")
        until(lambda: told.all)  # noqa: B023 - it is called now
        assert told.brief() == [("created", f"/{number}/after", 0)]
        handle.close()


def test_a_watch_can_begin_in_the_past(backend: EtcdBackend) -> None:
    """Every change after the given revision is reported, first the past, then the future."""
    before = put(backend, "/a")
    put(backend, "/a/1", "/a/2")
    put(backend, "/b")
    put(backend, "/a/1")
    told = Told()
    watch(backend, "/a", told, after=before)
    put(backend, "/a/3")
    until(seen(told, "/a/3"))
    assert sorted(told.brief()[:2]) == [("created", "/a/1", 0), ("created", "/a/2", 0)]
    assert told.brief()[2:] == [("modified", "/a/1", 1), ("created", "/a/3", 0)]


def test_a_past_that_is_gone_is_refused(server: EtcdServer, other: Other) -> None:
    """The error names the oldest revision that is kept, and a watch from there is complete."""
    with opened(server.url) as backend:
        revisions = [put(backend, "/a") for _ in range(6)]
        (deleted,) = backend.write([Delete("/a")], soon())
        assert deleted is None
        kept = revisions[-1] + 1  # the delete itself
        other.compact(kept)
        put(backend, "/a")
        for after in (0, revisions[0], revisions[-1]):
            with pytest.raises(RevisionCompactedError) as caught:
                watch(backend, "/a", Told(), after=after)
            assert caught.value.oldest == kept
        told = Told()
        watch(backend, "/a", told, after=kept)
        told.wait(WatchEvent("created", "/a", 0, kept + 1))


def test_a_revision_to_come_is_refused(backend: EtcdBackend) -> None:
    """A revision that does not exist yet is a mistake, and not a long wait."""
    with pytest.raises(InvalidSettingError, match="does not exist yet"):
        watch(backend, "/a", Told(), after=put(backend, "/a") + 1_000_000)


@pytest.mark.parametrize("accepted", [4, 32], ids=["divided", "whole"])
def test_a_large_past_comes_whole_or_is_put_together(
    fresh_url: Callable[[str], str],
    etcd_server: object,
    monkeypatch: pytest.MonkeyPatch,
    accepted: int,
) -> None:
    """An answer that is too large is requested in fragments; each batch stays in one piece.

    The channels accept as many MiB as the parameter says.
    """
    accept_answers(monkeypatch, accepted << 20)
    asked: list[bool] = []
    create = module.create_request

    def noted(*args: Any, fragment: bool, **more: Any) -> Any:
        asked.append(fragment)
        return create(*args, fragment=fragment, **more)

    monkeypatch.setattr(module, "create_request", noted)
    with opened(fresh_url("etcd")) as backend:
        watch_large_past(backend, asked, divided=accepted == 4)


def watch_large_past(backend: EtcdBackend, asked: list[bool], divided: bool) -> None:
    """Watch what has happened; ``asked`` tells for each request whether it asks for fragments."""
    before = put(backend, "/a")
    paths = [f"/a/{number}" for number in range(300)]
    for _ in range(2):
        for part in range(0, 300, 50):
            ops = [Put(path, b"x" * 20_000) for path in paths[part : part + 50]]
            assert all(not isinstance(stat, Exception) for stat in backend.write(ops, soon()))
    deliveries: list[list[WatchEvent]] = []
    handle = backend.watches.watch(
        "/a", before, lambda events: deliveries.append([*events]), print, soon()
    )
    until(lambda: sum(map(len, deliveries)) >= 600)
    assert (asked[0], asked[-1]) == (False, divided)
    handle.close()
    found = [event for events in deliveries for event in events]
    assert [event.revision for event in found] == sorted(event.revision for event in found)
    assert sorted((event.path, event.version) for event in found) == sorted(
        (path, version) for path in paths for version in (0, 1)
    )
    revisions = [{event.revision for event in events} for events in deliveries]
    assert sum(map(len, revisions)) == len(set().union(*revisions))


def test_many_watches_share_one_stream(
    backend: EtcdBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client opens one stream and one thread, however many watches it has."""
    streams = []
    opening = module.WatchStream.open

    def counted(self: Any) -> Any:
        streams.append(self)
        return opening(self)

    monkeypatch.setattr(module.WatchStream, "open", counted)
    before = threading.active_count()
    tolds = [Told() for _ in range(100)]
    for number, told in enumerate(tolds):
        watch(backend, f"/{number}", told)
    put(backend, *(f"/{number}" for number in range(100)))
    for number, told in enumerate(tolds):
        until(lambda: told.all)  # noqa: B023 - it is called now
        assert told.brief() == [("created", f"/{number}", 0)]
    assert len(streams) == 1
    assert threading.active_count() - before <= 3  # with those of gRPC


def test_watches_of_one_prefix_are_independent(backend: EtcdBackend) -> None:
    """Each gets every event, and closing one leaves the other."""
    first, second = Told(), Told()
    handle = watch(backend, "/a", first)
    watch(backend, "/a", second)
    put(backend, "/a")
    until(lambda: first.all and second.all)
    handle.close()
    put(backend, "/a")
    until(lambda: len(second.all) == 2)
    assert first.all == second.all[:1]


# --- closing


def test_after_close_nothing_is_delivered(backend: EtcdBackend) -> None:
    """No delivery begins after `close` has returned, even in the middle of a stream of events."""
    for _ in range(20):
        closed = threading.Event()
        late: list[Any] = []
        count = itertools.count()

        def deliver(
            events: Any, count: Any = count, closed: Any = closed, late: Any = late
        ) -> None:
            next(count)
            if closed.is_set():
                late.append(events)

        handle = backend.watches.watch("/a", None, deliver, print, soon())
        writer = threading.Thread(target=lambda: [put(backend, "/a") for _ in range(10)])
        writer.start()
        until(lambda: next(count) > 3)  # noqa: B023 - it is called now
        handle.close()
        closed.set()
        handle.close()
        writer.join()
        assert late == []


def test_an_event_on_its_way_does_not_reach_a_closed_watch(backend: EtcdBackend) -> None:
    """Neither an event nor an error is delivered that was found before the watch was closed."""
    told = Told()
    handle = watch(backend, "/a", told)
    handle.close()
    handle.take([gap("/a")])
    handle.end(MetadataStoreError("too late"))
    assert told.all == []


def test_close_waits_for_a_delivery_under_way(backend: EtcdBackend) -> None:
    """A delivery that has begun ends before `close` returns."""
    entered, leave, done = threading.Event(), threading.Event(), threading.Event()

    def deliver(_: Any) -> None:
        entered.set()
        leave.wait(PATIENCE)
        time.sleep(0.02)
        done.set()

    handle = backend.watches.watch("/a", None, deliver, print, soon())
    put(backend, "/a")
    assert entered.wait(PATIENCE)
    leave.set()
    handle.close()
    assert done.is_set()


def test_a_watch_may_close_itself(backend: EtcdBackend) -> None:
    """From within its own delivery, `close` returns at once, and no event follows."""
    told = Told()
    handles: list[Any] = []

    def deliver(events: Any) -> None:
        told.events(events)
        handles[0].close()

    handles.append(backend.watches.watch("/a", None, deliver, told.fail, soon()))
    later = Told()
    watch(backend, "/a", later)
    for count in (1, 2):
        put(backend, "/a")
        until(lambda: len(later.all) == count)  # noqa: B023 - it is called now
    assert len(told.all) == 1


def test_a_closed_watch_is_ended_at_the_server(server: EtcdServer) -> None:
    """etcd keeps no watch that its client has closed."""

    def watchers() -> float:
        connection = http.client.HTTPConnection(server.address, timeout=PATIENCE)
        with closing(connection):
            connection.request("GET", "/metrics")
            lines = connection.getresponse().read().decode().splitlines()
        name = "etcd_debugging_mvcc_watcher_total "
        return float(next(line for line in lines if line.startswith(name)).removeprefix(name))

    with opened(server.url) as backend:
        handles = [watch(backend, f"/{number}", Told()) for number in range(10)]
        assert watchers() == 10
        for handle in handles[:9]:
            handle.close()
        until(lambda: watchers() == 1)


def test_a_callback_that_fails_gets_the_next_event(
    backend: EtcdBackend, caplog: pytest.LogCaptureFixture
) -> None:
    """An exception is logged, and no watch suffers."""
    told, beside = Told(), Told()

    def deliver(events: Any) -> None:
        told.events(events)
        raise ValueError("from the callback")

    backend.watches.watch("/a", None, deliver, told.fail, soon())
    watch(backend, "/a", beside)
    for count in (1, 2):
        put(backend, "/a")
        until(lambda: len(beside.all) == len(told.all) == count)  # noqa: B023 - it is called now
    until(lambda: caplog.text.count("watch callback failed") == 2)


def test_a_closed_store_ends_its_watches(
    server: EtcdServer, other: Other, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is delivered any more, no thread is left, and new watches are refused.

    The end of the stream is not taken for a loss of the connection, which the session still needs.
    """
    caplog.set_level(logging.DEBUG)
    told = Told()
    before = set(threading.enumerate())  # some of other tests may be about to end
    with opened(server.url) as backend:
        backend.session.take(1, soon())
        handle = watch(backend, "/a", told)
    assert "lost" not in caplog.text
    other.put(b"/a")
    handle.close()
    with pytest.raises(StoreClosedError):
        watch(backend, "/a", told)
    assert told.all == []
    left = set(threading.enumerate()) - before
    assert not [thread for thread in left if "etcd-watches" in thread.name]


def test_a_silent_server_delays_a_watch_only_until_its_deadline(server: EtcdServer) -> None:
    """A watch that is not in place by its deadline ends with an error, and leaves nothing."""
    with opened(server.url) as backend:
        late, told = Told(), Told()
        server.pause()
        try:
            with pytest.raises(OperationTimeoutError):
                backend.watches.watch("/a", None, late.events, late.fail, soon(0.2))
        finally:
            server.resume()
        assert backend.watches.back()
        watch(backend, "/a", told)
        put(backend, "/a")
        put(backend, "/a/b")
        until(seen(told, "/a/b"))
        assert late.all == []


# --- outages


def test_a_cut_connection_loses_and_repeats_nothing(
    server: EtcdServer, other: Other, proxy: Callable[[str], Proxy]
) -> None:
    """Changes while the connection is broken are reported afterwards, once and in order."""
    told, idle = Told(), Told()
    line = proxy(server.address)
    with opened(f"etcd://{line.address}") as backend:
        watch(backend, "/a", told)
        watch(backend, "/idle", idle)
        revisions = []
        for number in range(300):
            revisions.append(other.put(b"/a/%d" % number))
            if number % 60 == 30:
                line.cut()
        other.put(b"/idle")
        until(lambda: len(told.all) >= 300 and idle.all)
        assert told.all == [
            WatchEvent("created", f"/a/{number}", 0, revision)
            for number, revision in enumerate(revisions)
        ]
        assert idle.brief() == [("created", "/idle", 0)]


def test_a_restart_loses_nothing(server: EtcdServer, other: Other) -> None:
    """A server that was killed and started again goes on where it was."""
    told = Told()
    with opened(server.url) as backend:
        watch(backend, "/a", told)
        for number in range(3):
            put(backend, f"/a/{number}")
            commit_everything(server)  # An old etcd may lose what it has acknowledged.
            server.kill()
            server.start()
            other.put(b"/a/%d/more" % number)
        until(lambda: len(told.all) >= 6)
        paths = [f"/a/{number}{more}" for number in range(3) for more in ("", "/more")]
        assert told.brief() == [("created", path, 0) for path in paths]


def test_a_paused_server_goes_on(server: EtcdServer) -> None:
    """Silence alone changes nothing for a watch."""
    told = Told()
    with opened(server.url) as backend:
        watch(backend, "/a", told)
        server.pause()
        time.sleep(1)
        server.resume()
        put(backend, "/a")
        until(lambda: told.all)
        assert told.brief() == [("created", "/a", 0)]


@pytest.mark.parametrize("noticed", [True, False], ids=["before", "after-the-look"])
@pytest.mark.parametrize("kept", [0, 1, 2], ids=["all", "all-but-the-first", "too-little"])
def test_a_compaction_during_an_outage(
    server: EtcdServer,
    other: Other,
    proxy: Callable[[str], Proxy],
    monkeypatch: pytest.MonkeyPatch,
    kept: int,
    noticed: bool,
) -> None:
    """One gap stands for compacted changes; a compaction of reported changes causes none.

    A compaction at the very revision where the watch goes on counts as a gap, because etcd may
    leave out a delete there. Without the look beforehand, etcd says so itself.
    """
    if not noticed:
        monkeypatch.setattr(EtcdWatches, "_check_resumable", see_nothing)
    told = Told()
    line = proxy(server.address)
    with opened(f"etcd://{line.address}") as backend:
        watch(backend, "/a", told)
        other.put(b"/a/1")
        last = other.put(b"/a/2")
        until(lambda: len(told.all) == 2)
        line.drops = True
        line.cut()
        deleted = other.delete(b"/a/1")
        other.put(b"/a/3")
        assert deleted == last + 1
        other.compact(last + kept)
        line.restore()
        until(lambda: len(told.all) > 2)
        other.put(b"/a/4")
        until(seen(told, "/a/4"))
        missed = [("deleted", "/a/1"), ("created", "/a/3")] if kept == 0 else [("gap", "/a")]
        following = [(event.kind, event.path) for event in told.all[2:]]
        assert following == [*missed, ("created", "/a/4")]


def test_an_idle_watch_does_not_fall_behind_a_compaction(
    server: EtcdServer,
    other: Other,
    proxy: Callable[[str], Proxy],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where etcd reports progress, changes elsewhere move the place where an idle watch goes on."""
    monkeypatch.setattr(module, "ASK_EVERY", 0.05)
    monkeypatch.setattr(watch_stream, "ASK_EVERY", 0.05)
    told = Told()
    line = proxy(server.address)
    with opened(f"etcd://{line.address}") as backend:
        handle = watch(backend, "/a", told)
        reports = tells_progress(other.connection.open(soon()).version)
        last = [other.put(b"/elsewhere") for _ in range(10)][-1]
        if reports:
            until(lambda: handle.after >= last)
        line.drops = True
        line.cut()
        other.compact(last)
        line.restore()
        other.put(b"/a")
        until(seen(told, "/a"))
        expected = [] if reports else [("gap", "/a", None)]
        assert [event for event in told.brief() if event[1:] != ("/a", 0)] == expected


def test_an_etcd_with_other_data_is_a_gap(server: EtcdServer) -> None:
    """A store that was set up again has none of the missed changes, and the watch starts over."""
    told, session = Told(), Told()
    with opened(server.url) as backend:
        backend.session.listen(session)
        backend.session.take(1, soon())
        watch(backend, "/a", told)
        for _ in range(10):
            put(backend, "/a")
        until(lambda: len(told.all) == 10)
        server.kill()
        shutil.rmtree(server.directory / "data")
        server.start()
        until(lambda: session.all[-1:] == ["session_reestablished"])
        assert told.all[10:] == [gap("/a")]
        put(backend, "/a/new")
        until(seen(told, "/a/new"))
        assert told.brief()[11:] == [("created", "/a/new", 0)]


def test_another_cluster_is_a_gap(own_etcd: Callable[..., EtcdServer]) -> None:
    """A member of another cluster has another past, even if its revisions would fit."""
    first, second = own_etcd(), own_etcd()
    told = Told()
    with other_client(second.address) as other:
        for _ in range(50):
            other.put(b"/x")
    with opened(f"etcd://{first.address},{second.address}") as backend:
        watch(backend, "/a", told)
        put(backend, "/a")
        until(lambda: told.all)
        first.kill()
        until(lambda: len(told.all) == 2)
        assert told.all[1] == gap("/a")


def test_a_restored_etcd_whose_revisions_have_overtaken_ours_is_a_gap(
    server: EtcdServer, other: Other, proxy: Callable[[str], Proxy]
) -> None:
    """However a client has seen its newest change. A session from before the backup is given up.

    Otherwise, its values of after the backup would be gone without a word.
    """
    line = proxy(server.address)
    data, backup = server.directory / "data", server.directory / "backup"
    seen_by = {"/x": "event", "/y": "delete", "/1": "get", "/2": "scan", "/3": "write"}
    with ExitStack() as stack:
        clients = {way: stack.enter_context(opened(f"etcd://{line.address}")) for way in seen_by}
        session, told = Told(), {path: Told() for path in seen_by}
        clients["/3"].session.listen(session)
        clients["/3"].session.take(1, soon())
        for path, client in clients.items():
            watch(client, path, told[path])
        other.put(b"/y")
        other.put(b"/x", b"1")
        server.pause()
        shutil.copytree(data, backup)
        server.resume()
        other.delete(b"/y")
        other.put(b"/x", b"2")
        put(clients["/3"], "/mine")
        clients["/1"].read([Get("/x")], soon())
        assert len([*itertools.chain(*clients["/2"].scans.scan("/", Range(), None, PATIENCE))]) == 2
        until(lambda: len(told["/x"].all) == len(told["/y"].all) == 2)
        line.drops = True
        line.cut()
        server.kill()
        shutil.rmtree(data)
        backup.rename(data)
        server.start()
        for _ in range(9):
            other.put(b"/x", b"3")
        line.restore()
        for path, events in told.items():
            until(partial(ends_with, events, gap(path)), seen_by[path])
        until(partial(ends_with, session, "session_reestablished"))
        assert "session_lost" in session.all


def test_a_lost_session_is_over_when_watches_are_back(
    server: EtcdServer, other: Other, proxy: Callable[[str], Proxy], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new session is reported only after every watch is in place again, with its gap."""
    told = Told()
    line = proxy(server.address)
    place = threading.Event()
    check_resumable = EtcdWatches._check_resumable

    def held_up(self: EtcdWatches) -> bool:
        assert place.wait(PATIENCE)
        return check_resumable(self)

    with opened(f"etcd://{line.address}") as backend:
        backend.session.listen(told)
        taken = backend.session.take(1, soon())
        watch(backend, "/a", told)
        monkeypatch.setattr(EtcdWatches, "_check_resumable", held_up)
        line.drops = True
        line.cut()
        other.revoke(taken.lease)
        other.compact(other.put(b"/x"))
        line.restore()
        until(lambda: backend.session.number == 2 and backend.session.id)
        claim = backend.session.valid_until()
        until(lambda: backend.session.valid_until() > claim)  # a renewal later
        assert told.all == ["connection_lost", "reconnected", "session_lost"]
        place.set()
        until(lambda: "session_reestablished" in told.all)
        assert told.all[3:] == [gap("/a"), "session_reestablished"]


def test_an_outage_of_the_session_is_one_of_the_watches(
    backend: EtcdBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If only the keep-alives fail, watches are placed again as well, and miss nothing."""
    session, told = Told(), Told()
    backend.session.listen(session)
    backend.session.take(1, soon())
    watch(backend, "/a", told)
    put(backend, "/a/1")
    streams = streams_of(monkeypatch)
    heard = KeepAlives._wait_for_answer

    def fail(self: KeepAlives, _: float) -> bool:
        monkeypatch.setattr(KeepAlives, "_wait_for_answer", heard)
        return False

    monkeypatch.setattr(KeepAlives, "_answers", lambda _: False)
    monkeypatch.setattr(KeepAlives, "_wait_for_answer", fail)
    until(lambda: len(session.all) >= 2)
    assert session.all == ["connection_lost", "reconnected"]
    until(lambda: streams)
    put(backend, "/a/2")
    until(seen(told, "/a/2"))
    assert told.brief() == [("created", f"/a/{number}", 0) for number in (1, 2)]


def test_a_fault_of_our_own_leaves_no_watch_silent(
    backend: EtcdBackend, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An unexpected error is logged, and the watch goes on where it was."""
    told = Told()
    watch(backend, "/a", told)
    change = EtcdWatch.change

    def fail(self: EtcdWatch, *args: Any, **more: Any) -> None:
        monkeypatch.setattr(EtcdWatch, "change", change)
        raise ZeroDivisionError("a fault")

    monkeypatch.setattr(EtcdWatch, "change", fail)
    put(backend, "/a/1")
    put(backend, "/a/2")
    until(seen(told, "/a/2"))
    assert told.brief() == [("created", "/a/1", 0), ("created", "/a/2", 0)]
    assert "a fault" in caplog.text


def test_a_watch_that_etcd_ends_is_made_anew(
    backend: EtcdBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever ends it, and for whatever reason: it goes on where it was."""
    told = Told()
    streams = streams_of(monkeypatch)
    handle = watch(backend, "/a", told)
    put(backend, "/a/1")
    for number in (2, 3):
        # From the server's point of view the client has asked for it.
        streams[-1].queue.append(cancel_request(handle.watch_id))
        watch(backend, f"/b/{number}", Told())  # It lets the stream send what is queued.
        until(lambda: len(streams) == number)  # noqa: B023 - it is called now
        put(backend, f"/a/{number}")
        until(seen(told, f"/a/{number}"))
    assert told.brief() == [("created", f"/a/{number}", 0) for number in (1, 2, 3)]


def test_a_watch_that_etcd_ends_again_and_again_fails(
    backend: EtcdBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not go round in circles for ever, and its neighbour goes on."""
    told, beside = Told(), Told()
    watch(backend, "/a", told)
    watch(backend, "/b", beside)
    created = EtcdWatches._created
    doomed = next(iter(backend.watches._watches))

    def ending(self: EtcdWatches, stream: Any, response: Any) -> None:
        created(self, stream, response)
        if doomed.placed:
            raise_for = messages.WatchResponse(canceled=True, cancel_reason="because")
            self._canceled(stream, doomed, raise_for)

    monkeypatch.setattr(EtcdWatches, "_created", ending)
    backend.watches.interrupt()
    until(lambda: told.all)
    assert type(told.all[0]) is MetadataStoreError
    assert "because" in str(told.all[0])
    put(backend, "/b")
    until(lambda: beside.all)
    assert beside.brief() == [("created", "/b", 0)]


# --- logins


@pytest.fixture
def secured_etcd(own_etcd: Callable[..., EtcdServer]) -> EtcdServer:
    """An etcd that asks for a login, and forgets it after a second without use."""
    server = own_etcd("--auth-token-ttl", "1")
    secured(server)
    return server


def test_a_limited_user_watches_what_it_may_read(secured_etcd: EtcdServer) -> None:
    """Permissions on the prefix are enough, and other paths are refused quickly."""
    told = Told()
    with closing(connect(secured_etcd.url, LIMITED)) as backend:
        assert isinstance(backend, EtcdBackend)
        watch(backend, "/ok", told)
        put(backend, "/ok/a")
        for forbidden in ("/no", "/"):
            with pytest.raises(AuthenticationError, match="permission denied"):
                watch(backend, forbidden, told)
        put(backend, "/ok/b")
        until(seen(told, "/ok/b"))
        assert told.brief() == [("created", "/ok/a", 0), ("created", "/ok/b", 0)]
    with opened(f"{secured_etcd.url}/ok", username="limited", password="limited's") as backend:
        whole = Told()
        watch(backend, "/", whole)
        put(backend, "/c")
        until(lambda: whole.all)
        assert whole.brief() == [("created", "/c", 0)]


@pytest.mark.parametrize("old", [False, True], ids=["as-it-says", "as-old-etcds-say"])
def test_a_login_that_expires_costs_no_event(
    secured_etcd: EtcdServer, monkeypatch: pytest.MonkeyPatch, old: bool
) -> None:
    """A watch that is placed on a stream whose login has expired is placed all the same.

    Old etcds say "permission denied" there.
    """
    if old:
        monkeypatch.setattr(module, "read_text", lambda _: Reason.NOT_PERMITTED)
    first, second = Told(), Told()
    with opened(f"{secured_etcd.url}/ok", username="limited", password="limited's") as backend:
        watch(backend, "/a", first)
        time.sleep(3)  # etcd counts the login's second from its last use, and looks now and then
        watch(backend, "/b", second)
        put(backend, "/a", "/b")
        until(lambda: first.all and second.all)
        assert first.brief() == [("created", "/a", 0)]
        assert second.brief() == [("created", "/b", 0)]


def test_a_permission_that_is_taken_back_ends_the_watch(
    secured_etcd: EtcdServer, proxy: Callable[[str], Proxy], caplog: pytest.LogCaptureFixture
) -> None:
    """At the latest after the next outage it fails with the reason, once, and nobody else does."""
    told, beside = Told(), Told()
    line = proxy(secured_etcd.address)
    with (
        other_client(secured_etcd.address, ROOT) as root,
        closing(connect(f"etcd://{line.address}", LIMITED)) as backend,
    ):
        assert isinstance(backend, EtcdBackend)
        link = root.connection.open(soon())
        stub = grpc_stubs.AuthStub(grpc.insecure_channel(link.address))
        permission = messages.AuthRoleGrantPermissionRequest(name="some")
        permission.perm.permType = 2  # READWRITE
        permission.perm.key, permission.perm.range_end = b"/more", b"/more0"
        stub.RoleGrantPermission(permission, metadata=link.metadata)
        watch(backend, "/ok", beside)
        watch(backend, "/more", told)
        revoked = messages.AuthRoleRevokePermissionRequest(
            role="some", key=b"/more", range_end=b"/more0"
        )
        stub.RoleRevokePermission(revoked, metadata=link.metadata)
        line.cut()
        until(lambda: told.all)
        put(backend, "/ok")
        until(lambda: beside.all)
        assert [type(one) for one in told.all] == [AuthenticationError]
        assert beside.brief() == [("created", "/ok", 0)]
    assert "limited's" not in caplog.text


def test_a_login_that_is_taken_back_ends_all_watches(
    secured_etcd: EtcdServer, proxy: Callable[[str], Proxy]
) -> None:
    """With a password that no longer holds, every watch ends with an error, and so do new ones."""
    tolds = [Told(), Told()]
    line = proxy(secured_etcd.address)
    url = f"etcd://{line.address}/ok"
    with opened(url, username="limited", password="limited's") as backend:
        for told in tolds:
            watch(backend, "/a", told)
        with other_client(secured_etcd.address, ROOT) as root:
            link = root.connection.open(soon())
            stub = grpc_stubs.AuthStub(grpc.insecure_channel(link.address))
            change = messages.AuthUserChangePasswordRequest(name="limited", password="other")
            stub.UserChangePassword(change, metadata=link.metadata)
        line.cut()
        for told in tolds:
            until(lambda: told.all)  # noqa: B023 - it is called now
            assert [type(one) for one in told.all] == [AuthenticationError]
            assert "limited's" not in str(told.all[0])
        with pytest.raises(AuthenticationError):
            watch(backend, "/a", Told())


@pytest.mark.server
def test_a_certificate_is_enough_to_watch(tmp_path: Any) -> None:
    """With TLS, the user of a client certificate watches what it may read."""
    with TlsEtcd(tmp_path / "etcd", asks=True) as server:
        secured(server)
        told = Told()
        with opened(server.tls_url("limited", "trusted"), connect_timeout=PATIENCE) as backend:
            watch(backend, "/ok", told)
            put(backend, "/ok/a")
            until(lambda: told.all)
            with pytest.raises(AuthenticationError):
                watch(backend, "/no", told)
        assert told.brief() == [("created", "/ok/a", 0)]
