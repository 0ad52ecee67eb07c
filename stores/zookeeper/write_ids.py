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

from ...ops.errors import IndeterminateError, MetadataStoreError
from ...ops.log import get_logger
from ...ops.paths import OWN
from .answers import understand
from .connection import ZooKeeperConnection
from .errors import NO_NODE, NODE_EXISTS, is_of_session, name_of
from .jute import (
    CREATE,
    END,
    MULTI,
    NO_DATA,
    SET_DATA,
    Refused,
    ephemeral,
    header_and_length,
    length,
    parse_multi,
    version_field,
)

__all__ = ["VOID", "Slot", "WriteIds"]

log = get_logger(__name__)

#: What a slot holds after a multi was shut out. One that was applied leaves nothing in it.
VOID: Final = b"void"

# How often the nodes above the slots are made, where somebody removes them at the same time.
_TRIES: Final = 3
# Seconds after which they are tried again where they were refused: permissions and quotas change.
_RECONSIDER: Final = 600
# Versions have 31 bits, and a slot that is used up is just left to the session's end.
_LAST_VERSION: Final = 1 << 30
# Room for the slot's number in its path.
_DIGITS: Final = 12


class Slot:
    """A node that one multi at a time sets first of all.

    Attributes:
        path: of the node, with the chroot.
        version: the one that it is known to be at.
        session: of this client, by number.
    """

    __slots__ = ("_start", "path", "session", "version")

    def __init__(self, path: str, session: int) -> None:
        self.path = path
        self.version = 0
        self.session = session
        raw = path.encode()
        self._start = header_and_length(SET_DATA, len(raw)) + raw

    def head(self, holds: bytes = b"") -> bytes:
        """Return the operation that moves the slot on, as the first one of a multi."""
        return b"".join((self._start, length(len(holds)), holds, version_field(self.version)))


class WriteIds:
    """The slots of one client. Used by several threads at once.

    Args:
        connection: the session, of which they are part.
        chroot: of all paths. The slots lie in it, where the client's permissions reach.
        acl: of the nodes that are made, encoded.

    Attributes:
        room: the bytes that a slot takes of a multi, at most.
    """

    def __init__(self, connection: ZooKeeperConnection, chroot: str, acl: bytes) -> None:
        self._connection = connection
        self._place = f"{chroot}/{OWN}/slots"
        self._acl = acl
        self._name = f"{self._place}/{os.urandom(8).hex()}-"
        self._numbers = count()  # shared without a lock: next() is one step
        self._lock = threading.Lock()  # guards _free
        self._free: list[Slot] = []
        # Until when to go without. Set by any thread, and read without a lock: another may then try
        # once more.
        self._without_until = -math.inf
        self.room = len(Slot(self._name, 0).head(VOID)) + _DIGITS

    def take(self, wanted: int, deadline: float) -> list[Slot] | None:
        """Return slots for so many multis; ``None`` where the client may not make any.

        Raises:
            MetadataStoreError: there are none to be had by the deadline. Nothing was sent that
                belongs to a caller.
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
            made = self._make(wanted - len(taken), session, deadline)
            if made is None:
                return None
            taken += made
        return taken

    def give_back(self, slot: Slot) -> None:
        """Let a slot be used again: it is at its version, and nothing under way can move it."""
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
                # They may be there. Others will do, under names of their own, or in the session
                # that follows.
                self._connection.pause(attempt, deadline)
                session = self._connection.sessions
                continue
            if code == 0:
                return slots
            tries += 1
            if code != NO_NODE or tries > _TRIES:
                self._without_until = time.monotonic() + _RECONSIDER
                log.warning(
                    "zookeeper slots refused: writes without an answer stay indeterminate",
                    path=self._place,
                    reason=name_of(code),
                )
                break
            self._make_place(deadline)
        return None

    def _make_place(self, deadline: float) -> None:
        # Whether one was there already, or may not be made, shows when the slots are made.
        end = 0
        while end >= 0:
            end = self._place.find("/", end + 1)
            self._create([self._place[:end] if end > 0 else self._place], self._acl, deadline)

    def _create(self, paths: list[str], acl: bytes, deadline: float) -> int | None:
        """Make nodes; return 0, the code of the server's refusal, or ``None`` if unknown.

        Raises:
            MetadataStoreError: they were not made, and will not be.
        """
        # Each by itself, so that it is short enough for every server.
        requests = []
        steps = []
        for path in paths:
            raw = path.encode()
            steps.append((CREATE, 0, len(raw)))
            head = header_and_length(CREATE, len(raw))
            requests.append((MULTI, b"".join((head, raw, NO_DATA, acl, END))))
        replies = self._connection.exchange(requests, deadline, repeat=False)
        for step, reply in zip(steps, replies, strict=True):
            # No write of a caller's: that it cannot be read is all that there is to tell.
            answer = understand(reply, partial(parse_multi, [step]))
            if isinstance(answer, IndeterminateError):
                return None
            if isinstance(answer, MetadataStoreError):
                raise answer
            if isinstance(answer, int):
                return answer
            if isinstance(answer, Refused) and answer.codes[0] not in (0, NODE_EXISTS):
                return answer.codes[0]
        return 0
