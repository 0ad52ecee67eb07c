"""Raises KeyboardInterrupt at every point of a call, one after the other."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import batchkeeper.batching

_OWN = str(Path(batchkeeper.batching.__file__).parent)
# Of the standard library's functions, these change what the engine relies on.
_CHANGING = {"notify", "notify_all", "wait"}


class Interrupt:
    """Raise KeyboardInterrupt in this thread at the ``at``-th point in the code of the engine.

    The points are those at which the interpreter looks for signals: where a function of Python's
    begins, and where one in C has returned.
    """

    def __init__(self, at: int) -> None:
        self._left = at
        self.raised = False

    def __call__(self, frame: FrameType, event: str, arg: Any) -> None:
        code = frame.f_code
        own = code.co_filename.startswith(_OWN)
        if event not in {"call", "c_return"} or not (own or code.co_name in _CHANGING):
            return
        if event == "c_return" and arg.__name__ == "enter":
            return  # The end of the call itself: nobody can tell whether its caller has the future.
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
