"""The exit codes of the commands, the code for each error, and the signals that end a command."""

from __future__ import annotations

import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType
from typing import Final

from .errors import (
    InvalidPathError,
    InvalidSettingError,
    MetadataStoreError,
    RevisionCompactedError,
    UnsupportedError,
    ValueTooLargeError,
    passes,
)

__all__ = [
    "BAD_INPUT",
    "INTERRUPTED",
    "NO_CONNECTION",
    "OK",
    "REFUSED",
    "ending_signals",
    "exit_code",
]

OK: Final = 0
REFUSED: Final = 1
NO_CONNECTION: Final = 2
BAD_INPUT: Final = 3
#: The code that a shell reports for a process that Ctrl-C has ended.
INTERRUPTED: Final = 130

# Only other arguments help against these. Their `outcome` and `retriable` are those of a store's
# refusal: nothing was changed, and a repetition is of no use. Only the class distinguishes the two.
_BAD_INPUT: Final = (
    InvalidPathError,
    InvalidSettingError,
    RevisionCompactedError,
    UnsupportedError,
    ValueTooLargeError,
)


def exit_code(error: MetadataStoreError | type[MetadataStoreError]) -> int:
    """Return the exit code of a command that ends with this error.

    ``outcome`` and ``retriable`` decide whether another attempt may help. If it may not, the class
    decides between bad input and a refusal.

    Args:
        error: the error, or its class if nothing else is known, as of an error of another process.
    """
    if passes(error):
        return NO_CONNECTION
    kind = error if isinstance(error, type) else type(error)
    return BAD_INPUT if issubclass(kind, _BAD_INPUT) else REFUSED


@contextmanager
def ending_signals() -> Generator[list[int]]:
    """Let SIGTERM and SIGHUP end the command as Ctrl-C does, so that nothing that it holds stays.

    Yields a list that gets the signals that came. A signal that is ignored (``nohup``) stays so.
    """
    came: list[int] = []

    def end(number: int, frame: FrameType | None) -> None:
        came.append(number)
        # It may be another one for a while, which delays Ctrl-C.
        interrupt = signal.getsignal(signal.SIGINT)
        if not callable(interrupt):  # Shells ignore Ctrl-C for commands in the background.
            raise KeyboardInterrupt
        interrupt(number, frame)

    taken = []
    if threading.current_thread() is threading.main_thread():
        numbers = (signal.SIGTERM, signal.SIGHUP)
        taken = [number for number in numbers if signal.getsignal(number) is signal.SIG_DFL]
    for number in taken:
        signal.signal(number, end)
    try:
        yield came
    finally:
        for number in taken:
            signal.signal(number, signal.SIG_DFL)
