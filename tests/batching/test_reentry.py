"""A signal handler that calls the store, at any point of another call on the same thread."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from concurrent.futures import Future, as_completed, wait
from contextlib import suppress
from functools import partial
from itertools import count
from queue import SimpleQueue
from threading import Thread
from types import FrameType
from typing import Any

import pytest

import batchkeeper as bk
from batchkeeper.batching import MetadataStore, futures

from .waiting import PATIENCE

_ERRORS = (bk.MetadataStoreError, TimeoutError, StopIteration)
_numbers = count()
_SLOW = bk.BatchingConfig(linger="fixed", max_delay=60)


def handled(at: int, call: Callable[[], object], handler: Callable[[], object]) -> bool:
    """Make a call, in the middle of which a handler runs; say whether it got that far.

    The points are those at which the interpreter looks for signals, in all Python code.
    """
    left = at

    def look(_frame: FrameType, event: str, _arg: Any) -> None:
        nonlocal left
        if event in {"call", "c_return"}:
            left -= 1
            if not left:
                sys.setprofile(None)
                handler()

    gc.disable()  # Finalizers would run other code at points that differ.
    sys.setprofile(look)
    try:
        call()
    except (*_ERRORS, SystemExit):
        pass
    finally:
        sys.setprofile(None)
        gc.enable()
    return left <= 0


def _put(store: MetadataStore) -> None:
    store.put("/a", b"").result()


def _wait(store: MetadataStore) -> None:
    ops = [store.put("/a", b""), store.get("/b")]
    wait(ops)
    list(as_completed([store.get("/a"), *ops]))


def _cancel(store: MetadataStore) -> None:
    store.put("/a", b"").cancel()
    store.metrics()
    store.flush()


def _apply(store: MetadataStore) -> None:
    store.apply([bk.Put("/a", b""), bk.Get("/a")])


def _scan(store: MetadataStore) -> None:
    with store.watch("/a") as watch:
        store.delete_recursive("/a")
        watch.next_event(0)
    list(store.scan("/"))


def elsewhere(call: Callable[..., object], *args: object) -> Any:
    """Make a call on a thread of its own, which does not keep a process alive if it hangs."""
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(call(*args))
        except BaseException as error:
            future.set_exception(error)

    Thread(target=run, daemon=True).start()
    return future.result(PATIENCE)


def _see_its_end(see: Callable[[Any, Any], object]) -> None:
    """Wait for an operation that ends right after the wait has found it under way."""
    with bk.open_store(f"memory://reentry-{next(_numbers)}", batching=_SLOW) as store:
        op = store.put("/a", b"")

        def look(frame: FrameType, event: str, _arg: Any) -> None:
            if event == "return" and frame.f_code.co_name == "_state":
                sys.setprofile(None)
                elsewhere(store.flush)
                assert op.done()

        def watched() -> None:
            sys.setprofile(look)
            see(op, SimpleQueue())

        elsewhere(watched)


def test_a_future_that_ends_while_its_condition_is_held_is_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The thread that holds it may be slow, or run a signal handler."""
    monkeypatch.setattr(futures, "_PATIENCE", 0.01)
    _see_its_end(lambda op, _told: wait([op]))
    _see_its_end(lambda op, _told: list(as_completed([op])))
    _see_its_end(lambda op, told: (op.add_done_callback(told.put), told.get()))


def _close_and_exit(store: MetadataStore) -> None:
    store.close()
    raise SystemExit


def _use(store: MetadataStore) -> None:
    for call in (_put, _apply, _scan, MetadataStore.flush):
        with suppress(*_ERRORS):
            call(store)


# A handler that exits may interrupt a finalizer, and Python ignores exceptions there.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.slow
def test_a_handler_closes_the_store_or_calls_it_at_any_point(
    monkeypatch: pytest.MonkeyPatch, pytestconfig: pytest.Config
) -> None:
    """The close works; other calls work or raise at once; nothing hangs, and all futures end.

    For each change, the three handlers take turns; before a release, each comes at each point.
    """
    step = 1 if pytestconfig.option.full else 3
    monkeypatch.setattr(futures, "_PATIENCE", 0.01)
    monkeypatch.setattr(futures, "_SOON", 0.0)
    for call in (_put, _wait, _cancel, _apply, _scan):
        for first, handler in enumerate((MetadataStore.close, _close_and_exit, _use), 1):
            if handler is _close_and_exit and call in {_wait, _scan}:
                continue  # An exception there leaves locks of the standard library locked.
            for at in range(first, 10_000, step):
                store = bk.open_store(f"memory://reentry-{next(_numbers)}")
                before = [store.put("/a", b"0"), store.put("/b", b"")]
                reached = elsewhere(handled, at, partial(call, store), partial(handler, store))
                if not reached or handler is _use:
                    elsewhere(store.flush)
                    assert store.put("/later", b"").result(PATIENCE).version == 0
                elsewhere(store.close)
                assert all(future.done() for future in before)
                if not reached:
                    assert at > 20
                    break


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_leaves_no_lock_of_a_memory_store() -> None:
    """At each point of a call that the caller's thread executes; the next call works."""

    def interrupt() -> None:
        raise SystemExit

    with bk.open_store("memory://interrupted", operation_timeout=1.0) as store:
        at = 1
        while handled(at, store.revision, interrupt):
            assert store.revision() == elsewhere(store.revision) == 0
            at += 1
        assert at > 1
