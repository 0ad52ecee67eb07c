"""Writes on their way: with the terms of a transaction, and as attempts of the same write.

A write in one form may turn out not to suit the state that it finds: a plain put finds an ephemeral
value, a sequence has been moved on by another client. It was then not applied, for certain, and its
answer is an :class:`Attempt`: the same write, to be sent in the form that suits. No caller sees it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from ...ops.operations import Options, WriteKind
from ...ops.results import Stat
from ..backend import Answer, WriteRequest
from .fields import on_lease
from .session import SessionLease

__all__ = ["Attempt", "Creation", "LeaseDetached", "Pending", "Terms", "there_of"]


class Terms(NamedTuple):
    """What the writes of one transaction share.

    Attributes:
        prefix: precedes every path in the keys.
        owns: says whether a lease is that of the client's session.
        lease: the session in which ephemeral values are created; ``None`` if there are none.
        nested: whether a write has a transaction of its own, with a branch for each outcome.
        on_lease: the part of a put that binds its key to the session's lease.
    """

    prefix: str
    owns: Callable[[int], bool]
    lease: SessionLease | None = None
    nested: bool = True
    on_lease: bytes = b""

    def within(self, lease: SessionLease) -> Terms:
        """Return these terms for writes that create ephemeral values."""
        return self._replace(lease=lease, on_lease=on_lease(lease.lease))


class _Copy:
    """A write in the form of this attempt, with the attributes of the write.

    Attributes:
        request: the write as the engine passed it.
    """

    __slots__ = ("expected_version", "kind", "options", "path", "request", "session", "value")

    def __init__(self, write: WriteRequest) -> None:
        request = write.request if isinstance(write, _Copy) else write
        self.request: WriteRequest = request
        self.kind: WriteKind = request.kind
        self.path: str = request.path
        self.value: bytes | None = request.value
        self.expected_version: int | None = request.expected_version
        self.options: Options | None = request.options
        # Only an ephemeral write has one, and only it is asked.
        ephemeral = write.options is not None and write.options.ephemeral
        self.session: int | None = write.session if ephemeral else None


class Attempt(_Copy):
    """A write that was not applied and is to be sent again.

    Attributes:
        there: the places of the puts that found a value, among the parts of the write. A write of
            one path has one part.
    """

    __slots__ = ("there",)

    def __init__(self, write: WriteRequest, there: frozenset[int] = frozenset()) -> None:
        super().__init__(write)
        self.there = there


class Creation(_Copy):
    """A sequential put with the path that the client has chosen for this attempt.

    Attributes:
        path: the whole path, with its suffix.
    """

    __slots__ = ()

    def __init__(self, write: WriteRequest, path: str) -> None:
        super().__init__(write)
        self.path = path


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
Pending: TypeAlias = Answer | Attempt | LeaseDetached


def there_of(request: WriteRequest) -> frozenset[int]:
    """Return the places of the puts of a write that found a value in an earlier attempt."""
    return request.there if isinstance(request, Attempt) else frozenset()
