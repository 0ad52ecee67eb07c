"""The work queue: jobs in order, one worker each, until one of them is done with it."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest

import batchkeeper as bk
from batchkeeper.batching.sessions import Session
from batchkeeper.coordination import Job, WorkQueue
from batchkeeper.coordination._sync import work as module
from batchkeeper.coordination.job_board import JobBoard
from batchkeeper.ops.errors import LockLostError
from batchkeeper.testing import FaultInjector

from ..forks import holds_in_a_child, locked_elsewhere
from ..waiting import PATIENCE, error, result, until
from .recipes import begun


def jobs(store: bk.MetadataStore) -> list[str]:
    return result(store.get_children("/q/jobs"))


def claims(store: bk.MetadataStore) -> list[str]:
    return result(store.get_children("/q/claims"))


def requests(faults: FaultInjector, *kinds: str) -> int:
    """Return how many operations of these kinds were sent."""
    return sum(kind in kinds for call in faults.calls for kind in call.kinds)


def take(queue: WorkQueue) -> Job:
    return queue.claim(PATIENCE)


def test_jobs_come_by_priority_and_age(store_url: str) -> None:
    """Jobs come in the order of their priorities, then of their arrival."""
    with bk.open_store(store_url) as store:
        queue = WorkQueue(store, "/q")
        late = queue.put(b"late", 999)
        paths = [queue.put(b"%d" % i) for i in range(3)]
        first = queue.put(b"first", priority=0)
        assert queue.size() == 5
        found = []
        for _ in range(5):
            with take(queue) as job:
                found.append((job.path, job.value))
        values = [b"first", b"0", b"1", b"2", b"late"]
        assert found == [*zip([first, *paths, late], values, strict=True)]
        assert queue.size() == 0
        assert jobs(store) == claims(store) == []


def test_a_job_that_is_given_back(store_url: str) -> None:
    """Who releases a job leaves it to the next; its attempts and tokens grow."""
    with bk.open_store(store_url) as store:
        queue = WorkQueue(store, "/q")
        queue.put(b"job")
        tokens = []
        for attempt in (1, 2, 3):
            job = take(queue)
            assert (job.value, job.attempt, job.held) == (b"job", attempt, True)
            tokens.append(job.fencing_token)
            job.release()
            assert not job.held
            assert claims(store) == []
            job.release()
            with pytest.raises(LockLostError):
                job.done()
        assert tokens == sorted(set(tokens))
        assert queue.size() == 1
        with pytest.raises(ZeroDivisionError), take(queue):
            raise ZeroDivisionError
        assert take(queue).attempt == 5


def test_many_workers(store_url: str) -> None:
    """Each job is done by one worker, in several threads of several objects, and none is left."""
    with bk.open_store(store_url) as store:
        queues = [WorkQueue(store, "/q") for _ in range(3)]
        expected = {b"%d" % i for i in range(40)}
        done: list[bytes] = []

        def work(queue: WorkQueue) -> None:
            while True:
                with queue.claim() as job:
                    if job.value == b"end":
                        return
                    done.append(job.value)

        working = [begun(work, queue) for queue in queues * 2]
        assert len(set(queues[0].put_all(sorted(expected)))) == 40
        # Workers pick among the first few jobs, so all of them might end before the last job.
        until(lambda: len(done) >= 40)
        queues[0].put_all([b"end"] * 6, priority=999)
        for future in working:
            result(future)
        assert len(done) == 40
        assert set(done) == expected
        assert jobs(store) == claims(store) == []


def test_a_waiting_worker(store_url: str, waits: Callable[[], int]) -> None:
    """Who waits gets a job as soon as there is one: put, given back, or of a session that ended."""
    with bk.open_store(store_url) as store:
        queue = WorkQueue(store, "/q")
        waiting = begun(queue.claim)
        queue.put(b"job")
        job = result(waiting)
        waiting = begun(queue.claim)
        until(lambda: waits() == 1)
        job.release()
        assert result(waiting).attempt == 2


def test_timeouts(stores: Callable[..., bk.MetadataStore]) -> None:
    """A call that finds no job in time says so and leaves nothing."""
    store = stores()
    queue = WorkQueue(store, "/q")
    for timeout in (0, 0.05):
        with pytest.raises(bk.OperationTimeoutError, match="no job of /q was free"):
            queue.claim(timeout)
    other = WorkQueue(store, "/q")
    queue.put(b"job")
    with other.claim(0), pytest.raises(bk.OperationTimeoutError):
        queue.claim(0.05)
    with pytest.raises(bk.InvalidSettingError):
        queue.claim(-1)


def test_a_worker_whose_session_ends(
    stores: Callable[..., bk.MetadataStore], faults: FaultInjector, waits: Callable[[], int]
) -> None:
    """Another worker gets its job; the first cannot finish it, nor take it from the second."""
    store = stores(wrap=faults)
    first, second = WorkQueue(store, "/q"), WorkQueue(stores(), "/q")
    first.put(b"job")
    lost = take(first)
    waiting = begun(second.claim)
    until(lambda: waits() == 1)
    faults.lose_session()
    job = result(waiting)
    assert not lost.held
    assert job.held
    assert (job.attempt, job.path) == (2, lost.path)
    assert job.fencing_token > lost.fencing_token
    lost_too = Job(first, job.path.rpartition("/")[2], b"", 1, b"", store.session.id, _stat())
    lost_too.release()
    with pytest.raises(LockLostError) as caught:
        lost.done()
    assert caught.value.path == job.path
    assert isinstance(caught.value.__cause__, bk.TransactionRefusedError)
    assert first.size() == 1
    assert len(claims(store)) == 1
    job.done()
    assert jobs(store) == claims(store) == []


def _stat() -> bk.Stat:
    return bk.Stat("/q", 0, 1)


def test_a_claim_that_is_deleted_by_hand(store_url: str) -> None:
    """The version of the job names the claim: a later one at the same path is another's."""
    with bk.open_store(store_url) as store:
        queue = WorkQueue(store, "/q")
        queue.put(b"job")
        first = take(queue)
        [name] = claims(store)
        result(store.delete(f"/q/claims/{name}"))
        second = take(queue)
        first.release()
        assert claims(store) == [name]
        second.done()
        queue.put(b"another")
        first = take(queue)
        [name] = claims(store)
        result(store.delete(f"/q/claims/{name}"))
        second = take(queue)
        with pytest.raises(LockLostError):
            first.done()
        assert (jobs(store), claims(store)) == ([name], [name])
        second.done()


def test_a_job_that_is_changed_by_hand(store_url: str) -> None:
    """A job that somebody changes or deletes while it is claimed is not this worker's any more."""
    with bk.open_store(store_url) as store:
        queue = WorkQueue(store, "/q")
        queue.put(b"job")
        job = take(queue)
        result(store.put(job.path, b"changed"))
        with pytest.raises(LockLostError):
            job.done()
        again = take(queue)
        assert (again.value, again.path) == (b"changed", job.path)
        result(store.delete(job.path))
        with pytest.raises(LockLostError):
            again.done()
        until(lambda: claims(store) == [])
        queue.put(b"next")
        assert take(queue).value == b"next"


@pytest.mark.parametrize("applied", [True, False])
def test_a_claim_without_an_answer(
    stores: Callable[..., bk.MetadataStore], faults: FaultInjector, applied: bool
) -> None:
    """A claim that nobody knows of is given back, and one worker gets the job in the end."""
    store = stores(wrap=faults)
    queue = WorkQueue(store, "/q")
    queue.put(b"job")
    faults.lose_answer("transaction", applied=applied)
    job = take(queue)
    assert job.attempt == (2 if applied else 1)
    assert not faults.armed
    job.done()
    assert jobs(store) == claims(store) == []


@pytest.mark.parametrize("applied", [True, False])
def test_the_end_of_a_job_without_an_answer(
    stores: Callable[..., bk.MetadataStore], faults: FaultInjector, applied: bool
) -> None:
    """A job whose last request has no answer is done once, and ``done`` knows it."""
    store = stores(wrap=faults)
    queue = WorkQueue(store, "/q")
    queue.put_all([b"1", b"2"])
    job = take(queue)
    faults.lose_answer("transaction", applied=applied)
    faults.fail("transaction")
    with pytest.raises(bk.StoreUnavailableError):
        job.done()
    job.done()
    assert not job.held
    assert queue.size() == 1
    assert claims(store) == []
    job = take(queue)
    faults.lose_answer("transaction", applied=applied)
    job.release()
    until(lambda: claims(store) == [])
    assert take(queue).attempt == 2
    assert not faults.armed


def test_the_end_of_a_job_without_an_answer_after_the_session(
    stores: Callable[..., bk.MetadataStore],
    faults: FaultInjector,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another worker may have had the job, and removed it, so ``done`` does not claim to have."""
    store = stores(wrap=faults)
    queue = WorkQueue(store, "/q")
    queue.put(b"job")
    job = take(queue)
    monkeypatch.setattr(job, "_session", "one that has ended")
    faults.lose_answer("transaction", applied=True)
    with pytest.raises(bk.IndeterminateError):
        job.done()


def test_a_server_that_lags(stores: Callable[..., bk.MetadataStore], faults: FaultInjector) -> None:
    """``done`` waits for the latest state before it looks whether its first request was applied."""
    queue = WorkQueue(stores(wrap=faults), "/q")
    queue.put(b"job")
    job = take(queue)
    before = len(faults.calls)
    faults.lose_answer("transaction")
    job.done()
    methods = [call.method for call in faults.calls[before:]]
    assert methods == ["write", "write", "sync", "read"]


@pytest.mark.slow
def test_a_server_that_does_not_answer(
    stores: Callable[..., bk.MetadataStore], faults: FaultInjector
) -> None:
    """``done`` has one time-out for all of its requests, and can be called again."""
    store = stores(wrap=faults)
    queue = WorkQueue(store, "/q")
    queue.put(b"job")
    job = take(queue)
    held = faults.delay("transaction", applied=True, times=None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bk.MetadataStore, "operation_timeout", 0.5)
        assert isinstance(error(begun(job.done)), bk.IndeterminateError)
    held.remove()
    job.done()
    assert jobs(store) == claims(store) == []


@pytest.mark.slow
def test_an_outage(
    stores: Callable[..., bk.MetadataStore], faults: FaultInjector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``claim`` waits out failures, ``done`` raises them and can be called again."""
    monkeypatch.setattr(module, "_FIRST_READ", 0.001)  # It counts only for calls that may not wait.
    store = stores(wrap=faults)
    queue = WorkQueue(store, "/q")
    queue.put(b"job")
    faults.fail("watch")
    faults.fail("get_children", "/q/claims")
    faults.fail("get", times=2)
    faults.fail("transaction")
    job = result(begun(queue.claim))
    assert not faults.armed
    faults.fail("transaction")
    with pytest.raises(bk.StoreUnavailableError):
        job.done()
    assert job.held
    job.done()
    assert jobs(store) == claims(store) == []
    queue.put(b"job")
    faults.fail("get", times=None)
    with pytest.raises(bk.StoreUnavailableError):
        queue.claim(0.2)


@pytest.mark.slow
def test_a_timeout_in_an_outage(
    stores: Callable[..., bk.MetadataStore], faults: FaultInjector
) -> None:
    """A claim that no server answers ends soon after its own time, not after the store's."""
    store = stores(wrap=faults, operation_timeout=10 * PATIENCE)
    queue = WorkQueue(store, "/q")
    queue.put_all([b"1", b"2"])
    take(queue).done()
    for kind in ("get", "transaction"):
        held = faults.delay(kind)
        assert isinstance(error(begun(queue.claim, 0.1)), bk.MetadataStoreError)
        held.remove()


def test_a_failure_for_good(
    stores: Callable[..., bk.MetadataStore], faults: FaultInjector, waits: Callable[[], int]
) -> None:
    """A permanent error ends all waiting calls, and a later call starts over."""
    store = stores(wrap=faults)
    queue = WorkQueue(store, "/q")
    waiting = [begun(queue.claim) for _ in range(3)]
    until(lambda: waits() == 3)
    # Callers may wait before there is a watch to end.
    until(lambda: faults.end_watches(bk.AuthenticationError("no more")))
    for future in waiting:
        assert isinstance(error(future), bk.AuthenticationError)
    queue.put(b"job")
    take(queue).done()


def test_events_that_are_missing(
    stores: Callable[..., bk.MetadataStore], faults: FaultInjector, waits: Callable[[], int]
) -> None:
    """After a gap, the queue is read again: nothing that was missed is forgotten."""
    store = stores(wrap=faults)
    queue, other = WorkQueue(store, "/q"), WorkQueue(stores(), "/q")
    with pytest.raises(bk.OperationTimeoutError):
        queue.claim(0.01)
    waiting = begun(queue.claim)
    until(lambda: waits() == 1)
    faults.cut()
    other.put(b"job")
    faults.restore(gap=True)
    assert result(waiting).value == b"job"


@pytest.mark.parametrize("kind", ["watch", "get_children"])
def test_a_broken_watch(
    stores: Callable[..., bk.MetadataStore],
    faults: FaultInjector,
    kind: str,
    waits: Callable[[], int],
) -> None:
    """While it is away, the queue does not say that no job is free: it looks first."""
    queue = WorkQueue(stores(wrap=faults), "/q")
    queue.put(b"1")
    take(queue)
    held = faults.delay(kind)
    faults.end_watches(bk.StoreUnavailableError("away"))
    held.wait(timeout=PATIENCE)
    queue.put(b"2")
    claiming = begun(queue.claim, 0)
    until(lambda: waits() == 1)
    held.release()
    assert result(claiming).value == b"2"


def test_put_checks_its_arguments(stores: Callable[..., bk.MetadataStore]) -> None:
    """Priorities are ints from 0 to 999, values bytes; nothing else gets into the queue."""
    queue = WorkQueue(stores(), "/q")
    priority: Any
    for priority in (-1, 1000, 1.0, True, "5", None):
        with pytest.raises(bk.InvalidSettingError, match="priority must be"):
            queue.put(b"", priority)
        with pytest.raises(bk.InvalidSettingError, match="priority must be"):
            queue.put_all([b""], priority)
    text: Any = "text"
    with pytest.raises(bk.InvalidSettingError):
        queue.put(text)
    with pytest.raises(bk.InvalidPathError):
        WorkQueue(stores(), "q")
    assert queue.put_all([]) == []
    assert queue.size() == 0


def test_some_puts_fail(stores: Callable[..., bk.MetadataStore], faults: FaultInjector) -> None:
    """An error of one of many puts is raised; the others are in the queue."""
    queue = WorkQueue(stores(wrap=faults), "/q")
    faults.refuse(bk.AuthenticationError("no"), "put", where=lambda op: op.value == b"2")
    with pytest.raises(bk.AuthenticationError):
        queue.put_all([b"1", b"2", b"3"])
    assert {take(queue).value, take(queue).value} == {b"1", b"3"}


def test_foreign_values(stores: Callable[..., bk.MetadataStore]) -> None:
    """Values of others below the path of the queue are no jobs."""
    store = stores()
    queue = WorkQueue(store, "/q")
    for path in ("/q", "/q/jobs", "/q/jobs/x", "/q/jobs/100-1", "/q/claims/x", "/q/jobs/x/y"):
        result(store.put(path, b""))
    queue.put(b"job")
    assert queue.size() == 1
    with take(queue) as job:
        assert job.value == b"job"
        result(store.put(f"{job.path}x", b""))
    with pytest.raises(bk.OperationTimeoutError):
        queue.claim(0.01)


def test_a_result_in_one_transaction(stores: Callable[..., bk.MetadataStore]) -> None:
    """A result that is put with the check of its job is put by the job's present worker only."""
    store = stores()
    queue = WorkQueue(store, "/q")
    queue.put(b"job")
    first = take(queue)
    result(store.transaction([first.check(), bk.Put("/result", b"1")]))
    first.release()
    second = take(queue)
    late = error(store.transaction([first.check(), bk.Put("/result", b"late")]))
    assert isinstance(late, bk.TransactionRefusedError)
    assert late.index == 0
    result(store.transaction([second.check(), bk.Put("/result", b"2")]))


@pytest.mark.slow
def test_a_long_queue_stays_quick(
    stores: Callable[..., bk.MetadataStore], faults: FaultInjector
) -> None:
    """With 10,000 jobs, the queue is listed once, and a job costs a get and two transactions."""
    store = stores(wrap=faults)
    queue = WorkQueue(store, "/q")
    queue.put_all([b""] * 10_000)
    for _ in range(300):
        take(queue).done()
    assert requests(faults, "get_children") == 2
    # The first claim of a store looks whether the session that it has begun is still there.
    assert requests(faults, "get") <= 301
    assert requests(faults, "transaction") == 600
    assert queue.size() == 9_700


def test_no_herd_in_a_process(
    stores: Callable[..., bk.MetadataStore], faults: FaultInjector, waits: Callable[[], int]
) -> None:
    """Of 20 threads that wait for a job through one object, one asks the store for it."""
    store = stores(wrap=faults)
    queue = WorkQueue(store, "/q")
    waiting = [begun(queue.claim) for _ in range(20)]
    until(lambda: waits() == 20)
    for number in range(20):
        queue.put(b"")
        until(lambda: sum(future.done() for future in waiting) == number + 1)  # noqa: B023
    assert requests(faults, "transaction") == 20


def test_a_queue_that_nobody_uses(
    stores: Callable[..., bk.MetadataStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends its watch, also while others keep the queue busy, and begins again when needed."""
    monkeypatch.setattr(module, "_LINGER", 0.02)
    store, busy = stores(), WorkQueue(stores(), "/q")
    queue = WorkQueue(store, "/q")
    for _ in range(2):
        busy.put(b"job")
        take(queue).done()
        until(lambda: store.metrics().watches == 0)
    busy.put(b"job")
    monkeypatch.setattr(module, "_LINGER", 3600)
    take(queue).done()
    assert store.metrics().watches == 1
    monkeypatch.setattr(module, "_LINGER", 0)
    busy.put(b"job")
    until(lambda: store.metrics().watches == 0)
    take(queue).done()


def test_the_store_is_closed(
    stores: Callable[..., bk.MetadataStore], waits: Callable[[], int]
) -> None:
    """Whoever waits gets an error; a job of the store goes to others, and is not held any more."""
    store, other = stores(), WorkQueue(stores(), "/q")
    queue = WorkQueue(store, "/q")
    queue.put(b"job")
    job = take(queue)
    waiting = begun(queue.claim)
    until(lambda: waits() == 1)
    store.close()
    assert isinstance(error(waiting), bk.StoreClosedError)
    assert not job.held
    with pytest.raises(bk.StoreClosedError):
        job.done()
    job.release()
    for call in (queue.claim, queue.size, lambda: queue.put(b"")):
        with pytest.raises(bk.StoreClosedError):
            call()
    assert take(other).attempt == 2


def test_a_forked_child(stores: Callable[..., bk.MetadataStore]) -> None:
    """A child has no job of the parent's and gets none."""
    queue = WorkQueue(stores(), "/q")
    queue.put(b"job")
    job = take(queue)

    def refused() -> bool:
        try:
            queue.claim()
        except bk.StoreClosedError:
            return not job.held
        return False

    with locked_elsewhere(queue, job):
        assert holds_in_a_child(refused)
    assert job.held


def test_a_store_without_sequences(
    stores: Callable[..., bk.MetadataStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that lacks a capability is refused by the constructor."""
    store = stores()
    monkeypatch.setattr(
        bk.MetadataStore, "capabilities", frozenset({"ephemerals", "transactions", "watches"})
    )
    with pytest.raises(bk.UnsupportedError, match="'sequences'"):
        WorkQueue(store, "/q")


# --- what a queue knows

NAMES = [f"100-{number:010d}" for number in range(4)]


class Truth:
    """A queue, the events of which reach the board late."""

    def __init__(self) -> None:
        self.jobs: set[str] = set()
        self.claims: set[str] = set()
        self.late: list[Callable[[JobBoard], bool]] = []

    def put(self, name: str) -> None:
        self.jobs.add(name)
        self.late.append(lambda board: board.job_event(name, there=True))

    def claim(self, name: str) -> bool:
        if name not in self.jobs or name in self.claims:
            return False
        self.claims.add(name)
        self.late.append(lambda board: board.claim_event(name, there=True))
        self.late.append(lambda board: board.job_event(name, there=True))
        return True

    def release(self, name: str) -> None:
        self.claims.discard(name)
        self.late.append(lambda board: board.claim_event(name, there=False))

    def done(self, name: str) -> None:
        self.jobs.discard(name)
        self.late.append(lambda board: board.job_event(name, there=False))
        self.release(name)


class Worker:
    """An object with a board that tries jobs, step by step, and sees events late."""

    def __init__(self, dice: random.Random) -> None:
        self.dice = dice
        self.truth, self.board = Truth(), JobBoard()
        self.new = NAMES[: dice.randrange(1, 4)]
        self.picked: list[str] = []
        self.tried: list[tuple[str, bool | None]] = []
        self.held: list[str] = []

    def steps(self) -> dict[str, object]:
        """Return the possible steps, by the names of their methods."""
        return {
            "put": self.new,
            "others_claim": self.truth.jobs,
            "others_end": self._others(),
            "pick": True,
            "attempt": self.picked,
            "answer": self.tried,
            "end": self.held,
            "gap": self.dice.random() < 0.3,
            "event": self.truth.late,
        }

    def _others(self) -> list[str]:
        mine = {*self.held} | {name for name, claimed in self.tried if claimed}
        return sorted(self.truth.claims - mine)

    def _any(self, names: list[Any]) -> Any:
        return names.pop(self.dice.randrange(len(names)))

    def put(self) -> None:
        self.truth.put(self._any(self.new))

    def others_claim(self) -> None:
        self.truth.claim(self._any(sorted(self.truth.jobs)))

    def others_end(self) -> None:
        self.dice.choice([self.truth.release, self.truth.done])(self._any(self._others()))

    def pick(self) -> None:
        if (name := self.board.pick()) is not None:
            self.picked.append(name)

    def attempt(self) -> None:
        name = self._any(self.picked)
        failed = self.dice.random() < 0.1
        self.tried.append((name, None if failed else self.truth.claim(name)))

    def answer(self) -> None:
        name, claimed = self._any(self.tried)
        self.board.tried(name, claimed)
        if claimed:
            self.held.append(name)

    def end(self) -> None:
        self.dice.choice([self.truth.release, self.truth.done])(self._any(self.held))

    def gap(self) -> None:
        # The events after the gap may be older than what is read.
        count = len(self.truth.late)
        del self.truth.late[: self.dice.choice([count, self.dice.randrange(count + 1)])]
        self.board.replace(self.truth.jobs, self.truth.claims)

    def event(self) -> None:
        self.truth.late.pop(0)(self.board)


@pytest.mark.slow
def test_a_board_with_late_events() -> None:
    """Whatever others do, and however late the events are: in the end, what is free looks free."""
    for seed in range(2_000):
        dice = random.Random(seed)
        one = Worker(dice)
        for left in range(dice.randrange(60), -10, -1):
            # In the last steps, nothing new happens.
            steps = [
                name
                for name, possible in one.steps().items()
                if possible and (left > 0 or name in {"attempt", "answer", "event"})
            ]
            if steps:
                getattr(one, dice.choice(steps))()
        while one.picked or one.tried or one.truth.late:
            step = dice.choice(["attempt", "answer", "event"])
            if one.steps()[step]:
                getattr(one, step)()
        free = []
        while (name := one.board.pick()) is not None:
            free.append(name)
        assert sorted(free) == sorted(one.truth.jobs - one.truth.claims), seed


def test_a_refused_job_is_hidden_until_an_event() -> None:
    """It is not tried again in vain; if the event has come before the answer, it is tried at once.

    A read may take the place of the event.
    """
    board, name = JobBoard(), NAMES[0]
    board.replace([name], [])
    assert board.pick() == name
    board.tried(name, False)
    assert board.pick() is None
    board.claim_event(name, there=True)
    board.claim_event(name, there=False)
    assert board.pick() == name
    board.claim_event(name, there=True)
    board.claim_event(name, there=False)
    board.tried(name, False)
    assert board.pick() == name
    board.replace([name], [])
    assert board.pick() is None
    board.tried(name, False)
    assert board.pick() == name


def test_workers_spread_after_refusals() -> None:
    """The first job is tried first; after refusals, one of the first few, until claims succeed."""
    board = JobBoard()
    names = [f"100-{number:010d}" for number in range(200)]
    board.replace(names, [])
    assert [board.pick() for _ in range(10)] == names[:10]
    for name in names[:10]:
        board.tried(name, False)
    picked = [board.pick() for _ in range(10)]
    assert picked != names[10:20]
    assert {*picked} <= {*names[10 : 10 + 64 + 10]}
    for taken in filter(None, picked):
        board.tried(taken, True)
    assert board.pick() == min({*names[10:]} - {*picked})


def test_a_claim_in_another_session(
    stores: Callable[..., bk.MetadataStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the session may have changed while a job was claimed, the job is claimed once more."""
    queue = WorkQueue(stores(), "/q")
    queue.put(b"job")
    seen = itertools.chain(["old"], itertools.repeat("new"))
    monkeypatch.setattr(Session, "id", property(lambda session: next(seen)))
    job = take(queue)
    assert (job.attempt, job.held) == (2, True)


def test_a_claim_of_a_session_that_has_just_ended(
    stores: Callable[..., bk.MetadataStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A claim that is still there, but goes with an earlier session, is made once more."""
    store, earlier = stores(), stores()
    queue = WorkQueue(store, "/q")
    queue.put(b"job")

    def in_the_earlier(*args: Any, **options: Any) -> Any:
        monkeypatch.undo()
        return earlier.transaction(*args, **options)

    monkeypatch.setattr(store, "transaction", in_the_earlier)
    monkeypatch.setattr(Session, "id", None)  # as before the first ephemeral value
    job = take(queue)
    assert job.attempt == 2
    earlier.close()
    job.done()


def test_threads_share_a_queue(stores: Callable[..., bk.MetadataStore]) -> None:
    """Threads that claim, release and finish through one object at once lose no job."""
    store = stores()
    queue = WorkQueue(store, "/q")
    queue.put_all([b"%d" % i for i in range(60)])
    done: list[bytes] = []

    def work(seed: int) -> None:
        dice = random.Random(seed)
        while len(done) < 60:
            try:
                job = queue.claim(0.2)
            except bk.OperationTimeoutError:
                continue
            if dice.random() < 0.3:
                job.release()
            else:
                job.done()
                done.append(job.value)

    working = [begun(work, seed) for seed in range(6)]
    for future in working:
        result(future)
    assert sorted(done) == sorted(b"%d" % i for i in range(60))
    assert jobs(store) == claims(store) == []
