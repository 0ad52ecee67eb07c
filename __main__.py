"""The entry of the command: ``batchkeeper``, and ``python -m batchkeeper``.

Ctrl-C ends the command without a traceback, also while its modules are loaded and while Python
ends. So this module imports as little as it can.
"""

from __future__ import annotations

import os
import signal
import sys
from importlib import import_module
from typing import NoReturn

__all__ = ["main"]

_INTERRUPTED = 130


def main() -> int:
    """Run the command and return its exit code."""
    # A shell that starts a command in the background makes it ignore the signal: so it stays.
    heeded = signal.getsignal(signal.SIGINT) == signal.default_int_handler
    if heeded:
        signal.signal(signal.SIGINT, _leave)
    run = import_module(".cli", __package__).main
    if heeded:
        # From here on, an interrupt is an exception: what was sent is waited for, and files close.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        code: int = run()
    except KeyboardInterrupt:  # between two lines of this function
        code = _INTERRUPTED
    finally:
        if heeded:
            signal.signal(signal.SIGINT, _leave)
    return code


def _leave(*_: object) -> NoReturn:
    """End the process at once, when there is nothing to wait for."""
    # An exception could come out of any module that is being loaded, or of Python's own at its end,
    # which would print it.
    os._exit(_INTERRUPTED)


if __name__ == "__main__":
    sys.exit(main())
