"""Counts the store operations of a hub, by subject."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from typing import Literal, TypeAlias

from ...stores.backend import Answer, Backend, PassingBackend, ReadRequest, WriteRequest

__all__ = ["About", "Traffic"]

#: The subject of an operation: hubs and their loads, subscriptions and their consume marks, or
#: topics and everything else.
About: TypeAlias = Literal["hosts", "subscriptions", "topics"]


class Traffic:
    """The operations that a store's back ends received. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards the field
        self._counts: Counter[About] = Counter()

    def wrap(self, backend: Backend) -> Backend:
        """Return a counting back end; pass this method to ``open_store`` as ``wrap``."""
        return _Counting(backend, self)

    def count(self, requests: Sequence[ReadRequest] | Sequence[WriteRequest]) -> None:
        """Count operations."""
        with self._lock:
            self._counts.update(map(_about, requests))

    def counts(self) -> dict[About, int]:
        """Return the counts so far."""
        with self._lock:
            return dict(self._counts)


class _Counting(PassingBackend):
    def __init__(self, backend: Backend, traffic: Traffic) -> None:
        super().__init__(backend)
        self._traffic = traffic

    def write(self, requests: Sequence[WriteRequest], deadline: float) -> Sequence[Answer]:
        self._traffic.count(requests)
        return super().write(requests, deadline)

    def read(self, requests: Sequence[ReadRequest], deadline: float) -> Sequence[Answer]:
        self._traffic.count(requests)
        return super().read(requests, deadline)


def _about(request: ReadRequest | WriteRequest) -> About:
    parts = () if request.options is None else request.options.parts
    paths = [part.path for part in parts] or [request.path]
    if any("/hosts" in path for path in paths):
        return "hosts"
    if any("/subscribers" in path for path in paths):
        return "subscriptions"
    return "topics"
