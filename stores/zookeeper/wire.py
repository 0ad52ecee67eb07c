"""ZooKeeper's requests and answers as bytes.

kazoo's own request classes build one object and one byte string for every field, and know neither
``create2`` inside a multi nor the multi-read. Here a request of a thousand operations is one list
of byte strings joined once, and its answer is read in place.

Source of the layout: ``zookeeper.jute``, ``MultiOperationRecord``, ``MultiResponse`` and
``ZooDefs.OpCode`` of ZooKeeper 3.9.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct, iter_unpack
from typing import Final, NamedTuple, TypeAlias

__all__ = [
    "ANYONE",
    "CREATE",
    "CREATE2",
    "CREATOR",
    "DELETE",
    "EMPTY_MULTI",
    "END",
    "EXISTS",
    "GET_CHILDREN",
    "GET_DATA",
    "HEADER_SIZE",
    "MULTI",
    "MULTI_READ",
    "NO_DATA",
    "SET_DATA",
    "STAT_SIZE",
    "SYNC",
    "ZNode",
    "acl",
    "ephemeral",
    "failures",
    "finished",
    "header_and_length",
    "length",
    "multi_read",
    "parse_multi_read",
    "parse_single",
    "read_created",
    "read_updated",
    "single_read",
    "version_field",
]

# ZooDefs.OpCode.
CREATE: Final = 1
DELETE: Final = 2
EXISTS: Final = 3
GET_DATA: Final = 4
SET_DATA: Final = 5
GET_CHILDREN: Final = 8
SYNC: Final = 9
MULTI: Final = 14
CREATE2: Final = 15
MULTI_READ: Final = 22

_ERROR: Final = -1

_int = Struct("!i")
_multi_header = Struct("!i?i")
_header_and_length = Struct("!i?ii")
# Stat: czxid, mzxid, ctime, mtime, version, cversion, aversion, ephemeralOwner, dataLength,
# numChildren, pzxid.
_stat = Struct("!qqqqiiiqiiq")
_created = Struct("!8xqqq")
_updated = Struct("!qqqqi8xq")

#: Ends the list of operations in a multi or multi-read.
END: Final = _multi_header.pack(-1, True, -1)
#: A multi of no operations, which changes nothing.
EMPTY_MULTI: Final = END
#: The length that stands for null, which ZooKeeper tells from empty.
NO_DATA: Final = _int.pack(-1)

#: Sizes in bytes within an answer.
HEADER_SIZE: Final = _multi_header.size
STAT_SIZE: Final = _stat.size
_FAILURE_SIZE: Final = HEADER_SIZE + 4

length = version_field = _int.pack


def header_and_length(opcode: int, path_bytes: int) -> bytes:
    """Return the head of an operation in a multi, up to the first byte of its path."""
    return _header_and_length.pack(opcode, False, -1, path_bytes)


def _text(text: str) -> bytes:
    raw = text.encode()
    return _int.pack(len(raw)) + raw


def acl(scheme: str, name: str) -> bytes:
    """Return a list of one access right, all permissions for ``scheme:name``, and no flags.

    It is what follows the value in a create: the node is persistent.
    """
    return _int.pack(1) + _int.pack(31) + _text(scheme) + _text(name) + _int.pack(0)


def ephemeral(persistent: bytes) -> bytes:
    """Return the same access rights for a node that ends with the session."""
    return persistent[:-4] + _int.pack(1)


#: Everybody may do everything, as with kazoo and ZooKeeper's command line.
ANYONE: Final = acl("world", "anyone")
#: Only who is logged in as the one who made the node.
CREATOR: Final = acl("auth", "")


class ZNode(NamedTuple):
    """What the server says of a node; ``size`` is -1 where the value is null.

    ``value`` is ``None`` where it is null or was not asked for.
    """

    value: bytes | None
    size: int
    created_zxid: int
    modified_zxid: int
    created: int
    modified: int
    version: int
    owner: int
    children: int


#: One answer to a read: a node, the names below it, or the server's error code.
Found: TypeAlias = ZNode | list[str] | int


def single_read(path: bytes) -> bytes:
    """Return the body of a getData, exists or getChildren without a watch."""
    return _int.pack(len(path)) + path + b"\0"


def multi_read(reads: Sequence[tuple[int, bytes]]) -> bytes:
    """Return the body of a multi-read of ``(opcode, path)``, the opcode getData or getChildren."""
    parts: list[bytes] = []
    for opcode, path in reads:
        parts += (_header_and_length.pack(opcode, False, -1, len(path)), path, b"\0")
    parts.append(END)
    return b"".join(parts)


def parse_single(opcode: int, buffer: bytes, offset: int) -> ZNode | list[str]:
    """Read the answer to a getData, exists or getChildren that was found."""
    return _parse(opcode, buffer, offset)[0]


def parse_multi_read(buffer: bytes, offset: int) -> list[Found]:
    """Read the answer to a multi-read: one entry for each operation."""
    found: list[Found] = []
    append = found.append
    head, stat = _header_and_length.unpack_from, _stat.unpack_from
    new = tuple.__new__
    # What ends the list ends the packet, too. Written out for getData, because a call for each of
    # a thousand costs as much as the rest.
    end = len(buffer) - HEADER_SIZE
    while offset < end:
        opcode, _, _, number = head(buffer, offset)
        offset += HEADER_SIZE
        if opcode == GET_DATA:
            offset += 4
            value = None
            if number >= 0:
                value = buffer[offset : offset + number]
                offset += number
            czxid, mzxid, ctime, mtime, version, _, _, owner, _, children, _ = stat(buffer, offset)
            offset += STAT_SIZE
            append(
                new(
                    ZNode,
                    (value, number, czxid, mzxid, ctime, mtime, version, owner, children),
                )
            )
        elif opcode == _ERROR:
            append(number)
            offset += 4
        else:
            entry, offset = _parse(opcode, buffer, offset)
            append(entry)
    return found


def _parse(opcode: int, buffer: bytes, offset: int) -> tuple[ZNode | list[str], int]:
    if opcode == GET_CHILDREN:
        (count,) = _int.unpack_from(buffer, offset)
        offset += 4
        names = []
        for _ in range(count):
            (size,) = _int.unpack_from(buffer, offset)
            offset += 4 + size
            names.append(buffer[offset - size : offset].decode())
        return names, offset
    value = None
    if opcode == GET_DATA:
        (size,) = _int.unpack_from(buffer, offset)
        offset += 4
        if size >= 0:
            value = buffer[offset : offset + size]
            offset += size
    czxid, mzxid, ctime, mtime, version, _, _, owner, data_length, children, _ = _stat.unpack_from(
        buffer, offset
    )
    if opcode == EXISTS:
        # 0 for null and for empty alike: who needs to know asks with getData.
        size = data_length
    return (
        ZNode(value, size, czxid, mzxid, ctime, mtime, version, owner, children),
        offset + STAT_SIZE,
    )


def failures(buffer: bytes, offset: int, count: int) -> list[int] | None:
    """Return the error code of each operation of a multi that failed, ``None`` if it did not.

    The operations before the one to blame have 0 (rolled back), those after it -2 (runtime
    inconsistency).
    """
    if _int.unpack_from(buffer, offset)[0] != _ERROR or finished(buffer, offset):
        return None
    end = offset + count * _FAILURE_SIZE
    return [code for *_, code in iter_unpack("!i?ii", buffer[offset:end])]


def finished(buffer: bytes, offset: int) -> bool:
    """Whether the list of answers ends at ``offset``, and the packet with it."""
    return len(buffer) == offset + HEADER_SIZE and buffer[offset + 4] == 1


#: Returns mzxid, ctime and mtime of the Stat at an offset.
read_created = _created.unpack_from
#: Returns czxid, mzxid, ctime, mtime, version and ephemeralOwner of the Stat at an offset.
read_updated = _updated.unpack_from
