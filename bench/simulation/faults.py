"""The faults of hubs, and their times."""

from __future__ import annotations

import os
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, assert_never

from ...hubs import Hosts
from ...ops.errors import MetadataStoreError
from ...testing.servers.processes import HOST, ServerProcess
from .events import Recorder
from .lines import Lines
from .plan import Fault, Plan

#: How long each fault lasts, in session timeouts: at least, and at most.
_LASTS: Final[Mapping[Fault, tuple[float, float]]] = {
    "kill": (0.2, 1.5),
    "pause": (1.3, 2.0),
    "cut": (1.3, 2.0),
    "blink": (0.1, 0.4),
    "drain": (1.0, 2.0),
    "leave": (1.0, 2.0),
    "join": (3.0, 4.0),
}


class SimulatedHub:
    """A hub of the simulation: one address, with one process after the other.

    Args:
        number: its number, from 0.
        port: its port.
        events: where its processes record.
        plan: the plan.
        task: what else its processes are given.
    """

    def __init__(self, number: int, port: int, events: Path, plan: Plan, **task: str) -> None:
        self.number = number
        self.address = f"{HOST}:{port}"
        # In the folder of the command: a file of a password or of TLS may have a relative path.
        self.process = ServerProcess(f"hub-{number + 1}", events, Path.cwd())
        self.fault: Fault | None = None
        self.healed_at = 0.0
        self._plan = plan
        self._task = {**task, "port": port}
        self._starts = 0

    @property
    def extra(self) -> bool:
        """Whether it is the hub that joins for a while."""
        return self.number >= self._plan.hubs

    @property
    def state(self) -> str:
        """Its current state, in one word."""
        if self.extra and self.fault is None:
            return "absent"
        return "serves" if self.fault in {None, "join"} else str(self.fault)

    @property
    def source(self) -> str:
        """The source of the records of its current process."""
        return f"hub-{self.number + 1}-{self._starts}"

    def start(self) -> None:
        """Start a process."""
        self._starts += 1
        events = str(self.process.directory / f"{self.source}.jsonl")
        command = self._plan.command("hub", events=events, **self._task)
        self.process.launch(command, os.environ)


class Faults:
    """Starts and ends faults. The caller calls :meth:`step` periodically.

    At any time, at least one hub is free of faults.

    Args:
        plan: the plan, whose seed determines the faults.
        hubs: the hubs.
        lines: the connections to the store; ``None`` if they cannot be cut.
        hosts: the hubs of the region, as an operator reaches them.
        record: records events.
        first: the time of the first fault.
        last: the time after which no fault begins.
    """

    def __init__(
        self,
        plan: Plan,
        hubs: Sequence[SimulatedHub],
        lines: Lines | None,
        hosts: Hosts,
        record: Recorder,
        first: float,
        last: float,
    ) -> None:
        self._plan = plan
        self._hubs = hubs
        self._lines = lines
        self._hosts = hosts
        self._record = record
        self._dice = random.Random(plan.seed)
        self._next = first
        self._last = last
        self._rest: list[Fault] = []

    def step(self, now: float) -> None:
        """End the faults whose time is over, and start the next one when it is due."""
        for hub in self._hubs:
            if hub.fault is not None and now >= hub.healed_at:
                self._heal(hub)
            elif hub.state == "serves" and not hub.process.running:
                self._record("died", process=hub.source, code=hub.process.code)
                hub.start()
        if not self._plan.faults or not self._next <= now < self._last:
            return
        self._next = now + self._plan.kill_every * self._dice.uniform(0.5, 1.5)
        fault = self._fault()
        if fault == "join":
            candidates = [hub for hub in self._hubs if hub.state == "absent"]
        else:
            healthy = [hub for hub in self._hubs if hub.fault is None and not hub.extra]
            candidates = healthy if len(healthy) > 1 else []
        if candidates:
            self._hurt(self._dice.choice(candidates), fault, now)

    def heal_all(self) -> None:
        """End all faults."""
        for hub in self._hubs:
            if hub.fault is not None:
                self._heal(hub)

    def _fault(self) -> Fault:
        # Like a deck of cards: each fault comes once before any comes again, so a short run sees
        # most of them. A kill comes first.
        if not self._rest:
            self._rest = self._dice.sample(self._plan.faults, len(self._plan.faults))
            self._rest.sort(key=lambda fault: fault == "kill")
        return self._rest.pop()

    def _hurt(self, hub: SimulatedHub, fault: Fault, now: float) -> None:
        self._record("fault", kind=fault, hub=hub.address, process=hub.source)
        match fault:
            case "kill":
                hub.process.kill()
            case "pause":
                hub.process.pause()
            case "cut" | "blink":
                self._line().cut(hub.number)
            case "drain":
                self._drain(hub, True)
            case "leave":
                hub.process.terminate()
            case "join":
                hub.start()
            case _:
                assert_never(fault)
        hub.fault = fault
        hub.healed_at = now + self._plan.session_timeout * self._dice.uniform(*_LASTS[fault])

    def _heal(self, hub: SimulatedHub) -> None:
        assert hub.fault is not None
        match hub.fault:
            case "leave" if hub.process.running:
                return  # It hands its topics over.
            case "kill" | "leave":
                hub.start()
            case "pause":
                hub.process.resume()
            case "cut" | "blink":
                self._line().restore(hub.number)
            case "drain":
                self._drain(hub, False)
            case "join":
                hub.process.terminate()
            case _:
                assert_never(hub.fault)
        self._record("healed", kind=hub.fault, hub=hub.address, process=hub.source)
        hub.fault = None

    def _line(self) -> Lines:
        assert self._lines is not None, "the plan has no such fault then"
        return self._lines

    def _drain(self, hub: SimulatedHub, draining: bool) -> None:
        try:
            self._hosts.set_draining(hub.address, draining)
        except MetadataStoreError as error:
            self._record("operator", hub=hub.address, why=repr(error))
