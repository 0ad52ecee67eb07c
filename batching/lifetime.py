"""Handles open stores when their process forks, and when it ends."""

from __future__ import annotations

import atexit
import os
import time
import warnings
import weakref
from contextlib import ExitStack
from typing import Final, Protocol

__all__ = ["closed", "opened"]


class Engine(Protocol):
    """What is asked of an engine here."""

    name: str

    def close(self, timeout: float | None) -> None: ...

    def abandon(self) -> None: ...


# Seconds that the stores which nobody closed are drained for when the interpreter ends.
_EXIT_DRAIN: Final = 5.0

# An engine's threads keep it alive, so none that is open drops out of here.
_open: weakref.WeakSet[Engine] = weakref.WeakSet()


def opened(engine: Engine) -> None:
    """Look after an engine from now on."""
    _open.add(engine)
    # What was registered last runs first: before the threads of the engine's back end are stopped
    # by their own exit handlers (kazoo's), registered when it connected.
    atexit.unregister(_drain_at_exit)
    atexit.register(_drain_at_exit)


def closed(engine: Engine) -> None:
    """Look after it no longer."""
    _open.discard(engine)


def _drain_at_exit() -> None:
    until = time.monotonic() + _EXIT_DRAIN
    engines = list(_open)
    with ExitStack() as stack:  # Each is drained, whatever a warning or another's end raises.
        for engine in engines:
            stack.callback(_drain, engine, until)
        for engine in engines:
            warnings.warn(f"a store was not closed: {engine.name}", ResourceWarning, stacklevel=1)


def _drain(engine: Engine, until: float) -> None:
    engine.close(max(0.0, until - time.monotonic()))


def _abandon_in_child() -> None:
    for engine in list(_open):
        engine.abandon()
    _open.clear()


# The engines' threads are daemons, and still run when the interpreter calls _drain_at_exit.
os.register_at_fork(after_in_child=_abandon_in_child)
