"""The codecs: each kind of operation as a request to ZooKeeper, and its result from a node.

``plan`` chooses the steps of a write in a multi (``create``, ``setData``, ``delete``, ``check``).
``writes`` reads their answers by opcode, and ``recovery`` finds their results if the answers were
lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, Protocol, TypeAlias, assert_never, get_args

from ...ops.errors import MetadataStoreError, UnsupportedError
from ...ops.operations import ABSENT, PartKind, ReadKind, WriteKind
from ...ops.paths import children_of
from ...ops.results import GetResult, Result, Stat
from ..backend import Answer, PartRequest, ReadRequest
from ..refusals import refusal
from .jute import (
    CHECK,
    CREATE,
    DELETE,
    EPHEMERAL,
    EXISTS,
    GET_CHILDREN,
    GET_DATA,
    PROBE,
    REPLACE,
    SEQUENTIAL,
    SET_DATA,
    WriteOpcode,
    ZNode,
)
from .nodes import NULL, Nodes

__all__ = [
    "ANY_VERSION",
    "READS",
    "UNREAD",
    "WRITES",
    "KnownNode",
    "ReadCodec",
    "WriteCodec",
    "WriteStep",
]

#: Stands for the node at a path that the client has not read.
UNREAD: Final = "unread"
KnownNode: TypeAlias = ZNode | Literal["unread"] | None

#: A write in a multi: its opcode, the version that it compares, and the value that it sets.
WriteStep: TypeAlias = tuple[WriteOpcode, int, bytes]

#: As the version of a step: it compares none.
ANY_VERSION: Final = -1


class WriteCodec(Protocol):
    """One kind of writes, alone or as a part of a transaction."""

    def creates(self, request: PartRequest) -> bool:
        """Say whether it may create its node, and so needs its parents."""

    def unsure(self, request: PartRequest, path: str, nodes: Nodes) -> bool:
        """Say whether the client must read its node, at a full ``path``, before sending it."""

    def step(self, request: PartRequest, seen: KnownNode, path: str, nodes: Nodes) -> WriteStep:
        """Return how to send it.

        Args:
            request: the write.
            seen: the result of the last read, which may leave the value out.
            path: the path with the chroot.
            nodes: the memory of nodes, for a path that was not read.
        """

    def refusal(self, request: PartRequest, node: ZNode | None) -> MetadataStoreError | None:
        """Return its error if a node, or its absence, forbids it; ``None`` if it may go."""


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
    def creates(self, request: PartRequest) -> bool:
        return True

    def unsure(self, request: PartRequest, path: str, nodes: Nodes) -> bool:
        expected, options = request.expected_version, request.options
        if options is not None:
            if options.sequential:
                return False
            if options.ephemeral and expected is None:
                # An ephemeral value cannot go into a parent, which is persistent.
                return nodes.size(path) is not None
        # No condition distinguishes a value at version 0 from a parent without a value.
        return expected == 0 or (expected == ABSENT and nodes.size(path) == NULL)

    def step(self, request: PartRequest, seen: KnownNode, path: str, nodes: Nodes) -> WriteStep:
        expected, value = request.expected_version, request.value
        assert value is not None
        if request.options is not None and (special := _special_step(request, seen, path, nodes)):
            return special
        if expected is None:
            there = nodes.size(path) is not None if seen == UNREAD else seen is not None
            return SET_DATA if there else CREATE, ANY_VERSION, value
        if expected == ABSENT:
            # If there is a node, its value is null: a put over a value has been refused already.
            if isinstance(seen, ZNode):
                return SET_DATA, seen.version, value
            return CREATE, 0, value
        return SET_DATA, expected, value

    def refusal(self, request: PartRequest, node: ZNode | None) -> MetadataStoreError | None:
        options = request.options
        if options is not None and options.sequential:
            return None
        if node is None:
            return refusal(request, ABSENT, occupied=False)
        if node.size != NULL:
            return refusal(request, node.version, occupied=False)
        error = refusal(request, ABSENT, occupied=False)
        if error is None and node.children and options is not None and options.ephemeral:
            return UnsupportedError(
                f"ZooKeeper allows no paths below an ephemeral one, and there are paths below "
                f"{request.path!r}",
                path=request.path,
            )
        return error


def _special_step(
    request: PartRequest, seen: KnownNode, path: str, nodes: Nodes
) -> WriteStep | None:
    """Return how to send a sequential put, or an ephemeral one that creates its node."""
    value, options = request.value, request.options
    assert value is not None
    assert options is not None
    if options.sequential:
        return SEQUENTIAL, 0, value
    if not options.ephemeral or request.expected_version not in (None, ABSENT):
        return None
    if isinstance(seen, ZNode):
        return (REPLACE, seen.version, value) if seen.size == NULL else None
    if seen is None or request.expected_version == ABSENT or nodes.size(path) is None:
        return EPHEMERAL, 0, value
    return None


class _Delete:
    def creates(self, request: PartRequest) -> bool:
        return False

    def unsure(self, request: PartRequest, path: str, nodes: Nodes) -> bool:
        return False

    def step(self, request: PartRequest, seen: KnownNode, path: str, nodes: Nodes) -> WriteStep:
        expected = request.expected_version
        return DELETE, ANY_VERSION if expected is None else expected, b""

    def refusal(self, request: PartRequest, node: ZNode | None) -> MetadataStoreError | None:
        if node is None:
            return refusal(request, ABSENT, occupied=False)
        if node.size != NULL:
            return refusal(request, node.version, occupied=node.children > 0)
        if node.children == 0 and request.expected_version in (None, node.version):
            return None  # A parent without anything below it: its delete succeeds.
        return refusal(request, ABSENT, occupied=node.children > 0)


class _Check:
    def creates(self, request: PartRequest) -> bool:
        # If nothing may be there, a node is created and deleted again.
        return request.expected_version == ABSENT

    def unsure(self, request: PartRequest, path: str, nodes: Nodes) -> bool:
        expected = request.expected_version
        return expected == 0 or (expected == ABSENT and nodes.size(path) == NULL)

    def step(self, request: PartRequest, seen: KnownNode, path: str, nodes: Nodes) -> WriteStep:
        expected = request.expected_version
        if expected == ABSENT:
            return (CHECK, seen.version, b"") if isinstance(seen, ZNode) else (PROBE, 0, b"")
        return CHECK, ANY_VERSION if expected is None else expected, b""

    def refusal(self, request: PartRequest, node: ZNode | None) -> MetadataStoreError | None:
        if node is None or node.size == NULL:
            return refusal(request, ABSENT, occupied=False)
        return refusal(request, node.version, occupied=False)


class _Transaction:
    """Stands for the whole. Its parts have codecs of their own."""

    def creates(self, request: PartRequest) -> bool:
        assert request.options is not None
        return any(WRITES[part.kind].creates(part) for part in request.options.parts)

    def unsure(self, request: PartRequest, path: str, nodes: Nodes) -> bool:
        raise AssertionError("the parts of a transaction are looked at by themselves")

    def step(self, request: PartRequest, seen: KnownNode, path: str, nodes: Nodes) -> WriteStep:
        raise AssertionError("a transaction has a step for each part")

    def refusal(self, request: PartRequest, node: ZNode | None) -> MetadataStoreError | None:
        raise AssertionError("each part of a transaction has a refusal of its own")


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
        return sorted(children_of(request.path, names))


def _write_codec(kind: WriteKind | PartKind) -> WriteCodec:
    match kind:
        case "put":
            return _Put()
        case "delete":
            return _Delete()
        case "check":
            return _Check()
        case "transaction":
            return _Transaction()
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


WRITES: Final[Mapping[WriteKind | PartKind, WriteCodec]] = {
    kind: _write_codec(kind) for kind in {*get_args(WriteKind), *get_args(PartKind)}
}
READS: Final[Mapping[ReadKind, ReadCodec]] = {
    kind: _read_codec(kind) for kind in get_args(ReadKind)
}
