"""Multis in the making: their operations as bytes, and how to read their answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from .jute import (
    CHECK,
    CREATE,
    DELETE,
    EPHEMERAL,
    NO_DATA,
    PARENT,
    PROBE,
    SEQUENTIAL,
    SET_DATA,
    Op,
    ephemeral,
    header_and_length,
    length,
    sequential,
    version_field,
)
from .nodes import ABSENCE_MARK

__all__ = ["CREATE_OVERHEAD", "DELETE_OVERHEAD", "Group"]

# Header, length of the path, version; for a check, too.
DELETE_OVERHEAD: Final = 17
# Header, length of the path and length of the value. The version or the access rights come on top.
CREATE_OVERHEAD: Final = 17


class Group:
    """One multi: its parts, and how to read its answer.

    The methods that add an operation return the bytes that it takes. They leave ``size`` alone,
    because the plan reserves room before it adds an operation.
    """

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

    def add_parent(self, i: int, path: str, acl: bytes) -> int:
        """Create a parent of a path of request ``i``."""
        raw = path.encode()
        self.parts += (header_and_length(CREATE, len(raw)), raw, NO_DATA, acl)
        self.ops.append((PARENT, i, len(raw)))
        self.parents.append(path)
        self.created = self.created or path
        return CREATE_OVERHEAD + len(raw) + len(acl)

    def add_create(self, i: int, path: str, value: bytes, acl: bytes) -> int:
        """Create a node for good."""
        raw = path.encode()
        self._add_create(raw, value, acl)
        self.ops.append((CREATE, i, len(raw)))
        self.created = self.created or path
        return CREATE_OVERHEAD + len(raw) + len(value) + len(acl)

    def add_ephemeral(self, i: int, path: str, value: bytes, acl: bytes) -> int:
        """Create a node that ends with the session."""
        raw = path.encode()
        self._add_create(raw, value, ephemeral(acl))
        self.ops.append((EPHEMERAL, i, len(raw)))
        self.created = self.created or path
        return CREATE_OVERHEAD + len(raw) + len(value) + len(acl)

    def add_sequential(self, i: int, path: str, value: bytes, acl: bytes, *, fleeting: bool) -> int:
        """Create a node whose name gets a suffix, and which may end with the session."""
        raw = path.encode()
        self._add_create(raw, value, sequential(acl, fleeting))
        self.ops.append((SEQUENTIAL, i, len(raw)))
        self.sequences.append(path)
        return CREATE_OVERHEAD + len(raw) + len(value) + len(acl)

    def add_set(self, i: int, path: str, value: bytes, version: int) -> int:
        """Set the value of a node that is at this version."""
        raw = path.encode()
        self.parts += (
            header_and_length(SET_DATA, len(raw)),
            raw,
            length(len(value)),
            value,
            version_field(version),
        )
        self.ops.append((SET_DATA, i, len(raw)))
        return CREATE_OVERHEAD + len(raw) + len(value) + 4

    def add_delete(self, i: int, path: str, version: int) -> int:
        """Delete a node that is at this version."""
        raw = path.encode()
        self.parts += (header_and_length(DELETE, len(raw)), raw, version_field(version))
        self.ops.append((DELETE, i, len(raw)))
        return DELETE_OVERHEAD + len(raw)

    def add_check(self, i: int, path: str, version: int) -> int:
        """Check that a node is at this version."""
        raw = path.encode()
        self.parts += (header_and_length(CHECK, len(raw)), raw, version_field(version))
        self.ops.append((CHECK, i, len(raw)))
        return DELETE_OVERHEAD + len(raw)

    def add_probe(self, i: int, path: str, acl: bytes) -> int:
        """Create a node and delete it again."""
        return self._add_probe(i, path, acl) + self.add_delete(i, path, -1)

    def add_absence(self, i: int, path: str, acl: bytes) -> int:
        """Create a node and delete it again, which shows that there was none."""
        created = self._add_probe(i, path, acl)
        marked = self.add_probe(i, path + ABSENCE_MARK, acl)
        return created + marked + self.add_delete(i, path, -1)

    def _add_probe(self, i: int, path: str, acl: bytes) -> int:
        raw = path.encode()
        self.parts += (header_and_length(CREATE, len(raw)), raw, NO_DATA, acl)
        self.ops.append((PROBE, i, len(raw)))
        self.probes.append(path)
        return CREATE_OVERHEAD + len(raw) + len(acl)

    def merge(self, other: Group) -> None:
        """Append the operations of another multi, as one request."""
        self.parts += other.parts
        self.ops += other.ops
        self.operations += 1
        self.created = self.created or other.created
        # Most have none of these.
        if other.parents:
            self.parents += other.parents
        if other.probes:
            self.probes += other.probes
        if other.sequences:
            self.sequences += other.sequences
        if other.unproven:
            self.unproven += other.unproven
        if other.session is not None:
            self.session = other.session

    def _add_create(self, raw: bytes, value: bytes, acl: bytes) -> None:
        self.parts += (
            header_and_length(CREATE, len(raw)),
            raw,
            length(len(value)),
            value,
            acl,
        )
