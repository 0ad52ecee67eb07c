"""The order of operations that share an order key, which is nearly always the path.

Every operation takes its place in the line of its key when it is submitted. A write may go when all
earlier operations have left the line; a read when all earlier writes have left. Only operations
that may go enter a batch, so no path is changed twice in one batch, nor in two batches under way.

An operation with several keys stands in all of their lines at once, and may go when it may go in
each. It takes all its places in one step, so the lines never disagree about the order, and waits
cannot form a circle. In the line of a path that it only checks, a transaction stands as a read. So
any number of writes that check one owner's record go together. An operation without a key stands
in no line, and may always go.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from ..ops.acceleration import accelerated, bind
from .entry import TURN, Entry

__all__ = ["Lines"]


class _Line:
    """A key with more than one operation: those that may go, and those behind them."""

    __slots__ = ("going", "waiting", "writing")

    def __init__(self, key: str, first: Entry) -> None:
        self.going = {first}  # one write, or any number of reads
        self.writing = _changes(first, key)
        # An ordered dict, because a cancelled operation leaves from the middle.
        self.waiting: OrderedDict[Entry, None] = OrderedDict()


# Each operation runs the code of these two. Nearly all have their path as their key, and are alone
# there. Transactions have several paths, and many of them may check the same one.


@accelerated
def enter_alone(
    at: dict[str, Entry | _Line], several: dict[Entry, int], entries: Sequence[Entry]
) -> int:
    """Let entries enter their lines, up to the first that does so in another way.

    They are alone there, or beside others that also only check the path. Return the number of
    entries before that first one. It may stand in some of its lines already.
    """
    stand = at.setdefault
    for number, entry in enumerate(entries):
        if entry.options is None or entry.key is entry.path:
            if stand(entry.path, entry) is not entry:
                return number
        elif isinstance(entry.key, tuple):
            checked = entry.options.checked
            for path in entry.key:
                line = stand(path, entry)
                if line is entry:
                    continue
                if not isinstance(line, _Line) or line.writing or line.waiting:
                    return number
                if path not in checked:
                    return number
                line.going.add(entry)
            several[entry] = 0
        else:
            return number
    return len(entries)


@accelerated
def leave_alone(
    at: dict[str, Entry | _Line], several: dict[Entry, int], entries: Iterable[Entry]
) -> list[Entry]:
    """Remove the entries behind which nobody waits; return the others."""
    others = []
    for entry in entries:
        if entry.options is None or entry.key is entry.path:
            path = entry.path
            line = at.pop(path, entry)
            if line is entry:
                continue
            at[path] = line
        elif isinstance(entry.key, tuple) and not any(
            _holds(at.get(path), entry) for path in entry.key
        ):
            for path in entry.key:
                shared = at[path]
                if isinstance(shared, _Line):
                    shared.going.discard(entry)
                    if shared.going:
                        continue
                del at[path]
            del several[entry]
            continue
        others.append(entry)
    return others


def _holds(line: Entry | _Line | None, entry: Entry) -> bool:
    """Say whether an entry in a line may hold up somebody there."""
    return bool(line.waiting) if isinstance(line, _Line) else line is not entry


bind(Line=_Line)


class Lines:
    """The lines of all keys; guarded by the engine's lock."""

    def __init__(self) -> None:
        # Most keys have one operation at a time. The value is then the entry itself, without a
        # line around it.
        self._at: dict[str, Entry | _Line] = {}
        # Entries with several keys or none. The value is the number of lines in which the entry may
        # not go yet.
        self._several: dict[Entry, int] = {}

    def enter(self, entry: Entry) -> bool:
        """Give the entry the last place of its line; say whether it may go at once."""
        if entry.options is not None:
            return self._enter_other(entry)
        line = self._at.setdefault(entry.path, entry)
        return line is entry or self._join(entry.path, line, entry)

    def enter_all(self, entries: Sequence[Entry]) -> Sequence[Entry]:
        """Let entries enter in order; return those that may go, and mark the others as waiting."""
        alone = enter_alone(self._at, self._several, entries)
        if alone == len(entries):
            return entries
        may_go = list(entries[:alone])
        for entry in entries[alone:]:
            if self.enter(entry):
                may_go.append(entry)
            else:
                entry.waits_for |= TURN
        return may_go

    def leave(self, entry: Entry) -> Sequence[Entry]:
        """Remove an entry from anywhere in its lines; return the entries that may go now."""
        if entry.options is not None:
            return self._leave_other(entry)
        return self._part(entry.path, entry)

    def leave_all(self, entries: Iterable[Entry]) -> Sequence[Entry]:
        """Remove entries; return those that may go now."""
        may_go: list[Entry] = []
        for entry in leave_alone(self._at, self._several, entries):
            may_go += self.leave(entry)
        return may_go

    def restore(self, lost: Iterable[Entry]) -> None:
        """Restore the order after an interrupted change, without the lost entries.

        These may be in some of their lines, or in none. The set of waiting entries is rebuilt.
        """
        for entry in lost:
            for key in _keys(entry):
                line = self._at.get(key)
                if line is entry:
                    del self._at[key]
                elif isinstance(line, _Line):
                    line.going.discard(entry)
                    line.waiting.pop(entry, None)
            self._several.pop(entry, None)
        for key, line in list(self._at.items()):
            if isinstance(line, _Line):
                line.writing = any(_changes(entry, key) for entry in line.going)
                self._advance(key, line)
                if not line.going:
                    del self._at[key]
        for entry in self.entries():
            waits = sum(self._waits_at(key, entry) for key in _keys(entry))
            if entry in self._several:
                self._several[entry] = waits
            entry.waits_for = entry.waits_for & ~TURN | (TURN if waits else 0)

    def _waits_at(self, key: str, entry: Entry) -> bool:
        line = self._at[key]
        return isinstance(line, _Line) and entry in line.waiting

    def would_wait(self, entry: Entry) -> bool:
        """Say whether an entry that has not entered would have to wait in one of its lines."""
        lines = ((key, self._at.get(key)) for key in _keys(entry))
        return any(line is not None and _holds_up(line, key, entry) for key, line in lines)

    def entries(self) -> Iterator[Entry]:
        """Iterate over every entry in a line, including those that ended while they were SENT."""
        for line in self._at.values():
            if isinstance(line, _Line):
                for entry in chain(line.going, line.waiting):
                    if _has_one(entry):
                        yield entry
            elif _has_one(line):
                yield line
        yield from self._several

    def _enter_other(self, entry: Entry) -> bool:
        key = entry.key
        if isinstance(key, str):
            line = self._at.setdefault(key, entry)
            return line is entry or self._join(key, line, entry)
        waits = self._several[entry] = 0
        for path in key or ():
            line = self._at.setdefault(path, entry)
            if line is not entry and not self._join(path, line, entry):
                waits = self._several[entry] = waits + 1
        return not waits

    def _leave_other(self, entry: Entry) -> Sequence[Entry]:
        key = entry.key
        if isinstance(key, str):
            return self._part(key, entry)
        del self._several[entry]
        may_go: list[Entry] = []
        for path in key or ():
            may_go += self._part(path, entry)
        return may_go

    def _join(self, key: str, line: Entry | _Line, entry: Entry) -> bool:
        """Let an entry enter an existing line; say whether it may go."""
        waits = _holds_up(line, key, entry)
        if isinstance(line, Entry):
            line = self._at[key] = _Line(key, line)
        if waits:
            line.waiting[entry] = None
            return False
        line.going.add(entry)
        return True

    def _part(self, key: str, entry: Entry) -> Sequence[Entry]:
        """Remove an entry from a line; return who may go now."""
        line = self._at[key]
        if line is entry:
            del self._at[key]
            return ()
        assert isinstance(line, _Line)
        if entry in line.going:
            line.going.remove(entry)
        else:
            del line.waiting[entry]
        may_go = self._advance(key, line)
        if not line.going:
            del self._at[key]
        return may_go

    def _advance(self, key: str, line: _Line) -> list[Entry]:
        """Let the first in a line go, as far as they may; return who may now go in all lines."""
        may_go = []
        while line.waiting:
            first = next(iter(line.waiting))
            changes = _changes(first, key)
            if line.going and (changes or line.writing):
                break
            del line.waiting[first]
            line.going.add(first)
            line.writing = changes
            if _has_one(first) or self._goes(first):
                may_go.append(first)
        return may_go

    def _goes(self, entry: Entry) -> bool:
        """Count one more line in which the entry may go; say whether it may go in all."""
        self._several[entry] -= 1
        return not self._several[entry]


def _changes(entry: Entry, key: str) -> bool:
    """Say whether an entry may change what is at a key."""
    options = entry.options
    return entry.writes and (options is None or key not in options.checked)


def _holds_up(line: Entry | _Line, key: str, entry: Entry) -> bool:
    """Say whether those in a line hold up an entry that joins it now."""
    if isinstance(line, Entry):
        return _changes(line, key) or _changes(entry, key)
    return line.writing or bool(line.waiting) or _changes(entry, key)


def _has_one(entry: Entry) -> bool:
    """Say whether an entry has one key."""
    return entry.options is None or isinstance(entry.key, str)


def _keys(entry: Entry) -> Iterable[str]:
    key = entry.path if entry.options is None else entry.key
    return (key,) if isinstance(key, str) else key or ()
