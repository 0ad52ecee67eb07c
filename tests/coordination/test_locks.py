"""Locks of threads, on all stores: who holds them, who waits, and what is left behind."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import batchkeeper as bk
from batchkeeper.coordination import Lock
from batchkeeper.coordination._sync import lobbies
from batchkeeper.ops.errors import LockBusyError, LockLostError

from ..forks import holds_in_a_child, locked_elsewhere
from ..interrupts import interrupted
from ..waiting import PATIENCE, until
from .in_line import line, opened, until_line
from .recipes import begun

PATH = "/locks/a"


# --- one holder


def test_a_lock(store: bk.MetadataStore, another: Callable[[], bk.MetadataStore]) -> None:
    """It is held from acquire to release; others see its value, and cannot have it."""
    lock, other = Lock(store, PATH, b"one"), Lock(another(), PATH, b"two")
    assert (lock.path, lock.value, lock.held, lock.held_until()) == (
        PATH,
        b"one",
        False,
        -float("inf"),
    )
    assert lock.lost.is_set()
    assert lock.holder() is None
    lock.acquire()
    assert lock.held
    assert lock.held_until() > time.monotonic()
    assert not lock.lost.is_set()
    assert "held" in repr(lock)
    assert other.holder() == b"one"
    assert not other.try_acquire()
    assert not other.held
    lost = lock.lost
    lock.release()
    assert lost.is_set()
    assert not lock.held
    assert "held" not in repr(lock)
    assert other.try_acquire()
    assert other.holder() == b"two"
    other.release()
    assert line(store, PATH) == []


def test_a_busy_lock(store: bk.MetadataStore, another: Callable[[], bk.MetadataStore]) -> None:
    """At the time-out, the error has the holder's value, and nobody stands in line any more."""
    other = Lock(another(), PATH, b"two")
    with Lock(store, PATH, b"one"):
        for timeout in (0, 0.05):
            with pytest.raises(LockBusyError) as caught:
                other.acquire(timeout)
            assert (caught.value.path, caught.value.value) == (PATH, b"one")
        assert len(line(store, PATH)) == 1
    other.acquire(PATIENCE)
    other.release()


def test_one_at_a_time(store: bk.MetadataStore, another: Callable[[], bk.MetadataStore]) -> None:
    """Eight contenders of two stores: never two hold it, and each token exceeds the last."""
    stores = [store, another()]
    inside: list[int] = []
    tokens: list[int] = []

    def contend(number: int) -> None:
        lock = Lock(stores[number % 2], PATH)
        for _ in range(5):
            with lock:
                inside.append(number)
                assert lock.held_until() > time.monotonic()
                tokens.append(lock.fencing_token)
                time.sleep(0)
                assert inside == [number]
                inside.remove(number)

    for future in [begun(contend, number) for number in range(8)]:
        future.result(PATIENCE)
    assert len(tokens) == 40
    assert tokens == sorted(set(tokens))
    assert line(store, PATH) == []


def test_tokens_of_contenders_that_come_at_once(store: bk.MetadataStore) -> None:
    """Contenders of one store would travel in one batch and share a revision; their tokens grow."""
    together = threading.Barrier(10)
    tokens: list[int] = []

    def contend() -> None:
        lock = Lock(store, PATH)
        together.wait(PATIENCE)
        with lock:
            tokens.append(lock.fencing_token)

    for future in [begun(contend) for _ in range(10)]:
        future.result(PATIENCE)
    assert len(tokens) == 10
    assert tokens == sorted(set(tokens))


def test_who_came_first_goes_first(
    store: bk.MetadataStore, another: Callable[[], bk.MetadataStore]
) -> None:
    """Waiters of two stores get the lock in the order in which they came."""
    stores = [store, another()]
    order: list[int] = []

    def wait(number: int) -> None:
        with Lock(stores[number % 2], PATH):
            order.append(number)

    with Lock(store, PATH):
        waiters = []
        for number in range(6):
            waiters.append(begun(wait, number))
            until_line(store, PATH, number + 2)
    for waiter in waiters:
        waiter.result(PATIENCE)
    assert order == list(range(6))


def test_a_hand_over_wakes_one_waiter(
    store: bk.MetadataStore, another: Callable[[], bk.MetadataStore]
) -> None:
    """Of four stores that wait, only the next in line has an event; those behind it sleep on."""
    stores = [store, *(another() for _ in range(4))]
    locks = [Lock(at, PATH) for at in stores]
    locks[0].acquire()
    waiters = []
    for number, lock in enumerate(locks[1:]):
        waiters.append(begun(lock.acquire))
        until_line(store, PATH, number + 2)
    apart = stores[1] is not store
    if apart:
        until(lambda: all(at.metrics().watches == 1 for at in stores[1:]))
    for number, waiter in enumerate(waiters):
        locks[number].release()
        waiter.result(PATIENCE)
        assert not any(lock.held for lock in locks[number + 2 :])
        events = sum(at.metrics().watch_events for at in set(stores))
        assert events <= (number + 1 if apart else 0)
    locks[-1].release()
    assert not any(at.metrics().watches for at in stores)


def test_a_lock_that_is_used_again(store: bk.MetadataStore) -> None:
    """Where numbers never begin again, an acquire and a release are two operations."""
    lock = Lock(store, PATH)
    for _ in range(2):
        with lock:
            pass
    before = sum(store.metrics().operations.values())
    for _ in range(5):
        with lock:
            pass
    each = 2 if "linearizable_reads" in store.capabilities else 3
    assert sum(store.metrics().operations.values()) - before == 5 * each
    assert Lock(store, PATH).try_acquire()
    assert not Lock(store, PATH).try_acquire()


def test_a_path_that_was_deleted_meanwhile(
    store: bk.MetadataStore, another: Callable[[], bk.MetadataStore]
) -> None:
    """ZooKeeper then counts from 0 again, so what was known of its numbers is worth nothing."""
    lock, other = Lock(store, PATH), Lock(another(), PATH)
    with lock:
        pass
    store.delete_recursive(PATH).result(PATIENCE)
    with other:
        assert not lock.try_acquire()


# --- one object, and several threads


def test_threads_that_share_a_lock(store: bk.MetadataStore) -> None:
    """They wait for each other as for a threading.Lock; only one contender stands in line."""
    lock = Lock(store, PATH)
    inside: list[int] = []

    def contend(number: int) -> None:
        for _ in range(5):
            with lock:
                inside.append(number)
                time.sleep(0)
                assert inside == [number]
                inside.clear()

    lock.acquire()
    futures = [begun(contend, number) for number in range(4)]
    assert begun(lock.try_acquire).result(PATIENCE) is False
    with pytest.raises(LockBusyError):
        begun(lock.acquire, 0.01).result(PATIENCE)
    assert len(line(store, PATH)) == 1
    lock.release()
    for future in futures:
        future.result(PATIENCE)


def test_a_thread_that_acquires_twice(store: bk.MetadataStore) -> None:
    """It would wait for itself for ever, so it is refused at once, and still holds the lock."""
    with Lock(store, PATH, b"me") as lock:
        with pytest.raises(LockBusyError, match="already") as caught:
            lock.acquire()
        assert caught.value.value == b"me"
        assert not lock.try_acquire()
        assert lock.held


def test_another_object_of_the_same_thread_waits(store: bk.MetadataStore) -> None:
    """Two objects are two contenders, also in one thread."""
    with Lock(store, PATH), pytest.raises(LockBusyError):
        Lock(store, PATH).acquire(0.05)


def test_release_without_a_hold(store: bk.MetadataStore) -> None:
    """Only what is held can be released, once."""
    lock = Lock(store, PATH)
    with pytest.raises(LockLostError, match="does not hold"):
        lock.release()
    lock.acquire()
    lock.release()
    with pytest.raises(LockLostError):
        lock.release()
    with pytest.raises(LockLostError):
        lock.fencing_token  # noqa: B018 - it raises
    with pytest.raises(LockLostError):
        lock.check()
    lock.acquire()
    lock.release()


def test_another_thread_may_release(store: bk.MetadataStore) -> None:
    """Then the first thread may acquire it again; two releases at once are one."""
    lock = Lock(store, PATH)
    lock.acquire()
    begun(lock.release).result(PATIENCE)
    lock.acquire()
    futures = [begun(lock.release) for _ in range(4)]
    errors = [future.exception(PATIENCE) for future in futures]
    assert [type(error) for error in errors if error is not None] == [LockLostError] * 3
    assert lock.try_acquire()
    lock.release()


def test_a_lock_that_is_dropped_stays_held(
    store: bk.MetadataStore, another: Callable[[], bk.MetadataStore]
) -> None:
    """Nobody can say that the holder is done, so it ends with the session, as for a crash."""
    Lock(store, PATH).acquire()
    other = another()
    assert not Lock(other, PATH).try_acquire()
    if other is not store:
        store.close()
        Lock(other, PATH).acquire(PATIENCE)


# --- values


def test_update(store: bk.MetadataStore, another: Callable[[], bk.MetadataStore]) -> None:
    """It changes what others see, and neither the hold nor the token."""
    viewer = another()
    other = Lock(viewer, PATH)
    lock = Lock(store, PATH, b"one")
    lock.update(b"before")
    with lock:
        assert other.holder() == b"before"
        token, check = lock.fencing_token, lock.check()
        lock.update(b"two")
        viewer.sync(PATIENCE)
        assert other.holder() == lock.value == b"two"
        assert lock.fencing_token == token
        assert lock.check().path == check.path
        assert lock.check().expected_version == 1
        with pytest.raises(LockBusyError) as caught:
            other.acquire(0)
        assert caught.value.value == b"two"


def test_concurrent_updates(store: bk.MetadataStore) -> None:
    """Each of them is put, one after the other, and the last one stays."""
    with Lock(store, PATH) as lock:
        for future in [begun(lock.update, b"%d" % number) for number in range(10)]:
            future.result(PATIENCE)
        assert lock.check().expected_version == 10
        assert lock.holder() == lock.value


def test_an_update_after_somebody_elses_put(store: bk.MetadataStore) -> None:
    """A stranger's put over the value is no loss: the next update replaces it."""
    with Lock(store, PATH) as lock:
        store.put(lock.check().path, b"stranger").result(PATIENCE)
        lock.update(b"mine")
        assert lock.holder() == b"mine"
        assert lock.held


def test_an_update_after_the_value_was_deleted(store: bk.MetadataStore) -> None:
    """It finds the loss, and puts nothing that would outlive the session."""
    lock = Lock(store, PATH)
    lock.acquire()
    store.delete(lock.check().path).result(PATIENCE)
    with pytest.raises(LockLostError):
        lock.update(b"late")
    assert not lock.held
    assert lock.lost.is_set()
    with pytest.raises(LockLostError):
        lock.update(b"later")
    with pytest.raises(LockLostError):
        lock.check()
    assert line(store, PATH) == []
    with pytest.raises(LockLostError):
        lock.release()


# --- deletion by somebody else


def test_a_deleted_holder(store: bk.MetadataStore, another: Callable[[], bk.MetadataStore]) -> None:
    """The next of another store has the lock; the holder learns of it at its next update."""
    other = another()
    lock, next_one = Lock(store, PATH), Lock(other, PATH)
    lock.acquire()
    waiter = begun(next_one.acquire)
    until_line(store, PATH, 2)
    store.delete(lock.check().path).result(PATIENCE)
    if other is not store:
        waiter.result(PATIENCE)
    lost = lock.lost
    with pytest.raises(LockLostError):
        lock.update(b"late")
    assert lost.is_set()
    assert not lock.held
    waiter.result(PATIENCE)
    with pytest.raises(LockLostError):
        lock.release()
    # The old holder's release has not removed the value of the next.
    assert next_one.held
    assert len(line(store, PATH)) == 1
    next_one.release()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["memory", "etcd", "zookeeper"])
def test_a_deleted_waiter_stands_again(kind: str, fresh_url: Callable[[str], str]) -> None:
    """When it looks at the line, it goes to the end, and does not wait for ever."""
    url = fresh_url(kind)
    with opened(url) as store, opened(url) as other:
        _check_deleted_waiter(store, other)


def _check_deleted_waiter(store: bk.MetadataStore, other: bk.MetadataStore) -> None:
    before, deleted = Lock(other, PATH), Lock(store, PATH)
    with Lock(other, PATH) as holder:
        giving_up = begun(before.acquire, 1.0)
        until_line(store, PATH, 2)
        waiter = begun(deleted.acquire)
        name = until_line(store, PATH, 3)[2]
        store.delete(f"{PATH}/{name}").result(PATIENCE)
        assert isinstance(giving_up.exception(PATIENCE), LockBusyError)
        until(lambda: len(names := line(store, PATH)) == 2 and name not in names)
        assert holder.held
        assert not deleted.held
    waiter.result(PATIENCE)
    deleted.release()


# --- interrupted


def test_ctrl_c(store: bk.MetadataStore) -> None:
    """KeyboardInterrupt in the wait leaves the line, and the object can be used again."""
    with Lock(store, PATH):
        waiting = Lock(store, PATH)
        with interrupted(lambda: until_line(store, PATH, 2)):
            waiting.acquire()
        until_line(store, PATH, 1)
    with waiting:
        assert waiting.held


@pytest.mark.slow
def test_a_store_that_is_closed_while_some_wait(store: bk.MetadataStore) -> None:
    """Whoever waits, in line or for the object, gets StoreClosedError; the hold is lost."""
    lock = Lock(store, PATH)
    lock.acquire()
    in_line = [begun(Lock(store, PATH).acquire) for _ in range(3)]
    at_the_object = begun(lock.acquire)
    until_line(store, PATH, 4)
    lost = lock.lost
    store.close()
    assert not lock.held
    assert lost.wait(PATIENCE)
    for future in (*in_line, at_the_object):
        assert isinstance(future.exception(PATIENCE), bk.StoreClosedError)
    with pytest.raises(LockLostError):
        lock.release()
    for call in (lock.acquire, lock.try_acquire, lock.holder):
        with pytest.raises(bk.StoreClosedError):
            call()


def test_a_forked_child(store: bk.MetadataStore) -> None:
    """A child holds nothing and cannot acquire, also if a thread held it all at the fork."""
    lock, other = Lock(store, PATH), Lock(store, PATH)
    lock.acquire()
    waiter = begun(other.acquire)
    until_line(store, PATH, 2)

    def refused() -> bool:
        for call in (lock.acquire, lock.release, lock.try_acquire, other.acquire, lock.holder):
            try:
                call()
            except bk.StoreClosedError:
                continue
            return False
        return not lock.held

    with locked_elsewhere(lobbies, lock, other):
        assert holds_in_a_child(refused)
    assert lock.held
    lock.release()
    waiter.result(PATIENCE)
    other.release()


def test_a_forked_child_with_a_store_of_its_own(store: bk.MetadataStore) -> None:
    """A lock that a thread of the parent held at the fork does not stop the child's own locks."""

    def works() -> bool:
        with bk.open_store("memory://child") as own, Lock(own, PATH) as lock:
            return lock.held

    with locked_elsewhere(lobbies):
        assert holds_in_a_child(works)


# --- what else lies there


def test_foreign_values_below_the_path(store: bk.MetadataStore) -> None:
    """They stand in nobody's way."""
    for name in ("config", "0000000000", "_c_1234-lock-0000000000"):
        store.put(f"{PATH}/{name}", b"").result(PATIENCE)
    with Lock(store, PATH, b"one") as lock:
        assert lock.holder() == b"one"
        other = Lock(store, PATH)
        waiter = begun(other.acquire)
        until_line(store, PATH, 5)
        store.put(f"{PATH}/zzz", b"").result(PATIENCE)
    waiter.result(PATIENCE)
    other.release()
    assert len(line(store, PATH)) == 4


def test_a_value_below_a_contender(store: bk.MetadataStore, store_url: str) -> None:
    """Somebody's mistake, which ZooKeeper refuses, does not keep the lock from the next."""
    lock = Lock(store, PATH)
    lock.acquire()
    path = lock.check().path
    if bk.store_kind(store_url).parents_count:
        with pytest.raises(bk.MetadataStoreError):
            store.put(f"{path}/mistake", b"").result(PATIENCE)
    else:
        store.put(f"{path}/mistake", b"").result(PATIENCE)
    lock.release()
    assert line(store, PATH) == []
    assert Lock(store, PATH).try_acquire()


def test_what_is_left_below_a_contender_holds_nothing(store: bk.MetadataStore) -> None:
    """Without a value at its path, a name has no holder, and the call ends."""
    name = "0123456789abcdef-x-0000000000"
    store.put(f"{PATH}/{name}/mistake", b"").result(PATIENCE)
    assert Lock(store, PATH).holder() in {None, b""}


# --- bad input


def test_bad_input(store: bk.MetadataStore) -> None:
    """It is refused by the call itself, and nothing is left behind."""
    for path in ("", "a", "/", "/a/", "/a//b", "/a/../b"):
        with pytest.raises(bk.InvalidPathError):
            Lock(store, path)
    with pytest.raises(bk.InvalidSettingError):
        Lock(store, PATH, "text")  # type: ignore[arg-type]
    with pytest.raises(bk.InvalidSettingError, match="shared must be True or False, not 'false'"):
        Lock(store, PATH, shared="false")  # type: ignore[arg-type]
    lock = Lock(store, PATH)
    for timeout in (-1, float("nan"), float("inf"), False, "1"):
        with pytest.raises(bk.InvalidSettingError):
            lock.acquire(timeout)  # type: ignore[arg-type]
    with pytest.raises(bk.InvalidSettingError):
        lock.update("text")  # type: ignore[arg-type]
    assert line(store, PATH) == []
    assert lock.try_acquire()
    lock.release()


def test_a_value_that_is_too_large(store: bk.MetadataStore) -> None:
    """The store's own refusal comes through, and the lock is free for others."""
    with pytest.raises(bk.ValueTooLargeError):
        Lock(store, PATH, bytes(17 * 2**20)).acquire()
    assert Lock(store, PATH).try_acquire()


@pytest.mark.parametrize("lacking", ["ephemerals", "sequences", "watches"])
def test_a_store_without_a_capability(
    lacking: bk.Capability, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The constructor refuses it, and names what is missing."""
    with bk.open_store("memory://plain") as store:
        stated = store.capabilities - {lacking}
        monkeypatch.setattr(type(store), "capabilities", property(lambda _: stated))
        with pytest.raises(bk.UnsupportedError, match=f"'{lacking}'"):
            Lock(store, PATH)


def test_the_examples_of_the_document(capsys: pytest.CaptureFixture[str]) -> None:
    """Both run unchanged, without a server."""
    text = (Path(__file__).parents[2] / "docs" / "locks.md").read_text()
    for example in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(compile(example, "docs/locks.md", "exec"), {})
    assert capsys.readouterr().out.splitlines()[1:] == ["False", "b'worker-1'"]
