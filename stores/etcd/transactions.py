"""The codecs of transactions: operations of several paths with one outcome.

A transaction joins the conditions of its parts, and decides them in order. Its parts change
different keys, so only one condition depends on the parts before it: that there is nothing below a
path that is deleted. Keys that earlier parts delete are left out of that range.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, Final, assert_never

from ...ops.errors import MetadataStoreError, NotEmptyError
from ...ops.operations import ABSENT, Part, TransactionOptions
from ...ops.paths import parent
from ...ops.results import Stat
from ..backend import Answer, PartRequest, WriteRequest
from ..refusals import refusal, transaction_refused
from .attempts import Attempt, Pending, Terms, there_of
from .codecs import below_of, conditions, state_of_reads
from .fields import (
    delete,
    exists,
    never,
    none_within,
    otherwise,
    otherwise_read,
    read_first,
    then,
    then_put,
    transaction,
    version_is,
)
from .leased_puts import Change, LeaseAwarePut, conditional, expected_revision, put_answer, put_form
from .protobuf import VARINT

__all__ = [
    "HotTransaction",
    "TransactionCodec",
    "changes_of",
    "crossing",
    "empty_after_all",
    "form_of",
    "operations_of",
    "parts_of",
]

_new = tuple.__new__


class TransactionCodec:
    """Transactions of several paths."""

    def form(self, request: WriteRequest, terms: Terms) -> Change:
        """Return a transaction as fields."""
        parts = _parts(request)
        there = there_of(request)
        compares: list[bytes] = []
        changes: list[bytes] = []
        reads: list[bytes] = []
        for index, part in enumerate(parts):
            key = (terms.prefix + part.path).encode()
            reads.append(otherwise_read(key))
            if part.kind == "put":
                more, change = put_form(part, key, terms, there=index in there)
                compares += more
                changes.append(change)
            elif part.kind == "check":
                compares += conditions(part, key)
            elif part.kind == "delete":
                compares += conditions(part, key) or (exists(key),)
                changes.append(then(delete(key)))
                for start, end in _rest_below(parts, index, terms.prefix):
                    compares.append(none_within(start, end))
                    reads.append(otherwise(read_first(start, end)))
                if _put_below(parts, index):
                    compares.append(never(key))
            else:
                assert_never(part.kind)
        return Change(compares, changes, reads)

    def nested(self, request: WriteRequest, terms: Terms) -> tuple[bytes, int, bool]:
        """Return a transaction as a field with its own outcome, and its weight."""
        compares, changes, reads = self.form(request, terms)
        weight = max(len(compares), len(changes), len(reads))
        return then(transaction((*compares, *changes, *reads))), weight, False

    def applied(
        self, request: WriteRequest, results: Iterator[Any], revision: int, terms: Terms
    ) -> Answer:
        """Return the answers of the parts of a transaction that was applied."""
        answers: list[Stat | None] = []
        for part in _parts(request):
            result = None if part.kind == "check" else next(results)
            is_put = part.kind == "put"
            answers.append(put_answer(part, result, revision, terms) if is_put else None)
        return answers

    def refused(
        self, request: WriteRequest, results: Iterator[Any], revision: int, terms: Terms
    ) -> Pending | None:
        """Return the error of a transaction that does not hold; ``None`` if all parts do."""
        return _refused(request, results)


class HotTransaction:
    """Transactions of checks and puts that expect versions, for a store without sessions."""

    @staticmethod
    def suits(request: WriteRequest) -> bool:
        """Say whether this form suits a transaction."""
        return type(options := request.options) is TransactionOptions and options.by_version

    def nested(self, request: WriteRequest, prefix: str) -> bytes:
        """Return a transaction as one field of the batch's transaction."""
        compares, changes, reads = [], [], []
        for part in _parts(request):
            key, expected = (prefix + part.path).encode(), part.expected_version
            assert expected is not None
            compares.append(version_is(key, expected + 1))
            reads.append(otherwise_read(key))
            if part.kind == "put":
                changes.append(then_put(key, part.value))
        body = b"".join([*compares, *changes, *reads])
        size = VARINT[len(body)]
        return b"\x12%b\x22%b%b" % (VARINT[1 + len(size) + len(body)], size, body)

    def of_nested(self, request: WriteRequest, result: Any, revision: int) -> Pending:
        """Return the answer of a transaction from the result of its field."""
        txn = result.response_txn
        if not txn.succeeded:
            return _refused(request, iter(txn.responses)) or Attempt(request)
        # Every part had the version that it expects, and no session can own its value.
        return [
            _new(Stat, (part.path, part.expected_version + 1, revision, None, None, False, False))
            if part.kind == "put" and part.expected_version is not None
            else None
            for part in _parts(request)
        ]


def changes_of(request: WriteRequest) -> list[str]:
    """Return the paths whose state shows whether a write was applied: all that it puts.

    Without puts, it is the path of its first delete; a write that changes nothing has none.
    """
    if request.kind != "transaction":
        return [request.path]
    parts = _parts(request)
    return [part.path for part in parts if part.kind == "put"] or [
        part.path for part in parts if part.kind == "delete"
    ][:1]


def form_of(request: WriteRequest) -> LeaseAwarePut | TransactionCodec:
    """Return the codec of a put or a transaction."""
    match request.kind:
        case "put":
            return _PUT
        case "transaction":
            return _TRANSACTION
        case "delete":
            raise AssertionError("a delete has one form, and no codec for others")
        case _:
            assert_never(request.kind)


_PUT: Final = LeaseAwarePut()
_TRANSACTION: Final = TransactionCodec()


def _refused(request: WriteRequest, results: Iterator[Any]) -> Pending | None:
    """Return the error, or the next attempt, of a transaction from the results of its reads."""
    parts = _parts(request)
    there = []
    error: MetadataStoreError | None = None
    index_of_error = 0
    for index, part in enumerate(parts):
        actual, revision_there, _ = state_of_reads((next(results),))
        occupied = False
        if part.kind == "delete":
            occupied = _put_below(parts, index)
            for _ in _rest_below(parts, index, ""):
                occupied |= len(next(results).response_range.kvs) > 0
        if error is None:
            error = refusal(part, actual, occupied, revision_there)
            index_of_error = index
        if part.kind == "put" and not conditional(part) and actual != ABSENT:
            there.append(index)
    if error is not None:
        return transaction_refused(index_of_error, error)
    if frozenset(there) != there_of(request):
        return Attempt(request, frozenset(there))
    return None


def _rest_below(parts: Sequence[Part], index: int, prefix: str) -> list[tuple[bytes, bytes]]:
    """Return the ranges below a part's path that must be empty when it is its turn.

    They leave out the keys that earlier parts delete, and what lies below such a key if that part
    leaves out keys itself: its own condition covers the rest. So the number of ranges grows with
    the number of parts, and not with its square.
    """
    below = parts[index].path + "/"
    gone = sorted(
        (prefix + part.path).encode()
        for part in parts[:index]
        if part.kind == "delete" and part.path.startswith(below)
    )
    holes = [(key, key + b"\0") for key in gone]
    holes += [
        (key + b"/", key + b"0")
        for key in gone
        if any(other.startswith(key + b"/") for other in gone)
    ]
    start, end = below_of(parts[index].path, prefix)
    ranges = []
    for low, high in sorted(holes):
        if start < low:
            ranges.append((start, low))
        start = max(start, high)
    if start < end:
        ranges.append((start, end))
    return ranges


def _put_below(parts: Sequence[Part], index: int) -> bool:
    """Say whether an earlier part puts a value below a part's path."""
    below = parts[index].path + "/"
    return any(part.kind == "put" and part.path.startswith(below) for part in parts[:index])


def empty_after_all(request: WriteRequest) -> MetadataStoreError | None:
    """Return the error of a transaction that was refused although its reads show no reason.

    etcd evaluates the conditions before it applies anything of the batch, but executes the reads in
    the middle of it. A neighbour in the batch may just have deleted the values below a path.
    """
    for index, part in enumerate(_parts(request)):
        if part.kind == "delete":
            error = NotEmptyError(f"{part.path!r} has values below it", path=part.path)
            return transaction_refused(index, error)
    return None


def crossing(writes: Sequence[tuple[int, WriteRequest]]) -> set[int]:
    """Return the places of transactions that must not share a request with those before them.

    etcd evaluates all conditions of a request before it applies anything. Two transactions that
    each delete a path and put a value below the path of the other would both hold, although in no
    order both can. Without a delete, or alone among single writes, a transaction always has a
    place in an order.
    """
    deleting = [
        (place, _parts(request))
        for place, request in writes
        if request.kind == "transaction"
        and isinstance(request.options, TransactionOptions)
        and not request.options.by_version
        and any(part.kind == "delete" for part in _parts(request))
    ]
    if len(deleting) < 2:
        return set()
    # For each path, the transactions that put something below it; and that delete it.
    puts_below: defaultdict[str, set[int]] = defaultdict(set)
    for place, parts in deleting:
        for part in parts:
            above = part.path
            while part.kind == "put" and above != "/":
                above = parent(above)
                puts_below[above].add(place)
    alone = set()
    for place, parts in deleting:
        below = [puts_below[part.path] for part in parts if part.kind == "delete"]
        if set().union(*below) - {place}:
            alone.add(place)
    return alone


def operations_of(parts: Sequence[Part]) -> int:
    """Return the number of operations that a transaction takes up in a request."""
    compares = reads = len(parts)
    for index, part in enumerate(parts):
        if part.options is not None and part.expected_version is not None:
            compares += expected_revision(part) is not None
        if part.kind == "delete":
            ranges = len(_rest_below(parts, index, ""))
            compares += ranges + _put_below(parts, index)
            reads += ranges
    return max(compares, reads)


def parts_of(request: WriteRequest) -> Sequence[PartRequest]:
    """Return the parts of a transaction; another write is its only part."""
    return (request,) if request.options is None else request.options.parts or (request,)


def _parts(request: WriteRequest) -> Sequence[Part]:
    assert request.options is not None
    return request.options.parts
