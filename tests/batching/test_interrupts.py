"""Ctrl-C while an operation is submitted: at whatever point it comes, nothing hangs afterwards."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import FrameType
from typing import Any

import pytest

from batchkeeper.ops import Get, Put
from batchkeeper.stores.faults import Plan

from .faulty import MakeBackend, OpenOn, release_all
from .waiting import PATIENCE


class Interrupt:
    """Raise KeyboardInterrupt in this thread at the ``at``-th point of a submission.

    In the function itself, and in those that it calls while it holds the engine's lock. The points
    are those at which the interpreter looks for signals: where a function of Python's begins, and
    where one in C has returned.
    """

    def __init__(self, at: int) -> None:
        self._left = at
        self._submitting: FrameType | None = None
        self.raised = False

    def __call__(self, frame: FrameType, event: str, arg: Any) -> None:
        code = frame.f_code
        if code.co_name in {"submit", "submit_all"} and code.co_filename.endswith("engine.py"):
            self._submitting = None if event == "return" else frame
        if self._submitting is None or event not in {"call", "c_return"}:
            return
        itself = frame is self._submitting and event == "c_return"
        if itself or self._submitting.f_locals["self"]._lock.locked():
            self._left -= 1
            if not self._left:
                self.raised = True
                sys.setprofile(None)
                raise KeyboardInterrupt


def interrupted(at: int, call: Callable[[], object]) -> bool:
    """Make a call that is interrupted at some point; say whether it got that far."""
    interrupt = Interrupt(at)
    # A collection would call back what others have registered, and an interrupt there is lost.
    gc.disable()
    sys.setprofile(interrupt)
    try:
        call()
    except KeyboardInterrupt:
        pass
    finally:
        sys.setprofile(None)
        gc.enable()
    return interrupt.raised


@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize("how", ["put", "again", "large", "apply", "single"])
def test_an_interrupted_call_leaves_nothing_behind(
    make_backend: MakeBackend,
    open_on: OpenOn,
    hold_all: Plan,
    pool: ThreadPoolExecutor,
    held: bool,
    how: str,
) -> None:
    """Interrupted at any point of a submission: flush returns, the path and the room are free.

    For an operation alone on its path, one behind another, one that finds others in the intake,
    many at once, and a single execution; with senders that wait, and with senders that are busy.
    """
    for at in range(1, 1000):
        backend = make_backend(hold_all if held else None)
        store = open_on(backend, max_in_flight=1, write_queue_size=2 if how == "single" else 100)
        futures: list[Any] = []
        if held or how == "single":
            backend.plan = hold_all
            futures.append(store.put("/first", b""))
            backend.wait_for_calls(1)
        if how == "large":
            futures += [store.put(path, b"") for path in ("/first", "/a", "/arrived", "/a")]
        if how == "single":
            futures += [store.put(f"/queued/{number}", b"") for number in range(2)]
        calls: dict[str, Callable[[], object]] = {
            "put": lambda store=store: store.put("/a", b""),  # type: ignore[misc]
            "again": lambda store=store: store.put("/first", b""),  # type: ignore[misc]
            "large": lambda store=store: store.put("/a", bytes(5000)),  # type: ignore[misc]
            "apply": lambda store=store: next(  # type: ignore[misc]
                store.apply_stream([Put("/a", b""), Get("/a"), Put("/b", b"")])
            ),
            "single": lambda store=store: store.put("/a", b""),  # type: ignore[misc]
        }
        if how == "apply" and held:
            backend.plan = None
            backend.calls[0].release()
        went_through = not interrupted(at, calls[how])
        release_all(backend)
        after = [store.put(path, b"") for path in ("/a", "/b", "/first", "/c")]
        pool.submit(store.flush).result(PATIENCE)
        if how == "put" and held:
            assert after[0].result(0).version == int(went_through)
        for future in (*futures, *after):
            assert future.result(0).version in {0, 1, 2, 3}
        metrics = store.metrics()
        for lane in (metrics.reads, metrics.writes, metrics.singles):
            assert (lane.queued, lane.waiting, lane.in_flight) == (0, 0, 0), at
        assert metrics.queued_bytes == 0
        pool.submit(store.close).result(PATIENCE)
        if went_through:
            assert at > 2
            return
    raise AssertionError("it never got through")
