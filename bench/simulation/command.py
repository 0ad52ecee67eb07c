"""The command ``batchkeeper hubs simulate``: its options, and its run."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any, Final, get_args

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ...hubs import OwnershipMode
from ...ops.errors import InvalidSettingError
from ...ops.exit_codes import NO_CONNECTION, OK, REFUSED
from ...pipeline.arguments import add_output, at_least, seconds
from ...stores.kinds import BUILT_IN
from ...stores.registry import store_kind
from ...testing.servers import MEMBERS, SERVERS, ServerStartError
from ...testing.servers.releases import ServerMissingError
from ..progress import tell
from ..target import open_target
from .checks import Verdict
from .picture import page
from .plan import FAULTS, Plan
from .simulation import Outcome, simulate

__all__ = ["add_arguments", "run"]

_DEFAULT_TARGET: Final = "etcd"

_DESCRIPTION: Final = """\
Let real hub processes serve topics to clients, while they are killed, paused, cut off from the
store, drained, stopped and started again. Then check from the records of all processes what hubs
promise, and draw who owned which topic when. The exit code is 1 if a promise was broken.
"""

# Wide enough for every table: piped output must not be wrapped to the width of a screen.
_PIPE_WIDTH: Final = 500


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    default = Plan()
    parser.description = _DESCRIPTION
    parser.add_argument(
        "--store",
        metavar="URL",
        default=argparse.SUPPRESS,  # The same option may be given before the command.
        help="the URL of an etcd or a ZooKeeper, or one of these names for a throw-away server "
        f"(default: {_DEFAULT_TARGET}; BATCHKEEPER_STORE is ignored, so that no simulation runs on "
        "a store by accident)",
    )
    parser.add_argument(
        "--members",
        type=at_least(1, int),
        metavar="N",
        help=f"members of the throw-away server: {', '.join(map(str, MEMBERS))} (default: 1)",
    )
    number = at_least(1, int)
    parser.add_argument(
        "--hubs", type=number, default=default.hubs, metavar="N", help="default: %(default)s"
    )
    parser.add_argument(
        "--topics", type=number, default=default.topics, metavar="N", help="default: %(default)s"
    )
    parser.add_argument(
        "--subscribers",
        type=number,
        default=default.subscribers,
        metavar="N",
        help="subscribers of each topic (default: %(default)s)",
    )
    parser.add_argument(
        "--minutes",
        type=at_least(0, float),
        default=default.seconds / 60,
        metavar="N",
        help="how long clients publish (default: %(default)g)",
    )
    parser.add_argument(
        "--rate",
        type=at_least(0, float),
        default=default.rate,
        metavar="N",
        help="messages a second, of all publishers (default: %(default)g)",
    )
    parser.add_argument(
        "--kill-every",
        type=seconds,
        default=default.kill_every,
        metavar="TIME",
        help="the time from one fault to the next, such as 10s, on average (default: %(default)gs)",
    )
    parser.add_argument(
        "--faults",
        type=_faults,
        default=default.faults,
        metavar="NAME,...",
        help=f"what happens to hubs: {', '.join(FAULTS)}, or none (default: all of them)",
    )
    parser.add_argument(
        "--session-timeout",
        type=seconds,
        default=default.session_timeout,
        metavar="TIME",
        help="after which the store ends the session of a hub (default: %(default)gs)",
    )
    parser.add_argument(
        "--ownership",
        choices=get_args(OwnershipMode),
        default=default.ownership,
        help="how the owners of topics are kept (default: %(default)s)",
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=default.seed,
        metavar="N",
        help="decides which fault comes when, and to which hub (default: %(default)s)",
    )
    parser.add_argument(
        "--dir",
        type=Path,
        default=Path(".scratch"),
        help="folder for the picture, the records, the logs and the server (default: %(default)s)",
    )
    parser.add_argument(
        "--html", type=Path, metavar="FILE", help="the picture (default: a new file in DIR)"
    )
    add_output(parser)


def run(arguments: argparse.Namespace) -> int:
    """Simulate, print the verdicts, and return the exit code.

    Raises:
        MetadataStoreError: a setting or the URL is bad, or the store failed.
    """
    plan = Plan.of({**vars(arguments), "seconds": 60 * arguments.minutes})
    name: str = getattr(arguments, "store", None) or _DEFAULT_TARGET
    if name not in SERVERS and (name in BUILT_IN or store_kind(name).scheme not in SERVERS):
        raise InvalidSettingError(
            f"hubs are processes, which need an etcd or a ZooKeeper in common, not {name!r}"
        )
    # Hubs and clients run in folders of their own.
    directory: Path = arguments.dir.absolute() / f"hubs-{time.strftime('%Y%m%d-%H%M%S')}"
    file: Path = arguments.html or directory.with_suffix(".html")
    _check_writable(file, directory)
    timeout = getattr(arguments, "connect_timeout", 10.0)
    try:
        with open_target(name, arguments.dir, tell, timeout, arguments.members) as target:
            region = f"{target.root}/region"
            outcome = simulate(target.url.text, region, plan, directory, Console(stderr=True))
    except (ServerMissingError, ServerStartError) as error:
        _discard(file, directory)
        tell(str(error))
        return NO_CONNECTION
    file.write_text(page(f"Hubs on {target.kind.title}", plan, outcome.history, outcome.verdicts))
    _print(outcome, plan, getattr(arguments, "output", "table"))
    tell(f"the picture: {file}; the records: {directory / 'events'}")
    return OK if outcome.holds else REFUSED


def _check_writable(file: Path, directory: Path) -> None:
    """Refuse outputs that could not be written at the end."""
    try:
        directory.mkdir(parents=True)
        file.touch()
    except OSError as error:
        raise InvalidSettingError(
            f"{error.filename} cannot be written: {error.strerror}"
        ) from error


def _discard(file: Path, directory: Path) -> None:
    """Remove the files that were created to check for writability, if they are still empty."""
    if not file.stat().st_size:
        file.unlink()
    if not any(directory.iterdir()):
        directory.rmdir()


def _print(outcome: Outcome, plan: Plan, output: str) -> None:
    if output != "table":
        shown = {"plan": plan.as_json(), "verdicts": [_as_json(one) for one in outcome.verdicts]}
        sys.stdout.write(f"{json.dumps(shown, indent=2 if output == 'json' else None)}\n")
        return
    console = Console(width=None if sys.stdout.isatty() else _PIPE_WIDTH)
    table = Table(box=None, pad_edge=False)
    for title in ("promise", "holds", "found"):
        table.add_column(title)
    for verdict in outcome.verdicts:
        table.add_row(*map(Text, verdict.cells()), style="" if verdict.holds else "bold red")
    console.print(table)


def _as_json(verdict: Verdict) -> dict[str, Any]:
    return {**verdict._asdict(), "holds": verdict.holds}


def _faults(text: str) -> tuple[str, ...]:
    return () if text == "none" else tuple(text.split(","))
