"""Semaphores and shared locks: how many hold them, and in what order."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

import batchkeeper as bk
from batchkeeper.coordination import Lock, Semaphore
from batchkeeper.ops.errors import LockBusyError

from ..waiting import PATIENCE, until
from .in_line import line, until_line
from .recipes import begun

PATH = "/locks/a"


# --- semaphores


def test_a_semaphore(store: bk.MetadataStore, another: Callable[[], bk.MetadataStore]) -> None:
    """Two hold it, the third waits until one of them leaves, whichever."""
    other = another()
    first, second, third = (Semaphore(at, PATH, 2, b"me") for at in (store, other, store))
    first.acquire()
    assert second.try_acquire()
    assert not third.try_acquire()
    with pytest.raises(LockBusyError) as caught:
        third.acquire(0.05)
    assert caught.value.value == b"me"
    assert len(line(store, PATH)) == 2
    waiting = begun(third.acquire)
    until_line(store, PATH, 3)
    second.release()
    waiting.result(PATIENCE)
    assert [lock.held for lock in (first, second, third)] == [True, False, True]
    assert third.fencing_token > first.fencing_token


def test_never_more_than_n(
    store: bk.MetadataStore, another: Callable[[], bk.MetadataStore]
) -> None:
    """Twelve contenders of two stores: three hold it at some time, and never four."""
    stores = [store, another()]
    guard = threading.Lock()
    inside, most = 0, 0
    full = threading.Barrier(3)

    def contend(number: int) -> None:
        nonlocal inside, most
        with Semaphore(stores[number % 2], PATH, 3):
            with guard:
                inside += 1
                most = max(most, inside)
            full.wait(PATIENCE)  # Three at a time, or nobody goes on.
            with guard:
                inside -= 1

    for future in [begun(contend, number) for number in range(12)]:
        future.result(PATIENCE)
    assert most == 3
    assert line(store, PATH) == []


def test_a_semaphore_of_one_is_a_lock(store: bk.MetadataStore) -> None:
    """Both can be used for the same path."""
    with Semaphore(store, PATH, 1):
        assert not Lock(store, PATH).try_acquire()
    with Lock(store, PATH):
        assert not Semaphore(store, PATH, 1).try_acquire()


def test_a_bad_n(store: bk.MetadataStore) -> None:
    """It is refused by the constructor."""
    for n in (0, -1, 1.0, True, "1", None):
        with pytest.raises(bk.InvalidSettingError, match="n must be"):
            Semaphore(store, PATH, n)  # type: ignore[arg-type]


def test_a_semaphore_among_many(
    store: bk.MetadataStore, another: Callable[[], bk.MetadataStore]
) -> None:
    """Those before a waiter leave in any order, and it holds when one is left."""
    others = [Lock(another(), PATH, shared=True) for _ in range(4)]
    for other in others:
        other.acquire()
    last = Semaphore(store, PATH, 2)
    with store.watch(PATH) as seen:
        waiting = begun(last.acquire)
        until(lambda: store.metrics().watches == 2)
        others[1].update(b"new")
        assert not Semaphore(another(), PATH, 2).try_acquire()
        for other in (others[2], others[0]):
            other.release()
        kinds = [event.kind for _ in range(6) if (event := seen.next_event(PATIENCE))]
        assert sorted(kinds) == ["created"] * 2 + ["deleted"] * 3 + ["modified"]
    assert not last.held
    others[3].release()
    waiting.result(PATIENCE)
    assert others[1].held


# --- shared and exclusive


def test_readers_share(store: bk.MetadataStore, another: Callable[[], bk.MetadataStore]) -> None:
    """Shared holders hold it together; an exclusive one waits for all of them."""
    readers = [Lock(at, PATH, b"reader", shared=True) for at in (store, another())]
    writer = Lock(store, PATH, b"writer")
    for reader in readers:
        reader.acquire()
    assert not writer.try_acquire()
    waiting = begun(writer.acquire)
    until_line(store, PATH, 3)
    readers[0].release()
    assert len(until_line(store, PATH, 2)) == 2
    assert not writer.held
    readers[1].release()
    waiting.result(PATIENCE)
    assert not readers[0].try_acquire()
    with pytest.raises(LockBusyError) as caught:
        readers[1].acquire(0)
    assert caught.value.value == b"writer"
    writer.release()
    assert readers[0].try_acquire()


def test_a_writer_is_not_starved(
    store: bk.MetadataStore, another: Callable[[], bk.MetadataStore]
) -> None:
    """Readers that come after a waiting writer wait behind it."""
    first, late = (Lock(at, PATH, shared=True) for at in (store, another()))
    writer = Lock(store, PATH)
    first.acquire()
    writing = begun(writer.acquire)
    until_line(store, PATH, 2)
    assert not late.try_acquire()
    reading = begun(late.acquire)
    until_line(store, PATH, 3)
    first.release()
    writing.result(PATIENCE)
    assert not late.held
    writer.release()
    reading.result(PATIENCE)


def test_a_reader_that_gives_up(store: bk.MetadataStore) -> None:
    """At its time-out, it does not take the end of the wait for the end of the writer."""
    readers = [Lock(store, PATH, shared=True) for _ in range(2)]
    with Lock(store, PATH) as writer:
        waiting = begun(readers[0].acquire)
        until_line(store, PATH, 2)
        with pytest.raises(LockBusyError):
            readers[1].acquire(0.05)
        assert writer.held
    waiting.result(PATIENCE)


@pytest.mark.slow
def test_a_writer_that_gives_up_lets_readers_through(store: bk.MetadataStore) -> None:
    """Readers behind it go on at once, although the first reader still holds the lock."""
    first, late = (Lock(store, PATH, shared=True) for _ in range(2))
    first.acquire()
    writing = begun(Lock(store, PATH).acquire, 1.0)
    reading = begun(late.acquire)
    assert isinstance(writing.exception(PATIENCE), LockBusyError)
    reading.result(PATIENCE)
    assert first.held
    assert late.held


@pytest.mark.parametrize("shared", [True, False])
def test_the_end_of_one_of_several_holders(
    store: bk.MetadataStore, another: Callable[[], bk.MetadataStore], shared: bool
) -> None:
    """It says nothing about those who came before it: they still exclude a lock."""
    first, second = (
        Lock(at, PATH, shared=True) if shared else Semaphore(at, PATH, 2)
        for at in (another(), store)
    )
    with first:
        with second:
            pass
        lock = Lock(store, PATH)
        assert not lock.try_acquire()
        waiting = begun(lock.acquire)
        until_line(store, PATH, 2)
        assert not lock.held
    waiting.result(PATIENCE)


def test_all_readers_behind_a_writer_go_together(store: bk.MetadataStore) -> None:
    """When the writer leaves, each reader in a row holds the lock; the next writer waits."""
    writer, next_writer = Lock(store, PATH), Lock(store, PATH)
    readers = [Lock(store, PATH, shared=True) for _ in range(3)]
    writer.acquire()
    futures = []
    for number, reader in enumerate(readers):
        futures.append(begun(reader.acquire))
        until_line(store, PATH, number + 2)
    waiting = begun(next_writer.acquire)
    until_line(store, PATH, 5)
    writer.release()
    for future in futures:
        future.result(PATIENCE)
    assert all(reader.held for reader in readers)
    assert not next_writer.held
    for reader in readers:
        reader.release()
    waiting.result(PATIENCE)
    until(lambda: next_writer.held)
