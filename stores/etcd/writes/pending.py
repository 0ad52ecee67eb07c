"""Writes on their way: the terms of a transaction, and writes that are sent again in another form.

A write in one form may turn out not to suit the state that it finds: a plain put finds an ephemeral
value, a sequence has been moved on by another client. It was then not applied, for certain, and its
answer is an :class:`OtherForm`: the same write, sent in the form that suits. No caller sees it.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any, NamedTuple, TypeAlias

from ....ops.operations import TransactionOptions
from ....ops.results import Stat
from ...backend import Answer, PartRequest, WriteRequest
from ..session.session import SessionLease
from ..wire.fields import on_lease

__all__ = [
    "OtherForm",
    "LeaseDetached",
    "Pending",
    "Terms",
    "is_by_version",
    "is_ephemeral",
    "is_sequential",
    "parts_of",
    "there_of",
]


class Terms(NamedTuple):
    """What the writes of one transaction share.

    Attributes:
        prefix: precedes every path in the keys.
        owns: says whether a lease is that of the client's session.
        lease: the session in which ephemeral values are created; ``None`` if there are none.
        on_lease: the part of a put that binds its key to the session's lease.
    """

    prefix: str
    owns: Callable[[int], bool]
    lease: SessionLease | None = None
    on_lease: bytes = b""

    def within(self, lease: SessionLease) -> Terms:
        """Return these terms for writes that create ephemeral values."""
        return self._replace(lease=lease, on_lease=on_lease(lease.lease))


def _of_request(name: str) -> Any:
    return property(attrgetter(f"request.{name}"))


class OtherForm:
    """A write that is to be sent in another form than it would be at first.

    Attributes:
        request: the write as the engine passed it.
        there: the places of the puts that found a value, among the steps of the write.
        options: those of the write, which are asked for often.
        path: that of the write; for a sequential put on its way, the path that the client has
            chosen.
        session: the number of the session in which it is to take effect.
    """

    __slots__ = ("options", "path", "request", "session", "there")

    kind = _of_request("kind")
    value = _of_request("value")
    expected_version = _of_request("expected_version")
    deadline = _of_request("deadline")

    def __init__(
        self,
        write: WriteRequest,
        there: frozenset[int] = frozenset(),
        *,
        path: str | None = None,
        session: int | None = None,
    ) -> None:
        self.request: WriteRequest = write.request if isinstance(write, OtherForm) else write
        self.options = options = write.options
        self.there = there
        self.path: str = path or self.request.path
        # Only an ephemeral write has one, and only it is asked.
        if session is None and options is not None and options.ephemeral:
            session = write.session
        self.session = session


class LeaseDetached(NamedTuple):
    """An unconditional put that was applied, and has taken its key from a lease.

    That happens once at most to a client: to a lease that its guard does not show. The next round
    binds the key to the lease again.

    Attributes:
        stat: the stat after the put.
        lease: the lease.
    """

    stat: Stat
    lease: int


#: The answer to a write, or what comes next.
Pending: TypeAlias = Answer | OtherForm | LeaseDetached


def there_of(write: WriteRequest) -> frozenset[int]:
    """Return the places of the puts of a write that found a value when it was sent before."""
    return write.there if isinstance(write, OtherForm) else frozenset()


def is_by_version(write: PartRequest) -> bool:
    """Say whether a write is a transaction of checks and puts that expect versions only."""
    return type(options := write.options) is TransactionOptions and options.by_version


def is_ephemeral(write: WriteRequest) -> bool:
    """Say whether a write puts an ephemeral value, alone or in a transaction."""
    return write.options is not None and write.options.ephemeral


def is_sequential(write: WriteRequest) -> bool:
    """Say whether a write takes a number from a counter."""
    return write.options is not None and write.options.sequential


def parts_of(write: WriteRequest) -> tuple[PartRequest, ...]:
    """Return the parts of a transaction; another write is its only part."""
    return (write,) if write.options is None else write.options.parts or (write,)
