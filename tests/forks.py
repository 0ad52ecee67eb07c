"""A forked child of the tests' own process."""

from __future__ import annotations

import gc
import os
import warnings
from collections.abc import Callable

__all__ = ["holds_in_a_child"]


def holds_in_a_child(check: Callable[[], bool]) -> bool:
    """Say whether a function returns true in a forked child, which then ends at once."""
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
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
