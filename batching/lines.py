"""The order of operations on one path.

Every operation takes its place in its path's line when it is submitted. A write may go when all
before it have left; a read when all writes before it have left. Since only what may go is handed
on, no path is ever changed twice in one batch, nor in two that are under way.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence

from .entry import Entry

__all__ = ["Lines"]


class _Line:
    """A path with more than one operation: those that may go, and those behind them."""

    __slots__ = ("going", "waiting", "writing")

    def __init__(self, first: Entry) -> None:
        self.going = {first}  # one write, or any number of reads
        self.writing = first.writes
        # Ordered, and quick to leave from the middle: a cancelled operation must not stay.
        self.waiting: OrderedDict[Entry, None] = OrderedDict()


class Lines:
    """The lines of all paths; guarded by the engine's lock."""

    def __init__(self) -> None:
        # Most paths have one operation at a time: then the entry itself stands here, and no line
        # is made.
        self._at: dict[str, Entry | _Line] = {}

    def enter(self, entry: Entry) -> bool:
        """Give the entry the last place of its path's line; say whether it may go at once."""
        line = self._at.setdefault(entry.path, entry)
        if line is entry:
            return True
        if isinstance(line, Entry):
            line = self._at[entry.path] = _Line(line)
        if entry.writes or line.writing or line.waiting:
            line.waiting[entry] = None
            return False
        line.going.add(entry)
        return True

    def leave(self, entry: Entry) -> Sequence[Entry]:
        """Take an entry out, wherever it stands; return those that may go now because of it."""
        line = self._at[entry.path]
        if line is entry:
            del self._at[entry.path]
            return ()
        assert isinstance(line, _Line)
        if entry in line.going:
            line.going.remove(entry)
        else:
            del line.waiting[entry]
        may_go = []
        while line.waiting:
            first = next(iter(line.waiting))
            if line.going and (first.writes or line.writing):
                break
            del line.waiting[first]
            line.going.add(first)
            line.writing = first.writes
            may_go.append(first)
        if not line.going:
            del self._at[entry.path]
        return may_go

    def busy(self, path: str) -> bool:
        """Say whether an operation holds the path."""
        return path in self._at

    def entries(self) -> Iterator[Entry]:
        """Iterate over every entry that has a place; those that ended while sent are among them."""
        for line in self._at.values():
            if isinstance(line, Entry):
                yield line
            else:
                yield from line.going
                yield from line.waiting
