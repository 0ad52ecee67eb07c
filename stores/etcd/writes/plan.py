"""Plans: which transaction executes a batch of writes, and what its response means.

A nested plan makes groups, each a transaction nested in the batch's (see ``groups``). A flat plan
joins everything: it is applied as a whole or not at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, Literal, Protocol, TypeAlias

from ....ops.errors import UnsupportedError
from ....ops.operations import ABSENT, PutOptions, TransactionOptions
from ....ops.paths import parent
from ....ops.steps import lower, steps_in
from ...backend import Answer, WriteRequest, column, is_plain_put
from ..wire.batches import even_parts, packed, parsed
from ..wire.fields import otherwise, read_key
from .counters import Counters, Numbers
from .forms import applied, form_of, refused, weight_of
from .groups import (
    HOT_DEPTH,
    Group,
    HotGroup,
    JointGroup,
    PlainGroup,
    SeparateGroup,
    SeparateWrite,
    Shared,
    Siblings,
    session_exists,
)
from .hot import read_response
from .pending import (
    OtherForm,
    Pending,
    Terms,
    is_by_version,
    is_ephemeral,
    is_sequential,
    parts_of,
    there_of,
)

__all__ = ["FlatPlan", "NestedPlan", "Plan", "weight"]

_GroupName: TypeAlias = Literal["hot", "plain", "separate", "session", "siblings"]

_UNSET: Final = object()
_EPHEMERAL: Final = PutOptions(ephemeral=True)
# Fewer writes do not share their conditions: it saves little, and a refusal costs a second request.
_FEWEST_JOINT: Final = 8
# Transactions of more parts gain little.
_MOST_JOINT_PARTS: Final = 8


class Plan(Protocol):
    """How a batch of writes is sent, and what its response means.

    Attributes:
        requests: the writes, as they are sent.
        body: the fields of the transaction.
        nested: whether each write, or each group, has its own outcome; if not, they have one.
        unsent: the answers of the writes that are not sent, by their places.
        doubted: the number of the session if the response shows that it may have ended.
    """

    requests: list[WriteRequest]
    body: bytes
    unsent: dict[int, Answer]

    @property
    def nested(self) -> bool: ...

    @property
    def doubted(self) -> int | None: ...

    def parsed(self, answer: bytes, before: int) -> Any:
        """Return the response, the first results of which, ``before``, are no writes."""
        ...

    def answers(self, response: Any) -> list[Pending]:
        """Return the answers, or the writes to send again, without those results."""
        ...


class NestedPlan:
    """A transaction in which each write, or each group, has its own outcome.

    Args:
        requests: the writes.
        terms: what they share.
        size: the most members of a group.
        guard: the condition that there are no sessions; empty if there are any.
        counters: the counters of sequential puts.
        plain: whether no write has options, and none is sent again.
        joint: whether writes that expect versions may share their conditions.

    Attributes:
        depth: the number of operations along the deepest path, as etcd counts.
    """

    nested: Final = True

    def __init__(
        self,
        requests: Sequence[WriteRequest],
        terms: Terms,
        size: int,
        guard: bytes,
        counters: Counters,
        *,
        plain: bool = False,
        joint: bool = False,
    ) -> None:
        self._shared = shared = Shared(requests, terms, counters)
        self.requests = shared.requests
        self._size = size
        self.unsent: dict[int, Answer] = {}
        joined: Sequence[int] = _joinable(requests, size, plain=plain) if joint else ()
        created = _ephemeral_creations(requests) if joint and not plain else ()
        if plain and guard and not joined:
            # The form of most batches, and of every lone put.
            groups = self._hot(range(len(requests)), requests, guard, HOT_DEPTH)
        else:
            groups = self._sorted(joined, created, guard)
        self._groups = groups
        deepest = max((group.depth for group in groups), default=0)
        self.depth = len(groups) + deepest
        self.body = b"".join([group.field() for group in groups])

    def _hot(
        self, places: Sequence[int], requests: Sequence[WriteRequest], guard: bytes, depth: int
    ) -> list[Group]:
        parts = zip(even_parts(places, self._size), even_parts(requests, self._size), strict=True)
        return [HotGroup(self._shared, part, some, guard, depth) for part, some in parts]

    def _joint(
        self,
        places: Sequence[int],
        condition: bytes,
        *,
        ephemeral: bool = False,
        leases: bool = False,
    ) -> Iterator[Group]:
        requests, size = self.requests, self._size
        parts: Iterable[Sequence[int]]
        if isinstance(places, range):
            parts = [places[start : start + size] for start in places[::size]]
        else:
            parts = packed(places, size, lambda place: _conditions(requests[place]))
        for some in parts:
            joint = [*map(requests.__getitem__, some)]
            yield JointGroup(
                self._shared, some, joint, condition, ephemeral=ephemeral, leases=leases
            )

    def _sorted(self, joined: Sequence[int], created: Sequence[int], guard: bytes) -> list[Group]:
        """Return the groups of all writes.

        Those at some places are joined; so are others, apart from them, that create ephemeral
        values.
        """
        requests, shared, size = self.requests, self._shared, self._size
        by_name: dict[_GroupName, list[int]] = {
            "hot": [],
            "plain": [],
            "separate": [],
            "session": [],
            "siblings": [],
        }
        if len(joined) + len(created) < len(requests):
            apart = {*joined, *created}
            for place, request in enumerate(requests):
                if place not in apart:
                    by_name[_group_of(request, bool(guard))].append(place)
        hot = [requests[place] for place in by_name["hot"]]
        separate: list[SeparateWrite | Siblings] = [*self._members(by_name["separate"])]
        separate += self._siblings(by_name["siblings"])
        session = self._members(by_name["session"])
        return [
            *self._hot(by_name["hot"], hot, guard, max((HOT_DEPTH, *map(_hot_depth, hot)))),
            *self._joint(joined, guard, leases=not guard),
            *self._joint(created, shared.session_exists, ephemeral=True),
            *(PlainGroup(shared, places) for places in even_parts(by_name["plain"], size)),
            *(SeparateGroup(shared, some, b"") for some in even_parts(separate, size)),
            *(
                SeparateGroup(shared, some, shared.session_exists)
                for some in even_parts(session, size)
            ),
        ]

    @property
    def doubted(self) -> int | None:
        """The number of the session if the response shows that it may have ended."""
        return self._shared.doubted

    @property
    def guard_failed(self) -> bool:
        """Whether the response shows that there are sessions."""
        return self._shared.guard_failed

    def parsed(self, answer: bytes, before: int) -> Any:
        """Return the response. See :class:`Plan`."""
        return read_response(answer, [None] * before + [group.answered for group in self._groups])

    def answers(self, response: Any) -> list[Pending]:
        """Return the answers, or the writes to send again, from the response. See :class:`Plan`."""
        answers: list[Any] = [_UNSET] * len(self.requests)
        revision = response.header.revision
        for group, result in zip(self._groups, response.responses, strict=True):
            group.read(result, revision, answers)
        for place, answer in self.unsent.items():
            answers[place] = answer
        return answers

    def _members(self, places: Sequence[int]) -> list[SeparateWrite]:
        return [SeparateWrite(self.requests[place], place, self._shared.terms) for place in places]

    def _siblings(self, places: Sequence[int]) -> Iterator[Siblings]:
        """Choose the paths of sequential puts, and yield them as siblings."""
        for above, ordered, numbers in _numbered(self.requests, places, self._shared.counters):
            if numbers is None:
                for place in ordered:
                    self.unsent[place] = _used_up(self.requests[place].path)
                continue
            _name(self.requests, ordered, numbers)
            # Those without a condition on the session come first and set the counter: no others
            # must be applied without that.
            advances = True
            for ephemeral in (False, True):
                some = [p for p in ordered if is_ephemeral(self.requests[p]) is ephemeral]
                for part in even_parts(some, self._size):
                    members = self._members(part)
                    yield Siblings(
                        self._shared,
                        above,
                        numbers,
                        members,
                        advances=advances,
                        ephemeral=ephemeral,
                    )
                    advances = False


class FlatPlan:
    """A flat transaction, which is applied as a whole or not at all.

    Args:
        requests: the writes.
        terms: what they share.
        counters: the counters of sequential puts.
    """

    nested: Final = False

    def __init__(self, requests: Sequence[WriteRequest], terms: Terms, counters: Counters) -> None:
        self.requests: list[WriteRequest] = [*requests]
        self._terms = terms
        self.doubted: int | None = None
        self._counters = counters
        self.unsent: dict[int, Answer] = {}
        self._numbers: list[tuple[str, Numbers]] = []
        compares: list[bytes] = []
        changes: list[bytes] = []
        reads: list[bytes] = []
        self._needs_session = any(is_ephemeral(request) for request in requests)
        if self._needs_session:
            assert terms.lease is not None
            compares.append(session_exists(terms))
            reads.append(otherwise(read_key(terms.lease.key, whole=True)))
        sequential = [place for place, request in enumerate(requests) if is_sequential(request)]
        for above, ordered, numbers in _numbered(self.requests, sequential, counters):
            if numbers is None:
                for place in ordered:
                    self.unsent[place] = _used_up(requests[place].path)
                continue
            _name(self.requests, ordered, numbers)
            self._numbers.append((above, numbers))
            compares.append(numbers.compare)
            changes.append(numbers.advance)
            reads.append(numbers.read)
        self._sent = [
            (request, lower(request))
            for place, request in enumerate(self.requests)
            if place not in self.unsent
        ]
        for request, lowered in self._sent:
            form = form_of(lowered, terms.prefix, on_lease=terms.on_lease, there=there_of(request))
            compares += form.compares
            changes += form.changes
            reads += form.reads
        self.body = b"".join(compares + changes + reads)

    def parsed(self, answer: bytes, before: int) -> Any:
        """Return the response. See :class:`Plan`."""
        return parsed(answer)

    def answers(self, response: Any) -> list[Pending]:
        """Return the answers, or the writes to send again, from the response. See :class:`Plan`."""
        results = iter(response.responses)
        found = (
            self._applied(response, results) if response.succeeded else iter(self._refused(results))
        )
        return [
            self.unsent[place] if place in self.unsent else next(found)
            for place in range(len(self.requests))
        ]

    def _applied(self, response: Any, results: Iterator[Any]) -> Iterator[Pending]:
        for _ in self._numbers:
            next(results)
        revision = response.header.revision
        for _, lowered in self._sent:
            yield applied(lowered, results, revision, self._terms.owns)

    def _refused(self, results: Iterator[Any]) -> list[Pending]:
        lease = self._terms.lease
        if self._needs_session:
            kvs = next(results).response_range.kvs
            assert lease is not None
            if not kvs or kvs[0].lease != lease.lease:
                self.doubted = lease.number
        found: list[bytes | None] = []
        for _ in self._numbers:
            kvs = next(results).response_range.kvs
            found.append(kvs[0].value if kvs else None)
        answers: list[Pending] = []
        taken: set[str] = set()  # the parents of paths that somebody else has put
        for request, lowered in self._sent:
            answer = refused(request, lowered, results)
            if answer is not None and is_sequential(request):
                taken.add(parent(request.path))
            # Operations that are not at fault are sent again unchanged.
            answers.append(answer or OtherForm(request, there_of(request)))
        for (above, numbers), value in zip(self._numbers, found, strict=True):
            if above not in taken:
                self._counters.give_back(above, numbers)
            self._counters.learn(above, value)
        return answers


def _group_of(write: WriteRequest, guarded: bool) -> _GroupName:
    """Return the group that a write belongs to in a nested transaction.

    What is not known to suit another group is a separate write, with conditions of its own.
    """
    if is_plain_put(write) and not there_of(write):
        if guarded or write.expected_version == ABSENT:
            return "hot"
        return "plain" if write.expected_version is None else "separate"
    if write.kind == "delete" or (guarded and is_by_version(write)):
        return "hot"
    if is_sequential(write):
        return "siblings"
    return "session" if is_ephemeral(write) else "separate"


def _joinable(requests: Sequence[WriteRequest], size: int, *, plain: bool) -> Sequence[int]:
    """Return the places of the writes that may share their conditions; none if they are few.

    A range means that they are all writes, and that each has one condition.
    """
    if plain and len(requests) >= _FEWEST_JOINT:
        # Nearly all batches, and every operation in them would pay for the loop.
        versions = column(requests, "expected_version")
        if versions.count(None) == len(requests):
            return ()
        if None not in versions and column(requests, "kind").count("put") == len(requests):
            return range(len(requests))
    found = [
        place
        for place, request in enumerate(requests)
        if (
            is_plain_put(request)
            and request.expected_version is not None
            and not isinstance(request, OtherForm)
        )
        or (request.options is not None and _joins(request, size))
    ]
    return found if len(found) >= _FEWEST_JOINT else []


def _ephemeral_creations(requests: Sequence[WriteRequest]) -> list[int]:
    """Return the places of the ephemeral puts that may share their conditions, likewise."""
    found = [
        place
        for place, request in enumerate(requests)
        if request.expected_version == ABSENT
        and request.options == _EPHEMERAL
        and not isinstance(request, OtherForm)
    ]
    return found if len(found) >= _FEWEST_JOINT else []


def _joins(request: WriteRequest, size: int) -> bool:
    """Say whether a transaction may share its conditions in groups of up to ``size``."""
    options = request.options
    return (
        isinstance(options, TransactionOptions)
        and options.by_version
        and not isinstance(request, OtherForm)
        and len(options.parts) <= min(size, _MOST_JOINT_PARTS)
        # Its puts show whether it was applied, if the answer is lost.
        and len(options.checked) < len(options.parts)
    )


def weight(write: WriteRequest) -> int:
    """Return the operations that a write takes up in a flat transaction."""
    # A counter and the session, for each write that needs them, although they can share them.
    return weight_of(steps_in(lower(write))) + is_sequential(write) + is_ephemeral(write)


def _numbered(
    requests: Sequence[WriteRequest], places: Sequence[int], counters: Counters
) -> Iterator[tuple[str, list[int], Numbers | None]]:
    """Yield each parent of sequential puts, with their places in order, and numbers for them."""
    by_parent: dict[str, list[int]] = {}
    for place in places:
        by_parent.setdefault(parent(requests[place].path), []).append(place)
    for above, ordered in by_parent.items():
        yield above, ordered, counters.take(above, len(ordered))


def _name(requests: list[WriteRequest], places: Sequence[int], numbers: Numbers) -> None:
    """Give sequential puts their paths."""
    for number, place in enumerate(places, numbers.first):
        request = requests[place]
        requests[place] = OtherForm(request, path=f"{request.path}{number:010}")


def _used_up(path: str) -> UnsupportedError:
    return UnsupportedError(
        f"the numbers for sequential puts below {parent(path)!r} are used up: a suffix has ten "
        f"digits",
        path=path,
    )


def _hot_depth(write: WriteRequest) -> int:
    """Return the most conditions that a write has in a hot group."""
    if write.options is None:
        return HOT_DEPTH
    return len(write.options.parts) or HOT_DEPTH + 1  # a delete of a version and a revision


def _conditions(request: WriteRequest) -> int:
    """Return how many conditions a write brings into a joint group."""
    return len(parts_of(request))
