"""The short way of frequent writes: while there are no sessions, or with shared conditions.

Most batches have nothing else. So these loops take requests as they are, have compiled twins, and
leave the other writes to ``forms``, whose bytes are the same.

The requests are written by hand. A nested conditional put takes 1.4 to 2.0 microseconds with
protobuf's messages and 0.6 as bytes; etcd itself needs 8 to 10. The field numbers are from etcd's
``rpc.proto``; the tests compare every form with the message classes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from ....ops.acceleration import accelerated, bind
from ....ops.operations import TransactionOptions
from ....ops.results import Stat
from ....ops.steps import PartRequest, lower
from ...backend import WriteRequest
from ..wire.batches import parsed
from ..wire.fields import (
    ONE_BYTE,
    READ_HEAD,
    VARINT,
    VERSION_HEAD,
    delete,
    exists,
    none_within,
    otherwise,
    otherwise_read,
    read_first,
    then,
    then_put,
    transaction,
    unleased,
    version_is,
)
from ..wire.protos import messages
from .forms import applied, form_of, refused, unexplained
from .pending import LeaseDetached, Pending

__all__ = [
    "Response",
    "guarded_put",
    "joint_changes",
    "joint_compares",
    "lease_compares",
    "nested_write",
    "read_response",
]

_new = tuple.__new__


@accelerated("etcd_writes")
def nested_write(requests: Iterable[WriteRequest], prefix: str) -> bytes:
    """Return each write as one field of the batch's transaction. Puts mind no leases.

    So either there are none, or the group has a condition for each put. Puts have no options.
    """
    return b"".join(
        [
            _put(request, prefix) if request.kind == "put" else _nested(request, prefix)
            for request in requests
        ]
    )


def _put(request: WriteRequest, prefix: str) -> bytes:
    """Return a put without options."""
    varint = VARINT
    expected = request.expected_version
    key = (prefix + request.path).encode()
    value = request.value or b""
    if expected is not None:
        return guarded_put(key, value, expected + 1, b"")
    # Not nested, because it cannot fail; ``prev_kv`` shows its new version.
    key_size, value_size = varint[len(key)], varint[len(value)]
    size = len(key_size) + len(key) + len(value_size) + len(value) + 4
    body_size = varint[size]
    return b"\x12%b\x12%b\x0a%b%b\x12%b%b\x20\x01" % (
        varint[size + 1 + len(body_size)],
        body_size,
        key_size,
        key,
        value_size,
        value,
    )


def guarded_put(key: bytes, value: bytes, version: int, extra: bytes) -> bytes:
    """Return a put on the condition of a version, as one field with its own outcome.

    Args:
        key: the key.
        value: the value.
        version: the version that the key must have, as etcd counts: 0 means that it is missing.
        extra: as for ``fields.put``.
    """
    if version >= ONE_BYTE:
        fields = (version_is(key, version), then_put(key, value, extra), otherwise_read(key))
        return then(transaction(fields))
    # The same in one step, because this is a conditional put's whole cost on its way out.
    varint = VARINT
    size = len(key)
    put = b"\x0a%b%b\x12%b%b%b" % (varint[size], key, varint[len(value)], value, extra)
    put_size = varint[len(put)]
    body = b"%b%b\x20%c\x12%b\x12%b%b%b%b\x40\x01" % (
        VERSION_HEAD[size],
        key,
        version,
        varint[1 + len(put_size) + len(put)],
        put_size,
        put,
        READ_HEAD[size],
        key,
    )
    body_size = varint[len(body)]
    return b"\x12%b\x22%b%b" % (varint[1 + len(body_size) + len(body)], body_size, body)


def _nested(request: WriteRequest, prefix: str) -> bytes:
    """Return a write other than a put."""
    if request.kind == "delete" and request.options is None:
        key, expected = (prefix + request.path).encode(), request.expected_version
        start, end = key + b"/", key + b"0"
        fields = [
            exists(key) if expected is None else version_is(key, expected + 1),
            none_within(start, end),
            then(delete(key)),
            otherwise_read(key),
            otherwise(read_first(start, end)),
        ]
        return then(transaction(fields))
    options = request.options
    if type(options) is not TransactionOptions or not options.by_version:
        return form_of(lower(request), prefix).nested()
    compares, changes, reads = [], [], []
    for part in options.parts:
        key, expected = (prefix + part.path).encode(), part.expected_version
        assert expected is not None
        compares.append(version_is(key, expected + 1))
        reads.append(otherwise_read(key))
        if part.value is not None:
            changes.append(then_put(key, part.value))
    return then(transaction([*compares, *changes, *reads]))


@accelerated("etcd_compares")
def joint_compares(requests: Iterable[PartRequest], prefix: str) -> bytes:
    """Return the conditions of puts and checks that expect versions."""
    compares = []
    for request in requests:
        assert request.expected_version is not None
        key = (prefix + request.path).encode()
        compares.append(version_is(key, request.expected_version + 1))
    return b"".join(compares)


@accelerated("etcd_lease_compares")
def lease_compares(requests: Iterable[WriteRequest], prefix: str) -> bytes:
    """Return the conditions that no key of these puts has a lease."""
    return b"".join([unleased((prefix + request.path).encode()) for request in requests])


@accelerated("etcd_changes")
def joint_changes(requests: Iterable[WriteRequest], prefix: str, extra: bytes = b"") -> bytes:
    """Return the changes of puts that expect versions; for ``extra`` see ``fields.put``."""
    return b"".join(
        [
            then_put((prefix + request.path).encode(), request.value or b"", extra)
            for request in requests
        ]
    )


class Header(NamedTuple):
    """The header of a response."""

    revision: int


class Response:
    """A transaction's response in which the answers to most groups are already there.

    Attributes:
        header: its header.
        succeeded: whether the transaction was applied.
        responses: for each group that has named its writes and was applied, the list of its
            answers; otherwise etcd's message.
    """

    __slots__ = ("header", "responses", "succeeded")

    def __init__(self, revision: int, responses: list[Any], succeeded: bool = True) -> None:
        self.header = Header(revision)
        self.responses = responses
        self.succeeded = succeeded


@accelerated("etcd_response")
def read_response(answer: bytes, groups: Sequence[Sequence[WriteRequest] | None]) -> Response:
    """Return the response to groups of writes.

    Args:
        answer: the response.
        groups: for each result of the transaction if it was applied, the writes that a group names
            (``Group.answered``), or ``None`` if the result is something else.

    Raises:
        DecodeError: the answer is no response.
        LookupError: the answer does not fit the writes.
        ValueError: it does not fit them, or has no revision.
    """
    response = parsed(answer)
    revision, results = response.header.revision, [*response.responses]
    if not response.succeeded:
        return Response(revision, results, succeeded=False)
    for place, (writes, result) in enumerate(zip(groups, results, strict=True)):
        txn = result.response_txn
        if writes is not None and txn.succeeded:
            results[place] = [
                _answer(write, found, revision)
                for write, found in zip(writes, txn.responses, strict=True)
            ]
    return Response(revision, results)


def _answer(write: WriteRequest, result: Any, revision: int) -> Pending:
    """Return the answer of a write from the result of its field."""
    txn, expected = result.response_txn, write.expected_version
    if write.kind == "put":
        if expected is None:
            # etcd counts versions from 1, so etcd's previous version is this package's new one.
            before = result.response_put.prev_kv
            if before.lease:
                stat = Stat(write.path, before.version, revision, ephemeral=True)
                return LeaseDetached(stat, before.lease)
            return _new(Stat, (write.path, before.version, revision, None, None, False, False))
        # In a joint group, the put itself is the result.
        if txn.succeeded or result.HasField("response_put"):
            return _new(Stat, (write.path, expected + 1, revision, None, None, False, False))
    options = write.options
    if type(options) is TransactionOptions and options.by_version and txn.succeeded:
        # Every part had the version that it expects, and no session can own its value.
        return [
            _new(Stat, (part.path, part.expected_version + 1, revision, None, None, False, False))
            if part.value is not None and part.expected_version is not None
            else None
            for part in options.parts
        ]
    lowered = lower(write)
    if txn.succeeded:
        return applied(lowered, iter(txn.responses), revision, _never_owned)
    return refused(write, lowered, iter(txn.responses)) or unexplained(write, lowered)


def _never_owned(_lease: int) -> bool:
    """Say that no lease is the client's own: it has no session, or the write is a delete."""
    return False


def _infrequent_answer(write: WriteRequest, result: bytes, revision: int) -> Pending:
    """Return what ``_answer`` does, from the bytes of a result."""
    return _answer(write, messages.ResponseOp.FromString(result), revision)


bind(
    Stat=Stat,
    etcd_Response=Response,
    etcd_result=messages.ResponseOp.FromString,
    etcd_write_answer=_infrequent_answer,
)
