"""Checks that the pages of a built site load nothing from the network.

::

    python tools/offline.py .tox/docs/html

Links that a reader follows may lead anywhere. What a browser loads by itself must be a file of the
site: scripts, styles, fonts, pictures, frames. The exit code is 1 if something is not.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Final

__all__ = ["main", "outside"]

# Attributes whose address a browser loads by itself. Of a `link`, only some relations do.
_LOADED: Final = {"src", "srcset", "poster", "data", "background"}
_RELATIONS: Final = {"icon", "manifest", "modulepreload", "preload", "prefetch", "preconnect"}
_REMOTE: Final = re.compile(r"\s*(?:[a-z][a-z0-9+.-]*:)?//", re.IGNORECASE)
_STYLE: Final = re.compile(r"""(?:url\(\s*|@import\s+)["']?([^"')\s;]+)""")
# Calls of scripts that load an address which stands in the code.
_SCRIPT: Final = re.compile(
    r"""(?:fetch|import|importScripts|open|EventSource|WebSocket|sendBeacon)\(\s*"""
    r"""["'`]([^"'`]+)|\.src\s*=\s*["'`]([^"'`]+)"""
)


class _Page(HTMLParser):
    """Collects the addresses that a page loads."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self._inside = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._inside = tag
        given = {name: value or "" for name, value in attrs}
        self.loaded += [value for name, value in given.items() if name in _LOADED]
        self.loaded += _STYLE.findall(given.get("style", ""))
        relations = set(given.get("rel", "").split())
        if tag == "link" and relations & (_RELATIONS | {"stylesheet"}):
            self.loaded.append(given.get("href", ""))

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "style":
            self.loaded += _STYLE.findall(data)
        elif self._inside == "script":
            self.loaded += _script(data)


def _script(code: str) -> list[str]:
    return ["".join(found) for found in _SCRIPT.findall(code)]


def outside(site: Path) -> Iterator[tuple[Path, str]]:
    """Yield each file of a site with each address outside the site that it loads."""
    for path in sorted(site.rglob("*")):
        if path.suffix == ".html":
            page = _Page()
            page.feed(path.read_text(encoding="utf-8"))
            loaded = page.loaded
        elif path.suffix == ".css":
            loaded = _STYLE.findall(path.read_text(encoding="utf-8"))
        elif path.suffix == ".js":
            loaded = _script(path.read_text(encoding="utf-8"))
        else:
            continue
        for address in loaded:
            if _REMOTE.match(address):
                yield path.relative_to(site), address


def main(site: str) -> int:
    """Print what a site loads from elsewhere, and return the exit code."""
    root = Path(site)
    if not any(root.glob("*.html")):
        print(f"{site} has no pages")
        return 1
    found = list(outside(root))
    for path, address in found:
        print(f"{path} loads {address}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
