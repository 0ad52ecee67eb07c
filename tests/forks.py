"""A forked child of the tests' own process, and locks that its parent's threads hold."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
import types
import warnings
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Final

from .waiting import PATIENCE

__all__ = ["forked", "holds_in_a_child", "locked_elsewhere", "locks_of", "returned_true"]

_LOCKS: Final = (type(threading.Lock()), type(threading.RLock()))
_CONTAINERS: Final = (dict, list, tuple, set, types.MethodType, weakref.WeakKeyDictionary)


def holds_in_a_child(check: Callable[[], bool]) -> bool:
    """Say whether a function returns true in a forked child, which then ends at once."""
    return returned_true(forked(check))


def forked(check: Callable[[], bool]) -> int:
    """Fork a child that ends with what a function returns, and return its pid.

    Call it in the main thread: a fork beside whatever that is doing may crash the child, in the
    libraries of this process (gRPC, Arrow).
    """
    # A collection in the child would run finalizers of other tests' objects, some of which crash
    # there: those of Spark close sockets of the parent.
    gc.disable()
    try:
        with warnings.catch_warnings():
            # Python warns of forking with threads, which is what is tested.
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if child == 0:
            code = 2
            try:
                code = 0 if check() else 1
            finally:
                os._exit(code)
    finally:
        gc.enable()
    return child


def returned_true(child: int) -> bool:
    """Wait for the end of a forked child, and say whether its function returned true."""
    give_up = time.monotonic() + PATIENCE
    while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0):
        if time.monotonic() > give_up:
            os.kill(child, signal.SIGKILL)  # It waits for a lock of the parent.
        time.sleep(0.001)
    return os.waitstatus_to_exitcode(ended[1]) == 0


def locks_of(*things: object) -> list[Any]:
    """Return the locks of objects and of their parts.

    A part is what an object refers to, also in containers, if its class is in the same folder of
    the package, such as ``coordination``.
    """
    folders = {_folder_of(thing) for thing in things}
    found: list[Any] = []
    seen: set[int] = set()
    todo: list[Any] = gc.get_referents(*things)
    while todo:
        part = todo.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        if isinstance(part, _LOCKS):
            found.append(part)
        elif isinstance(part, _CONTAINERS) or _folder_of(part) in folders:
            todo += gc.get_referents(part)
    return found


def _folder_of(thing: object) -> str:
    name = thing.__name__ if isinstance(thing, types.ModuleType) else type(thing).__module__
    return ".".join(name.split(".")[:2])


@contextmanager
def locked_elsewhere(*things: object) -> Iterator[None]:
    """Let another thread hold the locks of objects and of their parts, as it may at a fork."""
    locks = locks_of(*things)
    assert locks
    held, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        # Those that cannot be had are held already.
        taken = [lock for lock in locks if lock.acquire(blocking=False)]
        held.set()
        go_on.wait()
        for lock in taken:
            lock.release()

    with ThreadPoolExecutor(1) as pool:
        pool.submit(hold)
        held.wait()
        try:
            yield
        finally:
            go_on.set()
