"""Bulk work with threads: outcomes in order, read-ahead with a bound, and early ends."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from batchkeeper.batching import MetadataStore
from batchkeeper.ops import (
    ABSENT,
    BadVersionError,
    Delete,
    Exists,
    Get,
    GetChildren,
    InvalidPathError,
    InvalidSettingError,
    NotFoundError,
    Operation,
    Outcome,
    Put,
    QueueFullError,
    StoreClosedError,
    StoreUnavailableError,
    UnsupportedError,
    ValueTooLargeError,
)
from batchkeeper.testing.faults import Call, Fault, Plan

from .faulty import MakeBackend, OpenOn, release_all
from .waiting import PATIENCE, until


@pytest.fixture
def store(make_backend: MakeBackend, open_on: OpenOn) -> MetadataStore:
    return open_on(make_backend())


def puts(numbers: Iterable[int]) -> Iterator[Put]:
    return (Put(f"/{number}", b"") for number in numbers)


def test_apply_gives_one_outcome_for_each_in_order(store: MetadataStore) -> None:
    """Outcomes come in the order given, each with the very operation, a result or an error."""
    ops: list[Operation] = [
        Put("/a", b"1", ABSENT),
        Put("/a", b"2", 7),
        Get("/a"),
        Delete("/missing"),
        Exists("/a"),
        GetChildren("/"),
        Delete("/a", 0),
        Get("/a"),
    ]
    outcomes = store.apply(ops)
    assert all(outcome.op is op for outcome, op in zip(outcomes, ops, strict=True))
    results: list[Any] = [outcome.result for outcome in outcomes]
    assert [type(outcome.error) for outcome in outcomes] == [
        type(None),
        BadVersionError,
        type(None),
        NotFoundError,
        *[type(None)] * 4,
    ]
    assert [outcome.ok for outcome in outcomes] == [True, False, True, False, *[True] * 4]
    assert results[0].version == 0
    assert results[2].value == b"1"
    assert results[4] is True
    assert (results[6], results[7]) == (None, None)
    assert all(outcome.result is None for outcome in outcomes if not outcome.ok)


def test_get_many_gives_what_each_get_would(store: MetadataStore) -> None:
    """In the order given, after the writes before it; bad input is refused before any read."""
    paths = [f"/{number}" for number in range(700)]
    puts = [store.put(path, path.encode()) for path in paths]
    found = store.get_many(iter([*paths, "/missing", "/1"]))
    assert [one and (one.value, one.stat) for one in found] == [
        *((put.result().path.encode(), put.result()) for put in puts),
        None,
        (b"/1", puts[1].result()),
    ]
    assert store.get_many([]) == []
    before = store.metrics().operations["get"]
    for wrong, reason in (
        ("/1", "one path"),
        ("", "one path"),
        (["/1", "1"], "start with"),
        (["/1", None], "must be a str"),
    ):
        with pytest.raises(InvalidPathError, match=reason):
            store.get_many(wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidSettingError):
        store.get_many(["/1"], timeout=-1.0)
    assert store.metrics().operations["get"] == before


def test_get_many_raises_the_first_error(make_backend: MakeBackend, open_on: OpenOn) -> None:
    """The error names its path, and the store goes on."""
    gone = iter([Fault(error=StoreUnavailableError("gone"))])
    store = open_on(make_backend(lambda call: next(gone, None)))
    with pytest.raises(StoreUnavailableError) as caught:
        store.get_many(["/a", "/b"], timeout=0.2)
    assert caught.value.path == "/a"
    assert store.get_many(["/a"]) == [None]
    store.close()
    with pytest.raises(StoreClosedError):
        store.get_many(["/a"])


def test_nothing_gives_nothing(store: MetadataStore) -> None:
    """Without operations there are no outcomes."""
    assert store.apply([]) == []
    assert list(store.apply_stream(iter(()))) == []


def test_bad_operations_are_their_own_outcomes(make_backend: MakeBackend, open_on: OpenOn) -> None:
    """An operation that a call would refuse ends with that error; the others are executed."""
    store = open_on(make_backend(value_bytes=10))
    ops: list[Any] = [
        Put("/large", bytes(11)),
        Put("/fits", bytes(10)),
        Put("/ephemeral", b"", ephemeral=True),
        "put /a",
        Put("/after", b""),
    ]
    errors = [type(outcome.error) for outcome in store.apply(ops)]
    assert errors == [
        ValueTooLargeError,
        type(None),
        UnsupportedError,
        InvalidSettingError,
        type(None),
    ]


def test_a_failed_request_is_its_operations_outcome(
    make_backend: MakeBackend, open_on: OpenOn
) -> None:
    """An error of a whole request is the outcome of each operation in it, as a copy of its own."""
    store = open_on(make_backend(lambda call: Fault(error=StoreUnavailableError("gone"))))
    outcomes = store.apply(puts(range(5)))
    assert [type(outcome.error) for outcome in outcomes] == [StoreUnavailableError] * 5
    assert len({id(outcome.error) for outcome in outcomes}) == 5


def test_apply_waits_where_the_queue_is_full(make_backend: MakeBackend, open_on: OpenOn) -> None:
    """A bulk call fills the queue and waits, whatever on_full says, and never goes singly."""
    for on_full in ("single", "block", "raise"):
        store = open_on(make_backend(), write_queue_size=3, on_full=on_full, max_ops=2)
        outcomes = store.apply(puts(range(200)))
        assert all(outcome.ok for outcome in outcomes)
        assert store.metrics().singles.operations == 0


@pytest.mark.slow
def test_waiting_for_room_ends_at_the_operations_deadline(
    make_backend: MakeBackend, open_on: OpenOn, deaf: Any
) -> None:
    """The timeout applies to each operation, also while it waits for room in the queue."""
    settings: dict[str, Any] = {"write_queue_size": 1, "max_in_flight": 1, "max_ops": 1}
    store = open_on(make_backend(deaf), on_full="block", **settings)
    store.put("/sent", b"")
    store.put("/queued", b"")
    outcomes = store.apply(puts(range(3)), timeout=0.2)
    assert [type(outcome.error) for outcome in outcomes] == [QueueFullError] * 3


@pytest.mark.parametrize("timeout", [0, -1, "1", True])
def test_a_wrong_timeout_is_refused_by_the_call(store: MetadataStore, timeout: Any) -> None:
    """An invalid timeout is no operation's outcome: the call itself raises before it starts."""
    for call in (store.apply, store.apply_stream):
        with pytest.raises(InvalidSettingError, match="timeout must be a number of seconds"):
            call([Get("/a")], timeout=timeout)


def test_apply_stream_starts_at_the_first_next(make_backend: MakeBackend, open_on: OpenOn) -> None:
    """Nothing is taken from the source, and nothing sent, until the first outcome is asked for."""
    backend = make_backend()
    store = open_on(backend)
    taken: list[int] = []

    def source() -> Iterator[Operation]:
        for number in range(3):
            taken.append(number)
            yield Put(f"/{number}", b"")

    stream = store.apply_stream(source())
    assert taken == []
    assert backend.calls == []
    assert next(stream).ok
    assert taken
    assert [outcome.op.path for outcome in stream] == ["/1", "/2"]


def test_apply_stream_reads_ahead_no_more_than_the_queues_hold(
    make_backend: MakeBackend, open_on: OpenOn, hold_all: Plan, pool: ThreadPoolExecutor
) -> None:
    """While the first outcome is outstanding, it takes only as many as the larger queue holds."""
    backend = make_backend(hold_all)
    store = open_on(backend, write_queue_size=10, read_queue_size=4, max_ops=2, max_in_flight=20)
    taken: list[int] = []

    def source() -> Iterator[Operation]:
        for number in range(50):
            taken.append(number)
            yield Put(f"/{number}", b"") if number % 2 else Get(f"/{number}")

    stream = store.apply_stream(source())
    first = pool.submit(next, stream)
    until(lambda: sum(len(call.paths) for call in backend.wait_for_calls(0)) == 10)
    assert len(taken) == 10
    assert not first.done()
    release_all(backend)
    assert first.result(PATIENCE).op.path == "/0"
    for number, outcome in enumerate(stream, 1):
        assert outcome.op.path == f"/{number}"
        assert len(taken) <= number + 1 + 10
    assert number == 49


def test_apply_stream_reads_ahead_no_more_bytes_than_the_queues_hold(
    make_backend: MakeBackend, open_on: OpenOn, hold_all: Plan, pool: ThreadPoolExecutor
) -> None:
    """Operations that were sent count as well, until their outcomes are yielded."""
    backend = make_backend(hold_all)
    store = open_on(backend, max_queued_bytes=500, max_ops=1, max_in_flight=50)
    taken: list[int] = []

    def source() -> Iterator[Operation]:
        for number in range(100, 150):
            taken.append(number)
            yield Put(f"/{number}", bytes(96))

    first = pool.submit(next, stream := store.apply_stream(source()))
    until(lambda: len(taken) >= 5)
    backend.wait_for_calls(5)
    assert len(taken) == 5
    release_all(backend)
    assert first.result(PATIENCE).ok
    assert sum(outcome.ok for outcome in stream) == 49


def test_operations_of_several_kinds_keep_to_the_bytes_together(
    make_backend: MakeBackend, open_on: OpenOn, hold_all: Plan, pool: ThreadPoolExecutor
) -> None:
    """A list of puts and reads fills the queue of writes no further than its bytes."""
    backend = make_backend(hold_all)
    store = open_on(backend, max_queued_bytes=500, max_in_flight=1)
    store.put("/under way", b"")
    backend.wait_for_calls(1)
    ops: list[Operation] = [
        Get("/0"),
        *puts(range(4)),
        Put("/4", bytes(300)),
        Put("/5", bytes(300)),
    ]
    applying = pool.submit(store.apply, ops)
    until(lambda: store.metrics().writes.queued >= 5)
    assert store.metrics().queued_bytes <= 500
    backend.plan = None
    release_all(backend)
    assert all(outcome.ok for outcome in applying.result(PATIENCE))


def test_apply_stream_of_gets_holds_no_more_bytes_than_the_queues(
    make_backend: MakeBackend, open_on: OpenOn
) -> None:
    """The number of gets read ahead depends on the size of the values returned so far."""
    store = open_on(make_backend(), max_queued_bytes=10_000)
    for number in range(10):
        store.put(f"/large/{number}", bytes(1000))
    store.flush()
    taken = given = 0

    def source() -> Iterator[Operation]:
        nonlocal taken
        for taken in range(1, 501):
            yield Get(f"/large/{taken % 10}")

    ahead = []
    for given, outcome in enumerate(store.apply_stream(source()), 1):
        assert outcome.result is not None
        ahead.append(taken - given)
    assert given == 500
    assert max(ahead) < 64 + 1
    assert max(ahead[100:]) <= 10


def test_gets_of_small_values_are_read_ahead_as_far_as_the_queues_hold(
    make_backend: MakeBackend, open_on: OpenOn
) -> None:
    """Small values, and missing ones, do not hold a stream up."""
    store = open_on(make_backend())
    store.put("/a", b"1").result(PATIENCE)
    for path in ("/a", "/missing"):
        stream = store.apply_stream([Get(path)] * 5000)
        assert next(stream).ok
        assert sum(1 for _ in stream) == 4999
    assert len(store.apply([Get("/a")] * 5000)) == 5000


@pytest.mark.parametrize(("value", "later"), [(b"1", 1024), (bytes(100_000), 256)])
def test_a_bulk_call_begins_with_as_many_gets_as_the_last_values_suggest(
    make_backend: MakeBackend,
    open_on: OpenOn,
    hold_all: Plan,
    pool: ThreadPoolExecutor,
    value: bytes,
    later: int,
) -> None:
    """The first call of a store knows nothing; one after small values need not be as careful."""
    backend = make_backend()
    store = open_on(backend)
    store.put("/a", value).result(PATIENCE)
    for begins_with in (256, later):
        backend.plan = hold_all
        before = store.metrics().reads.operations
        getting = pool.submit(store.get_many, ["/a"] * 3000)

        def begun(before: int = before) -> int:
            reads = store.metrics().reads
            return reads.operations - before + reads.queued

        until(lambda begun=begun, least=begins_with: begun() >= least)
        assert begun() == begins_with
        release_all(backend)
        assert len(getting.result(PATIENCE)) == 3000


def test_an_endless_source_is_no_problem(store: MetadataStore) -> None:
    """Outcomes come while the source still goes on; leaving early ends the work."""
    stream = store.apply_stream(puts(itertools.count()))
    assert [outcome.op.path for outcome in itertools.islice(stream, 1000)] == [
        f"/{number}" for number in range(1000)
    ]
    stream.close()  # type: ignore[attr-defined]
    store.flush()
    metrics = store.metrics()
    assert (metrics.writes.queued, metrics.writes.waiting, metrics.queued_bytes) == (0, 0, 0)


def test_an_exception_of_the_source_comes_after_the_outcomes(store: MetadataStore) -> None:
    """Outcomes of operations before the source's failure are yielded first, then its exception."""
    failure = RuntimeError("the file is broken")

    def source() -> Iterator[Operation]:
        yield from puts(range(20))
        raise failure

    stream = store.apply_stream(source())
    outcomes = list(itertools.islice(stream, 20))
    assert [outcome.op.path for outcome in outcomes] == [f"/{number}" for number in range(20)]
    assert all(outcome.ok for outcome in outcomes)
    with pytest.raises(RuntimeError) as caught:
        next(stream)
    assert caught.value is failure
    with pytest.raises(RuntimeError, match="the file is broken"):
        store.apply(source())


def test_what_is_no_source_is_refused(store: MetadataStore) -> None:
    """Something that cannot be iterated over raises TypeError."""
    with pytest.raises(TypeError, match="not iterable"):
        store.apply(5)  # type: ignore[arg-type]


def test_closing_early_cancels_what_is_queued_and_waits_for_what_was_sent(
    make_backend: MakeBackend, open_on: OpenOn, hold_all: Plan, pool: ThreadPoolExecutor
) -> None:
    """After close() nothing of the stream is under way, and nothing more is sent."""
    backend = make_backend(hold_all)
    store = open_on(backend, max_ops=1, max_in_flight=1, write_queue_size=5, read_queue_size=1)
    stream = store.apply_stream(puts(range(100)))
    first = pool.submit(next, stream)
    until(lambda: store.metrics().writes.queued == 4 and backend.calls)
    backend.calls[0].release()
    assert first.result(PATIENCE).op.path == "/0"
    backend.wait_for_calls(2)
    closing = pool.submit(stream.close)  # type: ignore[attr-defined]
    until(lambda: store.metrics().writes.queued == 0)
    assert not closing.done()
    release_all(backend)
    closing.result(PATIENCE)
    assert [call.paths for call in backend.calls] == [["/0"], ["/1"]]
    assert store.apply([Exists(f"/{number}") for number in range(3)]) == [
        Outcome(Exists("/0"), True),
        Outcome(Exists("/1"), True),
        Outcome(Exists("/2"), False),
    ]


@pytest.mark.slow
def test_a_store_closed_under_a_stream_ends_the_stream(
    make_backend: MakeBackend, open_on: OpenOn, pool: ThreadPoolExecutor
) -> None:
    """After the store is closed, later operations have StoreClosedError as their outcome."""
    backend = make_backend()
    store = open_on(backend)
    running = pool.submit(store.apply, puts(range(20_000)))
    until(lambda: backend.calls)
    store.close()
    outcomes = running.result(PATIENCE)
    assert len(outcomes) == 20_000
    ends = [type(outcome.error) for outcome in outcomes]
    assert set(ends) <= {type(None), StoreClosedError}
    # One place where it was closed: all before it was done, nothing after it.
    assert ends == sorted(ends, key=lambda end: end is StoreClosedError)


def test_streams_of_many_threads_keep_to_themselves(
    store: MetadataStore, pool: ThreadPoolExecutor
) -> None:
    """Each stream gets its own outcomes in its own order."""

    def work(thread: int) -> list[str]:
        ops = (Put(f"/{thread}/{number}", b"") for number in range(500))
        return [outcome.op.path for outcome in store.apply_stream(ops) if outcome.ok]

    found = list(pool.map(work, range(8)))
    assert found == [[f"/{thread}/{number}" for number in range(500)] for thread in range(8)]


class _Circle:
    """Operations that refer to their own stream: only the garbage collector can free both."""

    stream: Iterator[Outcome]

    def __iter__(self) -> Iterator[Operation]:
        return iter([Put(f"/{number}", b"") for number in range(50)])


def test_a_stream_that_the_collector_finds_cancels_without_waiting(
    make_backend: MakeBackend, open_on: OpenOn
) -> None:
    """The collector may run in a sender, and must not wait there for that sender's operations."""
    collected = []

    def collect_in_the_sender(call: Call) -> None:
        if call.paths == ["/2"]:
            collected.append(gc.collect())

    backend = make_backend(lambda call: Fault(hold="before") if call.number == 1 else None)
    store = open_on(backend, max_in_flight=1, max_ops=1)
    gc.disable()
    try:
        ops = _Circle()
        ops.stream = store.apply_stream(ops)
        assert next(ops.stream).ok
        held = backend.wait_for_calls(2)[1]
        backend.plan = collect_in_the_sender
        del ops
        held.release()
        last = store.put("/last", b"")
        assert last.result(PATIENCE).version == 0
    finally:
        gc.enable()
    assert collected
    assert [path for call in backend.calls for path in call.paths] == ["/0", "/1", "/2", "/last"]
    store.flush()
    assert store.metrics().queued_bytes == 0
