"""The command ``watch``: writes the changes under a path as they happen."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from .. import StoreClosedError, Watch, WatchEvent
from ..ops.exit_codes import OK
from .arguments import Add, open_named
from .output import tell, write_json

__all__ = ["declare", "until_closed"]

# Seconds.
_LONGEST_WAIT: Final = 1.0

_EVENTS = """\
Each event is a line of JSON, whatever --output says:
  {"kind": "created", "path": "/topics/t1", "version": 0, "revision": 17}
The kind is created, modified, deleted or gap. After a gap, changes are missing: read what you need
anew. The message that the watch has begun goes to standard error.
"""


def declare(add: Add) -> None:
    """Declare the command."""
    watch = add("watch", _watch, "write the changes of a path and of all paths below it")
    watch.epilog = f"{_EVENTS}\n{watch.epilog}"
    watch.add_argument("path", metavar="PATH", nargs="?", default="/", help="default: /")
    watch.add_argument(
        "--after",
        type=int,
        metavar="REVISION",
        help="begin with the changes after this revision (etcd)",
    )


def until_closed(watch: Watch) -> Iterator[WatchEvent]:
    """Yield the events of a watch, and notice Ctrl-C while there are none.

    Python misses a signal that comes as a wait begins, and handles it only when that ends. So no
    wait is long.
    """
    with suppress(StoreClosedError):
        while True:
            event = watch.next_event(_LONGEST_WAIT)
            if event is not None:
                yield event


def _watch(arguments: argparse.Namespace) -> int:
    with (
        open_named(arguments, create=False) as store,
        store.watch(arguments.path, after=arguments.after) as events,
    ):
        tell(f"watching {arguments.path!r}")
        for event in until_closed(events):
            write_json(event._asdict(), "jsonl")
            sys.stdout.flush()
    return OK
