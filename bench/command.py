"""The command ``batchkeeper bench``: its options, and its run."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from rich.console import Console

from ..ops.errors import InvalidSettingError
from .arguments import at_least, integer, list_of, number
from .drive import Duration
from .figures import check_extra
from .progress import show_progress, tell
from .releases import ServerMissingError
from .runner import Schedule, measure, settings_of
from .servers import MEMBERS, ServerStartError
from .tables import as_json, print_report
from .target import BARE_TARGETS, open_target
from .workload import DEFAULT_MIX, STEPS, Workload, WrongAnswerError

__all__ = ["add_arguments", "run"]

_FINE: Final = 0
_CHECK_FAILED: Final = 1
_NO_CONNECTION: Final = 2

_DEFAULT_TARGET: Final = "rocksdb"

# Wide enough for every table: piped output must not be wrapped to the width of a screen.
_PIPE_WIDTH: Final = 500


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    defaults = Workload()
    parser.description = (
        "Compare batch settings under the workload of message hubs: they claim topics, advance\n"
        "consume marks, read both, and drop topics. Every acknowledged write is read back\n"
        "afterwards; the exit code is 1 if one is missing or wrong."
    )
    parser.add_argument(
        "target",
        nargs="?",
        metavar="URL",
        help="a store's URL, which --store before the command may also give (BATCHKEEPER_STORE is "
        "ignored, so that a bench never runs on a store by accident); or one of "
        f"{', '.join(BARE_TARGETS)}, for a store in this process or on a throw-away server "
        f"(default: {_DEFAULT_TARGET})",
    )
    parser.add_argument(
        "--members",
        type=integer,
        metavar="N",
        help=f"members of the throw-away server: {', '.join(map(str, MEMBERS))} (default: 1)",
    )
    parser.add_argument(
        "--dir",
        type=Path,
        default=Path(".scratch"),
        help="folder for the JSON, and for the data of stores and servers that the bench creates "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "-o",
        "--output",
        choices=("table", "json", "jsonl"),
        default=argparse.SUPPRESS,  # The same option may be given before the command.
        help="format on standard output (default: table)",
    )
    parser.add_argument(
        "--json",
        type=Path,
        metavar="FILE",
        help="write the results to this file, too (default: a new file in DIR)",
    )
    work = parser.add_argument_group("work")
    work.add_argument(
        "--hubs",
        type=integer,
        default=defaults.hubs,
        metavar="N",
        help="hubs at work at the same time (default: %(default)s)",
    )
    work.add_argument(
        "--outstanding",
        type=integer,
        default=defaults.outstanding,
        metavar="N",
        help="operations under way for each hub (default: %(default)s)",
    )
    work.add_argument(
        "--topics",
        type=integer,
        default=defaults.topics,
        metavar="N",
        help="topics of all hubs together (default: %(default)s)",
    )
    work.add_argument(
        "--value-bytes",
        type=integer,
        default=defaults.value_bytes,
        metavar="N",
        help="the size of each value (default: %(default)s)",
    )
    work.add_argument(
        "--mix",
        type=_mix,
        default=DEFAULT_MIX,
        metavar="STEP=WEIGHT,...",
        help=f"weights of the steps after a claim: {', '.join(STEPS)} "
        f"(default: {','.join(f'{step}={weight:g}' for step, weight in DEFAULT_MIX.items())}; "
        f"an omitted step has the weight 0)",
    )
    work.add_argument(
        "--seed",
        type=integer,
        default=defaults.seed,
        metavar="N",
        help="seed of the random choices (default: %(default)s)",
    )
    work.add_argument(
        "--threads",
        type=at_least(1, int),
        default=1,
        metavar="N",
        help="threads that run the hubs (default: %(default)s)",
    )
    batch = parser.add_argument_group("batch settings; the bench measures all combinations")
    batch.add_argument(
        "--max-ops",
        type=list_of(int),
        default="100,1000",
        metavar="N,...",
        help="most operations in a batch (default: %(default)s)",
    )
    batch.add_argument(
        "--max-delay",
        type=list_of(float),
        default="0.001,0.005",
        metavar="SECONDS,...",
        help="longest time that an operation waits for others (default: %(default)s)",
    )
    batch.add_argument(
        "--max-in-flight",
        type=list_of(int),
        default="1,4",
        metavar="N,...",
        help="most batches in flight (default: %(default)s)",
    )
    length = parser.add_argument_group("length")
    length.add_argument(
        "--rounds",
        type=at_least(1, int),
        default=3,
        metavar="N",
        help="rounds; each measures every setting once (default: %(default)s)",
    )
    length.add_argument(
        "--seconds",
        type=at_least(0, float),
        default=0.3,
        metavar="SECONDS",
        help="length of each measurement (default: %(default)s)",
    )
    length.add_argument(
        "--warm-up",
        type=at_least(0, float),
        default=0.1,
        metavar="SECONDS",
        help="uncounted time before each measurement (default: %(default)s)",
    )
    length.add_argument(
        "--operations",
        type=at_least(1, int),
        metavar="N",
        help="end a measurement after N operations for each thread",
    )


def run(arguments: argparse.Namespace) -> int:
    """Measure, print the report, and return the exit code.

    Raises:
        MetadataStoreError: a setting or the URL is bad, the extra ``bench`` is missing, or the
            store failed. The classes have the same exit codes as in the other commands.
    """
    try:
        _run(arguments)
    except WrongAnswerError as error:
        return _fail(_CHECK_FAILED, f"the store lost or changed an acknowledged write: {error}")
    except (ServerMissingError, ServerStartError) as error:
        return _fail(_NO_CONNECTION, str(error))
    return _FINE


def _fail(code: int, message: str) -> int:
    tell(message)
    return code


def _run(arguments: argparse.Namespace) -> None:
    check_extra()
    plan = Schedule(
        workload=Workload(
            hubs=arguments.hubs,
            outstanding=arguments.outstanding,
            topics=arguments.topics,
            value_bytes=arguments.value_bytes,
            mix=arguments.mix,
            seed=arguments.seed,
        ),
        settings=settings_of(arguments.max_ops, arguments.max_delay, arguments.max_in_flight),
        rounds=arguments.rounds,
        duration=Duration(arguments.seconds, arguments.warm_up, arguments.operations),
        threads=arguments.threads,
    )
    name = _target_name(arguments)
    file = _json_file(arguments, name)
    timeout = getattr(arguments, "connect_timeout", 10.0)
    with open_target(name, arguments.dir, tell, timeout, arguments.members) as target:
        steps = plan.rounds * (len(plan.settings) + (target.plain is not None))
        with show_progress(Console(stderr=True), steps) as step:
            results = measure(target, plan, step)
    found = as_json(target, plan, results)
    report = json.dumps(found, indent=2)
    output = getattr(arguments, "output", "table")
    if output != "table":
        sys.stdout.write(f"{report if output == 'json' else json.dumps(found)}\n")
    else:
        terminal = sys.stdout.isatty()
        print_report(Console(width=None if terminal else _PIPE_WIDTH), target, plan, results)
    # Write the file last, so that a full disk does not prevent the report.
    try:
        file.write_text(report + "\n")
    except OSError as error:
        raise InvalidSettingError(f"{file} cannot be written: {error.strerror}") from error
    tell(f"the same as JSON: {file}")


def _target_name(arguments: argparse.Namespace) -> str:
    named: str | None = arguments.target
    store: str | None = getattr(arguments, "store", None)
    if named is not None and store is not None and named != store:
        raise InvalidSettingError(f"two stores given: {named!r}, and --store {store!r}")
    given = store if named is None else named
    return _DEFAULT_TARGET if given is None else given


def _json_file(arguments: argparse.Namespace, name: str) -> Path:
    """Return the file for the JSON; refuse now if it cannot be written at the end."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    bare = name if name in BARE_TARGETS else "url"
    file: Path = arguments.json or arguments.dir / f"bench-{bare}-{stamp}.json"
    try:
        if arguments.json is None:
            file.parent.mkdir(parents=True, exist_ok=True)
        if file.is_dir() or not file.parent.is_dir():
            raise InvalidSettingError(f"not a file that can be written: {file}")
    except OSError as error:
        raise InvalidSettingError(f"{file.parent} cannot be used: {error.strerror}") from error
    return file


def _mix(text: str) -> Mapping[str, float]:
    mix: dict[str, float] = {}
    for part in text.split(","):
        step, equals, weight = part.partition("=")
        if not equals or step in mix:
            raise argparse.ArgumentTypeError(f"must be STEP=WEIGHT, each step once: {part!r}")
        mix[step] = number(weight, float)
    return mix
