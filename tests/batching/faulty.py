"""Back ends whose calls a test can hold: the types of the fixtures for them, and the release."""

from __future__ import annotations

from collections.abc import Callable

from batchkeeper.batching import MetadataStore
from batchkeeper.stores.faults import FaultyBackend

MakeBackend = Callable[..., FaultyBackend]
OpenOn = Callable[..., MetadataStore]


def release_all(backend: FaultyBackend) -> None:
    """Let every call go that is held now, and hold no more."""
    backend.plan = None
    for call in backend.wait_for_calls(0):
        call.release()
