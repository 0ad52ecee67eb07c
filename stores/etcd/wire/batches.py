"""Executes a batch in parts, and reads answers that may not fit their requests."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from math import ceil
from typing import Any, TypeAlias, TypeVar

from google.protobuf.message import DecodeError

from ....ops.errors import IndeterminateError, MetadataStoreError
from ...backend import Deadline, Request, send_by
from .errors import EtcdRefusedError
from .protos import messages

__all__ = [
    "Call",
    "errors_as_answers",
    "even_parts",
    "halves",
    "in_parts",
    "packed",
    "parsed",
    "paths_of",
    "readable",
]

_T = TypeVar("_T")
_A = TypeVar("_A")
_R = TypeVar("_R", bound=Request)

#: Executes requests by a deadline, and returns an answer for each.
Call: TypeAlias = Callable[[Sequence[_R], float], Sequence[_A]]


def in_parts(
    call: Call[_R, _A], parts: Iterable[Sequence[_R]], deadline: float
) -> list[_A | MetadataStoreError]:
    """Execute parts one after the other. An error of one becomes the answers of that part.

    Raises:
        MetadataStoreError: the first one waited for the earliest deadline of all. Nothing was
            applied, and the caller may try again with those that have a later one.
    """
    answers: list[_A | MetadataStoreError] = []
    for part in parts:
        answers += errors_as_answers(call, part, deadline, first=not answers)
    return answers


def errors_as_answers(
    call: Call[_R, _A], requests: Sequence[_R], deadline: float, *, first: bool = False
) -> Sequence[_A | MetadataStoreError]:
    """Execute requests, and return errors as answers, because other parts have theirs.

    A write gives up at the earliest deadline of its requests: the others are sent again.
    """
    try:
        return call(requests, deadline)
    except EtcdRefusedError as refusal:
        error = refusal.at(*paths_of(requests[0]))
        if len(requests) > 1:
            return in_parts(call, halves(requests), deadline)
    except MetadataStoreError as failure:
        error = failure
    now = time.monotonic()
    if first and error.retriable and send_by(deadline) <= now < deadline:
        raise error
    ends = [getattr(request, "deadline", deadline) for request in requests]
    going = [request for request, end in zip(requests, ends, strict=True) if end > now]
    if not error.retriable or len(going) in {0, len(requests)}:
        return [error.for_path(request.path) for request in requests]
    later = Deadline.of([end for end in ends if end > now])
    found = iter(errors_as_answers(call, going, later))
    return [
        next(found) if end > now else error.for_path(request.path)
        for request, end in zip(requests, ends, strict=True)
    ]


def paths_of(request: Request) -> Sequence[str]:
    """Return the paths that a request names."""
    parts = () if request.options is None else request.options.parts
    return [part.path for part in parts] or [request.path]


def halves(requests: Sequence[_R]) -> tuple[Sequence[_R], Sequence[_R]]:
    """Return two parts of at least two requests."""
    half = len(requests) // 2
    return requests[:half], requests[half:]


def packed(items: Iterable[_T], room: int, size: Callable[[_T], int]) -> list[list[_T]]:
    """Return the items in lists, in order: as many in each as there is room for, at least one."""
    lists: list[list[_T]] = []
    left = 0
    for item in items:
        left -= (needed := size(item))
        if left < 0 or not lists:
            lists.append([])
            left = room - needed
        lists[-1].append(item)
    return lists


def even_parts(items: Sequence[_T], size: int) -> list[Sequence[_T]]:
    """Return the items in parts of up to ``size``, whose sizes differ by one at most."""
    if len(items) <= size:
        return [items] if items else []
    count = ceil(len(items) / size)
    edges = [len(items) * index // count for index in range(count + 1)]
    return [items[start:end] for start, end in pairwise(edges)]


def parsed(answer: bytes) -> Any:
    """Return the response to a transaction."""
    response = messages.TxnResponse.FromString(answer)
    if response.header.revision <= 0:
        raise ValueError(f"an answer of {len(answer)} bytes has no revision")
    return response


class readable:  # noqa: N801 - it reads as a statement
    """Turns the errors of reading an answer of the server into those of its request.

    Args:
        write: whether the request was a write.

    Raises:
        IndeterminateError: the answer to a write does not fit its request.
        MetadataStoreError: the answer to a read does not fit its request.
    """

    __slots__ = ("_write",)

    def __init__(self, *, write: bool) -> None:
        self._write = write

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _at: object) -> None:
        if isinstance(error, DecodeError | LookupError | StopIteration | ValueError):
            kind = IndeterminateError if self._write else MetadataStoreError
            raise kind(f"the answer from etcd cannot be read: {error!r}") from error
