"""What a failed call to etcd means: one table from status and message to a verdict.

Sources: etcd's ``api/v3rpc/rpctypes/error.go`` for codes and texts, its ``v3rpc`` and
``etcdserver`` packages for where each error arises (before a proposal to raft, or after one), the
Go client's ``retry.go`` for the rule that a write is sent again only if no connection existed, and
runs against etcd 3.5.1 with the server killed, paused and filled up.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from grpc import StatusCode

from ...ops.errors import (
    AuthenticationError,
    MetadataStoreError,
    UnsupportedError,
    ValueTooLargeError,
)

__all__ = [
    "COMPACTED",
    "FUTURE",
    "LEASE_GONE",
    "NOT_PERMITTED",
    "NO_SPACE",
    "TOO_MANY_OPS",
    "AnswerTooLargeError",
    "Verdict",
    "judge",
    "refused",
    "short",
]

COMPACTED: Final = "required revision has been compacted"
FUTURE: Final = "required revision is a future revision"
LEASE_GONE: Final = "requested lease not found"
NO_SPACE: Final = "database space exceeded"
NOT_PERMITTED: Final = "permission denied"
TOO_MANY_OPS: Final = "too many operations in txn request"
_ANSWER_TOO_LARGE: Final = "CLIENT: Received message larger than max"
_TOO_LARGE: Final = ("request is too large", "received message larger than max")


class AnswerTooLargeError(ValueTooLargeError):
    """The answer to a read has more bytes than are taken in; fewer reads at once may do."""


class Verdict(Enum):
    """What is known about a request whose call failed."""

    UNSENT = "it left for nobody who takes it: send it again, to another member if there is one"
    LATER = "the server turned it away unread: send it again after a pause"
    RENEW = "the login has expired, and nothing was done: log in and send it again"
    LOGIN = "the server asks for a login; nothing was done"
    REFUSED = "nothing was done, and it would be refused again"
    UNKNOWN = "it may have been executed"
    APPLIED = "it was executed, and the answer could not be taken in"


# What a member says, before it looks at a request, that serves none: it takes no part in the
# cluster's votes, or does not know yet which version the cluster runs. Others may serve it.
# (``v3rpc/interceptor.go``; UNAVAILABLE up to etcd 3.5, FAILED_PRECONDITION since, etcd #12985.)
_NO_SERVICE: Final = (
    ("rpc not supported for learner", Verdict.UNSENT),
    ("etcdserver: not capable", Verdict.UNSENT),
)

# By status code; the first text that occurs in the message decides, "" matches any message.
# A code that is not here is UNKNOWN.
_TABLE: Final[dict[StatusCode, tuple[tuple[str, Verdict], ...]]] = {
    # Checked before the request is proposed, or refused by the applier before it changes anything
    # (permissions; the revision of the auth store). The Go client logs in again on the latter.
    StatusCode.INVALID_ARGUMENT: (
        ("revision of auth store is old", Verdict.RENEW),
        ("user name is empty", Verdict.LOGIN),
        ("", Verdict.REFUSED),
    ),
    StatusCode.UNAUTHENTICATED: (
        ("invalid auth token", Verdict.RENEW),
        ("", Verdict.LOGIN),
    ),
    StatusCode.PERMISSION_DENIED: (("", Verdict.REFUSED),),
    StatusCode.FAILED_PRECONDITION: (*_NO_SERVICE, ("", Verdict.REFUSED)),
    StatusCode.NOT_FOUND: (("", Verdict.REFUSED),),  # a lease that is not there
    StatusCode.OUT_OF_RANGE: (("", Verdict.REFUSED),),  # a revision compacted or not yet there
    StatusCode.UNIMPLEMENTED: (("", Verdict.REFUSED),),  # no etcd v3 at the other end
    StatusCode.RESOURCE_EXHAUSTED: (
        # More than 5,000 entries committed and not yet applied: turned away before the proposal.
        ("too many requests", Verdict.LATER),
        # The quota is checked on arrival and again when the transaction is applied. The second
        # check answers with the same error after having applied it: of 64 such answers from 16
        # threads that filled a store up, 15 belonged to writes that are there.
        (NO_SPACE, Verdict.UNKNOWN),
        # Our own gRPC could not take the answer in. Ours says CLIENT, the server's does not.
        (_ANSWER_TOO_LARGE, Verdict.APPLIED),
        ("CLIENT: Sent message larger than max", Verdict.REFUSED),
        ("received message larger than max", Verdict.REFUSED),
        ("", Verdict.UNKNOWN),
    ),
    StatusCode.UNAVAILABLE: (
        # gRPC's words for a call that found no connection. All else of this code (socket closed,
        # reset, GOAWAY, leader changed, server stopped, request timed out) comes after sending.
        ("failed to connect to all addresses", Verdict.UNSENT),
        ("connections to all backends failing", Verdict.UNSENT),
        ("name resolution failed", Verdict.UNSENT),
        ("DNS resolution failed", Verdict.UNSENT),
        *_NO_SERVICE,
        ("", Verdict.UNKNOWN),
    ),
}


def judge(code: StatusCode, message: str, *, write: bool) -> Verdict:
    """Return what is known about a request whose call ended with ``code`` and ``message``."""
    rows = _TABLE.get(code, ())
    verdict = next((verdict for text, verdict in rows if text in message), Verdict.UNKNOWN)
    open_for_a_write = verdict in (Verdict.UNKNOWN, Verdict.APPLIED)
    if code is StatusCode.RESOURCE_EXHAUSTED and open_for_a_write and not write:
        # What leaves a write's outcome open is a plain refusal of a read.
        return Verdict.REFUSED
    return verdict


def refused(code: StatusCode, message: str, size: int) -> MetadataStoreError:
    """Return the error of this package for a request that was refused; none has applied it.

    Args:
        code: the status of the call.
        message: its text.
        size: the bytes of the request, named where they are the reason.
    """
    if _ANSWER_TOO_LARGE in message:
        return AnswerTooLargeError(f"the answer is larger than what is taken in: {short(message)}")
    if any(text in message for text in _TOO_LARGE):
        return ValueTooLargeError(
            f"{size:,} bytes are more than etcd takes in one request "
            f"(--max-request-bytes, 1.5 MiB unless set): {short(message)}"
        )
    if code is StatusCode.PERMISSION_DENIED:
        return AuthenticationError(f"etcd refused: {short(message)}")
    if code is StatusCode.UNIMPLEMENTED:
        return UnsupportedError(f"the server does not speak etcd's v3 API: {short(message)}")
    return MetadataStoreError(f"etcd refused: {short(message)}")


def short(message: str) -> str:
    """Return gRPC's or etcd's text in one line of bearable length."""
    text = " ".join(message.split()).removeprefix("etcdserver: ")
    return text if len(text) <= 300 else f"{text[:297]}..."
