"""Runs a simulation: servers, hubs, clients and faults, followed by the verdicts."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from rich.console import Console

from ... import open_store
from ...hubs import FileLogs, Hosts, HubInfo, MetadataManagers, open_managers
from ...ops.errors import MetadataStoreError
from ...stores.registry import parse_url
from ...testing.servers.processes import ServerProcess, ServerStartError, free_ports
from .checks import Logs, Verdict, judge
from .events import Recorder, Tail
from .faults import Faults, SimulatedHub
from .history import History
from .lines import Lines
from .live import Board
from .plan import Plan

# Seconds between two checks of the records and of the faults.
_LOOK: Final = 0.1
# Seconds for hubs and clients to start, and to stop.
_PATIENCE: Final = 120.0
# The time without faults, in session timeouts: at the beginning, when topics get their owners and
# then stay, and at the end of the publishing, when everything must recover.
_CALM_AT_FIRST: Final = 2.0
_CALM_AT_LAST: Final = 3.0


# Seconds between two readings.
_PAUSE: Final = 1.0


class Outcome(NamedTuple):
    """The outcome of a simulation.

    Attributes:
        history: the history of its records.
        verdicts: the verdicts.
    """

    history: History
    verdicts: list[Verdict]

    @property
    def holds(self) -> bool:
        """Whether all promises hold."""
        return all(verdict.holds for verdict in self.verdicts)


def simulate(url: str, region: str, plan: Plan, directory: Path, console: Console) -> Outcome:
    """Run a simulation, and return its outcome.

    Args:
        url: the store: an etcd or a ZooKeeper.
        region: the path of the region, which must be unused.
        plan: the plan.
        directory: an empty directory for logs and records; it is created if it is missing.
        console: shows the live counts.

    Raises:
        ServerStartError: a hub or the clients do not start or do not stop.
        MetadataStoreError: the store cannot be reached.
    """
    events, logs = directory / "events", directory / "logs"
    for made in (events, logs):
        made.mkdir(parents=True)
    with ExitStack() as stack:
        store = stack.enter_context(open_store(url))
        managers = stack.enter_context(open_managers(store, region))
        hosts = stack.enter_context(Hosts(store, region))
        record = Recorder(events / "simulation.jsonl")
        stack.callback(record.close)
        lines = None
        if {"cut", "blink"} & set(plan.faults):
            lines = Lines(parse_url(url), plan.addresses)
            stack.callback(lines.close)
        hubs = [
            SimulatedHub(
                number,
                port,
                events,
                plan,
                url=url if lines is None else lines.url(number),
                region=region,
                directory=str(logs),
            )
            for number, port in enumerate(free_ports(plan.addresses))
        ]
        clients = ServerProcess("clients", events, Path.cwd())
        for process in (*(hub.process for hub in hubs), clients):
            stack.callback(process.kill)
        board, tail = Board(plan, hubs, console), Tail(events)
        if console.is_terminal:
            stack.enter_context(board.live)

        alive: dict[str, HubInfo] = {}

        def look() -> None:
            nonlocal alive
            before, alive = alive, {name: hub.info for name, hub in hosts.hubs().items()}
            for name, info in before.items():
                if alive.get(name) != info:
                    record("gone", hub=name, incarnation=info.incarnation)
            board.show(tail.new())
            time.sleep(_LOOK)

        first = hubs[: plan.hubs]
        for hub in first:
            hub.start()
        _await_hubs(first, hosts, look)
        addresses = [hub.address for hub in first]
        command = plan.command("clients", events=str(events / "clients.jsonl"), hubs=addresses)
        with _recorded_marks(managers, plan, record):
            clients.launch(command, os.environ)
            now = time.monotonic()
            begin = now + _CALM_AT_FIRST * plan.session_timeout
            end = now + plan.seconds - _CALM_AT_LAST * plan.session_timeout
            faults = Faults(plan, hubs, lines, hosts, record, begin, end)
            _until_done(plan, clients, faults, look)
            _stop(hubs)
    history = History.of(Tail(events).new())
    return Outcome(history, judge(plan, history, _contents(plan, logs)))


def _await_hubs(hubs: Sequence[SimulatedHub], hosts: Hosts, look: Callable[[], None]) -> None:
    deadline = time.monotonic() + _PATIENCE
    while not {hub.address for hub in hubs} <= set(hosts.hubs()):
        for hub in hubs:
            if not hub.process.running:
                raise ServerStartError(f"a hub has ended at once: {_end_of(hub.process)}")
        if time.monotonic() > deadline:
            raise ServerStartError(f"no hub has registered within {_PATIENCE:g} s")
        look()


def _until_done(
    plan: Plan, clients: ServerProcess, faults: Faults, look: Callable[[], None]
) -> None:
    """Run faults until the clients have ended."""
    deadline = time.monotonic() + plan.seconds + 2 * _PATIENCE
    while clients.running:
        if time.monotonic() > deadline:
            clients.kill()
            raise ServerStartError(f"the clients do not end: {_end_of(clients)}")
        faults.step(time.monotonic())
        look()
    faults.heal_all()


def _stop(hubs: Sequence[SimulatedHub]) -> None:
    """Make the hubs hand their topics over and stop."""
    for hub in hubs:
        if hub.process.running:
            hub.process.terminate()
    for hub in hubs:
        hub.process.await_end(_PATIENCE)


def _end_of(process: ServerProcess) -> str:
    return " ".join(process.logged(0)[-500:].split())


def _contents(plan: Plan, directory: Path) -> Logs:
    logs = FileLogs(directory)
    found: dict[str, list[int]] = {}
    for topic in plan.topic_names:
        bodies = found[topic] = []
        while messages := logs.read(topic, len(bodies), sys.maxsize):
            bodies += [int(message.body) for message in messages]
    return found


@contextmanager
def _recorded_marks(managers: MetadataManagers, plan: Plan, record: Recorder) -> Iterator[None]:
    """Record each stored mark that is seen, on a thread. The last reading follows the context."""
    seen: dict[tuple[str, str], int] = {}
    end = threading.Event()

    def read() -> None:
        for topic in plan.topic_names:
            try:
                found = managers.subscriptions.read_subscriptions(topic)
            except MetadataStoreError:
                continue  # The next reading sees more.
            for name, (data, _) in found.items():
                mark = 0 if data.state is None else data.state.mark.local
                if mark != seen.get((topic, name)):
                    seen[topic, name] = mark
                    record("mark", topic=topic, subscriber=name, mark=mark)

    def run() -> None:
        while not end.wait(_PAUSE):
            read()

    thread = threading.Thread(target=run, name="simulation-marks")
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()
        read()
