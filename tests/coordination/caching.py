"""Helpers and fixtures for the tests of caches."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

import pytest

import batchkeeper as bk
from batchkeeper.coordination import MetadataCache
from batchkeeper.coordination.entries import NOT_CACHED
from batchkeeper.ops.serdes import json_serde
from batchkeeper.testing import FaultInjector

from ..waiting import PATIENCE, until

__all__ = [
    "Thread",
    "is_cached",
    "loads",
    "memory",
    "opened_store",
    "other_client",
    "seen_requests",
    "size",
    "together",
    "warm",
    "warm_cache",
]

T = TypeVar("T")


def warm(cache: MetadataCache[Any], path: str) -> None:
    """Read a path until the cache has it: its watch is in place then."""

    def cached() -> bool:
        cache.get_with_stat(path)
        return is_cached(cache, path)

    until(cached, "nothing enters the cache")


def is_cached(cache: MetadataCache[Any], path: str) -> bool:
    """Say whether the cache has a path."""
    return cache.get_if_cached(path) is not NOT_CACHED


def size(cache: object) -> int:
    """Return how many entries a cache says that it has."""
    found = re.search(r"entries=(\d+)", repr(cache))
    assert found
    return int(found[1])


def loads(faults: FaultInjector, kind: str, path: str) -> int:
    """Return how many operations of a kind have reached the store for a path."""
    return sum(
        (call_kind, call_path) == (kind, path)
        for call in faults.calls
        for call_kind, call_path in zip(call.kinds, call.paths, strict=False)
    )


@pytest.fixture(name="faults")
def seen_requests() -> FaultInjector:
    """Sees and holds the requests of the store."""
    return FaultInjector()


@pytest.fixture(name="store")
def opened_store(store_url: str, faults: FaultInjector) -> Iterator[bk.MetadataStore]:
    """An empty store of each kind."""
    with bk.open_store(store_url, wrap=faults) as opened:
        yield opened


@pytest.fixture(name="other")
def other_client(store: bk.MetadataStore, store_url: str) -> Iterator[bk.MetadataStore]:
    """Another client of the same store, where there can be one; its writes are not the cache's."""
    if bk.store_kind(store_url).local_directory:
        yield store
        return
    with bk.open_store(store_url) as opened:
        yield opened


@pytest.fixture(name="cache")
def warm_cache(store: bk.MetadataStore) -> Iterator[MetadataCache[Any]]:
    """A cache of JSON whose watch is in place."""
    with MetadataCache(store, "/a", json_serde) as made:
        warm(made, "/a/warm")
        yield made


def memory(faults: FaultInjector | None = None) -> bk.MetadataStore:
    """Open a store in memory, for what does not depend on the store."""
    return bk.open_store(f"memory://cache-{time.monotonic_ns()}", wrap=faults or ())


class Thread(Generic[T]):
    """A call in a thread of its own."""

    def __init__(self, call: Callable[[], T]) -> None:
        self._call = call
        self._result: list[T] = []
        self._error: list[BaseException] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._result.append(self._call())
        except BaseException as error:
            self._error.append(error)

    def result(self) -> T:
        """Wait for the end; return the result, or raise the error."""
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive(), "a call hangs"
        if self._error:
            raise self._error[0]
        return self._result[0]


def together(calls: list[Callable[[], T]]) -> list[T]:
    """Run calls at the same time, and return their results."""
    return [thread.result() for thread in [Thread(call) for call in calls]]
