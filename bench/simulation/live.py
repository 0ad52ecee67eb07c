"""The live display of a running simulation."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from typing import Final, Self

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from .events import Event
from .faults import SimulatedHub
from .plan import Plan

__all__ = ["Board", "Show"]

# Seconds between two lines without a terminal.
_LINE: Final = 5.0
# The number of faults shown.
_NEWEST: Final = 6


class Board:
    """The counts of a simulation, from its records so far.

    Args:
        plan: the plan.
        hubs: the hubs.
        begun: the time of the beginning.
    """

    def __init__(self, plan: Plan, hubs: Sequence[SimulatedHub], begun: float) -> None:
        self._plan = plan
        self._hubs = hubs
        self._begun = begun
        self._counts: Counter[str] = Counter()
        self._incarnations: dict[str, int] = {}
        self._owners: dict[str, tuple[str, str]] = {}  # by topic: the hub and its process
        self._newest: deque[str] = deque(maxlen=_NEWEST)

    def add(self, events: Iterable[Event]) -> None:
        """Count events."""
        for event in events:
            self._add(event)

    def _add(self, event: Event) -> None:
        match event.name:
            case "accepted":
                self._counts["published"] += 1
            case "taken":
                self._counts["delivered"] += len(event["messages"])
            case "sample":
                self._incarnations[event["hub"]] = event["incarnation"]
            case "acquired":
                self._counts["claims"] += 1
                self._owners[event["topic"]] = event["hub"], event.source
            case "lost":
                owner = self._owners.get(event["topic"])
                if owner is not None and owner[1] == event.source:
                    del self._owners[event["topic"]]
            case "fault" | "healed":
                begins = event.name == "fault"
                self._counts["faults"] += begins
                if begins and event["kind"] == "kill":
                    self._owners = {
                        topic: owner
                        for topic, owner in self._owners.items()
                        if owner[1] != event["process"]
                    }
                verb = "" if begins else "end of "
                self._newest.append(
                    f"{event.at - self._begun:6.1f} s  {event['hub']}  {verb}{event['kind']}"
                )

    def line(self) -> str:
        """Return the counts as one line."""
        counts = self._counts
        up = sum(hub.state == "serves" for hub in self._hubs)
        return (
            f"{time.monotonic() - self._begun:4.0f} s  {up}/{self._plan.hubs} hubs  "
            f"{len(self._owners)}/{self._plan.topics} topics  {counts['published']:,} published  "
            f"{counts['delivered']:,} delivered  {counts['claims']} claims  "
            f"{counts['faults']} faults"
        )

    def __rich__(self) -> Group:
        owned = Counter(hub for hub, _ in self._owners.values())
        table = Table(box=None, pad_edge=False)
        for title in ("hub", "state", "incarnation", "topics"):
            table.add_column(title, justify="left" if title in {"hub", "state"} else "right")
        for hub in self._hubs:
            table.add_row(
                hub.address,
                Text(hub.state, "green" if hub.state == "serves" else "red"),
                str(self._incarnations.get(hub.address, "")),
                str(owned[hub.address]),
            )
        return Group(Text(self.line()), Text(), table, Text(), *map(Text, self._newest))


class Show:
    """Shows a board on a terminal, or a periodic line elsewhere. A context manager."""

    def __init__(self, board: Board, console: Console) -> None:
        self._board = board
        self._console = console
        # Refreshed by the counting thread: rich's own thread would see half of a change.
        self._live = Live(board, console=console, auto_refresh=False, transient=True)
        self._next = 0.0

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._console.is_terminal:
            self._live.stop()

    def refresh(self) -> None:
        """Show the current counts."""
        if self._console.is_terminal:
            self._live.refresh()
        elif time.monotonic() >= self._next:
            self._next = time.monotonic() + _LINE
            self._console.file.write(f"{self._board.line()}\n")
            self._console.file.flush()
