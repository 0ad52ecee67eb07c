"""The ownership of topics over time, as SVG in one self-contained HTML file."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from typing import Final

from .checks import Verdict
from .history import FaultTime, History
from .plan import Plan

__all__ = ["page"]

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

_STYLE: Final = """
:root { color-scheme: light dark; --ink: #1a1a1a; --paper: #fff; --line: #d0d0d0; --bad: #b00020; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e8e8e8; --paper: #161616; --line: #444; --bad: #ff8a80; }
}
@media print { :root { --ink: #000; --paper: #fff; } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
       max-width: 75rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
.wide { overflow-x: auto; }
svg { width: 100%; min-width: 40rem; height: auto; }
svg text { fill: var(--ink); font: 11px system-ui, sans-serif; }
svg .axis { stroke: var(--line); stroke-width: 1; }
svg .sign { font-size: 14px; text-anchor: middle; font-weight: bold; }
svg .fault { fill: none; stroke: var(--ink); stroke-width: 1.5; stroke-dasharray: 3 2; }
svg .mark { stroke: var(--bad); stroke-width: 1; stroke-dasharray: 2 3; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; padding: .3rem .8rem .3rem 0; border-bottom: 1px solid var(--line);
         vertical-align: top; }
.bad { color: var(--bad); font-weight: bold; }
.key span { display: inline-block; margin-right: 1.2rem; white-space: nowrap; }
.key i { display: inline-block; width: .9em; height: .9em; margin-right: .4em; }
"""


def page(title: str, plan: Plan, history: History, verdicts: Sequence[Verdict]) -> str:
    """Return the HTML.

    Args:
        title: the title of the simulation.
        plan: the plan.
        history: the history of the records.
        verdicts: the verdicts.
    """
    hubs = _hubs(history)
    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>",
            f"<h1>{escape(title)}</h1>",
            f"<p>{escape(_in_words(plan))}</p>",
            "<h2>Verdicts</h2>",
            *_verdict_table(verdicts),
            "<h2>Who owned which topic when</h2>",
            '<p class="key">',
            *(
                f'<span><i style="background:{colour}"></i>{escape(hub)}</span>'
                for hub, colour in hubs.items()
            ),
            "</p>",
            '<p class="key">',
            *(f"<span>{sign} {kind}</span>" for kind, sign in _SIGNS.items()),
            "</p>",
            '<div class="wide">',
            *_svg(history, hubs),
            "</div>",
            "<h2>Faults</h2>",
            *_fault_table(history),
            "</body></html>",
            "",
        ]
    )


def _in_words(plan: Plan) -> str:
    return (
        f"{plan.hubs} hubs and {plan.topics} topics for {plan.seconds:g} s, with sessions of "
        f"{plan.session_timeout:g} s, owners in the mode {plan.ownership!r}, {plan.rate:g} "
        f"messages a second, and a fault every {plan.kill_every:g} s (seed {plan.seed})."
    )


def _hubs(history: History) -> Mapping[str, str]:
    names = {event["hub"] for event in history.named("serving")}
    names |= {owned.hub for owners in history.owners.values() for owned in owners}
    return {name: _COLOURS[number % len(_COLOURS)] for number, name in enumerate(sorted(names))}


def _verdict_table(verdicts: Sequence[Verdict]) -> Iterator[str]:
    yield "<table><thead><tr><th>promise</th><th>holds</th><th>found</th></tr></thead><tbody>"
    for verdict in verdicts:
        found = "<br>".join(map(escape, (verdict.found, *verdict.violations)))
        holds = "yes" if verdict.holds else '<span class="bad">no</span>'
        yield f"<tr><td>{escape(verdict.promise)}</td><td>{holds}</td><td>{found}</td></tr>"
    yield "</tbody></table>"


def _fault_table(history: History) -> Iterator[str]:
    yield "<table><thead><tr><th>at</th><th>fault</th><th>hub</th><th>for</th></tr></thead><tbody>"
    for fault in history.faults:
        yield (
            f"<tr><td>{fault.begun - history.begun:.1f} s</td><td>{escape(fault.kind)}</td>"
            f"<td>{escape(fault.hub)}</td><td>{fault.ended - fault.begun:.1f} s</td></tr>"
        )
    yield "</tbody></table>"


def _svg(history: History, hubs: Mapping[str, str]) -> Iterator[str]:
    topics = sorted(history.owners)
    row = min(_ROW, _HEIGHT / max(1, len(topics)))
    top = _LANE * len(hubs) + _AXIS
    height = top + row * len(topics) + 8
    length = max(history.ended - history.begun, 1e-9)

    def x(at: float) -> float:
        share = (min(max(at, history.begun), history.ended) - history.begun) / length
        return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)

    moves = sum(len(owners) for owners in history.owners.values())
    yield (
        f'<svg viewBox="0 0 {_WIDTH:g} {height:.1f}" role="img" aria-label="{len(topics)} topics '
        f"and {len(hubs)} hubs over {length:.0f} seconds: {moves} ownerships, "
        f'{len(history.faults)} faults. The tables say the same in words.">'
    )
    for second in _ticks(length):
        at = x(history.begun + second)
        yield f'<line class="axis" x1="{at:.1f}" x2="{at:.1f}" y1="0" y2="{height:.1f}"/>'
        yield f'<text x="{at + 3:.1f}" y="{top - 8:.1f}">{second:g} s</text>'
    lanes = {hub: number * _LANE for number, hub in enumerate(hubs)}
    yield from _lives(history, hubs, lanes, x)
    for fault in history.faults:
        if fault.hub in lanes:
            yield from _fault(history, fault, lanes[fault.hub], height, x)
    for number, topic in enumerate(topics):
        y = top + number * row
        if number % max(1, math.ceil(11 / row)) == 0:
            yield f'<text x="2" y="{y + min(row, 11.0):.1f}">{escape(topic)}</text>'
        for owned in history.owners[topic]:
            width = max(0.4, x(owned.ended) - x(owned.begun))
            yield (
                f'<rect x="{x(owned.begun):.1f}" y="{y:.1f}" width="{width:.1f}" '
                f'height="{max(row - 0.8, 0.5):.1f}" fill="{hubs[owned.hub]}"><title>'
                f"{escape(topic)}, epoch {owned.epoch}: {escape(owned.hub)} (incarnation "
                f"{owned.incarnation}), {owned.begun - history.begun:.2f} to "
                f"{owned.ended - history.begun:.2f} s, {owned.end}</title></rect>"
            )
    yield "</svg>"


def _ticks(length: float) -> list[float]:
    """Return about ten round times."""
    step = next(
        (step for step in (1, 2, 5, 10, 15, 30, 60, 120, 300, 600) if length / step <= 12), 1800
    )
    return [float(second) for second in range(0, int(length) + 1, step)]


def _lives(
    history: History,
    hubs: Mapping[str, str],
    lanes: Mapping[str, float],
    x: Callable[[float], float],
) -> Iterator[str]:
    """Yield a bar for each process of a hub, from its first record to its last."""
    spans: dict[str, tuple[str, float, float]] = {}
    for event in history.named("sample"):
        _, begun, _ = spans.get(event.source, ("", event.at, 0.0))
        spans[event.source] = event["hub"], begun, event.at
    for hub, y in lanes.items():
        yield f'<text x="2" y="{y + 13:.1f}">{escape(hub)}</text>'
    for hub, begun, ended in spans.values():
        yield (
            f'<rect x="{x(begun):.1f}" y="{lanes[hub] + 3:.1f}" height="{_LANE - 6:.1f}" '
            f'width="{max(1.0, x(ended) - x(begun)):.1f}" fill="{hubs[hub]}" opacity="0.55"/>'
        )


def _fault(
    history: History, fault: FaultTime, y: float, height: float, x: Callable[[float], float]
) -> Iterator[str]:
    begun, ended = x(fault.begun), x(fault.ended)
    yield (
        f"<g><title>{escape(fault.kind)} of {escape(fault.hub)}, "
        f"{fault.begun - history.begun:.1f} to {fault.ended - history.begun:.1f} s</title>"
        f'<line class="mark" x1="{begun:.1f}" x2="{begun:.1f}" y1="{y:.1f}" y2="{height:.1f}"/>'
        f'<rect class="fault" x="{begun:.1f}" y="{y + 2:.1f}" height="{_LANE - 4:.1f}" '
        f'width="{max(1.0, ended - begun):.1f}"/>'
        f'<text class="sign" x="{begun:.1f}" y="{y + 14:.1f}">{_SIGNS[fault.kind]}</text></g>'
    )
