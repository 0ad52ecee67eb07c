"""Sending multis so that what became of each is known in the end, whatever breaks in between.

Every multi is led by its slot (see ``slots``). One whose answer did not come is sent again, after a
pause, until there is an answer:

- it was applied now;
- its slot had moved on: an earlier attempt was applied, at the zxid and the time that the slot's
  node tells;
- one of its operations cannot hold, or all are refused: then no attempt was applied so far. Before
  that is told, the earlier attempts are shut out, since one of them may still be on its way;
- its slot is gone, with the session or by somebody's hand: nobody can tell any more, and no attempt
  can be applied any more.

When the deadline has passed the multi is not wanted any more, and is shut out as well; so is one
that is longer than the server takes. Either way a multi has ended only when it can no longer take
effect: what follows on its paths is never overtaken by it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from itertools import count
from typing import Final, NamedTuple, TypeAlias

from ...ops.errors import IndeterminateError, MetadataStoreError, OperationTimeoutError
from ...ops.log import get_logger
from ..backend import Tally
from .connection import Connection, Reply
from .errors import BAD_VERSION, CONNECTION_LOSS, is_of_session, name_of
from .plan import Group
from .sizes import ENVELOPE, Sizes
from .slots import VOID, Slot, Slots
from .wire import (
    END,
    GET_DATA,
    HEADER_SIZE,
    MULTI,
    STAT_SIZE,
    SYNC,
    ZNode,
    failures,
    length,
    parse_single,
    single_read,
)

__all__ = ["Applied", "Outcome", "Refused", "Settler", "TooLong"]

log = get_logger(__name__)

# Seconds that one attempt waits for its answer, once an earlier one was lost.
_ATTEMPT: Final = 5.0
# Multis under way for one call: each needs a slot.
_WAVE: Final = 32

_SETTLED_HEAD: Final = HEADER_SIZE + STAT_SIZE


class Applied(NamedTuple):
    """A multi was applied by an attempt that was not answered.

    ``zxid`` and ``time`` are those of everything that it did; ``None`` where they could not be had.
    """

    zxid: int | None
    time: int | None


class Refused(NamedTuple):
    """A multi was not applied because of its operations: the server's code for each."""

    codes: Sequence[int]


class TooLong(NamedTuple):
    """A multi was not applied because the server takes none of its length."""


#: What became of a multi: the answer and where it begins in its packet, or why there is none.
#: An ``int`` is the server's code for a multi that it refused as a whole.
Outcome: TypeAlias = tuple[bytes, int] | Applied | Refused | TooLong | int | MetadataStoreError


class _Lost:
    """A multi whose first attempt got no answer."""

    __slots__ = (
        "before",
        "body",
        "index",
        "outcome",
        "refusal",
        "slot",
        "steps",
        "unknown",
        "voided",
    )

    def __init__(
        self, index: int, slot: Slot, body: bytes, steps: int, unknown: IndeterminateError
    ) -> None:
        self.index = index
        self.slot = slot
        self.body = body
        self.steps = steps
        self.unknown = unknown
        self.before = slot.version
        #: Why it is to be shut out, and what it has then ended with; ``None`` while it is wanted.
        self.refusal: Outcome | None = None
        #: Whether something was sent to shut it out.
        self.voided = False
        self.outcome: Outcome | None = None

    @property
    def size(self) -> int:
        return ENVELOPE + len(self.slot.head()) + len(self.body) + len(END)

    def request(self) -> tuple[int, bytes]:
        if self.refusal is None:
            return MULTI, b"".join((self.slot.head(), self.body, END))
        self.voided = True
        return MULTI, self.slot.head(VOID) + END


class Settler:
    """Sends multis. Used by several threads at once.

    Args:
        connection: the session.
        sizes: what the server takes.
        slots: go with the multis.
        tally: of retries and of what was settled.
    """

    def __init__(self, connection: Connection, sizes: Sizes, slots: Slots, tally: Tally) -> None:
        self._connection = connection
        self._sizes = sizes
        self._slots = slots
        self._tally = tally

    def send(self, groups: Sequence[Group], deadline: float) -> list[Outcome]:
        """Send multis, which are carried out in this order; return what became of each."""
        outcomes: list[Outcome] = []
        for start in range(0, len(groups), _WAVE):
            outcomes += self._send(groups[start : start + _WAVE], deadline)
        return outcomes

    def _send(self, groups: Sequence[Group], deadline: float) -> list[Outcome]:
        bodies = [group.body() for group in groups]
        outcomes: list[Outcome] = [CONNECTION_LOSS] * len(groups)
        waiting: Sequence[int] = range(len(groups))
        while waiting:
            try:
                slots = self._slots.take(len(waiting), deadline)
            except MetadataStoreError as error:
                for i in waiting:
                    outcomes[i] = error
                break
            if slots is None:
                self._send_without(waiting, bodies, groups, outcomes, deadline)
                break
            requests = [
                (MULTI, b"".join((slot.head(), bodies[i], END)))
                for i, slot in zip(waiting, slots, strict=True)
            ]
            replies = self._sizes.exchange(requests, deadline, repeat=False)
            again = []
            lost = []
            for i, slot, reply in zip(waiting, slots, replies, strict=True):
                if isinstance(reply, IndeterminateError):
                    lost.append(_Lost(i, slot, bodies[i], len(groups[i].steps), reply))
                    continue
                outcome = self._judge(slot, reply, len(groups[i].steps))
                if outcome is None:
                    again.append(i)
                else:
                    outcomes[i] = outcome
            for multi in self._settle(lost, deadline):
                if multi.outcome is None:
                    again.append(multi.index)
                else:
                    outcomes[multi.index] = multi.outcome
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
        """Send multis without slots. Those that are lost stay unknown."""
        requests = [(MULTI, bodies[i] + END) for i in waiting]
        replies = self._sizes.exchange(requests, deadline, repeat=False)
        for i, reply in zip(waiting, replies, strict=True):
            outcomes[i] = reply
            if isinstance(reply, tuple):
                codes = failures(*reply, len(groups[i].steps))
                outcomes[i] = reply if codes is None else Refused(codes)
            elif isinstance(reply, IndeterminateError):
                # For those that come: this one may have been applied, by a server that takes it.
                self._drops(ENVELOPE + len(bodies[i]) + len(END))

    # Each of the following gives the slot back where it is known at which version it is, and that
    # nothing under way can move it. A slot that is not given back is not used again.

    def _judge(self, slot: Slot, reply: Reply, steps: int) -> Outcome | None:
        """Say what an answer to the only attempt means; ``None``: send it with another slot."""
        if not isinstance(reply, tuple):
            self._slots.give_back(slot)
            return reply
        codes = failures(*reply, 1 + steps)
        if codes is None:
            slot.version += 1
            self._slots.give_back(slot)
            return reply[0], reply[1] + _SETTLED_HEAD
        if codes[0] != 0:
            # The session is another one by now, or somebody has removed or set the slot.
            return None
        self._slots.give_back(slot)
        return Refused(codes[1:])

    def _settle(self, lost: Sequence[_Lost], deadline: float) -> Sequence[_Lost]:
        """Find out what became of multis that were sent. Those to be sent anew have no outcome."""
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
                        "not applied by the deadline, and never will be"
                    )
            self._tally.add("retry", len(waiting))
            replies = self._sizes.exchange(
                [multi.request() for multi in waiting], time.monotonic() + _ATTEMPT, repeat=False
            )
            waiting = [
                multi
                for multi, reply in zip(waiting, replies, strict=True)
                if not self._learn(multi, reply, deadline)
            ]
        return lost

    def _drops(self, size: int) -> bool:
        """Whether the server takes no request of this size, as far as that can be found out."""
        try:
            return self._sizes.drops(size, time.monotonic() + _ATTEMPT)
        except MetadataStoreError:
            return False  # Closed, or given up: the next attempt says so.

    def _learn(self, multi: _Lost, reply: Reply, deadline: float) -> bool:
        """Take note of a reply; say whether it is known now what became of the multi."""
        if isinstance(reply, OperationTimeoutError) and not _is_final(reply):
            return False
        if isinstance(reply, MetadataStoreError):
            multi.outcome = multi.unknown
            return True
        slot = multi.slot
        if isinstance(reply, int):
            if multi.voided:
                multi.outcome = multi.unknown
                return True
            multi.refusal = reply
            return False
        void = multi.refusal is not None
        codes = failures(*reply, 1 if void else 1 + multi.steps)
        if codes is None:
            slot.version += 1
            self._slots.give_back(slot)
            self._tally.add("settled")
            if void:
                multi.outcome = multi.refusal
                log.info("zookeeper write settled: it was shut out")
            else:
                multi.outcome = reply[0], reply[1] + _SETTLED_HEAD
            return True
        if codes[0] == BAD_VERSION:
            self._find(multi, deadline)
            return True
        if is_of_session(codes[0]):
            return False  # The session is ending: the next one tells whether the slot is gone.
        if codes[0] != 0:
            reason = name_of(codes[0])
            log.warning("zookeeper slot lost, and with it a write's outcome", reason=reason)
            multi.outcome = multi.unknown
            return True
        multi.refusal = Refused(codes[1:])
        return False

    def _find(self, multi: _Lost, deadline: float) -> None:
        """Find out what has moved a slot on: the multi, or what was to shut it out."""
        slot = multi.slot
        node = self._look(slot, max(deadline, time.monotonic() + _ATTEMPT))
        if isinstance(node, ZNode) and node.version == multi.before + 1:
            slot.version = node.version
            self._slots.give_back(slot)
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
            multi.outcome = Applied(None, None)

    def _look(self, slot: Slot, until: float) -> ZNode | None:
        """Return a slot's node as the leader knows it, if it can be had."""
        reads = [(SYNC, length(1) + b"/"), (GET_DATA, single_read(slot.path.encode()))]
        while True:
            _, reply = self._connection.exchange(reads, until, repeat=True)
            if reply == CONNECTION_LOSS:
                continue
            if not isinstance(reply, tuple):
                return None
            node = parse_single(GET_DATA, *reply)
            assert isinstance(node, ZNode)
            return node


def _is_final(error: OperationTimeoutError) -> bool:
    """Whether no later attempt can be answered."""
    return type(error) not in (OperationTimeoutError, IndeterminateError)
