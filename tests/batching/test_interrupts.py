"""Ctrl-C in a call of the store: at whatever point it comes, nothing hangs afterwards."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest

from batchkeeper.batching import MetadataStore
from batchkeeper.batching.engine import engine_of
from batchkeeper.batching.lane import Lane
from batchkeeper.batching.restoring import restore
from batchkeeper.ops import Get, MetadataStoreError, Put, StoreClosedError
from batchkeeper.testing.faults import FaultyBackend, Plan

from .faulty import MakeBackend, OpenOn, release_all
from .interruption import interrupted
from .waiting import PATIENCE, AnyFuture, until


@pytest.mark.slow
@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize("how", ["put", "again", "large", "sooner", "apply", "single"])
def test_an_interrupted_call_leaves_nothing_behind(
    make_backend: MakeBackend,
    open_on: OpenOn,
    hold_all: Plan,
    pool: ThreadPoolExecutor,
    held: bool,
    how: str,
) -> None:
    """Interrupted at any point of a submission: flush returns, the path and the room are free.

    For an operation alone on its path, one behind another, one that finds others in the intake,
    one whose deadline is the first of all, many at once, and a single execution; with waiting
    senders, and with busy senders.
    """
    for at in range(1, 1000):
        backend = make_backend(hold_all if held else None)
        store = open_on(backend, max_in_flight=1, write_queue_size=2 if how == "single" else 100)
        futures: list[Any] = []
        if held or how == "single":
            backend.plan = hold_all
            futures.append(store.put("/first", b""))
            backend.wait_for_calls(1)
        if how == "large":
            futures += [store.put(path, b"") for path in ("/first", "/a", "/arrived", "/a")]
        if how == "single":
            futures += [store.put(f"/queued/{number}", b"") for number in range(2)]
        stream = store.apply_stream([Put("/a", b""), Get("/a"), Put("/b", b"")])
        calls: dict[str, Callable[[], object]] = {
            "put": lambda store=store: store.put("/a", b""),  # type: ignore[misc]
            "again": lambda store=store: store.put("/first", b""),  # type: ignore[misc]
            "large": lambda store=store: store.put("/a", bytes(5000)),  # type: ignore[misc]
            "sooner": lambda store=store: store.put("/a", b"", timeout=5.0),  # type: ignore[misc]
            "apply": lambda stream=stream: next(stream),  # type: ignore[misc]
            "single": lambda store=store: store.put("/a", b""),  # type: ignore[misc]
        }
        if how == "apply" and held:
            backend.plan = None
            backend.calls[0].release()
        went_through = not interrupted(at, calls[how])
        del stream, calls
        release_all(backend)
        after = [store.put(path, b"") for path in ("/a", "/b", "/first", "/c")]
        pool.submit(store.flush).result(PATIENCE)
        if how in {"put", "sooner"} and held:
            assert after[0].result(0).version == int(went_through)
        for future in (*futures, *after):
            assert future.result(0).version in {0, 1, 2, 3}
        metrics = store.metrics()
        for lane in (metrics.reads, metrics.writes, metrics.singles):
            assert (lane.queued, lane.waiting, lane.in_flight) == (0, 0, 0), at
        assert metrics.queued_bytes == 0
        pool.submit(store.close).result(PATIENCE)
        if went_through:
            assert at > 2
            return
    raise AssertionError("it never got through")


class Scene:
    """A store whose calls are held, what was submitted to it, and the call to interrupt."""

    def __init__(self, store: MetadataStore, backend: FaultyBackend) -> None:
        self.store = store
        self.backend = backend
        self.futures: list[AnyFuture] = []
        self.held = True  # until the test releases them
        self.call: Callable[[], object] = store.metrics
        self.then: Callable[[], object] = lambda: None
        # A put that came before the first sender waits would start a second one.
        until(lambda: engine_of(store).writes.idle)

    def hold(self) -> None:
        """Submit a put, and wait until its call is held and no sender waits."""
        calls = len(self.backend.calls)
        self.futures.append(self.store.put(f"/held/{calls}", b""))
        self.backend.wait_for_calls(calls + 1)
        until(lambda: not engine_of(self.store).writes.idle)

    def release_soon(self) -> None:
        """Release all calls once the interrupted one may wait for them."""
        self.held = False
        threading.Timer(0.01, release_all, [self.backend]).start()


def test_what_a_sender_has_taken_goes_on(backend: FaultyBackend, open_on: OpenOn) -> None:
    """An interrupted submission leaves its operation alone if it was sent meanwhile."""
    store = open_on(backend, max_in_flight=1)
    sent = store.put("/a", b"")
    backend.wait_for_calls(1)
    engine = engine_of(store)
    with engine._lock:
        restore(engine.queues, [sent._entry])
    behind = store.put("/a", b"")
    release_all(backend)
    assert [future.result(PATIENCE).version for future in (sent, behind)] == [0, 1]


def second_sender(scene: Scene) -> None:
    """A put for which a sender is started."""
    scene.hold()
    scene.call = lambda: scene.store.put("/a", b"")


def in_haste(scene: Scene) -> None:
    """A put with an earlier deadline than all others."""
    scene.hold()
    scene.hold()
    scene.call = lambda: scene.store.put("/a", b"", timeout=0.04)


def behind_another(scene: Scene) -> None:
    """A large put, with which the small put of another thread on its path is taken in."""
    scene.hold()
    scene.hold()
    queues = engine_of(scene.store).queues

    def put() -> None:
        appended = threading.Event()
        take_in = queues.take_in

        def with_another(own: Lane | None = None) -> None:
            if queues.intake:  # It has arrived there.
                # As if the other thread had not waited for the lock, but appended without it.
                del queues.take_in  # type: ignore[method-assign]
                thread = threading.Thread(target=append, daemon=True)
                thread.start()
                appended.wait(PATIENCE)
                thread.join()
            take_in(own)

        def append() -> None:
            queues.writes.allowance = 128
            scene.futures.append(scene.store.put("/a", b""))
            appended.set()

        queues.take_in = with_another  # type: ignore[method-assign]
        scene.store.put("/a", bytes(5000))

    scene.call = put


def cancel(scene: Scene) -> None:
    """The cancellation of a put, with another put and gets behind it."""
    scene.hold()
    scene.hold()
    cancelled = scene.store.put("/a", b"")
    scene.futures += [scene.store.get("/a"), scene.store.get("/a"), scene.store.put("/a", b"")]
    scene.call = cancelled.cancel


def cancel_for_another_sender(scene: Scene) -> None:
    """The cancellation of a get, with a put behind it for which a sender is started."""
    scene.hold()
    for number in (1, 2):
        scene.futures.append(scene.store.get(f"/held/{number}"))
        scene.backend.wait_for_calls(1 + number)
    cancelled = scene.store.get("/a")
    scene.futures.append(scene.store.put("/a", b""))
    scene.call = cancelled.cancel

    def the_put_is_sent() -> None:
        assert not cancelled.cancelled() or scene.backend.wait_for_calls(4)

    scene.then = the_put_is_sent


def cancel_for_room(scene: Scene) -> None:
    """The cancellation of a put for whose room another thread waits."""
    scene.hold()
    scene.hold()
    queued = scene.store.put("/queued", b"")
    waiting = threading.Thread(
        target=lambda: scene.futures.append(scene.store.put("/waiting", b"")), daemon=True
    )
    waiting.start()
    until(lambda: scene.store.metrics().writes.waiting)
    scene.call = queued.cancel


def flush(scene: Scene) -> None:
    """A flush while reads and writes wait for a write."""
    scene.hold()
    scene.hold()
    scene.futures += [scene.store.put("/a", b""), scene.store.get("/held/0")]
    scene.release_soon()
    scene.call = scene.store.flush


def flush_lingering(scene: Scene) -> None:
    """A flush that wakes a sender which waits for the time of its batch."""
    scene.hold()
    scene.futures += [scene.store.put("/a", b"")]
    until(lambda: engine_of(scene.store).writes.watched)
    scene.release_soon()
    scene.call = scene.store.flush


def awaited(scene: Scene) -> None:
    """The wait for a put that is sent beside another one."""
    scene.hold()
    scene.futures.append(scene.store.put("/a", b""))
    until(lambda: engine_of(scene.store).writes.watched)
    scene.release_soon()
    scene.call = scene.futures[-1].result


def metrics(scene: Scene) -> None:
    """A look at the metrics, which takes in what has arrived."""
    scene.hold()
    scene.hold()
    scene.futures += [scene.store.put("/a", b""), scene.store.put("/a", b"")]
    scene.call = scene.store.metrics


def close(scene: Scene) -> None:
    """The end of the store."""
    scene.hold()
    scene.hold()
    scene.futures += [scene.store.get("/b"), scene.store.put("/a", b"")]
    assert engine_of(scene.store).queues.intake
    scene.release_soon()
    scene.call = scene.store.close

    def a_put_ends() -> None:
        with suppress(StoreClosedError):
            scene.store.put("/later", b"").exception(PATIENCE)

    scene.then = a_put_ends


def put_late(store: MetadataStore) -> None:
    """Put a value that has very little time."""
    store.put("/late", b"", timeout=0.05).result(PATIENCE)


@pytest.mark.slow
@pytest.mark.parametrize(
    "prepare",
    [
        second_sender,
        in_haste,
        behind_another,
        cancel,
        cancel_for_another_sender,
        cancel_for_room,
        flush,
        flush_lingering,
        awaited,
        metrics,
        close,
    ],
    ids=lambda prepare: prepare.__name__,
)
def test_an_interrupted_call_leaves_nobody_waiting(
    make_backend: MakeBackend,
    open_on: OpenOn,
    hold_all: Plan,
    pool: ThreadPoolExecutor,
    prepare: Callable[[Scene], None],
    pytestconfig: pytest.Config,
) -> None:
    """Interrupted at any point: all other operations end, and later ones at their deadlines.

    Most points are those of several scenes. So for each change, every second one is tried.
    """
    for at in range(1, 1000, 1 if pytestconfig.option.full else 2):
        backend = make_backend(hold_all)
        store = open_on(
            backend,
            max_in_flight=2,
            write_queue_size=1 if prepare is cancel_for_room else 100,
            on_full="block",
            max_delay=60 if prepare in {flush_lingering, awaited} else 0.001,
        )
        scene = Scene(store, backend)
        prepare(scene)
        went_through = not interrupted(at, scene.call)
        pool.submit(scene.then).result()
        if scene.held:
            with pytest.raises(MetadataStoreError):
                pool.submit(put_late, store).result()
        release_all(backend)
        if prepare is close:
            pool.submit(store.close).result(PATIENCE)
            assert all(isinstance(f.exception(PATIENCE), Exception | None) for f in scene.futures)
        else:
            pool.submit(store.flush).result(PATIENCE)
            later = [pool.submit(store.put, path, b"").result(PATIENCE) for path in ("/a", "/b")]
            until(lambda futures=(*scene.futures, *later): all(f.done() for f in futures))
            for future in (*scene.futures, *later):
                future.result(0)
            pool.submit(store.flush).result(PATIENCE)
            # A put that has ended at its deadline may still be at the back end.
            until(lambda store=store: not store.metrics().writes.in_flight)
            found = store.metrics()
            for lane in (found.reads, found.writes):
                assert (lane.queued, lane.waiting, lane.in_flight) == (0, 0, 0), at
            assert found.queued_bytes == 0
            for lane in engine_of(store).queues.all_lanes:
                until(lambda lane=lane: not lane.signalled)
                assert all(sender.ident for sender in lane.senders)
            pool.submit(store.close).result(PATIENCE)
        if went_through:
            assert at > 5
            return
    raise AssertionError("it never got through")
