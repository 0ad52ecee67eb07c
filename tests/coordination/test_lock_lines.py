"""The known line of a store: it saves requests, and is not trusted for too long."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

import batchkeeper as bk
from batchkeeper.batching.background import spawn
from batchkeeper.coordination import Lock
from batchkeeper.coordination._sync import claims
from batchkeeper.coordination._sync.lobbies import Lobby
from batchkeeper.testing import FaultInjector

from ..waiting import PATIENCE, until
from .in_line import line, opened, until_line
from .recipes import begun

PATH = "/locks/a"


def hand_over_all(stores: list[bk.MetadataStore], each: int) -> int:
    """Let contenders of stores stand in line in turn; return how many operations that takes."""
    looks = 0

    def operations() -> int:
        return sum(sum(store.metrics().operations.values()) for store in set(stores))

    def in_line() -> int:
        nonlocal looks
        looks += 1
        return len(stores[0].get_children(PATH).result(PATIENCE))

    locks = [Lock(store, PATH) for _ in range(each) for store in stores]
    before, waiting = operations(), []
    locks[0].acquire()
    for length, lock in enumerate(locks[1:], 2):
        waiting.append(begun(lock.acquire))
        until(lambda n=length: in_line() == n)
    locks[0].release()
    for lock, future in zip(locks[1:], waiting, strict=True):
        future.result(PATIENCE)
        lock.release()
    return operations() - before - looks


@pytest.mark.parametrize("waiters", [5, 20])
def test_a_line_of_one_store(store: bk.MetadataStore, waiters: int) -> None:
    """A hand-over takes a creation and a deletion, and no watch. The first one may have to look."""
    assert hand_over_all([store], waiters) <= 2 * waiters + 1
    assert store.metrics().watch_events == 0


def looks(url: str) -> int:
    """Return how many operations a wait takes: a watch of a server's facet looks by itself."""
    return not url.startswith(("etcd:", "zookeeper:"))


def test_a_line_of_several_stores(
    store: bk.MetadataStore, store_url: str, another: Callable[[], bk.MetadataStore]
) -> None:
    """A hand-over takes at most three operations. The first one of each store looks once more."""
    stores = [store, *(another() for _ in range(3))]
    assert hand_over_all(stores, 4) <= (3 + looks(store_url)) * 16 + 4


def test_a_line_of_many_stores(
    store: bk.MetadataStore, store_url: str, another: Callable[[], bk.MetadataStore]
) -> None:
    """With one contender each, it takes at most four; kazoo's lock takes five."""
    stores = [store, *(another() for _ in range(5))]
    assert hand_over_all(stores, 1) <= (4 + looks(store_url)) * 6


@pytest.mark.server
@pytest.mark.parametrize("answered", [True, False])
def test_a_path_that_was_deleted(
    fresh_url: Callable[[str], str], faults: FaultInjector, answered: bool
) -> None:
    """ZooKeeper restarts its numbers below it: the known line is void, even during a creation."""
    url, batching = fresh_url("zookeeper"), bk.BatchingConfig(max_in_flight=4)
    with opened(url, wrap=faults, batching=batching) as store, opened(url) as other:
        first, lock, holder = Lock(store, PATH), Lock(store, PATH), Lock(other, PATH)
        first.acquire()
        answer = faults.delay("delete", applied=True)
        creation = faults.delay("put")
        acquiring = begun(lock.acquire)
        creation.wait()
        releasing = begun(first.release)
        answer.wait()
        if answered:
            answer.release()
            releasing.result(PATIENCE)
        other.delete(PATH).result(PATIENCE)
        holder.acquire()
        creation.release()
        until_line(other, PATH, 2)
        answer.release()
        until(lambda: lock.held or store.metrics().watches == 1)
        assert not lock.held
        holder.release()
        acquiring.result(PATIENCE)


@pytest.mark.server
def test_a_release_whose_answer_comes_late(
    fresh_url: Callable[[str], str], faults: FaultInjector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may come just before somebody waits for that value, which went before the last look."""
    url, batching = fresh_url("etcd"), bk.BatchingConfig(max_in_flight=4)
    with opened(url, wrap=faults, batching=batching) as store, opened(url) as other:
        first, holder = Lock(store, PATH), Lock(other, PATH)
        first.acquire()
        answer = faults.delay("delete", applied=True)
        releasing = begun(first.release)
        answer.wait()
        holder.acquire(PATIENCE)
        assert not Lock(store, PATH).try_acquire()
        real = Lobby._known

        def known(*args: Any) -> object:
            found = real(*args)
            answer.release()
            releasing.result(PATIENCE)
            return found

        monkeypatch.setattr(Lobby, "_known", known)
        lock = Lock(store, PATH)
        acquiring = begun(lock.acquire)
        until_line(other, PATH, 2)
        holder.release()
        acquiring.result(PATIENCE)
        assert lock.held


def test_no_thread_can_be_started(store: bk.MetadataStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The call ends with that error, and leaves no contender behind that all others wait for."""

    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "batchkeeper-warden":
            raise RuntimeError("can't start new thread")
        start(thread)

    lock = Lock(store, PATH)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(bk.StoreUnavailableError, match="new thread"):
            lock.acquire(timeout=0.1)
    assert line(store, PATH) == []
    with lock:
        assert lock.held


@pytest.mark.slow
def test_no_thread_can_be_started_for_a_removal(
    fresh_url: Callable[[str], str], faults: FaultInjector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The value of a claim that has failed is removed as soon as a thread can be started."""
    url = fresh_url("memory")
    refused = []

    def refuse(name: str, *arguments: Any) -> None:
        if name == "removal":
            refused.append(name)
            raise RuntimeError("can't start new thread")
        spawn(name, *arguments)

    with opened(url, wrap=faults) as store, opened(url) as other, Lock(other, PATH):
        with monkeypatch.context() as patch:
            patch.setattr(claims, "spawn", refuse)
            faults.refuse(bk.AuthenticationError("no read"), "get_children")
            with pytest.raises(bk.AuthenticationError):
                Lock(store, PATH).acquire()
            until(lambda: len(refused) >= 2)
        until_line(other, PATH, 1)
