"""ZooKeeper's requests and answers as bytes.

kazoo's own request classes build one object and one byte string for every field, and do not support
the multi-read. Here a request of a thousand operations is one list of byte strings, joined once,
and its answer is read in place.

This module uses nothing that only some versions of ZooKeeper have. In particular, no multi contains
a ``create2``: before 3.7 its answer has no Stat (ZOOKEEPER-4026), and other servers of the protocol
do not know it.

Each ``parse_`` function but ``parse_zxid`` expects exactly the answer to one request, to its last
byte. It raises ``struct.error`` or ``ValueError`` for anything else. ``exchanges.parse_reply`` is
the only caller, and turns these into errors of this package.

Source of the layout: ``zookeeper.jute``, ``MultiOperationRecord``, ``MultiResponse`` and
``ZooDefs.OpCode`` of ZooKeeper 3.5 to 3.9.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from struct import Struct
from typing import Final, Literal, NamedTuple, TypeAlias

from ....ops.acceleration import accelerated, bind
from ....ops.results import GetResult, Stat

__all__ = [
    "ADD_WATCH",
    "ANYONE",
    "CHANGED",
    "CHECK",
    "CREATE",
    "CREATED",
    "DELETE",
    "DELETED",
    "EMPTY_MULTI",
    "END",
    "EPHEMERAL",
    "EXISTS",
    "GET_ACL",
    "GET_CHILDREN",
    "GET_CHILDREN_AND_STAT",
    "GET_DATA",
    "MULTI",
    "MULTI_READ",
    "NO_DATA",
    "PARENT",
    "PROBE",
    "REMOVE_WATCHES",
    "REPLACE",
    "SEQUENTIAL",
    "SET_ACL",
    "SET_DATA",
    "SYNC",
    "SYNC_ROOT",
    "Done",
    "Family",
    "Found",
    "Refused",
    "Right",
    "Op",
    "Opcode",
    "Update",
    "WriteOpcode",
    "ZNode",
    "acl",
    "add_watch",
    "ephemeral",
    "header_and_length",
    "length",
    "multi_read",
    "parse_family",
    "parse_multi",
    "parse_multi_read",
    "parse_names_and_family",
    "parse_reads",
    "parse_single",
    "parse_zxid",
    "remove_watch",
    "sequential",
    "single_read",
    "watching_read",
    "version_field",
]

# ZooDefs.OpCode.
CREATE: Final = 1
DELETE: Final = 2
EXISTS: Final = 3
GET_DATA: Final = 4
SET_DATA: Final = 5
GET_ACL: Final = 6
SET_ACL: Final = 7
GET_CHILDREN: Final = 8
SYNC: Final = 9
GET_CHILDREN_AND_STAT: Final = 12
CHECK: Final = 13
MULTI: Final = 14
MULTI_READ: Final = 22
REMOVE_WATCHES: Final = 18
ADD_WATCH: Final = 106

# The kinds of events (Watcher.Event.EventType).
CREATED: Final = 1
DELETED: Final = 2
CHANGED: Final = 3

# AddWatchMode and Watcher.WatcherType: a watch of a node and all below it, which stays after it has
# fired; and a watch of any type.
_PERSISTENT_RECURSIVE: Final = 1
_ANY_TYPE: Final = 3
_CHILDREN_TYPE: Final = 1

# Creates among the ops of a multi that do not belong to a plain put.
#: A parent, which answers no request.
PARENT: Final = -1
#: A node that ends with the session.
EPHEMERAL: Final = -2
#: A node whose name gets a suffix from the server; it may be ephemeral, too.
SEQUENTIAL: Final = -3
#: A node that the next op deletes. It shows that there was none.
PROBE: Final = -4
#: Not in a multi, only in plans: a delete and an ephemeral node in its place.
REPLACE: Final = -5

_ERROR: Final = -1

_int = Struct("!i")
_multi_header = Struct("!i?i")
_header_and_length = Struct("!i?ii")
# Stat: czxid, mzxid, ctime, mtime, version, cversion, aversion, ephemeralOwner, dataLength,
# numChildren, pzxid.
_stat = Struct("!qqqqiiiqiiq")
# The header of a setData's result, and the needed fields of its Stat.
_update = Struct("!i5xqqqqi8xq")
# The header of an answer: xid, zxid, error.
_zxid = Struct("!4xq4x")

#: Ends the list of operations in a multi or multi-read.
END: Final = _multi_header.pack(-1, True, -1)
#: A multi of no operations, which changes nothing.
EMPTY_MULTI: Final = END
#: The body of a sync.
SYNC_ROOT: Final = _int.pack(1) + b"/"
_SUFFIX: Final = re.compile(rb"\d{10}|-\d{9,10}")
#: The length that means null, which ZooKeeper distinguishes from empty.
NO_DATA: Final = _int.pack(-1)

# Sizes in bytes within an answer.
_HEADER_SIZE: Final = _multi_header.size
_STAT_SIZE: Final = _stat.size
_FAILURE_SIZE: Final = _HEADER_SIZE + 4
_UPDATE_SIZE: Final = _HEADER_SIZE + _STAT_SIZE
_CREATED_SIZE: Final = _HEADER_SIZE + 4  # without the path

length = version_field = _int.pack


def header_and_length(opcode: int, path_bytes: int) -> bytes:
    """Return the beginning of an operation in a multi, up to the first byte of its path."""
    return _header_and_length.pack(opcode, False, -1, path_bytes)


def _text(text: str) -> bytes:
    raw = text.encode()
    return _int.pack(len(raw)) + raw


class Right(NamedTuple):
    """An entry of an access control list: the permissions, as bits, of ``scheme:name``."""

    permissions: int
    scheme: str
    name: str


def acl(rights: Sequence[Right]) -> bytes:
    """Return a list of access rights, and no flags.

    This follows the value in a create. The node is persistent.
    """
    entries = (_int.pack(bits) + _text(scheme) + _text(name) for bits, scheme, name in rights)
    return b"".join((_int.pack(len(rights)), *entries, _int.pack(0)))


def ephemeral(persistent: bytes) -> bytes:
    """Return the same access rights for a node that ends with the session."""
    return persistent[:-4] + _int.pack(1)


def sequential(persistent: bytes, fleeting: bool) -> bytes:
    """Return the same access rights for a node whose name gets a suffix.

    ``fleeting`` says whether it ends with the session.
    """
    return persistent[:-4] + _int.pack(3 if fleeting else 2)


#: Everyone may do everything, as with kazoo and ZooKeeper's command line.
ANYONE: Final = acl([Right(31, "world", "anyone")])


class ZNode(NamedTuple):
    """A node as the server describes it. ``size`` is -1 if the value is null.

    ``value`` is ``None`` if it is null or was not requested.
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


#: One answer to a read: a node, the names below it, or the server's error code. A get may have its
#: result in place of the node.
Found: TypeAlias = ZNode | GetResult | list[str] | int


class Family(NamedTuple):
    """What a node's Stat says about its children.

    ``suffix`` is the suffix of the next sequential node below it, ``changed_zxid`` the last zxid at
    which a node below it was created or deleted.
    """

    created_zxid: int
    changed_zxid: int
    suffix: int


#: The operations of a multi that execute a write: CREATE, DELETE, SET_DATA, CHECK, and creates of
#: other kinds.
Opcode: TypeAlias = Literal[1, 2, 5, 13, -2, -3, -4]
#: The ways to execute a write.
WriteOpcode: TypeAlias = Opcode | Literal[-5]

#: One operation of a multi: its opcode or a kind of create, a number for the caller, and the length
#: of its path in bytes.
Op: TypeAlias = tuple[Opcode | Literal[-1], int, int]

#: The result of a setData: opcode, czxid, mzxid, ctime, mtime, version and ephemeralOwner.
Update: TypeAlias = tuple[int, int, int, int, int, int, int]


class Done(NamedTuple):
    """The results of a multi that was applied.

    Attributes:
        updates: the results of its setData, in order.
        suffixes: what the server has appended to the paths of its sequential nodes, in order.
    """

    updates: Sequence[Update]
    suffixes: Sequence[str] = ()


class Refused(NamedTuple):
    """A multi was not applied because of its operations: the server's code for each.

    The operations before the failed one have 0 (rolled back), those after it -2 (runtime
    inconsistency).
    """

    codes: Sequence[int]


def single_read(path: bytes) -> bytes:
    """Return the body of a getData, exists or getChildren without a watch."""
    return _int.pack(len(path)) + path + b"\0"


def watching_read(path: bytes) -> bytes:
    """Return the body of the same with a watch, which fires once."""
    return _int.pack(len(path)) + path + b"\1"


def add_watch(path: bytes) -> bytes:
    """Return the body of a request for the events of a node and of all nodes below it."""
    return _int.pack(len(path)) + path + _int.pack(_PERSISTENT_RECURSIVE)


def remove_watch(path: bytes, *, of_children: bool = False) -> bytes:
    """Return the body of a request that removes the watches of a node, or those of its children."""
    return _int.pack(len(path)) + path + _int.pack(_CHILDREN_TYPE if of_children else _ANY_TYPE)


@accelerated
def multi_read(reads: Sequence[tuple[int, bytes]], /) -> bytes:
    """Return the body of a multi-read of ``(opcode, path)``, the opcode getData or getChildren."""
    parts: list[bytes] = []
    for opcode, path in reads:
        parts += (_header_and_length.pack(opcode, False, -1, len(path)), path, b"\0")
    parts.append(END)
    return b"".join(parts)


def parse_single(opcode: int, buffer: bytes, offset: int) -> ZNode | list[str]:
    """Read a successful answer to a getData, exists or getChildren."""
    found: ZNode | list[str]
    if opcode == GET_CHILDREN:
        found, offset = _names(buffer, offset)
    else:
        value, size = None, 0
        if opcode == GET_DATA:
            (size,) = _int.unpack_from(buffer, offset)
            offset += 4
            if size >= 0:
                value = buffer[offset : offset + size]
                offset += size
            elif size < -1:
                raise ValueError(f"a value of {size} bytes")
        czxid, mzxid, ctime, mtime, version, _, _, owner, data_length, children, _ = (
            _stat.unpack_from(buffer, offset)
        )
        offset += _STAT_SIZE
        if opcode == EXISTS:
            # 0 means null or empty; only getData distinguishes them.
            size = data_length
        found = ZNode(value, size, czxid, mzxid, ctime, mtime, version, owner, children)
    if offset != len(buffer):
        raise ValueError(f"{len(buffer) - offset} bytes too many")
    return found


def parse_reads(
    reads: Sequence[tuple[int, bytes]], paths: Sequence[str | None], buffer: bytes, offset: int
) -> list[Found]:
    """Read the answer to a multi-read, or to a single read that was sent without one."""
    if len(reads) == 1:
        return [parse_single(reads[0][0], buffer, offset)]
    return parse_multi_read(reads, paths, buffer, offset)


@accelerated
def parse_multi_read(
    reads: Sequence[tuple[int, bytes]],
    paths: Sequence[str | None],
    buffer: bytes,
    offset: int,
    /,
) -> list[Found]:
    """Read the answer to a multi-read: one entry for each of its ``reads``.

    ``paths`` has the caller's path for each get, and ``None`` for other reads; it may be empty. The
    value of a persistent node becomes the result of its get.
    """
    found: list[Found] = []
    append = found.append
    head, stat = _header_and_length.unpack_from, _stat.unpack_from
    new = tuple.__new__
    # getData is written out here, because a call for each of a thousand costs as much as the rest.
    for k, (asked, _) in enumerate(reads):
        opcode, _, _, number = head(buffer, offset)
        offset += _HEADER_SIZE
        if opcode == GET_DATA == asked:
            offset += 4
            value = None
            if number >= 0:
                value = buffer[offset : offset + number]
                offset += number
            elif number < -1:
                raise ValueError(f"a value of {number} bytes")
            czxid, mzxid, ctime, mtime, version, _, _, owner, _, children, _ = stat(buffer, offset)
            offset += _STAT_SIZE
            path = paths[k] if paths else None
            if path is None or value is None or owner != 0:
                fields = (value, number, czxid, mzxid, ctime, mtime, version, owner, children)
                append(new(ZNode, fields))
            else:
                result = new(Stat, (path, version, mzxid, ctime, mtime, False, False))
                append(new(GetResult, (value, result)))
        elif opcode == _ERROR:
            append(number)
            offset += 4
        elif opcode == GET_CHILDREN == asked:
            names, offset = _names(buffer, offset)
            append(names)
        else:
            raise _misfit(opcode, asked)
    _check_end(buffer, offset)
    return found


def _names(buffer: bytes, offset: int) -> tuple[list[str], int]:
    (count,) = _int.unpack_from(buffer, offset)
    if count < 0:
        raise ValueError(f"{count} names")
    offset += 4
    names = []
    # Each length is checked before the next name, so memory grows only with the data received.
    for _ in range(count):
        (size,) = _int.unpack_from(buffer, offset)
        if size < 0:
            raise ValueError(f"a name of {size} bytes")
        offset += 4 + size
        names.append(buffer[offset - size : offset].decode())
    if len({*names, ""}) != count + 1 or "/" in "".join(names):
        raise ValueError("a list of names that no node has")
    return names, offset


def parse_family(buffer: bytes, offset: int) -> Family:
    """Read a successful answer to an exists, for what it says about the children."""
    czxid, _, _, _, _, cversion, _, _, _, children, pzxid = _stat.unpack_from(buffer, offset)
    if len(buffer) != offset + _STAT_SIZE:
        raise ValueError(f"{len(buffer) - offset - _STAT_SIZE} bytes too many")
    # The server counts creations, and reports twice their number less the present children
    # (DataNode.copyStat), in 32 bits.
    return Family(czxid, pzxid, (cversion + children) % (1 << 32) // 2)


def parse_names_and_family(buffer: bytes, offset: int) -> tuple[list[str], Family]:
    """Read a successful answer to a getChildren with the node's Stat."""
    names, offset = _names(buffer, offset)
    return names, parse_family(buffer, offset)


@accelerated
def parse_multi(ops: Sequence[Op], buffer: bytes, offset: int, /) -> Done | Refused:
    """Read the answer to a multi: its results, or the reason why it failed."""
    if _int.unpack_from(buffer, offset)[0] == _ERROR:
        return _failures(len(ops), buffer, offset)
    updates: list[Update] = []
    suffixes: list[str] = []
    append = updates.append
    update, head = _update.unpack_from, _header_and_length.unpack_from
    header = _multi_header.unpack_from
    for opcode, _, path_bytes in ops:
        if opcode == SET_DATA:
            left = update(buffer, offset)
            if left[0] != SET_DATA:
                raise _misfit(left[0], opcode)
            append(left)
            offset += _UPDATE_SIZE
        elif opcode != DELETE and opcode != CHECK:
            done, _, _, number = head(buffer, offset)
            if done != CREATE or number != path_bytes or opcode == SEQUENTIAL:
                suffixes.append(_suffix(opcode, path_bytes, done, number, buffer, offset))
                offset += number - path_bytes
            offset += _CREATED_SIZE + path_bytes
        else:
            done, _, _ = header(buffer, offset)
            if done != opcode:
                raise _misfit(done, opcode)
            offset += _HEADER_SIZE
    _check_end(buffer, offset)
    return Done(updates, suffixes)


def _suffix(
    opcode: int, path_bytes: int, done: int, number: int, buffer: bytes, offset: int
) -> str:
    """Return what the server has appended to the path of a sequential node.

    Raises:
        ValueError: the result is not that of the creation of such a node.
    """
    if opcode != SEQUENTIAL or done != CREATE:
        raise _misfit(done, CREATE)
    start = offset + _CREATED_SIZE
    raw = buffer[start + path_bytes : start + max(number, 0)]
    # "%010d" of a signed number of 32 bits, which may overflow.
    if not _SUFFIX.fullmatch(raw):
        raise ValueError(f"{raw!r:.80} where a suffix of ten digits should be")
    return raw.decode()


def _misfit(done: int, opcode: int) -> ValueError:
    return ValueError(f"a result of type {done} that is not of its operation, of type {opcode}")


def _failures(count: int, buffer: bytes, offset: int) -> Refused:
    codes = []
    for _ in range(count):
        opcode, _, _, code = _header_and_length.unpack_from(buffer, offset)
        if opcode != _ERROR:
            raise _misfit(opcode, _ERROR)
        codes.append(code)
        offset += _FAILURE_SIZE
    _check_end(buffer, offset)
    return Refused(codes)


def _check_end(buffer: bytes, offset: int) -> None:
    """Check that the list of results ends at ``offset``, and that the packet does, too."""
    opcode, last, _ = _multi_header.unpack_from(buffer, offset)
    if opcode != -1 or not last or len(buffer) != offset + _HEADER_SIZE:
        raise ValueError(f"{len(buffer) - offset} bytes where the results should end")


def parse_zxid(buffer: bytes) -> int:
    """Return the zxid of an answer; for a write, this is the write's own."""
    zxid: int = _zxid.unpack_from(buffer)[0]
    return zxid


# The compiled functions call these.
bind(Done=Done, GetResult=GetResult, Stat=Stat, ZNode=ZNode)
bind(parse_names=_names, parse_suffix=_suffix)
