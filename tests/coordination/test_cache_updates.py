"""Updates through caches for threads, on every store.

See ``test_cache.py`` for the reports that tests name.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

import batchkeeper as bk
from batchkeeper.coordination import Lock, MetadataCache
from batchkeeper.coordination.entries import NOT_CACHED
from batchkeeper.ops.backoff import Backoff
from batchkeeper.ops.serdes import json_serde
from batchkeeper.testing import FaultInjector

from ..waiting import PATIENCE, until
from .caching import (  # noqa: F401 - some are fixtures
    Thread,
    loads,
    memory,
    opened_store,
    other_client,
    seen_requests,
    together,
    warm,
    warm_cache,
)
from .recipes import begun


def test_an_update_gets_a_value_of_its_own(cache: MetadataCache[Any]) -> None:
    """The function may change what it gets; nobody else sees that before it is written.

    Pulsar's ``testReadCloned``.
    """
    cache.put("/a/b", {"n": 1, "list": []})
    before = cache.get("/a/b")
    given: list[Any] = []

    def change(value: Any) -> Any:
        given.append(value)
        value["n"] += 1
        value["list"].append(value["n"])
        assert cache.get("/a/b") is not value
        return value

    for update in (cache.read_modify_update, cache.read_modify_update_or_create):
        result = update("/a/b", change)
        assert result is given[-1]
        assert cache.get("/a/b") is not result
    assert before == {"n": 1, "list": []}
    assert cache.get("/a/b") == {"n": 3, "list": [2, 3]}
    assert given[0] is not given[1]


def test_an_update_of_an_absent_path(cache: MetadataCache[Any]) -> None:
    """``read_modify_update`` fails and writes nothing; ``_or_create`` passes None."""
    with pytest.raises(bk.NotFoundError) as raised:
        cache.read_modify_update("/a/b", lambda value: value)
    assert raised.value.path == "/a/b"
    assert cache.get("/a/b") is None
    assert cache.read_modify_update_or_create("/a/b", lambda value: [value]) == [None]
    assert cache.read_modify_update_or_create("/a/b", lambda value: [value]) == [[None]]
    assert cache.get("/a/b") == [[None]]


def test_an_update_after_another_clients_write(
    cache: MetadataCache[Any], other: bk.MetadataStore
) -> None:
    """An old entry costs another attempt, and neither an error nor a lost update (Pulsar #9412)."""
    for n in range(20):
        cache.put("/a/b", 10 * n)
        other.put("/a/b", str(10 * n + 1).encode()).result()
        assert cache.read_modify_update("/a/b", lambda value: value + 1) == 10 * n + 2


def test_an_update_of_a_path_that_was_made_again(
    cache: MetadataCache[Any], other: bk.MetadataStore, faults: FaultInjector
) -> None:
    """A path that others have deleted and created has its old version, but not its old value."""
    if "expected_revisions" not in other.capabilities:
        return  # ZooKeeper compares versions only: named in the document.
    cache.put("/a/b", 1)
    seen: list[int] = []

    def update(value: int) -> int:
        if not seen:
            other.delete("/a/b").result()
            other.put("/a/b", b"10").result()
        seen.append(value)
        return value + 1

    assert cache.read_modify_update("/a/b", update) == 11
    assert seen == [1, 10]


def test_fifty_updates_of_one_path(cache: MetadataCache[Any], faults: FaultInjector) -> None:
    """They stand in line: fifty writes, no conflict, no lost update (Pulsar #9900)."""
    cache.put("/a/b", 0)
    calls = [lambda: cache.read_modify_update("/a/b", lambda value: value + 1)] * 50
    assert sorted(together(calls)) == [*range(1, 51)]
    assert cache.get("/a/b") == 50
    found = cache.get_with_stat("/a/b")
    assert found is not None
    assert found.stat.version == 50
    assert loads(faults, "put", "/a/b") == 51


def test_fifty_creations_of_one_path(cache: MetadataCache[Any]) -> None:
    """Of updates that may create, one creates, and the others update what it has created."""
    calls = [lambda: cache.read_modify_update_or_create("/a/b", lambda n: (n or 0) + 1)] * 50
    assert sorted(together(calls)) == [*range(1, 51)]


def test_caches_of_several_clients_lose_no_update(store: bk.MetadataStore, store_url: str) -> None:
    """Updates through several clients all take effect (Pulsar #23686)."""
    if bk.store_kind(store_url).local_directory:
        clients = [store] * 4
    else:
        clients = [bk.open_store(store_url) for _ in range(4)]
    try:
        caches = [MetadataCache(client, "/a", json_serde) for client in clients]

        def work(cache: MetadataCache[Any]) -> None:
            for _ in range(10):
                cache.read_modify_update_or_create("/a/b", lambda n: (n or 0) + 1)

        together([lambda cache=cache: work(cache) for cache in caches])  # type: ignore[misc]
        for cache in caches:
            until(lambda cache=cache: cache.get("/a/b") == 40)  # type: ignore[misc]
            cache.close()
    finally:
        for client in clients:
            client.close()


def test_attempts_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """If others are quicker each time, the update ends with BadVersionError."""
    monkeypatch.setattr("batchkeeper.coordination._sync.cache._BACKOFF", no_pauses())
    with memory() as store, MetadataCache(store, "/a", json_serde) as cache:
        cache.put("/a/b", 0)
        calls = 0

        def update(value: int) -> int:
            nonlocal calls
            calls += 1
            store.put("/a/b", str(calls).encode()).result()
            return value

        with pytest.raises(bk.BadVersionError):
            cache.read_modify_update("/a/b", update)
        assert calls == 40
        assert cache.read_modify_update("/a/b", lambda value: value + 1) == 41


def no_pauses() -> Backoff:
    """Return pauses without length."""
    return Backoff(0.0, 0.0)


def test_a_function_that_raises(cache: MetadataCache[Any]) -> None:
    """Nothing is written, the caller gets the error, and the next in line goes on."""
    cache.put("/a/b", 1)
    inside, leave = threading.Event(), threading.Event()

    def fail(value: Any) -> Any:
        inside.set()
        assert leave.wait(PATIENCE)
        raise ZeroDivisionError

    failing = Thread(lambda: cache.read_modify_update("/a/b", fail))
    assert inside.wait(PATIENCE)
    later = Thread(lambda: cache.read_modify_update("/a/b", lambda value: value + 1))
    leave.set()
    with pytest.raises(ZeroDivisionError):
        failing.result()
    assert later.result() == 2


def test_a_function_that_returns_nothing(cache: MetadataCache[Any]) -> None:
    """A value that was changed, but not returned, is not replaced by null."""
    cache.put("/a/b", {"epoch": 1})
    with pytest.raises(bk.InvalidSettingError, match="None"):
        cache.read_modify_update("/a/b", lambda value: value.update(epoch=2))
    assert cache.refresh("/a/b") == {"epoch": 1}
    with pytest.raises(bk.InvalidSettingError, match="None"):
        cache.create("/a/c", None)
    assert not cache.exists("/a/c")


def test_a_function_that_blocks(cache: MetadataCache[Any]) -> None:
    """Only updates of the same path wait: reads, puts and other updates go on."""
    cache.put("/a/b", 1)
    cache.put("/a/c", 1)
    inside, leave = threading.Event(), threading.Event()

    def block(value: Any) -> Any:
        inside.set()
        assert leave.wait(PATIENCE)
        return value + 1

    blocked = Thread(lambda: cache.read_modify_update("/a/b", block))
    try:
        assert inside.wait(PATIENCE)
        assert cache.read_modify_update("/a/c", lambda value: value + 1) == 2
        assert cache.get("/a/b") == 1
        cache.put("/a/b", 10)
        assert cache.get("/a/b") == 10
    finally:
        leave.set()
    assert blocked.result() == 11


def test_a_function_that_updates_its_own_path() -> None:
    """It gets an error instead of waiting for itself for ever; other paths are allowed."""
    with memory() as store, MetadataCache(store, "/a", json_serde) as cache:
        cache.put("/a/b", 1)
        cache.put("/a/c", 1)

        def nested(path: str) -> Callable[[int], int]:
            return lambda value: value + cache.read_modify_update(path, lambda inner: inner + 1)

        with pytest.raises(bk.InvalidSettingError, match="itself"):
            cache.read_modify_update("/a/b", nested("/a/b"))
        assert cache.read_modify_update("/a/b", nested("/a/c")) == 3
        with MetadataCache(store, "/", json_serde) as other, pytest.raises(bk.InvalidSettingError):
            other.read_modify_update("/a/b", nested("/a/b"))


def test_updates_that_wait_for_each_other() -> None:
    """One of two threads, each of which waits for what the other has, is refused; one goes on.

    So it is if one of them waits for a lock.
    """
    with memory() as store, MetadataCache(store, "/a", json_serde) as cache:
        cache.put("/a/x", 0)
        cache.put("/a/y", 0)
        lock, inside = Lock(store, "/lock"), threading.Barrier(2)

        def increase(path: str, within: Callable[[], object]) -> int:
            def fn(value: int) -> int:
                within()
                return value + 1

            return cache.read_modify_update(path, fn)

        def acquire() -> None:
            inside.wait(PATIENCE)
            with lock:
                pass

        def locked() -> int:
            with lock:
                inside.wait(PATIENCE)
                return increase("/a/x", lambda: None)

        def crossed(path: str, other: str) -> int:
            def within() -> None:
                inside.wait(PATIENCE)
                increase(other, lambda: None)

            return increase(path, within)

        pairs: list[list[Callable[[], object]]] = [
            [partial(crossed, "/a/x", "/a/y"), partial(crossed, "/a/y", "/a/x")],
            [partial(increase, "/a/x", acquire), locked],
        ]
        for pair in pairs:
            ended = [call.exception(PATIENCE) for call in [*map(begun, pair)]]
            (refused,) = filter(None, ended)
            assert isinstance(refused, bk.InvalidSettingError | bk.LockBusyError)
            assert "itself" in str(refused)


def test_an_update_without_an_answer() -> None:
    """It is raised, is not repeated, and the next read shows what has become of it."""
    for applied in (True, False):
        faults = FaultInjector()
        with memory(faults) as store, MetadataCache(store, "/a", json_serde) as cache:
            cache.put("/a/b", 1)
            warm(cache, "/a/b")
            lost = faults.lose_answer("put", "/a/b", applied=applied)
            with pytest.raises(bk.IndeterminateError):
                cache.read_modify_update("/a/b", lambda value: value + 1)
            assert len(lost.hits) == 1
            assert cache.get_if_cached("/a/b") is NOT_CACHED
            assert cache.get("/a/b") == 1 + applied
            assert cache.read_modify_update("/a/b", lambda value: value + 1) == 2 + applied


def test_other_writes_without_an_answer() -> None:
    """A put or delete with an unknown outcome leaves nothing in the cache, also no children."""
    for applied in (True, False):
        faults = FaultInjector()
        with memory(faults) as store, MetadataCache(store, "/a", json_serde) as cache:
            cache.put("/a/b", 1)
            warm(cache, "/a/b")
            assert cache.get_children("/a") == ["b"]
            faults.lose_answer("put", "/a/c", applied=applied)
            with pytest.raises(bk.IndeterminateError):
                cache.put("/a/c", 1)
            assert cache.get_children("/a") == (["b", "c"] if applied else ["b"])
            faults.lose_answer("delete", "/a/b", applied=applied)
            with pytest.raises(bk.IndeterminateError):
                cache.delete("/a/b")
            assert cache.exists("/a/b") is not applied
