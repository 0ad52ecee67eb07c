"""The counters of sequential puts: for each parent, the number that its next child gets.

A counter is a key of the client's own. A batch that creates children compares it and sets it once,
however many they are. The client assigns the numbers: it expects that the counter is not beyond the
first of them, and sets it to the one after the last. So numbers grow in the order of commits, and
never come again, also after deletes. If other clients move a counter, the response shows it, and
only the puts of that parent are sent again.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

from ....ops.paths import OWN
from ..wire.fields import otherwise, put, read_key, then, value_below, version_is

__all__ = ["MOST", "Counters", "Numbers"]

#: The number of suffixes of ten digits.
MOST: Final = 10**10
# Values of the same length order like their numbers. MOST itself has eleven digits.
_LENGTH: Final = 12
_VALUE: Final = b"%012d"
# The number of parents whose counters the client remembers. It reads the others again.
_REMEMBERED: Final = 10_000


class Numbers:
    """The numbers that one transaction takes from a counter.

    Attributes:
        key: the key of the counter.
        first: the first number.
        compare: the condition: the counter is not beyond the first number.
        new: whether the counter must not exist yet.
        advance: the change that sets the counter to the number after the last.
        read: the read, on failure, that shows the counter.
    """

    __slots__ = ("advance", "compare", "count", "first", "key", "new", "read")

    def __init__(self, key: bytes, first: int, count: int, *, new: bool) -> None:
        self.key = key
        self.first = first
        self.count = count
        self.new = new
        self.compare = version_is(key, 0) if new else value_below(key, _VALUE % (first + 1))
        self.advance = then(put(key, _VALUE % (first + count)))
        self.read = otherwise(read_key(key, whole=True))

    def held(self, value: bytes | None) -> bool:
        """Say whether the condition holds for this content of the counter."""
        return self.new if value is None else _number(value) <= self.first and not self.new


def _number(value: bytes) -> int:
    """Return the number in a counter.

    Something else can only be another program's doing. The numbers below that parent then count as
    used up, so that none comes again.
    """
    return int(value) if len(value) == _LENGTH and value.isdigit() else MOST


class _Counter:
    """What the client knows of a counter.

    Attributes:
        next: the next number to assign.
        missing: whether the counter does not exist yet, as far as the client knows.
    """

    __slots__ = ("missing", "next")

    def __init__(self) -> None:
        self.next = 0
        self.missing = True


class Counters:
    """The counters of one client. Several threads use them.

    Args:
        prefix: the prefix of all keys.
    """

    def __init__(self, prefix: str) -> None:
        self._place = f"{prefix}/{OWN}/sequences"
        self._lock = threading.Lock()  # guards the following field
        self._known: OrderedDict[str, _Counter] = OrderedDict()

    def unknown(self, parents: Iterable[str]) -> list[str]:
        """Return those of the parents whose counters have to be read before the first ``take``."""
        with self._lock:
            return [parent for parent in parents if parent not in self._known]

    def take(self, parent: str, count: int) -> Numbers | None:
        """Return numbers for children of a path; ``None`` if there are no more.

        Args:
            parent: the path above the children.
            count: how many numbers to take.
        """
        with self._lock:
            counter = self._known.pop(parent, None) or _Counter()
            self._known[parent] = counter  # the most recent one
            if len(self._known) > _REMEMBERED:
                self._known.popitem(last=False)
            first = counter.next
            if first + count > MOST:
                return None
            new, counter.missing = counter.missing, False
            counter.next = first + count
        return Numbers(self.key(parent), first, count, new=new)

    def give_back(self, parent: str, numbers: Numbers) -> None:
        """Take numbers back that were refused, if no later ones are under way."""
        with self._lock:
            counter = self._known.get(parent)
            if counter is not None and counter.next == numbers.first + numbers.count:
                counter.next, counter.missing = numbers.first, numbers.new

    def learn(self, parent: str, value: bytes | None) -> None:
        """Note the content of a counter that was found, ``None`` if it does not exist."""
        with self._lock:
            counter = self._known.setdefault(parent, _Counter())
            if value is None:
                counter.missing = True
            else:
                counter.missing = False
                counter.next = max(counter.next, _number(value))

    def key(self, parent: str) -> bytes:
        """Return the key of a parent's counter."""
        return f"{self._place}{parent}".encode()
