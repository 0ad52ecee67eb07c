"""The codecs: each kind of operation as a request to ZooKeeper, and its result from a node.

``plan`` chooses the steps of a write in a multi (``create``, ``setData``, ``delete``). ``writes``
reads their answers by opcode, and ``recovery`` finds their results if the answers were lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, Protocol, TypeAlias, assert_never, get_args

from ...ops.errors import MetadataStoreError
from ...ops.operations import ABSENT, ReadKind, WriteKind
from ...ops.paths import hidden
from ...ops.results import GetResult, Result, Stat
from ..backend import Answer, ReadRequest, WriteRequest, refusal
from .jute import (
    CREATE,
    DELETE,
    EXISTS,
    GET_CHILDREN,
    GET_DATA,
    SET_DATA,
    WriteOpcode,
    ZNode,
)
from .nodes import NULL, Nodes

__all__ = ["READS", "UNSEEN", "WRITES", "ReadCodec", "Seen", "WriteCodec", "WriteStep"]

#: Stands for the node at a path at which the client has not looked.
UNSEEN: Final = "unseen"
Seen: TypeAlias = ZNode | Literal["unseen"] | None

#: A write in a multi: its opcode, the version that a setData or delete compares, and the value that
#: a create or setData sets.
WriteStep: TypeAlias = tuple[WriteOpcode, int, bytes]

_ANY_VERSION: Final = -1


class WriteCodec(Protocol):
    """One kind of writes."""

    @property
    def creates(self) -> bool:
        """Whether it may create its node, and so needs its parents."""

    def unsure(self, request: WriteRequest, path: str, nodes: Nodes) -> bool:
        """Say whether the client must look at its node, at a full ``path``, before sending it."""

    def step(self, request: WriteRequest, seen: Seen, path: str, nodes: Nodes) -> WriteStep:
        """Return how to send it.

        Args:
            request: the write.
            seen: the result of the last look, which may leave the value out.
            path: the path with the chroot.
            nodes: the memory of nodes, for a path without a look.
        """

    def refusal(self, request: WriteRequest, node: ZNode) -> MetadataStoreError | None:
        """Return its error if a node forbids it; ``None`` if it may go."""


class ReadCodec(Protocol):
    """One kind of reads."""

    @property
    def opcode(self) -> int: ...

    def missing(self) -> Result:
        """Return its answer for a missing node."""

    def of_node(self, request: ReadRequest, node: ZNode, owned: bool) -> Answer:
        """Return its answer from a node; ``owned`` says whether this session owns the node."""

    def of_names(self, request: ReadRequest, names: list[str]) -> Answer:
        """Return its answer from the names of a node's children."""


class _Put:
    creates = True

    def unsure(self, request: WriteRequest, path: str, nodes: Nodes) -> bool:
        # No condition distinguishes a value at version 0 from a parent without a value.
        expected = request.expected_version
        return expected == 0 or (expected == ABSENT and nodes.size(path) == NULL)

    def step(self, request: WriteRequest, seen: Seen, path: str, nodes: Nodes) -> WriteStep:
        expected, value = request.expected_version, request.value
        assert value is not None
        if expected is None:
            there = nodes.size(path) is not None if seen == UNSEEN else seen is not None
            return SET_DATA if there else CREATE, _ANY_VERSION, value
        if expected == ABSENT:
            # If there is a node, its value is null: a put over a value has been refused already.
            if isinstance(seen, ZNode):
                return SET_DATA, seen.version, value
            return CREATE, 0, value
        return SET_DATA, expected, value

    def refusal(self, request: WriteRequest, node: ZNode) -> MetadataStoreError | None:
        return refusal(request, ABSENT if node.size == NULL else node.version, occupied=False)


class _Delete:
    creates = False

    def unsure(self, request: WriteRequest, path: str, nodes: Nodes) -> bool:
        return False

    def step(self, request: WriteRequest, seen: Seen, path: str, nodes: Nodes) -> WriteStep:
        expected = request.expected_version
        return DELETE, _ANY_VERSION if expected is None else expected, b""

    def refusal(self, request: WriteRequest, node: ZNode) -> MetadataStoreError | None:
        if node.size != NULL:
            return refusal(request, node.version, occupied=node.children > 0)
        if node.children == 0 and request.expected_version in (None, node.version):
            return None  # A parent without anything below it: its delete succeeds.
        return refusal(request, ABSENT, occupied=node.children > 0)


class _Get:
    opcode = GET_DATA

    def missing(self) -> Result:
        return None

    def of_node(self, request: ReadRequest, node: ZNode, owned: bool) -> Answer:
        value, _, _, revision, created, modified, version, owner, _ = node
        if value is None:
            return None
        ephemeral = owner != 0
        stat = Stat(request.path, version, revision, created, modified, ephemeral, owned)
        return GetResult(value, stat)

    def of_names(self, request: ReadRequest, names: list[str]) -> Answer:
        raise AssertionError("names in the answer to a getData")


class _Exists:
    opcode = EXISTS

    def missing(self) -> Result:
        return False

    def of_node(self, request: ReadRequest, node: ZNode, owned: bool) -> Answer:
        return node.size != NULL

    def of_names(self, request: ReadRequest, names: list[str]) -> Answer:
        raise AssertionError("names in the answer to an exists")


class _GetChildren:
    opcode = GET_CHILDREN

    def missing(self) -> Result:
        return []

    def of_node(self, request: ReadRequest, node: ZNode, owned: bool) -> Answer:
        raise AssertionError("a node in the answer to a getChildren")

    def of_names(self, request: ReadRequest, names: list[str]) -> Answer:
        return sorted(name for name in names if not hidden(request.path, name))


def _write_codec(kind: WriteKind) -> WriteCodec:
    match kind:
        case "put":
            return _Put()
        case "delete":
            return _Delete()
        case _:
            assert_never(kind)


def _read_codec(kind: ReadKind) -> ReadCodec:
    match kind:
        case "get":
            return _Get()
        case "exists":
            return _Exists()
        case "get_children":
            return _GetChildren()
        case _:
            assert_never(kind)


WRITES: Final[Mapping[WriteKind, WriteCodec]] = {
    kind: _write_codec(kind) for kind in get_args(WriteKind)
}
READS: Final[Mapping[ReadKind, ReadCodec]] = {
    kind: _read_codec(kind) for kind in get_args(ReadKind)
}
