"""Writes: a whole call in one multi, with an outcome for each operation.

A multi is all or nothing. So a call is a series of *rounds*:

1. Every operation is sent according to the known state of its path: a put as ``create`` or
   ``setData``, with the expected version if there is one, a delete as ``delete``. Missing parents
   are created before their first child. Nearly always, one round is enough.
2. If the multi fails, nothing of it was applied. The client reads the nodes of its operations in
   one request, refuses operations whose conditions do not hold, and sends the others again. A read
   never acknowledges a write: every condition is in the multi, too, as a version.
3. If others keep changing the same paths, the groups become smaller, down to single operations,
   which cannot spoil each other. That ends when all are decided, or at the deadline.

ZooKeeper has no condition for a null value. A node created as a parent has version 0 and a null
value; a node that was put once has version 0 and a value. So the client first reads the nodes of
puts that expect 0, and of puts that expect ABSENT where it last saw a parent: all of a call in one
request, after a sync, because its memory may be older than another client's delete. One gap
remains: the node may be removed and created again between the read and the multi. Its creation, in
the answer, shows that. Such a put was applied, although its condition may not have held, so it ends
with ``IndeterminateError``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, assert_never

from ...ops.errors import IndeterminateError, MetadataStoreError
from ...ops.operations import ABSENT
from ...ops.results import Stat
from ..backend import Answer, Tally, WriteRequest, refusal, send_by
from .codecs import WRITES
from .connection import ZooKeeperConnection
from .errors import NO_AUTH, NO_NODE, NODE_EXISTS, is_conflict, is_of_session, refused
from .jute import CREATE, DELETE, PARENT, SET_DATA, Refused, Update, ZNode
from .multi_settling import Applied, MultiSettler, Outcome, TooLong
from .nodes import NULL, Nodes
from .plan import UNDECIDED, Batch, Group, MultiPlan, guess, parent_of
from .reads import Reader
from .recovery import recover, without_stat
from .sizes import Sizes
from .write_ids import WriteIds

__all__ = ["Writer"]

# The most requests in one multi.
_MOST: Final = 1000
# Up to the first number, rounds send everything together; up to the second, in groups; then singly.
_JOINT_ROUNDS: Final = 3
_GROUP_ROUNDS: Final = 5
_GROUP: Final = 32

# If the first guess was wrong for more than this share of calls, the writer reads nodes first.
_LOOK_FIRST: Final = 0.5
_WEIGHT: Final = 0.125


class Writer:
    """Executes writes. Several threads use it at once, each with its own batch."""

    def __init__(
        self,
        connection: ZooKeeperConnection,
        reader: Reader,
        nodes: Nodes,
        sizes: Sizes,
        write_ids: WriteIds,
        chroot: str,
        acl: bytes,
        tally: Tally,
    ) -> None:
        self._connection = connection
        self._reader = reader
        self._nodes = nodes
        self._sizes = sizes
        self._room = write_ids.room
        self._settler = MultiSettler(connection, sizes, write_ids, tally)
        self._chroot = chroot
        self._acl = acl
        self._tally = tally
        # How often the first guess was wrong lately, 0 to 1. No lock, because it is a guess.
        self._wrong = 0.0

    def write(self, requests: Sequence[WriteRequest], deadline: float) -> list[Answer]:
        """Return one answer for each write.

        Raises:
            MetadataStoreError: all of them ended with this error together.
        """
        batch = Batch(requests, self._chroot)
        try:
            looked = self._first_look(batch, send_by(deadline))
            while batch.pending:
                failed = self._round(batch, deadline)
                if batch.rounds == 1 and not looked:
                    self._learn(bool(failed))
                if failed:
                    self._look(batch, failed, deadline, fresh=False)
                if batch.uprooted:
                    self._look_above(batch, deadline)
        except MetadataStoreError as error:
            # The error comes from a look: nothing that is pending was applied.
            if len(batch.pending) == len(requests):
                raise
            for i in batch.pending:
                batch.answers[i] = error.for_path(requests[i].path)
        if batch.failure is not None:
            raise batch.failure
        return batch.answers

    def _learn(self, wrong: bool) -> None:
        self._wrong += _WEIGHT * (wrong - self._wrong)

    def _first_look(self, batch: Batch, deadline: float) -> bool:
        """Read nodes before the first round if that is needed, or has been cheaper lately.

        Returns whether the latter was the reason.
        """
        pending = batch.pending
        if self._wrong > _LOOK_FIRST:
            guesses = [guess(batch, self._nodes, i) for i in pending]
            self._look(batch, pending, deadline, fresh=True)
            # If the guesses are unchanged and nothing was refused, the look was not needed.
            self._learn(guesses != [guess(batch, self._nodes, i) for i in batch.pending])
            return True
        requests, paths, nodes = batch.requests, batch.paths, self._nodes
        unsure = []
        for i in pending:
            request = requests[i]
            if WRITES[request.kind].unsure(request, paths[i], nodes):
                unsure.append(i)
        if unsure:
            self._look(batch, unsure, deadline, fresh=True)
        return False

    def _look(
        self, batch: Batch, undecided: Sequence[int], deadline: float, *, fresh: bool
    ) -> None:
        """Read the nodes of requests and of their parents; refuse the requests that cannot hold."""
        parents = _parents(batch, undecided)
        requests = batch.requests
        values = [value for i in undecided if (value := requests[i].value) is not None]
        self._reader.expect(len(values), sum(map(len, values)))
        paths = [*(batch.paths[i] for i in undecided), *parents]
        found = self._reader.look(paths, deadline, fresh=fresh)
        self._note_parents(parents, found[len(undecided) :])
        for i, node in zip(undecided, found, strict=False):
            request = batch.requests[i]
            error: MetadataStoreError | None
            if isinstance(node, ZNode):
                batch.seen[i] = node
                error = WRITES[request.kind].refusal(request, node)
            elif node == NO_NODE:
                batch.seen[i] = None
                error = refusal(request, ABSENT, False)
            elif isinstance(node, int):
                error = refused(node, request.path)
            else:
                error = node.for_path(request.path)
            if error is not None:
                batch.answers[i] = error
        batch.sweep()

    def _look_above(self, batch: Batch, deadline: float) -> None:
        """Read the parents of requests that failed because of them."""
        parents = _parents(batch, batch.uprooted)
        batch.uprooted = []
        self._note_parents(parents, self._reader.look(parents, deadline, fresh=False))

    def _note_parents(self, parents: Sequence[str], found: Sequence[object]) -> None:
        for parent, node in zip(parents, found, strict=True):
            if node == NO_AUTH:
                # The parent exists, and nothing else matters.
                self._nodes.note(parent, NULL)

    def _round(self, batch: Batch, deadline: float) -> list[int]:
        """Send the pending requests; return those that failed because of an unexpected state."""
        limit = _MOST
        if batch.rounds >= _GROUP_ROUNDS:
            limit = 1
            self._connection.pause(batch.rounds - _GROUP_ROUNDS, deadline)
        elif batch.rounds >= _JOINT_ROUNDS:
            limit = _GROUP
        batch.rounds += 1
        groups = MultiPlan(batch, self._nodes, self._sizes, self._room, self._acl, limit).groups
        failed: list[int] = []
        outcomes = self._settler.send(groups, deadline)
        for group, outcome in zip(groups, outcomes, strict=True):
            failed += self._take(batch, group, outcome, deadline)
        batch.sweep()
        return [i for i in failed if batch.answers[i] is UNDECIDED]

    def _take(self, batch: Batch, group: Group, outcome: Outcome, deadline: float) -> Sequence[int]:
        """Record the outcome of a multi; return the requests that failed because of a conflict."""
        match outcome:
            case Applied(zxid, when, updates):
                if updates is None:
                    recover(batch, group, outcome, self._reader, deadline)
                else:
                    self._applied(batch, group, zxid, when, updates)
                self._remember(batch, group)
            case Refused(codes):
                return self._refuse(batch, group, codes)
            case TooLong():
                # The next round knows the limit.
                self._tally.add("split", group.operations > 1)
                batch.rounds -= 1
            case int():
                # Refused before the server looked at the operations: any of them may be the cause.
                batch.rounds = max(batch.rounds, _GROUP_ROUNDS)
                self._tally.add("split", group.operations > 1)
                if group.operations <= 1:
                    i = group.steps[-1][1]
                    batch.answers[i] = refused(outcome, batch.requests[i].path)
            case _:
                members = _members(group)
                if len(members) == len(batch.requests):
                    batch.failure = outcome
                for i in members:
                    batch.answers[i] = outcome.for_path(batch.requests[i].path)
        return []

    def _refuse(self, batch: Batch, group: Group, codes: Sequence[int]) -> Sequence[int]:
        blamed, code = next(((k, code) for k, code in enumerate(codes) if code != 0), (0, 0))
        opcode, i, _ = group.steps[blamed]
        # The server checks the permission to create before it checks whether the node exists. So
        # the client looks at a path that may exist after all.
        guessed = code == NO_AUTH and opcode in {PARENT, CREATE} and i not in batch.seen
        self._tally.add("conflict", group.operations > 1)
        if (opcode, code) in {(PARENT, NODE_EXISTS), (CREATE, NO_NODE)}:
            # Only the parents were not as expected; nothing is known against the requests.
            batch.uprooted += _members(group)
            return []
        if code == 0 or is_conflict(code) or is_of_session(code) or guessed:
            return _members(group)
        if opcode != PARENT:
            batch.answers[i] = refused(code, batch.requests[i].path)
            return []
        # The parent cannot be created, so nothing of the batch can be created below it. All of
        # these are answered now, not one per round.
        count = sum(1 for opcode, *_ in group.steps[: blamed + 1] if opcode == PARENT)
        below = group.parents[count - 1] + "/"
        for k in batch.pending:
            creates = WRITES[batch.requests[k].kind].creates and batch.answers[k] is UNDECIDED
            if creates and batch.paths[k].startswith(below):
                batch.answers[k] = refused(code, batch.requests[k].path)
        return []

    def _remember(self, batch: Batch, group: Group) -> None:
        """Remember the nodes that an applied multi has left at its paths."""
        note, forget = self._nodes.note, self._nodes.forget
        requests, paths = batch.requests, batch.paths
        values = value_bytes = 0
        for parent in group.parents:
            note(parent, NULL)
        for opcode, i, _ in group.steps:
            if opcode == DELETE:
                forget(paths[i])
            elif opcode != PARENT:
                if opcode != CREATE and opcode != SET_DATA:
                    assert_never(opcode)
                # A write without a value of its own has left the one that was there.
                if (value := requests[i].value) is not None:
                    size = len(value)
                    note(paths[i], size)
                    values += 1
                    value_bytes += size
        self._reader.learn(values, value_bytes)

    def _applied(
        self,
        batch: Batch,
        group: Group,
        zxid: int | None,
        when: int | None,
        updates: Iterable[Update],
    ) -> None:
        """Answer the requests of a multi that was applied and answered."""
        requests, answers = batch.requests, batch.answers
        new = tuple.__new__  # half the cost of Stat(...), for each of a thousand
        # The fields after path and version in the Stat of every node that this multi creates.
        created = (zxid, when, when, False, False)
        left = iter(updates)
        for opcode, i, _ in group.steps:
            if opcode == CREATE:
                if zxid is None:
                    answers[i] = without_stat(requests[i].path)
                else:
                    answers[i] = new(Stat, (requests[i].path, 0, *created))
            elif opcode == SET_DATA:
                request = requests[i]
                update = next(left)
                _, _, revision, made, modified, version, owner = update
                expected = request.expected_version
                if owner == 0 and (expected is None or expected > 0):
                    answers[i] = new(
                        Stat,
                        (request.path, version, revision, made, modified, False, False),
                    )
                else:
                    answers[i] = self._updated(batch, i, update)
            elif opcode == DELETE:
                answers[i] = None
            elif opcode != PARENT:
                assert_never(opcode)

    def _updated(self, batch: Batch, i: int, update: Update) -> Answer:
        request = batch.requests[i]
        _, born, revision, created, modified, version, owner = update
        expected = request.expected_version
        if expected is not None and expected <= 0:
            node = batch.seen[i]
            if node is None or node.created_zxid != born:
                # The node is at version 0 again, and nothing shows whether it had a value.
                return IndeterminateError(
                    f"{request.path!r} was removed and created again during the put: the value is "
                    "written, but the value before it may not have had the expected version",
                    path=request.path,
                    applied=True,
                )
        return Stat(
            request.path,
            version,
            revision,
            created,
            modified,
            owner != 0,
            self._reader.owned_here(owner),
        )


def _members(group: Group) -> list[int]:
    return [i for opcode, i, _ in group.steps if opcode != PARENT]


def _parents(batch: Batch, requests: Sequence[int]) -> list[str]:
    """Return every path above those of these requests that may create theirs, each once."""
    parents: dict[str, None] = {}
    for i in requests:
        if WRITES[batch.requests[i].kind].creates:
            parent = parent_of(batch.paths[i])
            while parent and parent not in parents:
                parents[parent] = None
                parent = parent_of(parent)
    return list(parents)
