"""The command ``load``: puts the records of a file, in batches."""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from typing import Final

from .. import ABSENT, BatchingConfig, Exists, MetadataStore, Put
from ..ops.exit_codes import OK, REFUSED
from ..pipeline.arguments import duration
from ..pipeline.local_load import LineLoad, lines, opened, progress
from .arguments import Add, InputError, open_named
from .output import tell, write_record

__all__ = ["declare"]

_FORMAT: Final = """\
FILE holds JSON lines, plain or compressed with gzip:
  {"path": "/topics/t1", "value": "stored as UTF-8"}
  {"path": "/topics/t2", "value": {"base64": "AAEC"}}
  {"path": "/topics/t3", "value": {"owner": "hub-1"}}   stored as {"owner":"hub-1"}
Empty lines and other fields are ignored. Any other line ends the load with an error that names the
line. Records before it are written; the summary counts them.
"""


def declare(add: Add) -> None:
    """Declare the command."""
    load = add("load", _load, "put many records from a file, in batches")
    load.epilog = f"{_FORMAT}\n{load.epilog}"
    load.add_argument("file", metavar="FILE", help="JSON lines; '-' reads standard input")
    load.add_argument("--create-only", action="store_true", help="keep existing values")
    load.add_argument(
        "--dry-run",
        action="store_true",
        help="check all lines, count the paths that hold a value, and write nothing",
    )
    load.add_argument("--skip-bad", action="store_true", help="count bad lines and continue")
    load.add_argument("--no-batching", action="store_true", help="send each record by itself")
    load.add_argument("--max-ops", type=int, metavar="N", help="most records in a batch")
    load.add_argument("--max-bytes", type=int, metavar="N", help="most bytes in a batch")
    load.add_argument(
        "--max-delay", type=duration, metavar="TIME", help="longest wait for a batch, such as 5ms"
    )
    load.add_argument("--max-in-flight", type=int, metavar="N", help="most batches in flight")


def _load(arguments: argparse.Namespace) -> int:
    given = {
        name: getattr(arguments, name)
        for name in ("max_ops", "max_bytes", "max_delay", "max_in_flight")
        if getattr(arguments, name) is not None
    }
    batching = BatchingConfig(enabled=not arguments.no_batching, **given)
    load = LineLoad(
        arguments.file, ABSENT if arguments.create_only else None, arguments.skip_bad, tell
    )
    if arguments.dry_run:
        with (
            opened(arguments.file) as (file, _, _),
            open_named(arguments, batching, create=False) as store,
        ):
            return _preview(store, load.puts(lines(file)), load, arguments)
    failure: Exception | KeyboardInterrupt | None = None
    with (
        opened(arguments.file) as (file, position, size),
        open_named(arguments, batching) as store,
        progress(load, position, size, tell) as report,
        # Closing it makes an interrupt wait for the operations that were sent.
        closing(store.apply_stream(load.puts(lines(file)))) as outcomes,
    ):
        started = time.monotonic()
        try:
            for outcome in outcomes:
                load.count(outcome)
                report()
        except (InputError, KeyboardInterrupt) as error:
            failure = error
        seconds = time.monotonic() - started
    ended = load.written + load.conflicts + load.errors
    summary: dict[str, int | float | str] = {
        "written": load.written,
        "conflicts": load.conflicts,
        "errors": load.errors,
        "skipped": load.skipped,
        "seconds": round(seconds, 3),
        "operations_per_second": round(ended / seconds),
    }
    if store.advisory:
        summary["warning"] = store.advisory
    write_record(summary, summary, arguments.output)
    if failure := failure or load.lost:
        raise failure
    return REFUSED if load.conflicts or load.errors else OK


def _preview(
    store: MetadataStore, puts: Iterator[Put], load: LineLoad, arguments: argparse.Namespace
) -> int:
    """Run ``--dry-run``: count the records by whether their paths hold a value."""
    counts = Counter[bool]()
    for outcome in store.apply_stream(Exists(put.path) for put in puts):
        if outcome.error is not None:
            raise outcome.error
        counts[outcome.result is True] += 1
    existing = "would_conflict" if arguments.create_only else "would_replace"
    summary = {"would_create": counts[False], existing: counts[True], "skipped": load.skipped}
    write_record(summary, summary, arguments.output)
    tell("nothing was written (--dry-run)")
    return OK
