"""Ctrl-C at every moment of a command's life, in real processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..programs import run_python

pytestmark = pytest.mark.slow  # Each starts a Python.

# Sends the signal as a module is looked for, or at the end of Python, and runs the command.
PROGRAM = """
import atexit, signal, sys, time
from functools import partialmethod
moment, *sys.argv[1:] = sys.argv[1:]

class Last:
    def __del__(self):
        signal.raise_signal(signal.SIGINT)

class Finder:
    def find_spec(name, path=None, target=None):
        if moment == "finalizer" and name == "rocksdict":
            Last()
            time.sleep(60)
        if name == moment:
            signal.raise_signal(signal.SIGINT)

if moment == "parsing":  # where argparse has changed what it restores at the end
    import argparse
    def interrupted(*arguments, of=argparse.ArgumentParser.format_usage):
        signal.raise_signal(signal.SIGINT)
        return of(*arguments)
    argparse.ArgumentParser.format_usage = interrupted
    argparse._StoreAction.__call__ = partialmethod(interrupted, of=argparse._StoreAction.__call__)
if moment == "end":
    import threading  # It waits for other threads at the end, and calls this function first.
    threading._register_atexit(signal.raise_signal, signal.SIGINT)
if moment == "last":  # after all that the command has registered
    atexit.register(signal.raise_signal, signal.SIGINT)
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, Finder)
from batchkeeper.__main__ import main
sys.exit(main())
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("moment", "code"),
    [
        ("batchkeeper.cli", 130),
        ("argparse", 130),
        ("parsing", 130),
        ("rocksdict", 130),
        ("finalizer", 130),
        ("end", 130),
        ("last", 0),
    ],
)
def test_ctrl_c_leaves_no_traceback(moment: str, code: int, tmp_path: Path) -> None:
    """While modules are loaded and while Python ends, nothing is printed; the code is 130.

    It is not lost in a finalizer either, whose exceptions Python drops.
    In the last moment there is nothing left to interrupt, and the code is that of the command.
    """
    done = run_python(
        *("-c", PROGRAM, moment, "put", "/a", "1", "--store", f"rocksdb://{tmp_path}/store"),
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (code, "")


def test_a_command_in_the_background_goes_on(tmp_path: Path) -> None:
    """Where the shell makes it ignore Ctrl-C, the command does so, too."""
    program = PROGRAM.replace("signal.default_int_handler", "signal.SIG_IGN")
    done = run_python(
        *("-c", program, "argparse", "put", "/a", "1", "--store", f"rocksdb://{tmp_path}/store"),
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
