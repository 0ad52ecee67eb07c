"""Multis in the making: their ops as bytes, how to read their answers, and what they change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

from ..wire.jute import (
    CHECK,
    CREATE,
    DELETE,
    EPHEMERAL,
    NO_DATA,
    PARENT,
    PROBE,
    REPLACE,
    SEQUENTIAL,
    SET_DATA,
    Op,
    Opcode,
    ephemeral,
    header_and_length,
    length,
    sequential,
    version_field,
)
from ..wire.nodes import ABSENCE_MARK
from .forms import Form

__all__ = ["CREATE_OVERHEAD", "DELETE_OVERHEAD", "Changes", "Group"]

# Header and length of the path.
_HEADER: Final = 13
#: These and the version; for a check, too.
DELETE_OVERHEAD: Final = _HEADER + 4
#: These and the length of the value. The version or the access rights come on top.
CREATE_OVERHEAD: Final = _HEADER + 4


class Group:
    """One multi: its parts, and how to read its answer."""

    __slots__ = (
        "checked",
        "created",
        "operations",
        "ops",
        "parents",
        "parts",
        "probes",
        "sequences",
        "session",
        "size",
        "transactions",
        "unproven",
    )

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.size = 0
        #: The number of requests in it, without parents.
        self.operations = 0
        #: For each: opcode or kind of create, the index of its request, and the bytes of the path.
        self.ops: list[Op] = []
        #: The first path that it creates.
        self.created: str | None = None
        self.parents: list[str] = []
        #: The paths of nodes that it creates and deletes again, in order.
        self.probes: list[str] = []
        #: The paths, without suffixes, of its sequential nodes, in order.
        self.sequences: list[str] = []
        #: The transactions in it.
        self.transactions: list[int] = []
        #: The versions that its checks expect, by path.
        self.checked: dict[str, int] = {}
        #: Parts of transactions whose condition is not certain to have held if it is applied.
        self.unproven: list[int] = []
        #: The number of the only session in which it may be sent; ``None`` for any.
        self.session: int | None = None

    def body(self) -> bytes:
        """Return the operations as bytes, without the end of the list."""
        return b"".join(self.parts)

    def last_value(self, paths: Sequence[str]) -> str | None:
        """Return the path of the value that its last change creates, if it does; by request."""
        for opcode, i, _ in reversed(self.ops):
            if opcode != CHECK:
                return paths[i] if opcode == CREATE else None
        return None

    def add_parent(self, i: int, path: str, acl: bytes) -> None:
        """Create a parent of a path of request ``i``."""
        self.parents.append(path)
        self.created = self.created or path
        self._add(PARENT, i, path, NO_DATA, acl)

    def add_put(self, i: int, path: str, form: Form, acl: bytes) -> None:
        """Put a value in any form but that of a sequential put."""
        opcode, version, value = form
        if opcode == REPLACE:
            # The node that is there is a parent without anything below it.
            self.add_delete(i, path, version)
            opcode = EPHEMERAL
        if opcode == SET_DATA:
            tail = version_field(version)
        elif opcode == CREATE:
            tail = acl
        elif opcode == EPHEMERAL:
            tail = ephemeral(acl)
        else:
            raise AssertionError(f"a put in the form of an op of type {opcode}")
        if opcode != SET_DATA:
            self.created = self.created or path
        self._add(opcode, i, path, length(len(value)), value, tail)

    def add_sequential(
        self, i: int, path: str, value: bytes, acl: bytes, *, fleeting: bool
    ) -> None:
        """Create a node whose name gets a suffix, and which may end with the session."""
        self.sequences.append(path)
        self._add(SEQUENTIAL, i, path, length(len(value)), value, sequential(acl, fleeting))

    def add_delete(self, i: int, path: str, version: int) -> None:
        """Delete a node that is at this version."""
        raw = path.encode()  # `_add`, without what calling it costs: many come together
        self.parts += (header_and_length(DELETE, len(raw)), raw, version_field(version))
        self.ops.append((DELETE, i, len(raw)))
        self.size += DELETE_OVERHEAD + len(raw)

    def add_check(self, i: int, path: str, version: int) -> None:
        """Check that a node is at this version."""
        self._add(CHECK, i, path, version_field(version))

    def add_probe(self, i: int, path: str, acl: bytes) -> None:
        """Create a node and delete it again."""
        self.probes.append(path)
        self._add(PROBE, i, path, NO_DATA, acl)
        self.add_delete(i, path, -1)

    def add_absence(self, i: int, path: str, acl: bytes) -> None:
        """Create a node and delete it again, which shows that there was none."""
        self.probes.append(path)
        self._add(PROBE, i, path, NO_DATA, acl)
        self.add_probe(i, path + ABSENCE_MARK, acl)
        self.add_delete(i, path, -1)

    def _add(self, opcode: Opcode | Literal[-1], i: int, path: str, *rest: bytes) -> None:
        raw = path.encode()
        # The kinds of creates are negative.
        self.parts += (header_and_length(max(opcode, CREATE), len(raw)), raw, *rest)
        self.ops.append((opcode, i, len(raw)))
        self.size += _HEADER + len(raw) + sum(map(len, rest))

    def merge(self, other: Group) -> None:
        """Append the operations of another multi, as one request."""
        self.size += other.size
        self.parts += other.parts
        self.ops += other.ops
        self.operations += 1
        self.created = self.created or other.created
        self.parents += other.parents
        self.probes += other.probes
        self.sequences += other.sequences
        self.unproven += other.unproven
        if other.session is not None:
            self.session = other.session


class Changes:
    """What a plan does to the tree.

    Attributes:
        deleted: paths to delete that are not part of a transaction.
        kept: those of them whose delete waits, because something is created below them.
        made: paths that need not be created again.
        planted: those of them created as parents, without a value.
        fleeting: those of them created as ephemeral nodes.
        removed: paths that transactions delete.
    """

    __slots__ = ("deleted", "fleeting", "kept", "made", "planted", "removed")

    def __init__(self, deleted: set[str]) -> None:
        self.deleted = deleted
        self.kept: set[str] = set()
        self.made: set[str] = set()
        self.planted: set[str] = set()
        self.fleeting: set[str] = set()
        self.removed: set[str] = set()

    def merge(self, other: Changes) -> None:
        """Add what a transaction does."""
        self.kept |= other.kept
        self.made |= other.made
        self.planted |= other.planted
        self.fleeting |= other.fleeting
        self.removed |= other.removed

    def concern(self, parent: str) -> bool:
        """Say whether the plan deletes a path, or makes it ephemeral."""
        return parent in self.deleted or parent in self.removed or parent in self.fleeting
