"""The groups of a nested transaction: which writes stand together, and how their responses read.

Each group is a transaction nested in that of the batch. The members of a group share its
conditions; most members are again transactions with conditions of their own:

- *hot* groups have puts without options, and transactions that only check and put. While no client
  has a session, nothing can be ephemeral. One condition of the group asserts that: there is no
  session key. The puts then need none. Creations and deletes mind no lease, so they are hot also
  while there are sessions, and need no such condition then.
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

from ....ops.operations import ABSENT
from ....ops.results import Stat
from ....ops.steps import At, PutNext, PutValue, Step, lower
from ...backend import Answer, PartRequest, WriteRequest, without_options
from ..wire.fields import KEEP_LEASE, RETURN_OLD, leased, otherwise, put, then, transaction
from .counters import Counters, Numbers
from .forms import PUTS, Form, applied, form_of, refused, unexplained
from .hot import guarded_put, joint_changes, joint_compares, lease_compares, nested_write
from .pending import OtherForm, Pending, Terms, parts_of, there_of

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
#: The conditions of a delete without options. Of the frequent hot writes, it has most.
HOT_DEPTH: Final = 2
# A larger value is not sent in two forms at a time.
_SMALL: Final = 16 * 1024


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


class _Together:
    """Writes that stand or fall by the conditions of their group. They take the short way.

    Attributes:
        answered: the writes that the compiled reader answers, in order.
        depth: see :class:`Group`.
    """

    answered: Sequence[WriteRequest]
    depth: int

    def __init__(self, places: Sequence[int], requests: Sequence[WriteRequest]) -> None:
        self._places = places
        self._requests = self.answered = requests

    def read(self, result: Any, revision: int, answers: list[Any]) -> None:
        """Put the answers into their places; if a condition did not hold, the other forms."""
        found: Iterable[Pending]
        if isinstance(result, list):
            found = self._answers(result)
        else:
            self._refused()
            found = [OtherForm(write, self._there(write)) for write in self._requests]
        places = self._places
        if isinstance(places, range):
            answers[places.start : places.stop] = found
            return
        for place, answer in zip(places, found, strict=True):
            answers[place] = answer

    def _answers(self, answered: list[Any]) -> Iterable[Pending]:
        return answered

    def _refused(self) -> None:
        """Note that a condition did not hold."""

    def _there(self, write: WriteRequest) -> frozenset[int]:
        """Return what is known of a write then: the steps that have found a value."""
        return there_of(write)


class HotGroup(_Together):
    """Writes that need not mind leases: all of them while ``guard`` holds, some without it.

    ``depth`` is the most operations of one of them.
    """

    def __init__(
        self,
        shared: Shared,
        places: Sequence[int],
        requests: Sequence[WriteRequest],
        guard: bytes,
        depth: int,
    ) -> None:
        super().__init__(places, requests)
        self._shared = shared
        self._guard = guard
        self.depth = len(requests) + depth

    def field(self) -> bytes:
        return _group(self._guard, nested_write(self.answered, self._shared.terms.prefix))

    def _refused(self) -> None:
        self._shared.guard_failed = True


class PlainGroup(_Together):
    """Unconditional puts, on the condition that none of their keys has a lease."""

    def __init__(self, shared: Shared, places: Sequence[int]) -> None:
        super().__init__(places, [shared.requests[place] for place in places])
        self._prefix = shared.terms.prefix
        self.depth = len(places)

    def field(self) -> bytes:
        puts, prefix = self.answered, self._prefix
        return _group(lease_compares(puts, prefix), nested_write(puts, prefix))

    def _there(self, write: WriteRequest) -> frozenset[int]:
        return frozenset((0,))


class JointGroup(_Together):
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
        super().__init__(places, requests)
        self._terms = shared.terms
        self._condition = condition
        self._ephemeral = ephemeral
        self._conditions: Sequence[PartRequest] = requests
        if not without_options(requests):
            # Each condition once: many transactions may check one path. No other write of the batch
            # changes that path.
            parts = [part for request in requests for part in parts_of(request)]
            conditions = {(part.path, part.expected_version): part for part in parts}
            self._conditions = [*conditions.values()]
            puts = [part for part in parts if part.value is not None]
            self.answered = cast("list[WriteRequest]", puts)
        # A key that is missing has no lease.
        self._leases = (
            [put for put in self.answered if put.expected_version != ABSENT] if leases else []
        )
        self.depth = 1 + len(self._conditions) + len(self._leases)

    def field(self) -> bytes:
        prefix, extra = self._terms.prefix, self._terms.on_lease if self._ephemeral else b""
        compares = joint_compares(self._conditions, prefix) + lease_compares(self._leases, prefix)
        return _group(self._condition, compares, joint_changes(self.answered, prefix, extra))

    def _answers(self, answered: list[Any]) -> Iterable[Pending]:
        if self._ephemeral:
            return [_new(Stat, (*stat[:5], True, True)) for stat in answered]
        if self.answered is self._requests:
            return answered
        stats = iter(answered)
        return [_joint_answer(request, stats) for request in self._requests]


def _joint_answer(write: WriteRequest, stats: Iterator[Stat]) -> Answer:
    """Return the answer of a write from the stats of its group's puts."""
    if write.options is None:
        return next(stats)
    return [None if part.value is None else next(stats) for part in parts_of(write)]


class SeparateWrite:
    """A write as a member of a separate group or a session group.

    Attributes:
        field: its field of the group.
        depth: the operations that it takes up.
    """

    __slots__ = ("_created", "_lowered", "_place", "_terms", "_write", "depth", "field")

    def __init__(self, write: WriteRequest, place: int, terms: Terms) -> None:
        self._write = write
        self._place = place
        self._terms = terms
        self._lowered = lowered = lower(write)
        #: The effect of a write that creates its key, if it is applied at all.
        self._created: PutValue | PutNext | None = None
        self.depth = 1
        there = there_of(write)
        if isinstance(lowered, Step) and isinstance(effect := lowered.effect, PUTS):
            # Most of these writes are such puts. Two short ways with the same bytes.
            key, condition = (terms.prefix + lowered.path).encode(), lowered.condition
            if condition == "absent" or (effect.ephemeral and condition == "any" and not there):
                extra = terms.on_lease if effect.ephemeral else b""
                self.field = guarded_put(key, effect.value, 0, extra)
                self._created = effect
                return
            if isinstance(condition, At) and condition.revision is None:
                version = condition.version or 0
                self.field = guarded_put(key, effect.value, version + 1, KEEP_LEASE + RETURN_OLD)
                return
            if there and len(effect.value) <= _SMALL:
                self.field = self._in_both_forms(key, effect.value)
                return
        form = form_of(lowered, terms.prefix, on_lease=terms.on_lease, there=there)
        self.field, self.depth = form.nested(), form.weight

    def _in_both_forms(self, key: bytes, value: bytes) -> bytes:
        """Return an unconditional put that cannot fail, with one form in each branch."""
        terms = self._terms
        created, changed, _ = form_of(self._lowered, terms.prefix, on_lease=terms.on_lease)
        kept = put(key, value, KEEP_LEASE + RETURN_OLD)
        return Form(created, changed, (otherwise(kept),)).nested()

    def read(self, result: Any, revision: int, answers: list[Any]) -> None:
        txn, write, lowered = result.response_txn, self._write, self._lowered
        created = self._created
        if created is not None and txn.succeeded:
            # `applied` says the same, and looks at the result first.
            ephemeral = created.ephemeral
            stat = (write.path, 0, revision, None, None, ephemeral, ephemeral)
            answers[self._place] = _new(Stat, stat)
            return
        results = iter(txn.responses)
        if txn.succeeded or txn.responses[0].HasField("response_put"):  # the other form
            answer: Pending = applied(lowered, results, revision, self._terms.owns)
        else:
            answer = refused(write, lowered, results) or unexplained(write, lowered)
        answers[self._place] = answer

    def again(self, answers: list[Any]) -> None:
        """Put a write back into its place, to be sent in another form: its group was refused."""
        answers[self._place] = OtherForm(self._write, there_of(self._write))


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
        return _group(self._condition, *fields)

    def read(self, result: Any, revision: int, answers: list[Any]) -> None:
        txn = result.response_txn
        if txn.succeeded:
            for member, found in zip(self._members, txn.responses, strict=True):
                member.read(found, revision, answers)
            return
        self._shared.doubt()
        for member in self._members:
            member.again(answers)


def _group(*fields: bytes) -> bytes:
    """Return a group as one field of the batch's transaction."""
    return then(transaction(fields))


def session_exists(terms: Terms) -> bytes:
    """Return the condition that the session of the terms exists; empty without one."""
    return leased(terms.lease.key, terms.lease.lease) if terms.lease is not None else b""
