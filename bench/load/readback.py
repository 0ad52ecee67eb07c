"""Reads everything back after a measurement: nothing acknowledged may be missing or wrong."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Final

from ...batching import MetadataStore
from ...ops.errors import MetadataStoreError
from ...ops.operations import Get
from .work import Expected, Work, check

__all__ = ["await_vanished", "read_back"]

_AT_ONCE: Final = 5_000
# Sessions end soon after their store was closed, but not always before `close` returns.
_GRACE: Final = 10.0


def read_back(store: MetadataStore, expected: Iterable[Expected]) -> int:
    """Compare the contents of a store with what it must hold; return the number of paths.

    Pass another ``store`` than the writer's, opened afterwards, so that its answers do not come
    from the writer's memory.

    Raises:
        WrongAnswerError: a path is missing, not deleted, or wrong. The message names it.
        MetadataStoreError: a path could not be read.
    """
    # A ZooKeeper server may lag behind the one that acknowledged the writes.
    store.sync()
    count = 0
    remaining: Iterator[Expected] = iter(expected)
    while part := list(islice(remaining, _AT_ONCE)):
        outcomes = store.apply(Get(one.path) for one in part)
        for one, outcome in zip(part, outcomes, strict=True):
            if isinstance(outcome.error, MetadataStoreError):
                raise outcome.error
            check(one, outcome.result)
        count += len(part)
    return count


def await_vanished(store: MetadataStore, works: Sequence[Work]) -> int:
    """Check that the ephemeral values went with their session; return their number."""
    if not any(work.used_ephemerals for work in works):
        return 0
    end = time.monotonic() + _GRACE
    expected = [one for work in works for one in work.vanished()]
    while time.monotonic() < end and any(store.get(one.path).result() for one in expected):
        time.sleep(0.05)
    return read_back(store, expected)
