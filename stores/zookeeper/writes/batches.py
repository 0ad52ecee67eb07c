"""The writes of one call, and what is known about them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from ....ops.errors import MetadataStoreError
from ....ops.steps import Step, step_of
from ...backend import Answer, PartRequest, WriteRequest, are_plain_puts, column, is_plain_put
from ...refusals import transaction_refused
from ..wire.jute import DELETE, ZNode
from ..wire.nodes import Nodes
from .forms import (
    ONLY_EPHEMERAL,
    UNREAD,
    Form,
    KnownNode,
    fixed_form,
    form_of,
    is_ephemeral,
    plain_form,
)

__all__ = ["UNDECIDED", "Batch", "parent_of"]

#: Stands in the list of answers for requests without an answer.
UNDECIDED: Final = MetadataStoreError("undecided")


class Batch:
    """The state of one call of ``write``.

    The parts of transactions stand behind the requests of the call, as if they were requests, too.
    """

    __slots__ = (
        "answers",
        "connection",
        "deletes",
        "ephemerals",
        "failure",
        "fixed",
        "nodes",
        "parts",
        "paths",
        "pending",
        "requests",
        "rounds",
        "seen",
        "session",
        "shelters",
        "skips",
        "steps",
        "tentative",
        "unknown",
        "uprooted",
        "whole",
        "writes",
    )

    def __init__(self, writes: Sequence[WriteRequest], chroot: str, nodes: Nodes) -> None:
        self.writes = writes
        self.requests: Sequence[PartRequest] = writes
        #: The paths as the server knows them, with the chroot.
        self.paths = column(writes, "path")
        if chroot:
            self.paths = [chroot + path for path in self.paths]
        #: The known nodes, for guesses at those that the call has not read.
        self.nodes = nodes
        self.answers: list[Answer] = [UNDECIDED] * len(writes)
        self.pending: Sequence[int] = range(len(writes))
        #: The number of rounds so far.
        self.rounds = 0
        #: The last read of the paths of undecided requests: a node, or ``None`` for none.
        self.seen: dict[int, ZNode | None] = {}
        #: Requests that the first read has refused, after a sync over the connection with this
        #: number. They are decided when that connection has applied a multi.
        self.tentative: Sequence[int] = ()
        self.connection = 0
        #: The puts that depend on a guess whether there is a node, as far as somebody asks.
        self.unknown: Sequence[int] = ()
        #: Requests of multis that failed because their parents were not as expected.
        self.uprooted: list[int] = []
        #: The error with which all requests of the call ended together.
        self.failure: MetadataStoreError | None = None
        #: The places of each transaction's parts, and the transaction of each part.
        self.parts: dict[int, range] = {}
        self.whole: dict[int, int] = {}
        #: How writes and parts are sent, if nothing that the client may read can change it.
        self.fixed: dict[int, Form] = {}
        #: What the others do. Puts without options have no step until :meth:`step` is asked for it.
        self.steps: dict[int, Step] = {}
        #: The writes and parts that delete.
        self.deletes: set[int] = set()
        #: The writes that belong to a session, and the number of the session of this round.
        self.ephemerals: dict[int, None] = {}
        self.session = 0
        #: For sequential puts whose next name is taken: the number of suffixes to pass over.
        self.skips: dict[int, int] = {}
        #: For checks for ABSENT below an ephemeral node, by the last read: that node's path and the
        #: zxid of its creation.
        self.shelters: dict[int, tuple[str, int]] = {}
        if not are_plain_puts(writes):
            self._expand(chroot)

    def _expand(  # noqa: C901 - in one piece: every operation pays for each call
        self, chroot: str
    ) -> None:
        """Note what all writes but plain puts do, and add the parts of transactions."""
        requests: list[PartRequest] = [*self.writes]
        paths, whole, fixed = self.paths, self.whole, self.fixed
        for i, request in enumerate(self.writes):
            options = request.options
            if request.kind == "put" and (options is None or options is ONLY_EPHEMERAL):
                # Nearly all are plain puts.
                if options is not None:
                    self.ephemerals[i] = None
            elif options is not None and options.parts:
                start = len(requests)
                requests += options.parts
                self.parts[i] = range(start, len(requests))
                for k, part in enumerate(options.parts, start):
                    whole[k] = i
                    paths.append(chroot + part.path)
                    if (form := fixed_form(part)) is not None:
                        fixed[k] = form
                        if form[0] == DELETE:
                            self.deletes.add(k)
                    elif not is_plain_put(part):
                        self._note(k, step_of(part), i)
            elif (form := fixed_form(request)) is None:
                self._note(i, step_of(request), i)
            else:
                fixed[i] = form
                if form[0] == DELETE:
                    self.deletes.add(i)
        if self.parts:
            self.answers += [None] * (len(requests) - len(self.writes))
            self.requests = requests

    def _note(self, k: int, step: Step, whole: int) -> None:
        """Note the step of a write, or of a part of the transaction ``whole``."""
        self.steps[k] = step
        if step.effect == "delete":
            self.deletes.add(k)
        elif is_ephemeral(step):
            self.ephemerals[whole] = None

    def sweep(self) -> None:
        """Remove decided requests from the pending ones."""
        answers = self.answers
        if type(UNDECIDED) in set(map(type, answers)):
            self.pending = [i for i in self.pending if answers[i] is UNDECIDED]
        else:
            self.pending = ()

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

    def step(self, k: int) -> Step:
        """Return what a write or a part of a transaction does."""
        step = self.steps.get(k)
        if step is None:
            step = self.steps[k] = step_of(self.requests[k])
        return step

    def form(self, k: int) -> Form:
        """Return how to send a write or a part, by what is known of its node."""
        if (form := self.fixed.get(k)) is not None:
            return form
        seen: KnownNode = self.seen.get(k, UNREAD)
        path = self.paths[k]
        if k in self.steps or k in self.ephemerals:
            return form_of(self.step(k), seen, path, self.nodes)
        return plain_form(self.requests[k], seen, path, self.nodes)


def parent_of(path: str) -> str:
    """Return the path above; ``""`` for a path at the top."""
    return path[: path.rindex("/")]
