"""Interprets errors of ZooKeeper and kazoo: one table says what each means for its request.

Sources: ``KeeperException.Code`` and ``PrepRequestProcessor`` of ZooKeeper 3.9 (a request that
fails there is replaced by an error transaction and changes nothing), ``KazooClient`` and
``ConnectionHandler`` of kazoo 2.11.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from kazoo import exceptions as kazoo

from ....ops.errors import (
    AuthenticationError,
    IndeterminateError,
    MetadataStoreError,
    UnsupportedError,
    ValueTooLargeError,
)
from ....ops.log import get_logger

__all__ = [
    "BAD_VERSION",
    "CONNECTION_LOSS",
    "INVALID_ACL",
    "NODE_EXISTS",
    "NO_AUTH",
    "NO_CHILDREN",
    "NO_NODE",
    "UNIMPLEMENTED",
    "Fate",
    "UnreadableError",
    "code",
    "denial",
    "is_conflict",
    "is_of_session",
    "is_unreadable",
    "name_of",
    "refused",
    "fate",
    "unreadable",
]

log = get_logger(__name__)


class UnreadableError(Exception):
    """An answer cannot be read. Callers receive an error with this as its cause."""


class Fate(Enum):
    """The possible outcomes of a request that ended with an error."""

    #: The server refused it: it changed nothing and never will.
    REFUSED = "refused"
    #: The server did not look at it: it changed nothing and may be sent again, later.
    LATER = "later"
    #: The outcome is unknown; it changed nothing only if it was never sent.
    LOST = "lost"
    #: It was answered, but the answer cannot be read.
    UNREADABLE = "unreadable"
    #: The server refuses the credentials, and kazoo has given up the connection.
    LOCKED_OUT = "locked out"


_FATES: Final[dict[type[Exception], Fate]] = {
    # The connection broke. kazoo raises this for requests that were sent, and for queued ones.
    kazoo.ConnectionLoss: Fate.LOST,
    # kazoo raises this for everything that is open when the session ends, sent or not. The server's
    # own refusal of a late request has the same code, so the two cannot be distinguished.
    kazoo.SessionExpiredError: Fate.LOST,
    # kazoo's client was stopped.
    kazoo.ConnectionClosedError: Fate.LOST,
    # The server gave up waiting for itself: the transaction may still be committed.
    kazoo.OperationTimeoutError: Fate.LOST,
    kazoo.RequestTimeoutError: Fate.LOST,
    # -1 to -3: an internal inconsistency of the server.
    kazoo.SystemZookeeperError: Fate.LOST,
    kazoo.RuntimeInconsistency: Fate.LOST,
    kazoo.DataInconsistency: Fate.LOST,
    # -12: the server has removed the session. -100 marks a range of codes; no server sends it.
    kazoo.UnknownSessionError: Fate.LOST,
    kazoo.APIError: Fate.LOST,
    # A code that kazoo does not know.
    UnreadableError: Fate.UNREADABLE,
    # "Operation was throttled and not executed at all" (RequestThrottler).
    kazoo.ThrottledOpError: Fate.LATER,
    # "Session moved to another server, so operation is ignored" (checkSession).
    kazoo.SessionMovedError: Fate.LATER,
    # The server has lost its quorum and serves reads only (ReadOnlyRequestProcessor).
    kazoo.NotReadOnlyCallError: Fate.LATER,
    # kazoo stops for good, so no later request is sent either.
    kazoo.AuthFailedError: Fate.LOCKED_OUT,
    # Refused while the request was read or prepared, before a transaction was made.
    kazoo.MarshallingError: Fate.REFUSED,
    kazoo.UnimplementedError: Fate.REFUSED,
    kazoo.BadArgumentsError: Fate.REFUSED,
    kazoo.NoNodeError: Fate.REFUSED,
    kazoo.NoAuthError: Fate.REFUSED,
    kazoo.BadVersionError: Fate.REFUSED,
    kazoo.NoChildrenForEphemeralsError: Fate.REFUSED,
    kazoo.NodeExistsError: Fate.REFUSED,
    kazoo.NotEmptyError: Fate.REFUSED,
    kazoo.InvalidACLError: Fate.REFUSED,
    kazoo.QuotaExceededError: Fate.REFUSED,
    # A local session that may not become a global one. It then has no slots (checkUpgradeSession).
    kazoo.EphemeralOnLocalSessionError: Fate.REFUSED,
    # Only for requests that this package does not make: watches, reconfiguration, callbacks.
    kazoo.NoWatcherError: Fate.REFUSED,
    kazoo.InvalidCallbackError: Fate.REFUSED,
    kazoo.NewConfigNoQuorumError: Fate.REFUSED,
    kazoo.ReconfigInProcessError: Fate.REFUSED,
    kazoo.ReconfigDisabledError: Fate.REFUSED,
    # For single operations of a multi, never for a request.
    kazoo.RolledBackError: Fate.LOST,
    kazoo.SessionClosedRequireSaslError: Fate.LOCKED_OUT,
}

BAD_VERSION: Final[int] = kazoo.BadVersionError.code
INVALID_ACL: Final[int] = kazoo.InvalidACLError.code
NO_NODE: Final[int] = kazoo.NoNodeError.code
NODE_EXISTS: Final[int] = kazoo.NodeExistsError.code
CONNECTION_LOSS: Final[int] = kazoo.ConnectionLoss.code
NO_AUTH: Final[int] = kazoo.NoAuthError.code
NO_CHILDREN: Final[int] = kazoo.NoChildrenForEphemeralsError.code
UNIMPLEMENTED: Final[int] = kazoo.UnimplementedError.code

# The codes of a multi that failed because a path differs from the client's knowledge: look again.
_CONFLICTS: Final = frozenset(
    {
        kazoo.NoNodeError.code,
        kazoo.NodeExistsError.code,
        kazoo.BadVersionError.code,
        kazoo.NotEmptyError.code,
        kazoo.NoChildrenForEphemeralsError.code,
    }
)

# The codes of an operation in a multi if the session is ending while the multi is prepared, on a
# server that the client is not connected to (checkSession, caught by the multi's own loop).
_OF_SESSION: Final = frozenset(
    {
        kazoo.SessionExpiredError.code,
        kazoo.SessionMovedError.code,
        kazoo.UnknownSessionError.code,
    }
)


def fate(error: Exception) -> Fate:
    """Return the fate of a request that ended with ``error``; unknown errors mean LOST."""
    return _FATES.get(type(error), Fate.LOST)


def code(error: Exception) -> int:
    """Return the server's code for one of the server's errors."""
    number: int = error.code  # type: ignore[attr-defined]
    return number


def is_conflict(number: int) -> bool:
    """Say whether the server's code shows that a path differs from the client's knowledge."""
    return number in _CONFLICTS


def is_of_session(number: int) -> bool:
    """Say whether the server's code concerns the session: another one can do the same at once."""
    return number in _OF_SESSION


def refused(number: int, path: str, user: str | None = None) -> MetadataStoreError:
    """Return the error of an operation that the server refuses for good with this code."""
    if number == NO_AUTH:
        who = f"user {user!r} " if user else ""
        return AuthenticationError(f"ZooKeeper denies {who}access to {path!r}", path=path)
    if number == NO_CHILDREN:
        return UnsupportedError(
            f"ZooKeeper allows no paths below an ephemeral one: {path!r}", path=path
        )
    if number == INVALID_ACL:
        return AuthenticationError(
            f"ZooKeeper refuses the acl for {path!r}: an entry of the scheme 'auth' (creator-all, "
            "read-all) needs a login that the server has accepted, and others need a scheme that "
            "it knows, with an id of that scheme's form",
            path=path,
        )
    if number == UNIMPLEMENTED:
        # The multi-read is the newest request that this package makes.
        return UnsupportedError(
            "ZooKeeper 3.6 or newer is needed: the server does not support the request for "
            f"{path!r} ({name_of(number)})",
            path=path,
        )
    if number == kazoo.QuotaExceededError.code:
        return ValueTooLargeError(f"{path!r} would exceed a quota set on the server", path=path)
    return MetadataStoreError(
        f"ZooKeeper refuses the operation on {path!r}: {name_of(number)}", path=path
    )


def denial(error: Exception) -> str:
    """Return why the server refuses the credentials, and what to do about it if that is known."""
    if isinstance(error, kazoo.SessionClosedRequireSaslError):
        return "it requires a login with SASL (sasl='digest-md5' or sasl='gssapi')"
    return repr(error)


def name_of(number: int) -> str:
    """Return the name of a server's code."""
    return kazoo.EXCEPTIONS[number].__name__ if number in kazoo.EXCEPTIONS else str(number)


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
