"""What hubs and clients say to each other: errors, and what a reply can hold."""

from __future__ import annotations

import inspect
from typing import Any

import grpc
import pytest

from batchkeeper.hubs import DamagedRecordError, Message, TopicLostError
from batchkeeper.hubs import errors as of_hubs
from batchkeeper.hubs.serving.wire import failure_in, fitting, refusal_of
from batchkeeper.ops import errors as of_stores
from batchkeeper.ops.errors import MetadataStoreError

ERRORS = [
    found
    for module in (of_stores, of_hubs)
    for name in module.__all__
    if inspect.isclass(found := getattr(module, name))
]


class Failed(grpc.RpcError):
    """A call that has failed."""

    def __init__(self, code: grpc.StatusCode, details: str, trailing: Any) -> None:
        self.code = lambda: code
        self.details = lambda: details
        self.trailing_metadata = lambda: trailing


def sent(error: Exception) -> Exception:
    """Return what arrives of an error."""
    return failure_in(Failed(*refusal_of(error)), "hub-1:4080")


def test_each_error_arrives_as_the_same_class() -> None:
    """With its message, and with what it says about another attempt."""
    for kind in (*ERRORS, DamagedRecordError):
        error = sent(kind("the reason \udcff"))
        assert type(error) is kind
        assert str(error) == "the reason \udcff"
        assert isinstance(error, MetadataStoreError)
        assert error.retriable == kind.retriable
        assert error.outcome == kind.outcome


def test_an_error_that_differs_from_its_class() -> None:
    """It arrives as it was raised. One of another package arrives as what it is derived from."""

    class OwnError(TopicLostError):
        retriable = False

    error = OwnError("why" * 5000)
    error.outcome = "unknown"
    found = sent(error)
    assert type(found) is TopicLostError
    assert (found.retriable, found.outcome) == (False, "unknown")
    assert len(str(found)) == 4000  # Longer metadata would end the call without its error.


@pytest.mark.parametrize("error", [OSError("the disk is full"), KeyError("listener")])
def test_an_error_of_the_machine(error: Exception) -> None:
    """The hub has failed for its client, who asks another one."""
    found = sent(error)
    assert isinstance(found, ConnectionError)
    assert str(error) in str(found)


@pytest.mark.parametrize(
    ("sizes", "count"),
    [([], 0), ([9], 1), ([2**21, 1], 1), ([1, 2**21], 1), ([2**19, 2**19, 1], 2), ([0] * 99, 99)],
)
def test_as_many_messages_as_one_answer_has(sizes: list[int], count: int) -> None:
    """At most 1 MiB, but at least one message."""
    assert fitting([Message(1, bytes(size)) for size in sizes]) == count
