"""The table of etcd's and gRPC's errors."""

from __future__ import annotations

import pytest
from grpc import StatusCode

from batchkeeper.ops import AuthenticationError, MetadataStoreError, ValueTooLargeError
from batchkeeper.stores.etcd.errors import Verdict, judge, refused

REFUSED_CONNECTION = (
    "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:1: Failed to connect "
    "to remote host: Connection refused"
)
CASES = [
    (StatusCode.INVALID_ARGUMENT, "etcdserver: request is too large", Verdict.REFUSED),
    (
        StatusCode.INVALID_ARGUMENT,
        "etcdserver: too many operations in txn request",
        Verdict.REFUSED,
    ),
    (StatusCode.INVALID_ARGUMENT, "etcdserver: revision of auth store is old", Verdict.RENEW),
    (StatusCode.INVALID_ARGUMENT, "etcdserver: user name is empty", Verdict.LOGIN),
    (StatusCode.UNAUTHENTICATED, "etcdserver: invalid auth token", Verdict.RENEW),
    (StatusCode.PERMISSION_DENIED, "etcdserver: permission denied", Verdict.REFUSED),
    (StatusCode.NOT_FOUND, "etcdserver: requested lease not found", Verdict.REFUSED),
    (StatusCode.RESOURCE_EXHAUSTED, "etcdserver: too many requests", Verdict.LATER),
    (
        StatusCode.RESOURCE_EXHAUSTED,
        "grpc: received message larger than max (5 vs. 4)",
        Verdict.REFUSED,
    ),
    (
        StatusCode.RESOURCE_EXHAUSTED,
        "CLIENT: Received message larger than max (5 vs. 4)",
        Verdict.APPLIED,
    ),
    (
        StatusCode.RESOURCE_EXHAUSTED,
        "etcdserver: mvcc: database space exceeded",
        Verdict.UNKNOWN,
    ),
    (StatusCode.UNAVAILABLE, REFUSED_CONNECTION, Verdict.UNSENT),
    (StatusCode.UNAVAILABLE, "Socket closed", Verdict.UNKNOWN),
    (StatusCode.UNAVAILABLE, "Stream removed (recvmsg:Connection reset by peer)", Verdict.UNKNOWN),
    (StatusCode.UNAVAILABLE, "etcdserver: leader changed", Verdict.UNKNOWN),
    (StatusCode.UNAVAILABLE, "etcdserver: server stopped", Verdict.UNKNOWN),
    (StatusCode.UNAVAILABLE, "etcdserver: request timed out", Verdict.UNKNOWN),
    (StatusCode.UNAVAILABLE, "etcdserver: rpc not supported for learner", Verdict.UNSENT),
    (StatusCode.FAILED_PRECONDITION, "etcdserver: rpc not supported for learner", Verdict.UNSENT),
    (StatusCode.UNAVAILABLE, "etcdserver: not capable", Verdict.UNSENT),
    (StatusCode.FAILED_PRECONDITION, "etcdserver: not capable", Verdict.UNSENT),
    (StatusCode.FAILED_PRECONDITION, "etcdserver: user name not found", Verdict.REFUSED),
    (StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded", Verdict.UNKNOWN),
    (StatusCode.CANCELLED, "Channel closed!", Verdict.UNKNOWN),
    (StatusCode.INTERNAL, "Received RST_STREAM with error code 2", Verdict.UNKNOWN),
]


@pytest.mark.parametrize(("code", "message", "verdict"), CASES, ids=lambda case: str(case)[:60])
def test_a_failed_write_is_judged_by_code_and_message(
    code: StatusCode, message: str, verdict: Verdict
) -> None:
    """Only what etcd or gRPC certainly stopped before it was executed counts as not done."""
    assert judge(code, message, write=True) is verdict


def test_a_code_that_nobody_thought_of_leaves_the_outcome_open() -> None:
    """The safe answer is the default."""
    assert all(judge(code, "?", write=True) is Verdict.UNKNOWN for code in _UNLISTED)


_UNLISTED = [StatusCode.UNKNOWN, StatusCode.ABORTED, StatusCode.DATA_LOSS, StatusCode.INTERNAL]


def test_a_full_store_refuses_reads_plainly() -> None:
    """A read changes nothing, so being refused for want of space leaves nothing open."""
    message = "etcdserver: mvcc: database space exceeded"
    assert judge(StatusCode.RESOURCE_EXHAUSTED, message, write=False) is Verdict.REFUSED


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
    """Each refusal becomes the error that callers catch, and says that nothing was applied."""
    error = refused(code, message, 1_234_567)
    assert type(error) is kind
    assert error.outcome == "not_applied"
    assert message.removeprefix("etcdserver: ") in str(error)


def test_a_request_that_is_too_large_is_told_its_size_and_the_limit() -> None:
    """The message says what was sent and what would be taken."""
    message = str(
        refused(StatusCode.INVALID_ARGUMENT, "etcdserver: request is too large", 1_600_000)
    )
    assert "1,600,000 bytes" in message
    assert "1.5 MiB" in message
