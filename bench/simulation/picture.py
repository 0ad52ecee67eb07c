"""The ownership of topics over time, as SVG in one self-contained HTML file."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Final

from ..page import filled, table
from .checks import Verdict
from .history import FaultTime, History, Ownership
from .plan import Plan

# Colours that people with any colour vision can distinguish (Okabe and Ito). With more hubs, the
# colours repeat; the title of each bar names its hub.
_COLOURS: Final = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442")

# The dimensions of the picture, in its own units.
_LEFT: Final = 110.0
_RIGHT: Final = 20.0
_WIDTH: Final = 1000.0
_LANE: Final = 18.0
_AXIS: Final = 24.0
_HEIGHT: Final = 720.0  # of all topics together, at most
_ROW: Final = 12.0  # of one topic, at most

_SIGNS: Final = {
    "kill": "✕",
    "pause": "‖",
    "cut": "✂",
    "blink": "~",
    "drain": "▽",
    "leave": "→",
    "join": "+",
}


def page(title: str, plan: Plan, history: History, verdicts: Sequence[Verdict]) -> str:
    """Return the HTML.

    Args:
        title: the title of the simulation.
        plan: the plan.
        history: the history of the records.
        verdicts: the verdicts.
    """
    hubs = _hubs(history)
    return filled(
        __package__,
        title=title,
        plan=(
            f"{plan.hubs} hubs and {plan.topics} topics for {plan.seconds:g} s, with sessions of "
            f"{plan.session_timeout:g} s, owners in the mode {plan.ownership!r}, {plan.rate:g} "
            f"messages a second, and a fault every {plan.kill_every:g} s (seed {plan.seed})."
        ),
        verdicts=table(("promise", "holds", "found"), [verdict.cells() for verdict in verdicts]),
        hubs=(
            f'<span><i style="background:{colour}"></i>{escape(hub)}</span>'
            for hub, colour in hubs.items()
        ),
        signs=(f"<span>{sign} {kind}</span>" for kind, sign in _SIGNS.items()),
        picture=_Picture(history, hubs).svg(),
        faults=table(
            ("fault", "hub", "at", "for"),
            [
                (
                    fault.kind,
                    fault.hub,
                    f"{fault.begun - history.begun:.1f} s",
                    f"{fault.ended - fault.begun:.1f} s",
                )
                for fault in history.faults
            ],
        ),
    )


def _hubs(history: History) -> Mapping[str, str]:
    """Return the colour of each hub."""
    names = {event["hub"] for event in history.named("serving")}
    names |= {owned.hub for owners in history.owners.values() for owned in owners}
    return {name: _COLOURS[number % len(_COLOURS)] for number, name in enumerate(sorted(names))}


class _Picture:
    """Time runs to the right. A lane for each hub is above a row for each topic."""

    def __init__(self, history: History, hubs: Mapping[str, str]) -> None:
        self._history = history
        self._hubs = hubs
        self._lanes = {hub: number * _LANE for number, hub in enumerate(hubs)}
        self._top = _LANE * len(hubs) + _AXIS
        self._row = min(_ROW, _HEIGHT / max(1, len(history.owners)))
        self._height = self._top + self._row * len(history.owners) + 8
        self._length = max(history.ended - history.begun, 1e-9)

    def svg(self) -> Iterator[str]:
        history = self._history
        moves = sum(len(owners) for owners in history.owners.values())
        yield (
            f'<svg viewBox="0 0 {_WIDTH:g} {self._height:.1f}" role="img" '
            f'aria-label="{len(history.owners)} topics and {len(self._hubs)} hubs over '
            f"{self._length:.0f} seconds: {moves} ownerships, {len(history.faults)} faults. "
            f'The tables say the same in words.">'
        )
        yield from self._axis()
        yield from self._lives()
        for fault in history.faults:
            if fault.hub in self._lanes:
                yield from self._fault(fault)
        yield from self._topics()
        yield "</svg>"

    def _axis(self) -> Iterator[str]:
        """Yield about ten round times."""
        steps = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600)
        step = next((step for step in steps if self._length / step <= 12), 1800)
        for second in range(0, int(self._length) + 1, step):
            x = self._x(self._history.begun + second)
            yield f'<line class="axis" x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{self._height:.1f}"/>'
            yield f'<text x="{x + 3:.1f}" y="{self._top - 8:.1f}">{second} s</text>'

    def _lives(self) -> Iterator[str]:
        """Yield a bar for each process of a hub, from its first record to its last."""
        for hub, y in self._lanes.items():
            yield f'<text x="2" y="{y + 13:.1f}">{escape(hub)}</text>'
        spans: dict[str, tuple[str, float, float]] = {}
        for event in self._history.named("sample"):
            _, begun, _ = spans.get(event.source, ("", event.at, 0.0))
            spans[event.source] = event["hub"], begun, event.at
        for hub, begun, ended in spans.values():
            bar = self._bar(begun, ended, self._lanes[hub] + 3, _LANE - 6)
            yield f'<rect {bar} fill="{self._hubs[hub]}" opacity="0.55"/>'

    def _fault(self, fault: FaultTime) -> Iterator[str]:
        x, y = self._x(fault.begun), self._lanes[fault.hub]
        yield f"<g><title>{fault.kind} of {escape(fault.hub)}, {self._span(fault)}</title>"
        yield f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="{y:.1f}" y2="{self._height:.1f}"/>'
        yield f'<rect class="fault" {self._bar(fault.begun, fault.ended, y + 2, _LANE - 4)}/>'
        yield f'<text class="sign" x="{x:.1f}" y="{y + 14:.1f}">{_SIGNS[fault.kind]}</text></g>'

    def _topics(self) -> Iterator[str]:
        for number, (topic, owners) in enumerate(sorted(self._history.owners.items())):
            y = self._top + number * self._row
            if number % math.ceil(11 / self._row) == 0:
                yield f'<text x="2" y="{y + min(self._row, 11.0):.1f}">{escape(topic)}</text>'
            for owned in owners:
                bar = self._bar(owned.begun, owned.ended, y, max(self._row - 0.8, 0.5))
                yield (
                    f'<rect {bar} fill="{self._hubs[owned.hub]}"><title>{escape(topic)}, epoch '
                    f"{owned.epoch}: {escape(owned.hub)} (incarnation {owned.incarnation}), "
                    f"{self._span(owned)}, {owned.end}</title></rect>"
                )

    def _x(self, at: float) -> float:
        share = (at - self._history.begun) / self._length
        return _LEFT + min(max(share, 0.0), 1.0) * (_WIDTH - _LEFT - _RIGHT)

    def _bar(self, begun: float, ended: float, y: float, height: float) -> str:
        x = self._x(begun)
        width = max(0.4, self._x(ended) - x)
        return f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'

    def _span(self, part: FaultTime | Ownership) -> str:
        begun = self._history.begun
        return f"{part.begun - begun:.2f} to {part.ended - begun:.2f} s"
