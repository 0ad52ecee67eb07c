"""The table of etcd's and gRPC's errors."""

from __future__ import annotations

import pytest
from grpc import StatusCode

from batchkeeper.ops import AuthenticationError, MetadataStoreError, ValueTooLargeError
from batchkeeper.stores.etcd.wire.errors import (
    Reason,
    UnansweredError,
    Verdict,
    judge,
    read_text,
    reason_of,
    refused,
)

REFUSED_CONNECTION = (
    "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:1: Failed to connect "
    "to remote host: EtcdConnection refused"
)
CASES = [
    (
        StatusCode.INVALID_ARGUMENT,
        "etcdserver: request is too large",
        Verdict.REFUSED,
        Reason.REQUEST_TOO_LARGE,
    ),
    (
        StatusCode.INVALID_ARGUMENT,
        "etcdserver: too many operations in txn request",
        Verdict.REFUSED,
        Reason.TOO_MANY_OPS,
    ),
    (
        StatusCode.INVALID_ARGUMENT,
        "etcdserver: revision of auth store is old",
        Verdict.RENEW,
        Reason.LOGIN_EXPIRED,
    ),
    (StatusCode.INVALID_ARGUMENT, "etcdserver: user name is empty", Verdict.LOGIN, Reason.OTHER),
    (
        StatusCode.UNAUTHENTICATED,
        "etcdserver: invalid auth token",
        Verdict.RENEW,
        Reason.LOGIN_EXPIRED,
    ),
    (
        StatusCode.PERMISSION_DENIED,
        "etcdserver: permission denied",
        Verdict.REFUSED,
        Reason.NOT_PERMITTED,
    ),
    (
        StatusCode.NOT_FOUND,
        "etcdserver: requested lease not found",
        Verdict.REFUSED,
        Reason.LEASE_GONE,
    ),
    (StatusCode.RESOURCE_EXHAUSTED, "etcdserver: too many requests", Verdict.LATER, Reason.OTHER),
    (
        StatusCode.RESOURCE_EXHAUSTED,
        "grpc: received message larger than max (5 vs. 4)",
        Verdict.REFUSED,
        Reason.REQUEST_TOO_LARGE,
    ),
    (
        StatusCode.RESOURCE_EXHAUSTED,
        "CLIENT: Received message larger than max (5 vs. 4)",
        Verdict.APPLIED,
        Reason.ANSWER_TOO_LARGE,
    ),
    (
        StatusCode.RESOURCE_EXHAUSTED,
        "etcdserver: mvcc: database space exceeded",
        Verdict.UNKNOWN,
        Reason.NO_SPACE,
    ),
    (StatusCode.UNAVAILABLE, REFUSED_CONNECTION, Verdict.UNSENT, Reason.UNREACHABLE),
    (StatusCode.UNAVAILABLE, "Socket closed", Verdict.UNKNOWN, Reason.UNREACHABLE),
    (
        StatusCode.UNAVAILABLE,
        "Stream removed (recvmsg:EtcdConnection reset by peer)",
        Verdict.UNKNOWN,
        Reason.UNREACHABLE,
    ),
    (StatusCode.UNAVAILABLE, "etcdserver: leader changed", Verdict.UNKNOWN, Reason.OTHER),
    (StatusCode.UNAVAILABLE, "etcdserver: server stopped", Verdict.UNKNOWN, Reason.OTHER),
    (StatusCode.UNAVAILABLE, "etcdserver: request timed out", Verdict.UNKNOWN, Reason.OTHER),
    (
        StatusCode.UNAVAILABLE,
        "etcdserver: rpc not supported for learner",
        Verdict.UNSENT,
        Reason.OTHER,
    ),
    (
        StatusCode.FAILED_PRECONDITION,
        "etcdserver: rpc not supported for learner",
        Verdict.UNSENT,
        Reason.OTHER,
    ),
    (StatusCode.UNAVAILABLE, "etcdserver: not capable", Verdict.UNSENT, Reason.OTHER),
    (StatusCode.FAILED_PRECONDITION, "etcdserver: not capable", Verdict.UNSENT, Reason.OTHER),
    (
        StatusCode.FAILED_PRECONDITION,
        "etcdserver: user name not found",
        Verdict.REFUSED,
        Reason.OTHER,
    ),
    (StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded", Verdict.UNKNOWN, Reason.OVERDUE),
    (StatusCode.CANCELLED, "Channel closed!", Verdict.UNKNOWN, Reason.OTHER),
    (StatusCode.INTERNAL, "Received RST_STREAM with error code 2", Verdict.UNKNOWN, Reason.OTHER),
    (
        StatusCode.OUT_OF_RANGE,
        "etcdserver: mvcc: required revision has been compacted",
        Verdict.REFUSED,
        Reason.COMPACTED,
    ),
    (
        StatusCode.OUT_OF_RANGE,
        "etcdserver: mvcc: required revision is a future revision",
        Verdict.REFUSED,
        Reason.FUTURE,
    ),
    (
        StatusCode.FAILED_PRECONDITION,
        "etcdserver: authentication is not enabled",
        Verdict.REFUSED,
        Reason.AUTH_DISABLED,
    ),
    (StatusCode.UNIMPLEMENTED, "unknown service", Verdict.REFUSED, Reason.NOT_ETCD),
]


@pytest.mark.parametrize(
    ("code", "message", "verdict", "reason"), CASES, ids=lambda case: str(case)[:60]
)
def test_a_failed_write_is_judged_by_code_and_message(
    code: StatusCode, message: str, verdict: Verdict, reason: Reason
) -> None:
    """Only requests that etcd or gRPC certainly stopped before execution count as not applied."""
    assert judge(code, message, write=True) == (verdict, reason)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("etcdserver: permission denied", Reason.NOT_PERMITTED),
        ("etcdserver: invalid auth token", Reason.LOGIN_EXPIRED),
        ("rpc error: etcdserver: revision of auth store is old", Reason.LOGIN_EXPIRED),
        ("etcdserver: mvcc: required revision has been compacted", Reason.COMPACTED),
        ("etcdserver: no leader", Reason.OTHER),
        ("", Reason.OTHER),
    ],
)
def test_a_text_without_a_status_is_read_by_the_same_table(text: str, reason: Reason) -> None:
    """etcd gives the reason for the end of a watch as a text alone."""
    assert read_text(text) is reason


def test_an_error_that_says_no_reason_has_none_of_those_that_matter() -> None:
    """The reason is an attribute of what fails within this package; other errors have none."""
    refusal = refused(Reason.NO_SPACE, "etcdserver: mvcc: database space exceeded")
    assert reason_of(refusal) is Reason.NO_SPACE
    assert reason_of(UnansweredError("lost", reason=Reason.NO_SPACE)) is Reason.NO_SPACE
    assert reason_of(MetadataStoreError("database space exceeded")) is Reason.OTHER


def test_a_code_that_nobody_thought_of_leaves_the_outcome_open() -> None:
    """The safe answer is the default."""
    unknown = (Verdict.UNKNOWN, Reason.OTHER)
    assert all(judge(code, "?", write=True) == unknown for code in _UNLISTED)


_UNLISTED = [StatusCode.UNKNOWN, StatusCode.ABORTED, StatusCode.DATA_LOSS, StatusCode.INTERNAL]


def test_a_full_store_refuses_reads_plainly() -> None:
    """A read changes nothing, so a refusal for lack of space is definite."""
    message = "etcdserver: mvcc: database space exceeded"
    judged = judge(StatusCode.RESOURCE_EXHAUSTED, message, write=False)
    assert judged == (Verdict.REFUSED, Reason.NO_SPACE)


@pytest.mark.parametrize(
    ("code", "message", "kind"),
    [
        (StatusCode.INVALID_ARGUMENT, "etcdserver: request is too large", ValueTooLargeError),
        (
            StatusCode.RESOURCE_EXHAUSTED,
            "grpc: received message larger than max (5 vs. 4)",
            ValueTooLargeError,
        ),
        (StatusCode.PERMISSION_DENIED, "etcdserver: permission denied", AuthenticationError),
        (StatusCode.NOT_FOUND, "etcdserver: requested lease not found", MetadataStoreError),
    ],
)
def test_a_refusal_is_an_error_of_this_package(
    code: StatusCode, message: str, kind: type[MetadataStoreError]
) -> None:
    """Each refusal becomes the error for callers, which says that nothing was applied."""
    error = refused(judge(code, message, write=False).reason, message, bytes(1_234_567)).error
    assert type(error) is kind
    assert error.outcome == "not_applied"
    assert message.removeprefix("etcdserver: ") in str(error)


@pytest.mark.parametrize(
    ("reason", "message", "limit"),
    [
        (Reason.REQUEST_TOO_LARGE, "grpc: received message larger than max (9 vs. 540672)", 540672),
        (
            Reason.REQUEST_TOO_LARGE,
            f"{'a proxy ' * 50}: grpc: received message larger than max (9 vs. 8)",
            8,
        ),
        (Reason.REQUEST_TOO_LARGE, "etcdserver: request is too large", None),
        (Reason.ANSWER_TOO_LARGE, "CLIENT: Received message larger than max (9 vs. 8)", None),
    ],
)
def test_the_limit_that_grpc_names_is_a_number(
    reason: Reason, message: str, limit: int | None
) -> None:
    """A refusal carries the limit of the server's gRPC, so nobody else has to read its text."""
    assert refused(reason, message).grpc_limit == limit


def test_a_request_that_is_too_large_is_told_its_size_and_the_limit() -> None:
    """The message has the size that was sent and the limit."""
    message = str(
        refused(Reason.REQUEST_TOO_LARGE, "etcdserver: request is too large", bytes(1_600_000))
    )
    assert "1,600,000 bytes" in message
    assert "1.5 MiB" in message
