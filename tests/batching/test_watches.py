"""Watches over a back end that a test plays: gaps, errors, closing, and the threads involved."""

from __future__ import annotations

import asyncio
import gc
import logging
import random
import signal
import threading
import time
import weakref
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import pairwise
from typing import Any

import pytest

import batchkeeper as bk
from batchkeeper.batching import AsyncMetadataStore, BatchingConfig, MetadataStore
from batchkeeper.batching.engine import engine_of
from batchkeeper.batching.feeds import Feed
from batchkeeper.ops import (
    AuthenticationError,
    OperationTimeoutError,
    StoreClosedError,
    StoreUnavailableError,
    WatchEvent,
)

from ..forks import holds_in_a_child, locked_elsewhere, locks_of
from .live import STATED, Played, PlayedBackend, created
from .waiting import LEFT_OPEN, PATIENCE, until

GAP = WatchEvent("gap", "/a")


@pytest.fixture
def backend() -> PlayedBackend:
    """A back end whose watches the test plays."""
    return PlayedBackend()


@pytest.fixture
def store(backend: PlayedBackend) -> Iterator[MetadataStore]:
    """A store on it."""
    opened = MetadataStore(backend, BatchingConfig(), 60.0, "memory://played", STATED)
    yield opened
    opened.close(0)


def taken(watch: bk.Watch) -> list[WatchEvent]:
    """Return the waiting events."""
    events = []
    while (event := watch.next_event(0)) is not None:
        events.append(event)
    return events


# --- what the back end is asked


def test_the_back_end_gets_the_arguments(backend: PlayedBackend, store: MetadataStore) -> None:
    """The prefix, the revision and the deadline are those of the call."""
    before = time.monotonic()
    store.watch("/a", after=7, timeout=5)
    store.watch("/b")
    after = time.monotonic()
    first, second = backend.played
    assert (first.prefix, first.after, second.prefix, second.after) == ("/a", 7, "/b", None)
    assert before + 5 <= first.deadline <= after + 5
    assert before + 60 <= second.deadline <= after + 60


def test_a_watch_that_is_not_in_place(backend: PlayedBackend, store: MetadataStore) -> None:
    """An error of the back end raises from the call, and nothing of the watch stays."""

    def fail(watch: Played) -> None:
        raise OperationTimeoutError("no answer", path=watch.prefix)

    backend.before = fail
    with pytest.raises(OperationTimeoutError):
        store.watch("/a")
    assert store.metrics().watches == 0
    backend.played[0].deliver(created("/a"))


def test_events_of_the_call_itself_are_not_lost(
    backend: PlayedBackend, store: MetadataStore
) -> None:
    """What the back end reports before its call returns comes first."""
    backend.before = lambda watch: watch.deliver(created("/a/1", "/a/2"))
    watch = store.watch("/a")
    backend.played[0].deliver(created("/a/3"))
    assert [event.path for event in taken(watch)] == ["/a/1", "/a/2", "/a/3"]


def test_a_callback_waits_for_the_call(backend: PlayedBackend, store: MetadataStore) -> None:
    """A callback does not run before the watch is in place, and then gets all."""
    seen: list[str] = []
    ran = threading.Event()

    def before(watch: Played) -> None:
        watch.deliver(created("/a/1"))
        # Long enough for the dispatcher, which runs this at once.
        future = store.put("/b", b"")
        future.add_done_callback(lambda _: ran.set())
        assert ran.wait(PATIENCE)
        assert seen == []

    backend.before = before
    store.watch("/a", callback=lambda event: seen.append(event.path))
    backend.played[0].deliver(created("/a/2"))
    until(lambda: seen == ["/a/1", "/a/2"], "they did not come")


def test_a_store_closed_while_a_watch_begins(backend: PlayedBackend, store: MetadataStore) -> None:
    """The call raises StoreClosedError, and the back end's watch is closed."""
    backend.before = lambda watch: store.close()
    with pytest.raises(StoreClosedError):
        store.watch("/a")
    assert backend.played[0].closes == 1


# --- gaps


def test_one_gap_for_all_that_were_dropped(backend: PlayedBackend, store: MetadataStore) -> None:
    """However often the bound is passed, one gap stands before what is left."""
    watch = store.watch("/a", max_events=3)
    for n in range(10):
        backend.played[0].deliver(created(*(f"/a/{n}{k}" for k in range(4))))
    assert taken(watch) == [GAP, *created("/a/91", "/a/92", "/a/93")]
    assert taken(watch) == []
    metrics = store.metrics()
    assert (metrics.watch_events, metrics.watch_drops) == (40, 37)


def test_a_bound_of_one(backend: PlayedBackend, store: MetadataStore) -> None:
    """A watch that holds one event keeps the newest."""
    watch = store.watch("/a", max_events=1)
    backend.played[0].deliver(created("/a/1"))
    assert taken(watch) == created("/a/1")
    backend.played[0].deliver(created("/a/1"))
    backend.played[0].deliver(created("/a/2"))
    assert taken(watch) == [GAP, *created("/a/2")]


def test_exactly_the_bound_is_no_gap(backend: PlayedBackend, store: MetadataStore) -> None:
    """A watch holds as many events as it says before it drops any."""
    watch = store.watch("/a", max_events=5)
    backend.played[0].deliver(created(*"12345"))
    assert taken(watch) == created(*"12345")


def test_gaps_of_the_store_stay_in_their_place(
    backend: PlayedBackend, store: MetadataStore
) -> None:
    """A gap that the back end reports comes between the events around it."""
    watch = store.watch("/a")
    backend.played[0].deliver([*created("/a/1"), GAP])
    backend.played[0].deliver(created("/a/2"))
    assert taken(watch) == [*created("/a/1"), GAP, *created("/a/2")]


def test_gaps_next_to_each_other_are_one(backend: PlayedBackend, store: MetadataStore) -> None:
    """One new read suffices: adjacent gaps are merged, including own ones."""
    watch = store.watch("/a", max_events=3)
    backend.played[0].deliver([GAP, GAP, *created("/a/1")])
    assert taken(watch) == [GAP, *created("/a/1")]
    backend.played[0].deliver([*created(*"123"), GAP, GAP, *created("/a/2")])
    assert taken(watch) == [GAP, *created("/a/2")]
    # But not those that come after the first was taken.
    backend.played[0].deliver([GAP])
    assert taken(watch) == [GAP]
    backend.played[0].deliver([GAP])
    assert taken(watch) == [GAP]


def test_random_deliveries_and_readings(backend: PlayedBackend, store: MetadataStore) -> None:
    """Whatever is delivered and taken when, no event is lost without a gap, and none is doubled."""
    for seed in range(200):
        rng = random.Random(seed)
        bound = rng.randrange(1, 6)
        watch = store.watch("/a", max_events=bound)
        played, number, seen = backend.played[-1], 0, []
        for _ in range(30):
            if rng.random() < 0.5:
                size = rng.randrange(0, 9)
                played.deliver(created(*(f"/{n}" for n in range(number, number + size))))
                number += size
            else:
                for _ in range(rng.randrange(0, 9)):
                    event = watch.next_event(0)
                    if event is not None:
                        seen.append(event)
        rest = taken(watch)
        assert len(rest) <= bound + 1
        seen += rest
        numbers = [-1, *(None if e.kind == "gap" else int(e.path[1:]) for e in seen)]
        for before, after in pairwise(numbers):
            if before is not None and after is not None:
                assert after == before + 1, seed
        real = [n for n in numbers if n is not None]
        assert real == sorted(set(real))
        assert real[-1] == number - 1
        watch.close()


# --- errors


def test_a_watch_that_fails(backend: PlayedBackend, store: MetadataStore) -> None:
    """The events before the error come first; then each caller gets a copy of its own."""
    watch = store.watch("/a")
    (played,) = backend.played
    played.deliver(created("/a/1"))
    reason = AuthenticationError("the login was withdrawn")
    played.fail(reason)
    played.deliver(created("/a/2"))
    played.fail(StoreUnavailableError("later"))
    assert watch.closed
    assert watch.error is reason
    assert next(watch).path == "/a/1"
    raised = []
    for call in (lambda: next(watch), watch.next_event, lambda: list(watch)):
        with pytest.raises(AuthenticationError, match="withdrawn") as caught:
            call()
        raised.append(caught.value)
    assert len({id(error) for error in [*raised, reason]}) == 4
    assert {error.path for error in raised} == {"/a"}
    assert store.metrics().watches == 0
    watch.close()
    assert list(watch) == []
    assert played.closes == 0  # The back end has ended it.


def test_those_who_wait_learn_of_the_failure(backend: PlayedBackend, store: MetadataStore) -> None:
    """Threads that wait for an event get the error."""
    watch = store.watch("/a")
    with ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(next, watch) for _ in range(3)]
        backend.played[0].fail(StoreUnavailableError("gone"))
        for future in waiting:
            assert isinstance(future.exception(PATIENCE), StoreUnavailableError)


def test_a_callback_learns_of_the_failure(
    backend: PlayedBackend, store: MetadataStore, caplog: pytest.LogCaptureFixture
) -> None:
    """A callback gets the events before the error and a last gap, which finds the error set."""
    seen: list[Any] = []
    watch: bk.Watch

    def callback(event: WatchEvent) -> None:
        seen.append((event.kind, watch.error))

    watch = store.watch("/a", callback=callback)
    (played,) = backend.played
    reason = AuthenticationError("the login was withdrawn")
    with caplog.at_level(logging.ERROR, "batchkeeper"):
        played.deliver(created("/a/1"))
        until(lambda: len(seen) == 1, "the event did not come")
        played.fail(reason)
        until(lambda: len(seen) == 2, "the gap did not come")
    played.deliver(created("/a/2"))
    store.close()
    assert seen == [("created", None), ("gap", reason)]
    (record,) = caplog.records
    assert "a watch has failed" in record.message
    assert "prefix='/a'" in record.message
    assert record.exc_info


# --- closing


def test_closing_closes_the_back_ends_watch_once(
    backend: PlayedBackend, store: MetadataStore
) -> None:
    """Closing a watch twice, and then its store, closes the back end's watch once."""
    watch = store.watch("/a")
    (played,) = backend.played
    watch.close()
    watch.close()
    assert played.closes == 1
    played.deliver(created("/a"))
    played.fail(StoreUnavailableError(""))
    store.close()
    assert played.closes == 1
    assert list(watch) == []
    assert watch.error is None


@pytest.mark.slow
def test_a_close_may_wait_for_a_delivery(backend: PlayedBackend, store: MetadataStore) -> None:
    """A back end may hold a lock while it delivers, and take it in the watch's close."""
    delivering = threading.Lock()

    class Locked(Played):
        def close(self) -> None:
            with delivering:
                super().close()

    def deliver(played: Played, stop: threading.Event) -> None:
        while not stop.is_set():
            with delivering:
                played.deliver(created("/a/1", "/a/2"))

    def close_while_events_come(by_callback: bool) -> None:
        backend.before = lambda watch: setattr(watch, "__class__", Locked)
        watches: list[bk.Watch] = []

        def callback(event: WatchEvent) -> None:
            for watch in watches:
                watch.close()

        watch = store.watch("/a", callback=callback if by_callback else None)
        watches.append(watch)
        played, stop = backend.played[-1], threading.Event()
        thread = threading.Thread(target=deliver, args=(played, stop))
        thread.start()
        if not by_callback:
            assert next(watch)
            watch.close()
        until(lambda: played.closes == 1, "the close waits for ever")
        stop.set()
        thread.join(PATIENCE)
        assert not thread.is_alive()

    for turn in range(40):
        close_while_events_come(by_callback=turn % 2 == 1)


def test_a_close_in_a_forked_child_leaves_the_back_end_alone(
    backend: PlayedBackend, store: MetadataStore
) -> None:
    """A child neither closes the back end's watch nor takes locks that may be held for ever."""
    watch = store.watch("/a")

    def left_alone() -> bool:
        watch.close()
        with pytest.raises(StoreClosedError, match="forked"):
            next(watch)
        return backend.played[0].closes == 0 and not watch.closed

    with locked_elsewhere(watch):
        assert holds_in_a_child(left_alone)


def test_a_signal_handler_may_close_a_watch(backend: PlayedBackend, store: MetadataStore) -> None:
    """A handler that closes the watch ends the loop of the thread that it interrupts, anywhere."""
    watch = store.watch("/a")
    with ExitStack() as held:
        for lock in locks_of(watch):  # as the interrupted thread may
            held.enter_context(lock)
        watch.close()
    assert list(watch) == []
    overtaken, look = store.watch("/a"), Feed._next

    def interrupted(feed: Feed) -> WatchEvent | None:
        """Look for an event; then, before the thread waits for the next one, comes the handler."""
        found = look(feed)
        if found is None:
            overtaken.close()
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Feed, "_next", interrupted)
        assert list(overtaken) == []
    busy = created(*(f"/{n}" for n in range(100)))
    watches: list[bk.Watch] = []
    before = signal.signal(signal.SIGALRM, lambda *_: watches[-1].close())
    try:
        for turn in range(30):
            watches.append(store.watch("/a", max_events=150))
            played = backend.played[-1]
            signal.setitimer(signal.ITIMER_REAL, 0.002 + turn * 0.0001)
            for _ in watches[-1]:
                played.deliver(busy)
            assert watches[-1].closed
            assert played.closes == 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_dropped_watch_is_closed_by_the_next_delivery(
    backend: PlayedBackend, store: MetadataStore
) -> None:
    """Its finalizer touches neither locks nor the back end; the next delivery closes it."""
    watch = store.watch("/a")
    (played,) = backend.played
    played.deliver(created("/a/1"))
    del watch
    gc.collect()
    assert played.closes == 0
    played.deliver(created("/a/2"))
    assert played.closes == 1
    assert store.metrics().watches == 0


def test_a_store_passes_on_what_was_reported(backend: PlayedBackend, store: MetadataStore) -> None:
    """Closing the store waits until callbacks have had all that was reported before."""
    go = threading.Event()
    seen: list[str] = []

    def callback(event: WatchEvent) -> None:
        assert go.wait(PATIENCE)
        seen.append(event.path)

    store.watch("/a", callback=callback)
    paths = [f"/a/{n}" for n in range(1_000)]
    backend.played[0].deliver(created(*paths))
    threading.Timer(0.01, go.set).start()
    store.close()
    assert seen == paths


def test_callbacks_take_turns(backend: PlayedBackend, store: MetadataStore) -> None:
    """A watch with thousands of events lets done-callbacks and other watches have their turn."""
    go = threading.Event()
    order: list[str] = []

    def callback(event: WatchEvent) -> None:
        assert event.path == "/a/first" or go.wait(PATIENCE)
        order.append("busy")

    store.watch("/a", callback=callback)
    store.watch("/b", callback=lambda event: order.append("other"))
    busy, other = backend.played
    busy.deliver(created("/a/first"))
    other.deliver(created("/b"))
    until(lambda: len(order) == 2, "the first ones did not come")
    busy.deliver(created(*(f"/a/{n}" for n in range(5_000))))
    # From now on, the dispatcher is busy.
    other.deliver(created("/b"))
    future = store.put("/c", b"")
    future.add_done_callback(lambda _: order.append("done"))
    future.result(PATIENCE)
    go.set()
    until(lambda: len(order) == 5_004, "not all came")
    assert order.index("other", 2) < 1_000
    assert order.index("done") < 1_000


def test_closed_watches_are_forgotten(backend: PlayedBackend, store: MetadataStore) -> None:
    """Nothing of a watch stays in the store after it was closed, or has failed."""
    forgotten = []
    for end in ("close", "fail") * 10:
        watch = store.watch("/a")
        forgotten.append(weakref.ref(watch))
        if end == "close":
            watch.close()
        else:
            backend.played[-1].fail(StoreUnavailableError(""))
    del watch
    backend.played.clear()
    gc.collect()
    assert [ref() for ref in forgotten] == [None] * 20


def test_many_threads(backend: PlayedBackend, store: MetadataStore) -> None:
    """With a deliverer and readers on threads, each event goes to one reader, in order."""
    for _ in range(20):
        watch = store.watch("/a", max_events=100_000)
        played = backend.played[-1]

        seen: list[int] = []

        def read(watch: bk.Watch = watch, seen: list[int] = seen) -> list[int]:
            mine = []
            for event in watch:
                mine.append(int(event.path[1:]))
                seen.append(mine[-1])
            return mine

        def deliver(played: Played = played) -> None:
            for n in range(0, 1_000, 10):
                played.deliver(created(*(f"/{k}" for k in range(n, n + 10))))

        with ThreadPoolExecutor(5) as pool:
            readers = [pool.submit(read) for _ in range(4)]
            pool.submit(deliver).result(PATIENCE)
            until(lambda seen=seen: len(seen) == 1_000)
            watch.close()
            parts = [future.result(PATIENCE) for future in readers]
        assert all(part == sorted(part) for part in parts)
        assert sorted(n for part in parts for n in part) == list(range(1_000))


# --- tasks

Test = Callable[[AsyncMetadataStore], Coroutine[Any, Any, None]]


async def soon(condition: Callable[[], object]) -> None:
    """Let the loop and other threads go on until a condition holds."""
    while not condition():  # noqa: ASYNC110 - threads make it true
        await asyncio.sleep(0)


def run(backend: PlayedBackend, test: Test) -> None:
    """Run a test on a new loop, with a store that is closed after it."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        config = BatchingConfig()
        store = AsyncMetadataStore(backend, config, 60.0, "memory://played", loop, STATED)
        try:
            async with asyncio.timeout(PATIENCE):
                await test(store)
        finally:
            await store.close(0)

    asyncio.run(main())


def test_a_group_of_events_is_one_hand_over(
    backend: PlayedBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many events come while the loop is busy, it is woken once."""
    asked: list[Feed] = []
    take = Feed.take

    def noted(feed: Feed) -> WatchEvent | None:
        event = take(feed)
        if event is None:
            asked.append(feed)
        return event

    monkeypatch.setattr(Feed, "take", noted)

    async def test(store: AsyncMetadataStore) -> None:
        loop = asyncio.get_running_loop()
        watch = await store.watch("/a")
        seen: list[str] = []
        await store.watch("/b", callback=lambda event: seen.append(event.path))
        reading = asyncio.create_task(anext(watch))
        # From then on, the next event of each wakes the loop.
        await soon(lambda: {feed.prefix for feed in asked} == {"/a", "/b"})
        calls = []
        real = loop.call_soon_threadsafe

        def counting(call: Callable[..., object], *args: Any, **kwargs: Any) -> asyncio.Handle:
            calls.append(call)
            return real(call, *args, **kwargs)

        loop.call_soon_threadsafe = counting  # type: ignore[method-assign]
        for played in backend.played:
            for n in range(100):
                played.deliver(created(f"/{n}"))
        assert len(calls) == 2
        loop.call_soon_threadsafe = real  # type: ignore[method-assign]
        assert (await reading).path == "/0"
        assert [(await anext(watch)).path for _ in range(99)] == [f"/{n}" for n in range(1, 100)]
        await soon(lambda: len(seen) == 100)
        assert seen == [f"/{n}" for n in range(100)]

    run(backend, test)


@LEFT_OPEN
def test_a_closed_loop(backend: PlayedBackend, caplog: pytest.LogCaptureFixture) -> None:
    """Events for a closed loop are dropped without an error or a log, and end the watch."""
    loop = asyncio.new_event_loop()
    stores = []

    async def begin() -> None:
        store = AsyncMetadataStore(backend, BatchingConfig(), 60.0, "memory://played", loop, STATED)
        stores.append(store)
        await store.watch("/a", callback=print)
        watch = await store.watch("/a")
        stores.append(watch)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(watch), 0.01)
        stores.append(await store.watch("/quiet"))

    loop.run_until_complete(begin())
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()
    store, watch, quiet = stores
    with caplog.at_level(logging.WARNING):
        quiet.close()  # First: some time after its loop, the store ends all that are left.
        for played in backend.played[:2]:
            for _ in range(50):
                played.deliver(created("/a/1"))
        watch.close()
    assert not caplog.records
    assert [played.closes for played in backend.played] == [1, 1, 1]
    engine_of(store).close(0)


def test_a_failure_that_tasks_wait_for(backend: PlayedBackend) -> None:
    """Tasks that wait get the error, each a copy; so do those that ask with a bound."""

    async def test(store: AsyncMetadataStore) -> None:
        watch = await store.watch("/a")
        waiting = [asyncio.create_task(anext(watch)) for _ in range(2)]
        waiting.append(asyncio.create_task(watch.next_event(PATIENCE)))
        await asyncio.sleep(0.01)
        backend.played[0].deliver(created("/a/1"))
        reason = OperationTimeoutError("also a TimeoutError")
        backend.played[0].fail(reason)
        ended = await asyncio.gather(*waiting, return_exceptions=True)
        errors = [end for end in ended if isinstance(end, OperationTimeoutError)]
        assert len(errors) == 2
        assert errors[0] is not errors[1]
        assert watch.error is reason
        with pytest.raises(OperationTimeoutError):
            await watch.next_event(1)

    run(backend, test)


def test_a_watch_that_tasks_cannot_begin(
    backend: PlayedBackend, caplog: pytest.LogCaptureFixture
) -> None:
    """Each task that waits for the beginning gets the error, and nobody logs it as lost."""

    def fail(watch: Played) -> None:
        raise StoreUnavailableError("no server")

    backend.before = fail

    async def test(store: AsyncMetadataStore) -> None:
        watch = store.watch("/a")
        ended = await asyncio.gather(watch, anext(watch), return_exceptions=True)
        assert [type(end) for end in ended] == [StoreUnavailableError] * 2
        assert ended[0] is not ended[1]
        assert store.metrics().watches == 0
        dropped = asyncio.ensure_future(store.watch("/b"))
        await asyncio.sleep(0)
        dropped.cancel()

    with caplog.at_level(logging.WARNING):
        run(backend, test)
        gc.collect()
    assert not caplog.records


@pytest.mark.parametrize("how", ["await", "block"])
def test_a_beginning_that_is_cancelled(backend: PlayedBackend, how: str) -> None:
    """The back end's watch is closed when its call returns, because nobody receives it."""
    called, go = threading.Event(), threading.Event()

    def before(watch: Played) -> None:
        called.set()
        assert go.wait(PATIENCE)

    backend.before = before

    async def test(store: AsyncMetadataStore) -> None:
        async def begin() -> None:
            if how == "await":
                await store.watch("/a")
            else:
                async with store.watch("/a"):
                    pass

        beginning = asyncio.create_task(begin())
        await soon(called.is_set)
        beginning.cancel()
        await asyncio.wait([beginning])
        assert beginning.cancelled()
        go.set()
        await soon(lambda: backend.played[0].closes)
        assert store.metrics().watches == 0

    run(backend, test)


def test_an_iteration_that_is_cancelled_while_the_watch_begins(backend: PlayedBackend) -> None:
    """A bounded wait may end before the watch is in place; the next one continues."""
    called, go = threading.Event(), threading.Event()

    def before(watch: Played) -> None:
        called.set()
        assert go.wait(PATIENCE)

    backend.before = before

    async def test(store: AsyncMetadataStore) -> None:
        watch = store.watch("/a")
        assert await watch.next_event(0.01) is None
        await soon(called.is_set)
        go.set()
        backend.played[0].deliver(created("/a/1"))
        event = await watch.next_event(PATIENCE)
        assert event is not None
        assert event.path == "/a/1"
        assert len(backend.played) == 1

    run(backend, test)


def test_a_dropped_watch_of_tasks(backend: PlayedBackend) -> None:
    """A watch that no task holds any more is closed by the next delivery."""

    async def test(store: AsyncMetadataStore) -> None:
        async for _ in store.watch("/a"):
            break

    backend.before = lambda watch: watch.deliver(created("/a/1"))

    async def both(store: AsyncMetadataStore) -> None:
        await test(store)
        gc.collect()
        (played,) = backend.played
        assert played.closes == 0
        played.deliver(created("/a/2"))
        assert played.closes == 1

    run(backend, both)


def test_a_callback_of_tasks_does_not_run_before_the_await_returns(backend: PlayedBackend) -> None:
    """A callback finds the watch that its task has received."""
    backend.before = lambda watch: watch.deliver(created("/a/1"))

    async def test(store: AsyncMetadataStore) -> None:
        seen: list[Any] = []
        watch: bk.AsyncWatch | None = None
        watch = await store.watch("/a", callback=lambda event: seen.append(watch))
        assert seen == []
        await soon(lambda: seen)
        assert seen == [watch]

    run(backend, test)
