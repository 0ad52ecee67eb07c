"""A store that has run operations of every kind, for what is exported of it."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

import batchkeeper as bk

from ..waiting import PATIENCE


@pytest.fixture
def store() -> Iterator[bk.MetadataStore]:
    """A store in memory with operations, conflicts, a session and a watch."""
    with bk.open_store(f"memory://{uuid.uuid4().hex}") as store, store.watch("/") as watch:
        store.apply([bk.Put(f"/p{n}", b"value", ephemeral=n == 0) for n in range(20)])
        store.apply([bk.Get("/p1"), bk.Exists("/p1"), bk.GetChildren("/"), bk.Delete("/p2")])
        assert store.put("/p1", b"", 7).exception() is not None
        assert store.delete("/missing").exception() is not None
        store.transaction([bk.Put("/t", b"")]).result()
        for _ in range(22):  # Another thread counts them as they come.
            assert watch.next_event(PATIENCE) is not None
        yield store
