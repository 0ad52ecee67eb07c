"""The counts of a simulation while it runs."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from rich.console import Console
from rich.live import Live
from rich.text import Text

from .events import Event
from .faults import SimulatedHub
from .plan import Plan

# Seconds between two lines without a terminal.
_LINE: Final = 5.0


class Board:
    """Shows the counts live on a terminal, and elsewhere as a periodic line.

    Args:
        plan: the plan.
        hubs: the hubs.
        console: the terminal, or the other place.

    Attributes:
        live: a context in which a terminal shows the counts.
    """

    def __init__(self, plan: Plan, hubs: Sequence[SimulatedHub], console: Console) -> None:
        self._plan = plan
        self._hubs = hubs
        self._console = console
        self._begun = time.monotonic()
        self._next = 0.0
        self._counts: Counter[str] = Counter()
        self._owners: dict[str, str] = {}  # by topic: the process of the hub
        # Refreshed by the counting thread only.
        self.live = Live(console=console, auto_refresh=False, transient=True)

    def show(self, events: Iterable[Event]) -> None:
        """Count events, and show the counts when it is time."""
        for event in events:
            self._add(event)
        if self._console.is_terminal:
            self.live.update(Text(self._line()), refresh=True)
        elif time.monotonic() >= self._next:
            self._next = time.monotonic() + _LINE
            self._console.file.write(f"{self._line()}\n")
            self._console.file.flush()

    def _add(self, event: Event) -> None:
        match event.name:
            case "accepted":
                self._counts["published"] += 1
            case "taken":
                self._counts["delivered"] += len(event["messages"])
            case "acquired":
                self._counts["claims"] += 1
                self._owners[event["topic"]] = event.source
            case "lost" if self._owners.get(event["topic"]) == event.source:
                del self._owners[event["topic"]]
            case "fault":
                self._counts["faults"] += 1
                if event["kind"] == "kill":
                    gone = event["process"]
                    self._owners = {t: own for t, own in self._owners.items() if own != gone}

    def _line(self) -> str:
        counts = self._counts
        up = sum(hub.state == "serves" for hub in self._hubs)
        return (
            f"{time.monotonic() - self._begun:4.0f} s  {up}/{self._plan.hubs} hubs  "
            f"{len(self._owners)}/{self._plan.topics} topics  {counts['published']:,} published  "
            f"{counts['delivered']:,} delivered  {counts['claims']} claims  "
            f"{counts['faults']} faults"
        )
