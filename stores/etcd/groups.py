"""The groups of a nested transaction: which writes stand together, and how their responses read.

Each group is a transaction nested in that of the batch. The members of a group share its
conditions; most members are again transactions with conditions of their own:

- *hot* groups have the writes without options, and transactions that only check and put. While no
  client has a session, nothing can be ephemeral. One condition of the group asserts that: there is
  no session key. The puts then need none.
- *joint* groups have, while refusals are rare, puts that expect a version, and transactions of
  checks and such puts; or puts that create ephemeral values, on the condition that the session key
  exists. The group has the conditions of all of them. While there are sessions, it has one more for
  each put of a value that is there: that its key has no lease. If a condition does not hold, all
  are sent again in a hot, a separate or a session group.
- *plain* groups have unconditional puts while there are sessions. For each, the group has the
  condition that its key has no lease. If one does not hold, the puts of the group are sent again,
  each in a transaction of its own that keeps a lease.
- *separate* groups have the other writes: those that expect a version or a revision while there are
  sessions, and transactions.
- *session* groups have the writes that create ephemeral values, on the condition that the session
  key exists.
- sequential puts are members of separate groups, as *siblings*: new children of one parent, on the
  condition that its counter has not moved on. All conditions of a transaction are evaluated before
  its changes, so all siblings stand or fall together, and some of them set the counter.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, Protocol, cast

from ...ops.operations import ABSENT
from ...ops.results import Stat
from ..backend import Answer, PartRequest, WriteRequest
from .attempts import Attempt, Pending, Terms, there_of
from .counters import Counters, Numbers
from .fields import leased, then, transaction
from .protobuf import field
from .transactions import empty_after_all, form_of, parts_of
from .txn import joint_changes, joint_compares, lease_compares, nested_write

__all__ = [
    "HOT_DEPTH",
    "Group",
    "HotGroup",
    "JointGroup",
    "PlainGroup",
    "SeparateGroup",
    "SeparateWrite",
    "Shared",
    "Siblings",
    "session_exists",
]

_new = tuple.__new__
#: The conditions of a delete. Of the single hot writes, it has most.
HOT_DEPTH: Final = 2


class Shared:
    """What the groups of one transaction share, and what its response shows.

    Attributes:
        requests: the writes, as they are sent.
        terms: their terms.
        counters: the counters of sequential puts.
        session_exists: the condition that the session exists.
        doubted: the number of the session if the response shows that it may have ended.
        guard_failed: whether the response shows that there are sessions.
    """

    def __init__(self, requests: Sequence[WriteRequest], terms: Terms, counters: Counters) -> None:
        self.requests: list[WriteRequest] = [*requests]
        self.terms = terms
        self.counters = counters
        self.session_exists = session_exists(terms)
        self.doubted: int | None = None
        self.guard_failed = False

    def doubt(self) -> None:
        """Note that the session key is not there."""
        assert self.terms.lease is not None
        self.doubted = self.terms.lease.number


class Group(Protocol):
    """Writes with a transaction of their own in the transaction of the batch."""

    @property
    def answered(self) -> Sequence[WriteRequest] | None:
        """The writes whose answers the response has already; ``None`` if it has none."""

    @property
    def depth(self) -> int:
        """The number of operations along the deepest path into it."""

    def field(self) -> bytes: ...

    def read(self, result: Any, revision: int, answers: list[Any]) -> None:
        """Put the answers into their places."""


class HotGroup:
    """Writes with the fastest codecs; ``depth`` is the most operations of one of them."""

    def __init__(
        self,
        shared: Shared,
        places: Sequence[int],
        requests: Sequence[WriteRequest],
        guard: bytes,
        depth: int,
    ) -> None:
        self._shared = shared
        self._places = places
        self._guard = guard
        self.answered = requests
        self.depth = len(requests) + depth

    def field(self) -> bytes:
        return _group(self._guard + nested_write(self.answered, self._shared.terms.prefix))

    def read(self, result: Any, revision: int, answers: list[Any]) -> None:
        if isinstance(result, list):
            found = result
        else:
            self._shared.guard_failed = True
            found = [Attempt(request, there_of(request)) for request in self.answered]
        places = self._places
        if isinstance(places, range):
            answers[places.start : places.stop] = found
            return
        for place, answer in zip(places, found, strict=True):
            answers[place] = answer


class JointGroup:
    """Puts that expect versions, and transactions of such, applied together or not at all.

    Args:
        shared: what the groups share.
        places: the places of the writes in the batch.
        requests: the writes.
        condition: the condition of the whole group.
        ephemeral: whether all of them create ephemeral values.
        leases: whether keys may have leases, which these puts would take from them.
    """

    def __init__(
        self,
        shared: Shared,
        places: Sequence[int],
        requests: Sequence[WriteRequest],
        condition: bytes,
        *,
        ephemeral: bool,
        leases: bool,
    ) -> None:
        self._places = places
        self._requests = requests
        self._terms = shared.terms
        self._condition = condition
        self._ephemeral = ephemeral
        # Each condition once: many transactions may check one path. No other write of the batch
        # changes that path.
        self._conditions: Sequence[PartRequest] = requests
        self.answered = requests
        if any(request.options is not None for request in requests):
            parts = [part for request in requests for part in parts_of(request)]
            conditions = {(part.path, part.expected_version): part for part in parts}
            self._conditions = [*conditions.values()]
            self.answered = cast(
                "list[WriteRequest]", [part for part in parts if part.kind == "put"]
            )
        # A key that is missing has no lease.
        self._leases = [put for put in self.answered if leases and put.expected_version != ABSENT]
        self.depth = 1 + len(self._conditions) + len(self._leases)

    def field(self) -> bytes:
        prefix, extra = self._terms.prefix, self._terms.on_lease if self._ephemeral else b""
        compares = joint_compares(self._conditions, prefix) + lease_compares(self._leases, prefix)
        return _group(self._condition + compares + joint_changes(self.answered, prefix, extra))

    def read(self, result: Any, revision: int, answers: list[Any]) -> None:
        found: Iterable[Pending]
        if not isinstance(result, list):
            found = map(Attempt, self._requests)
        elif self._ephemeral:
            found = [_new(Stat, (*stat[:5], True, True)) for stat in result]
        elif self.answered is self._requests:
            found = result
        else:
            stats = iter(result)
            found = [_joint_answer(request, stats) for request in self._requests]
        for place, answer in zip(self._places, found, strict=True):
            answers[place] = answer


def _joint_answer(request: WriteRequest, stats: Iterator[Stat]) -> Answer:
    """Return the answer of a write from the stats of its group's puts."""
    if request.kind != "transaction":
        return next(stats)
    return [next(stats) if part.kind == "put" else None for part in parts_of(request)]


class PlainGroup:
    """Unconditional puts, on the condition that none of their keys has a lease."""

    def __init__(self, shared: Shared, places: Sequence[int]) -> None:
        self._places = places
        self._prefix = shared.terms.prefix
        self.answered = [shared.requests[place] for place in places]
        self.depth = len(places)

    def field(self) -> bytes:
        prefix = self._prefix
        return _group(lease_compares(self.answered, prefix) + nested_write(self.answered, prefix))

    def read(self, result: Any, revision: int, answers: list[Any]) -> None:
        if isinstance(result, list):
            found = result
        else:
            there = frozenset((0,))
            found = [Attempt(request, there) for request in self.answered]
        for place, answer in zip(self._places, found, strict=True):
            answers[place] = answer


class SeparateWrite:
    """A write as a member of a separate group or a session group."""

    __slots__ = ("_codec", "_creates", "_place", "_request", "_terms", "depth", "field")

    def __init__(self, request: WriteRequest, place: int, terms: Terms) -> None:
        self._request = request
        self._place = place
        self._terms = terms
        self._codec = codec = form_of(request)
        self.field, self.depth, self._creates = codec.nested(request, terms)

    def read(self, result: Any, revision: int, answers: list[Any]) -> None:
        txn, request = result.response_txn, self._request
        answer: Pending
        if txn.succeeded:
            if self._creates:
                ephemeral = request.options is not None and request.options.ephemeral
                stat = (request.path, 0, revision, None, None, ephemeral, ephemeral)
                answers[self._place] = _new(Stat, stat)
                return
            answer = self._codec.applied(request, iter(txn.responses), revision, self._terms)
        else:
            results = iter(txn.responses)
            answer = self._codec.refused(request, results, revision, self._terms) or (
                _unexplained(request)
            )
        answers[self._place] = answer

    def again(self, answers: list[Any]) -> None:
        """Put the next attempt into its place, because its group was refused."""
        answers[self._place] = Attempt(self._request, there_of(self._request))


class Siblings:
    """Sequential puts below one parent, as a member of a separate group."""

    def __init__(
        self,
        shared: Shared,
        above: str,
        numbers: Numbers,
        members: Sequence[SeparateWrite],
        *,
        advances: bool,
        ephemeral: bool,
    ) -> None:
        self._shared = shared
        self._above = above
        self._numbers = numbers
        self._members = members
        self._advances = advances
        self._ephemeral = ephemeral
        fields = [numbers.compare]
        if ephemeral:
            fields.append(shared.session_exists)
        if advances:
            fields.append(numbers.advance)
        fields += [member.field for member in members]
        fields.append(numbers.read)
        self.field = then(transaction(fields))
        self.depth = len(members) + 1 + max(member.depth for member in members)

    def read(self, result: Any, revision: int, answers: list[Any]) -> None:
        txn = result.response_txn
        if txn.succeeded:
            for member, found in zip(
                self._members, txn.responses[1 if self._advances else 0 :], strict=True
            ):
                member.read(found, revision, answers)
            return
        kvs = txn.responses[0].response_range.kvs
        value = kvs[0].value if kvs else None
        if self._advances:
            self._shared.counters.give_back(self._above, self._numbers)
        self._shared.counters.learn(self._above, value)
        if self._ephemeral and self._numbers.held(value):
            self._shared.doubt()
        for member in self._members:
            member.again(answers)

    def again(self, answers: list[Any]) -> None:
        for member in self._members:
            member.again(answers)


class SeparateGroup:
    """Writes with transactions of their own, perhaps on the condition that the session exists."""

    answered = None

    def __init__(
        self, shared: Shared, members: Sequence[SeparateWrite | Siblings], condition: bytes
    ) -> None:
        self._shared = shared
        self._members = members
        self._condition = condition
        self.depth = len(members) + max(member.depth for member in members)

    def field(self) -> bytes:
        fields = [member.field for member in self._members]
        return _group(self._condition + b"".join(fields))

    def read(self, result: Any, revision: int, answers: list[Any]) -> None:
        txn = result.response_txn
        if txn.succeeded:
            for member, found in zip(self._members, txn.responses, strict=True):
                member.read(found, revision, answers)
            return
        self._shared.doubt()
        for member in self._members:
            member.again(answers)


def _group(fields: bytes) -> bytes:
    """Return a group as one field of the batch's transaction."""
    return field(b"\x12", field(b"\x22", fields))


def session_exists(terms: Terms) -> bytes:
    """Return the condition that the session of the terms exists; empty without one."""
    return leased(terms.lease.key, terms.lease.lease) if terms.lease is not None else b""


def _unexplained(request: WriteRequest) -> Pending:
    """Return the answer of a write that was refused for a reason that is gone already."""
    if request.kind == "transaction" and (error := empty_after_all(request)):
        return error
    return Attempt(request, there_of(request))
