"""Removing below a path leaves nothing of it, and everything else."""

from __future__ import annotations

import batchkeeper as bk
from batchkeeper.bench.removing import remove_below


def test_removing_leaves_nothing_of_the_bench(store_url: str) -> None:
    """On every store, all paths below the root are removed, and no others."""
    with bk.open_store(store_url) as store:
        for path in ("/bench", "/kept/x", "/b", "/b/1", "/b/1/2", "/b/3/4/5"):
            store.put(path, b"").result()
        remove_below(store, "/b")
        assert store.get_children("/").result() == ["bench", "kept"]
