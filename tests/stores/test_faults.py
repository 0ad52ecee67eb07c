"""Faults on purpose: what a plan can do to a call."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from batchkeeper.ops import (
    Exists,
    Get,
    IndeterminateError,
    OperationTimeoutError,
    Put,
    StoreClosedError,
    StoreUnavailableError,
)
from batchkeeper.stores import ConnectOptions, connect
from batchkeeper.stores.faults import Call, Fault, FaultyBackend


def far() -> float:
    return time.monotonic() + 60


@pytest.fixture
def faulty() -> Iterator[FaultyBackend]:
    backend = FaultyBackend(connect(f"memory://{uuid.uuid4().hex}", ConnectOptions()))
    yield backend
    backend.close()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as executor:
        yield executor


def test_without_a_fault_calls_pass_and_are_recorded(faulty: FaultyBackend) -> None:
    """A call that the plan leaves alone gets the store's answers; kinds and paths are kept."""
    (stat,) = faulty.write([Put("/a", b"1")], far())
    assert faulty.read([Get("/a"), Exists("/b")], far()) == [(b"1", stat), False]
    write, read = faulty.calls
    assert (write.number, write.method, write.kinds, write.paths) == (0, "write", ["put"], ["/a"])
    assert (read.number, read.method, read.kinds) == (1, "read", ["get", "exists"])
    assert faulty.limits.write_ops > 0


def test_held_calls_are_applied_in_the_order_of_their_release(
    faulty: FaultyBackend, pool: ThreadPoolExecutor
) -> None:
    """Calls held before they are applied reach the store when released, in that order."""
    faulty.plan = lambda call: Fault(hold="before")
    first = pool.submit(faulty.write, [Put("/a", b"")], far())
    faulty.wait_for_calls(1)
    second = pool.submit(faulty.write, [Put("/b", b"")], far())
    calls = faulty.wait_for_calls(2)
    assert not first.done()
    calls[1].release()
    later = second.result(10)[0]
    calls[0].release()
    assert first.result(10)[0].revision > later.revision


def test_an_answer_can_be_held_after_the_call_was_applied(
    faulty: FaultyBackend, pool: ThreadPoolExecutor
) -> None:
    """A call held after it was applied is seen by others before its own answer comes."""
    applied = threading.Event()

    def plan(call: Call) -> Fault | None:
        return Fault(hold="after") if call.method == "write" else None

    faulty.plan = plan
    future = pool.submit(faulty.write, [Put("/a", b"")], far())
    future.add_done_callback(lambda _: applied.set())
    (call,) = faulty.wait_for_calls(1)
    while faulty.read([Exists("/a")], far()) != [True]:
        pass
    assert not applied.is_set()
    call.release()
    assert future.result(10)[0].version == 0


@pytest.mark.parametrize("applied", [False, True])
def test_an_error_is_raised_before_or_after_the_call_is_applied(
    faulty: FaultyBackend, applied: bool
) -> None:
    """A fault's error comes in place of the answers, with the call applied or not."""
    error = StoreUnavailableError("on purpose")
    faulty.plan = lambda call: Fault(error=error, applied=applied) if call.number == 0 else None
    with pytest.raises(StoreUnavailableError, match="on purpose"):
        faulty.write([Put("/a", b"")], far())
    assert faulty.read([Exists("/a")], far()) == [applied]


def test_a_deadline_ends_a_hold(faulty: FaultyBackend) -> None:
    """A held call ends at its deadline, and says whether it may have been applied."""
    faulty.plan = lambda call: Fault(hold="before")
    with pytest.raises(OperationTimeoutError) as never_sent:
        faulty.write([Put("/a", b"")], time.monotonic())
    assert never_sent.value.outcome == "not_applied"
    faulty.plan = lambda call: Fault(hold="after")
    with pytest.raises(IndeterminateError):
        faulty.write([Put("/a", b"")], time.monotonic())


def test_close_ends_the_held_calls(faulty: FaultyBackend, pool: ThreadPoolExecutor) -> None:
    """A close ends what is held with StoreClosedError, and later calls are refused."""
    faulty.plan = lambda call: Fault(hold="before")
    held = pool.submit(faulty.write, [Put("/a", b"")], far())
    faulty.wait_for_calls(1)
    faulty.close()
    with pytest.raises(StoreClosedError):
        held.result(10)
    with pytest.raises(StoreClosedError):
        faulty.read([Get("/a")], far())


def test_waiting_for_calls_that_do_not_come_ends(faulty: FaultyBackend) -> None:
    """Waiting for more calls than arrive raises TimeoutError with the numbers."""
    with pytest.raises(TimeoutError, match="0 calls instead of 1"):
        faulty.wait_for_calls(1, timeout=0.0)
