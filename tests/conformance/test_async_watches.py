"""Watches of tasks: the contract of ``test_watches.py`` where the faces differ."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

import batchkeeper as bk

from ..waiting import PATIENCE

pytestmark = pytest.mark.needs("watches")

Test = Callable[[bk.AsyncMetadataStore], Coroutine[Any, Any, None]]


@pytest.fixture
def run(store_url: str, batching: bk.BatchingConfig) -> Callable[[Test], None]:
    """Run a coroutine function with an empty store of each kind, and close the store after it."""

    async def main(test: Test) -> None:
        async with asyncio.timeout(PATIENCE):
            async with bk.open_async_store(store_url, batching=batching) as store:
                await test(store)

    return lambda test: asyncio.run(main(test))


async def take(watch: bk.AsyncWatch, number: int) -> list[tuple[str, str]]:
    """Return the kinds and the paths of the next events."""
    events = [await anext(watch) for _ in range(number)]
    return [(event.kind, event.path) for event in events]


async def until(condition: Callable[[], object]) -> None:
    """Let other tasks run until a condition holds; the test's own time limit bounds this."""
    while not condition():  # noqa: ASYNC110 - the conditions are the store's own numbers
        await asyncio.sleep(0.001)


def test_an_awaited_watch(run: Callable[[Test], None]) -> None:
    """``await store.watch(...)`` returns when the watch is in place: the next put is an event."""

    async def test(store: bk.AsyncMetadataStore) -> None:
        await store.put("/a/before", b"")
        watch = await store.watch("/a")
        assert isinstance(watch, bk.AsyncWatch)
        assert await watch is watch
        assert (watch.prefix, watch.closed, watch.error) == ("/a", False, None)
        stat = await store.put("/a/b", b"")
        await store.put("/a/b", b"")
        await store.delete("/a/b")
        first = await anext(watch)
        assert (first.kind, first.path) == ("created", "/a/b")
        assert first.revision in {stat.revision, None}
        assert await take(watch, 2) == [("modified", "/a/b"), ("deleted", "/a/b")]
        await watch.close()
        assert watch.closed
        assert [event async for event in watch] == []

    run(test)


def test_a_block(run: Callable[[Test], None]) -> None:
    """``async with`` begins the watch and closes it, also when the block raises."""

    async def test(store: bk.AsyncMetadataStore) -> None:
        async with store.watch("/a") as watch:
            await store.put("/a", b"")
            assert await take(watch, 1) == [("created", "/a")]
            assert store.metrics().watches == 1
        assert watch.closed
        with pytest.raises(ZeroDivisionError):
            async with store.watch("/a") as watch:
                raise ZeroDivisionError
        assert watch.closed
        assert store.metrics().watches == 0

    run(test)


@pytest.mark.slow
def test_a_loop(run: Callable[[Test], None]) -> None:
    """``async for event in store.watch(...)`` begins the watch with the loop."""

    async def test(store: bk.AsyncMetadataStore) -> None:
        seen: list[str] = []

        async def watch() -> None:
            async for event in store.watch("/a"):
                seen.append(event.path)
                if event.path == "/a/end":
                    break

        watching = asyncio.create_task(watch())
        await until(lambda: store.metrics().watches == 1)
        begun = 0
        while not seen:  # The metrics count it a moment before it is in place.
            await store.put(f"/a/{begun}", b"")
            begun += 1
        for n in range(300):
            await store.put(f"/a/x{n}", b"")
        await store.put("/a/end", b"")
        await watching
        assert seen[-301:] == [*(f"/a/x{n}" for n in range(300)), "/a/end"]

    run(test)


def test_it_begins_when_it_is_needed(run: Callable[[Test], None]) -> None:
    """The call alone begins nothing; a watch that was closed before never begins."""

    async def test(store: bk.AsyncMetadataStore) -> None:
        watch = store.watch("/a")
        await store.put("/a", b"")
        assert store.metrics().watches == 0
        async with watch:
            await store.put("/a", b"")
            assert await take(watch, 1) == [("modified", "/a")]
        never = store.watch("/a")
        await never.close()
        assert [event async for event in never] == []
        with pytest.raises(bk.StoreClosedError):
            await never
        assert store.metrics().watches == 0

    run(test)


@pytest.mark.call
def test_bad_arguments_raise_from_the_call(run: Callable[[Test], None]) -> None:
    """The call itself refuses bad arguments and missing capabilities, before any await."""

    async def test(store: bk.AsyncMetadataStore) -> None:
        arguments: Any
        for arguments in ({"max_events": 0}, {"callback": 1}, {"after": -1}, {"timeout": 0}):
            with pytest.raises(bk.InvalidSettingError):
                store.watch("/a", **arguments)
        with pytest.raises(bk.InvalidPathError):
            store.watch("a")
        if "history" not in store.capabilities:
            with pytest.raises(bk.UnsupportedError, match="'history'"):
                store.watch("/a", after=1)

    run(test)


@pytest.mark.slow
def test_cancelling_a_task_loses_no_event(run: Callable[[Test], None]) -> None:
    """Tasks cancelled at any moment while they wait leave the events to others."""

    async def test(store: bk.AsyncMetadataStore) -> None:
        watch = await store.watch("/a")
        seen: list[str] = []

        async def read() -> None:
            async for event in watch:
                seen.append(event.path)  # noqa: PERF401 - it is cancelled in between

        async def write() -> None:
            for n in range(300):
                await store.put(f"/a/{n:03d}", b"")

        writing = asyncio.create_task(write())
        turns = 0
        while len(seen) < 300:
            reading = asyncio.create_task(read())
            for _ in range(turns % 7):
                await asyncio.sleep(0)
            reading.cancel()
            await asyncio.wait([reading])
            turns += 1
            if turns % 50 == 0:
                await asyncio.sleep(0.001)
        await writing
        assert seen == [f"/a/{n:03d}" for n in range(300)]
        await watch.close()

    run(test)


def test_a_wait_with_a_bound(run: Callable[[Test], None]) -> None:
    """next_event returns None if nothing comes in time; wait_for may bound it as well."""

    async def test(store: bk.AsyncMetadataStore) -> None:
        async with store.watch("/a") as watch:
            assert await watch.next_event(0) is None
            assert await watch.next_event(timeout=0.01) is None
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(watch), 0.01)
            await store.put("/a", b"")
            event = await watch.next_event(PATIENCE)
            assert event is not None
            assert event.kind == "created"
            with pytest.raises(bk.InvalidSettingError, match="timeout"):
                await watch.next_event(-1)
        with pytest.raises(bk.StoreClosedError):
            await watch.next_event()

    run(test)


def test_cancelling_the_beginning_closes_the_watch(run: Callable[[Test], None]) -> None:
    """If the task that begins a watch is cancelled, nothing of the watch stays."""

    async def test(store: bk.AsyncMetadataStore) -> None:
        for turns in range(6):
            beginning = asyncio.ensure_future(store.watch("/a"))
            for _ in range(turns):
                await asyncio.sleep(0)
            if beginning.cancel():
                await asyncio.wait([beginning])
            if beginning.cancelled():
                await until(lambda: store.metrics().watches == 0)
            else:
                await beginning.result().close()
        assert store.metrics().watches == 0

    run(test)


@pytest.mark.slow
def test_a_callback_runs_on_the_loop(run: Callable[[Test], None]) -> None:
    """A callback gets the events on the loop's thread, one by one and in order."""

    async def test(store: bk.AsyncMetadataStore) -> None:
        seen: list[str] = []
        threads: set[int] = set()
        tasks: set[asyncio.Task[Any]] = set()

        def callback(event: bk.WatchEvent) -> None:
            seen.append(event.path)
            threads.add(threading.get_ident())
            if event.path.startswith("/a"):
                tasks.add(asyncio.create_task(store.put(f"/seen{event.path}", b"")))

        watch = await store.watch("/a", callback=callback)
        for n in range(400):
            await store.put(f"/a/{n}", b"")
        await until(lambda: len(seen) == 400)
        assert seen == [f"/a/{n}" for n in range(400)]
        assert threads == {threading.get_ident()}
        await asyncio.gather(*tasks)
        assert len(await store.get_children("/seen/a")) == 400
        with pytest.raises(bk.InvalidSettingError, match="callback"):
            await anext(watch)
        await watch.close()

    run(test)


def test_a_callback_that_raises(
    run: Callable[[Test], None], caplog: pytest.LogCaptureFixture
) -> None:
    """An exception in a callback is logged, and the next event follows."""

    async def test(store: bk.AsyncMetadataStore) -> None:
        seen: list[str] = []

        def callback(event: bk.WatchEvent) -> None:
            seen.append(event.path)
            raise ValueError(event.path)

        await store.watch("/a", callback=callback)
        with caplog.at_level(logging.ERROR, "batchkeeper"):
            for n in range(3):
                await store.put(f"/a/{n}", b"")
            await until(lambda: len(seen) == 3)
        assert sum("callback failed" in record.message for record in caplog.records) == 3

    run(test)


def test_a_watch_closed_in_its_callback(run: Callable[[Test], None]) -> None:
    """A callback may close its own watch without awaiting that, and gets no event after it."""

    async def test(store: bk.AsyncMetadataStore) -> None:
        seen: list[str] = []
        watch: bk.AsyncWatch

        def callback(event: bk.WatchEvent) -> None:
            seen.append(event.path)
            watch.close()

        watch = await store.watch("/a", callback=callback)
        async with store.watch("/a") as other:
            for n in range(20):
                await store.put(f"/a/{n}", b"")
            await take(other, 20)
        await until(lambda: watch.closed)
        assert seen == ["/a/0"]

    run(test)


def test_a_slow_reader_is_bounded(run: Callable[[Test], None]) -> None:
    """Past ``max_events``, the newest stay, and one gap stands for those that were dropped."""

    async def test(store: bk.AsyncMetadataStore) -> None:
        watch = await store.watch("/a", max_events=5)
        for n in range(50):
            await store.put(f"/a/{n}", b"")
        await until(lambda: store.metrics().watch_drops == 45)
        expected = [("gap", "/a"), *(("created", f"/a/{n}") for n in range(45, 50))]
        assert await take(watch, 6) == expected
        await watch.close()

    run(test)


def test_tasks_that_wait_leave_at_the_close(run: Callable[[Test], None]) -> None:
    """Closing the watch, or its store, ends the loops of all tasks that wait for its events."""

    async def test(store: bk.AsyncMetadataStore) -> None:
        async def read(watch: bk.AsyncWatch) -> list[str]:
            return [event.path async for event in watch]

        closed, ended = await store.watch("/a"), await store.watch("/b")
        readers = [asyncio.create_task(read(watch)) for watch in (closed, closed, ended, ended)]
        await asyncio.sleep(0.01)
        closed.close()
        assert await asyncio.gather(*readers[:2]) == [[], []]
        assert not readers[2].done()
        await store.put("/b/1", b"")
        await until(lambda: store.metrics().watch_events == 1)
        await store.close()
        assert sorted(await asyncio.gather(*readers[2:])) == [[], ["/b/1"]]
        with pytest.raises(bk.StoreClosedError):
            store.watch("/b")

    run(test)


def test_what_came_before_the_close_can_be_taken(run: Callable[[Test], None]) -> None:
    """After the store was closed, the events that it reported before are still there."""

    async def test(store: bk.AsyncMetadataStore) -> None:
        watch = await store.watch("/a")
        for n in range(3):
            await store.put(f"/a/{n}", b"")
        await until(lambda: store.metrics().watch_events == 3)
        await store.close()
        assert [event.path async for event in watch] == ["/a/0", "/a/1", "/a/2"]

    run(test)


@pytest.mark.slow
def test_other_tasks_have_their_turn(run: Callable[[Test], None]) -> None:
    """A loop over many waiting events does not keep other tasks from running."""

    async def test(store: bk.AsyncMetadataStore) -> None:
        watch = await store.watch("/a")
        await store.apply([bk.Put(f"/a/{n}", b"") for n in range(3_000)])
        await until(lambda: store.metrics().watch_events == 3_000)
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        counting = asyncio.create_task(count())
        await take(watch, 3_000)
        assert turns > 5
        counting.cancel()
        await watch.close()

    run(test)
