"""Finds out, when a store is opened, whether the server does what this package relies on.

Other servers speak ZooKeeper's protocol, too. ClickHouse Keeper reads null data as empty data, so
that parents without a value would look like values; reports each change below a recursive watch
with the path of the watch; and answers failed parts of a multi-read in a form of its own. The first
two would be wrong without an error. What such a server lacks is tried, not guessed from its name,
except where the client may not write.
"""

from __future__ import annotations

import os
from functools import partial
from typing import Final

from ....ops.errors import AuthenticationError, MetadataStoreError, UnsupportedError
from ..wire import jute
from ..wire.errors import CONNECTION_LOSS, INVALID_ACL, NO_AUTH, UNIMPLEMENTED, is_unreadable
from ..wire.exchanges import Reply, parse_reply
from ..wire.kazoo_client import EVENT_PATH
from ..wire.nodes import NULL, SKIPPED
from .connection import ZooKeeperConnection

__all__ = ["check_reads", "check_writes"]

# A node of ClickHouse Keeper's own, and one that no server has.
_KEEPER: Final = b"/keeper/api_version"
_MISSING: Final = b"/zookeeper/.batchkeeper"


def check_reads(connection: ZooKeeperConnection, deadline: float) -> None:
    """Refuse a server without ZooKeeper's multi-reads.

    A ZooKeeper before 3.6 drops the connection when it receives one.

    Raises:
        UnsupportedError: the server does not do what this package needs.
        MetadataStoreError: it gave no answer.
    """
    reads = [(jute.GET_DATA, _KEEPER), (jute.GET_DATA, _MISSING)]
    reply: Reply = CONNECTION_LOSS
    while reply == CONNECTION_LOSS:
        (reply,) = connection.exchange(
            [(jute.MULTI_READ, jute.multi_read(reads))], deadline, repeat=True
        )
    if reply == UNIMPLEMENTED:
        raise UnsupportedError(
            f"ZooKeeper 3.6 or newer is needed: the server at {connection.addresses} lacks "
            "multi-reads"
        )
    answer = parse_reply(reply, partial(jute.parse_multi_read, reads, []))
    if isinstance(answer, MetadataStoreError):
        if is_unreadable(answer):
            raise _unfit(connection, "it answers multi-reads in a form of its own") from answer
        raise answer
    if isinstance(answer, int):
        raise connection.refused(answer, "/")
    if isinstance(answer[0], jute.ZNode):
        raise _unfit(connection, "it is ClickHouse Keeper, which reads null data as empty data")


def check_writes(connection: ZooKeeperConnection, chroot: str, acl: bytes, deadline: float) -> None:
    """Refuse a server without null data, or whose recursive watches do not tell what has changed.

    The client creates two nodes, reads them, and deletes them, all in one round trip. If it may not
    create them, nothing is checked but the permissions of new nodes.

    Raises:
        AuthenticationError: the server refuses ``acl``, or it keeps this client from its own nodes.
        UnsupportedError: the server does not do what this package needs.
        MetadataStoreError: it gave no answer.
    """
    # All clients of this package ignore such nodes.
    upper = f"{chroot}{SKIPPED}-{os.urandom(8).hex()}".encode()
    lower = upper + b"/below"
    reads = [(jute.GET_DATA, upper)]
    fleeting = jute.ephemeral(acl)
    # The first two ops refuse all if the client may create nodes here, but not delete them. Those
    # after the third do so if it may not do the same with its own nodes.
    created = [_create(upper, acl), _delete(upper), _create(upper, acl), _set(upper)]
    created += [_create(lower, fleeting), _delete(lower), _create(lower, fleeting), jute.END]
    deleted = [_delete(lower), _delete(upper), jute.END]
    before = connection.number
    with connection.own_events() as packets:
        replies = connection.exchange(
            [
                (jute.ADD_WATCH, jute.add_watch(upper)),
                (jute.MULTI, b"".join(created)),
                (jute.GET_DATA, jute.single_read(upper)),
                (jute.MULTI_READ, jute.multi_read(reads)),
                (jute.MULTI, b"".join(deleted)),
                (jute.REMOVE_WATCHES, jute.remove_watch(upper)),
            ],
            deadline,
            repeat=True,
        )
    for reply in replies:
        if isinstance(reply, MetadataStoreError):
            raise reply
    _check_acl(connection, chroot, replies[1], len(upper), len(lower))
    if replies[2] == NO_AUTH:
        raise _shut_out()
    single = parse_reply(replies[2], partial(jute.parse_single, jute.GET_DATA))
    several = parse_reply(replies[3], partial(jute.parse_multi_read, reads, []))
    for found in (single, *(several if isinstance(several, list) else [several])):
        if isinstance(found, MetadataStoreError):
            raise found
        if isinstance(found, jute.ZNode) and found.size != NULL:
            raise _unfit(connection, "it reads null data as empty data")
    changed = {packet[EVENT_PATH:] for packet in packets}
    # The watch ends with a connection.
    steady = before == connection.number and isinstance(replies[0], tuple)
    if isinstance(single, jute.ZNode) and steady and lower not in changed:
        raise _unfit(connection, "its recursive watches do not report which path has changed")


def _check_acl(
    connection: ZooKeeperConnection, chroot: str, reply: Reply, upper: int, lower: int
) -> None:
    kinds: tuple[jute.Opcode, ...] = (jute.CREATE, jute.DELETE, jute.CREATE, jute.SET_DATA)
    ops: list[jute.Op] = [(kind, 0, upper) for kind in kinds]
    ops += [(kind, 0, lower) for kind in kinds[:3]]
    made = parse_reply(reply, partial(jute.parse_multi, ops))
    if isinstance(made, jute.Refused):
        if INVALID_ACL in made.codes:
            raise connection.refused(INVALID_ACL, chroot or "/")
        if NO_AUTH in made.codes[len(kinds) - 1 :]:
            raise _shut_out()


def _shut_out() -> AuthenticationError:
    return AuthenticationError(
        "the acl of new nodes keeps this client itself from them: its login needs the permissions "
        "to create, delete, read and write (cdrw)"
    )


def _create(path: bytes, acl: bytes) -> bytes:
    return jute.header_and_length(jute.CREATE, len(path)) + path + jute.NO_DATA + acl


def _delete(path: bytes) -> bytes:
    return jute.header_and_length(jute.DELETE, len(path)) + path + jute.version_field(-1)


def _set(path: bytes) -> bytes:
    head = jute.header_and_length(jute.SET_DATA, len(path))
    return head + path + jute.NO_DATA + jute.version_field(-1)


def _unfit(connection: ZooKeeperConnection, reason: str) -> UnsupportedError:
    return UnsupportedError(
        f"the server at {connection.addresses} is not a ZooKeeper that can be used: {reason}"
    )
