"""Who stands in line for one path, and whose turn it is. A pure object: no I/O, no threads.

Each contender has an ephemeral sequential value below the path. Its name is made of an id, a
letter and the number that the store has appended:

    ``6f1c0a6e5b2d4c8e-x-0000000017``

The letter is ``x`` for an exclusive contender and ``s`` for a shared one. The numbers give the
order. A place below the path is never used twice, so a name that has gone never returns.

The places of this process are known by their ids before the store has given them a number. So it
does not matter whether the answer to a creation or the event of it comes first::

    expected ──> waiting ──> front ──> gone
        └───────────┴───────────────────^

``expected``: the view has not shown it yet. Its turn cannot come by the view before: those who
stand before it may be missing there, too. ``gone``: it was deleted, by whomever.

Two sources tell of the line, and they are never mixed. A *look* is one read that began after the
creation of a place, and decides about that place alone. The *view* is a read and the events after
it. The read may have begun before the creation of a place, and then shows neither that place nor
all of those before it.
"""

from __future__ import annotations

import bisect
import uuid
from collections.abc import Collection, Iterable, Sequence
from typing import Final, Literal, NamedTuple

__all__ = ["EXCLUSIVE", "SHARED", "Contender", "Contenders", "Need", "Place", "parse"]

Letter = Literal["x", "s"]

_DIGITS: Final = 10
_ID: Final = 16


class Contender(NamedTuple):
    """One value in the line. They sort in the order of the line."""

    number: int
    name: str

    @property
    def shared(self) -> bool:
        return self.name[_ID + 1] == "s"


def parse(name: str) -> Contender | None:
    """Return the contender of a name below the path, or ``None`` if it is none of ours."""
    head, dash, digits = name.rpartition("-")
    if (
        dash
        and len(head) == _ID + 2
        and head[_ID:] in {"-x", "-s"}
        and len(digits) >= _DIGITS
        and digits.isdecimal()
        and digits.isascii()
    ):
        return Contender(int(digits), name)
    return None


class Need(NamedTuple):
    """What a contender must find before it for its turn to come.

    Attributes:
        letter: the letter in its name.
        limit: its turn has come if fewer contenders than this are before it; for a shared one, if
            no exclusive one is.
    """

    letter: Letter
    limit: int


EXCLUSIVE: Final = Need("x", 1)
SHARED: Final = Need("s", 0)


class Place:
    """The place of one contender of this process.

    Attributes:
        head: what its name begins with; the store appends the number.
        need: when its turn comes.
        contender: its name and number, or ``None`` until the store has told them.
        state: see the module.
    """

    __slots__ = ("contender", "head", "need", "state")

    def __init__(self, need: Need) -> None:
        self.head = f"{uuid.uuid4().hex[:_ID]}-{need.letter}-"
        self.need = need
        self.contender: Contender | None = None
        self.state: Literal["expected", "waiting", "front", "gone"] = "expected"

    @property
    def front(self) -> bool:
        """Whether its turn has come."""
        return self.state == "front"

    @property
    def name(self) -> str:
        assert self.contender is not None
        return self.contender.name


class Contenders:
    """The contenders for one path, as a sequence of reads and events shows them.

    Each method that changes them returns the places of this process whose state has changed.
    """

    def __init__(self) -> None:
        self._line: list[Contender] = []
        self._places: dict[str, Place] = {}  # by head

    @property
    def line(self) -> list[Contender]:
        """The contenders that are known, in their order."""
        return self._line

    def expect(self, place: Place) -> None:
        """Take in a place of this process, before its value is created."""
        self._places[place.head] = place

    def forget(self, place: Place) -> None:
        """Drop a place of this process. Its value may still be in the line."""
        self._places.pop(place.head, None)

    def created(self) -> frozenset[Place]:
        """Return the places whose values are known to exist, or to have existed.

        A read that begins now shows them, unless they are gone.
        """
        return frozenset(place for place in self._places.values() if place.contender is not None)

    def look(self, place: Place, names: Iterable[str]) -> list[Place]:
        """Decide about one place by a read that began after its creation."""
        if place.state in {"front", "gone"}:
            return []
        line = _line(names)
        if place.contender not in line:
            place.state = "gone"
        elif _has_turn(line, place):
            place.state = "front"
        else:
            return []
        return [place]

    def replace(self, names: Iterable[str], created: Collection[Place] = ()) -> list[Place]:
        """Take over all names that a read has found.

        Args:
            names: the names.
            created: what ``created()`` returned before the read began.
        """
        self._line = _line(names)
        there = {contender.name[: _ID + 3]: contender for contender in self._line}
        changed = []
        for place in self._places.values():
            if (contender := there.get(place.head)) is not None:
                self._see(place, contender)
            elif place in created and place.state != "gone":
                place.state = "gone"
                changed.append(place)
        return changed + self._turns()

    def add(self, name: str) -> list[Place]:
        """Take in a name that was created."""
        contender = parse(name)
        if contender is None:
            return []
        at = bisect.bisect_left(self._line, contender)
        if self._line[at : at + 1] != [contender]:
            self._line.insert(at, contender)
        place = self._places.get(name[: _ID + 3])
        if place is not None:
            self._see(place, contender)
        return self._turns()

    def remove(self, name: str) -> list[Place]:
        """Take out a name that was deleted."""
        contender = parse(name)
        if contender is None:
            return []
        at = bisect.bisect_left(self._line, contender)
        if self._line[at : at + 1] == [contender]:
            del self._line[at]
        place = self._places.get(name[: _ID + 3])
        changed = []
        if place is not None and place.state != "gone":
            place.contender, place.state = contender, "gone"
            changed.append(place)
        return changed + self._turns()

    def _see(self, place: Place, contender: Contender) -> None:
        place.contender = contender
        if place.state == "expected":
            place.state = "waiting"

    def _turns(self) -> list[Place]:
        """Return the places whose turn has come now."""
        changed = [
            place
            for place in self._places.values()
            if place.state == "waiting" and _has_turn(self._line, place)
        ]
        for place in changed:
            place.state = "front"
        return changed


def _line(names: Iterable[str]) -> list[Contender]:
    return sorted(filter(None, map(parse, names)))


def _has_turn(line: Sequence[Contender], place: Place) -> bool:
    """Say whether the turn of a place has come, which stands in the line."""
    assert place.contender is not None
    at = bisect.bisect_left(line, place.contender)
    if place.need.letter == "s":
        return all(other.shared for other in line[:at])
    return at < place.need.limit
