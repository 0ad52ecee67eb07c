"""The commands of ``batchkeeper hubs``: which hubs there are, who owns what, and a simulation."""

from __future__ import annotations

import argparse
import importlib
import sys
import time
from collections.abc import Mapping
from types import ModuleType
from typing import Any, Final

from .. import Get, GetResult, MetadataStore, NotFoundError, Stat, ValueDecodeError, WatchEvent
from ..batching.background import each
from ..hubs import Hosts, HubInfo, HubMembership, open_managers, open_ownership, score
from ..hubs.names import escaped, text_of
from ..ops.exit_codes import NO_CONNECTION, OK, REFUSED
from ..pipeline.arguments import seconds
from .arguments import Run, add_common, open_named
from .named_stores import in_place
from .output import tell, write_json, write_table
from .watches import until_closed

__all__ = ["add_arguments", "run"]

_REGION: Final = "/hedwig/region"

_EVENTS: Final = """\
Each event is a line of JSON, whatever --output says:
  {"event": "claimed", "topic": "orders", "hub": "hub-1:4080", "incarnation": 7, "epoch": 3}
  {"event": "released", "topic": "orders"}              (in the layout of paths)
  {"event": "joined", "hub": "hub-1:4080"}              or "left"
  {"event": "membership", "hub": "hub-1:4080", "eligible": true, "draining": true}
  {"event": "gap"}                                      changes are missing: list them anew
"""

# Requests under way at a time.
_AT_ONCE: Final = 32
# Seconds between two looks at a hub that drains.
_POLL: Final = 0.2


def add_arguments(parser: argparse.ArgumentParser, *, simulate: bool) -> None:
    """Declare the commands.

    Args:
        parser: the parser of the group.
        simulate: whether ``simulate`` declares its arguments, which takes a while to import.
    """
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    def add(name: str, run: Run, about: str) -> argparse.ArgumentParser:
        command: argparse.ArgumentParser = commands.add_parser(
            name,
            help=about,
            description=f"{about[0].upper()}{about[1:]}.",
            epilog=parser.epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.set_defaults(of_hubs=run)
        return command

    listing = add("list", _list, "list the hubs of a region, with their loads")
    topics = add("topics", _topics, "list the topics of a region, with their owners")
    drain = add("drain", _drain, "let a hub give its topics to others, and get no more of them")
    drain.add_argument("hub", metavar="HUB", help="its address, such as hub-1:4080")
    drain.add_argument("--undo", action="store_true", help="let it get topics again")
    drain.add_argument(
        "--wait",
        type=seconds,
        metavar="TIME",
        help="return when it has given all topics up, or with 2 after this time, such as 60s",
    )
    watch = add("watch", _watch, "write changes of hubs and owners as they happen")
    watch.epilog = f"{_EVENTS}\n{watch.epilog}"
    for command in (listing, topics, drain, watch):
        command.add_argument(
            "--region", metavar="PATH", default=_REGION, help="default: %(default)s"
        )
        add_common(command, verbose=False)
    simulation = add(
        "simulate", _simulate, "let hub processes be killed while they serve, and judge"
    )
    if simulate:
        _simulation().add_arguments(simulation)


def run(arguments: argparse.Namespace) -> int:
    """Run the command of the group that the arguments name, and return its exit code."""
    of_hubs: Run = arguments.of_hubs
    return of_hubs(arguments)


def _simulate(arguments: argparse.Namespace) -> int:
    with in_place(arguments, "store"):
        code: int = _simulation().run(arguments)
        return code


def _simulation() -> ModuleType:
    return importlib.import_module("..bench.simulation.command", __package__)


def _list(arguments: argparse.Namespace) -> int:
    with open_named(arguments, create=False) as store, Hosts(store, arguments.region) as hosts:
        alive = hosts.hubs()
        rows = []
        for address, membership in sorted(hosts.memberships().items()):
            hub = alive.get(address)
            row: dict[str, Any] = {
                "hub": address,
                "alive": hub is not None,
                "eligible": membership.eligible,
                "draining": membership.draining,
            }
            if hub is not None:
                load = hub.load
                row |= {
                    "incarnation": hub.info.incarnation,
                    "topics": load.topics,
                    "message_rate": round(load.message_rate, 1),
                    "connections": load.connections,
                    "capacity": load.capacity,
                    "score": round(score(load), 2),
                }
            rows.append(row)
    titles = ("hub", "state", "topics", "message_rate", "connections", "capacity", "score")
    write_table(titles, [{**row, "state": _state(row)} for row in rows], rows, arguments.output)
    if not rows:
        tell(f"no hub belongs to {arguments.region}: name the region with --region")
    return OK if rows else REFUSED


def _state(row: Mapping[str, Any]) -> str:
    if not row["alive"]:
        return "gone"
    if row["draining"]:
        return "drains"
    return "serves" if row["eligible"] else "not eligible"


def _topics(arguments: argparse.Namespace) -> int:
    region = arguments.region
    with open_named(arguments, create=False) as store, Hosts(store, region) as hosts:
        if not store.exists(f"{region}/layout").result():  # The managers would write it.
            raise NotFoundError(f"no region is at {region}: name it with --region", path=region)
        managers = open_managers(store, region)
        ownership = open_ownership(store, managers, hosts)
        names = [text_of(part) for part in store.get_children(f"{region}/topics").result()]
        topics = [name for name in names if name is not None]
        owners: dict[str, HubInfo | None] = {}

        def look(topic: str) -> None:
            owners[topic] = ownership.owner(topic)

        each(look, topics, _AT_ONCE)
        epochs = store.apply([Get(f"{region}/topics/{escaped(topic)}/epoch") for topic in topics])
    rows = []
    for topic, epoch in zip(topics, epochs, strict=True):
        if epoch.error is not None:
            raise epoch.error
        assert not isinstance(epoch.result, bool | list | Stat), "a get has a GetResult"
        owner = owners[topic]
        rows.append(
            {
                "topic": topic,
                "hub": None if owner is None else owner.address,
                "incarnation": None if owner is None else owner.incarnation,
                "epoch": 0 if epoch.result is None else _epoch(epoch.result),
            }
        )
    shown = [{**row, "hub": row["hub"] or "-"} for row in rows]
    write_table(("topic", "hub", "epoch"), shown, rows, arguments.output)
    return OK


def _drain(arguments: argparse.Namespace) -> int:
    hub: str = arguments.hub
    with open_named(arguments, create=False) as store, Hosts(store, arguments.region) as hosts:
        hosts.set_draining(hub, not arguments.undo)
        if arguments.undo or arguments.wait is None:
            return OK
        end = time.monotonic() + arguments.wait
        while (found := hosts.hubs().get(hub)) is not None and found.load.topics:
            if time.monotonic() >= end:
                tell(f"{hub} still has {found.load.topics} topics")
                return NO_CONNECTION
            time.sleep(_POLL)
    return OK


def _watch(arguments: argparse.Namespace) -> int:
    region: str = arguments.region
    with (
        open_named(arguments, create=False) as store,
        store.watch(region) as events,
    ):
        tell(f"watching {region!r}")
        for event in until_closed(events):
            shown = _shown(store, region, event)
            if shown is not None:
                write_json(shown, "jsonl")
                sys.stdout.flush()
    return OK


def _shown(store: MetadataStore, region: str, event: WatchEvent) -> dict[str, Any] | None:
    """Return what an event says about hubs and topics; ``None`` if it says nothing."""
    if event.kind == "gap":
        return {"event": "gap"}
    match event.path[len(region) + 1 :].split("/"):
        case "topics", part, "epoch" if (found := store.get(event.path).result()) is not None:
            try:
                hub = HubInfo.decoded(found.value, event.path)
            except ValueDecodeError:
                return None
            return {
                "event": "claimed",
                "topic": text_of(part),
                "hub": hub.address,
                "incarnation": hub.incarnation,
                "epoch": _epoch(found),
            }
        case "topics", part, "hub" if event.kind == "deleted":
            return {"event": "released", "topic": text_of(part)}
        case "hosts", part, "alive" if event.kind != "modified":
            return {
                "event": "joined" if event.kind == "created" else "left",
                "hub": text_of(part),
            }
        case "hosts", part if (found := store.get(event.path).result()) is not None:
            try:
                membership = HubMembership.decoded(found.value, event.path)
            except ValueDecodeError:
                return None
            return {
                "event": "membership",
                "hub": text_of(part),
                "eligible": membership.eligible,
                "draining": membership.draining,
            }
    return None


def _epoch(found: GetResult) -> int:
    return found.stat.version + 1
