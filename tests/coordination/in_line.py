"""What the tests of locks share: the line of a lock, and stores whose sessions last."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import batchkeeper as bk

from ..waiting import PATIENCE, until

T = TypeVar("T")


def line(store: bk.MetadataStore, path: str) -> list[str]:
    """Return the names of the contenders, first come first."""
    store.sync(PATIENCE)
    return sorted(store.get_children(path).result(PATIENCE), key=lambda name: name[-10:])


def until_line(store: bk.MetadataStore, path: str, length: int) -> list[str]:
    """Wait until this many contenders stand in line; return their names."""
    return until(
        lambda: [names] if len(names := line(store, path)) == length else None,
        f"never {length} in line",
    )[0]


@contextmanager
def opened(url: str, **options: Any) -> Iterator[bk.MetadataStore]:
    """Open a store whose session outlives a machine that stands still for a while."""
    with bk.open_store(url, **{"session_timeout": 30.0, **options}) as store:
        yield store
