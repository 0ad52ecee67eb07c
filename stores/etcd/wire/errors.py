"""Interprets failed calls to etcd: one table from status and text to a reason and a verdict.

A failed call is looked up here once, where it fails. Its error carries the ``Reason`` as an
attribute, and no other code reads etcd's or gRPC's texts.

Sources: etcd's ``api/v3rpc/rpctypes/error.go`` for codes and texts, its ``v3rpc`` and
``etcdserver`` packages for where each error arises (before a proposal to raft, or after one), the
Go client's ``retry.go`` for the rule that a write is sent again only if no connection existed, and
runs against etcd 3.5.1 with the server killed, paused and filled up.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import Any, Final, NamedTuple

import grpc
from grpc import StatusCode

from ....ops.errors import (
    AuthenticationError,
    IndeterminateError,
    MetadataStoreError,
    UnsupportedError,
    ValueTooLargeError,
)
from ....ops.results import printable
from ...backend import RequestRefusedError
from ...hosts import lookup_failure

__all__ = [
    "EtcdRefusedError",
    "Failure",
    "Reason",
    "UnansweredError",
    "Verdict",
    "failed_lookup",
    "failure_of",
    "judge",
    "not_permitted",
    "read_text",
    "reason_of",
    "refused",
    "short",
    "too_large",
]


class Verdict(Enum):
    """The possible outcomes of a request whose call failed, and what to do."""

    UNSENT = "no member received it: send it again, to another member if there is one"
    LATER = "the server turned it away unread: send it again after a pause"
    RENEW = "the login has expired, and nothing was done: log in and send it again"
    LOGIN = "the server requires a login; nothing was done"
    REFUSED = "nothing was done, and it would be refused again"
    UNKNOWN = "it may have been executed"
    APPLIED = "it was executed, but the answer could not be received"


class Reason(Enum):
    """Why a call failed, as far as any caller needs to know; ``OTHER`` covers the rest."""

    REQUEST_TOO_LARGE = "the request has more bytes than the server accepts"
    ANSWER_TOO_LARGE = "the answer to a read has more bytes than this client accepts"
    TOO_MANY_OPS = "the transaction has more operations than the server accepts"
    COMPACTED = "the requested revision has been compacted"
    FUTURE = "the requested revision does not exist yet"
    LEASE_GONE = "there is no such lease"
    NO_SPACE = "etcd is beyond its quota"
    NOT_PERMITTED = "the user may not do that"
    LOGIN_EXPIRED = "the server no longer accepts the login"
    AUTH_DISABLED = "the server has no logins"
    NOT_ETCD = "the server does not speak etcd's v3 API"
    UNREACHABLE = "there is no connection"
    OVERDUE = "the call's time has passed"
    OVERTAKEN = "the answer took longer than usual, so another member is asked"
    OTHER = "none of these"


class Failure(NamedTuple):
    """The meaning of a failed call."""

    verdict: Verdict
    reason: Reason


# Answers of a member that cannot serve any request at the moment. It gives them before it looks at
# the request: it is a learner without a vote, or does not know the cluster's version yet. Other
# members may serve the request. (``v3rpc/interceptor.go``; UNAVAILABLE up to etcd 3.5,
# FAILED_PRECONDITION since, etcd #12985.)
_NO_SERVICE: Final = (
    ("rpc not supported for learner", Verdict.UNSENT, Reason.OTHER),
    ("etcdserver: not capable", Verdict.UNSENT, Reason.OTHER),
)

# By status code. The first text that occurs in the message decides; "" matches any message. A code
# that is missing here is UNKNOWN.
_TABLE: Final[dict[StatusCode, tuple[tuple[str, Verdict, Reason], ...]]] = {
    # Checked before the request is proposed, or refused by the applier before it changes anything
    # (permissions; the revision of the auth store). The Go client logs in again on the latter.
    StatusCode.INVALID_ARGUMENT: (
        ("revision of auth store is old", Verdict.RENEW, Reason.LOGIN_EXPIRED),
        ("user name is empty", Verdict.LOGIN, Reason.OTHER),
        ("request is too large", Verdict.REFUSED, Reason.REQUEST_TOO_LARGE),
        ("too many operations in txn request", Verdict.REFUSED, Reason.TOO_MANY_OPS),
        ("", Verdict.REFUSED, Reason.OTHER),
    ),
    StatusCode.UNAUTHENTICATED: (
        ("invalid auth token", Verdict.RENEW, Reason.LOGIN_EXPIRED),
        ("", Verdict.LOGIN, Reason.OTHER),
    ),
    StatusCode.PERMISSION_DENIED: (
        ("permission denied", Verdict.REFUSED, Reason.NOT_PERMITTED),
        ("", Verdict.REFUSED, Reason.NOT_PERMITTED),
    ),
    StatusCode.FAILED_PRECONDITION: (
        *_NO_SERVICE,
        ("authentication is not enabled", Verdict.REFUSED, Reason.AUTH_DISABLED),
        ("", Verdict.REFUSED, Reason.OTHER),
    ),
    StatusCode.NOT_FOUND: (
        ("requested lease not found", Verdict.REFUSED, Reason.LEASE_GONE),
        ("", Verdict.REFUSED, Reason.OTHER),
    ),
    StatusCode.OUT_OF_RANGE: (
        ("required revision has been compacted", Verdict.REFUSED, Reason.COMPACTED),
        ("required revision is a future revision", Verdict.REFUSED, Reason.FUTURE),
        ("", Verdict.REFUSED, Reason.OTHER),
    ),
    StatusCode.UNIMPLEMENTED: (("", Verdict.REFUSED, Reason.NOT_ETCD),),
    StatusCode.RESOURCE_EXHAUSTED: (
        # More than 5,000 entries committed and not yet applied: turned away before the proposal.
        ("too many requests", Verdict.LATER, Reason.OTHER),
        # etcd checks the quota on arrival, and again when it applies the transaction. The second
        # check gives the same error after the transaction was applied: of 64 such answers from 16
        # threads that filled a store up, 15 belonged to writes that were there.
        ("database space exceeded", Verdict.UNKNOWN, Reason.NO_SPACE),
        # This client's own gRPC refused the answer. Its text has CLIENT; the server's does not.
        ("CLIENT: Received message larger than max", Verdict.APPLIED, Reason.ANSWER_TOO_LARGE),
        ("CLIENT: Sent message larger than max", Verdict.REFUSED, Reason.OTHER),
        ("received message larger than max", Verdict.REFUSED, Reason.REQUEST_TOO_LARGE),
        ("", Verdict.UNKNOWN, Reason.OTHER),
    ),
    StatusCode.UNAVAILABLE: (
        # gRPC's texts for a call without a connection. All other errors of this code (socket
        # closed, reset, GOAWAY, leader changed, server stopped, request timed out) come after
        # sending.
        ("failed to connect to all addresses", Verdict.UNSENT, Reason.UNREACHABLE),
        ("connections to all backends failing", Verdict.UNSENT, Reason.UNREACHABLE),
        ("name resolution failed", Verdict.UNSENT, Reason.UNREACHABLE),
        ("DNS resolution failed", Verdict.UNSENT, Reason.UNREACHABLE),
        *_NO_SERVICE,
        ("etcdserver: ", Verdict.UNKNOWN, Reason.OTHER),  # arrived over a connection
        ("", Verdict.UNKNOWN, Reason.UNREACHABLE),
    ),
    StatusCode.DEADLINE_EXCEEDED: (("", Verdict.UNKNOWN, Reason.OVERDUE),),
}


# ``etcd grpc-proxy`` passes etcd's errors on with their texts, but with the code UNKNOWN.
_ETCD: Final = "etcdserver: "
_UNCODED: Final = tuple(row for rows in _TABLE.values() for row in rows if row[0])

# gRPC's texts if a host's name cannot be looked up: of its own resolver, and of the C library's.
_LOOKUP: Final = re.compile("errors resolving|DNS resolution failed|lookup failed for")

# The server's gRPC names the length of the request, and its limit.
_GRPC_LIMIT: Final = re.compile(r"received message larger than max \(\d+ vs\. (\d+)\)")


class EtcdRefusedError(RequestRefusedError):
    """A request was refused as a whole: nothing of it was applied.

    Attributes:
        reason: the reason for the refusal.
        grpc_limit: the most bytes of a request that the server's gRPC accepts, if the refusal names
            them.
        denied: the user to whom a transaction was not permitted, and etcd's text; ``None`` for
            other refusals, and if the error already names the keys.
    """

    def __init__(
        self,
        error: MetadataStoreError,
        reason: Reason = Reason.OTHER,
        grpc_limit: int | None = None,
        denied: tuple[str, str] | None = None,
    ) -> None:
        super().__init__(error)
        self.reason = reason
        self.grpc_limit = grpc_limit
        self.denied = denied

    def at(self, *paths: str) -> MetadataStoreError:
        """Return the error for the paths of one operation, which it names if that helps."""
        if self.denied is None:
            return self.error.for_path(paths[0])
        user, text = self.denied
        some = ", ".join(map(repr, paths[:3])) + (" or others" if len(paths) > 3 else "")
        named = AuthenticationError(not_permitted(user, f"access to {some}", text), path=paths[0])
        named.__cause__ = self.error.__cause__
        return named


class UnansweredError(IndeterminateError):
    """A write may have been applied. Only this package sees it; callers get its base class.

    Attributes:
        reason: the reason why the outcome is unknown.
    """

    def __init__(
        self, message: str = "", *, applied: bool = False, reason: Reason = Reason.OTHER
    ) -> None:
        super().__init__(message, applied=applied)
        self.reason = reason


def judge(code: StatusCode, message: str, *, write: bool) -> Failure:
    """Return the verdict and the reason for a call that failed with ``code`` and ``message``."""
    passed_on = code is StatusCode.UNKNOWN and message.startswith(_ETCD)
    rows = _UNCODED if passed_on else _TABLE.get(code, ())
    verdict, reason = next(
        ((verdict, reason) for text, verdict, reason in rows if text in message),
        (Verdict.UNKNOWN, Reason.OTHER),
    )
    open_for_a_write = verdict in (Verdict.UNKNOWN, Verdict.APPLIED)
    exhausted = code is StatusCode.RESOURCE_EXHAUSTED or reason is Reason.NO_SPACE
    if exhausted and open_for_a_write and not write:
        # These leave the outcome of a write open, but a read is simply refused.
        verdict = Verdict.REFUSED
    return Failure(verdict, reason)


def read_text(text: str) -> Reason:
    """Return the reason for a text of etcd that comes without a status, as in a watch."""
    return next(
        (reason for rows in _TABLE.values() for part, _, reason in rows if part and part in text),
        Reason.OTHER,
    )


def failure_of(error: grpc.RpcError, *, write: bool) -> tuple[Failure, StatusCode, str]:
    """Return the meaning of a failed call, with its status and its text."""
    # The error of a blocking call is also a grpc.Call, which its type does not show.
    call: Any = error
    code, message = call.code(), call.details() or ""
    return judge(code, message, write=write), code, message


def too_large(cause: grpc.RpcError | None) -> bool:
    """Say whether a stream ended because this client does not accept so large an answer."""
    return cause is not None and failure_of(cause, write=False)[0].reason is Reason.ANSWER_TOO_LARGE


def reason_of(error: BaseException) -> Reason:
    """Return the reason that an error carries."""
    return error.reason if isinstance(error, EtcdRefusedError | UnansweredError) else Reason.OTHER


def refused(
    reason: Reason, message: str, request: Any = b"", user: str = "this client"
) -> EtcdRefusedError:
    """Return the error of a request that no member applied.

    Args:
        reason: the reason from the table.
        message: the text of the call.
        request: the request; the bytes of a transaction.
        user: who has sent it, for the message if that is not permitted.
    """
    text = short(message)
    size = len(request) if isinstance(request, bytes) else request.ByteSize()
    keys = [f"'{printable(key)}'" for key in _keys(request)]
    error: MetadataStoreError
    match reason:
        case Reason.ANSWER_TOO_LARGE:
            error = ValueTooLargeError(f"the answer is larger than this client accepts: {text}")
        case Reason.REQUEST_TOO_LARGE:
            error = ValueTooLargeError(
                f"the request has {size:,} bytes, more than etcd accepts "
                f"(--max-request-bytes, 1.5 MiB by default): {text}"
            )
        case Reason.NOT_PERMITTED:
            where = f"access to {' to '.join(keys)}" if keys else "access"
            error = AuthenticationError(not_permitted(user, where, text))
        case Reason.NOT_ETCD:
            error = UnsupportedError(f"the server does not speak etcd's v3 API: {text}")
        case _:
            error = MetadataStoreError(f"etcd refused: {text}")
    named = _GRPC_LIMIT.search(message) if reason is Reason.REQUEST_TOO_LARGE else None
    denied = (user, text) if reason is Reason.NOT_PERMITTED and not keys else None
    return EtcdRefusedError(error, reason, int(named[1]) if named else None, denied)


def not_permitted(user: str, what: str, text: str) -> str:
    """Return the message for a user without a permission."""
    return f"etcd refused {user} {what}: {short(text)}"


def _keys(request: Any) -> list[bytes]:
    """Return the first key of a range, and its end."""
    keys = (getattr(request, "key", b""), getattr(request, "range_end", b""))
    return [key for key in keys if key]


def failed_lookup(address: str, message: str) -> str | None:
    """Return a message that names the host, if gRPC could not look its name up."""
    if _LOOKUP.search(message) is None:
        return None
    return lookup_failure(address.rpartition(":")[0], short(message))


def short(message: str) -> str:
    """Return gRPC's or etcd's text in one line of limited length."""
    text = " ".join(message.split()).removeprefix(_ETCD)
    return text if len(text) <= 300 else f"{text[:297]}..."
