"""The page of a report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import Final

from ..advice import advise
from ..runs import Run
from ..tables import (
    Column,
    cause_columns,
    columns_of,
    conditions_of,
    load_of,
    peers_of,
    warnings_of,
)
from .pictures import Picture
from .svg import variables

__all__ = ["page"]

_STYLE: Final = """
:root { color-scheme: light dark; --ink: #1a1a1a; --paper: #fff; --line: #d4d4d4; --pale: #9a9a9a;
        --box: #f1f5f9; --bad: #b00020; LIGHT }
@media screen and (prefers-color-scheme: dark) {
  :root { --ink: #e8e8e8; --paper: #161616; --line: #3d3d3d; --pale: #868686; --box: #23282e;
          --bad: #ff8a80; DARK }
}
* { box-sizing: border-box; }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
       max-width: 62rem; margin: 0 auto; padding: 1rem; overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin: 2.2rem 0 .4rem; }
.box { background: var(--box); border-left: 4px solid var(--c0); padding: .6rem 1rem; }
.box p { margin: .3rem 0; }
pre { margin: .6rem 0; font-size: 1.05rem; font-weight: 600; overflow-x: auto; }
.warning { color: var(--bad); font-weight: 600; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .1rem 1rem; }
dt { font-weight: 600; } dd { margin: 0; }
figure { margin: 0; } figure p { margin: .2rem 0 .6rem; }
svg { display: block; width: 100%; height: auto; font-family: system-ui, sans-serif; }
svg.narrow { display: none; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .2rem .7rem .2rem 0; border-bottom: 1px solid var(--line);
         white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
tbody th { font-weight: normal; }
summary { cursor: pointer; padding: .4rem 0; }
@media screen and (max-width: 40rem) {
  svg.wide { display: none; } svg.narrow { display: block; }
  pre { font-size: .85rem; } dl { grid-template-columns: 1fr; } dd { margin-bottom: .4rem; }
  tbody th { white-space: normal; min-width: 8rem; }
}
@media print {
  body { font-size: 10pt; max-width: none; padding: 0; }
  .box, svg { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
  h2 { break-after: avoid; } .whole, tr, .box { break-inside: avoid; }
  table { font-size: 7.5pt; } .scroll { overflow: visible; }
  details::details-content { content-visibility: visible; height: auto; }
  @page { margin: 14mm; }
}
"""

_COLUMNS: Final = (
    "Medians of the rounds. A ratio with = cannot be told apart from the default. µs are CPU per "
    "operation."
)


def page(run: Run, pictures: Sequence[Picture]) -> str:
    """Return the HTML."""
    title = f"Benchmark of {run.conditions.get('target') or run.conditions.get('store')}"
    command = " ".join(("batchkeeper bench", *run.command))
    style = _STYLE.replace("LIGHT", variables(dark=False)).replace("DARK", variables(dark=True))
    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            # No browser asks for an icon then.
            '<link rel="icon" href="data:,">',
            f"<title>{escape(title)}</title><style>{style}</style></head><body>",
            f"<h1>{escape(title)}</h1>",
            *_advice(run),
            *(f'<p class="warning">{escape(text)}.</p>' for text in _warnings(run)),
            "<dl>",
            *(
                f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>"
                for name, text in (
                    ("started", run.started),
                    *conditions_of(run.conditions),
                    *load_of(run),
                )
            ),
            f"<dt>command</dt><dd><code>{escape(command)}</code></dd>",
            "</dl>",
            *(part for picture in pictures for part in _picture(picture)),
            "<h2>All variants</h2>",
            f"<p>{_COLUMNS}</p>",
            *_columns(run, columns_of(run)),
            *_counted(run),
            "</body></html>",
            "",
        ]
    )


def _warnings(run: Run) -> Iterator[str]:
    for text in warnings_of(run):
        yield text[:1].upper() + text[1:].removesuffix(".")


def _advice(run: Run) -> Iterator[str]:
    advice = advise(run)
    yield '<section class="box" aria-label="Advice">'
    if advice.line is not None:
        yield f"<pre><code>{escape(advice.line)}</code></pre>"
    peers = (f"{text[:1].upper()}{text[1:]}." for text in peers_of(run))
    for sentence in (*advice.sentences, *peers):
        yield f"<p>{escape(sentence)}</p>"
    yield "</section>"


def _picture(picture: Picture) -> Iterator[str]:
    yield f'<figure><div class="whole"><h2>{escape(picture.title)}</h2>'
    yield f"<p>{escape(picture.words)}</p>{picture.svg}</div>"
    yield "<details><summary>The figures of this picture</summary>"
    yield from _table(picture.head, picture.rows)
    yield "</details></figure>"


def _counted(run: Run) -> Iterator[str]:
    columns = cause_columns(run)
    if columns:
        yield "<h2>Batches and counts</h2>"
        yield "<p>Batches by the cause of their flush; counts of all rounds.</p>"
        yield from _columns(run, columns)


def _columns(run: Run, columns: Sequence[Column]) -> Iterator[str]:
    names = [variant.name for variant in run.variants]
    rows = [(name, *(column.cells[row] for column in columns)) for row, name in enumerate(names)]
    yield from _table(("variant", *(column.head for column in columns)), rows)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    heads = "".join(f'<th scope="col">{escape(text)}</th>' for text in head)
    # It can be scrolled by keys, too.
    yield '<div class="scroll" tabindex="0" role="region" aria-label="Table"><table>'
    yield f"<thead><tr>{heads}</tr></thead><tbody>"
    for name, *cells in rows:
        filled = "".join(f"<td>{escape(cell)}</td>" for cell in cells)
        yield f'<tr><th scope="row">{escape(name)}</th>{filled}</tr>'
    yield "</tbody></table></div>"
