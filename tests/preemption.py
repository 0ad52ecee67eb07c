"""Threads that are pre-empted between two lines that a test chooses."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, ModuleType
from typing import Any, Final

__all__ = ["each_line"]

# Seconds that a thread stands before a line, and the number of times in a round.
_PAUSE: Final = 0.005
_TIMES: Final = 3


@contextmanager
def _traced(module: ModuleType, reached: Callable[[int], object]) -> Iterator[None]:
    """Call a function before each line of a module, in this thread and all that start here."""

    def of_line(frame: FrameType, event: str, _arg: object) -> Any:
        if event == "line":
            reached(frame.f_lineno)
        return of_line

    def of_call(frame: FrameType, _event: str, _arg: object) -> Any:
        return of_line if frame.f_code.co_filename == module.__file__ else None

    before = sys.gettrace()
    threading.settrace(of_call)
    sys.settrace(of_call)
    try:
        yield
    finally:
        sys.settrace(before)
        threading.settrace(before)  # type: ignore[arg-type]


def each_line(module: ModuleType, scene: Callable[[], None]) -> None:
    """Run a scene once for each line of a module that it reaches, and pause before that line.

    So every thread of the scene is pre-empted between each pair of lines, while the others go on.
    """
    lines: set[int] = set()
    with _traced(module, lines.add):
        scene()
    for line in sorted(lines):
        left = [None] * _TIMES

        def pause(at: int, line: int = line, left: list[None] = left) -> None:
            if at == line and left:
                left.pop()
                time.sleep(_PAUSE)

        with _traced(module, pause):
            try:
                scene()
            except BaseException as error:
                error.add_note(f"a thread was pre-empted before line {line} of {module.__file__}")
                raise
