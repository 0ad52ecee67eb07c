"""The bounds, the listeners and the end of caches for threads."""

from __future__ import annotations

import gc
import os
import threading
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

import batchkeeper as bk
from batchkeeper.batching.background import spawn
from batchkeeper.coordination import MetadataCache
from batchkeeper.coordination.entries import NOT_CACHED
from batchkeeper.ops.serdes import json_serde
from batchkeeper.testing import FaultInjector

from ..forks import holds_in_a_child, locked_elsewhere
from ..waiting import PATIENCE, result, until
from .caching import (  # noqa: F401 - some are fixtures
    Thread,
    is_cached,
    loads,
    memory,
    opened_store,
    other_client,
    seen_requests,
    size,
    warm,
    warm_cache,
)

# --- bounds


def test_the_bound_of_entries_holds() -> None:
    """The cache never holds more entries than it may, and still answers for every path."""
    with memory() as store, MetadataCache(store, "/a", max_entries=10) as cache:
        warm(cache, "/a/warm")
        for n in range(50):
            cache.put(f"/a/{n}", b"%d" % n)
            assert size(cache) <= 10
        assert [cache.get(f"/a/{n}") for n in range(50)] == [b"%d" % n for n in range(50)]
        assert size(cache) == 10


def test_what_is_used_stays() -> None:
    """A value that is read between the turns of the others is not evicted."""
    with memory() as store, MetadataCache(store, "/a", max_entries=10) as cache:
        warm(cache, "/a/used")
        for n in range(100):
            assert is_cached(cache, "/a/used")
            cache.get(f"/a/{n}")


def test_the_bound_of_bytes_holds() -> None:
    """Large values leave room for each other, and one that is too large is only read."""
    with memory() as store, MetadataCache(store, "/a", max_bytes=10_000) as cache:
        warm(cache, "/a/warm")
        for n in range(50):
            cache.put(f"/a/{n}", bytes(1000))
            assert sum(is_cached(cache, f"/a/{m}") for m in range(n)) < 10
        cache.put("/a/large", bytes(20_000))
        assert cache.get("/a/large") == bytes(20_000)
        assert not is_cached(cache, "/a/large")


def test_the_bound_of_age(monkeypatch: pytest.MonkeyPatch, faults: FaultInjector) -> None:
    """After ``max_age`` a value, an absence and a list are read again."""
    now = 1000.0
    with memory(faults) as store:
        result(store.put("/a/b", b"1"))  # before the watch, whose events would end what is cached
        clock = SimpleNamespace(monotonic=lambda: now)
        monkeypatch.setattr("batchkeeper.coordination._sync.cache.time", clock)
        with MetadataCache(store, "/a", json_serde, max_age=60) as cache:
            warm(cache, "/a/b")
            for path in ("/a/b", "/a/none"):
                before = loads(faults, "get", path)
                value = cache.get(path)
                first = loads(faults, "get", path)
                assert cache.get(path) == value
                assert cache.get_if_cached(path) == value
                assert loads(faults, "get", path) == first
                now += 61
                assert cache.get_if_cached(path) is NOT_CACHED
                assert cache.get(path) == value
                assert cache.get(path) == value
                assert loads(faults, "get", path) == first + 1 > before
            assert cache.get_children("/a") == cache.get_children("/a") == ["b"]
            before = loads(faults, "get_children", "/a")
            now += 61
            assert cache.get_children("/a") == cache.get_children("/a") == ["b"]
            assert loads(faults, "get_children", "/a") == before + 1


# --- listeners


def test_listeners(cache: MetadataCache[Any], other: bk.MetadataStore) -> None:
    """A listener gets each change, after the cache has heard of it, until it is closed."""
    seen: list[tuple[str, str, Any]] = []
    listener = cache.add_listener(
        lambda event: seen.append((event.kind, event.path, cache.get(event.path)))
    )
    assert cache.get("/a/b") is None
    other.put("/a/b", b"1").result()
    until(lambda: seen == [("created", "/a/b", 1)])
    other.put("/a/b", b"2").result()
    until(lambda: seen[1:] == [("modified", "/a/b", 2)])
    other.delete("/a/b").result()
    until(lambda: seen[2:] == [("deleted", "/a/b", None)])
    cache.invalidate_all()
    until(lambda: [kind for kind, _, _ in seen[3:]] == ["gap"])
    listener.close()
    listener.close()
    rest: list[str] = []
    with cache.add_listener(lambda event: rest.append(event.path)):
        other.put("/a/end", b"1").result()
        until(lambda: rest)
    assert len(seen) == 4


def test_a_listener_that_blocks(
    cache: MetadataCache[Any], other: bk.MetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stops nobody else; when it goes on, a gap stands where it has missed events."""
    monkeypatch.setattr("batchkeeper.coordination._sync.cache_watch.MAX_EVENTS", 2)
    seen: list[str] = []
    blocked: list[str] = []
    inside, leave = threading.Event(), threading.Event()

    def block(event: bk.WatchEvent) -> None:
        blocked.append(event.path)
        inside.set()
        assert leave.wait(PATIENCE)

    with cache.add_listener(block), cache.add_listener(lambda event: seen.append(event.path)):
        try:
            other.put("/a/0", b"0").result()
            assert inside.wait(PATIENCE)
            for n in range(1, 5):
                other.put(f"/a/{n}", b"%d" % n).result()
                until(lambda n=n: cache.get(f"/a/{n}") == n)
            until(lambda: seen[-1:] == ["/a/4"])
        finally:
            leave.set()
        until(lambda: blocked == ["/a/0", "/a", "/a/4"])


def test_a_listener_before_the_first_watch() -> None:
    """It gets a gap for what changes until the watch is in place."""
    faults = FaultInjector()
    with memory(faults) as store, MetadataCache(store, "/a", json_serde) as cache:
        held = faults.delay("watch", "/a")
        seen: list[str] = []
        cache.add_listener(lambda event: seen.append(event.kind))
        held.wait(timeout=PATIENCE)
        assert cache.get("/a/b") is None
        store.put("/a/b", b"1").result(PATIENCE)
        held.release()
        until(lambda: seen == ["gap"])
        assert cache.get("/a/b") == 1


def test_the_listener_that_begins_the_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    """It gets the first gap, however soon the watch is in place."""
    with memory() as store, MetadataCache(store, "/a") as cache:

        def spawn_at_once(*call: Any) -> None:
            spawn(*call)
            warm(cache, "/a/b")

        monkeypatch.setattr("batchkeeper.coordination._sync.following.spawn", spawn_at_once)
        seen: list[str] = []
        cache.add_listener(lambda event: seen.append(event.kind))
        until(lambda: seen == ["gap"])


def test_an_invalidation_in_a_callback(cache: MetadataCache[Any], other: bk.MetadataStore) -> None:
    """The listener that calls ``invalidate_all`` gets no gap for that; the others do."""
    ours: list[str] = []
    theirs: list[str] = []

    def invalidate(event: bk.WatchEvent) -> None:
        ours.append(event.path)
        cache.invalidate_all()

    with cache.add_listener(lambda event: theirs.append(event.path)):
        with cache.add_listener(invalidate):
            cache.invalidate_all()
            until(lambda: len(theirs) == 2)
            other.put("/a/b", b"1").result()
            until(lambda: theirs[2:] == ["/a/b", "/a"])
        assert ours == ["/a", "/a/b"]


# --- the end


def test_a_closed_cache(store: bk.MetadataStore) -> None:
    """Every call raises StoreClosedError, its watch ends, and the store goes on."""
    cache = MetadataCache(store, "/a")
    cache.put("/a/b", b"1")
    warm(cache, "/a/b")
    listener = cache.add_listener(lambda _: None)
    cache.close()
    cache.close()
    listener.close()
    for call in (
        lambda: cache.get("/a/b"),
        lambda: cache.get_if_cached("/a/b"),
        lambda: cache.put("/a/b", b"2"),
        lambda: cache.get_children("/a"),
        lambda: cache.read_modify_update("/a/b", bytes),
        cache.invalidate_all,
        lambda: cache.add_listener(lambda _: None),
    ):
        with pytest.raises(bk.StoreClosedError):
            call()
    until(lambda: store.metrics().watches == 0)
    assert store.get("/a/b").result().value == b"1"  # type: ignore[union-attr]


def test_a_cache_that_nobody_uses_has_no_watch(store: bk.MetadataStore) -> None:
    """The first use begins the one watch; making and closing a cache costs nothing."""
    with MetadataCache(store, "/a") as cache:
        assert store.metrics().watches == 0
        for n in range(10):
            cache.get(f"/a/{n}")
        warm(cache, "/a/0")
        cache.add_listener(lambda _: None)
        assert store.metrics().watches == 1
    until(lambda: store.metrics().watches == 0)


def test_the_store_closes_first(store_url: str, faults: FaultInjector) -> None:
    """Calls under way and later ones end with StoreClosedError, and the cache is empty soon."""
    store = bk.open_store(store_url, wrap=faults)
    cache = MetadataCache(store, "/a", json_serde)
    cache.put("/a/b", 1)
    warm(cache, "/a/b")
    listener = cache.add_listener(lambda _: None)
    held = faults.delay("get", "/a/c")
    inside, leave = threading.Event(), threading.Event()

    def block(value: int) -> int:
        inside.set()
        assert leave.wait(PATIENCE)
        return value

    waiting = [
        Thread(lambda: cache.get("/a/c")),
        Thread(lambda: cache.get("/a/c")),
        Thread(lambda: cache.read_modify_update("/a/b", block)),
    ]
    assert inside.wait(PATIENCE)
    waiting.append(Thread(lambda: cache.read_modify_update("/a/b", lambda value: value)))
    held.wait(timeout=PATIENCE)
    store.close(0)
    leave.set()
    for thread in waiting:
        with pytest.raises(bk.StoreClosedError):
            thread.result()
    until(lambda: listener.closed and not size(cache))
    for call in (
        lambda: cache.get("/a/b"),
        lambda: cache.get_if_cached("/a/b"),
        cache.invalidate_all,
        lambda: cache.add_listener(lambda _: None),
    ):
        with pytest.raises(bk.StoreClosedError):
            call()
    cache.close()


def test_a_close_in_a_callback(store: bk.MetadataStore, cache: MetadataCache[Any]) -> None:
    """A listener may close the cache, and even the store."""
    closed: Future[None] = Future()

    def close(_event: bk.WatchEvent) -> None:
        cache.close()
        closed.set_result(None)

    cache.add_listener(close)
    store.put("/a/b", b"1")
    closed.result(PATIENCE)
    with pytest.raises(bk.StoreClosedError):
        cache.get("/a/b")


def test_a_forked_child() -> None:
    """In a child, calls raise StoreClosedError, whatever a thread of the parent was doing."""
    with memory() as store, MetadataCache(store, "/a", json_serde) as cache:
        cache.put("/a/b", 1)
        warm(cache, "/a/b")
        listener = cache.add_listener(lambda _: None)

        def refused() -> bool:
            for call in (
                lambda: cache.get("/a/b"),
                lambda: cache.read_modify_update("/a/b", lambda value: value),
            ):
                try:
                    call()
                except bk.StoreClosedError:
                    continue
                return False
            listener.close()
            cache.close()
            return True

        with locked_elsewhere(cache, listener):
            assert holds_in_a_child(refused)
        assert cache.get("/a/b") == 1


def test_a_fork_in_an_update() -> None:
    """The child's update ends with StoreClosedError, and the parent's goes on."""
    with memory() as store, MetadataCache(store, "/a", json_serde) as cache:
        cache.put("/a/b", 1)
        children: list[int] = []

        def fork(value: int) -> int:
            children.append(os.fork())
            return value + 1

        gc.disable()  # See forks.py.
        try:
            assert cache.read_modify_update("/a/b", fork) == 2
        except BaseException as error:
            if children == [0]:
                os._exit(0 if isinstance(error, bk.StoreClosedError) else 1)
            raise
        finally:
            gc.enable()
        if children == [0]:
            os._exit(2)
        assert os.waitpid(children[0], 0)[1] == 0
