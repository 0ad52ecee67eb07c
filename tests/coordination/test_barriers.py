"""Barriers: participants begin together and end together; and one that holds all back."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

import batchkeeper as bk
from batchkeeper.coordination import Barrier, DoubleBarrier
from batchkeeper.coordination._sync import barriers
from batchkeeper.coordination.deadlines import Deadline
from batchkeeper.ops.errors import LockBusyError, LockLostError, ValueDecodeError
from batchkeeper.testing import FaultInjector

from ..forks import holds_in_a_child
from ..waiting import PATIENCE, error, result, until
from .recipes import begun


def there(store: bk.MetadataStore) -> list[str]:
    return result(store.get_children("/b"))


def enter_all(*barriers: DoubleBarrier) -> None:
    for entering in [begun(barrier.enter, PATIENCE) for barrier in barriers]:
        result(entering)


def leave_all(*barriers: DoubleBarrier) -> None:
    for leaving in [begun(barrier.leave, PATIENCE) for barrier in barriers]:
        result(leaving)


def test_all_enter_and_leave_together(store_url: str) -> None:
    """Nobody enters before the last one has come, and nobody returns before all have left."""
    with bk.open_store(store_url) as store:
        first, second, third = (DoubleBarrier(store, "/b", 3, b"%d" % i) for i in range(3))
        entering = [begun(first.enter), begun(second.enter)]
        until(lambda: len(there(store)) == 2)
        assert {result(store.get(f"/b/{name}")).value for name in there(store)} == {b"0", b"1"}  # type: ignore[union-attr]
        assert not any(future.done() for future in entering)
        third.enter(PATIENCE)
        for future in entering:
            result(future)
        leaving = [begun(first.leave), begun(third.leave)]
        until(lambda: len(there(store)) == 1)
        assert not any(future.done() for future in leaving)
        second.leave(PATIENCE)
        for future in leaving:
            result(future)
        assert there(store) == []


@pytest.mark.parametrize("call", ["enter", "leave"])
def test_a_request_without_time_left(
    stores: Callable[..., bk.MetadataStore], monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """It gets a moment, and not the store's own time-out, which may be long."""
    store = stores()
    barrier = DoubleBarrier(store, "/b", 2)
    enter_all(barrier, DoubleBarrier(store, "/b", 2))
    if call == "enter":
        barrier = DoubleBarrier(store, "/b", 2)
    asked: list[float | None] = []

    def spied(real: Callable[..., Any]) -> Callable[..., Any]:
        def spy(*args: Any, **options: Any) -> Any:
            if threading.current_thread() is threading.main_thread():
                asked.append(options.get("timeout"))
            return real(*args, **options)

        return spy

    for name in ("get", "get_children", "delete", "put", "transaction", "watch"):
        monkeypatch.setattr(store, name, spied(getattr(store, name)))
    monkeypatch.setattr(Deadline, "left", lambda _: 0.0)
    with pytest.raises(bk.OperationTimeoutError):
        getattr(barrier, call)(0.1)
    assert asked
    assert None not in asked


def test_many_rounds(store_url: str) -> None:
    """A barrier can be used again at once: nobody begins a round before all have left the last."""
    steps: list[tuple[int, str]] = []

    def work(barrier: DoubleBarrier) -> None:
        for number in range(5):
            barrier.enter(PATIENCE)
            steps.append((number, "in"))
            barrier.leave(PATIENCE)
            steps.append((number, "out"))

    with bk.open_store(store_url) as store:
        for working in [begun(work, DoubleBarrier(store, "/b", 3)) for _ in range(3)]:
            result(working)
        # A round's last "in" is before its first "out", as is its last "leave" before the next.
        ins = [number for number, step in steps if step == "in"]
        assert ins == sorted(ins)
        for number in range(5):
            assert steps.index((number, "out")) > max(
                at for at, step in enumerate(steps) if step == (number, "in")
            )
        assert there(store) == []
        found = result(store.get("/b"))
        assert found is not None
        assert found.value == b"5"


def test_the_next_round_waits_for_nobody_of_the_last(
    stores: Callable[..., bk.MetadataStore], faults: FaultInjector
) -> None:
    """A quick one may stand for the next round while a slow one has still to see the last end."""
    quick = DoubleBarrier(stores(), "/b", 2)
    slow = DoubleBarrier(stores(wrap=faults), "/b", 2)
    enter_all(quick, slow)
    held = faults.delay("get_children", "/b", times=None)
    leaving = begun(slow.leave)
    held.wait()
    quick.leave(PATIENCE)
    again = begun(quick.enter)
    store = stores()
    until(lambda: len(there(store)) == 1)
    held.remove()
    held.release()
    result(leaving)
    slow.enter(PATIENCE)
    result(again)


def test_one_too_many(stores: Callable[..., bk.MetadataStore]) -> None:
    """Who comes when the round is full stands for the next one, and holds nobody up."""
    store = stores()
    first, second, late = (DoubleBarrier(store, "/b", 2) for _ in range(3))
    enter_all(first, second)
    entering = begun(late.enter)
    until(lambda: len(there(store)) == 3)
    leave_all(first, second)
    assert not entering.done()
    first.enter(PATIENCE)
    result(entering)
    leave_all(first, late)


def test_one_too_late(stores: Callable[..., bk.MetadataStore], faults: FaultInjector) -> None:
    """Who has seen a round open, but comes when it is full, does not get into it."""
    store = stores()
    late = DoubleBarrier(stores(wrap=faults), "/b", 2)
    others = [DoubleBarrier(store, "/b", 2) for _ in range(2)]
    held = faults.delay("transaction")
    entering = begun(late.enter)
    held.wait()
    enter_all(*others)
    held.release()
    until(lambda: len(there(store)) == 3)
    assert [int(name.partition("-")[0]) for name in there(store)] == [0, 0, 1]
    leave_all(*others)
    assert not entering.done()
    others[0].enter(PATIENCE)
    result(entering)


def test_more_at_once_than_a_round_needs(stores: Callable[..., bk.MetadataStore]) -> None:
    """If more come before the round is closed, all of them enter and leave together."""
    store = stores()
    result(store.put("/b", b"0"))
    injectors = [FaultInjector() for _ in range(4)]
    held = [injector.delay("put", "/b") for injector in injectors]
    barriers = [DoubleBarrier(stores(wrap=injector), "/b", 2) for injector in injectors]
    entering = [begun(barrier.enter) for barrier in barriers]
    until(lambda: len(there(store)) == 4)
    assert not any(future.done() for future in entering)
    for one in held:
        one.release()
    for future in entering:
        result(future)
    leave_all(*barriers)
    found = result(store.get("/b"))
    assert found is not None
    assert found.value == b"1"


def test_a_timeout_of_enter(store_url: str) -> None:
    """Who gives up stands there no more: it does not count for others, nor twice for itself."""
    with bk.open_store(store_url) as store:
        first, second = DoubleBarrier(store, "/b", 2), DoubleBarrier(store, "/b", 2)
        for _ in range(2):
            with pytest.raises(bk.OperationTimeoutError, match="fewer than 2"):
                first.enter(0.2)
        with pytest.raises(bk.OperationTimeoutError, match="fewer than 2"):
            second.enter(0)
        with pytest.raises(LockLostError):
            first.leave()
        until(lambda: there(store) == [])
        enter_all(first, second)
        leave_all(first, second)


def test_who_comes_again_counts_once(
    stores: Callable[..., bk.MetadataStore], faults: FaultInjector
) -> None:
    """Who gave up and comes again stands there only when his earlier value is gone."""
    barrier = DoubleBarrier(stores(wrap=faults), "/b", 2)
    store = stores()
    failing = faults.fail("delete", times=None)
    with pytest.raises(bk.OperationTimeoutError):
        barrier.enter(0)
    [before] = there(store)
    entering = begun(barrier.enter)
    with pytest.raises(AssertionError):
        until(entering.done, within=0.2)  # It would enter alone by then.
    failing.remove()
    until(lambda: there(store) not in ([], [before]))
    assert not entering.done()
    DoubleBarrier(store, "/b", 2).enter(PATIENCE)
    result(entering)


def test_a_timeout_of_leave(store_url: str) -> None:
    """Who waits no longer for the others has left, can wait again, and can enter again."""
    with bk.open_store(store_url) as store:
        first, second = DoubleBarrier(store, "/b", 2), DoubleBarrier(store, "/b", 2)
        enter_all(first, second)
        with pytest.raises(bk.OperationTimeoutError, match="still inside"):
            first.leave(0.05)
        until(lambda: len(there(store)) == 1)
        waiting = begun(first.leave)
        second.leave(PATIENCE)
        result(waiting)
        enter_all(first, second)
        with pytest.raises(bk.OperationTimeoutError):
            second.leave(0)
        again = begun(second.enter)
        first.leave(PATIENCE)
        first.enter(PATIENCE)
        result(again)


def test_who_dies_has_left(stores: Callable[..., bk.MetadataStore]) -> None:
    """A participant whose session ends does not count before the round, nor hold up its end."""
    store, dying, dead = stores(), stores(), stores()
    first, second = DoubleBarrier(store, "/b", 2), DoubleBarrier(store, "/b", 2)
    waiting = begun(DoubleBarrier(dead, "/b", 2).enter)
    until(lambda: len(there(store)) == 1)
    dead.close()
    assert isinstance(error(waiting), bk.StoreClosedError)
    until(lambda: there(store) == [])
    entering = begun(first.enter)
    until(lambda: len(there(store)) == 1)
    DoubleBarrier(dying, "/b", 2).enter(PATIENCE)
    result(entering)
    leaving = begun(first.leave)
    until(lambda: len(there(store)) == 1)
    assert not leaving.done()
    dying.close()
    result(leaving)
    enter_all(first, second)


def test_who_closes_a_round_and_dies(
    stores: Callable[..., bk.MetadataStore], faults: FaultInjector
) -> None:
    """A full round is full for all, even if one of them dies before another has looked."""
    store, dying = stores(), stores()
    slow = DoubleBarrier(stores(wrap=faults), "/b", 2)
    entering = begun(slow.enter)
    until(lambda: len(there(store)) == 1)
    held = faults.delay("get", "/b")
    DoubleBarrier(dying, "/b", 2).enter(PATIENCE)
    dying.close()
    held.wait()
    assert len(there(store)) == 1
    held.release()
    result(entering)
    slow.leave(PATIENCE)


def test_a_session_that_is_lost(
    stores: Callable[..., bk.MetadataStore], faults: FaultInjector
) -> None:
    """Who loses its session while it waits stands again; who is inside by then has left."""
    store = stores()
    shaky = DoubleBarrier(stores(wrap=faults), "/b", 2)
    steady = DoubleBarrier(store, "/b", 2)
    entering = begun(shaky.enter)
    [before] = until(lambda: there(store))
    faults.lose_session()
    [after] = until(lambda: [name for name in there(store) if name != before])
    assert there(store) == [after]
    steady.enter(PATIENCE)
    result(entering)
    faults.lose_session()
    steady.leave(PATIENCE)
    shaky.leave(PATIENCE)


def test_a_session_that_is_lost_at_the_end_of_a_round(
    stores: Callable[..., bk.MetadataStore], faults: FaultInjector
) -> None:
    """Who was not there any more when the round was full stands for the next one."""
    store = stores()
    shaky = DoubleBarrier(stores(wrap=faults), "/b", 2)
    others = [DoubleBarrier(store, "/b", 2) for _ in range(2)]
    entering = begun(shaky.enter)
    until(lambda: len(there(store)) == 1)
    held = faults.delay("get", "/b")
    result(store.put("/b/foreign", b""))  # It looks again, and may see itself first.
    held.wait()
    faults.lose_session()
    result(store.delete("/b/foreign"))
    enter_all(*others)
    held.release()
    until(lambda: len(there(store)) == 3)
    leave_all(*others)
    assert not entering.done()
    others[0].enter(PATIENCE)
    result(entering)


@pytest.mark.parametrize("applied", [True, False])
@pytest.mark.parametrize("kind", ["transaction", "put", "delete"])
def test_a_lost_answer(
    stores: Callable[..., bk.MetadataStore], faults: FaultInjector, kind: Any, applied: bool
) -> None:
    """One participant counts once, whatever request of it has no answer."""
    store = stores()
    shaky = DoubleBarrier(stores(wrap=faults), "/b", 2)
    steady = DoubleBarrier(store, "/b", 2)
    faults.lose_answer(kind, applied=applied)
    entering = begun(shaky.enter)

    def looked() -> bool:
        """Say whether it has looked who is there after the lost answer."""
        kinds = [one for call in faults.calls for one in call.kinds]
        return kind == "delete" or (kind in kinds and "get_children" in kinds[kinds.index(kind) :])

    until(looked)
    until(lambda: len(there(store)) == 1)
    assert not entering.done()
    steady.enter(PATIENCE)
    result(entering)
    leave_all(shaky, steady)
    assert not faults.armed
    until(lambda: there(store) == [])


@pytest.mark.slow
def test_an_outage_is_waited_out(
    stores: Callable[..., bk.MetadataStore], faults: FaultInjector
) -> None:
    """Requests that fail for a time are made again, until the deadline of the call."""
    store = stores()
    shaky = DoubleBarrier(stores(wrap=faults), "/b", 2)
    faults.fail("watch", times=2)
    faults.fail("get", "/b")
    faults.fail("transaction")
    entering = begun(shaky.enter)
    DoubleBarrier(store, "/b", 2).enter(PATIENCE)
    result(entering)
    assert not faults.armed
    faults.fail("watch", times=None)
    with pytest.raises(bk.StoreUnavailableError):
        shaky.leave(0.1)


def test_no_thread_can_be_started(
    stores: Callable[..., bk.MetadataStore], faults: FaultInjector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error is that of the store, and the object can be used as before."""

    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    barrier = DoubleBarrier(stores(wrap=faults), "/b", 1)
    barrier.enter(PATIENCE)
    faults.refuse(bk.AuthenticationError("no permission"), "delete")
    with monkeypatch.context() as patch:
        patch.setattr(barriers, "spawn", refuse)
        with pytest.raises(bk.AuthenticationError):
            barrier.leave(PATIENCE)
    barrier.enter(PATIENCE)
    barrier.leave(PATIENCE)


def test_misuse(stores: Callable[..., bk.MetadataStore]) -> None:
    """An object enters once, leaves once, and has calls one after the other."""
    store = stores()
    barrier = DoubleBarrier(store, "/b", 1)
    with pytest.raises(LockLostError, match="not entered"):
        barrier.leave()
    barrier.enter()
    with pytest.raises(LockBusyError, match="entered /b already"):
        barrier.enter()
    barrier.leave()
    with pytest.raises(LockLostError, match="not entered"):
        barrier.leave()
    n: Any
    for n in (0, -1, 1.0, True, "2", None):
        with pytest.raises(bk.InvalidSettingError, match="n must be"):
            DoubleBarrier(store, "/b", n)
    with pytest.raises(bk.InvalidPathError):
        DoubleBarrier(store, "b", 2)
    with pytest.raises(bk.InvalidSettingError):
        barrier.enter(-1)
    text: Any = "text"
    with pytest.raises(bk.InvalidSettingError):
        DoubleBarrier(store, "/b", 2, text)
    shared = DoubleBarrier(store, "/b", 2)
    waiting = begun(shared.enter)
    until(lambda: len(there(store)) == 1)
    with pytest.raises(LockBusyError, match="another call"):
        shared.leave(0)
    DoubleBarrier(store, "/b", 2).enter(PATIENCE)
    result(waiting)


def test_foreign_values(stores: Callable[..., bk.MetadataStore]) -> None:
    """Values of others below the path do not count, and one at the path is an error."""
    store = stores()
    for name in ("ready", "0000000000", "0000000001-x"):
        result(store.put(f"/b/{name}", b""))
    with pytest.raises(bk.OperationTimeoutError):
        DoubleBarrier(store, "/b", 2).enter(0)
    result(store.put("/b", b"seven"))
    with pytest.raises(ValueDecodeError) as caught:
        DoubleBarrier(store, "/b", 1).enter()
    assert (caught.value.path, caught.value.version) == ("/b", 1)


def test_a_block(stores: Callable[..., bk.MetadataStore]) -> None:
    """A ``with`` block enters and leaves; its error is raised at once, without the others."""
    store = stores()
    inside = threading.Barrier(2)

    def fail() -> None:
        with DoubleBarrier(store, "/b", 2):
            inside.wait(PATIENCE)
            raise ZeroDivisionError

    failing = begun(fail)
    with DoubleBarrier(store, "/b", 2):
        inside.wait(PATIENCE)
        assert isinstance(failing.exception(PATIENCE), ZeroDivisionError)
    assert there(store) == []


def test_the_store_is_closed(stores: Callable[..., bk.MetadataStore]) -> None:
    """Whoever waits at a barrier of a store that is closed gets an error soon."""
    other, store = stores(), stores()
    barrier, inside = DoubleBarrier(store, "/b", 2), DoubleBarrier(other, "/b", 2)
    enter_all(barrier, inside)
    leaving, entering = begun(barrier.leave), begun(DoubleBarrier(store, "/b", 2).enter)
    until(lambda: len(there(other)) == 2)
    store.close()
    assert isinstance(error(leaving), bk.StoreClosedError)
    assert isinstance(error(entering), bk.StoreClosedError)
    inside.leave(PATIENCE)


def test_a_forked_child(stores: Callable[..., bk.MetadataStore]) -> None:
    """A child gets an error, even if a thread of the parent waits at the same object."""
    store = stores()
    barrier = DoubleBarrier(store, "/b", 2)
    waiting = begun(barrier.enter)
    until(lambda: len(there(store)) == 1)

    def refused() -> bool:
        try:
            barrier.enter()
        except bk.StoreClosedError:
            return True
        return False

    assert holds_in_a_child(refused)
    DoubleBarrier(store, "/b", 2).enter(PATIENCE)
    result(waiting)


def test_a_store_without_watches(
    stores: Callable[..., bk.MetadataStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that lacks a capability is refused by the constructor."""
    store = stores()
    monkeypatch.setattr(bk.MetadataStore, "capabilities", frozenset({"ephemerals", "transactions"}))
    with pytest.raises(bk.UnsupportedError, match="'watches'"):
        DoubleBarrier(store, "/b", 2)


@pytest.mark.parametrize("store_url", ["memory", "zookeeper"], indirect=True)
def test_a_simple_barrier(store_url: str) -> None:
    """All wait until it is removed, and then go on, even if it is there again."""
    with bk.open_store(store_url) as store, bk.open_store(store_url) as other:
        barrier, waiting = Barrier(store, "/b", b"why"), Barrier(other, "/b")
        waiting.wait()
        assert [barrier.create(), waiting.create()] == [True, False]
        for timeout in (0, 0.05):
            with pytest.raises(bk.OperationTimeoutError, match="not removed"):
                barrier.wait(timeout)
        waits = [begun(waiting.wait, PATIENCE) for _ in range(3)]
        # They look when their watches are in place; the first call has looked once, too.
        until(lambda: other.metrics().operations["exists"] == 4)
        store.put("/b", b"other").result(PATIENCE)
        assert not any(one.done() for one in waits)
        store.apply([bk.Delete("/b"), bk.Put("/b", b"")])
        for one in waits:
            one.result(PATIENCE)
        assert [barrier.remove(), waiting.remove()] == [True, False]
        barrier.create()
        closed = begun(waiting.wait)
        until(lambda: other.metrics().watches == 1)
        other.close()
        assert isinstance(closed.exception(PATIENCE), bk.StoreClosedError)
