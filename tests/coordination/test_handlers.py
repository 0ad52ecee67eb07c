"""A signal handler that makes the call which it has interrupted: it must not wait for it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final

import pytest

import batchkeeper as bk
from batchkeeper.coordination import Counter, DoubleBarrier, Lock, MetadataCache
from batchkeeper.coordination.job_board import JobBoard
from batchkeeper.testing import FaultInjector

from ..waiting import PATIENCE, until
from .recipes import begun


def watched(store: bk.MetadataStore) -> MetadataCache[bytes]:
    """Return a cache whose watch is in place, so that reads of one path are shared."""
    cache = MetadataCache(store, "/a")
    store.put("/a", b"").result(PATIENCE)
    until(lambda: cache.get("/a") is not None and cache.get_if_cached("/a") is not None)
    return cache


# A call, and the kind of request in the middle of which the handler repeats it.
CALLS: Final[dict[str, tuple[str, Callable[[bk.MetadataStore], Callable[[], Any]]]]] = {
    "counter": ("get", lambda store: Counter(store, "/a").next),
    "cache": ("get", lambda store: partial(watched(store).get, "/a/b")),
    "barrier": ("get", lambda store: DoubleBarrier(store, "/a", 1).enter),
    "lock": ("put", lambda store: Lock(store, "/a").acquire),
}


@pytest.mark.parametrize("name", CALLS)
def test_the_same_call(
    stores: Callable[..., bk.MetadataStore], faults: FaultInjector, name: str
) -> None:
    """It is refused or answered at once, and the first one goes on."""
    kind, make = CALLS[name]
    call = make(stores(wrap=faults))
    held = faults.delay(kind)
    handled = []

    def handler(*_: object) -> None:
        with suppress(bk.UnsupportedError):
            call()
        handled.append(name)
        held.release()

    def interrupt() -> None:
        held.wait()
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        interrupting = begun(interrupt)
        call()
        interrupting.result(PATIENCE)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert handled == [name]


def test_a_handler_takes_the_last_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the middle of a pick: then no job is free."""
    board = JobBoard()
    board.replace(["100-0000000000"], [])
    picked: list[str | None] = []

    def randrange(_: int) -> int:
        monkeypatch.undo()
        picked.append(board.pick())
        return 0

    monkeypatch.setattr("batchkeeper.coordination.job_board.random.randrange", randrange)
    assert board.pick() is None
    assert picked == ["100-0000000000"]
