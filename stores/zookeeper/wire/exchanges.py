"""One request over a ZooKeeper session, as kazoo sees it and as its caller does, and its reply."""

from __future__ import annotations

import math
import struct
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

from kazoo.exceptions import ConnectionLoss

from ....ops.errors import MetadataStoreError
from ...backend import remaining
from .errors import Fate, UnreadableError, fate, unreadable
from .jute import EMPTY_MULTI, MULTI

__all__ = [
    "DeadlineError",
    "Exchange",
    "Owner",
    "Reply",
    "TimedExchange",
    "Trip",
    "parse_reply",
]

#: An answer: the packet and where the answer begins in it, the server's error code, or the error
#: that the request ends with.
Reply: TypeAlias = tuple[bytes, int] | int | MetadataStoreError

_T = TypeVar("_T")


class Owner(Protocol):
    """What a request needs of its connection.

    Attributes:
        lock: guards its requests.
        number: the number of the connection.
        sessions: the number of the session.
    """

    lock: threading.Lock
    number: int
    sessions: int

    def taken(self, call: Exchange) -> None:
        """Note that kazoo has taken a request out of its queue. Runs under the lock."""

    def ended(self, call: Exchange) -> None:
        """Note that a request has ended. Runs under the lock."""


class DeadlineError(Exception):
    """The deadline passed while the caller waited."""


class Exchange:
    """One request under way. To kazoo, it is both the request and the async object."""

    __slots__ = (
        "_arrived",
        "_body",
        "_ended",
        "_owner",
        "_session",
        "answer",
        "error",
        "outlived",
        "sent",
        "type",
    )

    def __init__(self, owner: Owner, opcode: int, body: bytes, session: int | None) -> None:
        self.type = opcode
        self.sent = False  # guarded by owner.lock until the call has ended
        #: Whether its session had ended at the moment of sending; guarded like `sent`.
        self.outlived = False
        self.answer: Any = None
        self.error: Exception | None = None
        self._owner = owner
        self._body = body
        self._session = session
        self._ended = False  # guarded by owner.lock
        # Held until the call has ended. A bare lock, because kazoo's own async result has a
        # condition, a list of callbacks and a queue.
        self._arrived = threading.Lock()
        self._arrived.acquire()

    def serialize(self) -> bytes:
        """Return the bytes to kazoo's thread, at the moment of sending.

        Either this comes first under the lock, or the caller gives up first. A write is sent at
        most once. If it was given up, an empty multi is sent, because kazoo cannot send nothing.
        The same happens to a write of a session that has ended: kazoo's thread notes the end of a
        session before it connects in the next one.
        """
        with self._owner.lock:
            self._owner.taken(self)
            if self.type == MULTI and self._session not in (None, self._owner.sessions):
                self.outlived = True
                return EMPTY_MULTI
            self.sent = self.sent or not self._ended
            body = self._body
            if self.type == MULTI:
                self._body = EMPTY_MULTI
        return body

    def deserialize(self, buffer: bytes, offset: int) -> tuple[bytes, int]:
        # The caller's thread reads the answer, because kazoo's has the next request to send.
        return buffer, offset

    def set(self, answer: Any = None) -> None:
        if answer is True:
            # kazoo gives the answer to a login to the next call, and notices that at the one after.
            self.end(None, ConnectionLoss())
        else:
            self.end(answer, None)

    def set_exception(self, error: Exception) -> None:
        with self._owner.lock:
            self._owner.taken(self)
        self.end(None, error)

    def end(self, answer: Any, error: Exception | None) -> None:
        """End the call, unless it has ended."""
        owner = self._owner
        with owner.lock:
            if self._ended:
                return
            self._ended = True
            self.answer = answer
            self.error = error
            if self.type == MULTI:
                self._body = EMPTY_MULTI
            owner.ended(self)
        self._arrived.release()

    def wait(self, deadline: float) -> None:
        """Return when the call has ended; at the deadline, end it."""
        if not self._arrived.acquire(timeout=remaining(deadline)):
            self.end(None, DeadlineError())

    @property
    def fate(self) -> Fate | None:
        """The fate of a call that has ended; ``None`` if it was answered."""
        return None if self.error is None else fate(self.error)

    def __repr__(self) -> str:
        return f"<request of type {self.type}>"


class TimedExchange(Exchange):
    """A request that notes when it was sent, and over which connection."""

    __slots__ = ("connection", "sent_at")

    def __init__(self, owner: Owner, opcode: int, body: bytes, session: int | None) -> None:
        super().__init__(owner, opcode, body, session)
        self.sent_at = math.inf
        self.connection = 0

    def serialize(self) -> bytes:
        # Both are set by kazoo's thread, and read when the answer has arrived.
        self.connection = self._owner.number
        self.sent_at = time.monotonic()
        return super().serialize()


class Trip(NamedTuple):
    """A request that was answered: when it was sent, over which connection, and its answer's time.

    ``sent`` is not later than the sending, ``answered`` not earlier than the answer.
    """

    connection: int
    sent: float
    answered: float


def parse_reply(
    reply: Reply, parse: Callable[[bytes, int], _T], *, write: bool = False
) -> _T | int | MetadataStoreError:
    """Return the result of ``parse`` for an answer; a code or an error is returned as it is.

    An answer is checked against its request to the last byte, because a server of another version,
    a proxy or a fault may send anything. If it does not fit, a read ends with
    ``MetadataStoreError``, and a write with ``IndeterminateError``, because the server may have
    applied it.

    Args:
        reply: the reply of a connection.
        parse: reads a packet from an offset on.
        write: whether the request may have changed something.
    """
    if not isinstance(reply, tuple):
        return reply
    buffer, offset = reply
    try:
        return parse(buffer, offset)
    except (struct.error, ValueError) as error:
        return unreadable(UnreadableError(f"{len(buffer)} bytes: {error}"), write=write)
