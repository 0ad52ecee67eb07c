"""What hubs and clients say to each other: errors, and what a frame can hold."""

from __future__ import annotations

import inspect

import pytest

from batchkeeper.hubs import DamagedRecordError, Message, TopicLostError
from batchkeeper.hubs import errors as of_hubs
from batchkeeper.hubs.serving.protocol import (
    HEAD,
    decoded,
    encoded,
    error_in,
    error_members,
    fitting,
    length_in,
)
from batchkeeper.ops import errors as of_stores
from batchkeeper.ops.errors import MetadataStoreError

ERRORS = [
    found
    for module in (of_stores, of_hubs)
    for name in module.__all__
    if inspect.isclass(found := getattr(module, name))
]


def sent(error: Exception) -> Exception | None:
    """Return what arrives of an error."""
    raw = encoded({"id": 1, **error_members(error)})
    assert length_in(raw[:HEAD]) == len(raw) - HEAD
    return error_in(decoded(raw[HEAD:]))


@pytest.mark.parametrize("kind", [*ERRORS, DamagedRecordError])
def test_each_error_arrives_as_the_same_class(kind: type[MetadataStoreError]) -> None:
    """With its message, and with what it says about another attempt."""
    error = sent(kind("the reason \udcff"))
    assert type(error) is kind
    assert str(error) == "the reason \udcff"
    assert error.retriable == kind.retriable
    assert error.outcome == kind.outcome


def test_an_error_that_differs_from_its_class() -> None:
    """It arrives as it was raised. One of another package arrives as what it is derived from."""

    class OwnError(TopicLostError):
        retriable = False

    error = OwnError("why")
    error.outcome = "unknown"
    found = sent(error)
    assert type(found) is TopicLostError
    assert (found.retriable, found.outcome) == (False, "unknown")


@pytest.mark.parametrize("error", [OSError("the disk is full"), KeyError("listener")])
def test_an_error_of_the_machine(error: Exception) -> None:
    """The hub has failed for its client, who asks another one."""
    found = sent(error)
    assert type(found) is ConnectionAbortedError
    assert str(error) in str(found)


@pytest.mark.parametrize(
    ("sizes", "count"),
    [([], 0), ([9], 1), ([2**21, 1], 1), ([1, 2**21], 1), ([2**19, 2**19, 1], 2), ([0] * 99, 99)],
)
def test_as_many_messages_as_one_answer_has(sizes: list[int], count: int) -> None:
    """At most 1 MiB, but at least one message."""
    assert fitting([Message(1, bytes(size)) for size in sizes]) == count
