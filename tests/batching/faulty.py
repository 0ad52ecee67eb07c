"""Back ends whose calls a test can hold: the types of their fixtures, and the release of calls."""

from __future__ import annotations

from collections.abc import Callable

from batchkeeper.batching import MetadataStore
from batchkeeper.testing.faults import FaultyBackend

MakeBackend = Callable[..., FaultyBackend]
OpenOn = Callable[..., MetadataStore]


def release_all(backend: FaultyBackend) -> None:
    """Release every held call, and hold no more."""
    backend.plan = None
    for call in backend.wait_for_calls(0):
        call.release()
