"""The codec of puts that mind sessions.

An unconditional put must not take an ephemeral value from its session. So it is sent under the
condition that its key has no lease. If that does not hold, it is sent again in a form that keeps
the lease (see ``plan``). A put that expects a version uses that form at once, because its key
exists.

An ephemeral value is created under the condition that its key is missing; a put of an existing key
changes the value only. The plan adds the condition that the session still exists.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, Final, NamedTuple

from ...ops.operations import ABSENT
from ...ops.results import Stat
from ..backend import Answer, PartRequest, WriteRequest
from ..refusals import refusal
from .attempts import Attempt, Creation, Pending, Terms, there_of
from .codecs import conditions, guarded_put, state_of_reads
from .fields import (
    KEEP_LEASE,
    RETURN_OLD,
    exists,
    otherwise,
    otherwise_read,
    put,
    then,
    then_put,
    transaction,
    unleased,
    version_is,
)

__all__ = ["Change", "LeaseAwarePut", "conditional", "expected_revision", "put_answer", "put_form"]

# A larger value is not sent in two forms at a time.
_SMALL: Final = 16 * 1024

_new = tuple.__new__


class Change(NamedTuple):
    """A write, or a part of a transaction, as fields of a ``TxnRequest``.

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
        return then(transaction(chain(self.compares, self.changes, self.reads)))


class LeaseAwarePut:
    """Puts of one path, in the form that suits its state and its session."""

    def form(self, request: WriteRequest, terms: Terms) -> Change:
        """Return a put as fields."""
        key = (terms.prefix + request.path).encode()
        there = isinstance(request, Attempt) and bool(request.there)
        if there and terms.nested and len(request.value or b"") <= _SMALL:
            return self._in_both_forms(request, key, terms)
        compares, change = put_form(request, key, terms, there=there)
        return Change(compares, (change,), (otherwise_read(key),))

    def nested(self, request: WriteRequest, terms: Terms) -> tuple[bytes, int, bool]:
        """Return a put as a field with its own outcome, its weight, and whether it creates."""
        options, expected = request.options, request.expected_version
        ephemeral = options is not None and options.ephemeral
        if request.__class__ is Creation:
            expected = ABSENT
        elif (
            (options is not None and options.expected_revision is not None)
            or (expected is None and not ephemeral)
            or there_of(request)
        ):
            form = self.form(request, terms)
            return form.nested(), form.weight, False
        key, value = (terms.prefix + request.path).encode(), request.value or b""
        if expected is None or expected == ABSENT:
            extra = terms.on_lease if ephemeral else b""
            return guarded_put(key, value, 0, extra), 1, True
        return guarded_put(key, value, expected + 1, KEEP_LEASE + RETURN_OLD), 1, False

    def _in_both_forms(self, request: WriteRequest, key: bytes, terms: Terms) -> Change:
        """Return an unconditional put that cannot fail, with one form in each branch."""
        (compare,), change = put_form(request, key, terms, there=False)
        kept = put(key, request.value or b"", KEEP_LEASE + RETURN_OLD)
        return Change((compare,), (change,), (otherwise(kept),))

    def applied(
        self, request: WriteRequest, results: Iterator[Any], revision: int, terms: Terms
    ) -> Answer:
        """Return the answer of a put that was applied, from the result of its change."""
        return put_answer(request, next(results), revision, terms)

    def refused(
        self, request: WriteRequest, results: Iterator[Any], revision: int, terms: Terms
    ) -> Pending | None:
        """Return the answer of a put whose conditions may not hold; ``None`` if they do."""
        result = next(results)
        if result.HasField("response_put"):  # the other form
            return put_answer(request, result, revision, terms)
        actual, revision_there, _ = state_of_reads((result,))
        if isinstance(request, Creation):
            return None if actual == ABSENT else Attempt(request)
        if error := refusal(request, actual, False, revision_there):
            return error
        # The put suits the state, but its form may not.
        there = frozenset((0,)) if actual != ABSENT else frozenset[int]()
        if not conditional(request) and there != there_of(request):
            return Attempt(request, there)
        return None


def put_form(
    request: PartRequest, key: bytes, terms: Terms, *, there: bool
) -> tuple[Sequence[bytes], bytes]:
    """Return the conditions and the change of a put.

    Args:
        request: the put.
        key: its key.
        terms: those of the transaction.
        there: whether an unconditional put was found to have a value at its path.
    """
    value, ephemeral = request.value or b"", _ephemeral(request)
    if isinstance(request, Creation):
        expected: int | None = ABSENT
    else:
        expected = request.expected_version
    compares: Sequence[bytes]
    if expected == ABSENT or (ephemeral and not there and not conditional(request)):
        compares = [version_is(key, 0)]
        extra = terms.on_lease if ephemeral else b""
    elif conditional(request):
        compares, extra = conditions(request, key), KEEP_LEASE + RETURN_OLD
    elif there:
        compares, extra = (exists(key),), KEEP_LEASE + RETURN_OLD
    else:
        compares, extra = (unleased(key),), RETURN_OLD
    return compares, then_put(key, value, extra)


def put_answer(request: PartRequest, result: Any, revision: int, terms: Terms) -> Stat:
    """Return the stat of a put that was applied, from the result of its change."""
    response = result.response_put
    if response.HasField("prev_kv"):
        # etcd counts versions from 1, so etcd's previous version is this package's new one.
        before = response.prev_kv
        lease = before.lease
        stat = (request.path, before.version, revision, None, None, lease != 0)
        return _new(Stat, (*stat, lease != 0 and terms.owns(lease)))
    ephemeral = _ephemeral(request)
    return _new(Stat, (request.path, 0, revision, None, None, ephemeral, ephemeral))


def expected_revision(request: PartRequest) -> int | None:
    """Return the revision that a write expects of its key; ``None`` if it expects none."""
    return None if request.options is None else request.options.expected_revision


def conditional(request: PartRequest) -> bool:
    """Say whether a write expects a version or a revision of its key."""
    return request.expected_version is not None or expected_revision(request) is not None


def _ephemeral(request: PartRequest) -> bool:
    return request.options is not None and request.options.ephemeral
