"""The command line of the programs."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from batchkeeper.bench.conditions import as_document
from batchkeeper.bench.figures import check_extra
from batchkeeper.bench.options import FROM_1, declare, output_console, tell
from batchkeeper.bench.rounds import show_live
from batchkeeper.bench.target import open_target
from batchkeeper.bench.workload import WrongAnswerError
from batchkeeper.ops.errors import MetadataStoreError, UnsupportedError
from batchkeeper.ops.exit_codes import INTERRUPTED, ending_signals
from batchkeeper.pipeline.arguments import at_least, duration
from batchkeeper.pipeline.java import JavaMissingError
from batchkeeper.testing.servers import ALL_SERVERS, ServerStartError
from batchkeeper.testing.servers.releases import ServerMissingError

from . import kills, memory, spark
from .limits import measuring as limits
from .report import as_json, print_report
from .rows import Results

_WRONG: Final = 1
_FAILED: Final = 2

_FAILURES: Final = (JavaMissingError, MetadataStoreError, ServerMissingError, ServerStartError)

# Wide enough for the table: piped output must not be wrapped to the width of a screen.
_PIPE_WIDTH: Final = 300


def main(argv: Sequence[str] | None = None) -> int:
    """Run a program, and return its exit code.

    Returns:
        0 if everything was measured, even if targets of ``limits`` or ``spark`` are missed; 1 if an
        answer was wrong, or ``kills`` or ``memory`` missed its target; 2 if a store or a job
        failed; 130 after Ctrl-C, 143 after SIGTERM. What was measured until then is shown.
    """
    arguments = _parser().parse_args(argv)
    with ending_signals() as signals:
        try:
            return int(arguments.program(arguments))
        except WrongAnswerError as error:
            tell(f"a wrong answer: {error}")
            return _WRONG
        except _FAILURES as error:
            tell(str(error))
            return _FAILED
        except KeyboardInterrupt:
            return 128 + signals[0] if signals else INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("./run targets", description="Measure the project's targets.")
    programs = parser.add_subparsers(required=True, metavar="PROGRAM")

    def program(run: Any, about: str) -> tuple[argparse.ArgumentParser, Callable[..., None]]:
        name = run.__name__.removeprefix("_")
        made = programs.add_parser(name, help=about, description=f"Measure {about}.")
        made.set_defaults(program=run, error=made.error)
        add = declare(made)
        add("--dir", Path, "DIR", Path(".scratch"), "folder for data")
        return made, add

    def table(
        run: Any, about: str, part: str, rounds: int, **names: Any
    ) -> tuple[argparse.ArgumentParser, Callable[..., None]]:
        made, add = program(run, about)
        add("--only", str, "NAME", None, f"{part}; may be repeated", action="append", **names)
        add("--rounds", FROM_1, "N", None, f"rounds (default: {rounds}; quick: 1)")
        about = "do little, to show that it works"
        made.add_argument("--quick", action="store_true", help=about)
        made.add_argument("-o", "--output", choices=("table", "json"), default="table")
        return made, add

    about, default = "how close the client comes to the capacity of its server", limits.Extent()
    made, add = table(_limits, about, "measure only this row", default.rounds)
    made.add_argument("store", choices=limits.STORES)
    time = at_least(0.01, duration)
    add("--seconds", time, "TIME", default.seconds, "duration of one measurement")
    about, what = "Spark's rates of loading and exporting rows", "measure only this part"
    made, add = table(_spark, about, what, spark.Extent().rounds, choices=spark.PARTS)
    both = f"default: {' and '.join(spark.STORES)}"
    made.add_argument("stores", nargs="*", metavar="STORE", help=both)
    add("--rows", at_least(10, int), "N", None, "rows to load and export")
    made, add = program(_kills, "how many writes that a kill catches are settled")
    made.add_argument("store", choices=sorted(ALL_SERVERS))
    add("--kills", FROM_1, "N", 20, "kills of the server")
    add("--threads", FROM_1, "N", 4, "threads that create paths")
    made, add = program(_memory, "the memory of a long stream of puts")
    made.add_argument("target", nargs="?", default="rocksdb", metavar="URL")
    add("--puts", at_least(1, int), "N", 2_000_000, "puts of the stream")
    add("--limit", int, "MIB", 64, "by how much the process may grow")
    return parser


def _limits(arguments: argparse.Namespace) -> bool:
    check_extra()
    known = [row.name for row in limits.rows_of(arguments.store)]
    for name in {*(arguments.only or ())}.difference(known):
        arguments.error(f"{arguments.store} has no row {name!r}, but {', '.join(known)}")
    rows = limits.rows_of(arguments.store, arguments.only)
    extent = (
        limits.quick(arguments.rounds or 1)
        if arguments.quick
        else limits.Extent(arguments.rounds or limits.Extent().rounds, arguments.seconds)
    )
    said = f"about {extent.seconds:g} s each time, warm-up excluded"
    with (
        _shown(arguments, extent, said) as found,
        open_target(arguments.store, arguments.dir, tell) as target,
        show_live(Console(stderr=True)) as show,
    ):
        results = Results(target.name, rows)
        found.append((as_document(target), results))
        limits.measure(target, extent, show, results)
    return False


def _spark(arguments: argparse.Namespace) -> bool:
    if find_spec("pyspark") is None or find_spec("pyarrow") is None:
        raise UnsupportedError("this needs Spark: pip install 'batchkeeper[servers,spark]'")
    check_extra()
    for store in {*arguments.stores}.difference(spark.STORES):
        arguments.error(f"not a store of this program: {store!r}, but {spark.STORES}")
    extent = spark.quick(1) if arguments.quick else spark.Extent()
    extent = replace(
        extent, rows=arguments.rows or extent.rows, rounds=arguments.rounds or extent.rounds
    )
    parts = arguments.only or spark.PARTS
    # It imports Spark, so it must follow the check.
    measure = import_module(".spark.measuring", __package__).measure
    said = (
        f"{extent.rows:,} rows of 100 bytes (the plain client: {extent.plain_rows:,}), a fresh "
        f"server each, from local[2]; Spark's start and warm-up excluded"
    )
    with _shown(arguments, extent, said) as found, show_live(Console(stderr=True)) as show:
        for store in arguments.stores or spark.STORES:
            if rows := spark.rows_of(store, parts):
                measure(store, rows, extent, arguments.dir, tell, show, found)
    return False


@contextmanager
def _shown(
    arguments: argparse.Namespace, extent: limits.Extent | spark.Extent, said: str
) -> Iterator[list[tuple[dict[str, Any], Results]]]:
    """Yield a list for conditions and results, and show what it holds, whatever ends the block."""
    found: list[tuple[dict[str, Any], Results]] = []
    try:
        yield found
    except BaseException as error:
        for conditions, results in found:
            results.keep_measured()
            conditions["warnings"].append(f"the run ended early: {str(error) or 'interrupted'}")
        raise
    finally:
        found = [one for one in found if one[1].rows]
        if arguments.output == "json" and found:
            made = [as_json({**one, **asdict(extent)}, results) for one, results in found]
            shown = made if arguments.program is _spark else made[0]
            sys.stdout.write(f"{json.dumps(shown, indent=2)}\n")
        elif found:
            measured = f"{extent.rounds} interleaved rounds, {said}"
            for conditions, results in found:
                print_report(output_console(_PIPE_WIDTH), conditions, measured, results)


def _kills(arguments: argparse.Namespace) -> bool:
    arguments.dir.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="kills-", dir=arguments.dir) as directory,
        ALL_SERVERS[arguments.store](directory) as server,
    ):
        findings = kills.measure(server, arguments.kills, arguments.threads)
    reached = kills.print_findings(findings)
    if findings.interrupted:
        raise KeyboardInterrupt
    return not reached


def _memory(arguments: argparse.Namespace) -> bool:
    with open_target(arguments.target, arguments.dir, tell) as target:
        return not memory.stream_puts(target, arguments.puts, arguments.limit)
