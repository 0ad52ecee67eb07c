"""Checks answers, and makes the error for an answer that cannot be read.

An answer is checked against its request to the last byte, because a server of another version, a
proxy or a fault may send anything. If it does not fit, a read ends with ``MetadataStoreError``, and
a write with ``IndeterminateError``, because the server may have applied it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TypeAlias, TypeVar

from ...ops.errors import IndeterminateError, MetadataStoreError
from ...ops.log import get_logger

__all__ = ["Reply", "UnreadableError", "is_unreadable", "parse_reply", "unreadable"]

log = get_logger(__name__)

#: An answer: the packet and where the answer begins in it, the server's error code, or the error
#: that the request ends with.
Reply: TypeAlias = tuple[bytes, int] | int | MetadataStoreError

T = TypeVar("T")


class UnreadableError(Exception):
    """An answer cannot be read. Callers receive an error with this as its cause."""


def parse_reply(
    reply: Reply, parse: Callable[[bytes, int], T], *, write: bool = False
) -> T | int | MetadataStoreError:
    """Return the result of ``parse`` for an answer; a code or an error is returned as it is.

    Args:
        reply: the reply of a connection.
        parse: reads a packet from an offset on.
        write: whether the request may have changed something.
    """
    if not isinstance(reply, tuple):
        return reply
    buffer, offset = reply
    try:
        return parse(buffer, offset)
    except (struct.error, ValueError) as error:
        return unreadable(UnreadableError(f"{len(buffer)} bytes: {error}"), write=write)


def unreadable(reason: UnreadableError, *, write: bool) -> MetadataStoreError:
    """Return the error of a request whose answer cannot be read."""
    log.error("zookeeper answer cannot be read", reason=str(reason))
    message = f"the answer from ZooKeeper cannot be read: {reason}"
    error = (
        IndeterminateError(f"{message}; the request may have been applied")
        if write
        else MetadataStoreError(message)
    )
    error.__cause__ = reason
    return error


def is_unreadable(error: MetadataStoreError) -> bool:
    """Say whether a request was answered, but its answer cannot be read."""
    return isinstance(error.__cause__, UnreadableError)
