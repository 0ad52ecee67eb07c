"""The parts of a transaction, as bytes: integers and fields, and compares, changes and reads.

A compare is a complete field of a ``TxnRequest``. A change or a read is a ``RequestOp``; ``then``
and ``otherwise`` make it a field of the branch on success or on failure. The field numbers are from
etcd's ``rpc.proto``; the tests compare every form with the message classes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

__all__ = [
    "KEEP_LEASE",
    "ONE_BYTE",
    "READ_HEAD",
    "RETURN_OLD",
    "VARINT",
    "VERSION_HEAD",
    "below_of",
    "delete",
    "exists",
    "field",
    "leased",
    "never",
    "none_within",
    "on_lease",
    "otherwise",
    "otherwise_read",
    "put",
    "read_first",
    "read_key",
    "rebind",
    "revision_is",
    "then",
    "then_put",
    "transaction",
    "unleased",
    "value_below",
    "version_is",
]


class _Varints(dict[int, bytes]):
    """Protobuf's base-128 integers by value. The table keeps small ones; others are computed."""

    def __missing__(self, number: int) -> bytes:
        encoded = bytearray()
        rest = number
        while rest > 127:
            encoded.append(rest & 127 | 128)
            rest >>= 7
        encoded.append(rest)
        found = bytes(encoded)
        if number < 4096:
            self[number] = found
        return found


VARINT: Final = _Varints()


def field(tag: bytes, body: bytes) -> bytes:
    """Return a field that contains bytes or a message."""
    return tag + VARINT[len(body)] + body


#: For ``put``: the key keeps its lease. The key must exist.
KEEP_LEASE: Final = b"\x30\x01"
#: For ``put``: the response has the key as it was, with its old value.
RETURN_OLD: Final = b"\x20\x01"


def on_lease(lease: int) -> bytes:
    """Return the part of a ``put`` that binds its key to a lease."""
    return b"\x18" + VARINT[lease]


class _VersionHeads(dict[int, bytes]):
    """The bytes before the key in ``version_is`` of a small version, by the key's length."""

    def __missing__(self, length: int) -> bytes:
        key = b"\x1a" + VARINT[length]
        self[length] = head = b"\x0a" + VARINT[len(key) + length + 2] + key
        return head


#: The beginnings of ``version_is``, for versions that take one byte.
VERSION_HEAD: Final = _VersionHeads()
#: Versions below this take one byte.
ONE_BYTE: Final = 128


def version_is(key: bytes, version: int) -> bytes:
    """The key has this version, as etcd counts: 0 means that it is missing."""
    if version < ONE_BYTE:
        return b"%b%b\x20%c" % (VERSION_HEAD[len(key)], key, version)
    return field(b"\x0a", b"\x1a%b%b\x20%b" % (VARINT[len(key)], key, VARINT[version]))


def exists(key: bytes) -> bytes:
    """The key exists: its version is greater (1) than 0."""
    return field(b"\x0a", b"\x08\x01\x1a%b%b\x20\x00" % (VARINT[len(key)], key))


def never(key: bytes) -> bytes:
    """A compare that holds in no state: the version is less (2) than 0."""
    return field(b"\x0a", b"\x08\x02\x1a%b%b\x20\x00" % (VARINT[len(key)], key))


def revision_is(key: bytes, revision: int) -> bytes:
    """The key exists, and this is the revision (2) of its last change."""
    body = b"\x10\x02\x1a%b%b\x30%b" % (VARINT[len(key)], key, VARINT[revision])
    return field(b"\x0a", body)


def unleased(key: bytes) -> bytes:
    """The key has no lease (4), or does not exist."""
    size = VARINT[len(key)]
    return b"\x0a%b\x10\x04\x1a%b%b\x40\x00" % (VARINT[5 + len(size) + len(key)], size, key)


def leased(key: bytes, lease: int) -> bytes:
    """The key exists on this lease (4)."""
    return field(b"\x0a", b"\x10\x04\x1a%b%b\x40%b" % (VARINT[len(key)], key, VARINT[lease]))


def value_below(key: bytes, value: bytes) -> bytes:
    """The key exists, and its value (3) is less (2) than this one."""
    sizes = VARINT[len(key)], VARINT[len(value)]
    return field(b"\x0a", b"\x08\x02\x10\x03\x1a%b%b\x3a%b%b" % (sizes[0], key, sizes[1], value))


def none_within(start: bytes, end: bytes) -> bytes:
    """No key exists from ``start`` up to ``end``.

    A compare over a range holds if it does for every key in it, and no key has version 0.
    """
    sizes = VARINT[len(start)], VARINT[len(end)]
    return field(b"\x0a", b"\x1a%b%b\x20\x00\x82\x04%b%b" % (sizes[0], start, sizes[1], end))


def below_of(path: str, prefix: str) -> tuple[bytes, bytes]:
    """Return the range of keys below a path: from ``path/`` up to ``path0``, as 0 follows /."""
    key = (prefix + ("" if path == "/" else path)).encode()
    return key + b"/", key + b"0"


def put(key: bytes, value: bytes, extra: bytes = b"") -> bytes:
    """Set a key. ``extra`` joins ``KEEP_LEASE``, ``RETURN_OLD`` and ``on_lease``."""
    body = b"\x0a%b%b\x12%b%b%b" % (VARINT[len(key)], key, VARINT[len(value)], value, extra)
    return b"\x12%b%b" % (VARINT[len(body)], body)


def then_put(key: bytes, value: bytes, extra: bytes = b"") -> bytes:
    """Return a ``put`` as a field of the branch on success."""
    varint = VARINT
    body = b"\x0a%b%b\x12%b%b%b" % (varint[len(key)], key, varint[len(value)], value, extra)
    size = varint[len(body)]
    return b"\x12%b\x12%b%b" % (varint[1 + len(size) + len(body)], size, body)


def rebind(key: bytes, lease: int) -> bytes:
    """Bind a key, which must exist, to a lease; it keeps its value."""
    body = b"\x0a%b%b%b\x28\x01" % (VARINT[len(key)], key, on_lease(lease))
    return field(b"\x12", body)


def delete(key: bytes) -> bytes:
    """Remove a key."""
    return field(b"\x1a", field(b"\x0a", key))


def read_key(key: bytes, *, whole: bool = False) -> bytes:
    """Read a key: its version and revision, and as a whole also its value and its lease."""
    return field(b"\x0a", field(b"\x0a", key) + (b"" if whole else b"\x40\x01"))


class _ReadHeads(dict[int, bytes]):
    """The bytes before the key in ``otherwise_read``, by the key's length."""

    def __missing__(self, length: int) -> bytes:
        key = b"\x0a" + VARINT[length]
        inner = b"\x0a" + VARINT[len(key) + length + 2] + key
        self[length] = head = b"\x1a" + VARINT[len(inner) + length + 2] + inner
        return head


#: The beginnings of ``otherwise_read``.
READ_HEAD: Final = _ReadHeads()


def otherwise_read(key: bytes) -> bytes:
    """Return the ``read_key`` of a key as a field of the branch on failure."""
    return b"%b%b\x40\x01" % (READ_HEAD[len(key)], key)


def read_first(start: bytes, end: bytes) -> bytes:
    """Read the first key from ``start`` up to ``end``, without its value."""
    sizes = VARINT[len(start)], VARINT[len(end)]
    body = b"\x0a%b%b\x12%b%b\x18\x01\x40\x01" % (sizes[0], start, sizes[1], end)
    return field(b"\x0a", body)


def then(operation: bytes) -> bytes:
    """Return an operation as a field of the branch on success."""
    return field(b"\x12", operation)


def otherwise(operation: bytes) -> bytes:
    """Return an operation as a field of the branch on failure."""
    return field(b"\x1a", operation)


def transaction(fields: Iterable[bytes]) -> bytes:
    """Return a nested transaction as an operation, from its compares and branches."""
    body = b"".join(fields)
    return b"\x22%b%b" % (VARINT[len(body)], body)
