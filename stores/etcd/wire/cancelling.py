"""Ends calls for which no caller waits any more."""

from __future__ import annotations

import ctypes
import os
from typing import Any

__all__ = ["cancel"]


def cancel(call: Any, process: int) -> None:
    """Cancel a gRPC call; leave it alone in a child that was forked while it was under way.

    Each call has a lock. A thread of the parent may have held it at the fork, and then it stays
    locked in the child. gRPC takes it to cancel a call, and also when it is garbage collected, so
    in a child the call is kept for ever.

    Args:
        call: the object that a stub returned.
        process: the id of the process that made the call.
    """
    if os.getpid() == process:
        call.cancel()
    else:
        # A list of such calls would be emptied when the child ends.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(call))
