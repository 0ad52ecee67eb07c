"""Finds the names of sequential nodes whose multi was applied, but whose answer was lost.

The server appends the number of creations below the parent so far. A multi is applied at once, so
the nodes that it creates below a parent have consecutive numbers, in its order; ordinary creations
count as well. One number is missing, that of the first. It is known from the first of these that
applies:

1. The parent was created at the multi's zxid: the first number is 0.
2. Nothing below the parent was created or deleted after the multi: the last number is the last that
   the parent has given.
3. Some of the multi's nodes are still there. They are recognized by their zxid, which all nodes of
   one multi share and no others. If only one first number suits the names of all of them, it is
   the right one.

Numbers grow with zxids. So the nodes of a multi lie together among the sequential names, and a
search finds them without reading the others. If others have given nodes such names by hand, the
search may miss nodes of the multi, but never takes a wrong one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

from ....ops.errors import MetadataStoreError
from ..session.connection import ZooKeeperConnection
from ..wire.errors import CONNECTION_LOSS
from ..wire.exchanges import parse_reply
from ..wire.jute import (
    CREATE,
    EPHEMERAL,
    EXISTS,
    GET_CHILDREN_AND_STAT,
    PARENT,
    PROBE,
    SEQUENTIAL,
    SYNC,
    SYNC_ROOT,
    Family,
    ZNode,
    parse_family,
    parse_names_and_family,
    parse_single,
    single_read,
)
from .batches import Batch, parent_of
from .groups import Group

__all__ = ["find_suffixes"]

_DIGITS: Final = 10
# Nodes read at a time, while searching and then while collecting.
_PROBES: Final = 16
_READS: Final = 64

_SYNC: Final = (SYNC, SYNC_ROOT)


class _Births:
    """What a multi creates below one parent, in order."""

    def __init__(self) -> None:
        #: The number of creations.
        self.count = 0
        #: For each sequential one: its request, its place among the creations, and its prefix.
        self.sequential: list[tuple[int, int, str]] = []


def find_suffixes(
    batch: Batch, group: Group, zxid: int, connection: ZooKeeperConnection, until: float
) -> Mapping[int, str]:
    """Return the suffix of each sequential put of a multi, by its place, where it is certain.

    Args:
        batch: the call.
        group: the multi, which was applied.
        zxid: its zxid.
        connection: the session.
        until: the time until which to read, by ``time.monotonic()``.
    """
    found: dict[int, str] = {}
    for parent, births in _births(batch, group).items():
        if not births.sequential:
            continue
        first = _Search(parent, births, zxid, connection, until).first()
        if first is not None:
            for i, place, _ in births.sequential:
                found[i] = _suffix(first + place)
    return found


def _suffix(number: int) -> str:
    return f"{number:0{_DIGITS}}"


def _births(batch: Batch, group: Group) -> Mapping[str, _Births]:
    """Return the creations of a multi, by parent."""
    all_births: dict[str, _Births] = {}
    parents, probes = iter(group.parents), iter(group.probes)
    for opcode, i, _ in group.ops:
        if opcode == PARENT:
            path = next(parents)
        elif opcode == PROBE:
            path = next(probes)
        elif opcode in (CREATE, EPHEMERAL, SEQUENTIAL):
            path = batch.paths[i]
        else:
            continue
        births = all_births.setdefault(parent_of(path), _Births())
        if opcode == SEQUENTIAL:
            births.sequential.append((i, births.count, path[path.rindex("/") + 1 :]))
        births.count += 1
    return all_births


class _Search:
    """Finds the first number that a multi has used below one parent."""

    def __init__(
        self,
        parent: str,
        births: _Births,
        zxid: int,
        connection: ZooKeeperConnection,
        until: float,
    ) -> None:
        self._parent = parent
        self._births = births
        self._zxid = zxid
        self._connection = connection
        self._until = until

    def first(self) -> int | None:
        """Return the number, or ``None`` if it is not certain."""
        family = self._ask(EXISTS, self._parent or "/")
        if not isinstance(family, Family) or family.created_zxid > self._zxid:
            return None
        if family.created_zxid == self._zxid:
            return 0
        if family.changed_zxid == self._zxid:
            first = family.suffix - self._births.count
            # A server that counts otherwise has no such nodes.
            nodes = self._read_nodes(
                [prefix + _suffix(first + k) for _, k, prefix in self._sequential]
            )
            return first if all(self._is_ours(node) for node in nodes) else None
        answer = self._ask(GET_CHILDREN_AND_STAT, self._parent or "/")
        if answer is None or isinstance(answer, Family):
            return None
        names, family = answer
        if family.created_zxid > self._zxid:
            return None
        return self._from_survivors(names, family.suffix - self._births.count)

    @property
    def _sequential(self) -> Sequence[tuple[int, int, str]]:
        return self._births.sequential

    def _from_survivors(self, names: Sequence[str], most: int) -> int | None:
        """Return the only number, up to ``most``, that suits the remaining nodes."""
        places: dict[str, list[int]] = {}
        for _, place, prefix in self._sequential:
            places.setdefault(prefix, []).append(place)
        # The first and the last survivor say most.
        survivors = self._survivors(names, places, most + self._births.count)
        firsts: set[int] | None = None
        for name in [*survivors[:1], *survivors[:0:-1]]:
            prefix, number = _split(name)
            suit = {number - place for place in places[prefix]}
            firsts = suit if firsts is None else firsts & suit
            if len(firsts) <= 1:
                break
        if firsts is None:
            return None
        firsts = {first for first in firsts if 0 <= first <= most}
        return firsts.pop() if len(firsts) == 1 else None

    def _survivors(
        self, names: Sequence[str], prefixes: Mapping[str, object], end: int
    ) -> list[str]:
        """Return the names of the multi's remaining nodes, in order."""
        candidates = []
        for name in names:
            digits = name[-_DIGITS:]
            if name[:-_DIGITS] in prefixes and digits.isdecimal() and digits.isascii():
                number = int(digits)
                if number < end:
                    candidates.append((number, name))
        candidates.sort()
        sorted_names = [name for _, name in candidates]
        start = self._search(sorted_names)
        survivors: list[str] = []
        while start < len(sorted_names):
            some = sorted_names[start : start + _READS]
            start += _READS
            later = False
            for name, node in zip(some, self._read_nodes(some), strict=True):
                if self._is_ours(node):
                    survivors.append(name)
                later = later or (isinstance(node, ZNode) and node.created_zxid > self._zxid)
            if later:
                break
        return survivors

    def _search(self, names: Sequence[str]) -> int:
        """Return the place of the first name whose node is not older than the multi."""
        low, high = 0, len(names)  # all before `low` are older; all from `high` on are not
        while high - low > _READS:
            step = (high - low) // (_PROBES + 1) + 1
            places = range(low + step - 1, high, step)
            nodes = self._read_nodes([names[place] for place in places])
            for place, node in zip(places, nodes, strict=True):
                # A node that is gone says nothing.
                if isinstance(node, ZNode):
                    if node.created_zxid >= self._zxid:
                        high = place
                        break
                    low = place + 1
            else:
                if not any(isinstance(node, ZNode) for node in nodes):
                    break
        return low

    def _is_ours(self, node: object) -> bool:
        return isinstance(node, ZNode) and node.created_zxid == self._zxid

    def _read_nodes(self, names: Sequence[str]) -> list[ZNode | None]:
        """Return the nodes with these names, ``None`` for missing or unreadable ones."""
        requests = [(EXISTS, single_read(f"{self._parent}/{name}".encode())) for name in names]
        found: list[ZNode | None] = []
        for start in range(0, len(requests), _READS):
            replies = self._connection.exchange(
                requests[start : start + _READS], self._until, repeat=True
            )
            for reply in replies:
                node = parse_reply(reply, partial(parse_single, EXISTS))
                found.append(node if isinstance(node, ZNode) else None)
        return found

    def _ask(self, opcode: int, path: str) -> Family | tuple[list[str], Family] | None:
        """Return what the leader knows of a parent, or ``None`` if it has none or does not tell."""
        request = (opcode, single_read(path.encode()))
        while True:
            _, reply = self._connection.exchange([_SYNC, request], self._until, repeat=True)
            if reply == CONNECTION_LOSS:
                continue
            answer: Family | tuple[list[str], Family] | int | MetadataStoreError
            if opcode == EXISTS:
                answer = parse_reply(reply, parse_family)
            else:
                answer = parse_reply(reply, parse_names_and_family)
            return None if isinstance(answer, int | MetadataStoreError) else answer


def _split(name: str) -> tuple[str, int]:
    return name[:-_DIGITS], int(name[-_DIGITS:])
