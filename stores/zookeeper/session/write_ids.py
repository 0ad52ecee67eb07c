"""Write ids, which make it safe to send a multi again after its answer was lost.

A slot is an ephemeral node of this client, below the reserved name in the chroot. The first
operation of every multi sets its slot, under the condition that the slot is still at the version
that this client knows. So a multi and its copy exclude each other, whichever arrives first and
however late the other arrives. The second one fails at its first operation with ``BadVersion``, and
changes nothing. That answer shows that the other one was applied, and so, because a multi is all or
nothing, that each of its operations succeeded.

To shut a multi out, another multi with nothing but the slot moves the slot on. Its content in the
slot distinguishes it from the one that it shuts out.

If the session ends, its slots end, too. A multi that names them can then no longer be applied, and
its earlier outcome cannot be known. A slot never returns under the same name.

One multi at a time uses a slot. Free slots are used again, so there are as many slots as multis
under way.
"""

from __future__ import annotations

import math
import os
import threading
import time
from functools import partial
from itertools import count
from typing import Final

from ....ops.errors import IndeterminateError, MetadataStoreError
from ....ops.log import get_logger
from ....ops.paths import OWN
from ...backend import send_by
from ..wire.errors import NO_NODE, NODE_EXISTS, is_of_session, name_of
from ..wire.exchanges import parse_reply
from ..wire.jute import (
    CREATE,
    END,
    MULTI,
    NO_DATA,
    SET_DATA,
    Op,
    Refused,
    ephemeral,
    header_and_length,
    length,
    parse_multi,
    version_field,
)
from .connection import ZooKeeperConnection

__all__ = ["VOID", "Slot", "WriteIds"]

log = get_logger(__name__)

#: The content of a slot after a multi was shut out. An applied multi leaves the slot empty.
VOID: Final = b"void"

# The most attempts to create the nodes above the slots, if another client removes them meanwhile.
_TRIES: Final = 3
# Versions have 31 bits. A slot that is used up is left to the end of the session.
_LAST_VERSION: Final = 1 << 30
# Room for the slot's number in its path.
_DIGITS: Final = 12


class Slot:
    """A node that one multi at a time sets as its first operation.

    Attributes:
        path: the path of the node, with the chroot.
        version: its known version.
        session: the number of the client's session in which it was created.
    """

    __slots__ = ("_start", "path", "session", "version")

    def __init__(self, path: str, session: int) -> None:
        self.path = path
        self.version = 0
        self.session = session
        raw = path.encode()
        self._start = header_and_length(SET_DATA, len(raw)) + raw

    def head(self, holds: bytes = b"") -> bytes:
        """Return the first operation of a multi, which moves the slot on."""
        return b"".join((self._start, length(len(holds)), holds, version_field(self.version)))


class WriteIds:
    """The slots of one client. Used by several threads at once.

    Args:
        connection: the session to which the slots belong.
        chroot: precedes all paths. The slots lie in it, where the client has permissions.
        acl: the access rights of new nodes, encoded.

    Attributes:
        reconsider: seconds after which refused slots are tried again, because permissions and
            quotas change.
        room: the most bytes that a slot takes in a multi.
    """

    reconsider: Final = 600

    def __init__(self, connection: ZooKeeperConnection, chroot: str, acl: bytes) -> None:
        self._connection = connection
        self._place = f"{chroot}/{OWN}/slots"
        self._acl = acl
        self._name = f"{self._place}/{os.urandom(8).hex()}-"
        self._numbers = count()  # shared without a lock: next() is one step
        self._lock = threading.Lock()  # guards _free
        self._free: list[Slot] = []
        # The time until which to go without slots. Any thread sets it, and reads need no lock: at
        # worst, another thread tries once more.
        self._without_until = -math.inf
        self.room = len(Slot(self._name, 0).head(VOID)) + _DIGITS

    def take(self, wanted: int, deadline: float) -> list[Slot] | None:
        """Return slots for ``wanted`` multis; ``None`` if the client may not create any.

        Raises:
            MetadataStoreError: no slots could be created by the deadline. Nothing of a caller was
                sent.
        """
        if time.monotonic() < self._without_until:
            return None
        session = self._connection.sessions
        with self._lock:
            if self._free and self._free[-1].session != session:
                self._free.clear()
            taken = self._free[-wanted:]
            del self._free[-wanted:]
        if len(taken) < wanted:
            made = self._make(wanted - len(taken), session, send_by(deadline))
            if made is None:
                return None
            taken += made
        return taken

    def give_back(self, slot: Slot) -> None:
        """Release a slot for further use, at a known version that nothing under way can change."""
        with self._lock:
            if slot.session == self._connection.sessions and slot.version < _LAST_VERSION:
                if self._free and self._free[-1].session != slot.session:
                    self._free.clear()
                self._free.append(slot)

    def _make(self, wanted: int, session: int, deadline: float) -> list[Slot] | None:
        tries = 0
        for attempt in count():
            if time.monotonic() < self._without_until:
                break
            slots = [Slot(f"{self._name}{next(self._numbers)}", session) for _ in range(wanted)]
            acl = ephemeral(self._acl)
            code = self._create([slot.path for slot in slots], acl, deadline)
            if code is None or is_of_session(code):
                if time.monotonic() >= deadline:
                    raise self._connection.late("nothing was sent to")
                # The slots may exist. Others will do, under their own names, or in the next
                # session.
                self._connection.pause(attempt, deadline)
                session = self._connection.sessions
                continue
            if code == 0:
                if self._connection.sessions == session:
                    return slots
                # A session has ended meanwhile, and some of them may belong to the next one.
                session = self._connection.sessions
                continue
            tries += 1
            if code != NO_NODE or tries > _TRIES:
                self._without_until = time.monotonic() + self.reconsider
                log.warning(
                    "zookeeper slots refused: writes without an answer stay indeterminate",
                    path=self._place,
                    reason=name_of(code),
                )
                break
            self._make_place(deadline)
        return None

    def _make_place(self, deadline: float) -> None:
        # If a node exists already, or may not be created, the creation of the slots shows that.
        end = 0
        while end >= 0:
            end = self._place.find("/", end + 1)
            self._create([self._place[:end] if end > 0 else self._place], self._acl, deadline)

    def _create(self, paths: list[str], acl: bytes, deadline: float) -> int | None:
        """Create nodes; return 0, the code of the server's refusal, or ``None`` if unknown.

        Raises:
            MetadataStoreError: the nodes were not created, and will not be.
        """
        # One multi for each node, so that it is short enough for every server.
        requests = []
        ops: list[Op] = []
        for path in paths:
            raw = path.encode()
            ops.append((CREATE, 0, len(raw)))
            head = header_and_length(CREATE, len(raw))
            requests.append((MULTI, b"".join((head, raw, NO_DATA, acl, END))))
        replies = self._connection.exchange(requests, deadline, repeat=False)
        for op, reply in zip(ops, replies, strict=True):
            # This is no write of a caller, so an unreadable answer leaves no outcome unknown.
            answer = parse_reply(reply, partial(parse_multi, [op]))
            if isinstance(answer, IndeterminateError):
                return None
            if isinstance(answer, MetadataStoreError):
                raise answer
            if isinstance(answer, int):
                return answer
            if isinstance(answer, Refused) and answer.codes[0] not in (0, NODE_EXISTS):
                return answer.codes[0]
        return 0
