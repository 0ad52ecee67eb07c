"""The forms of writes: each step in etcd's transactions, by its condition and its effect.

A form has up to three lists of fields of a ``TxnRequest``: the compares that guard a write, its
changes, and the reads that explain a refusal if a guard does not hold. Joined over a whole batch,
they make a flat transaction. In a transaction of its own, nested in the batch's, each write has its
own outcome. The functions here also read the answers, and find them out if the response was lost.
``hot`` has the short way of frequent writes, with the same bytes.

An unconditional put must not take an ephemeral value from its session. So where there may be
sessions, it is sent under the condition that its key has no lease. If that does not hold, it is
sent again in a form that keeps the lease, which knows that a value is *there*. A
put that expects a version keeps the lease at once, because its key exists. An ephemeral value is
created under the condition that its key is missing; a put of an existing key changes the value
only. ``plan`` adds the condition that the session still exists.

A transaction decides its steps in order. They change different keys, so only one condition depends
on earlier steps: that there is nothing below a path that is deleted. Keys that earlier steps delete
are left out of that range.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from typing import Any, Final, NamedTuple, assert_never

from ....ops.errors import MetadataStoreError, NotEmptyError
from ....ops.operations import ABSENT, Check, Part
from ....ops.results import Stat
from ....ops.steps import At, Effect, Lowered, PutNext, PutValue, Step, lower, step_of, steps_in
from ...backend import Answer, WriteRequest
from ...refusals import State, decide, transaction_refused
from ..wire.fields import (
    KEEP_LEASE,
    RETURN_OLD,
    below_of,
    delete,
    exists,
    never,
    none_within,
    otherwise,
    otherwise_read,
    read_first,
    revision_is,
    then,
    then_put,
    transaction,
    unleased,
    version_is,
)
from .pending import OtherForm, Pending, Terms, is_by_version, there_of

__all__ = [
    "PUTS",
    "Form",
    "Unclear",
    "answer_at_revision",
    "answer_from_before",
    "applied",
    "changes_of",
    "crossing",
    "form_of",
    "operations_of",
    "refused",
    "sets_key",
    "unexplained",
    "weight_of",
]

_new = tuple.__new__
#: The effects that set a key to a value of their own.
PUTS: Final = (PutValue, PutNext)


class Form(NamedTuple):
    """A write as fields of a ``TxnRequest``.

    Attributes:
        compares: its conditions.
        changes: the operations on success.
        reads: the operations on failure, which show the reason.
    """

    compares: Sequence[bytes]
    changes: Sequence[bytes]
    reads: Sequence[bytes]

    @property
    def weight(self) -> int:
        """The number of operations that it takes up in a flat transaction."""
        return max(len(self.compares), len(self.changes), len(self.reads))

    def nested(self) -> bytes:
        """Return it as one field of the batch's transaction, with its own outcome."""
        return then(transaction([*self.compares, *self.changes, *self.reads]))


def in_session(effect: Effect) -> bool:
    """Say whether an effect creates a value that ends with the session."""
    return isinstance(effect, PUTS) and effect.ephemeral


# Sending


def form_of(  # noqa: C901, PLR0912 - the table of conditions and effects, in one piece
    lowered: Lowered,
    prefix: str,
    *,
    on_lease: bytes = b"",
    there: frozenset[int] = frozenset(),
) -> Form:
    """Return a write as fields.

    Args:
        lowered: its steps.
        prefix: precedes every path in the keys.
        on_lease: the part of a put that binds its key to the session's lease.
        there: the places of the steps that were found to have a value at their path.
    """
    compares: list[bytes] = []
    changes: list[bytes] = []
    reads: list[bytes] = []
    steps = steps_in(lowered)
    for index, step in enumerate(steps):
        path, condition, effect = step
        key = (prefix + path).encode()
        extra = KEEP_LEASE + RETURN_OLD
        match condition:
            case At():
                if condition.version is not None:
                    compares.append(version_is(key, condition.version + 1))
                if condition.revision is not None:
                    compares.append(revision_is(key, condition.revision))
            case "absent":
                compares.append(version_is(key, 0))
                extra = on_lease if in_session(effect) else b""
            case "exists":
                compares.append(exists(key))
            case "any":
                if index in there:
                    compares.append(exists(key))
                elif in_session(effect):
                    compares.append(version_is(key, 0))
                    extra = on_lease
                else:
                    compares.append(unleased(key))
                    extra = RETURN_OLD
            case _:
                assert_never(condition)
        reads.append(otherwise_read(key))
        match effect:
            case PutValue() | PutNext():
                changes.append(then_put(key, effect.value, extra))
            case "nothing":
                pass
            case "delete":
                changes.append(then(delete(key)))
                for start, end in _rest_below(steps, index, prefix):
                    compares.append(none_within(start, end))
                    reads.append(otherwise(read_first(start, end)))
                if _put_below(steps, index):
                    compares.append(never(key))
            case _:
                assert_never(effect)
    return Form(compares, changes, reads)


def operations_of(parts: Sequence[Part]) -> int:
    """Return the number of operations that a transaction takes up in a request."""
    if _may_delete(parts) or any(part.options for part in parts):
        return weight_of([*map(step_of, parts)])
    return len(parts)  # Most: each part has one condition. `weight_of` says the same.


def weight_of(steps: Sequence[Step]) -> int:
    """Return the weight of the form of a write, without making it."""
    # Each change and each read has a condition, so of the three, these are the most.
    compares = len(steps)
    for index, (_, condition, effect) in enumerate(steps):
        match condition:
            case At():
                compares += None not in condition
            case "absent" | "exists" | "any":
                pass
            case _:
                assert_never(condition)
        match effect:
            case "delete":
                compares += len(_rest_below(steps, index, "")) + _put_below(steps, index)
            case PutValue() | PutNext() | "nothing":
                pass
            case _:
                assert_never(effect)
    return compares


# Reading the answer


def applied(
    lowered: Lowered, results: Iterator[Any], revision: int, owns: Callable[[int], bool]
) -> Answer:
    """Return the answer of a write that was applied, from the results of its changes.

    Args:
        lowered: its steps.
        results: the results.
        revision: the revision at which it was applied.
        owns: says whether a lease is that of the client's session.
    """
    if isinstance(lowered, Step):
        return _result(lowered, results, revision, owns)
    return [_result(step, results, revision, owns) for step in lowered]


def _result(
    step: Step, results: Iterator[Any], revision: int, owns: Callable[[int], bool]
) -> Stat | None:
    path, condition, effect = step
    match effect:
        case PutValue() | PutNext():
            ephemeral, response = effect.ephemeral, next(results).response_put
        case "nothing":
            return None
        case "delete":
            next(results)
            return None
        case _:
            assert_never(effect)
    version, owned = 0, ephemeral
    if response.HasField("prev_kv"):
        # etcd counts versions from 1, so etcd's previous version is this package's new one.
        version, lease = response.prev_kv.version, response.prev_kv.lease
        ephemeral, owned = lease != 0, lease != 0 and owns(lease)
    elif isinstance(condition, At) and condition.version is not None:
        version = condition.version + 1
    return _new(Stat, (path, version, revision, None, None, ephemeral, owned))


def refused(write: WriteRequest, lowered: Lowered, results: Iterator[Any]) -> Pending | None:
    """Return the error of a write, or its other form, if it was not applied.

    It is ``None`` if the results of its reads show no reason.
    """
    steps = steps_in(lowered)
    there = []
    error: MetadataStoreError | None = None
    index_of_error = 0
    for index, step in enumerate(steps):
        occupied, kvs = False, next(results).response_range.kvs
        if step.effect == "delete":
            occupied = _put_below(steps, index)
            for _ in _rest_below(steps, index, ""):
                occupied |= len(next(results).response_range.kvs) > 0
        if error is None:
            error = decide(step, _state(kvs[0] if kvs else None, occupied=occupied))
            index_of_error = index
        if kvs and step.condition == "any":
            there.append(index)
    if error is not None:
        if isinstance(lowered, Step):
            # The path of a sequential put is the client's choice. It chooses another one.
            return OtherForm(write) if isinstance(lowered.effect, PutNext) else error
        return transaction_refused(index_of_error, error)
    return OtherForm(write, frozenset(there)) if frozenset(there) != there_of(write) else None


def unexplained(write: WriteRequest, lowered: Lowered) -> Pending:
    """Return the answer of a write that was refused for a reason that is gone already.

    etcd evaluates the conditions before it applies anything of the batch, but executes the reads in
    the middle of it. A neighbour in the batch may just have deleted the values below a path.
    """
    for index, (path, _, effect) in enumerate(steps_in(lowered)):
        if effect == "delete":
            error = NotEmptyError(f"{path!r} has values below it", path=path)
            return error if isinstance(lowered, Step) else transaction_refused(index, error)
    return OtherForm(write, there_of(write))


def _state(kv: Any | None, *, occupied: bool = False) -> State:
    """Return the state of a path, by its key."""
    if kv is None:
        return State(ABSENT, None, occupied)
    return State(kv.version - 1, kv.mod_revision, occupied)


# Finding the answer out, if the response was lost
#
# At the revision of a transaction, each path shows whether its write was applied there: nothing
# else has that revision. A write that was not applied is either refused by the state that it found,
# or sent again: it changed nothing, so its outcome may as well be that of the next round.


class Unclear(Enum):
    """Shows that the revision of a transaction alone does not reveal the answer of a write."""

    READ_BEFORE = "read at the revision before its transaction's"


def changes_of(lowered: Lowered) -> list[str]:
    """Return the paths whose state shows whether a write was applied: all that it puts.

    Without puts, it is the path of its first delete; a write that changes nothing has none.
    """
    steps = steps_in(lowered)
    puts = [step.path for step in steps if sets_key(step.effect)]
    return puts or [step.path for step in steps if step.effect != "nothing"][:1]


def answer_at_revision(
    write: WriteRequest, kvs: Sequence[Any | None], revision: int, terms: Terms
) -> Pending | Unclear:
    """Return the answer of a write from its keys at the revision of its transaction.

    Args:
        write: the write.
        kvs: the keys of ``changes_of``; ``None`` for a missing one.
        revision: the revision.
        terms: those of the transaction.
    """
    if not kvs:
        return OtherForm(write)  # It changes nothing.
    kv, lowered = kvs[0], lower(write)
    if any(sets_key(step.effect) for step in steps_in(lowered)):
        if kv is not None and kv.mod_revision == revision:
            found = iter(kvs)
            answers = [
                _stat(step.path, next(found), terms) if sets_key(step.effect) else None
                for step in steps_in(lowered)
            ]
            return answers[0] if isinstance(lowered, Step) else answers
    elif kv is None:
        return Unclear.READ_BEFORE  # At a revision, a deleted path looks like one never put.
    return _not_applied(write, lowered, _state(kv))


def answer_from_before(write: WriteRequest, there: bool, occupied: bool) -> Pending:
    """Return the answer of a write from the state of a path before its transaction.

    Args:
        write: a write that deletes, and puts nothing, with a path that is missing afterwards.
        there: whether there was a value at the path.
        occupied: whether there were values below it.
    """
    lowered = lower(write)
    if there:
        nothing: list[Stat | None] = [None for _ in steps_in(lowered)]
        return None if isinstance(lowered, Step) else nothing
    return _not_applied(write, lowered, _state(None, occupied=occupied))


def _not_applied(write: WriteRequest, lowered: Lowered, state: State) -> Pending:
    """Return the error, or the other form, of a write that has changed nothing."""
    again = OtherForm(write, there_of(write))
    if not isinstance(lowered, Step) or isinstance(lowered.effect, PutNext):
        return again
    return decide(lowered, state) or again


def sets_key(effect: Effect) -> bool:
    """Say whether a step sets its key, whose revision then shows that it was applied."""
    match effect:
        case PutValue() | PutNext():
            return True
        case "nothing" | "delete":
            return False
        case _:
            assert_never(effect)


def _stat(path: str, kv: Any, terms: Terms) -> Stat:
    lease = kv.lease
    owned = lease != 0 and terms.owns(lease)
    return Stat(path, kv.version - 1, kv.mod_revision, None, None, lease != 0, owned)


# Deletes in transactions


def _rest_below(steps: Sequence[Step], index: int, prefix: str) -> list[tuple[bytes, bytes]]:
    """Return the ranges below a step's path that must be empty when it is its turn.

    They leave out the keys that earlier steps delete, and what lies below such a key if that step
    leaves out keys itself: its own condition covers the rest. So the number of ranges grows with
    the number of steps, and not with its square.
    """
    start, end = below_of(steps[index].path, prefix)
    below = steps[index].path + "/"
    gone = [
        (prefix + step.path).encode()
        for step in steps[:index]
        if step.path.startswith(below) and step.effect == "delete"
    ]
    if not gone:
        return [(start, end)]  # Most.
    holes = [(key, key + b"\0") for key in gone]
    holes += [
        (key + b"/", key + b"0")
        for key in gone
        if any(other.startswith(key + b"/") for other in gone)
    ]
    ranges = []
    for low, high in sorted(holes):
        if start < low:
            ranges.append((start, low))
        start = max(start, high)
    if start < end:
        ranges.append((start, end))
    return ranges


def _put_below(steps: Sequence[Step], index: int) -> bool:
    """Say whether an earlier step puts a value below a step's path."""
    below = steps[index].path + "/"
    return any(step.path.startswith(below) and sets_key(step.effect) for step in steps[:index])


def _may_delete(parts: Sequence[Part]) -> bool:
    """Say whether a transaction may delete something: not with puts and checks only."""
    return any([part.value is None and not isinstance(part, Check) for part in parts])  # noqa: C419


def crossing(writes: Iterable[tuple[int, WriteRequest]]) -> set[int]:
    """Return the places of transactions that must not share a request with each other.

    etcd evaluates all conditions of a request before it applies anything. Two transactions that
    each delete a path and put a value below the path of the other would both hold, although in no
    order both can. Without a delete, or alone among single writes, a transaction always has a
    place in an order.
    """
    transactions = [
        (place, parts)
        for place, write in writes
        if write.options is not None
        and (parts := write.options.parts)
        and not is_by_version(write)
        and _may_delete(parts)
    ]
    if len(transactions) < 2:
        return set()
    # The paths that are deleted and put, each with the transaction, of those that delete.
    deleted: list[tuple[str, int]] = []
    put: list[tuple[str, int]] = []
    for place, parts in transactions:
        steps = [*map(step_of, parts)]
        if gone := [(step.path, place) for step in steps if step.effect == "delete"]:
            deleted += gone
            put += [(step.path, place) for step in steps if sets_key(step.effect)]
    put.sort()
    return {place for path, place in deleted if _others_below(put, path, place)}


def _others_below(put: Sequence[tuple[str, int]], path: str, place: int) -> bool:
    """Say whether another transaction puts a value below a path. ``put`` is sorted."""
    below = path + "/"
    for index in range(bisect_left(put, (below, 0)), len(put)):
        other, owner = put[index]
        if not other.startswith(below):
            break
        if owner != place:
            return True
    return False
