"""The command ``locks``: who holds a lock, a semaphore or an election, and who waits for it."""

from __future__ import annotations

import argparse
import importlib

from ..ops.exit_codes import OK, REFUSED
from ..ops.json_lines import json_value
from .arguments import Add, check_paths, open_named
from .output import one_line, readable_time, tell, write_table

__all__ = ["declare"]


def declare(add: Add) -> None:
    """Declare the command."""
    locks = add("locks", _locks, "list who holds a lock, semaphore or election, and who waits")
    locks.add_argument("path", metavar="PATH", help="the path of the lock, semaphore or election")


def _locks(arguments: argparse.Namespace) -> int:
    path: str = arguments.path
    check_paths([path])
    with open_named(arguments, create=False) as store:
        store.sync()
        # Loaded on demand: no other command of this group needs it.
        coordination = importlib.import_module("..coordination", __package__)
        line = coordination.Lock(store, path).contenders()
    rows = [
        {
            "value": json_value(one.value),
            "path": one.path,
            "holds": one.holds,
            "created": one.created,
        }
        for one in line
    ]
    shown = [
        {
            "state": "holds" if one.holds else "waits",
            "value": one_line(one.value),
            "since": readable_time(one.created),
            "name": one.path.rpartition("/")[2],
        }
        for one in line
    ]
    write_table(("state", "value", "since", "name"), shown, rows, arguments.output)
    if not line:
        tell(f"nobody holds {path!r} or waits for it")
    return OK if line else REFUSED
