"""The command line of the script, and its run."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from rich.console import Console

from ...ops.errors import MetadataStoreError
from ...pipeline.java import JavaMissingError
from ...testing.servers import ServerStartError
from ...testing.servers.releases import ServerMissingError
from ..arguments import at_least
from ..progress import show_progress
from ..workload import WrongAnswerError
from .memory import JobFailedError
from .rounds import Extent, measure, quick, steps_of
from .rows import PARTS, STORES, rows_of
from .tables import as_json, print_report

__all__ = ["main"]

_FINE: Final = 0
_WRONG: Final = 1
_FAILED: Final = 2

_FAILURES: Final = (
    JavaMissingError,
    JobFailedError,
    MetadataStoreError,
    ServerMissingError,
    ServerStartError,
)

# Wide enough for the table: piped output must not be wrapped to the width of a screen.
_PIPE_WIDTH: Final = 300


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command, and return its exit code.

    Returns:
        0 if everything was measured, even if targets are missed; 1 if rows were lost or wrong; 2 if
        a store or a job failed.
    """
    arguments = _parser().parse_args(argv)
    try:
        _run(arguments)
    except WrongAnswerError as error:
        return _fail(_WRONG, f"a wrong answer: {error}")
    except _FAILURES as error:
        return _fail(_FAILED, str(error))
    return _FINE


def _parser() -> argparse.ArgumentParser:
    default = Extent()
    parser = argparse.ArgumentParser(
        "python -m batchkeeper.bench.spark",
        description="Measure Spark's rates for loading and exporting rows, and its memory.",
    )
    parser.add_argument(
        "stores",
        nargs="*",
        choices=[*STORES, []],  # Without a store, argparse checks the empty list.
        metavar="STORE",
        help=f"{' or '.join(STORES)} (default: all)",
    )
    parser.add_argument(
        "--only",
        action="append",
        choices=PARTS,
        help="measure only this part; repeat the option for several parts",
    )
    parser.add_argument(
        "--rows",
        type=at_least(10, int),
        metavar="N",
        help=f"rows to load and export (default: {default.rows}; quick: {quick(1).rows})",
    )
    parser.add_argument(
        "--rounds",
        type=at_least(1, int),
        metavar="N",
        help=f"default: {default.rounds}; quick: 1",
    )
    parser.add_argument(
        "--quick", action="store_true", help="use few rows, only to show that it works"
    )
    parser.add_argument(
        "-o", "--output", choices=("table", "json"), default="table", help="default: %(default)s"
    )
    parser.add_argument(
        "--dir",
        type=Path,
        default=Path(".scratch"),
        help="folder for a few GiB of data of servers and Spark (default: %(default)s)",
    )
    return parser


def _run(arguments: argparse.Namespace) -> None:
    extent = quick(1) if arguments.quick else Extent()
    extent = replace(
        extent, rows=arguments.rows or extent.rows, rounds=arguments.rounds or extent.rounds
    )
    stores, parts = arguments.stores or STORES, arguments.only or PARTS
    steps = sum(steps_of(store, parts, extent) for store in stores)
    with show_progress(Console(stderr=True), steps) as step:
        found = [
            measure(store, parts, extent, arguments.dir, _tell, step)
            for store in stores
            if rows_of(store, parts)
        ]
    if arguments.output == "json":
        sys.stdout.write(json.dumps(as_json(found, extent), indent=2) + "\n")
    else:
        terminal = sys.stdout.isatty()
        print_report(Console(width=None if terminal else _PIPE_WIDTH), found, extent)


def _fail(code: int, message: str) -> int:
    _tell(message)
    return code


def _tell(message: str) -> None:
    sys.stderr.write(f"{message}\n")
