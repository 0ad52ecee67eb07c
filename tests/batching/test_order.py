"""The order of a path holds across batches in flight, single executions, waits and cancels."""

from __future__ import annotations

import random
import threading
import time
from concurrent.futures import wait
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from batchkeeper.ops import ABSENT, BadVersionError, Delete, Exists, Get, NotFoundError, Put
from batchkeeper.testing.faults import FaultyBackend, Plan

from .faulty import MakeBackend, OpenOn
from .waiting import PATIENCE, AnyFuture


def chaos(backend: FaultyBackend, seed: int, stop: threading.Event) -> None:
    """Release held calls in a random order, until stopped."""
    dice = random.Random(seed)
    released: set[int] = set()
    while not stop.is_set():
        held = [call for call in backend.wait_for_calls(0) if call.number not in released]
        if held:
            call = dice.choice(held)
            released.add(call.number)
            call.release()
        else:
            time.sleep(0)


PATHS = st.sampled_from(["/a", "/b", "/c"])
VALUES = st.binary(max_size=4)
#: An operation to submit, or None to cancel one of those submitted last.
STEPS = st.lists(
    st.one_of(
        st.builds(Put, PATHS, VALUES, st.sampled_from([None, None, ABSENT, 0, 1])),
        st.builds(Delete, PATHS),
        st.builds(Get, PATHS),
        st.builds(Exists, PATHS),
        st.none(),
    ),
    min_size=1,
    max_size=60,
)


def check(model: dict[str, tuple[bytes, int]], op: Any, future: AnyFuture) -> None:
    """Check how an operation ended against a dict of values and versions, and change the dict."""
    there = model.get(op.path)
    error = future.exception(0)
    match op:
        case Put():
            version = ABSENT if there is None else there[1]
            if op.expected_version in {None, version}:
                assert future.result().version == version + 1
                model[op.path] = (op.value, version + 1)
            else:
                assert type(error) is BadVersionError
                assert error.actual == version
        case Delete():
            assert (error is None) == (model.pop(op.path, None) is not None)
            assert isinstance(error, NotFoundError | None)
        case Get():
            found = future.result()
            assert (found and (found.value, found.stat.version)) == there
        case Exists():
            assert future.result() == (there is not None)


@settings(
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    steps=STEPS,
    seed=st.integers(0, 2**32),
    on_full=st.sampled_from(["single", "block"]),
    enabled=st.booleans(),
)
def test_operations_on_a_path_take_effect_in_order(
    make_backend: MakeBackend,
    open_on: OpenOn,
    hold_all: Plan,
    steps: list[Any],
    seed: int,
    on_full: str,
    enabled: bool,
) -> None:
    """Results are as if operations ran one by one, whatever is cancelled and however calls end."""
    backend = make_backend(hold_all)
    store = open_on(
        backend,
        enabled=enabled,
        max_ops=3,
        max_in_flight=3,
        write_queue_size=3,
        read_queue_size=3,
        max_singles=2,
        on_full=on_full,
    )
    stop = threading.Event()
    releasing = threading.Thread(target=chaos, args=(backend, seed, stop))
    releasing.start()
    dice = random.Random(seed)
    submitted: list[tuple[Any, AnyFuture]] = []
    try:
        for op in steps:
            if op is not None:
                submitted.append((op, store.submit(op)))
            elif submitted:
                dice.choice(submitted[-6:])[1].cancel()
        assert wait([future for _, future in submitted], PATIENCE).not_done == set()
    finally:
        stop.set()
        releasing.join()
    model: dict[str, tuple[bytes, int]] = {}
    for op, future in submitted:
        if not future.cancelled():
            check(model, op, future)
    metrics = store.metrics()
    assert (metrics.reads.queued, metrics.writes.queued, metrics.singles.queued) == (0, 0, 0)
    assert metrics.queued_bytes == 0
    store.close()


def test_no_path_is_written_twice_at_a_time(make_backend: MakeBackend, open_on: OpenOn) -> None:
    """Among the running writes, in all batches and singles, no path occurs twice."""
    under_way: set[str] = set()
    lock = threading.Lock()
    twice: list[str] = []
    backend = make_backend()
    write = backend.write

    def watched(requests: Any, deadline: float) -> Any:
        paths = [request.path for request in requests]
        with lock:
            twice.extend(set(paths) & under_way)
            twice.extend({path for path in paths if paths.count(path) > 1})
            under_way.update(paths)
        answers = write(requests, deadline)
        with lock:
            under_way.difference_update(paths)
        return answers

    backend.write = watched  # type: ignore[method-assign]
    store = open_on(backend, max_ops=4, write_queue_size=6, max_singles=4)
    futures = [store.put(f"/{number % 7}", b"") for number in range(3000)]
    assert wait(futures, PATIENCE).not_done == set()
    assert not twice
    assert [f.result().version for f in futures] == [number // 7 for number in range(3000)]


def test_reads_wait_only_for_writes_of_their_own_path(
    make_backend: MakeBackend, open_on: OpenOn, hold_all: Plan
) -> None:
    """A read passes the writes of other paths, and sees the write of its own."""
    backend = make_backend(hold_all)
    store = open_on(backend, max_in_flight=1)
    writes = [store.put(f"/{number}", b"") for number in range(50)]
    backend.wait_for_calls(1)
    other, own = store.exists("/other"), store.exists("/49")
    read = backend.wait_for_calls(2)[1]
    assert (read.method, read.paths) == ("read", ["/other"])
    read.release()
    assert other.result(PATIENCE) is False
    backend.plan = None
    backend.calls[0].release()
    assert own.result(PATIENCE) is True
    assert wait(writes, PATIENCE).not_done == set()
