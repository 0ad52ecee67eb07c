"""The page of a report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from ...page import filled, table
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


def page(run: Run, pictures: Sequence[Picture]) -> str:
    """Return the HTML."""
    conditions = (("started", run.started), *conditions_of(run.conditions), *load_of(run))
    return filled(
        __package__,
        title=f"Benchmark of {run.conditions.get('target') or run.conditions.get('store')}",
        light=variables(dark=False),
        dark=variables(dark=True),
        advice=_advice(run),
        warnings=(
            f'<p class="warning">{escape(_sentence(text.removesuffix(".")))}</p>'
            for text in warnings_of(run)
        ),
        conditions=(f"<dt>{escape(n)}</dt><dd>{escape(text)}</dd>" for n, text in conditions),
        command=" ".join(("batchkeeper bench", *run.command)),
        pictures=(part for picture in pictures for part in _picture(picture)),
        variants=_columns(run, columns_of(run)),
        counts=_counts(run),
    )


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _advice(run: Run) -> Iterator[str]:
    advice = advise(run)
    if advice.line is not None:
        yield f"<pre><code>{escape(advice.line)}</code></pre>"
    for sentence in (*advice.sentences, *map(_sentence, peers_of(run))):
        yield f"<p>{escape(sentence)}</p>"


def _picture(picture: Picture) -> Iterator[str]:
    yield f'<figure><div class="whole"><h2>{escape(picture.title)}</h2>'
    yield f"<p>{escape(picture.words)}</p>{picture.svg}</div>"
    yield "<details><summary>The figures of this picture</summary>"
    yield from table(picture.head, picture.rows)
    yield "</details></figure>"


def _counts(run: Run) -> Iterator[str]:
    columns = cause_columns(run)
    if columns:
        yield "<h2>Batches and counts</h2>"
        yield "<p>Batches by the cause of their flush; counts of all rounds.</p>"
        yield from _columns(run, columns)


def _columns(run: Run, columns: Sequence[Column]) -> Iterator[str]:
    names = [variant.name for variant in run.variants]
    rows = [(name, *(column.cells[row] for column in columns)) for row, name in enumerate(names)]
    return table(("variant", *(column.head for column in columns)), rows)
