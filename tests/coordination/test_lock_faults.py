"""Locks while requests fail, answers are lost, and sessions end: nothing is left behind."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

import batchkeeper as bk
from batchkeeper.coordination import Lock, Semaphore
from batchkeeper.coordination._sync import claims
from batchkeeper.ops.errors import LockBusyError, LockLostError
from batchkeeper.ops.sessions import SessionEvent
from batchkeeper.testing import FaultInjector

from ..interrupts import interrupted
from ..waiting import PATIENCE, until
from .in_line import line, opened, until_line
from .recipes import begun

PATH = "/locks/a"


@pytest.fixture
def url(fresh_url: Callable[[str], str]) -> str:
    """The URL of an empty store in memory."""
    return fresh_url("memory")


@pytest.fixture
def store(url: str, faults: FaultInjector) -> Iterator[bk.MetadataStore]:
    """A store with faults."""
    batching = bk.BatchingConfig(max_in_flight=4)  # A delayed read delays no other.
    with opened(url, wrap=faults, batching=batching) as made:
        yield made


@pytest.fixture
def other(url: str, store: bk.MetadataStore) -> Iterator[bk.MetadataStore]:
    """Another client of the same store, without faults."""
    with opened(url) as made:
        yield made


# --- creation


@pytest.mark.parametrize("applied", [True, False])
def test_a_creation_without_an_answer(
    store: bk.MetadataStore, faults: FaultInjector, applied: bool
) -> None:
    """Whether it was applied or not: the lock is held in the end, by one value."""
    faults.lose_answer("put", applied=applied)
    with Lock(store, PATH) as lock:
        assert lock.held
        assert until_line(store, PATH, 1)[0] == lock.check().path.rpartition("/")[2]
    assert not faults.armed
    assert line(store, PATH) == []


def test_an_attempt_without_an_answer(
    store: bk.MetadataStore, faults: FaultInjector, other: bk.MetadataStore
) -> None:
    """It ends as unknown. Its value does not stay in the line, and the session lives on."""
    faults.lose_answer("put")
    session = store.session.id
    with pytest.raises(bk.IndeterminateError):
        Lock(store, PATH).try_acquire()
    Lock(other, PATH).acquire(PATIENCE)
    assert store.session.id == session


@pytest.mark.slow
def test_a_creation_without_an_answer_before_an_outage(
    store: bk.MetadataStore,
    faults: FaultInjector,
    other: bk.MetadataStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The search for the value lasts until servers answer, however long that takes."""
    monkeypatch.setattr(claims, "_SEARCH", 0.0)
    faults.lose_answer("put")
    failing = faults.fail("get_children", times=5)
    with pytest.raises(bk.IndeterminateError):
        Lock(store, PATH).try_acquire()
    Lock(other, PATH).acquire(PATIENCE)
    assert not failing.armed


def test_a_creation_that_comes_late(store: bk.MetadataStore, faults: FaultInjector) -> None:
    """Ctrl-C gives up a creation that takes effect only afterwards: its value goes again."""
    held = faults.delay("put")
    with store.watch(PATH) as watch:
        with interrupted(held.wait):
            Lock(store, PATH).acquire()
        assert line(store, PATH) == []
        held.release()
        events = [watch.next_event(PATIENCE) for _ in range(2)]
        assert [event.kind for event in events if event] == ["created", "deleted"]
    with Lock(store, PATH) as lock:
        assert lock.held


def test_a_creation_that_fails(store: bk.MetadataStore, faults: FaultInjector) -> None:
    """Acquire waits out what may pass; an attempt, and what does not pass, end at once."""
    lock = Lock(store, PATH)
    faults.fail("put", times=3)
    with lock:
        assert not faults.armed
    faults.fail("put")
    with pytest.raises(bk.StoreUnavailableError):
        lock.try_acquire()
    faults.refuse(bk.AuthenticationError("read-only"), "put")
    with pytest.raises(bk.AuthenticationError):
        lock.acquire()
    assert line(store, PATH) == []
    assert lock.try_acquire()


def test_a_look_that_fails(
    store: bk.MetadataStore, faults: FaultInjector, other: bk.MetadataStore
) -> None:
    """An attempt ends, and its value goes again; a waiting contender looks again, and keeps its
    place."""
    lock = Lock(store, PATH)
    with Lock(other, PATH):
        faults.fail("get_children")
        with pytest.raises(bk.StoreUnavailableError):
            lock.try_acquire()
        until_line(other, PATH, 1)
        failing = faults.fail("get_children", times=2)
        waiting = begun(lock.acquire)
        names = until_line(other, PATH, 2)
        until(lambda: store.metrics().watches == 1)
        assert not failing.armed
        assert line(other, PATH) == names
    waiting.result(PATIENCE)


@pytest.mark.slow
def test_a_timeout_in_an_outage(store: bk.MetadataStore, faults: FaultInjector) -> None:
    """The call ends soon after its time-out, and not with the store's own."""
    lock = Lock(store, PATH)
    faults.cut()
    for timeout in (0.05, 0.5):
        with pytest.raises(bk.MetadataStoreError):
            lock.acquire(timeout)
    faults.restore()
    until_line(store, PATH, 0)
    with lock:
        assert lock.held


def test_a_session_that_ends_before_the_answer(
    store: bk.MetadataStore, faults: FaultInjector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a session before the creation, a later session does not pass for its own."""
    ids = [None]
    real = bk.Session.id
    assert isinstance(real, property)
    monkeypatch.setattr(
        bk.Session, "id", property(lambda self: ids.pop() if ids else real.fget(self))
    )
    answer = faults.delay("put", applied=True)
    lock = Lock(store, PATH)
    acquiring = begun(lock.acquire)
    answer.wait()
    faults.lose_session()
    assert line(store, PATH) == []
    answer.release()
    acquiring.result(PATIENCE)
    assert not ids
    assert line(store, PATH) == [lock.check().path.rpartition("/")[2]]


# --- release


def test_a_release_that_fails(
    store: bk.MetadataStore, faults: FaultInjector, other: bk.MetadataStore
) -> None:
    """It goes on in the background, and the next gets the lock within the same session."""
    lock = Lock(store, PATH)
    session = store.session.id
    for arm in (
        lambda: faults.fail("delete", times=3),
        lambda: faults.lose_answer("delete", times=2),
        lambda: faults.lose_answer("delete", times=2, applied=False),
    ):
        lock.acquire()
        arm()
        lock.release()
        with Lock(other, PATH):
            assert not lock.held
        # A delete whose answer was lost may have freed the lock already, and goes on all the same.
        until(lambda: not faults.armed)
    assert store.session.id == session


def test_a_release_that_is_refused(
    store: bk.MetadataStore, faults: FaultInjector, other: bk.MetadataStore
) -> None:
    """The caller learns of it, and the object can be used again once the value is gone."""
    lock = Lock(store, PATH)
    lock.acquire()
    faults.refuse(bk.AuthenticationError("read-only"), "delete")
    with pytest.raises(bk.AuthenticationError):
        lock.release()
    assert not lock.held
    Lock(other, PATH).acquire(PATIENCE)


def test_values_of_many_locks_go_by_one_thread(
    store: bk.MetadataStore, faults: FaultInjector
) -> None:
    """A session that ends under a hundred locks leaves no hundred threads, and no value."""
    locks = [Lock(store, f"/many/{number}") for number in range(100)]
    for lock in locks:
        lock.acquire()
    faults.lose_session(end_ephemerals=False)
    most = 0

    def gone() -> bool:
        nonlocal most
        removing = [t for t in threading.enumerate() if t.name == "batchkeeper-removal"]
        most = max(most, len(removing))
        return not any(store.get_children(lock.path).result(PATIENCE) for lock in locks)

    until(gone)
    assert most < 20  # one, and such as are about to end
    assert not any(lock.held for lock in locks)


# --- loss


def test_a_lost_session(store: bk.MetadataStore, faults: FaultInjector) -> None:
    """The lock is lost at once; what it was stays readable until the release says so."""
    lock = Lock(store, PATH)
    lock.acquire()
    lost, token = lock.lost, lock.fencing_token
    faults.lose_session()
    assert not lock.held
    assert lost.wait(PATIENCE)
    assert lock.fencing_token == token
    for call in (lock.check, lambda: lock.update(b"late")):
        with pytest.raises(LockLostError, match="was lost"):
            call()
    with pytest.raises(LockLostError, match="was lost"):
        lock.release()
    with lock:
        assert lock.held
        assert lock.fencing_token > token
        assert lost.is_set()


def test_a_later_session(store: bk.MetadataStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """However quickly the next session follows, its time does not count for the lost one."""
    lock = Lock(store, PATH)
    lock.acquire()
    monkeypatch.setattr(bk.Session, "id", property(lambda _: "the next"))
    assert not lock.held
    assert lock.lost.wait(PATIENCE)
    assert store.session.valid_until() == float("inf")


def test_a_loss_that_the_client_does_not_know_of(
    store: bk.MetadataStore, faults: FaultInjector, other: bk.MetadataStore
) -> None:
    """Cut off from the server, the holder knows by the clock; the next may have it already."""
    lock = Lock(store, PATH)
    lock.acquire()
    told: list[SessionEvent] = []
    store.add_session_listener(told.append)
    faults.cut()
    faults.lose_session()
    successor = Lock(other, PATH)
    assert successor.try_acquire()
    assert not lock.held
    assert lock.lost.wait(PATIENCE)
    assert "session_lost" not in told
    faults.restore()
    with pytest.raises(LockLostError):
        lock.release()
    assert successor.held
    assert len(line(other, PATH)) == 1


def test_a_lost_lock_whose_value_survives(
    store: bk.MetadataStore, faults: FaultInjector, other: bk.MetadataStore
) -> None:
    """Its holder does not hold it any more, so its value is removed, and nobody waits for it."""
    lock = Lock(store, PATH)
    lock.acquire()
    faults.lose_session(end_ephemerals=False)
    Lock(other, PATH).acquire(PATIENCE)
    assert not lock.held


def test_a_waiter_whose_session_ends(
    store: bk.MetadataStore, faults: FaultInjector, other: bk.MetadataStore
) -> None:
    """It stands in line again, in the next session."""
    lock = Lock(store, PATH)
    with Lock(other, PATH):
        waiting = begun(lock.acquire)
        first = until_line(other, PATH, 2)
        faults.lose_session()
        until(lambda: (names := line(other, PATH)) != first and len(names) == 2)
        assert not lock.held
    waiting.result(PATIENCE)
    assert lock.held


def fails(call: Callable[[], None]) -> ZeroDivisionError:
    """Do something, and return the error that the block then ends with."""
    call()
    return ZeroDivisionError()


def test_a_loss_in_a_block(store: bk.MetadataStore, faults: FaultInjector) -> None:
    """The end of the block says that the lock was lost, unless the block has its own error."""
    lock = Lock(store, PATH)
    with pytest.raises(LockLostError), lock:
        faults.lose_session()
    with pytest.raises(ZeroDivisionError), lock:
        raise fails(faults.lose_session)
    faults.refuse(bk.AuthenticationError("read-only"), "delete")
    with pytest.raises(ZeroDivisionError), lock:
        raise ZeroDivisionError
    with lock:
        assert lock.held


def test_a_thread_that_acquires_again_after_a_loss(
    store: bk.MetadataStore, faults: FaultInjector
) -> None:
    """It need not release what it has lost, and others of the same object have their turn."""
    lock = Lock(store, PATH)
    lock.acquire()
    faults.lose_session()
    lock.acquire()
    assert lock.held
    with pytest.raises(LockBusyError):
        lock.acquire()
    lock.release()
    assert begun(lock.try_acquire).result(PATIENCE)


# --- the watch of the line


def test_a_watch_that_ends(
    store: bk.MetadataStore, faults: FaultInjector, other: bk.MetadataStore
) -> None:
    """If that may pass, another one begins in the same place; otherwise the call has the error."""
    lock = Lock(store, PATH)
    with Lock(other, PATH):
        waiting = begun(lock.acquire)
        until(lambda: store.metrics().watches == 1)
        names = line(other, PATH)
        faults.end_watches(bk.StoreUnavailableError("away"))
        until(lambda: store.metrics().watches == 1)
        assert line(other, PATH) == names
        faults.end_watches(bk.AuthenticationError("not any more"))
        with pytest.raises(bk.AuthenticationError):
            waiting.result(PATIENCE)
        until_line(other, PATH, 1)
    with lock:
        assert lock.held


def looks(faults: FaultInjector) -> int:
    """Return how often the store has read the line."""
    return sum("get_children" in call.kinds for call in faults.calls)


@pytest.mark.parametrize("n", [1, 2])
def test_a_gap_is_no_deletion(
    store: bk.MetadataStore, faults: FaultInjector, other: bk.MetadataStore, n: int
) -> None:
    """The line is read again after a gap, and shows that the holders are still there."""
    lock, holders = Semaphore(store, PATH, n), [Semaphore(other, PATH, n) for _ in range(n)]
    for holder in holders:
        holder.acquire()
    waiting = begun(lock.acquire)
    until(lambda: store.metrics().watches == 1)
    until(lambda: looks(faults) == n)  # A semaphore looks again when its watch is in place.
    faults.gap()
    until(lambda: lock.held or looks(faults) > n)
    until(lambda: lock.held or store.metrics().watches == 1)
    assert not lock.held
    holders[0].release()
    waiting.result(PATIENCE)


@pytest.mark.parametrize("n", [1, 2])
def test_a_gap_hides_the_release(
    store: bk.MetadataStore, faults: FaultInjector, other: bk.MetadataStore, n: int
) -> None:
    """The line is read again after a gap, and shows whose turn has come."""
    lock, holders = Semaphore(store, PATH, n), [Semaphore(other, PATH, n) for _ in range(n)]
    for holder in holders:
        holder.acquire()
    waiting = begun(lock.acquire)
    until(lambda: store.metrics().watches == 1)
    until(lambda: looks(faults) == n)
    faults.cut()
    holders[0].release()
    faults.restore(gap=True)
    waiting.result(PATIENCE)
    assert lock.held


def test_a_holder_that_leaves_before_the_watch(
    store: bk.MetadataStore, faults: FaultInjector, other: bk.MetadataStore
) -> None:
    """Nobody reports an end that the watch came too late for: the waiter makes sure."""
    lock, holder = Lock(store, PATH), Lock(other, PATH)
    holder.acquire()
    late = faults.delay("get_children", applied=True)
    waiting = begun(lock.acquire)
    late.wait()
    holder.release()
    late.release()
    waiting.result(PATIENCE)
    assert lock.held


@pytest.mark.slow
def test_one_before_it_gives_up(
    store: bk.MetadataStore, faults: FaultInjector, other: bk.MetadataStore
) -> None:
    """Who waited behind it looks again, and waits for the holder."""
    lock = Lock(store, PATH)
    with Lock(other, PATH):
        giving_up = begun(Lock(other, PATH).acquire, 1.0)
        until_line(other, PATH, 2)
        waiting = begun(lock.acquire)
        assert isinstance(giving_up.exception(PATIENCE), LockBusyError)
        until_line(other, PATH, 2)
        until(lambda: lock.held or store.metrics().watches == 1)
        assert not lock.held
    waiting.result(PATIENCE)


@pytest.mark.slow
def test_one_of_the_same_store_gives_up(store: bk.MetadataStore, other: bk.MetadataStore) -> None:
    """Who waited behind it, without a watch, waits for the holder from then on."""
    lock = Lock(store, PATH)
    with Lock(other, PATH):
        giving_up = begun(Lock(store, PATH).acquire, 1.0)
        until_line(other, PATH, 2)
        waiting = begun(lock.acquire)
        assert isinstance(giving_up.exception(PATIENCE), LockBusyError)
        until_line(other, PATH, 2)
        until(lambda: lock.held or store.metrics().watches == 1)
        assert not lock.held
    waiting.result(PATIENCE)


def test_a_value_that_cannot_be_removed(
    store: bk.MetadataStore, faults: FaultInjector, other: bk.MetadataStore
) -> None:
    """Those of the same store wait for its end as all others do."""
    lock, next_one = Lock(store, PATH), Lock(store, PATH)
    lock.acquire()
    waiting = begun(next_one.acquire)
    stays = until_line(other, PATH, 2)[0]
    faults.refuse(bk.AuthenticationError("read-only"), "delete", times=2)
    with pytest.raises(bk.AuthenticationError):
        lock.release()
    until(lambda: next_one.held or store.metrics().watches == 1)
    assert not next_one.held
    other.delete(f"{PATH}/{stays}").result(PATIENCE)
    waiting.result(PATIENCE)


# --- updates


@pytest.mark.parametrize("applied", [True, False])
def test_an_update_without_an_answer(
    store: bk.MetadataStore, faults: FaultInjector, applied: bool
) -> None:
    """It ends as unknown; the lock is held, and its condition and the next update hold."""
    with Lock(store, PATH, b"one") as lock:
        faults.lose_answer("put", applied=applied)
        with pytest.raises(bk.IndeterminateError):
            lock.update(b"two")
        store.transaction([lock.check(), bk.Put("/guarded", b"")]).result(PATIENCE)
        assert lock.value == b"one"
        lock.update(b"three")
        assert lock.holder() == lock.value == b"three"


def test_an_update_without_an_answer_in_an_outage(
    store: bk.MetadataStore, faults: FaultInjector
) -> None:
    """The look at the value fails as well: the next update finds the version."""
    with Lock(store, PATH, b"one") as lock:
        faults.lose_answer("put")
        faults.fail("get")
        with pytest.raises(bk.IndeterminateError):
            lock.update(b"two")
        assert not faults.armed
        lock.update(b"three")
        assert lock.held
        assert lock.holder() == b"three"
