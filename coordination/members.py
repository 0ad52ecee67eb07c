"""The members of a group, and the format of their values. Pure functions.

The value of a member at ``GROUP/NAME`` is a line and its data::

    6f1c0a6e5b2d4c8e 17
    the data

A group with a leaf stores its members at ``GROUP/NAME/LEAF``, so that ``GROUP/NAME`` can hold a
value that outlives the session.

The line has a unique id, and the incarnation. The incarnation is the revision of the creation, so
the first value cannot contain it: its line has only the id.

Stores without ``"expected_revisions"`` (ZooKeeper) count versions from 0 after each creation, so a
version does not identify the owner of a value. There, each member has a second ephemeral value,
``GROUP/.ID``. Every later write of the member also checks that value, so the write fails after the
session. Before the write, the member reads whose value is there, in case its own was deleted by
hand.
"""

from __future__ import annotations

import uuid
from typing import NamedTuple

from ..ops.errors import InvalidPathError
from ..ops.results import Stat

__all__ = [
    "Card",
    "Member",
    "check_name",
    "decode",
    "encode",
    "guard_path",
    "member_name",
    "member_path",
    "new_id",
]

_ID = 16


class Member(NamedTuple):
    """A member of a group.

    Attributes:
        name: its name, unique among the current members.
        data: its data.
        incarnation: a number that is greater each time that the name joins.
    """

    name: str
    data: bytes
    incarnation: int


class Card(NamedTuple):
    """What the value of a member says."""

    id: str
    member: Member


def new_id() -> str:
    """Return an id for a membership."""
    return uuid.uuid4().hex[:_ID]


def check_name(name: str, leaf: str = "") -> str:
    """Return a name that a member can have.

    Raises:
        InvalidPathError: it is empty or not one part of a path, or begins with a dot although the
            group has no leaf.
    """
    one_part = isinstance(name, str) and name and "/" not in name
    if not one_part or (name.startswith(".") and not leaf):
        rule = "one part of a path" if leaf else "one part of a path that begins with no dot"
        raise InvalidPathError(f"a member's name must be {rule}, not {name!r:.80}")
    return name


def member_path(group: str, name: str, leaf: str) -> str:
    """Return the path of a member."""
    return f"{group}/{name}/{leaf}" if leaf else f"{group}/{name}"


def member_name(group: str, path: str, leaf: str) -> str | None:
    """Return the name of the member at a path; ``None`` if it is the path of none."""
    if not path.startswith(group + "/"):
        return None
    name, slash, rest = path[len(group) + 1 :].partition("/")
    if leaf:
        return name if rest == leaf else None
    # Names with a dot are those of second values.
    return None if slash or not name or name.startswith(".") else name


def guard_path(group: str, identity: str) -> str:
    """Return the path of the second value of a member."""
    return f"{group}/.{identity}"


def encode(identity: str, incarnation: int | None, data: bytes) -> bytes:
    """Return the value of a member; ``incarnation`` is ``None`` for its creation."""
    number = "" if incarnation is None else f" {incarnation}"
    return f"{identity}{number}\n".encode() + data


def decode(name: str, value: bytes, stat: Stat) -> Card:
    """Return what a value says. Whatever somebody else has put there is data of a member, too."""
    line, found, data = value.partition(b"\n")
    identity, _, number = line.partition(b" ")
    ours = found and len(identity) == _ID and identity.isalnum() and len(line) < 2 * _ID + _ID
    if not ours or not (number == b"" or number.isdigit()):
        return Card("", Member(name, value, stat.revision))
    incarnation = int(number) if number else stat.revision
    return Card(identity.decode("ascii", "replace"), Member(name, data, incarnation))
