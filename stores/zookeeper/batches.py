"""The writes of one call, and what is known about them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from ...ops.errors import MetadataStoreError
from ..backend import Answer, PartRequest, WriteRequest
from ..refusals import transaction_refused
from .codecs import UNREAD, WRITES, KnownNode, WriteStep
from .jute import ZNode
from .nodes import Nodes

__all__ = ["UNDECIDED", "Batch", "guess", "parent_of"]

#: Stands in the list of answers for requests without an answer.
UNDECIDED: Final = MetadataStoreError("undecided")


class Batch:
    """The state of one call of ``write``.

    The parts of transactions stand behind the requests of the call, as if they were requests, too.
    """

    __slots__ = (
        "answers",
        "count",
        "ephemerals",
        "failure",
        "parts",
        "paths",
        "pending",
        "requests",
        "rounds",
        "seen",
        "session",
        "shelters",
        "skips",
        "uprooted",
        "whole",
        "writes",
    )

    def __init__(self, writes: Sequence[WriteRequest], chroot: str) -> None:
        self.writes = writes
        self.count = len(writes)
        self.requests: Sequence[PartRequest] = writes
        #: The paths as the server knows them, with the chroot.
        self.paths = [chroot + request.path for request in writes]
        self.answers: list[Answer] = [UNDECIDED] * len(writes)
        self.pending: Sequence[int] = range(len(writes))
        #: The number of rounds so far.
        self.rounds = 0
        #: The last read of the paths of undecided requests: a node, or ``None`` for none.
        self.seen: dict[int, ZNode | None] = {}
        #: Requests of multis that failed because their parents were not as expected.
        self.uprooted: list[int] = []
        #: The error with which all requests of the call ended together.
        self.failure: MetadataStoreError | None = None
        #: The places of each transaction's parts, and the transaction of each part.
        self.parts: dict[int, range] = {}
        self.whole: dict[int, int] = {}
        #: The writes that belong to a session, and the number of the session of this round.
        self.ephemerals: dict[int, None] = {}
        self.session = 0
        #: For sequential puts whose next name is taken: the number of suffixes to pass over.
        self.skips: dict[int, int] = {}
        #: For checks for ABSENT below an ephemeral node, by the last read: that node's path and the
        #: zxid of its creation.
        self.shelters: dict[int, tuple[str, int]] = {}
        self._expand(chroot)

    def _expand(self, chroot: str) -> None:
        """Note the sessions of ephemeral writes, and add the parts of transactions."""
        requests: list[PartRequest] = [*self.writes]
        paths, whole = self.paths, self.whole
        for i, request in enumerate(self.writes):
            options = request.options
            if options is None:
                continue  # Nearly all.
            if options.ephemeral:
                self.ephemerals[i] = None
            if options.parts:
                start = len(requests)
                for k, part in enumerate(options.parts, start):
                    whole[k] = i
                    requests.append(part)
                    paths.append(chroot + part.path)
                self.parts[i] = range(start, len(requests))
        if self.parts:
            self.answers += [None] * (len(requests) - self.count)
            self.requests = requests

    def sweep(self) -> None:
        """Remove decided requests from the pending ones."""
        answers = self.answers
        self.pending = [i for i in self.pending if answers[i] is UNDECIDED]

    def refuse(self, i: int, error: MetadataStoreError) -> None:
        """Answer a request, or the transaction of which it is a part."""
        whole = self.whole.get(i)
        if whole is None:
            self.answers[i] = error
        else:
            self.answers[whole] = transaction_refused(i - self.parts[whole].start, error)

    def spread(self, wholes: Iterable[int]) -> list[int]:
        """Return the places of requests, with those of a transaction's parts in its place."""
        if not self.parts:
            return list(wholes)
        parts = self.parts
        return [k for i in wholes for k in parts.get(i, (i,))]


def guess(batch: Batch, nodes: Nodes, i: int) -> WriteStep:
    """Return how to send a request, by what is known of its node."""
    request = batch.requests[i]
    seen: KnownNode = batch.seen.get(i, UNREAD)
    return WRITES[request.kind].step(request, seen, batch.paths[i], nodes)


def parent_of(path: str) -> str:
    """Return the path above; ``""`` for a path at the top."""
    return path[: path.rindex("/")]
