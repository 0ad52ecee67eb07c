"""The command line of the script, and its run."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rich.console import Console

from ...ops.errors import MetadataStoreError
from ...pipeline.arguments import duration
from ...testing.servers import ServerStartError
from ...testing.servers.releases import ServerMissingError
from ..arguments import at_least
from ..figures import check_extra
from ..progress import show_progress
from ..target import open_target
from ..workload import WrongAnswerError
from .rounds import Extent, measure, needed, quick, rows_of
from .rows import ROWS, STORES
from .tables import as_json, print_report

__all__ = ["main"]

_FINE: Final = 0
_WRONG: Final = 1
_FAILED: Final = 2

# Wide enough for the table: piped output must not be wrapped to the width of a screen.
_PIPE_WIDTH: Final = 300


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command, and return its exit code.

    Returns:
        0 if everything was measured, even if targets are missed; 1 if an answer was wrong; 2 if the
        store failed.
    """
    parser = _parser()
    arguments = parser.parse_args(argv)
    names = [row.name for row in rows_of(arguments.store)]
    for name in arguments.only or ():
        if name not in names:
            parser.error(f"{arguments.store} has no row {name!r}, but {', '.join(names)}")
    try:
        _run(arguments)
    except WrongAnswerError as error:
        return _fail(_WRONG, f"a wrong answer: {error}")
    except (MetadataStoreError, ServerMissingError, ServerStartError) as error:
        return _fail(_FAILED, str(error))
    return _FINE


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m batchkeeper.bench.limits",
        description="Measure how close the client comes to the capacity of its server.",
    )
    parser.add_argument("store", choices=STORES)
    parser.add_argument(
        "--only",
        action="append",
        metavar="ROW",
        help=f"measure only this row; repeat the option for several rows "
        f"({', '.join(row.name for row in ROWS)})",
    )
    parser.add_argument("--rounds", type=at_least(1, int), metavar="N", help="default: 5; quick: 1")
    parser.add_argument(
        "--seconds",
        type=at_least(0.01, duration),
        default=0.8,
        metavar="TIME",
        help="duration of one measurement (default: %(default)s)",
    )
    parser.add_argument(
        "--quick", action="store_true", help="run few operations, only to show that it works"
    )
    parser.add_argument(
        "-o", "--output", choices=("table", "json"), default="table", help="default: %(default)s"
    )
    parser.add_argument(
        "--dir",
        type=Path,
        default=Path(".scratch"),
        help="where the store or the server keeps its data (default: %(default)s)",
    )
    return parser


def _run(arguments: argparse.Namespace) -> None:
    check_extra()
    rows = rows_of(arguments.store, arguments.only)
    extent = (
        quick(arguments.rounds or 1)
        if arguments.quick
        else Extent(arguments.rounds or 5, arguments.seconds)
    )
    steps = (1 + extent.rounds) * len(needed(arguments.store, rows))
    with (
        open_target(arguments.store, arguments.dir, _tell) as target,
        show_progress(Console(stderr=True), steps) as step,
    ):
        results = measure(target, rows, extent, step)
    if arguments.output == "json":
        sys.stdout.write(json.dumps(as_json(target, extent, results), indent=2) + "\n")
    else:
        terminal = sys.stdout.isatty()
        print_report(Console(width=None if terminal else _PIPE_WIDTH), target, extent, results)


def _fail(code: int, message: str) -> int:
    _tell(message)
    return code


def _tell(message: str) -> None:
    sys.stderr.write(f"{message}\n")
