"""The command ``batchkeeper hubs simulate``: its options, and its run."""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict
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
from ..options import FEW, FROM_1, check_writable, declare, output_console, tell, writing
from ..target import open_target
from .checks import Verdict
from .picture import page
from .plan import FAULTS, Plan
from .simulation import Outcome, simulate

_DEFAULT_TARGET: Final = "etcd"
_FROM_0: Final = at_least(0, float)

_DESCRIPTION: Final = """\
Let real hub processes serve topics to clients, while they are killed, paused, cut off from the
store, drained, stopped and started again. Then check from the records of all processes what hubs
promise, and draw who owned which topic when. The exit code is 1 if a promise was broken.
"""

# Wide enough for every table: piped output must not be wrapped to the width of a screen.
_PIPE_WIDTH: Final = 500


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    default, sizes = Plan(), ", ".join(map(str, MEMBERS))
    parser.description = _DESCRIPTION
    parser.add_argument(
        "--store",
        metavar="URL",
        default=argparse.SUPPRESS,  # The same option may be given before the command.
        help="the URL of an etcd or a ZooKeeper, or one of these names for a throw-away server "
        f"(default: {_DEFAULT_TARGET}; BATCHKEEPER_STORE is ignored, so that no simulation runs on "
        "a store by accident)",
    )
    add = declare(parser)
    add("--members", FROM_1, "N", None, f"members of the throw-away server: {sizes} (default: 1)")
    add("--hubs", FEW, "N", default.hubs, "hubs")
    add("--topics", FROM_1, "N", default.topics, "topics")
    add("--subscribers", FEW, "N", default.subscribers, "subscribers of each topic")
    add("--minutes", _FROM_0, "N", default.seconds / 60, "how long clients publish")
    add("--rate", _FROM_0, "N", default.rate, "messages a second, of all publishers")
    about = "the time from one fault to the next, such as 10s, on average"
    add("--kill-every", seconds, "TIME", default.kill_every, about)
    about = f"what happens to hubs: {', '.join(FAULTS)}, or none (default: all of them)"
    parser.add_argument("--faults", type=_faults, default=FAULTS, metavar="NAME,...", help=about)
    about = "after which the store ends the session of a hub"
    add("--session-timeout", seconds, "TIME", default.session_timeout, about)
    about, modes = "how the owners of topics are kept", get_args(OwnershipMode)
    add("--ownership", str, None, default.ownership, about, choices=modes)
    add("--seed", int, "N", default.seed, "decides which fault comes when, and to which hub")
    about = "folder for the picture, the records, the logs and the server"
    add("--dir", Path, "DIR", Path(".scratch"), about)
    add("--html", Path, "FILE", None, "the picture (default: a new file in DIR)")
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
    if arguments.html:
        check_writable(file)
    timeout = getattr(arguments, "connect_timeout", 10.0)
    try:
        with open_target(name, arguments.dir, tell, timeout, arguments.members) as target:
            with writing(directory):
                directory.mkdir(parents=True)
            region = f"{target.root}/region"
            outcome = simulate(target.url.text, region, plan, directory, Console(stderr=True))
    except (ServerMissingError, ServerStartError) as error:
        tell(str(error))
        return NO_CONNECTION
    with writing(file):
        title = f"Hubs on {target.kind.title}"
        file.write_text(page(title, plan, outcome.history, outcome.verdicts))
    _print(outcome, plan, getattr(arguments, "output", "table"))
    tell(f"the picture: {file}; the records: {directory / 'events'}")
    return OK if outcome.holds else REFUSED


def _print(outcome: Outcome, plan: Plan, output: str) -> None:
    if output != "table":
        shown = {"plan": asdict(plan), "verdicts": [_as_json(one) for one in outcome.verdicts]}
        sys.stdout.write(f"{json.dumps(shown, indent=2 if output == 'json' else None)}\n")
        return
    table = Table(box=None, pad_edge=False)
    for title in ("promise", "holds", "found"):
        table.add_column(title)
    for verdict in outcome.verdicts:
        table.add_row(*map(Text, verdict.cells()), style="" if verdict.holds else "bold red")
    output_console(_PIPE_WIDTH).print(table)


def _as_json(verdict: Verdict) -> dict[str, Any]:
    return {**verdict._asdict(), "holds": verdict.holds}


def _faults(text: str) -> tuple[str, ...]:
    return () if text == "none" else tuple(text.split(","))
