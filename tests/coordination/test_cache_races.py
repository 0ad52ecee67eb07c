"""Answers and events of a cache in each order that a network can bring about.

Answers are held back by faults of the store, and events before the cache takes them.
"""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import pytest

import batchkeeper as bk
from batchkeeper.coordination import MetadataCache
from batchkeeper.coordination._sync.cache_watch import CacheWatch
from batchkeeper.coordination.entries import NOT_CACHED
from batchkeeper.ops.serdes import json_serde
from batchkeeper.testing import FaultInjector, Injection

from ..held_watch import HeldEvents
from ..waiting import PATIENCE, until
from .answers import Answers
from .caching import Thread, is_cached, loads, memory, together, warm

#: Begins a call, and holds back the answer to its request of a kind and a path, which is there when
#: this returns. Returns the hold and the call's thread.
Hold: TypeAlias = Callable[[str, str, Callable[[], Any]], tuple[Injection, Thread[Any]]]


@pytest.fixture(params=["etcd", "zookeeper"])
def url(request: pytest.FixtureRequest, fresh_url: Callable[[str], str]) -> str:
    """The URL of an empty store that two clients can have open."""
    return fresh_url(request.param)


@pytest.fixture
def answers() -> Answers:
    """The answers that the store has got, which may be held back."""
    return Answers()


@pytest.fixture
def store(url: str, answers: Answers, faults: FaultInjector) -> Iterator[bk.MetadataStore]:
    """The store of the cache."""
    with bk.open_store(url, wrap=(answers, faults)) as opened:
        yield opened
        faults.clear()


@pytest.fixture
def other(store: bk.MetadataStore, url: str) -> Iterator[bk.MetadataStore]:
    """Another client, whose requests are not held back."""
    with bk.open_store(url) as opened:
        yield opened


@pytest.fixture
def heard(store: bk.MetadataStore, monkeypatch: pytest.MonkeyPatch) -> Iterator[HeldEvents]:
    """What the cache has heard."""
    made = HeldEvents(store, monkeypatch)
    yield made
    made.release()


@pytest.fixture
def cache(store: bk.MetadataStore, heard: HeldEvents) -> Iterator[MetadataCache[Any]]:
    """A cache of JSON whose watch is in place."""
    with MetadataCache(store, "/a", json_serde) as made:
        warm(made, "/a/warm")
        yield made


@pytest.fixture
def hold(faults: FaultInjector, answers: Answers) -> Hold:
    """Hold back an answer; see ``Hold``."""

    def begin(kind: str, path: str, call: Callable[[], Any]) -> tuple[Injection, Thread[Any]]:
        before = answers.count(kind, path)
        held = faults.delay(kind, path, applied=True)
        thread = Thread(call)
        until(lambda: answers.count(kind, path) > before)
        return held, thread

    return begin


def put(store: bk.MetadataStore, value: int, path: str = "/a/b") -> None:
    store.put(path, b"%d" % value).result(PATIENCE)


def test_an_event_before_the_answer_of_a_load(
    cache: MetadataCache[Any], other: bk.MetadataStore, heard: HeldEvents, hold: Hold
) -> None:
    """A value that was read before another client's write never enters after its event."""
    put(other, 1)
    until(lambda: heard.count("/a/b"))
    held, loading = hold("get", "/a/b", lambda: cache.get("/a/b"))
    put(other, 2)
    until(lambda: heard.count("/a/b") == 2)
    # Whoever asks now may know of the event, and does not get the answer from before.
    assert cache.get("/a/b") == 2
    held.release()
    assert loading.result() == 1
    assert cache.get_if_cached("/a/b") in (2, NOT_CACHED)
    assert cache.get("/a/b") == 2


def test_an_absence_that_is_none_any_more(
    cache: MetadataCache[Any], other: bk.MetadataStore, heard: HeldEvents, hold: Hold
) -> None:
    """An absence that was read before a creation never enters after its event."""
    held, loading = hold("get", "/a/b", lambda: cache.get("/a/b"))
    put(other, 1)
    until(lambda: heard.count("/a/b"))
    held.release()
    assert loading.result() is None
    assert cache.get_if_cached("/a/b") is NOT_CACHED
    assert cache.get("/a/b") == 1


def test_children_before_the_answer_of_a_load(
    cache: MetadataCache[Any], other: bk.MetadataStore, heard: HeldEvents, hold: Hold
) -> None:
    """A list that was read before a creation or a deletion below never enters after its event."""
    changes: list[Callable[[], Any]] = [
        lambda: other.put("/a/b/c", b"1").result(),
        lambda: other.delete("/a/b/c").result(),
    ]
    for number, change in enumerate(changes, 1):
        cache.invalidate("/a/b")
        held, loading = hold("get_children", "/a/b", lambda: cache.get_children("/a/b"))
        change()
        until(lambda number=number: heard.count("/a/b/c") == number)  # type: ignore[misc]
        held.release()
        assert loading.result() == ([] if number == 1 else ["c"])
        assert cache.get_children("/a/b") == (["c"] if number == 1 else [])


@pytest.mark.parametrize("how", ["invalidate", "invalidate_all", "gap", "lose_session", "refresh"])
def test_an_invalidation_before_the_answer_of_a_load(
    cache: MetadataCache[Any],
    other: bk.MetadataStore,
    faults: FaultInjector,
    heard: HeldEvents,
    hold: Hold,
    how: str,
) -> None:
    """After each kind of invalidation, an answer from before it is given to nobody else."""
    put(other, 1)
    until(lambda: heard.count("/a/b"))
    heard.hold()
    held, loading = hold("get", "/a/b", lambda: cache.get("/a/b"))
    put(other, 2)  # The cache does not hear of it.
    told: list[str] = []
    cache.add_listener(lambda event: told.append(event.kind))
    if how == "invalidate":
        cache.invalidate("/a/b")
    elif how == "refresh":
        assert cache.refresh("/a/b") == 2
    elif how == "invalidate_all":
        cache.invalidate_all()
    else:
        heard.release()
        faults.gap() if how == "gap" else faults.lose_session()
        until(lambda: "gap" in told)
    assert cache.get("/a/b") == 2
    held.release()
    assert loading.result() in (1, 2)  # 2 if it had to be read again in another session
    assert cache.get_if_cached("/a/b") in (2, NOT_CACHED)
    assert cache.get("/a/b") == 2
    heard.release()


def test_ones_own_write_during_a_load(
    cache: MetadataCache[Any], other: bk.MetadataStore, heard: HeldEvents, hold: Hold
) -> None:
    """A get after one's own write sees it, also if older answers end at the same time."""
    put(other, 1)
    until(lambda: heard.count("/a/b"))
    writes: list[tuple[Callable[[], Any], int | None]] = [
        (lambda: cache.put("/a/b", 2), 2),
        (lambda: cache.delete("/a/b"), None),
        (lambda: cache.create("/a/b", 3), 3),
        (lambda: cache.read_modify_update("/a/b", lambda value: value + 1), 4),
    ]
    heard.hold()
    for write, expected in writes:
        cache.invalidate("/a/b")
        held, loading = hold("get", "/a/b", lambda: cache.get("/a/b"))
        writing = Thread(write)  # In the store's line, it stands behind the read.
        held.release()
        writing.result()
        assert cache.get("/a/b") == expected
        loading.result()
        assert cache.get("/a/b") == expected


def test_another_clients_write_before_the_answer_of_ones_own(
    cache: MetadataCache[Any], other: bk.MetadataStore, heard: HeldEvents, hold: Hold
) -> None:
    """If the event of a newer write comes before the answer, one's own value never enters."""
    held, writing = hold("put", "/a/b", lambda: cache.put("/a/b", 1))
    put(other, 2)
    until(lambda: heard.count("/a/b") == 2)
    held.release()
    assert writing.result().version == 0
    assert cache.get_if_cached("/a/b") is NOT_CACHED
    assert cache.get("/a/b") == 2


def test_late_events_of_ones_own_writes(
    cache: MetadataCache[Any], other: bk.MetadataStore, heard: HeldEvents, url: str
) -> None:
    """Events that arrive after newer writes of one's own never bring an older value back."""
    heard.hold()
    put(other, 0)
    for value in range(1, 20):
        cache.put("/a/b", value)
        assert cache.get("/a/b") == value
    heard.release()
    while heard.count("/a/b") < 20:
        assert cache.get("/a/b") == 19
    if "expected_revisions" in other.capabilities:
        assert cache.get_if_cached("/a/b") == 19  # The events tell that they are older.


def test_loads_that_overtake_each_other(
    cache: MetadataCache[Any],
    other: bk.MetadataStore,
    faults: FaultInjector,
    heard: HeldEvents,
    hold: Hold,
) -> None:
    """After the answer of one load, no other load returns an older one."""
    put(other, 1)
    until(lambda: heard.count("/a/b"))
    heard.hold()
    late = faults.delay("get", "/a/b")
    first = Thread(lambda: cache.get("/a/b"))
    late.wait(timeout=PATIENCE)
    cache.invalidate("/a/b")
    early, second = hold("get", "/a/b", lambda: cache.get("/a/b"))
    put(other, 2)
    late.release()
    assert first.result() == 2
    third = Thread(lambda: cache.get("/a/b"))
    assert third.result() == 2  # It does not join the second one.
    early.release()
    assert second.result() == 1  # It began before anybody had seen more.
    assert cache.get("/a/b") == 2


def test_an_answer_of_another_session(
    cache: MetadataCache[Any], store: bk.MetadataStore, faults: FaultInjector, hold: Hold
) -> None:
    """Where a new session may lag behind the last one, a read first catches up, or starts over."""
    if "linearizable_reads" in store.capabilities:
        return
    syncs = [call for call in faults.calls if call.method == "sync"]
    assert len(syncs) == 1
    session = store.session.id
    held, loading = hold("get", "/a/b", lambda: cache.get("/a/b"))
    faults.lose_session()
    until(lambda: store.session.id not in (None, session))
    held.release()
    assert loading.result() is None
    assert loads(faults, "get", "/a/b") == 2
    assert len([call for call in faults.calls if call.method == "sync"]) == 2
    warm(cache, "/a/b")
    assert len([call for call in faults.calls if call.method == "sync"]) == 2


def test_nothing_is_cached_before_the_watch(store: bk.MetadataStore, faults: FaultInjector) -> None:
    """Until the first watch is in place, reads go to the store, and what they find stays out."""
    store.put("/a/b", b"1").result()
    held = faults.delay("watch", "/a")
    with MetadataCache(store, "/a", json_serde) as cache:
        assert cache.get("/a/b") == 1
        held.wait(timeout=PATIENCE)
        slow = faults.delay("get", "/a/c")
        loading = Thread(lambda: cache.get("/a/c"))
        slow.wait(timeout=PATIENCE)
        for value in range(2, 5):
            put(store, value)
            assert cache.get("/a/b") == value
            cache.put("/a/d", value)
            assert not is_cached(cache, "/a/b")
            assert not is_cached(cache, "/a/d")
        held.release()
        warm(cache, "/a/warm")
        slow.release()
        assert loading.result() is None
        assert not is_cached(cache, "/a/c")
        warm(cache, "/a/b")


def test_a_refused_watch(
    store: bk.MetadataStore,
    cache: MetadataCache[Any],
    faults: FaultInjector,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without the right to watch, the cache empties, and reads go to the store."""
    monkeypatch.setattr(CacheWatch, "pause", PATIENCE)
    cache.put("/a/b", 1)
    warm(cache, "/a/b")
    faults.end_watches(bk.AuthenticationError("no"), "/a")
    until(lambda: not is_cached(cache, "/a/b"))
    assert cache.get("/a/b") == 1
    assert not is_cached(cache, "/a/b")
    assert store.metrics().watches == 0  # It does not try with each read.


def test_after_a_refused_watch(
    cache: MetadataCache[Any],
    other: bk.MetadataStore,
    faults: FaultInjector,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It tries again by itself: a program that only listens hears of changes again."""
    seen: list[tuple[str, str]] = []
    cache.add_listener(lambda event: seen.append((event.kind, event.path)))
    monkeypatch.setattr(CacheWatch, "pause", 0.01)
    faults.end_watches(bk.AuthenticationError("no"), "/a")
    until(lambda: ("gap", "/a") in seen)
    put(other, 1)
    until(lambda: ("created", "/a/b") in seen)


def test_a_watch_that_breaks(cache: MetadataCache[Any], faults: FaultInjector) -> None:
    """Until the next one is in place, nothing is cached, also if the connection stands."""
    cache.put("/a/b", 1)
    warm(cache, "/a/b")
    held = faults.delay("watch", "/a")
    faults.end_watches(bk.StoreUnavailableError("for a moment"), "/a")
    held.wait(timeout=PATIENCE)
    assert not is_cached(cache, "/a/b")
    assert cache.get("/a/b") == 1
    assert not is_cached(cache, "/a/b")
    held.release()
    warm(cache, "/a/b")


def test_reads_never_go_back(
    url: str, faults: FaultInjector, store: bk.MetadataStore, other: bk.MetadataStore
) -> None:
    """In a storm of writes, gaps, invalidations and evictions, no read is older than one before.

    After it, the cache equals the store.
    """
    paths = [f"/a/{n}" for n in range(4)]
    seen = dict.fromkeys(paths, -1)
    lock = threading.Lock()
    stop = threading.Event()
    numbers = itertools.count()
    with MetadataCache(store, "/a", json_serde, max_entries=3) as cache:
        for path in paths:
            put(other, next(numbers), path)
        warm(cache, paths[0])

        def read(seed: int) -> int:
            chance = random.Random(seed)
            reads = 0
            while not stop.is_set():
                path = chance.choice(paths)
                with lock:
                    floor = seen[path]
                value = cache.get(path)
                assert value is not None
                assert value >= floor, (path, value, floor)
                with lock:
                    seen[path] = max(seen[path], value)
                reads += 1
                if chance.random() < 0.01:
                    cache.invalidate(path)
            return reads

        def write() -> int:
            # The numbers grow in the order of the writes to a path: each waits for the last.
            for turn in range(150):
                path = paths[turn % 4]
                if turn % 8 < 4:
                    put(other, next(numbers), path)
                else:
                    cache.put(path, next(numbers))
                    assert cache.get(path) is not None
                if turn % 50 == 49:
                    faults.gap() if turn % 100 == 49 else cache.invalidate_all()
            stop.set()
            return 0

        reading = [Thread(lambda seed=seed: read(seed)) for seed in range(4)]  # type: ignore[misc]
        try:
            together([write])
        finally:
            stop.set()
        assert all(thread.result() for thread in reading)
        for path in paths:
            found = other.get(path).result()
            assert found is not None
            until(lambda path=path, found=found: cache.get(path) == int(found.value))  # type: ignore[misc]


def test_a_late_read_of_a_former_watch() -> None:
    """A watch that a lost connection has ended opens the cache no more: events may be missing."""
    faults = FaultInjector()
    with memory(faults) as store, MetadataCache(store, "/a", json_serde) as cache:
        cache.put("/a/b", 1)
        warm(cache, "/a/b")
        former = cache._watch._follower
        assert former is not None
        held = faults.delay("watch", "/a")
        faults.cut()
        faults.restore()
        held.wait(timeout=PATIENCE)
        former._read()
        assert cache.get("/a/b") == 1
        assert cache.get_if_cached("/a/b") is NOT_CACHED
        held.release()
        warm(cache, "/a/b")
