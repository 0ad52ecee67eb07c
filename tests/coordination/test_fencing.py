"""Fenced writes: like those of a store while the lock is held, and none at all after that."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import pytest

import batchkeeper as bk
from batchkeeper.coordination import FencedStore, Lock, Semaphore, fenced
from batchkeeper.coordination._sync import fences
from batchkeeper.coordination._sync.fences import Write
from batchkeeper.coordination.async_fencing import async_fenced
from batchkeeper.coordination.async_locks import AsyncLock
from batchkeeper.ops.errors import LockLostError

from ..forks import holds_in_a_child, locked_elsewhere
from ..preemption import each_line
from ..waiting import PATIENCE, error, result, until


@pytest.fixture
def store(store_url: str) -> Iterator[bk.MetadataStore]:
    """An empty store of each kind."""
    with bk.open_store(store_url) as opened:
        yield opened


@pytest.fixture
def memory() -> Iterator[bk.MetadataStore]:
    """An empty store in memory, for what is the same on all stores."""
    with bk.open_store("memory://fencing") as opened:
        yield opened


@pytest.fixture
def lock(request: pytest.FixtureRequest) -> Lock:
    """A lock of the store that the test uses, which is held."""
    name = "store" if "store" in request.fixturenames else "memory"
    made = Lock(request.getfixturevalue(name), "/lock", b"me")
    made.acquire(PATIENCE)
    return made


class Between:
    """A lock whose users know its version late, as during an update that another thread makes."""

    def __init__(self, lock: Lock) -> None:
        self.lock = lock
        self.known = lock.check()

    def check(self) -> bk.Check:
        self.lock.check()
        return self.known


def value_of(store: bk.MetadataStore, path: str) -> bytes | None:
    found = result(store.get(path))
    return None if found is None else found.value


def test_writes_are_as_those_of_the_store(store: bk.MetadataStore, lock: Lock) -> None:
    """Puts, deletes and transactions give the results and the errors that the store gives."""
    writer = fenced(store, lock)
    stat = result(writer.put("/a", b"1", bk.ABSENT))
    assert isinstance(stat, bk.Stat)
    assert (stat.path, stat.version, stat.ephemeral) == ("/a", 0, False)
    assert result(writer.put("/a", bytearray(b"2"), 0)).version == 1
    refused = error(writer.put("/a", b"3", 0))
    assert isinstance(refused, bk.BadVersionError)
    assert (refused.path, refused.expected, refused.actual) == ("/a", 0, 1)
    assert isinstance(error(writer.put("/a", b"3", bk.ABSENT)), bk.BadVersionError)
    missing = error(writer.delete("/none"))
    assert isinstance(missing, bk.NotFoundError)
    assert missing.path == "/none"
    assert result(writer.put("/a/below", b"")).version == 0
    assert isinstance(error(writer.delete("/a")), bk.NotEmptyError)
    assert result(writer.delete("/a/below", expected_version=0)) is None
    assert result(writer.delete("/a")) is None
    results = result(writer.transaction([bk.Check("/a", bk.ABSENT), bk.Put("/b", b"1")]))
    assert results[0] is None
    assert results[1] is not None
    assert results[1].path == "/b"
    several = error(writer.transaction([bk.Put("/c", b""), bk.Delete("/none"), bk.Delete("/b")]))
    assert isinstance(several, bk.TransactionRefusedError)
    assert several.index == 1
    assert isinstance(several.error, bk.NotFoundError)
    assert "operation 1" in str(several)
    assert value_of(store, "/c") is None


def test_reads_are_those_of_the_store(store: bk.MetadataStore, lock: Lock) -> None:
    """Reads, scans and capabilities pass through, also when the lock is lost."""
    writer = fenced(store, lock)
    result(writer.put("/a/b", b"1"))
    lock.release()
    found = result(writer.get("/a/b"))
    assert found is not None
    assert found.value == b"1"
    assert result(writer.exists("/a/b"))
    assert result(writer.get_children("/a")) == ["b"]
    assert [each.path for each in writer.scan("/a")] == ["/a/b"]
    assert writer.capabilities == store.capabilities
    assert result(writer.submit(bk.Exists("/a/b"))) is True


def test_ephemeral_puts_and_revisions(store: bk.MetadataStore, lock: Lock) -> None:
    """An ephemeral put stays ephemeral, and a revision is expected where the store can do that."""
    writer = fenced(store, lock)
    stat = result(writer.put("/a", b"", ephemeral=True))
    assert (stat.ephemeral, stat.owned) == (True, True)
    if "expected_revisions" in store.capabilities:
        stat = result(writer.put("/a", b"1", expected_revision=stat.revision))
        refused = error(writer.put("/a", b"2", expected_revision=stat.revision - 1))
        assert isinstance(refused, bk.BadVersionError)
        assert refused.actual_revision == stat.revision
        assert result(writer.delete("/a", expected_revision=stat.revision)) is None
    else:
        with pytest.raises(bk.UnsupportedError, match="expected_revisions"):
            writer.put("/a", b"1", expected_revision=stat.revision)


def test_what_a_transaction_cannot_carry_is_refused(memory: bk.MetadataStore, lock: Lock) -> None:
    """A sequential put, the lock's own value and bad input are refused by the call itself."""
    writer = fenced(memory, lock)
    with pytest.raises(bk.UnsupportedError, match="sequential"):
        writer.put("/a-", b"", sequential=True)
    with pytest.raises(bk.UnsupportedError, match="sequential"):
        writer.submit(bk.Put("/a-", b"", sequential=True))
    with pytest.raises(bk.InvalidSettingError, match="once"):
        writer.put(lock.check().path, b"")
    with pytest.raises(bk.InvalidPathError):
        writer.put("a", b"")
    with pytest.raises(bk.InvalidSettingError):
        writer.put("/a", b"", timeout=-1.0)
    with pytest.raises(bk.InvalidSettingError):
        writer.submit("no operation")  # type: ignore[arg-type]
    assert result(writer.put("/a", b"")).version == 0  # Nothing of that is left in its line.


def test_only_a_holder_gets_a_writer(memory: bk.MetadataStore) -> None:
    """Without the lock, ``fenced`` itself raises."""
    lock = Lock(memory, "/lock")
    with pytest.raises(LockLostError):
        fenced(memory, lock)


def test_a_job_gives_no_writer(memory: bk.MetadataStore) -> None:
    """A job's path is that of its next worker, too, so a writer would write for both."""
    queue = bk.WorkQueue(memory, "/queue")
    queue.put(b"job")
    job = queue.claim(PATIENCE)
    with pytest.raises(bk.InvalidSettingError, match="a job is no lock"):
        fenced(memory, job)


def test_no_write_after_a_release(store: bk.MetadataStore, lock: Lock) -> None:
    """A released lock writes nothing, also if the same object holds it again."""
    writer = fenced(store, lock)
    lock.release()
    with pytest.raises(LockLostError):
        writer.put("/a", b"1")
    lock.acquire(PATIENCE)
    with pytest.raises(LockLostError, match="earlier hold"):
        writer.put("/a", b"1")
    (outcome,) = writer.apply([bk.Put("/a", b"1")])
    assert isinstance(outcome.error, LockLostError)
    assert value_of(store, "/a") is None
    assert result(fenced(store, lock).put("/a", b"2")).version == 0


def test_the_server_decides(store: bk.MetadataStore, lock: Lock) -> None:
    """A holder that does not know that its value was deleted writes nothing, in any way."""
    writer = fenced(store, lock)
    known = lock.check()
    result(store.delete(known.path))
    stale: Any = type("Stale", (), {"check": lambda _self: known})()
    writer = fenced(store, stale)
    lost = error(writer.put("/a", b"1"))
    assert isinstance(lost, LockLostError)
    assert lost.path == "/a"
    assert isinstance(lost.__cause__, bk.TransactionRefusedError)
    assert isinstance(error(writer.transaction([bk.Delete("/none")])), LockLostError)
    assert isinstance(error(writer.delete("/none")), LockLostError)
    outcomes = writer.apply([bk.Put("/a", b"1"), bk.Get("/a")])
    assert isinstance(outcomes[0].error, LockLostError)
    assert outcomes[1].ok
    assert value_of(store, "/a") is None


def test_a_semaphore_fences_too(store: bk.MetadataStore) -> None:
    """Each holder of a semaphore writes until it releases its own place."""
    both = [Semaphore(store, "/places", 2), Semaphore(store, "/places", 2)]
    for semaphore in both:
        semaphore.acquire(PATIENCE)
    writers = [fenced(store, semaphore) for semaphore in both]
    for n, writer in enumerate(writers):
        result(writer.put(f"/{n}", b""))
    both[0].release()
    with pytest.raises(LockLostError):
        writers[0].put("/0", b"late")
    assert result(writers[1].put("/1", b"again")).version == 1


def test_bulk_calls(store: bk.MetadataStore, lock: Lock) -> None:
    """``apply`` and ``apply_stream`` give the outcomes in order, each with the caller's object."""
    writer = fenced(store, lock)
    ops: list[Any] = [bk.Put(f"/n/{n}", b"%d" % n) for n in range(1_500)]
    ops += [bk.Get("/n/7"), bk.Delete("/none"), "bad", bk.Put("/n-", b"", sequential=True)]
    outcomes = writer.apply(ops)
    assert [outcome.op for outcome in outcomes] == ops
    assert all(outcome.ok for outcome in outcomes[:1_501])
    kinds = [type(outcome.error) for outcome in outcomes[1_501:]]
    assert kinds == [bk.NotFoundError, bk.InvalidSettingError, bk.UnsupportedError]
    seen = []

    def source() -> Iterator[bk.Operation]:
        yield bk.Put("/s", b"1")
        seen.append(value_of(store, "/n/3"))
        yield bk.Delete("/s", expected_version=0)
        raise ZeroDivisionError

    stream = writer.apply_stream(source())
    assert seen == []
    assert [next(stream).ok, next(stream).ok] == [True, True]
    with pytest.raises(ZeroDivisionError):
        next(stream)
    with pytest.raises(StopIteration):
        next(stream)
    early = writer.apply_stream(bk.Put(f"/e/{n}", b"") for n in range(10))
    assert next(early).ok
    early.close()
    assert list(early) == []


def test_a_stream_waits_for_no_later_operation(memory: bk.MetadataStore, lock: Lock) -> None:
    """A source that makes its next operation from the last outcome gets that outcome."""
    writer = fenced(memory, lock)
    stream: Any = None
    versions: list[int] = []

    def source() -> Iterator[bk.Operation]:
        for _ in range(5):
            yield bk.Put("/a", b"")
            until(lambda: value_of(memory, "/a") is not None)

    stream = writer.apply_stream(source())
    versions = [outcome.result.version for outcome in stream]
    assert versions == [0, 1, 2, 3, 4]


def test_writes_go_together(store: bk.MetadataStore, lock: Lock) -> None:
    """Fenced writes of one lock share batches."""
    writer = fenced(store, lock)
    before = store.metrics().writes.batches
    futures = [writer.put(f"/{n}", b"") for n in range(1_000)]
    for future in futures:
        result(future)
    assert store.metrics().writes.batches - before <= 500


def test_an_update_of_the_lock_is_no_loss(store: bk.MetadataStore, lock: Lock) -> None:
    """Writes before, during and after an update of the lock's value all take effect."""
    writer = fenced(store, lock)
    result(writer.put("/a", b"1"))
    lock.update(b"new")
    result(writer.put("/a", b"2"))
    late = Between(lock)
    behind = fenced(store, late)
    lock.update(b"newer")
    stat = result(behind.put("/a", b"3"))  # It is refused for its version, and sent again.
    assert (stat.version, value_of(store, "/a")) == (2, b"3")
    lock.update(b"newest")
    assert result(behind.put("/a", b"4", expected_version=2)).version == 3
    lock.update(b"last")
    refused = error(behind.put("/a", b"5", expected_version=2))
    assert isinstance(refused, bk.BadVersionError)


def test_the_order_of_a_path_outlives_updates(store: bk.MetadataStore, lock: Lock) -> None:
    """While another thread updates the lock, puts that nobody waits for keep their order."""
    writer = fenced(store, lock)
    done = threading.Event()

    futures: list[tuple[int, Future[bk.Stat]]] = []

    def ended() -> int:
        return sum(future.done() for _, future in futures)

    def update() -> None:
        while not done.is_set():
            before = ended()
            lock.update(b"%d" % before)
            until(lambda before=before: ended() > before or done.is_set())

    updating = threading.Thread(target=update)
    updating.start()
    try:
        futures.extend((n % 7, writer.put(f"/{n % 7}", b"%d" % n)) for n in range(350))
        versions: dict[int, list[int]] = {}
        for path, future in futures:
            versions.setdefault(path, []).append(result(future).version)
    finally:
        done.set()
        updating.join()
    assert all(found == list(range(50)) for found in versions.values())
    assert [value_of(store, f"/{n}") for n in range(7)] == [b"%d" % (343 + n) for n in range(7)]


def held_back(writer: FencedStore, lock: Lock, paths: int) -> list[Future[Any]]:
    """Return writes that were refused for their version, and writes that wait behind them."""
    lock.update(b"v")
    return [writer.put(f"/{n}", b"%d" % n) for n in range(paths)]


def test_writes_behind_an_update_are_all_sent_again(store: bk.MetadataStore, lock: Lock) -> None:
    """Many writes with an old version take effect in their order, each once."""
    writer = fenced(store, Between(lock))
    for round_ in range(3):
        futures = held_back(writer, lock, 300)
        futures.append(writer.put("/0", b"last"))
        for future in as_completed(futures, PATIENCE):
            result(future)
        assert futures[0].result().version == 2 * round_
        assert value_of(store, "/0") == b"last"


class SlowToResend:
    """A store that keeps back what is sent again until the test lets it go."""

    def __init__(self, store: bk.MetadataStore) -> None:
        self._store = store
        self.reached, self.free = threading.Event(), threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def submit(self, op: bk.Operation, *, timeout: float | None = None) -> Future[Any]:
        if "fenced writes" in threading.current_thread().name:
            self.reached.set()
            assert self.free.wait(PATIENCE)
        return self._store.submit(op, timeout=timeout)


@pytest.mark.slow
def test_threads_are_preempted_between_any_two_lines() -> None:
    """Each write beside updates of the lock ends, once and in order, whichever thread stands."""

    def scene() -> None:
        with bk.open_store("memory://fencing") as store:
            lock = Lock(store, "/lock")
            lock.acquire(PATIENCE)
            writer = fenced(store, lock)
            called, ended = threading.Semaphore(0), threading.Event()

            def update() -> None:
                while not ended.wait(0.001):
                    lock.update(b"new")

            updating = threading.Thread(target=update)
            updating.start()
            try:
                with ThreadPoolExecutor(8) as pool:
                    waiting = []
                    for n in range(8):
                        put = writer.put("/a", b"%d" % n)
                        put.add_done_callback(lambda _: called.release())
                        waiting.append(pool.submit(put.result, PATIENCE))
                        time.sleep(0.001)
                    assert [each.result().version for each in waiting] == [*range(8)]
                assert all(called.acquire(timeout=PATIENCE) for _ in range(8))
            finally:
                ended.set()
                updating.join()

    each_line(fences, scene)


def test_a_new_write_waits_for_those_that_are_sent_again(
    memory: bk.MetadataStore, lock: Lock
) -> None:
    """A put does not overtake an earlier one of its path that is about to be sent again."""
    slow: Any = SlowToResend(memory)
    writer = fenced(slow, Between(lock))
    lock.update(b"new")
    first = writer.put("/a", b"1")
    assert slow.reached.wait(PATIENCE)
    second, third = writer.put("/a", b"2"), writer.put("/a", b"3")
    assert third.cancel()  # It was not sent.
    assert not first.cancel()
    with pytest.raises(TimeoutError):
        second.result(0.01)
    slow.free.set()
    assert (result(first).version, result(second).version) == (0, 1)
    assert value_of(memory, "/a") == b"2"
    lock.update(b"newer")
    slow.reached.clear()
    slow.free.clear()
    late = writer.put("/a", b"4")
    assert slow.reached.wait(PATIENCE)
    waiting = writer.put("/a", b"5", timeout=0.001)
    with pytest.raises(TimeoutError):
        waiting.result(0.05)
    slow.free.set()
    assert isinstance(error(waiting), bk.OperationTimeoutError)
    assert result(late).version == 2


def test_a_callback_may_wait_for_a_write(memory: bk.MetadataStore, lock: Lock) -> None:
    """In a done-callback, a fenced write can be waited for, also one that is sent again."""
    writer = fenced(memory, Between(lock))
    found: Future[Any] = Future()

    def callback(_future: Future[Any]) -> None:
        try:
            result(writer.put("/b", b"1"))
            lock.update(b"new")
            found.set_result(result(writer.put("/b", b"2")))
        except BaseException as failure:
            found.set_exception(failure)

    memory.put("/a", b"").add_done_callback(callback)
    assert result(found).version == 1


def test_a_callback_of_a_fenced_write_runs_apart(memory: bk.MetadataStore, lock: Lock) -> None:
    """Done-callbacks run in another thread than that which waits for the result."""
    writer = fenced(memory, lock)
    ran: Future[int] = Future()
    future = writer.put("/a", b"")
    future.add_done_callback(lambda _: ran.set_result(threading.get_ident()))
    result(future)
    assert ran.result(PATIENCE) != threading.get_ident()


def test_a_write_that_is_never_sent() -> None:
    """It can be cancelled, or ends at its own deadline; those behind it go on."""
    batching = bk.BatchingConfig(linger="fixed", max_delay=60.0)
    with bk.open_store("memory://fencing", batching=batching) as store:
        lock = Lock(store, "/lock")
        acquiring = threading.Thread(target=lock.acquire)
        acquiring.start()
        until(lambda: (store.flush(), lock.held)[1])
        acquiring.join()
        writer = fenced(store, lock)
        first, second = writer.put("/a", b"1"), writer.put("/a", b"2")
        with pytest.raises(TimeoutError):
            first.result(0.01)
        assert first.cancel()
        assert first.cancelled()
        late = error(writer.put("/late", b"", timeout=0.01))
        assert isinstance(late, bk.OperationTimeoutError)
        assert late.path == "/late"
        store.flush()
        assert result(second).version == 0
        assert not second.cancel()
        store.close()
        with pytest.raises(bk.StoreClosedError):
            writer.put("/a", b"3")


def test_a_store_without_transactions(
    memory: bk.MetadataStore, lock: Lock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The missing capability is named at once."""
    monkeypatch.setattr(bk.MetadataStore, "capabilities", frozenset())
    with pytest.raises(bk.UnsupportedError, match="transactions"):
        fenced(memory, lock)


def test_a_forked_child_writes_nothing(memory: bk.MetadataStore, lock: Lock) -> None:
    """In a forked process, a fenced write raises, although a thread held the fence's lock."""
    writer = fenced(memory, lock)

    def refused() -> bool:
        with pytest.raises(bk.StoreClosedError):
            writer.put("/a", b"")
        return True

    with locked_elsewhere(writer):
        assert holds_in_a_child(refused)


# --- tasks


Test = Callable[[bk.AsyncMetadataStore, AsyncLock], Any]


@pytest.fixture
def run(store_url: str) -> Callable[[Test], None]:
    """Run a coroutine function with a store of each kind and a lock that is held."""

    async def main(test: Test) -> None:
        async with asyncio.timeout(PATIENCE), bk.open_async_store(store_url) as store:
            lock = AsyncLock(store, "/lock", b"me")
            await lock.acquire()
            await test(store, lock)

    return lambda test: asyncio.run(main(test))


def test_tasks_write(run: Callable[[Test], None]) -> None:
    """For tasks, the same operations are coroutines, and ``submit`` gives a future."""

    async def test(store: bk.AsyncMetadataStore, lock: AsyncLock) -> None:
        writer = async_fenced(store, lock)
        assert (await asyncio.create_task(writer.put("/a", b"1"))).version == 0
        with pytest.raises(bk.BadVersionError):
            await writer.put("/a", b"", 7)
        await writer.delete("/a")
        assert await writer.transaction([bk.Check("/a", bk.ABSENT)]) == [None]
        assert (await writer.submit(bk.Put("/b", b"1"))).version == 0
        found = await writer.get("/b")
        assert found is not None
        assert found.value == b"1"
        ops = [bk.Put(f"/n/{n}", b"") for n in range(300)]
        assert all(outcome.ok for outcome in await writer.apply(ops))

        async def source() -> Any:
            for op in ops:
                yield op
            yield bk.Get("/n/7")
            raise ZeroDivisionError

        stream = writer.apply_stream(source())
        outcomes = [await anext(stream) for _ in range(301)]
        assert [outcome.op for outcome in outcomes[:300]] == ops
        with pytest.raises(ZeroDivisionError):
            await anext(stream)
        await lock.release()
        with pytest.raises(LockLostError):
            await writer.put("/a", b"1")

    run(test)


def test_tasks_keep_the_order_of_a_path(run: Callable[[Test], None]) -> None:
    """While another task updates the lock, puts that nobody waits for keep their order."""

    async def test(store: bk.AsyncMetadataStore, lock: AsyncLock) -> None:
        writer = async_fenced(store, lock)
        done = asyncio.Event()

        def ended() -> int:
            return sum(put.done() for put in puts)

        async def update() -> None:
            while not done.is_set():
                before = ended()
                await lock.update(b"new")
                while ended() == before and not done.is_set():  # noqa: ASYNC110 - of the futures
                    await asyncio.sleep(0.001)

        puts: list[asyncio.Task[bk.Stat]] = []
        updating = asyncio.create_task(update())
        for n in range(120):
            puts.append(asyncio.create_task(writer.put("/a", b"%d" % n)))
            if n % 10 == 0:
                await asyncio.sleep(0)
        stats = await asyncio.gather(*puts)
        done.set()
        await updating
        assert [stat.version for stat in stats] == list(range(120))

    run(test)


def test_tasks_are_cancelled() -> None:
    """A cancelled task leaves nothing behind: the writes after it go on, updates included."""

    async def main() -> None:
        async with asyncio.timeout(PATIENCE), bk.open_async_store("memory://fencing") as store:
            lock = AsyncLock(store, "/lock")
            await lock.acquire()
            known = lock.check()
            late: Any = type("Late", (), {"check": lambda _self: known})()
            writer = async_fenced(store, late)
            for steps in range(12):
                await lock.update(b"new")
                task = asyncio.create_task(writer.put("/a", b"lost"))
                other = asyncio.create_task(writer.put("/b", b"kept"))
                for _ in range(steps):
                    await asyncio.sleep(0)
                task.cancel()
                assert (await other).version == steps

    asyncio.run(main())


def test_tasks_wait_for_room() -> None:
    """A put waits while the queue is full, and ``submit`` raises; no write is lost or twice."""

    async def main() -> None:
        batching = bk.BatchingConfig(write_queue_size=4, max_ops=2, max_in_flight=1)
        async with (
            asyncio.timeout(PATIENCE),
            bk.open_async_store("memory://fencing", batching=batching) as store,
        ):
            lock = AsyncLock(store, "/lock")
            await lock.acquire()
            writer = async_fenced(store, lock)
            stats = await asyncio.gather(*(writer.put("/a", b"%d" % n) for n in range(200)))
            assert [stat.version for stat in stats] == list(range(200))
            futures: list[asyncio.Future[Any]] = []

            def fill() -> None:
                while True:
                    futures.append(writer.submit(bk.Put("/b", b"")))

            with pytest.raises(bk.QueueFullError):
                fill()
            await asyncio.gather(*futures)
            assert (await writer.put("/b", b"")).version == len(futures)

    asyncio.run(main())


def test_a_write_leaves_nothing_behind(memory: bk.MetadataStore, lock: Lock) -> None:
    """A fenced write keeps no reference after its end, and needs no thread of its own."""
    writer = fenced(memory, lock)
    threads = threading.active_count()
    futures = [weakref.ref(writer.put(f"/{n}", b"")) for n in range(100)]
    for n in range(100):
        result(writer.put(f"/{n}", b""))
    until(lambda: gc.collect() >= 0 and not any(future() for future in futures))
    # Those of the store, which start when they are needed, are fewer than writes.
    assert threading.active_count() < threads + 20
    assert time.monotonic() < lock.held_until()


def test_the_example_of_the_document_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """The first example runs unchanged, without a server."""
    text = (Path(__file__).parents[2] / "docs" / "fencing.md").read_text()
    example = text.split("```python\n")[1].split("```")[0]
    exec(compile(example, "fencing.md", "exec"), {})
    assert "lock" in capsys.readouterr().out


def test_a_write_that_is_sent_again_has_only_the_time_that_is_left() -> None:
    """Its deadline is that of the call."""
    write = Write(None, (bk.Put("/a", b""),), single=True, timeout=5.0)  # type: ignore[arg-type]
    left = write.left()
    assert left is not None
    assert 0 < left < 5.0
    assert Write(None, (bk.Put("/a", b""),), single=True, timeout=None).left() is None  # type: ignore[arg-type]
