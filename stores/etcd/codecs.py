"""The codecs: each kind of operation in etcd's transactions, and in their responses.

Each kind has one codec. It encodes an operation, parses its part of the response, and reads the
result back from the store if the response was lost.

A write becomes up to three lists of fields of a ``TxnRequest``: the compares that guard it, the
change itself, and the reads that explain a refusal if a guard does not hold. Joined over a whole
batch, they make a flat transaction, which is applied as a whole or not at all. In a transaction of
its own, nested in the batch's, each operation has its own outcome.

The codecs of writes here are those of a store without sessions, and the fastest. ``leased_puts``
has those that mind sessions, ``transactions`` those of transactions.

The requests are written by hand. A nested conditional put takes 1.4 to 2.0 microseconds with
protobuf's messages and 0.6 as bytes; etcd itself needs 8 to 10. The field numbers are from etcd's
``rpc.proto``; the tests compare every form with the message classes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol, assert_never, get_args

from ...ops.errors import BadVersionError, MetadataStoreError
from ...ops.operations import ABSENT, ReadKind
from ...ops.results import GetResult, Stat
from ..backend import Answer, PartRequest, ReadRequest, WriteRequest
from ..refusals import refusal
from .attempts import LeaseDetached, Pending
from .fields import (
    ONE_BYTE,
    READ_HEAD,
    VERSION_HEAD,
    exists,
    otherwise_read,
    revision_is,
    then,
    then_put,
    transaction,
    version_is,
)
from .protobuf import VARINT, field

__all__ = [
    "DELETE",
    "FIRST_PAGE",
    "PUT",
    "READS",
    "ReadCodec",
    "WriteCodec",
    "below_of",
    "conditions",
    "guarded_put",
    "state_of_reads",
]

#: The names that a get_children asks for at first: most directories are smaller.
FIRST_PAGE: Final = 64

_new = tuple.__new__


class WriteCodec(Protocol):
    """One kind of writes of a single path."""

    def nested(self, request: WriteRequest, prefix: str) -> bytes:
        """Return it as one field of the batch's transaction, with its own outcome."""

    def of_nested(self, request: WriteRequest, result: Any, revision: int) -> Pending:
        """Return its answer from the result of its field."""


class ReadCodec(Protocol):
    """One kind of reads."""

    def encode(self, request: ReadRequest, prefix: str) -> bytes:
        """Return it as one range of a transaction."""

    def answer(self, request: ReadRequest, result: Any, owns: Callable[[int], bool]) -> Answer:
        """Return its answer from the result of its range.

        ``owns`` says whether a lease is that of the client's session.

        The result is ``None`` if the response is only the first page of the answer (``paged``).
        """

    @property
    def paged(self) -> bool: ...


class PutCodec:
    """Puts that need not mind leases. See ``leased_puts`` for the others."""

    def nested(self, request: WriteRequest, prefix: str) -> bytes:
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

    def of_nested(
        self, request: WriteRequest, result: Any, revision: int
    ) -> Answer | LeaseDetached:
        expected = request.expected_version
        if expected is None:
            # etcd counts versions from 1, so etcd's previous version is this package's new one.
            before = result.response_put.prev_kv
            version = before.version
            if before.lease:
                stat = Stat(request.path, version, revision, ephemeral=True)
                return LeaseDetached(stat, before.lease)
        else:
            txn = result.response_txn
            # In a joint group, the put itself is the result.
            if not txn.succeeded and not result.HasField("response_put"):
                return _refused(request, txn.responses)
            version = expected + 1
        return _new(Stat, (request.path, version, revision, None, None, False, False))


class DeleteCodec:
    """Deletes, also those that expect a revision. Only this codec here has a flat form."""

    def nested(self, request: WriteRequest, prefix: str) -> bytes:
        return field(b"\x12", field(b"\x22", b"".join(self.flat(request, prefix))))

    def flat(self, request: WriteRequest, prefix: str) -> tuple[bytes, bytes, bytes]:
        """Return the compares, the change, and two reads that show the reason of a refusal."""
        varint = VARINT
        key = (prefix + request.path).encode()
        size, size_below = varint[len(key)], varint[len(key) + 1]
        guards = b"".join(conditions(request, key)) or exists(key)
        # A compare over a range holds if it does for every key in it, and no key has version 0.
        empty = b"\x1a%b%b/\x20\x00\x82\x04%b%b0" % (size_below, key, size_below, key)
        compare = b"%b\x0a%b%b" % (guards, varint[len(empty)], empty)
        itself = b"\x0a%b%b" % (size, key)
        change = field(b"\x12", b"\x1a%b%b" % (varint[len(itself)], itself))
        some_below = b"\x0a%b%b/\x12%b%b0\x18\x01\x40\x01" % (size_below, key, size_below, key)
        read_below = b"\x0a%b%b" % (varint[len(some_below)], some_below)
        return compare, change, otherwise_read(key) + field(b"\x1a", read_below)

    def of_nested(self, request: WriteRequest, result: Any, revision: int) -> Answer:
        txn = result.response_txn
        return None if txn.succeeded else _refused(request, txn.responses)

    def refused(self, request: WriteRequest, results: Iterator[Any]) -> MetadataStoreError | None:
        """Return the error of a delete from its reads; ``None`` if they show no reason for one."""
        return _refusal(request, (next(results), next(results)))


class _GetHeads(dict[int, bytes]):
    """The bytes before the key of a get in its field of a transaction, by the key's length."""

    def __missing__(self, length: int) -> bytes:
        key = b"\x0a" + VARINT[length]
        size = len(key) + length
        head = b"\x0a" + VARINT[size] + key
        self[length] = head = b"\x12" + VARINT[len(head) + length] + head
        return head


_GET_HEAD: Final = _GetHeads()


class _Get:
    paged = False

    def encode(self, request: ReadRequest, prefix: str) -> bytes:
        key = (prefix + request.path).encode()
        return _GET_HEAD[len(key)] + key

    def answer(self, request: ReadRequest, result: Any, owns: Callable[[int], bool]) -> Answer:
        kvs = result.response_range.kvs
        if not kvs:
            return None
        kv = kvs[0]
        new, path, lease = _new, request.path, kv.lease
        owned = lease != 0 and owns(lease)
        stat = new(Stat, (path, kv.version - 1, kv.mod_revision, None, None, lease != 0, owned))
        return new(GetResult, (kv.value, stat))


class _Exists:
    paged = False

    def encode(self, request: ReadRequest, prefix: str) -> bytes:
        key = (prefix + request.path).encode()
        return _range(b"\x0a%b%b\x48\x01" % (VARINT[len(key)], key))  # count_only

    def answer(self, request: ReadRequest, result: Any, owns: Callable[[int], bool]) -> Answer:
        return bool(result.response_range.count > 0)


class _GetChildren:
    paged = True

    def encode(self, request: ReadRequest, prefix: str) -> bytes:
        varint = VARINT
        below, end = below_of(request.path, prefix)
        return _range(
            b"\x0a%b%b\x12%b%b\x18%b\x40\x01"
            % (varint[len(below)], below, varint[len(end)], end, varint[FIRST_PAGE])
        )

    def answer(self, request: ReadRequest, result: Any, owns: Callable[[int], bool]) -> Answer:
        return None


def _read_codec(kind: ReadKind) -> ReadCodec:
    match kind:
        case "get":
            return _Get()
        case "exists":
            return _Exists()
        case "get_children":
            return _GetChildren()
        case _:
            assert_never(kind)


PUT: Final = PutCodec()
DELETE: Final = DeleteCodec()
READS: Final[Mapping[ReadKind, ReadCodec]] = {
    kind: _read_codec(kind) for kind in get_args(ReadKind)
}


def below_of(path: str, prefix: str) -> tuple[bytes, bytes]:
    """Return the range of keys below a path: from ``path/`` up to ``path0``, as 0 follows /."""
    key = (prefix + ("" if path == "/" else path)).encode()
    return key + b"/", key + b"0"


def conditions(request: PartRequest, key: bytes) -> Sequence[bytes]:
    """Return the compares for the version and the revision that a write expects of its key."""
    compares = []
    if request.expected_version is not None:
        compares.append(version_is(key, request.expected_version + 1))
    if request.options is not None and request.options.expected_revision is not None:
        compares.append(revision_is(key, request.options.expected_revision))
    return compares


def state_of_reads(results: Sequence[Any]) -> tuple[int, int, bool]:
    """Return what the reads show: version, revision, whether there are values below the path."""
    kvs = results[0].response_range.kvs
    occupied = len(results) > 1 and len(results[1].response_range.kvs) > 0
    return (kvs[0].version - 1, kvs[0].mod_revision, occupied) if kvs else (ABSENT, 0, occupied)


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


def _range(body: bytes) -> bytes:
    varint = VARINT
    body_size = varint[len(body)]
    return b"\x12%b\x0a%b%b" % (varint[len(body) + 1 + len(body_size)], body_size, body)


def _refusal(request: WriteRequest, results: Sequence[Any]) -> MetadataStoreError | None:
    actual, revision, occupied = state_of_reads(results)
    return refusal(request, actual, occupied, revision)


def _refused(request: WriteRequest, results: Sequence[Any]) -> MetadataStoreError:
    # etcd evaluates the guards before it applies anything of the batch, but executes this read in
    # the middle of it. A neighbour in the batch may just have deleted the values below. The read
    # then shows no reason any more, so the reason was values below.
    actual, revision, occupied = state_of_reads(results)
    reason = refusal(request, actual, occupied, revision) or refusal(
        request, actual, True, revision
    )
    return reason or BadVersionError(
        f"{request.path!r} is not at version {request.expected_version}",
        path=request.path,
        expected=request.expected_version,
    )
