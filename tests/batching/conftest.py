"""Stores over a memory back end whose calls a test can hold, fail, refuse and count."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Lock
from typing import Any

import pytest

from batchkeeper.batching import BatchingConfig, MetadataStore
from batchkeeper.batching.entry import Entry
from batchkeeper.batching.lane import Lane
from batchkeeper.stores import ConnectOptions, connect
from batchkeeper.stores.backend import Limits
from batchkeeper.testing.faults import Call, Fault, FaultyBackend, Plan

from ..waits import noted_waits
from .faulty import MakeBackend, OpenOn


class _Backend(FaultyBackend):
    """A faulty memory back end with the test's limits."""

    def __init__(self, plan: Plan | None, changes: dict[str, int]) -> None:
        self.url = f"memory://{uuid.uuid4().hex}"
        #: What is below the faults.
        self.inner = connect(self.url, ConnectOptions())
        super().__init__(self.inner, plan)
        #: Tests may change them, as a server does that is found to take less.
        self.allowed = replace(super().limits, **{"in_flight": 4, "singles": 64, **changes})

    @property
    def limits(self) -> Limits:
        return self.allowed


@pytest.fixture
def make_backend() -> Iterator[MakeBackend]:
    """Create back ends from a plan and changes to the limits, and close them after the test."""
    backends: list[FaultyBackend] = []

    def make(plan: Plan | None = None, **limits: int) -> FaultyBackend:
        backends.append(_Backend(plan, limits))
        return backends[-1]

    yield make
    for backend in backends:
        backend.plan = None
        for call in backend.calls:
            call.release()
        backend.close()


@pytest.fixture
def open_on() -> Iterator[OpenOn]:
    """Open stores on back ends, with any settings, and close them at once after the test."""
    stores: list[MetadataStore] = []

    def open_store(
        backend: FaultyBackend, *, operation_timeout: float = 60.0, **settings: Any
    ) -> MetadataStore:
        config = BatchingConfig(**settings)
        stores.append(MetadataStore(backend, config, operation_timeout, "memory://test"))
        return stores[-1]

    yield open_store
    for store in stores:
        store.close(0)


@pytest.fixture
def hold_all() -> Plan:
    """Hold every call before it reaches the store."""
    return lambda call: Fault(hold="before")


@pytest.fixture
def backend(make_backend: MakeBackend, hold_all: Plan) -> FaultyBackend:
    """A back end that holds every call before it reaches the store."""
    return make_backend(hold_all)


class Deaf:
    """A plan whose calls ignore their deadline and a close until ``go`` is set."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.only: int | None = None  # the number of the one call that is deaf

    def __call__(self, call: Call) -> None:
        if self.only is None or call.number == self.only:
            self.go.wait(60)


@pytest.fixture
def deaf(open_on: OpenOn) -> Iterator[Deaf]:
    """Hold every call despite deadlines and ``close``; release them before stores are closed."""
    plan = Deaf()
    yield plan
    plan.go.set()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    """Threads for calls that block."""
    executor = ThreadPoolExecutor(80)
    yield executor
    # The calls end when their store is closed, which may be later than this.
    executor.shutdown(wait=False, cancel_futures=True)


@pytest.fixture
def waits() -> Iterator[Callable[[], int]]:
    """Count the calls of ``pool`` that wait for something now."""
    with noted_waits("ThreadPoolExecutor") as made:
        yield made


@pytest.fixture
def make_lane() -> Callable[..., Lane]:
    """Create lanes without an engine, so that a test can drive their batches."""

    def make(**changes: Any) -> Lane:
        settings = {
            "room": 100,
            "window": 1,
            "op_bytes": 0,
            "max_ops": 10,
            "max_bytes": 1000,
            "max_delay": 1.0,
            "adaptive": False,
            **changes,
        }
        return Lane("writes", True, Lock(), **settings)

    return make


@pytest.fixture
def make_entry() -> Callable[..., Entry]:
    """Create entries of a lane, with ``size`` bytes, submitted at ``now``."""

    def make(lane: Lane, now: float = 0.0, *, size: int = 10) -> Entry:
        value = bytes(size - 2)
        # It has no sink, because nothing waits for it.
        return Entry("put", "/a", value, None, None, {"put": lane}, None, now, 60)  # type: ignore[arg-type]

    return make
