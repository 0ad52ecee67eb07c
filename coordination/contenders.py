"""The line of contenders for one path, and whom each must wait for: pure functions.

Each contender has an ephemeral sequential value below the path. Its name consists of an id, a
letter and the number that the store has appended:

    ``6f1c0a6e5b2d4c8e-x-0000000017``

The letter is ``x`` for an exclusive contender and ``s`` for a shared one. For a semaphore, the id
ends with ``n`` and its limit: the first in line decides which limit is in use, and when all have
left, none is.

The numbers give the order. So the predecessors of a contender existed before its own value was
created: they can only leave, and a read of the line that began afterwards shows all that it will
ever wait for.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Literal, NamedTuple

__all__ = [
    "EXCLUSIVE",
    "SHARED",
    "Contender",
    "Need",
    "Participant",
    "blocking",
    "differs",
    "line_of",
    "new_head",
    "parse",
    "turns",
]

_DIGITS: Final = 10
_ID: Final = 16
_HEAD: Final = _ID + 3
# The greatest limit that a name shows, to leave at least half of the id to chance.
_MOST: Final = 10**7 - 1


class Contender(NamedTuple):
    """One value in the line. Contenders sort in the order of the line."""

    number: int
    name: str

    @property
    def head(self) -> str:
        """The part of its name before the number."""
        return self.name[:_HEAD]

    @property
    def shared(self) -> bool:
        return self.name[_ID + 1] == "s"

    @property
    def n(self) -> int | None:
        """The limit of its semaphore; ``None`` for a lock, and for a name that shows none."""
        _, mark, n = self.name[:_ID].rpartition("n")
        return int(n) if mark and n.isdecimal() else None


class Need(NamedTuple):
    """The condition for the turn of a contender.

    Attributes:
        letter: the letter in its name. Before a shared one (``s``), only exclusive ones count.
        limit: its turn has come if fewer than this number are before it.
        n: the limit that all of a semaphore must have, or ``None`` for a lock.
    """

    letter: Literal["x", "s"]
    limit: int
    n: int | None = None


class Participant(NamedTuple):
    """One in the line of a lock, a semaphore or an election.

    Attributes:
        value: the value that it shows to others, such as its address.
        path: the path of this value.
        holds: whether it holds the lock or leads, as far as the line shows: its turn has come.
        owned: whether the value belongs to the session of this store.
        created: when it came, in milliseconds since the epoch; ``None`` where a store keeps none.
    """

    value: bytes
    path: str
    holds: bool
    owned: bool
    created: int | None


EXCLUSIVE: Final = Need("x", 1)
SHARED: Final = Need("s", 1)


def new_head(need: Need) -> str:
    """Return the first part of the name of a new contender; the store appends the number."""
    shown = "" if need.n is None else f"n{min(need.n, _MOST)}"
    return f"{uuid.uuid4().hex[: _ID - len(shown)]}{shown}-{need.letter}-"


def parse(name: str) -> Contender | None:
    """Return the contender with a name below the path, or ``None`` if the name is foreign."""
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


def line_of(names: Iterable[str]) -> list[Contender]:
    """Return the contenders among the names below the path, in their order."""
    return sorted(filter(None, map(parse, names)))


def differs(other: Contender, need: Need) -> bool:
    """Return whether a contender is one of a semaphore with another limit."""
    return need.n is not None and other.n not in {None, min(need.n, _MOST)}


def blocking(line: Sequence[Contender], number: int, need: Need) -> list[Contender]:
    """Return the contenders to wait for, in order; empty if the turn has come.

    Those whose limit differs have been refused, or will be, unless the first in line has left: then
    the limit is theirs. As nobody can say which, their end is waited for.

    Args:
        line: the contenders, in their order, or at least all before it.
        number: its number.
        need: when its turn comes.
    """
    before = [
        other
        for other in line
        if other.number < number and not (need.letter == "s" and other.shared)
    ]
    waits = len(before) >= need.limit or any(differs(other, need) for other in before)
    return before if waits else []


def turns(line: Sequence[Contender], n: int = 1) -> Iterator[bool]:
    """Yield for each contender of a line whether its turn has come.

    Args:
        line: all contenders, in their order.
        n: the limit of those that are not shared and show none.
    """
    writers = False
    for place, contender in enumerate(line):
        if contender.shared:
            yield not writers
            continue
        need = Need("x", contender.n or n, contender.n)
        yield place < need.limit and not blocking(line[:place], contender.number, need)
        writers = True
