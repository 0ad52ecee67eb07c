"""The order of operations on one path.

Every operation takes its place in its path's line when it is submitted. A write may go when all
before it have left; a read when all writes before it have left. Since only what may go is handed
on, no path is ever changed twice in one batch, nor in two that are under way.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence

from .entry import TURN, Entry

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
        return line is entry or self._join(line, entry)

    def enter_all(self, entries: Sequence[Entry]) -> Sequence[Entry]:
        """Let entries enter in their order; return those that may go, and note it of the others."""
        stand = self._at.setdefault
        may_go = None
        for index, entry in enumerate(entries):
            line = stand(entry.path, entry)
            if line is not entry and not self._join(line, entry):
                entry.waits_for |= TURN
                if may_go is None:
                    may_go = list(entries[:index])
            elif may_go is not None:
                may_go.append(entry)
        return entries if may_go is None else may_go

    def leave(self, entry: Entry) -> Sequence[Entry]:
        """Take an entry out, wherever it stands; return those that may go now because of it."""
        line = self._at.pop(entry.path)
        return () if line is entry else self._part(line, entry)

    def remove(self, entry: Entry) -> None:
        """Take out the entry that came last, if it has a place at all."""
        line = self._at.get(entry.path)
        if line is entry or (
            isinstance(line, _Line) and (entry in line.going or entry in line.waiting)
        ):
            self.leave(entry)

    def leave_all(self, entries: Iterable[Entry]) -> Sequence[Entry]:
        """Take entries out; return those that may go now because of them."""
        stood = self._at.pop
        may_go: list[Entry] = []
        for entry in entries:
            line = stood(entry.path)
            if line is not entry:
                may_go += self._part(line, entry)
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

    def _join(self, line: Entry | _Line, entry: Entry) -> bool:
        """Let an entry enter a line that is there."""
        if isinstance(line, Entry):
            line = self._at[entry.path] = _Line(line)
        if entry.writes or line.writing or line.waiting:
            line.waiting[entry] = None
            return False
        line.going.add(entry)
        return True

    def _part(self, line: Entry | _Line, entry: Entry) -> list[Entry]:
        """Let an entry leave a line that was taken out of the table; put back what is left."""
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
        if line.going:
            self._at[entry.path] = line
        return may_go
