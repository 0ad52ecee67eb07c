"""Back ends whose calls a test can hold, and the stores on them."""

from __future__ import annotations

from collections.abc import Callable

from batchkeeper.batching import MetadataStore
from batchkeeper.batching.engine import engine_of
from batchkeeper.ops import StoreClosedError
from batchkeeper.testing.faults import FaultyBackend

MakeBackend = Callable[..., FaultyBackend]
OpenOn = Callable[..., MetadataStore]


def release_all(backend: FaultyBackend) -> None:
    """Release every held call, and hold no more."""
    backend.plan = None
    for call in backend.wait_for_calls(0):
        call.release()


def refuses(store: MetadataStore) -> bool:
    """Say whether the store refuses new calls, because a close has begun."""
    try:
        engine_of(store).check_open()
    except StoreClosedError:
        return True
    return False
