"""Pages of HTML, one file each: they open from disk and fetch nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape
from importlib import resources
from string import Template


def filled(package: str | None, **parts: str | Iterable[str]) -> str:
    """Return the ``page.html`` of a package with its parts: plain text, or lines of HTML."""
    assert package is not None
    template = Template((resources.files(package) / "page.html").read_text("utf-8"))
    return template.substitute(
        {
            name: escape(part) if isinstance(part, str) else "\n".join(part)
            for name, part in parts.items()
        }
    )


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield a table of texts. The first cell of a row names it."""
    heads = "".join(f'<th scope="col">{escape(text)}</th>' for text in head)
    # It can be scrolled by keys, too.
    yield '<div class="scroll" tabindex="0" role="region" aria-label="Table"><table>'
    yield f"<thead><tr>{heads}</tr></thead><tbody>"
    for name, *cells in rows:
        texts = "".join(f"<td>{escape(cell)}</td>" for cell in cells)
        yield f'<tr><th scope="row">{escape(name)}</th>{texts}</tr>'
    yield "</tbody></table></div>"
