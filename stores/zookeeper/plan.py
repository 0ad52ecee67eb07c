"""Distributes the undecided writes of a call over multis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, assert_never

from ...ops.errors import MetadataStoreError, ValueTooLargeError
from ..backend import Answer, WriteRequest
from .codecs import UNSEEN, WRITES, Seen, WriteStep
from .jute import (
    CREATE,
    DELETE,
    NO_DATA,
    PARENT,
    SET_DATA,
    Step,
    ZNode,
    header_and_length,
    length,
    version_field,
)
from .nodes import Nodes
from .sizes import Sizes

__all__ = [
    "OP_OVERHEAD",
    "REQUEST_OVERHEAD",
    "UNDECIDED",
    "Batch",
    "Group",
    "MultiPlan",
    "guess",
    "parent_of",
]

#: Stands in the list of answers for requests without an answer.
UNDECIDED: Final = MetadataStoreError("undecided")

#: xid, opcode and the end of the list.
REQUEST_OVERHEAD: Final = 17
# Header, length of the path, version.
_DELETE_OVERHEAD: Final = 17
# Header, length of the path and length of the value. The version or the access rights come on top.
_CREATE_OVERHEAD: Final = 17
#: The most bytes that a put has beside path and value.
OP_OVERHEAD: Final = _CREATE_OVERHEAD + 32


class Batch:
    """The state of one call of ``write``."""

    __slots__ = ("answers", "failure", "paths", "pending", "requests", "rounds", "seen", "uprooted")

    def __init__(self, requests: Sequence[WriteRequest], chroot: str) -> None:
        self.requests = requests
        #: The paths as the server knows them, with the chroot.
        self.paths = [chroot + request.path for request in requests]
        self.answers: list[Answer] = [UNDECIDED] * len(requests)
        self.pending: Sequence[int] = range(len(requests))
        #: The number of rounds so far.
        self.rounds = 0
        #: The last look at the paths of undecided requests: a node, or ``None`` for none.
        self.seen: dict[int, ZNode | None] = {}
        #: Requests of multis that failed because their parents were not as expected.
        self.uprooted: list[int] = []
        #: The error with which all requests of the call ended together.
        self.failure: MetadataStoreError | None = None

    def sweep(self) -> None:
        """Remove decided requests from the pending ones."""
        answers = self.answers
        self.pending = [i for i in self.pending if answers[i] is UNDECIDED]


class Group:
    """One multi: its parts, and how to read its answer."""

    __slots__ = ("created", "operations", "parents", "parts", "size", "steps")

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.size = 0
        #: The number of requests in it, without parents.
        self.operations = 0
        #: For each: opcode or PARENT, the index of its request, and the bytes of the path.
        self.steps: list[Step] = []
        #: The first path that it creates.
        self.created: str | None = None
        self.parents: list[str] = []

    def body(self) -> bytes:
        """Return the operations as bytes, without the end of the list."""
        return b"".join(self.parts)


def guess(batch: Batch, nodes: Nodes, i: int) -> WriteStep:
    """Return how to send a request, by what is known of its node."""
    request = batch.requests[i]
    seen: Seen = batch.seen.get(i, UNSEEN)
    return WRITES[request.kind].step(request, seen, batch.paths[i], nodes)


def parent_of(path: str) -> str:
    """Return the path above; ``""`` for a path at the top."""
    return path[: path.rindex("/")]


class MultiPlan:
    """The multis of one round, in ``groups``.

    Deletes come last. Parents come before children and, among deletes, children before parents.
    If something is created below a path, a delete of that path waits for the next round, which
    shows its result.
    """

    def __init__(
        self,
        batch: Batch,
        nodes: Nodes,
        sizes: Sizes,
        room: int,
        acl: bytes,
        limit: int,
    ) -> None:
        """Plan one round.

        Args:
            batch: the call. Requests that are too large get their answers here.
            nodes: the known nodes of the tree.
            sizes: the limits of a multi's length.
            room: the bytes that a multi has beside its planned operations.
            acl: the access rights of new nodes, encoded.
            limit: the most requests in one multi.
        """
        self.groups: list[Group] = []
        self._batch = batch
        self._nodes = nodes
        self._overhead = REQUEST_OVERHEAD + room
        self._packet = sizes.usual - self._overhead
        self._most = sizes.most - self._overhead
        self._acl = acl
        self._limit = limit
        self._group = Group()
        paths = batch.paths
        by_length = sorted(batch.pending, key=[*map(len, paths)].__getitem__)
        steps = [(i, guess(batch, nodes, i)) for i in by_length]
        deletes = [(i, version) for i, (opcode, version, _) in steps if opcode == DELETE]
        self._deleted = {paths[i] for i, _ in deletes}
        self._kept: set[str] = set()
        # Paths that this plan sets, or creates as parents, which need not be created again.
        self._made: set[str] = set()
        self._set(steps)
        for i, version in reversed(deletes):
            if paths[i] not in self._kept:
                self._delete(i, version)
        self._close()

    def _set(self, steps: Sequence[tuple[int, WriteStep]]) -> None:
        """Add the steps that set a value."""
        acl, paths = self._acl, self._batch.paths
        group = self._group
        made = self._made.add
        packet, limit = self._packet, self._limit
        last_parent = ""
        for i, (opcode, version, value) in steps:
            if opcode == DELETE:
                continue
            path = paths[i]
            raw = path.encode()
            if opcode == CREATE:
                tail = acl
                above = path[: path.rindex("/")]
                if above != last_parent:
                    self._need(above, i)
                    group = self._group
                    last_parent = above
            elif opcode == SET_DATA:
                tail = version_field(version)
            else:
                assert_never(opcode)
            size = _CREATE_OVERHEAD + len(raw) + len(value) + len(tail)
            if group.size + size > packet or group.operations >= limit:
                found = self._fit(size, i)
                if found is None:
                    continue
                group = found
            else:
                group.size += size
            if opcode == CREATE and group.created is None:
                group.created = path
            path_bytes = len(raw)
            group.parts += (
                header_and_length(opcode, path_bytes),
                raw,
                length(len(value)),
                value,
                tail,
            )
            group.steps.append((opcode, i, path_bytes))
            group.operations += 1
            made(path)

    def _delete(self, i: int, version: int) -> None:
        raw = self._batch.paths[i].encode()
        group = self._fit(_DELETE_OVERHEAD + len(raw), i)
        if group is None:
            return
        group.parts += (header_and_length(DELETE, len(raw)), raw, version_field(version))
        group.steps.append((DELETE, i, len(raw)))
        group.operations += 1

    def _need(self, parent: str, i: int) -> None:
        """Create the parents of a put that are not known to exist."""
        missing = []
        while parent and parent not in self._made and self._nodes.size(parent) is None:
            missing.append(parent)
            parent = parent_of(parent)
        if self._deleted:
            self._kept |= self._deleted.intersection((parent, *missing))
        for path in reversed(missing):
            raw = path.encode()
            group = self._fit(_CREATE_OVERHEAD + len(raw) + len(self._acl), i)
            if group is None:
                return
            group.parts += (header_and_length(CREATE, len(raw)), raw, NO_DATA, self._acl)
            group.steps.append((PARENT, i, len(raw)))
            group.parents.append(path)
            group.created = group.created or path
            self._made.add(path)

    def _fit(self, size: int, i: int) -> Group | None:
        """Return a group with room for an operation; refuse a request that fits in none."""
        group = self._group
        if group.size + size > self._packet or group.operations >= self._limit:
            if size > self._most:
                path = self._batch.requests[i].path
                self._batch.answers[i] = ValueTooLargeError(
                    f"the operation on {path!r:.80} takes {self._overhead + size} bytes; a request "
                    f"to ZooKeeper has at most {self._overhead + self._most} (jute.maxbuffer)",
                    path=path,
                )
                return None
            self._close()
            group = self._group
        group.size += size
        return group

    def _close(self) -> None:
        if self._group.steps:
            self.groups.append(self._group)
            self._group = Group()
