"""Turns Spark's filters into the bounds between which a store is scanned.

A filter compares paths with any text, but the bounds of a scan are valid paths. So the bounds here
leave out no path that passes the filter, and may include some that do not.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from ..ops.errors import InvalidPathError
from ..ops.paths import check_path
from ..ops.results import Range

__all__ = ["Bounds"]


@dataclass(frozen=True, slots=True)
class Bounds:
    """The bounds of a scan: the paths under ``prefix``, from ``start`` up to but excluding ``end``.

    Each method returns narrower bounds, or the same bounds.
    """

    prefix: str
    start: str | None = None
    end: str | None = None

    def from_(self, text: str) -> Bounds:
        """Leave out paths before ``text``."""
        start = _valid_part(text)
        if start is None or (self.start is not None and self.start >= start):
            return self
        return replace(self, start=start)

    def up_to(self, text: str) -> Bounds:
        """Leave out paths after ``text``."""
        # The space sorts before all other characters that a path may have.
        return self._before(f"{text} " if _is_path(text) else _after(text))

    def starting_with(self, text: str) -> Bounds:
        """Leave out paths that do not start with ``text``."""
        return self.from_(text)._before(_after(text)).below(text[: text.rfind("/")])

    def below(self, path: str) -> Bounds:
        """Leave out all paths except ``path`` and the paths below it."""
        if _is_path(path) and (self.prefix == "/" or path.startswith(f"{self.prefix}/")):
            return replace(self, prefix=path)
        return self

    def within(self, ranges: Iterable[Range]) -> list[Range]:
        """Return the parts of the ranges that lie within the bounds."""
        found = []
        for given in ranges:
            start = max(filter(None, (self.start, given.start)), default=None)
            end = min(filter(None, (self.end, given.end)), default=None)
            if start is None or end is None or start < end:
                found.append(Range(start, end))
        return found

    def _before(self, end: str | None) -> Bounds:
        if end is None or (self.end is not None and self.end <= end):
            return self
        return replace(self, end=end)


def _is_path(text: str) -> bool:
    try:
        check_path(text)
    except InvalidPathError:
        return False
    return True


def _valid_part(text: str) -> str | None:
    """Return the longest valid path that the text starts with. It sorts before the text."""
    while text and not _is_path(text):
        text = text[:-1]
    return text or None


def _after(text: str) -> str | None:
    """Return a path that sorts after ``text`` and all paths that start with it, or ``None``."""
    while text:
        end = text[:-1] + chr(min(ord(text[-1]) + 1, 0x10FFFF))
        if _is_path(end):
            return end
        text = text[:-1]
    return None
