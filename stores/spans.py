"""The stretches of the order of paths that a scan covers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final

from ..ops.results import Range

__all__ = ["EVERYTHING", "evenly", "ranges", "spans", "with_outside"]

EVERYTHING: Final = Range()


def spans(prefix: str, within: Range = EVERYTHING) -> list[tuple[str, str]]:
    """Return the stretches in order, each as its start (included) and its end (excluded).

    There are two: the path itself, and the paths below it. Other paths may lie between them:
    ``/topics-x`` comes after ``/topics`` and before ``/topics/a``.
    """
    below = "/" if prefix == "/" else prefix + "/"
    both = [(below, below[:-1] + "0")]  # "0" follows "/" in ASCII
    if prefix != "/":
        both.insert(0, (prefix, prefix + "\0"))
    first, last = within
    clipped = [
        (max(start, first or start), end if last is None else min(end, last)) for start, end in both
    ]
    return [(start, end) for start, end in clipped if start < end]


def with_outside(prefix: str, within: Range = EVERYTHING) -> list[tuple[str, str | None]]:
    """Return the stretches of :func:`spans`, and those of keys without a leading slash.

    A scan of the root covers these keys, too, because no other scan would count them. Keys before
    the slash belong to a range without a start, keys after it to a range without an end.
    """
    found: list[tuple[str, str | None]] = [*spans(prefix, within)]
    if prefix == "/":
        if within.start is None:
            found.insert(0, ("", "/"))
        if within.end is None:
            found.append(("0", None))
    return found


def evenly(paths: Sequence[str], n: int) -> list[Range]:
    """Return up to ``n`` ranges whose numbers of paths differ by one at most."""
    n = min(n, len(paths))  # so the cost depends on the number of paths, not on a large `n`
    places = sorted({len(paths) * part // n for part in range(1, n)} - {0})
    return ranges([paths[place] for place in places])


def ranges(starts: Iterable[str]) -> list[Range]:
    """Return the ranges between ``starts``. The first has no start, and the last no end."""
    edges = [None, *starts, None]
    return [Range(start, end) for start, end in pairwise(edges)]
