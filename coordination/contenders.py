"""The line of contenders for one path, and whom each must wait for: pure functions.

Each contender has an ephemeral sequential value below the path. Its name consists of an id, a
letter and the number that the store has appended:

    ``6f1c0a6e5b2d4c8e-x-0000000017``

The letter is ``x`` for an exclusive contender and ``s`` for a shared one. The numbers give the
order. So the predecessors of a contender existed before its own value was created: they can only
leave, and a read of the line that began afterwards shows all that it will ever wait for.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from typing import Final, Literal, NamedTuple

__all__ = ["EXCLUSIVE", "SHARED", "Contender", "Need", "blocking", "line_of", "new_head", "parse"]

_DIGITS: Final = 10
_ID: Final = 16
_HEAD: Final = _ID + 3


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


class Need(NamedTuple):
    """The condition for the turn of a contender.

    Attributes:
        letter: the letter in its name. Before a shared one (``s``), only exclusive ones count.
        limit: its turn has come if fewer than this number are before it.
    """

    letter: Literal["x", "s"]
    limit: int


EXCLUSIVE: Final = Need("x", 1)
SHARED: Final = Need("s", 1)


def new_head(need: Need) -> str:
    """Return the first part of the name of a new contender; the store appends the number."""
    return f"{uuid.uuid4().hex[:_ID]}-{need.letter}-"


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


def blocking(line: Sequence[Contender], number: int, need: Need) -> list[Contender]:
    """Return the contenders to wait for, in order; empty if the turn has come.

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
    return before if len(before) >= need.limit else []
