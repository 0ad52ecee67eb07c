"""The entry of the command: ``batchkeeper``, and ``python -m batchkeeper``.

Ctrl-C ends the command without a traceback, also while its modules are loaded and while Python
ends. So this module imports nothing but what Python itself has loaded or contains.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal` itself takes a while to load
import _thread
import atexit
import gc
import os
import sys
import time

__all__ = ["main", "repeat_interrupt"]

_INTERRUPTED = 130


def main() -> int:
    """Run the command and return its exit code."""
    # A shell that starts a command in the background makes it ignore the signal: so it stays.
    heeded = _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler
    if heeded:
        _signal.signal(_signal.SIGINT, _leave)
        # The last function at the end of Python, which would let the signal itself end the process
        # then, without an exit code.
        atexit.register(_signal.signal, _signal.SIGINT, _signal.SIG_IGN)
    # Python ends with full collections of all that is loaded: a fifth of a short command's time.
    atexit.register(gc.freeze)
    # gRPC reads this as it is loaded, and otherwise prints lines of its own between the command's.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    from .cli import main as run

    if heeded:
        # From here on, an interrupt is an exception: what was sent is waited for, and files close.
        _signal.signal(_signal.SIGINT, _signal.default_int_handler)
        sys.unraisablehook = repeat_interrupt
    try:
        code = run()
    except KeyboardInterrupt:  # between two lines of this function
        code = _INTERRUPTED
    finally:
        if heeded:
            _signal.signal(_signal.SIGINT, _leave)
    return code


def _leave(*_: object) -> None:
    """End the process at once, when there is nothing to wait for."""
    # An exception could come out of any module that is being loaded, or of Python's own at its end,
    # which would print it.
    os._exit(_INTERRUPTED)


def repeat_interrupt(dropped: sys.UnraisableHookArgs) -> None:
    """Repeat a Ctrl-C that Python drops, because a finalizer or a weak reference's callback ran."""
    if not isinstance(dropped.exc_value, KeyboardInterrupt):
        sys.__unraisablehook__(dropped)
        return
    # Later, as an exception in here is dropped, too. Without `threading`, whose locks the
    # interrupted code may hold.
    _thread.start_new_thread(_interrupt_soon, (_thread.get_ident(),))


def _interrupt_soon(thread: int) -> None:
    time.sleep(0.01)
    _signal.pthread_kill(thread, _signal.SIGINT)


if __name__ == "__main__":
    sys.exit(main())
