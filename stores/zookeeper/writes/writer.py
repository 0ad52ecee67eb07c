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
request, after a sync, because its memory may be older than another client's delete. What such a
read refuses counts when the same connection has applied a multi afterwards (an empty one, if there
is no other): a leader that the others have replaced answers a sync, but applies nothing. One gap
remains: the node may be removed and created again between the read and the multi. Its creation, in
the answer, shows that. Such a put was applied, although its condition may not have held, so it ends
with ``IndeterminateError``. The same holds for ephemeral puts over a node, and for such checks in
transactions; for these, the client reads the creation behind the multi (``SecondRead``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import ne
from typing import Final

from ....ops.errors import MetadataStoreError, SessionLostError
from ....ops.steps import PutNext
from ...backend import Answer, Tally, WriteRequest, column, is_plain_put, send_by
from ...refusals import session_lost
from ..reads.reader import BY_MULTI, BY_SYNC, CatchUp, Reader
from ..session.connection import ZooKeeperConnection
from ..session.session import ZooKeeperSession
from ..session.sizes import Sizes
from ..session.write_ids import WriteIds
from ..wire.errors import (
    NO_AUTH,
    NO_CHILDREN,
    NO_NODE,
    NODE_EXISTS,
    is_conflict,
    is_of_session,
    refused,
)
from ..wire.jute import (
    CREATE,
    EPHEMERAL,
    PARENT,
    PROBE,
    SEQUENTIAL,
    Refused,
    ZNode,
)
from ..wire.nodes import NULL, Nodes
from .batches import UNDECIDED, Batch, parent_of
from .forms import is_ephemeral, may_create, may_go, must_read, refusal
from .groups import Group
from .guesses import Guesses
from .outcomes import SecondRead, answer, fleeting, gather, members, note_ops, recover
from .plan import MultiPlan
from .settling import Applied, MultiSettler, Outcome, TooLong
from .transactions import NodeOrError, below_ephemeral, note_shelters, refuse_part

__all__ = ["Writer"]

# The most requests in one multi.
_MOST: Final = 1000
# Up to the first number, rounds send everything together; up to the second, in groups; then singly.
_JOINT_ROUNDS: Final = 3
_GROUP_ROUNDS: Final = 5
_GROUP: Final = 32

# Creates that need a permission which their server checks before anything else.
_GUESSED: Final = frozenset({PARENT, CREATE, EPHEMERAL, PROBE})
# Failed ops that show only that a parent is not as expected.
_UPROOTED: Final = frozenset(
    {
        (PARENT, NODE_EXISTS),
        *((opcode, NO_NODE) for opcode in (CREATE, EPHEMERAL, SEQUENTIAL, PROBE)),
    }
)


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
        session: ZooKeeperSession,
    ) -> None:
        self._connection = connection
        self._session = session
        self._reader = reader
        self._nodes = nodes
        self._sizes = sizes
        self._room = write_ids.room
        self._settler = MultiSettler(connection, sizes, write_ids, tally)
        self._chroot = chroot
        self._acl = acl
        self._tally = tally
        self._guesses = Guesses(nodes)

    def write(self, requests: Sequence[WriteRequest], deadline: float) -> list[Answer]:
        """Return one answer for each write.

        Raises:
            MetadataStoreError: all of them ended with this error together.
        """
        batch = Batch(requests, self._chroot, self._nodes)
        try:
            self._enter_session(batch)
            read_first = self._read_first(batch, send_by(deadline))
            while batch.pending or self._reopen(batch, deadline):
                failed = self._round(batch, deadline)
                if failed:
                    self._refuse_by_nodes(batch, failed, deadline, after=None)
                if batch.rounds == 1 and not read_first:
                    self._guesses.learn(batch, wrong=bool(failed))
                if batch.uprooted:
                    self._read_parents(batch, deadline)
                self._enter_session(batch)
                if batch.ephemerals:
                    self._read_new_parents(batch, deadline)
        except MetadataStoreError as error:
            # The error comes from a read: nothing that is pending was applied.
            undecided = [*batch.pending, *batch.tentative]
            if len(undecided) == len(requests):
                raise
            for i in undecided:
                batch.answers[i] = error.for_path(requests[i].path)
        if batch.failure is not None:
            raise batch.failure
        return batch.answers[: len(requests)] if batch.parts else batch.answers

    def _enter_session(self, batch: Batch) -> None:
        """Note the session of the next round; end the writes that belong to an earlier one."""
        if not batch.ephemerals:
            return
        self._session.need()
        batch.session = self._session.number
        for i in batch.ephemerals:
            if batch.answers[i] is UNDECIDED and batch.writes[i].session != batch.session:
                batch.answers[i] = session_lost(batch.writes[i])
        batch.sweep()

    def _read_first(self, batch: Batch, deadline: float) -> bool:
        """Read nodes before the first round if that is needed, or has been cheaper lately.

        What this refuses is tentative. Returns whether the latter was the reason.
        """
        pending, batch.connection = batch.pending, self._connection.number
        try:
            return self._look_first(batch, deadline)
        finally:
            if len(batch.pending) < len(pending):
                batch.tentative = [i for i in pending if batch.answers[i] is not UNDECIDED]

    def _look_first(  # noqa: C901 - in one piece: every operation pays for each call
        self, batch: Batch, deadline: float
    ) -> bool:
        pending = batch.pending
        self._guesses.begin(batch)
        if self._guesses.fail:
            with self._guesses.assumed(batch):
                guesses = [batch.form(k) for k in batch.spread(pending)]
            self._refuse_by_nodes(batch, pending, deadline, after=BY_SYNC)
            # If the guesses are unchanged and nothing was refused, the read was not needed.
            again = (batch.form(k) for k in batch.spread(batch.pending))
            wrong = len(batch.pending) < len(pending) or any(map(ne, guesses, again))
            self._guesses.learn(batch, wrong=wrong)
            return True
        requests, paths, steps, nodes = batch.requests, batch.paths, batch.steps, self._nodes
        ephemerals = batch.ephemerals
        places = batch.spread(pending) if batch.parts else pending
        if not steps and not ephemerals:
            versions = column(requests, "expected_version")
            plain = versions.count(None) == len(versions)
            if plain or (0 not in versions and nodes.unknown(paths)):
                return False  # Puts, or creations of what nobody has seen.
            places = [k for k in places if versions[k] is not None]
        unsure = []
        for k in places:
            if k not in steps:
                # Nearly all, so it is decided without a step. `must_read` says the same.
                expected = requests[k].expected_version
                if expected == 0:
                    if k not in batch.deletes:
                        unsure.append(k)
                    continue
                if expected is None and k not in ephemerals:
                    continue
                if (expected is not None and expected > 0) or nodes.size(paths[k]) is None:
                    continue
            if must_read(batch.step(k), paths[k], nodes):
                unsure.append(k)
        if unsure:
            self._glance(batch, unsure, deadline, after=BY_SYNC)
        return False

    def _reopen(self, batch: Batch, deadline: float) -> bool:
        """Look again at what was refused tentatively, unless a multi shows that this holds.

        Returns whether some of it may go.
        """
        if not batch.tentative:
            return False
        self._reader.sync(deadline)
        undecided, batch.tentative = batch.tentative, ()
        if self._connection.number != batch.connection:
            for i in undecided:
                batch.answers[i] = UNDECIDED
            batch.pending = undecided
            self._refuse_by_nodes(batch, undecided, deadline, after=BY_MULTI)
        return bool(batch.pending)

    def _read_new_parents(self, batch: Batch, deadline: float) -> None:
        """Read the nodes of ephemeral values that have become parents since the first read.

        A request of the call itself may have created such a parent, for which a transaction waited.
        """
        unread = [
            k
            for k in batch.spread([i for i in batch.pending if i in batch.ephemerals])
            if k not in batch.seen
            and is_ephemeral(batch.step(k))
            and must_read(batch.step(k), batch.paths[k], self._nodes)
        ]
        if unread:
            self._glance(batch, unread, deadline, after=BY_MULTI)

    def _glance(
        self, batch: Batch, places: Sequence[int], deadline: float, *, after: CatchUp
    ) -> None:
        """Read the nodes that decide how requests and parts are sent."""
        tree = self._read(batch, places, [], deadline, after=after)
        doubtful = []
        for k in places:
            node = tree[batch.paths[k]]
            if may_go(batch.requests[k], node):
                continue
            step = batch.step(k)
            error = (
                node.for_path(step.path)
                if isinstance(node, MetadataStoreError)
                else refusal(step, node)
            )
            if error is not None:
                if k in batch.whole:
                    doubtful.append(batch.whole[k])
                else:
                    batch.answers[k] = error
        batch.sweep()
        if doubtful:
            # The parts of a transaction count in their order, so the others must be seen, too.
            self._refuse_by_nodes(batch, list(dict.fromkeys(doubtful)), deadline, after=None)

    def _refuse_by_nodes(
        self, batch: Batch, undecided: Sequence[int], deadline: float, *, after: CatchUp | None
    ) -> None:
        """Read the nodes of requests and of their parents; refuse the requests that cannot hold."""
        parents = _parents(batch, undecided)
        requests, paths = batch.requests, batch.paths
        places = []
        for k in batch.spread(undecided):
            if not is_plain_put(requests[k]) and isinstance(batch.step(k).effect, PutNext):
                # It has no node before it is applied. Its parents are read.
                batch.seen[k] = None
            else:
                places.append(k)
        tree = self._read(batch, places, parents, deadline, after=after)
        sheltered = any(
            isinstance(node := tree[parent], ZNode) and node.owner != 0 for parent in parents
        )
        for i in undecided:
            if i in batch.parts:
                refuse_part(batch, i, tree)
                note_shelters(batch, i, tree)
            elif not sheltered and may_go(requests[i], tree.get(paths[i])):
                continue
            elif (error := self._refusal(batch, i, tree)) is not None:
                batch.answers[i] = error
        batch.sweep()

    def _read(
        self,
        batch: Batch,
        places: Sequence[int],
        parents: Sequence[str],
        deadline: float,
        *,
        after: CatchUp | None,
    ) -> dict[str, NodeOrError]:
        """Return what is found at the paths of requests and parts, and at parents."""
        requests, paths = batch.requests, batch.paths
        values = [value for k in places if (value := requests[k].value) is not None]
        self._nodes.expect(len(values), sum(map(len, values)))
        # Transactions may check the same paths.
        unique = dict.fromkeys([paths[k] for k in places])
        joint = any(k in batch.whole for k in places)
        found = self._reader.read_nodes([*unique, *parents], deadline, after=after, joint=joint)
        tree = self._note_parents(parents, found[len(unique) :])
        endings = dict(zip(unique, found, strict=False))
        for k in places:
            path = paths[k]
            node = tree[path] = self._node(endings[path], requests[k].path)
            if not isinstance(node, MetadataStoreError):
                batch.seen[k] = node
        return tree

    def _node(self, ending: ZNode | int | MetadataStoreError, path: str) -> NodeOrError:
        """Return what a read has found at a path."""
        if ending == NO_NODE:
            return None
        return self._connection.refused(ending, path) if isinstance(ending, int) else ending

    def _refusal(
        self, batch: Batch, i: int, tree: Mapping[str, NodeOrError]
    ) -> MetadataStoreError | None:
        """Return the error of a request that cannot hold, by the nodes that were found."""
        step, path = batch.step(i), batch.paths[i]
        node = None if isinstance(step.effect, PutNext) else tree[path]
        if isinstance(node, MetadataStoreError):
            return node.for_path(step.path)
        error = refusal(step, node)
        if error is None and node is None and may_create(step) and below_ephemeral(path, tree):
            error = refused(NO_CHILDREN, step.path)
        return error

    def _read_parents(self, batch: Batch, deadline: float) -> None:
        """Read the parents of requests that failed because of them."""
        parents = _parents(batch, batch.uprooted)
        batch.uprooted = []
        self._note_parents(parents, self._reader.read_nodes(parents, deadline, after=None))

    def _note_parents(
        self, parents: Sequence[str], found: Sequence[ZNode | int | MetadataStoreError]
    ) -> dict[str, NodeOrError]:
        """Return what was found at the parents."""
        tree: dict[str, NodeOrError] = {}
        for parent, ending in zip(parents, found, strict=True):
            if ending == NO_AUTH:
                # The parent exists, and nothing else matters.
                self._nodes.note(parent, NULL)
            tree[parent] = self._node(ending, parent)
        return tree

    def _round(self, batch: Batch, deadline: float) -> list[int]:
        """Send the pending requests; return those that failed because of an unexpected state."""
        limit = _MOST
        if batch.rounds >= _GROUP_ROUNDS:
            limit = 1
            self._connection.pause(batch.rounds - _GROUP_ROUNDS, deadline)
        elif batch.rounds >= _JOINT_ROUNDS:
            limit = _GROUP
        batch.rounds += 1
        with self._guesses.assumed(batch):
            groups = MultiPlan(batch, self._sizes, self._room, self._acl, limit).groups
        failed: list[int] = []
        second_read = SecondRead(batch, groups, self._reader, self._connection.number, deadline)
        outcomes = self._settler.send(groups, deadline, second_read.begin)
        for group, outcome in zip(groups, outcomes, strict=True):
            failed += self._take(batch, group, outcome, deadline)
            if group.unproven and isinstance(outcome, Applied):
                second_read.judge(group.unproven)
        if (
            batch.tentative
            and any(isinstance(outcome, Applied) for outcome in outcomes)
            and self._connection.number == batch.connection
        ):
            batch.tentative = ()
        batch.sweep()
        return [i for i in failed if batch.answers[i] is UNDECIDED]

    def _take(self, batch: Batch, group: Group, outcome: Outcome, deadline: float) -> Sequence[int]:
        """Record the outcome of a multi; return the requests that failed because of a conflict."""
        match outcome:
            case Applied(_, _, results):
                if results is None:
                    recover(batch, group, outcome, self._reader, self._connection, deadline)
                else:
                    answer(batch, group, outcome, self._reader)
                for whole in group.transactions:
                    gather(batch, whole)
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
                    (i,) = members(batch, group)
                    batch.answers[i] = self._connection.refused(outcome, batch.requests[i].path)
            case SessionLostError():
                pass  # Not sent. The next round ends the writes of that session.
            case _:
                self._fail(batch, group, outcome)
        return []

    def _fail(self, batch: Batch, group: Group, error: MetadataStoreError) -> None:
        """End the requests of a multi that failed, or whose outcome cannot be known."""
        wholes = members(batch, group)
        if len(wholes) == len(batch.writes) and group.session is None:
            batch.failure = error
        for i in wholes:
            batch.answers[i] = error.for_path(batch.requests[i].path)
        sessions = (None, self._connection.sessions)
        if error.outcome == "unknown" and group.session not in sessions:
            # Anything they may have created was gone with its session.
            for i in fleeting(batch, group):
                batch.answers[i] = session_lost(batch.requests[i])

    def _refuse(self, batch: Batch, group: Group, codes: Sequence[int]) -> Sequence[int]:
        blamed, code = next(((k, code) for k, code in enumerate(codes) if code != 0), (0, 0))
        opcode, i, _ = group.ops[blamed]
        # The server checks the permission to create before it checks whether the node exists. So
        # the client looks at a path that may exist after all.
        guessed = code == NO_AUTH and opcode in _GUESSED and i not in batch.seen
        self._tally.add("conflict", group.operations > 1)
        if opcode == SEQUENTIAL and code == NODE_EXISTS:
            # Somebody has put the path that is next. Each round passes over one more such path.
            batch.skips[i] = batch.skips.get(i, 0) + 1
            return []
        if (opcode, code) in _UPROOTED:
            # Only the parents were not as expected; nothing is known against the requests.
            wholes = members(batch, group)
            if code == NODE_EXISTS:
                batch.uprooted += wholes
                return []
            # If a parent is missing, another part of its transaction may expect a value there.
            batch.uprooted += [i for i in wholes if i not in batch.parts]
            return [i for i in wholes if i in batch.parts]
        if code == 0 or is_conflict(code) or is_of_session(code) or guessed:
            return members(batch, group)
        if opcode != PARENT:
            batch.refuse(i, self._connection.refused(code, batch.requests[i].path))
            return []
        # The parent cannot be created, so nothing of the batch can be created below it. All of
        # these are answered now, not one per round.
        count = sum(1 for opcode, *_ in group.ops[: blamed + 1] if opcode == PARENT)
        below = group.parents[count - 1] + "/"
        for k in batch.spread(batch.pending):
            if (
                batch.paths[k].startswith(below)
                and may_create(step := batch.step(k))
                and batch.answers[batch.whole.get(k, k)] is UNDECIDED
            ):
                batch.refuse(k, self._connection.refused(code, step.path))
        return []

    def _remember(self, batch: Batch, group: Group) -> None:
        """Remember the nodes that an applied multi has left at its paths."""
        nodes = self._nodes
        nodes.note_all(dict.fromkeys(group.parents, NULL))
        values, value_bytes = note_ops(group.ops, batch.requests, batch.paths, nodes.generations)
        nodes.learn(values, value_bytes)


def _parents(batch: Batch, requests: Sequence[int]) -> list[str]:
    """Return every path above those of these requests that may create theirs, each once."""
    parents: dict[str, None] = {}
    for k in batch.spread(requests):
        if is_plain_put(batch.requests[k]) or may_create(batch.step(k)):
            parent = parent_of(batch.paths[k])
            while parent and parent not in parents:
                parents[parent] = None
                parent = parent_of(parent)
    return list(parents)
