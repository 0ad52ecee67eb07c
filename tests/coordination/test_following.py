"""A view that a watch keeps current, in the background."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator

import pytest

import batchkeeper as bk
from batchkeeper.coordination import MetadataCache, WorkQueue
from batchkeeper.coordination._sync import following
from batchkeeper.coordination._sync.following import Follower
from batchkeeper.coordination.async_following import AsyncFollower
from batchkeeper.ops.backoff import Backoff
from batchkeeper.testing import FaultInjector

from ..waiting import PATIENCE, result, until


@pytest.fixture
def store(store_url: str, faults: FaultInjector) -> Iterator[bk.MetadataStore]:
    """An empty store of each kind, with faults."""
    with bk.open_store(store_url, session_timeout=30.0, wrap=faults) as made:
        yield made


class View:
    """The names below a path, as reads and events show them."""

    def __init__(self, store: bk.MetadataStore, **options: object) -> None:
        self.store = store
        self.names: set[str] = set()
        self.reads = 0
        self.threads: set[int] = set()
        self.errors: list[bk.MetadataStoreError] = []
        self.failing: list[Exception] = []
        self.follower = Follower(
            store,
            "/view",
            read=self.read,
            event=self.hear,
            ended=self.errors.append,
            **options,  # type: ignore[arg-type]
        )
        self.follower.start()

    def read(self) -> None:
        self.threads.add(threading.get_ident())
        self.reads += 1
        if self.failing:
            raise self.failing.pop()
        self.names = set(self.store.get_children("/view").result(PATIENCE))

    def hear(self, event: bk.WatchEvent) -> None:
        self.threads.add(threading.get_ident())
        if self.failing:
            raise self.failing.pop()
        change = self.names.add if event.kind == "created" else self.names.discard
        change(event.path.rpartition("/")[2])


def watches(store: bk.MetadataStore) -> Callable[[], bool]:
    return lambda: store.metrics().watches == 1


def test_a_view(store: bk.MetadataStore) -> None:
    """It shows what was there, and every later change; all calls run on one thread."""
    store.put("/view/a", b"").result(PATIENCE)
    view = View(store)
    assert view.follower.ready.wait(PATIENCE)
    assert view.names == {"a"}
    store.put("/view/b", b"").result(PATIENCE)
    store.delete("/view/a").result(PATIENCE)
    until(lambda: view.names == {"b"})
    assert view.reads == 1
    assert len(view.threads) == 1
    assert threading.get_ident() not in view.threads
    view.follower.close()
    until(lambda: store.metrics().watches == 0)
    assert view.errors == []


def test_a_gap(store: bk.MetadataStore, faults: FaultInjector) -> None:
    """Missed changes are read again."""
    view = View(store)
    assert view.follower.ready.wait(PATIENCE)
    faults.gap()
    until(lambda: view.reads == 2)
    assert view.errors == []


@pytest.mark.parametrize("cause", ["gap", "failure"])
def test_an_old_view(store: bk.MetadataStore, faults: FaultInjector, cause: str) -> None:
    """It is not ready from a gap or a failure until it was read again; who waits then waits on."""
    view = View(store)
    before = view.follower.ready
    assert before.wait(PATIENCE)
    if cause == "gap":
        held = faults.delay("get_children")
        faults.gap()
    else:
        held = faults.delay("watch")
        faults.fail("get_children", times=2)
        faults.end_watches(bk.StoreUnavailableError("away"))
    held.wait(timeout=PATIENCE)
    waiting = view.follower.ready
    assert waiting is not before
    assert not waiting.is_set()
    held.release()
    assert waiting.wait(PATIENCE)
    assert view.follower.ready is waiting
    assert view.names == set()


def test_failures_that_pass(
    store: bk.MetadataStore, faults: FaultInjector, caplog: pytest.LogCaptureFixture
) -> None:
    """A failed read, event or watch leads to a new watch, and faults of our own are logged."""
    view = View(store)
    assert view.follower.ready.wait(PATIENCE)

    def again(error: Exception, name: str) -> None:
        reads = view.reads
        view.failing.append(error)
        store.put(f"/view/{name}", b"").result(PATIENCE)
        until(lambda: view.reads > reads)
        until(watches(store))

    again(bk.StoreUnavailableError("away"), "1")
    again(KeyError("ours"), "2")
    again(KeyError("ours"), "3")
    reads = view.reads
    faults.end_watches(bk.StoreUnavailableError("away"))
    until(lambda: view.reads > reads)
    until(lambda: view.names == {"1", "2", "3"})
    assert view.errors == []
    failed = [record for record in caplog.records if "a view failed" in record.getMessage()]
    assert len(failed) == 2


def test_failures_that_do_not_pass(store: bk.MetadataStore, faults: FaultInjector) -> None:
    """The follower ends, and says why, once."""
    view = View(store)
    assert view.follower.ready.wait(PATIENCE)
    faults.end_watches(bk.AuthenticationError("not any more"))
    until(lambda: view.errors)
    assert [type(error) for error in view.errors] == [bk.AuthenticationError]
    until(lambda: store.metrics().watches == 0)


def test_pauses_begin_small_again(
    store: bk.MetadataStore, faults: FaultInjector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a view was current, the next outage begins with the shortest pause."""
    pauses: list[int] = []

    class Recorded(Backoff):
        def pause(self, failures: int) -> float:
            pauses.append(failures)
            return 0.0

    monkeypatch.setattr(following, "_BACKOFF", Recorded(0.0, 0.0))
    view = View(store)
    for number in range(3):
        until(lambda at=number: view.reads > at)  # type: ignore[misc]
        until(watches(store))
        faults.end_watches(bk.StoreUnavailableError("away"))
        until(lambda at=number: len(pauses) > at)  # type: ignore[misc]
    assert pauses == [0, 0, 0]


def test_a_store_that_is_closed(store: bk.MetadataStore) -> None:
    """The follower ends with StoreClosedError; one that begins later does so at once."""
    for _ in range(2):
        view = View(store)
        assert view.follower.ready.wait(PATIENCE)
        store.close()
        until(lambda of=view: of.errors)  # type: ignore[misc]
        assert isinstance(view.errors[0], bk.StoreClosedError)


def test_close_at_any_time(store: bk.MetadataStore) -> None:
    """A follower that is closed while it begins ends as well, silently."""
    views = [View(store) for _ in range(10)]
    for view in views:
        view.follower.close()
    for view in views:
        assert view.follower.ready.wait(PATIENCE)
    until(lambda: store.metrics().watches == 0)
    assert not any(view.errors for view in views)


def test_no_thread_is_left(
    stores: Callable[..., bk.MetadataStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call that begins a view gets an error; the next one begins it again, and waits for it."""

    def no_thread(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    store = stores(operation_timeout=PATIENCE)
    queue, cache = WorkQueue(store, "/q"), MetadataCache(store, "/c")
    queue.put(b"job")
    result(store.put("/c", b"1"))
    uses: list[Callable[[], object]] = [lambda: queue.claim(PATIENCE), lambda: cache.get("/c")]
    for use in uses:
        with monkeypatch.context() as patch:
            patch.setattr(following, "spawn", no_thread)
            with pytest.raises(bk.StoreUnavailableError, match="new thread"):
                use()
        use()
    until(lambda: cache.get("/c") == cache.get_if_cached("/c"))


def test_nobody_needs_it(store: bk.MetadataStore) -> None:
    """``idle`` is called after a while without an event, and may end the follower."""
    answers = [False, False, True]
    view = View(store, idle=lambda: answers.pop(0), linger=0.01)
    until(lambda: not answers)
    until(lambda: store.metrics().watches == 0)
    assert view.errors == []
    assert view.reads == 1


def test_a_view_of_tasks(store_url: str) -> None:
    """It runs in a task, and ends with the loop although nobody has closed it."""

    async def main() -> None:
        names: list[str] = []
        async with bk.open_async_store(store_url) as store:

            async def read() -> None:
                names.extend(await store.get_children("/view"))

            async def hear(event: bk.WatchEvent) -> None:
                names.append(event.path.rpartition("/")[2])

            ended: list[bk.MetadataStoreError] = []
            await store.put("/view/a", b"")
            follower = AsyncFollower(store, "/view", read=read, event=hear, ended=ended.append)
            follower.start()
            assert await follower.ready.wait(PATIENCE)
            await store.put("/view/b", b"")
            async with asyncio.timeout(PATIENCE):
                while names != ["a", "b"]:  # noqa: ASYNC110 - what another task fills
                    await asyncio.sleep(0.001)
            assert ended == []

    asyncio.run(main())
