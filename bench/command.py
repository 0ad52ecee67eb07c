"""The command ``batchkeeper bench``: its options, and its run."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from ..batching import BatchingConfig
from ..ops.errors import InvalidSettingError, MetadataStoreError, UnsupportedError
from ..ops.exit_codes import NO_CONNECTION, OK, REFUSED, exit_code
from ..pipeline.arguments import add_output, at_least, count, items, seconds, size
from ..testing.servers import MEMBERS, ServerStartError
from ..testing.servers.releases import ServerMissingError
from .conditions import as_document
from .figures import check_extra
from .load.callers import Pace
from .load.mixes import READY_MADE, Values, load_mix
from .load.peers import peers_of
from .load.processes import LocalCrew, opened_crew
from .options import FEW, FROM_1, TIME, check_writable, declare, output_console, tell, writing
from .results.advice import summary
from .results.compare import compare, print_comparison
from .results.report import check_extra as check_plots
from .results.report import write_report
from .results.runs import Run, read_run, write_run
from .results.tables import as_csv, print_run
from .rounds import show_live
from .sweep import (
    Sweep,
    batching_variants,
    check_processes,
    measure,
    peer_variants,
    planned,
    written,
)
from .target import BARE_TARGETS, open_target
from .workload import WrongAnswerError

_DEFAULT_TARGET: Final = "rocksdb"

# Of what is piped. Programs take JSON or CSV.
_PIPE_WIDTH: Final = 100

_DESCRIPTION: Final = """\
Load a store with a mix of operations, once with each batch setting, and say
which setting to use. Every answer is checked, and every acknowledged write is
read back; the exit code is 1 if one is missing or wrong.

  batchkeeper bench etcd --max-ops 1,16,64,1000 --max-delay 0,1ms,5ms
  batchkeeper bench etcd --rate 5000 --p99-budget 5ms
  batchkeeper bench zookeeper --mix ledger --peers
  batchkeeper bench compare BEFORE.json AFTER.json
  batchkeeper bench report RESULTS.json
"""

#: How each field of ``BatchingConfig`` is read from the command line.
_FIELDS: Final[Mapping[str, tuple[Callable[[str], Any], str, str]]] = {
    "max_ops": (count, "N", "most operations in a batch"),
    "max_bytes": (size, "SIZE", "most bytes in a batch"),
    "max_delay": (seconds, "TIME", "longest time that an operation waits for others"),
    "max_in_flight": (count, "N", "most batches in flight"),
    "linger": (str, "NAME", "adaptive or fixed"),
    "read_queue_size": (count, "N", "most operations in the queue of reads"),
    "write_queue_size": (count, "N", "most operations in the queue of writes"),
    "max_queued_bytes": (size, "SIZE", "most bytes in each queue"),
    "max_singles": (count, "N", "most single executions beside the batches"),
    "on_full": (str, "NAME", "single, block or raise"),
}
#: The values to compare where no field is given.
_DEFAULT_GRID: Final[Mapping[str, Sequence[Any]]] = {
    "max_ops": [16, 128],
    "max_delay": [0.001, 0.005],
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    pace, sizes, mixes = Pace(), ", ".join(map(str, MEMBERS)), ", ".join(READY_MADE)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description = _DESCRIPTION
    parser.add_argument(
        "target",
        nargs="?",
        metavar="URL",
        help="a store's URL, which --store before the command may also give (BATCHKEEPER_STORE is "
        "ignored, so that a bench never runs on a store by accident); or one of "
        f"{', '.join(BARE_TARGETS)}, for a store in this process or on a throw-away server "
        f"(default: {_DEFAULT_TARGET}); or compare, or report",
    )
    files = "results, for compare (two files) and report (one)"
    parser.add_argument("files", nargs="*", metavar="FILE", type=Path, help=files)
    add = declare(parser)
    add("--members", count, "N", None, f"members of the throw-away server: {sizes} (default: 1)")

    load = parser.add_argument_group("load")
    add = declare(load)
    add("--mix", str, "MIX", READY_MADE[0], f"{mixes}, or a TOML file")
    add("--keys", count, "N", None, "keys that exist at the beginning (default: the mix's)")
    add("--value-bytes", size, "SIZE", None, "size of each value (default: the mix's)")
    add("--in-flight", FROM_1, "N", None, f"operations under way (default: {pace.in_flight})")
    add(
        "--rate",
        at_least(0.001, float, 10_000_000),
        "R",
        None,
        "start R operations per second, whatever the store does, instead of keeping a number under "
        "way; latencies count from the moment at which an operation was due",
    )
    add("--threads", FEW, "N", None, f"threads that submit (default: {pace.threads})")
    add("--tasks", FROM_1, "N", None, "asyncio tasks that submit instead, one operation each")
    add("--processes", FEW, "N", 1, "processes that share the load, with a client each")
    about = "let Spark's executors be the processes; MASTER is a cluster's URL (default: local)"
    add("--spark", str, "MASTER", None, about, nargs="?", const="local")
    about = "measure other clients of the store in the same rounds: etcd3, kazoo, rocksdict"
    load.add_argument("--peers", action="store_true", help=about)
    add("--seed", count, "N", 1, "seed of all choices")

    batch = parser.add_argument_group(
        "batch settings",
        "Each takes a value, a list (1,16,64) or a range (16..1024 doubles). All\n"
        "combinations are measured, beside single execution and the default. Without\n"
        "any: max_ops 16,128 with max_delay 1ms,5ms.",
    )
    add = declare(batch)
    for field, (kind, value, what) in _FIELDS.items():
        name, about = f"--{field.replace('_', '-')}", f"{what} (default: {_default(field)})"
        add(name, items(kind), f"{value},...", None, about, dest=f"grid_{field}")

    length = parser.add_argument_group("length")
    add = declare(length)
    add("--rounds", FROM_1, "N", 5, "rounds; each measures every setting once, in another order")
    add("--seconds", TIME, "TIME", pace.seconds, "length of each measurement")
    add("--warm-up", seconds, "TIME", pace.warm_up, "uncounted time before each measurement")
    about = "measure more rounds until the figures are known within this share (default: 0.05)"
    add("--until-stable", at_least(0.005, float), "SHARE", None, about, nargs="?", const=0.05)
    about = "drop the worse half of many settings after a few rounds, again and again"
    length.add_argument("--successive-halving", action="store_true", help=about)
    about = "advise a setting that keeps the p99 below this, at --rate"
    add("--p99-budget", at_least(0.0001, seconds), "TIME", None, about)

    result = parser.add_argument_group("results")
    add = declare(result)
    about = "folder for the results, and for the data of stores and servers that the bench makes"
    add("--dir", Path, "DIR", Path(".scratch"), about)
    add_output(result, others=("csv",))
    add("--json", Path, "FILE", None, "file for the results (default: a new one in DIR)")
    add("--csv", Path, "FILE", None, "write them as CSV, too")
    about = "file for the report, an HTML page (default: beside the results)"
    add("--report", Path, "FILE", None, about)
    result.add_argument("--no-report", action="store_true", help="write no report")


def _default(field: str) -> str:
    value = getattr(BatchingConfig(), field)
    return "what suits the store" if value is None else written(field, value)


def run(arguments: argparse.Namespace) -> int:
    """Measure, print the results, and return the exit code.

    Raises:
        MetadataStoreError: a setting or the URL is bad, the extra ``bench`` is missing, or the
            store failed. The classes have the same exit codes as in the other commands.
    """
    check_extra()
    files: Sequence[Path] = arguments.files
    if arguments.target == "compare":
        if len(files) != 2:
            raise InvalidSettingError(f"compare needs two files of results, not {len(files)}")
        found = compare(read_run(files[0]), read_run(files[1]))
        print_comparison(output_console(_PIPE_WIDTH), found)
        return found.exit_code
    if arguments.target == "report":
        if len(files) != 1:
            raise InvalidSettingError(f"report needs one file of results, not {len(files)}")
        check_plots()
        page = arguments.report or files[0].with_suffix(".html")
        if page.resolve() == files[0].resolve():
            raise InvalidSettingError(f"the report would replace the results: {page}")
        _write_report(read_run(files[0]), page)
        return OK
    if files:
        raise InvalidSettingError(
            f"what is {str(files[0])!r}? Files are only for compare and report"
        )
    try:
        return _measure(arguments)
    except WrongAnswerError as error:
        tell(f"the store lost or changed an acknowledged write: {error}")
        return REFUSED
    except (ServerMissingError, ServerStartError) as error:
        tell(str(error))
        return NO_CONNECTION


def _measure(arguments: argparse.Namespace) -> int:
    if arguments.report and not arguments.no_report:
        check_plots()
    sweep = _sweep(arguments)
    name = _target_name(arguments)
    file = _json_file(arguments, name)
    timeout = getattr(arguments, "connect_timeout", 10.0)
    found: Run | None = None
    ended: Exception | KeyboardInterrupt | None = None
    try:
        with open_target(name, arguments.dir, tell, timeout, arguments.members) as target:
            check_processes(target, sweep)
            if arguments.peers:
                peers = peer_variants(peers_of(target.kind.scheme))
                sweep = replace(sweep, variants=[*sweep.variants, *peers])
            conditions = as_document(target)
            for warning in conditions["warnings"]:
                tell(warning)
            found = planned(sweep, _command_line(), conditions)
            with _crew(arguments, sweep) as crew, show_live(Console(stderr=True)) as show:
                measure(target, sweep, crew, show, found)
    except (Exception, KeyboardInterrupt) as error:  # also of the clean-up
        if found is None or not any(variant.rounds for variant in found.variants):
            raise
        ended = error
    _show(arguments, found, file)
    if found.broken is not None and not isinstance(ended, WrongAnswerError):
        tell(f"the run ended early: {found.broken}")
    if isinstance(ended, MetadataStoreError) and found.broken is not None:
        return exit_code(ended)
    if ended is not None:
        raise ended
    if not any(m.operations for variant in found.variants for m in variant.rounds):
        raise InvalidSettingError(
            f"nothing was measured: no operation ended within --seconds {arguments.seconds:g}; "
            f"allow more time, or a higher --rate"
        )
    return OK if found.broken is None else NO_CONNECTION


def _show(arguments: argparse.Namespace, found: Run, file: Path) -> None:
    document = f"{write_run(found, summary(found))}\n"
    output = getattr(arguments, "output", "table")
    if output == "json":
        sys.stdout.write(document)
    elif output == "jsonl":
        sys.stdout.write(f"{json.dumps(json.loads(document))}\n")
    elif output == "csv":
        sys.stdout.write(as_csv(found))
    else:
        print_run(output_console(_PIPE_WIDTH), found)
    # Files are written last, so that a full disk does not prevent the table.
    with writing(file):
        file.write_text(document)
    tell(f"the results: {file}")
    if arguments.csv:
        with writing(arguments.csv):
            arguments.csv.write_text(as_csv(found))
    if not arguments.no_report:
        _write_report(found, arguments.report or file.with_suffix(".html"))


def _write_report(found: Run, file: Path) -> None:
    try:
        with writing(file):
            write_report(found, file)
    except UnsupportedError as error:
        tell(f"no report: {error}")  # With --report, this was found out before the run.
    else:
        tell(f"the report: {file}")


def _sweep(arguments: argparse.Namespace) -> Sweep:
    mix = load_mix(arguments.mix)
    if arguments.keys is not None:
        mix = replace(mix, keys=replace(mix.keys, count=arguments.keys))
    if arguments.value_bytes is not None:
        mix = replace(mix, values=Values(bytes=arguments.value_bytes))
    if arguments.tasks and (arguments.threads or arguments.in_flight):
        raise InvalidSettingError(
            "--tasks stands for itself: each task has one operation under way; "
            "leave out --threads and --in-flight"
        )
    if arguments.p99_budget is not None and arguments.rate is None:
        raise InvalidSettingError(
            "--p99-budget needs --rate: with a number of operations under way, the latency is that "
            "of a queue of this length, and says nothing about your service"
        )
    spark = arguments.spark is not None
    processes = 2 if spark and arguments.processes == 1 else arguments.processes
    default = Pace()
    threads = arguments.threads or default.threads
    in_flight = arguments.tasks or arguments.in_flight or default.in_flight
    if in_flight < threads * processes:
        raise InvalidSettingError(
            f"--in-flight {in_flight} is less than one operation for each thread of each process"
        )
    if 0 < mix.keys.count < threads * processes:
        raise InvalidSettingError(
            f"--keys {mix.keys.count} is less than one key for each thread of each process"
        )
    grid = {field: getattr(arguments, f"grid_{field}") for field in _FIELDS}
    grid = {field: values for field, values in grid.items() if values is not None}
    tasks = arguments.tasks is not None
    return Sweep(
        mix=mix,
        variants=batching_variants(grid or _DEFAULT_GRID),
        pace=Pace(in_flight, threads, tasks, arguments.rate, arguments.seconds, arguments.warm_up),
        seed=arguments.seed,
        rounds=arguments.rounds,
        until_stable=arguments.until_stable,
        successive_halving=arguments.successive_halving,
        p99_budget=arguments.p99_budget,
        processes=processes,
        spark=spark,
    )


def _command_line() -> list[str]:
    """Return the arguments after ``bench``, as they were typed."""
    return sys.argv[sys.argv.index("bench") + 1 :] if "bench" in sys.argv else []


def _crew(arguments: argparse.Namespace, sweep: Sweep) -> AbstractContextManager[LocalCrew]:
    if not sweep.spark:
        return opened_crew(sweep.processes)
    # Loaded on demand: Spark is an extra of its own.
    from .load.executors import spark_crew  # noqa: PLC0415

    return spark_crew(arguments.spark, sweep.processes, arguments.dir)


def _target_name(arguments: argparse.Namespace) -> str:
    named: str | None = arguments.target
    store: str | None = getattr(arguments, "store", None)
    if named is not None and store is not None and named != store:
        raise InvalidSettingError(f"two stores given: {named!r}, and --store {store!r}")
    return named or store or _DEFAULT_TARGET


def _json_file(arguments: argparse.Namespace, name: str) -> Path:
    """Return the file for the results; refuse now what cannot be written at the end."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    bare = name if name in BARE_TARGETS else "url"
    file: Path = arguments.json or arguments.dir / f"bench-{bare}-{stamp}.json"
    if arguments.json is None:
        with writing(file.parent):
            file.parent.mkdir(parents=True, exist_ok=True)
    report = None if arguments.no_report else arguments.report or file.with_suffix(".html")
    check_writable(*filter(None, (file, arguments.csv, report)))
    return file
