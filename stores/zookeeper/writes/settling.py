"""Sends multis so that the outcome of each becomes known, even if connections break.

Every multi begins with its slot (see ``write_ids``). If its answer is lost, it is sent again after
a pause, until an answer shows one of these:

- It was applied now.
- Its slot had moved on: an earlier attempt was applied, at the zxid and the time in the slot's
  node.
- One of its operations is refused, or all are: no attempt has been applied so far. Before the
  caller learns that, the earlier attempts are shut out, because one may still be on its way.
- Its slot is gone, because the session ended or another client removed it: the outcome cannot be
  known, and no attempt can be applied any more.

After the deadline, the multi is shut out, too; so is a multi that is longer than the server
accepts. Either way, a multi ends only when it can no longer take effect, so it never overtakes
later operations on its paths.

A multi that cannot be shut out ends as unknown, and may still take effect: there are no slots, the
server refuses the attempt to shut it out or answers it unreadably, or the store is closed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Final, NamedTuple, TypeAlias

from ....ops.errors import (
    IndeterminateError,
    MetadataStoreError,
    OperationTimeoutError,
    passes,
)
from ....ops.log import get_logger
from ...backend import Tally
from ..session.connection import ZooKeeperConnection
from ..session.sizes import ENVELOPE, Sizes
from ..session.write_ids import VOID, Slot, WriteIds
from ..wire.errors import BAD_VERSION, CONNECTION_LOSS, is_of_session, is_unreadable, name_of
from ..wire.exchanges import Reply, parse_reply
from ..wire.jute import (
    END,
    EXISTS,
    GET_DATA,
    MULTI,
    SET_DATA,
    SYNC,
    SYNC_ROOT,
    Done,
    Op,
    Refused,
    ZNode,
    parse_multi,
    parse_single,
    parse_zxid,
    single_read,
)
from .groups import Group

__all__ = ["Applied", "MultiSettler", "Outcome", "TooLong"]

log = get_logger(__name__)

# Seconds that one attempt waits for its answer, after an earlier one was lost.
_ATTEMPT: Final = 5.0
# The most multis under way for one call. Each needs a slot.
_WAVE: Final = 32

# The first op of every multi, which sets the slot.
_HEAD: Final[Op] = (SET_DATA, 0, 0)


class Applied(NamedTuple):
    """A multi was applied.

    ``zxid`` and ``time`` are those of all its operations, ``None`` if they are not known.
    ``results`` is ``None`` if the attempt that applied it got no answer.
    """

    zxid: int | None
    time: int | None
    results: Done | None = None


class TooLong(NamedTuple):
    """A multi was not applied because the server accepts no request of its length."""


#: The outcome of a multi. An ``int`` is the server's code for one that it refused as a whole.
Outcome: TypeAlias = Applied | Refused | TooLong | int | MetadataStoreError

#: The answer to a multi.
_Answer: TypeAlias = Done | Refused | int | MetadataStoreError


@dataclass(slots=True, eq=False, repr=False)
class _Lost:
    """A multi whose first attempt got no answer, or an unreadable one."""

    index: int
    slot: Slot
    body: bytes
    ops: Sequence[Op]
    unknown: IndeterminateError
    before: int  # the version of the slot
    #: The outcome if it is shut out; ``None`` while it is still to be applied.
    refusal: Outcome | None = None
    #: Whether a request to shut it out was sent.
    voided: bool = False
    outcome: Outcome | None = None

    @property
    def size(self) -> int:
        return ENVELOPE + len(self.slot.head()) + len(self.body) + len(END)

    def next_request(self) -> tuple[int, bytes]:
        """Return the multi, or from now on the one that shuts it out."""
        if self.refusal is None:
            return MULTI, b"".join((self.slot.head(), self.body, END))
        self.voided = True
        return MULTI, self.slot.head(VOID) + END

    def parse(self, reply: Reply) -> _Answer:
        """Return the answer in the reply to the last request."""
        return _understand(reply, self.ops if self.refusal is None else ())


class MultiSettler:
    """Sends multis. Used by several threads at once.

    Args:
        connection: the session.
        sizes: sends requests of the lengths that the server accepts.
        write_ids: the slots for the multis.
        tally: counts retries and settled writes.
    """

    def __init__(
        self, connection: ZooKeeperConnection, sizes: Sizes, write_ids: WriteIds, tally: Tally
    ) -> None:
        self._connection = connection
        self._sizes = sizes
        self._write_ids = write_ids
        self._tally = tally

    def send(
        self, groups: Sequence[Group], deadline: float, then: Callable[[], None]
    ) -> list[Outcome]:
        """Send multis, which are executed in this order; return the outcome of each.

        ``then`` is called when all have been sent, and again whenever some had to be sent again.
        What it sends itself is executed after them, unless the connection was lost meanwhile.
        """
        outcomes: list[Outcome] = []
        while groups:
            wave, groups = groups[:_WAVE], groups[_WAVE:]
            outcomes += self._send(wave, deadline, _nothing if groups else then)
        return outcomes

    def _send(
        self, groups: Sequence[Group], deadline: float, then: Callable[[], None]
    ) -> list[Outcome]:
        bodies = [group.body() for group in groups]
        outcomes: list[Outcome] = [CONNECTION_LOSS] * len(groups)
        waiting: Sequence[int] = range(len(groups))
        while waiting:
            try:
                slots = self._write_ids.take(len(waiting), deadline)
            except MetadataStoreError as error:
                for i in waiting:
                    outcomes[i] = error
                break
            if slots is None:
                self._send_without(waiting, bodies, groups, outcomes, deadline)
                then()
                break
            requests = [
                (MULTI, b"".join((slot.head(), bodies[i], END)))
                for i, slot in zip(waiting, slots, strict=True)
            ]
            session = _session_of(groups, waiting)
            finish = self._sizes.begin(requests, deadline, repeat=False, session=session)
            then()
            replies = finish(deadline)
            again = []
            lost = []
            judged: list[tuple[int, Outcome | None]] = []
            for i, slot, reply in zip(waiting, slots, replies, strict=True):
                ops = groups[i].ops
                answer = _understand(reply, ops)
                if isinstance(answer, IndeterminateError):
                    lost.append(_Lost(i, slot, bodies[i], ops, answer, slot.version))
                else:
                    judged.append((i, self._judge(slot, answer)))
            judged += [(multi.index, multi.outcome) for multi in self._settle(lost, deadline)]
            if lost:
                then()  # Some may have been applied only now.
            for i, outcome in judged:
                if outcome is None:
                    again.append(i)
                else:
                    outcomes[i] = outcome
            waiting = sorted(again)
        return outcomes

    def _send_without(
        self,
        waiting: Sequence[int],
        bodies: Sequence[bytes],
        groups: Sequence[Group],
        outcomes: list[Outcome],
        deadline: float,
    ) -> None:
        """Send multis without slots. The outcome of a lost one stays unknown.

        No slot shows the zxid and time of the nodes that they create. So each is followed by an
        ``exists`` of the first path that it creates, or of the root if it creates none.
        """
        requests = []
        for i in waiting:
            created = groups[i].created or "/"
            requests += [
                (MULTI, bodies[i] + END),
                (EXISTS, single_read(created.encode())),
            ]
        session = _session_of(groups, waiting)
        replies = self._sizes.exchange(requests, deadline, repeat=False, session=session)
        for i, reply, exists in zip(waiting, replies[::2], replies[1::2], strict=True):
            answer = parse_reply(reply, partial(parse_multi, groups[i].ops), write=True)
            if isinstance(answer, Done):
                assert isinstance(reply, tuple)
                made = exists
                if groups[i].created is None and answer.suffixes:
                    made = self._read_node(groups[i].sequences[0] + answer.suffixes[0], deadline)
                node = parse_reply(made, partial(parse_single, EXISTS))
                outcomes[i] = _stamped(parse_zxid(reply[0]), answer, node)
                continue
            outcomes[i] = answer
            if isinstance(answer, IndeterminateError) and not is_unreadable(answer):
                # For later multis. This one may have been applied, by a server that accepts it.
                self._drops(ENVELOPE + len(bodies[i]) + len(END))

    def _read_node(self, path: str, deadline: float) -> Reply:
        """Return the reply to an ``exists`` of a path known only from an answer."""
        request = (EXISTS, single_read(path.encode()))
        (reply,) = self._connection.exchange([request], deadline, repeat=True)
        return reply

    # Each of the following methods gives the slot back if its version is known and nothing under
    # way can move it. Other slots are not used again.

    def _judge(self, slot: Slot, answer: _Answer) -> Outcome | None:
        """Return the outcome after the only attempt; ``None``: send it with another slot."""
        outcome: Outcome
        if isinstance(answer, Done):
            slot.version += 1
            outcome = _applied(answer)
        elif isinstance(answer, Refused):
            if answer.codes[0] != 0:
                # The session has changed, or another client has removed or set the slot.
                return None
            outcome = Refused(answer.codes[1:])
        else:
            outcome = answer
        self._write_ids.give_back(slot)
        return outcome

    def _settle(self, lost: Sequence[_Lost], deadline: float) -> Sequence[_Lost]:
        """Find out the outcomes of multis that were sent. Those to send again have no outcome."""
        waiting = lost
        for attempt in count():
            if not waiting:
                break
            self._connection.pause(attempt, math.inf)
            for multi in waiting:
                if multi.refusal is None and self._drops(multi.size):
                    multi.refusal = TooLong()
                if multi.refusal is None and time.monotonic() >= deadline:
                    multi.refusal = OperationTimeoutError(
                        "the write was not applied by the deadline, and never will be"
                    )
            self._tally.add("retry", len(waiting))
            replies = self._sizes.exchange(
                [multi.next_request() for multi in waiting],
                time.monotonic() + _ATTEMPT,
                repeat=False,
            )
            waiting = [
                multi
                for multi, reply in zip(waiting, replies, strict=True)
                if not self._learn(multi, reply, deadline)
            ]
        return lost

    def _drops(self, size: int) -> bool:
        """Say whether the server accepts no request of this size, as far as that is known."""
        try:
            return self._sizes.drops(size, time.monotonic() + _ATTEMPT)
        except MetadataStoreError:
            return False  # The store is closed, or kazoo has given up; the next attempt shows it.

    def _learn(self, multi: _Lost, reply: Reply, deadline: float) -> bool:
        """Process a reply; say whether the outcome of the multi is known now."""
        answer = multi.parse(reply)
        if isinstance(answer, MetadataStoreError):
            # A later attempt may get an answer that shows the outcome.
            if passes(answer) and not is_unreadable(answer) and not self._connection.stopped:
                return False
            multi.outcome = multi.unknown
            return True
        slot = multi.slot
        if isinstance(answer, int):
            if multi.voided:
                multi.outcome = multi.unknown
                return True
            multi.refusal = answer
            return False
        if isinstance(answer, Done):
            slot.version += 1
            self._write_ids.give_back(slot)
            self._tally.add("settled")
            if multi.refusal is None:
                multi.outcome = _applied(answer)
            else:
                multi.outcome = multi.refusal
                log.info("zookeeper write settled: it was shut out")
            return True
        codes = answer.codes
        if codes[0] == BAD_VERSION:
            self._find(multi, deadline)
            return True
        if is_of_session(codes[0]):
            return False  # The session is ending: the next one shows whether the slot is gone.
        if codes[0] != 0:
            reason = name_of(codes[0])
            log.warning("zookeeper slot lost, and with it a write's outcome", reason=reason)
            multi.outcome = multi.unknown
            return True
        multi.refusal = Refused(codes[1:])
        return False

    def _find(self, multi: _Lost, deadline: float) -> None:
        """Find out whether the multi or its shut-out has moved the slot on."""
        slot = multi.slot
        node = self._read_slot(slot, max(deadline, time.monotonic() + _ATTEMPT))
        if isinstance(node, ZNode) and node.version == multi.before + 1:
            slot.version = node.version
            self._write_ids.give_back(slot)
            self._tally.add("settled")
            if node.value == VOID:
                multi.outcome = multi.refusal
                log.info("zookeeper write settled: it was shut out")
            else:
                multi.outcome = Applied(node.modified_zxid, node.modified)
                log.info("zookeeper write settled: it was applied")
        elif multi.voided:
            multi.outcome = multi.unknown
        else:
            # Only copies of this multi were sent for the slot. One of them has moved it on.
            multi.outcome = Applied(None, None)

    def _read_slot(self, slot: Slot, until: float) -> ZNode | None:
        """Return a slot's node as the leader knows it, or ``None`` if that fails."""
        reads = [(SYNC, SYNC_ROOT), (GET_DATA, single_read(slot.path.encode()))]
        while True:
            _, reply = self._connection.exchange(reads, until, repeat=True)
            if reply == CONNECTION_LOSS:
                continue
            node = parse_reply(reply, partial(parse_single, GET_DATA))
            return node if isinstance(node, ZNode) else None


def _understand(reply: Reply, ops: Sequence[Op]) -> _Answer:
    """Return the answer to a multi that begins with a slot."""
    return parse_reply(reply, partial(parse_multi, (_HEAD, *ops)), write=True)


def _applied(results: Done) -> Applied:
    """Return the outcome of a multi that begins with a slot, from its answer."""
    updates, suffixes = results
    _, _, zxid, _, when, *_ = updates[0]
    return Applied(zxid, when, Done(updates[1:], suffixes))


def _stamped(zxid: int, results: Done, node: object) -> Applied:
    """Return the outcome of a multi without a slot, at a zxid; ``node`` is one that it created.

    A node with another zxid belongs to another client, which was quicker than the read.
    """
    if results.updates:
        _, _, zxid, _, when, *_ = results.updates[0]
        return Applied(zxid, when, results)
    if isinstance(node, ZNode) and node.created_zxid == zxid:
        return Applied(zxid, node.created, results)
    return Applied(None, None, results)


def _nothing() -> None: ...


def _session_of(groups: Sequence[Group], waiting: Sequence[int]) -> int | None:
    """Return the session in which multis must be sent, because one of them creates ephemerals."""
    return next((s for i in waiting if (s := groups[i].session) is not None), None)
