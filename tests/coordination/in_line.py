"""What the tests of locks share: the line of a lock, and calls in threads of their own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
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


def begun(call: Callable[..., T], *args: Any) -> Future[T]:
    """Call a function in a thread of its own, and return the future of its result."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(call(*args))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


@contextmanager
def opened(url: str, **options: Any) -> Iterator[bk.MetadataStore]:
    """Open a store whose session outlives a machine that stands still for a while."""
    with bk.open_store(url, **{"session_timeout": 30.0, **options}) as store:
        yield store
