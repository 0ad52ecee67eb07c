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

from ...ops.errors import MetadataStoreError, UnsupportedError
from .answers import Reply, is_unreadable, parse_reply
from .connection import ZooKeeperConnection
from .errors import CONNECTION_LOSS, UNIMPLEMENTED, refused
from .jute import (
    ADD_WATCH,
    CREATE,
    DELETE,
    END,
    GET_DATA,
    MULTI,
    MULTI_READ,
    NO_DATA,
    REMOVE_WATCHES,
    ZNode,
    add_watch,
    ephemeral,
    header_and_length,
    multi_read,
    parse_multi_read,
    parse_single,
    remove_watch,
    single_read,
    version_field,
)
from .kazoo_client import EVENT_PATH
from .nodes import NULL, SKIPPED

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
    reads = [(GET_DATA, _KEEPER), (GET_DATA, _MISSING)]
    reply: Reply = CONNECTION_LOSS
    while reply == CONNECTION_LOSS:
        (reply,) = connection.exchange([(MULTI_READ, multi_read(reads))], deadline, repeat=True)
    if reply == UNIMPLEMENTED:
        raise UnsupportedError(
            f"ZooKeeper 3.6 or newer is needed: the server at {connection.addresses} lacks "
            "multi-reads"
        )
    answer = parse_reply(reply, partial(parse_multi_read, reads, []))
    if isinstance(answer, MetadataStoreError):
        if is_unreadable(answer):
            raise _unfit(connection, "it answers multi-reads in a form of its own") from answer
        raise answer
    if isinstance(answer, int):
        raise refused(answer, "/")
    if isinstance(answer[0], ZNode):
        raise _unfit(connection, "it is ClickHouse Keeper, which reads null data as empty data")


def check_writes(connection: ZooKeeperConnection, chroot: str, acl: bytes, deadline: float) -> None:
    """Refuse a server without null data, or whose recursive watches do not tell what has changed.

    The client creates two nodes, reads them, and deletes them, all in one round trip. If it may not
    create them, nothing is checked.

    Raises:
        UnsupportedError: the server does not do what this package needs.
        MetadataStoreError: it gave no answer.
    """
    # All clients of this package ignore such nodes.
    upper = f"{chroot}{SKIPPED}-{os.urandom(8).hex()}".encode()
    lower = upper + b"/below"
    reads = [(GET_DATA, upper)]
    # The first two steps refuse all if the client may create nodes here, but not delete them.
    created = [_create(upper, acl), _delete(upper)]
    created += [_create(upper, acl), _create(lower, ephemeral(acl)), END]
    deleted = [_delete(lower), _delete(upper), END]
    before = connection.number
    with connection.own_events() as packets:
        replies = connection.exchange(
            [
                (ADD_WATCH, add_watch(upper)),
                (MULTI, b"".join(created)),
                (GET_DATA, single_read(upper)),
                (MULTI_READ, multi_read(reads)),
                (MULTI, b"".join(deleted)),
                (REMOVE_WATCHES, remove_watch(upper)),
            ],
            deadline,
            repeat=True,
        )
    for reply in replies:
        if isinstance(reply, MetadataStoreError):
            raise reply
    single = parse_reply(replies[2], partial(parse_single, GET_DATA))
    several = parse_reply(replies[3], partial(parse_multi_read, reads, []))
    for found in (single, *(several if isinstance(several, list) else [several])):
        if isinstance(found, MetadataStoreError):
            raise found
        if isinstance(found, ZNode) and found.size != NULL:
            raise _unfit(connection, "it reads null data as empty data")
    changed = {packet[EVENT_PATH:] for packet in packets}
    # The watch ends with a connection.
    steady = before == connection.number and isinstance(replies[0], tuple)
    if isinstance(single, ZNode) and steady and lower not in changed:
        raise _unfit(connection, "its recursive watches do not report which path has changed")


def _create(path: bytes, acl: bytes) -> bytes:
    return header_and_length(CREATE, len(path)) + path + NO_DATA + acl


def _delete(path: bytes) -> bytes:
    return header_and_length(DELETE, len(path)) + path + version_field(-1)


def _unfit(connection: ZooKeeperConnection, reason: str) -> UnsupportedError:
    return UnsupportedError(
        f"the server at {connection.addresses} is not a ZooKeeper that can be used: {reason}"
    )
