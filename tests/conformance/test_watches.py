"""Watches: every change below a prefix once and in order, or a gap in its place."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import batchkeeper as bk

from ..contents import put_all
from ..programs import run_python
from ..waiting import PATIENCE, error, result, until

pytestmark = pytest.mark.needs("watches")

Opens = Callable[[], bk.MetadataStore]


def take(watch: bk.Watch, number: int) -> list[tuple[str, str]]:
    """Return the kinds and the paths of the next events."""
    events = []
    for _ in range(number):
        event = watch.next_event(PATIENCE)
        assert event is not None, f"only {len(events)} events came: {events}"
        events.append((event.kind, event.path))
    return events


def last(store: bk.MetadataStore, watch: bk.Watch, end: str) -> list[tuple[str, str]]:
    """Put ``end``, and return all events before its own: after those of earlier puts, none."""
    result(store.put(end, b""))
    events = []
    while True:
        event = watch.next_event(PATIENCE)
        assert event is not None, f"the end did not come: {events}"
        if event.path == end:
            return events
        events.append((event.kind, event.path))


# --- what is reported


def test_the_life_of_a_path(store: bk.MetadataStore) -> None:
    """A creation, a change and a delete are one event each, in order, with versions if known."""
    with store.watch("/a") as watch:
        stats = [result(store.put("/a/b", value)) for value in (b"1", b"2", b"2")]
        result(store.delete("/a/b"))
        stats.append(result(store.put("/a/b", b"3")))
        events = [next(watch) for _ in range(5)]
    assert [event.kind for event in events] == [
        "created",
        "modified",
        "modified",
        "deleted",
        "created",
    ]
    assert {event.path for event in events} == {"/a/b"}
    for event, version in zip(events, (0, 1, 2, None, 0), strict=True):
        assert event.version in {version, None}
    for event, stat in zip(events[:3] + events[4:], stats, strict=True):
        assert event.revision in {stat.revision, None}
    told = [event.revision for event in events if event.revision is not None]
    assert told == sorted(told)


def test_from_the_moment_that_the_call_returned(store: bk.MetadataStore) -> None:
    """A put that is submitted after the call gives an event; what was there before gives none."""
    for n in range(20):
        result(store.put(f"/{n}/before", b""))
        watch = store.watch(f"/{n}")
        store.put(f"/{n}/after", b"")
        assert take(watch, 1) == [("created", f"/{n}/after")]
        watch.close()


def test_the_prefix_itself_and_all_below_it(store: bk.MetadataStore) -> None:
    """The prefix and every depth below it are reported, and no neighbour with a longer name."""
    with store.watch("/a") as watch:
        for path in ("/a-b", "/ab", "/b/a", "/a", "/a/b", "/a/b/c/d", "/aa/a", "/a/é ü"):
            result(store.put(path, b""))
        assert last(store, watch, "/a/end") == [
            ("created", "/a"),
            ("created", "/a/b"),
            ("created", "/a/b/c/d"),
            ("created", "/a/é ü"),
        ]


def test_a_watch_of_the_root(store: bk.MetadataStore) -> None:
    """The prefix ``/`` covers the whole store."""
    with store.watch("/") as watch:
        for path in ("/a", "/b/c", "/zookeeper-x"):
            result(store.put(path, b""))
        assert last(store, watch, "/end") == [
            ("created", "/a"),
            ("created", "/b/c"),
            ("created", "/zookeeper-x"),
        ]


def test_a_parent_is_created_with_its_first_value(store: bk.MetadataStore) -> None:
    """A parent without a value gives no event; its first put gives ``created``."""
    with store.watch("/a") as watch:
        result(store.put("/a/b/c", b""))
        result(store.put("/a/b", b"now"))
        result(store.put("/a/b", b"later"))
        assert last(store, watch, "/a/end") == [
            ("created", "/a/b/c"),
            ("created", "/a/b"),
            ("modified", "/a/b"),
        ]


def test_a_watch_above_what_is_there(store: bk.MetadataStore) -> None:
    """Values that were there are not reported, their later changes and deletes are."""
    put_all(store, {"/a": b"", "/a/b": b"", "/a/b/c": b""})
    with store.watch("/a") as watch:
        result(store.put("/a/b", b"new"))
        result(store.delete("/a/b/c"))
        assert last(store, watch, "/a/end") == [("modified", "/a/b"), ("deleted", "/a/b/c")]


def test_refused_writes_and_reads_give_no_event(store: bk.MetadataStore) -> None:
    """Only changes are reported, not attempts."""
    result(store.put("/a", b""))
    with store.watch("/") as watch:
        error(store.put("/a", b"", bk.ABSENT))
        error(store.put("/b", b"", 3))
        error(store.delete("/c"))
        result(store.get("/a"))
        list(store.scan("/"))
        assert last(store, watch, "/end") == []


def test_changes_by_others(store: bk.MetadataStore, another: Opens) -> None:
    """Changes of other clients are reported like this one's changes, in one order."""
    other = another()
    with store.watch("/a") as watch:
        for n in range(10):
            result((store, other)[n % 2].put("/a/shared", b"%d" % n))
        assert take(watch, 10) == [("created", "/a/shared"), *[("modified", "/a/shared")] * 9]


def test_a_recursive_delete(store: bk.MetadataStore) -> None:
    """delete_recursive gives one ``deleted`` for each value, and none for mere parents."""
    put_all(store, {f"/a/{n}/x": b"" for n in range(30)})
    with store.watch("/a") as watch:
        result(store.delete_recursive("/a"))
        events = last(store, watch, "/a/end")
    assert sorted(events) == sorted(("deleted", f"/a/{n}/x") for n in range(30))


@pytest.mark.needs("transactions")
def test_transactions(store: bk.MetadataStore) -> None:
    """Each change of a transaction is an event; its checks and a refused one give none."""
    put_all(store, {"/a/kept": b"", "/a/old": b""})
    with store.watch("/a") as watch:
        ops = [bk.Check("/a/kept", 0), bk.Put("/a/new", b""), bk.Delete("/a/old")]
        assert result(store.transaction(ops))
        assert isinstance(error(store.transaction(ops)), bk.TransactionRefusedError)
        events = last(store, watch, "/a/end")
    assert sorted(events) == [("created", "/a/new"), ("deleted", "/a/old")]


@pytest.mark.needs("transactions")
def test_checks_of_one_path_in_a_bulk_call(store: bk.MetadataStore) -> None:
    """However many transactions check that a path is free, only their puts are events."""
    paths = [f"/a/{n:02}" for n in range(50)]
    with store.watch("/a") as watch:
        free = bk.Check("/a/lock", bk.ABSENT)
        outcomes = store.apply([bk.Transaction([free, bk.Put(path, b"")]) for path in paths])
        assert all(outcome.ok for outcome in outcomes)
        events = last(store, watch, "/a/end")
    assert sorted(events) == [("created", path) for path in paths]


@pytest.mark.needs("transactions")
def test_a_check_that_something_is_missing_below_a_new_path(store: bk.MetadataStore) -> None:
    """The check leaves no trace in the events of the path, which is created once."""
    put_all(store, {"/a/kept": b""})
    with store.watch("/a") as watch:
        ops = [bk.Check("/a/new/below", bk.ABSENT), bk.Put("/a/new", b"")]
        result(store.transaction(ops))
        assert last(store, watch, "/a/end") == [("created", "/a/new")]


@pytest.mark.needs("sequences")
def test_sequential_puts(store: bk.MetadataStore) -> None:
    """A sequential put is reported with its real path, and nothing else is."""
    with store.watch("/") as watch:
        stats = [result(store.put("/q/n-", b"", sequential=True)) for _ in range(5)]
        assert last(store, watch, "/end") == [("created", stat.path) for stat in stats]


@pytest.mark.needs("ephemerals")
def test_ephemeral_values(store: bk.MetadataStore, another: Opens, one_opener: bool) -> None:
    """An ephemeral value is reported, also when the end of its session removes it."""
    other = another()
    with store.watch("/") as watch:
        for n in range(5):
            result(other.put(f"/e/{n}", b"", ephemeral=True))
        assert take(watch, 5) == [("created", f"/e/{n}") for n in range(5)]
        if one_opener:
            return  # The watch ends with the store, and so before the values do.
        other.close()
        assert sorted(take(watch, 5)) == [("deleted", f"/e/{n}") for n in range(5)]
        assert last(store, watch, "/end") == []


# --- once and in order


@pytest.mark.slow
def test_under_load(store: bk.MetadataStore, another: Opens) -> None:
    """Thousands of changes by four threads on two clients come once each, in order per path."""
    clients, paths, rounds = [store, another()], 40, 15

    def write(thread: int) -> None:
        client = clients[thread % 2]
        futures = []
        for _ in range(rounds):
            futures += [client.put(f"/a/{thread}/{n}", b"") for n in range(paths)]
            futures += [client.delete(f"/a/{thread}/{n}") for n in range(0, paths, 5)]
        for future in futures:
            result(future)

    with store.watch("/a") as watch, ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))
        kinds: dict[str, list[str]] = defaultdict(list)
        for kind, path in last(store, watch, "/a/end"):
            kinds[path].append(kind)
    assert len(kinds) == 4 * paths
    for path, found in kinds.items():
        if int(path.rpartition("/")[2]) % 5:
            assert found == ["created", *["modified"] * (rounds - 1)], path
        else:
            assert found == ["created", "deleted"] * rounds, path


def test_several_watches(store: bk.MetadataStore) -> None:
    """Watches of the same, of nested and of other prefixes each get their own changes once."""
    prefixes = ["/a", "/a", "/a/b", "/", "/c"]
    watches = [store.watch(prefix) for prefix in prefixes]
    paths = ["/a", "/a/b", "/a/b/c", "/c/d", "/e"]
    put_all(store, dict.fromkeys(paths, b""))
    for watch in watches:
        expected = [
            path
            for path in paths
            if watch.prefix == "/" or f"{path}/".startswith(f"{watch.prefix}/")
        ]
        assert sorted(path for _, path in take(watch, len(expected))) == sorted(expected)
    watches[0].close()
    result(store.put("/a/b", b"2"))
    assert list(watches[0]) == []
    for watch in watches[1:4]:
        assert take(watch, 1) == [("modified", "/a/b")]
    result(store.put("/c/d", b"2"))
    assert take(watches[4], 1) == take(watches[3], 1) == [("modified", "/c/d")]


def test_two_stores_of_one_process(store: bk.MetadataStore, another: Opens) -> None:
    """Watches of two clients are independent: closing one client ends its own alone."""
    other = another()
    mine, theirs = store.watch("/a"), other.watch("/a")
    result(store.put("/a", b""))
    assert take(mine, 1) == take(theirs, 1) == [("created", "/a")]
    if other is not store:
        other.close()
        assert list(theirs) == []
    result(store.put("/a", b""))
    assert take(mine, 1) == [("modified", "/a")]


# --- a slow reader


def test_a_slow_reader_is_bounded(store: bk.MetadataStore) -> None:
    """Past ``max_events``, the newest stay, and one gap stands for those that were dropped."""
    slow, quick = store.watch("/a", max_events=10), store.watch("/a")
    for n in range(100):
        result(store.put(f"/a/{n:02d}", b""))
    assert [path for _, path in take(quick, 100)] == [f"/a/{n:02d}" for n in range(100)]
    until(lambda: store.metrics().watch_drops == 90, "not all were dropped")
    assert take(slow, 11) == [("gap", "/a"), *(("created", f"/a/{n}") for n in range(90, 100))]
    result(store.put("/a/00", b""))
    assert take(slow, 1) == [("modified", "/a/00")]


def test_a_slow_callback_is_bounded(store: bk.MetadataStore) -> None:
    """A callback that does not return costs no memory and no speed, and then finds a gap."""
    go, first = threading.Event(), threading.Event()
    seen: list[bk.WatchEvent] = []

    def callback(event: bk.WatchEvent) -> None:
        seen.append(event)
        first.set()
        assert go.wait(PATIENCE)

    store.watch("/a", callback=callback, max_events=10)
    quick = store.watch("/a")
    result(store.put("/a/first", b""))
    assert first.wait(PATIENCE)
    for n in range(100):
        result(store.put(f"/a/{n:02d}", b""))
    take(quick, 101)
    until(lambda: store.metrics().watch_drops == 90, "not all were dropped")
    go.set()
    until(lambda: len(seen) == 12, "not all came")
    assert [event.path for event in seen] == [
        "/a/first",
        "/a",
        *(f"/a/{n}" for n in range(90, 100)),
    ]
    assert seen[1] == bk.WatchEvent("gap", "/a", None, None)


# --- callbacks


def test_a_callback_gets_the_events(store: bk.MetadataStore) -> None:
    """The events go to the callback one by one and in order, on one thread that is not ours."""
    seen: list[tuple[str, str, int]] = []
    watch = store.watch(
        "/a", callback=lambda event: seen.append((event.kind, event.path, threading.get_ident()))
    )
    for future in [store.put(f"/a/{n % 7}", b"") for n in range(500)]:
        result(future)
    until(lambda: len(seen) == 500, "not all came")
    kinds: dict[str, list[str]] = defaultdict(list)
    for kind, path, _ in seen:
        kinds[path].append(kind)
    assert all(found == ["created", *["modified"] * (len(found) - 1)] for found in kinds.values())
    assert len({thread for _, _, thread in seen} - {threading.get_ident()}) == 1
    assert len({thread for _, _, thread in seen}) == 1
    watch.close()


def test_a_callback_that_raises(store: bk.MetadataStore, caplog: pytest.LogCaptureFixture) -> None:
    """An exception in a callback is logged, and the next event follows, to all callbacks."""
    seen: list[str] = []
    done = threading.Event()

    def failing(event: bk.WatchEvent) -> None:
        seen.append(event.path)
        raise SystemExit if event.path == "/a/1" else ValueError(event.path)

    store.watch("/a", callback=failing)
    store.watch("/a", callback=lambda event: done.set() if event.path == "/a/3" else None)
    with caplog.at_level(logging.ERROR, "batchkeeper"):
        for n in range(4):
            result(store.put(f"/a/{n}", b""))
        until(lambda: len(seen) == 4, "the watch has ended")
        assert done.wait(PATIENCE)
        until(
            lambda: sum("callback failed" in record.message for record in caplog.records) == 4,
            "an exception is not logged",
        )
    assert seen == [f"/a/{n}" for n in range(4)]


def test_a_callback_that_calls_the_store(store: bk.MetadataStore) -> None:
    """A callback may submit operations, wait for them, begin watches and read metrics."""
    answers: list[Any] = []

    def callback(event: bk.WatchEvent) -> None:
        found = store.get(event.path).result(PATIENCE)
        stat = store.put(f"/seen{event.path}", found.value).result(PATIENCE)
        with store.watch("/other") as inner:
            store.put("/other", b"").result(PATIENCE)
            answers.append((stat.version, inner.next_event(PATIENCE).path, store.metrics().watches))

    store.watch("/a", callback=callback)
    for n in range(3):
        result(store.put(f"/a/{n}", b"%d" % n))
    until(lambda: len(answers) == 3, "the callback waits for ever")
    assert answers == [(0, "/other", 2)] * 3
    assert result(store.get("/seen/a/2")).value == b"2"


def test_a_callback_beside_done_callbacks(store: bk.MetadataStore) -> None:
    """Callbacks of watches and done-callbacks share a thread, and each has its turn."""
    threads: set[int] = set()
    counts = {"watch": 0, "done": 0}

    def count(name: str) -> None:
        threads.add(threading.get_ident())
        counts[name] += 1

    store.watch("/a", callback=lambda _: count("watch"))
    for n in range(300):
        store.put(f"/a/{n}", b"").add_done_callback(lambda _: count("done"))
    until(lambda: counts == {"watch": 300, "done": 300}, "some did not run")
    assert len(threads - {threading.get_ident()}) == 1


def test_a_watch_closed_in_its_callback(store: bk.MetadataStore) -> None:
    """A callback may close its own watch, and gets no event after that."""
    seen: list[str] = []
    watch: bk.Watch

    def callback(event: bk.WatchEvent) -> None:
        seen.append(event.path)
        watch.close()

    watch = store.watch("/a", callback=callback)
    others: list[str] = []
    with store.watch("/a", callback=lambda event: others.append(event.path)):
        for n in range(20):
            result(store.put(f"/a/{n}", b""))
        # Callbacks have a thread of their own, and each has its turn on it.
        until(lambda: watch.closed and len(others) == 20, "the callbacks did not run")
    assert seen == ["/a/0"]
    assert store.metrics().watches == 0


def test_a_store_closed_in_a_callback(store: bk.MetadataStore) -> None:
    """A callback may close the store; it ends, and so does everybody who waits for it."""
    closed = threading.Event()

    def callback(event: bk.WatchEvent) -> None:
        store.close()
        closed.set()

    store.watch("/a", callback=callback)
    result(store.put("/a", b""))
    assert closed.wait(PATIENCE)
    with pytest.raises(bk.StoreClosedError):
        store.get("/a")


def test_a_watch_with_a_callback_is_not_iterated_over(store: bk.MetadataStore) -> None:
    """Its events go to the callback alone, and the mistake is named."""
    with store.watch("/a", callback=print) as watch:
        for call in (lambda: next(watch), watch.next_event, lambda: list(watch)):
            with pytest.raises(bk.InvalidSettingError, match="callback"):
                call()


# --- closing


def test_closing_ends_the_iteration(store: bk.MetadataStore) -> None:
    """After close, also a second one, there are no events, and none is held any more."""
    watch = store.watch("/a")
    result(store.put("/a", b""))
    assert take(watch, 1)
    result(store.put("/a", b""))
    for _ in range(2):
        watch.close()
        assert watch.closed
        assert list(watch) == []
        with pytest.raises(StopIteration):
            next(watch)
        with pytest.raises(bk.StoreClosedError, match="watch is closed"):
            watch.next_event(0)
    assert watch.error is None
    assert "/a" in repr(watch)
    assert "closed" in repr(watch)


def test_closing_wakes_those_who_wait(store: bk.MetadataStore) -> None:
    """Threads that wait for an event leave when another thread closes the watch."""
    watch = store.watch("/a")
    with ThreadPoolExecutor(4) as pool:
        iterating = [pool.submit(list, watch) for _ in range(3)]
        waiting = pool.submit(watch.next_event)
        with store.watch("/b") as other:  # long enough for them to begin
            assert other.next_event(0.05) is None
        watch.close()
        assert [future.result(PATIENCE) for future in iterating] == [[], [], []]
        assert isinstance(waiting.exception(PATIENCE), bk.StoreClosedError)


def test_leaving_the_block_closes(store: bk.MetadataStore) -> None:
    """A ``with`` block closes its watch, also when it is left by an exception."""
    with store.watch("/a") as watch:
        assert not watch.closed
    assert watch.closed
    with pytest.raises(ZeroDivisionError), store.watch("/a") as watch:
        raise ZeroDivisionError
    assert watch.closed
    assert store.metrics().watches == 0


def test_closing_the_store_ends_its_watches(store: bk.MetadataStore) -> None:
    """What came before the close can be taken; then the iteration ends, and waiting threads go."""
    watch, idle = store.watch("/a"), store.watch("/b")
    seen: list[str] = []
    store.watch("/a", callback=lambda event: seen.append(event.path))
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(list, idle)
        for n in range(5):
            result(store.put(f"/a/{n}", b""))
        until(lambda: store.metrics().watch_events == 10, "not all came")
        store.close()
        assert waiting.result(PATIENCE) == []
    assert [event.path for event in watch] == seen == [f"/a/{n}" for n in range(5)]
    assert watch.closed
    watch.close()
    with pytest.raises(bk.StoreClosedError):
        store.watch("/a")


def test_a_watch_that_nobody_holds_closes_itself(store: bk.MetadataStore) -> None:
    """A dropped watch ends with the next event, if it has no callback; with one, it goes on."""
    seen: list[str] = []
    store.watch("/a", callback=lambda event: seen.append(event.kind))
    dropped = store.watch("/a")
    result(store.put("/a", b""))
    assert take(dropped, 1) == [("created", "/a")]
    assert store.metrics().watches == 2
    del dropped
    gc.collect()
    result(store.put("/a", b""))
    until(lambda: store.metrics().watches == 1, "the dropped watch is still there")
    result(store.delete("/a"))
    until(lambda: seen == ["created", "modified", "deleted"], f"the callback got {seen}")


def test_a_thread_waits_no_longer_than_it_says(store: bk.MetadataStore) -> None:
    """next_event returns None if nothing comes in time, and later events are not lost."""
    with store.watch("/a") as watch:
        assert watch.next_event(0) is None
        assert watch.next_event(timeout=0.01) is None
        result(store.put("/a", b""))
        assert watch.next_event(PATIENCE).kind == "created"
        for bad in (-1, "1", True):
            with pytest.raises(bk.InvalidSettingError, match="timeout"):
                watch.next_event(bad)


def test_threads_share_a_watch(store: bk.MetadataStore) -> None:
    """Each event goes to one of the threads that iterate over a watch."""
    watch = store.watch("/a")
    paths: list[str] = []

    def iterate() -> None:
        for event in watch:
            paths.append(event.path)  # noqa: PERF401 - others append at the same time

    with ThreadPoolExecutor(4) as pool:
        futures = [pool.submit(iterate) for _ in range(4)]
        put_all(store, {f"/a/{n}": b"" for n in range(200)})
        until(lambda: len(paths) == 200, "not all came")
        watch.close()
        for future in futures:
            future.result(PATIENCE)
    assert sorted(paths) == sorted(f"/a/{n}" for n in range(200))


# --- mistakes


@pytest.mark.call
@pytest.mark.parametrize("prefix", ["a", "/a/", "/a//b", "/a/../b", "", None, "/zookeeper/x"])
def test_the_prefix_is_a_path(store: bk.MetadataStore, prefix: Any) -> None:
    """An invalid prefix raises from the call."""
    with pytest.raises(bk.InvalidPathError):
        store.watch(prefix)


@pytest.mark.call
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_events": 0}, "max_events"),
        ({"max_events": True}, "max_events"),
        ({"max_events": 1.5}, "max_events"),
        ({"after": -1}, "after"),
        ({"after": "1"}, "after"),
        ({"callback": 1}, "callback"),
        ({"callback": asyncio.sleep}, "coroutine"),
        ({"timeout": 0}, "timeout"),
    ],
)
def test_bad_arguments(store: bk.MetadataStore, arguments: dict[str, Any], message: str) -> None:
    """A bad argument raises from the call, with its name, and begins no watch."""
    with pytest.raises(bk.InvalidSettingError, match=message):
        store.watch("/a", **arguments)
    assert store.metrics().watches == 0


def test_after_a_revision(store: bk.MetadataStore) -> None:
    """With history, a watch may begin after an earlier revision; without, the call is refused."""
    result(store.put("/a/1", b""))
    result(store.put("/b", b""))
    revision = store.revision()
    result(store.put("/a/2", b""))
    result(store.put("/a/1", b"new"))
    if "history" in store.capabilities:
        with store.watch("/a", after=revision) as watch:
            assert take(watch, 2) == [("created", "/a/2"), ("modified", "/a/1")]
            result(store.delete("/a/1"))
            assert take(watch, 1) == [("deleted", "/a/1")]
    else:
        with pytest.raises(bk.UnsupportedError, match="'history'"):
            store.watch("/a", after=revision)


FORKED = """
import os, sys, warnings
import batchkeeper as bk

warnings.simplefilter("ignore", DeprecationWarning)
with bk.open_store(sys.argv[1]) as store:
    watch = store.watch("/a")
    store.put("/a/1", b"").result()
    assert next(watch).path == "/a/1"
    child = os.fork()
    if child == 0:
        refused = 0
        for call in (lambda: next(watch), lambda: watch.next_event(0), lambda: store.watch("/b")):
            try:
                call()
            except bk.StoreClosedError as error:
                refused += "before this process was forked" in str(error)
        watch.close()
        os._exit(refused)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    store.put("/a/2", b"").result()
    assert next(watch).path == "/a/2"
"""


@pytest.mark.slow
def test_a_watch_raises_in_a_forked_child(store_url: str) -> None:
    """A watch is refused in a forked child, whose close of it does not end the parent's."""
    ended = run_python("-c", FORKED, store_url, timeout=PATIENCE)
    assert ended.returncode == 0, ended.stderr


# --- numbers


def test_metrics_count_watches(store: bk.MetadataStore) -> None:
    """The metrics have the open watches, and the events of all watches, also of closed ones."""
    first, second = store.watch("/a"), store.watch("/")
    for n in range(3):
        result(store.put(f"/a/{n}", b""))
    take(first, 3)
    take(second, 3)
    metrics = store.metrics()
    assert (metrics.watches, metrics.watch_events, metrics.watch_drops) == (2, 6, 0)
    first.close()
    metrics = store.metrics()
    assert (metrics.watches, metrics.watch_events, metrics.watch_drops) == (1, 6, 0)
