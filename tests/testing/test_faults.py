"""Faults on purpose: what a plan can do to a call."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import batchkeeper as bk
from batchkeeper.ops import (
    Exists,
    Get,
    IndeterminateError,
    OperationTimeoutError,
    Put,
    StoreClosedError,
    StoreUnavailableError,
)
from batchkeeper.stores import Backend, ConnectOptions, connect
from batchkeeper.testing.faults import Call, Fault, FaultyBackend, Plan

from ..waiting import soon


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
    (stat,) = faulty.write([Put("/a", b"1")], soon())
    assert faulty.read([Get("/a"), Exists("/b")], soon()) == [(b"1", stat), False]
    write, read = faulty.calls
    assert (write.number, write.method, write.kinds, write.paths) == (0, "write", ["put"], ["/a"])
    assert (read.number, read.method, read.kinds) == (1, "read", ["get", "exists"])
    assert faulty.limits.write_ops > 0


def test_facets_stay_the_same(faulty: FaultyBackend) -> None:
    """A wrapped facet is one object for the life of the back end, as the protocol promises."""
    assert faulty.scans is not None
    assert faulty.scans is faulty.scans
    assert faulty.history is None


def test_held_calls_are_applied_in_the_order_of_their_release(
    faulty: FaultyBackend, pool: ThreadPoolExecutor
) -> None:
    """Calls held before they are applied reach the store when released, in that order."""
    faulty.plan = lambda call: Fault(hold="before")
    first = pool.submit(faulty.write, [Put("/a", b"")], soon())
    faulty.wait_for_calls(1)
    second = pool.submit(faulty.write, [Put("/b", b"")], soon())
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
    future = pool.submit(faulty.write, [Put("/a", b"")], soon())
    future.add_done_callback(lambda _: applied.set())
    (call,) = faulty.wait_for_calls(1)
    while faulty.read([Exists("/a")], soon()) != [True]:
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
        faulty.write([Put("/a", b"")], soon())
    assert faulty.read([Exists("/a")], soon()) == [applied]


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
    held = pool.submit(faulty.write, [Put("/a", b"")], soon())
    faulty.wait_for_calls(1)
    faulty.close()
    with pytest.raises(StoreClosedError):
        held.result(10)
    with pytest.raises(StoreClosedError):
        faulty.read([Get("/a")], soon())


def test_waiting_for_calls_that_do_not_come_ends(faulty: FaultyBackend) -> None:
    """Waiting for more calls than arrive raises TimeoutError with the numbers."""
    with pytest.raises(TimeoutError, match="0 calls instead of 1"):
        faulty.wait_for_calls(1, timeout=0.0)


# Scans and history


def results(scan: Iterable[Any]) -> list[str]:
    return [found.path for found in scan]


def opened(url: str, plan: Plan | None = None) -> tuple[bk.MetadataStore, FaultyBackend]:
    """Open a store with faults; return it with the wrapper."""
    made: list[FaultyBackend] = []

    def wrap(backend: Backend) -> Backend:
        made.append(FaultyBackend(backend, plan))
        return made[-1]

    return bk.open_store(url, wrap=wrap), made[0]


def test_calls_of_the_facets_pass_and_are_recorded(store_url: str) -> None:
    """Without a fault, scans give the store's results; each page is a call, also the last one."""
    store, faulty = opened(store_url)
    with store:
        store.put("/a/b", b"1").result()
        before = len(faulty.calls)
        assert store.revision() > 0
        assert results(store.scan("/a")) == ["/a/b"]
        assert [[*page.paths] for page in store.scan_pages("/a", values=False)] == [["/a/b"]]
        assert len(store.split("/a", 2)) in {1, 2}
        assert store.delete_recursive("/a").result() == 1
        calls = [(call.method, call.paths) for call in faulty.calls[before:]]
    assert calls == [
        ("revision", []),
        ("scan", ["/a"]),
        ("scan", ["/a"]),
        ("scan_stats", ["/a"]),
        ("scan_stats", ["/a"]),
        ("split", ["/a"]),
        ("delete_recursive", ["/a"]),
    ]


def test_a_scan_fails_at_the_page_that_the_plan_picks(store_url: str) -> None:
    """An error of a page ends the scan, after the pages before it."""
    gone = StoreUnavailableError("gone in the middle")

    def plan(call: Call) -> Fault | None:
        scans = [other for other in faulty.calls if other.method == "scan"]
        return Fault(error=gone) if call.method == "scan" and len(scans) == 2 else None

    store, faulty = opened(store_url)
    with store:
        store.put("/a", b"1").result()
        faulty.plan = plan
        scan = store.scan("/")
        assert next(scan).path == "/a"
        with pytest.raises(StoreUnavailableError, match="gone in the middle"):
            next(scan)
        assert results(scan) == []


@pytest.mark.server
def test_changes_can_be_held_and_fail(fresh_url: Callable[[str], str]) -> None:
    """History goes the same way: a held page comes when it is released, a failed one never."""
    store, faulty = opened(fresh_url("etcd"))
    with store, ThreadPoolExecutor(1) as pool:
        before = store.revision()
        store.put("/a", b"1").result()
        after = store.revision()
        faulty.plan = lambda call: Fault(hold="before") if call.method == "changes" else None
        found = pool.submit(lambda: results(store.changes("/", before, after)))
        (call,) = faulty.wait_for_calls(4)[3:]
        assert not found.done()
        faulty.plan = None
        call.release()
        assert found.result(60) == ["/a"]
        assert faulty.history is faulty.history
        faulty.plan = lambda call: Fault(error=StoreUnavailableError("no history now"))
        with pytest.raises(StoreUnavailableError, match="no history now"):
            next(store.changes("/", before, after))


def test_a_removal_whose_answer_is_held_back_is_unknown(faulty: FaultyBackend) -> None:
    """A write held after it was applied until its deadline ends as unknown."""
    faulty.write([Put("/a", b"")], soon())
    faulty.plan = lambda call: Fault(hold="after")
    assert faulty.scans is not None
    with pytest.raises(IndeterminateError):
        faulty.scans.delete_recursive("/a", 0.01)
    faulty.plan = None
    assert faulty.read([Exists("/a")], soon()) == [False]
