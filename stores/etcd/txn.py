"""Turns batches into the bytes of etcd's transactions, and their responses into answers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from math import ceil
from operator import attrgetter
from typing import Any, Final

from ...ops.errors import MetadataStoreError
from ..backend import Answer, ReadRequest, WriteRequest
from .codecs import READS, WRITES, refusal_of
from .protobuf import field

__all__ = [
    "flat_write",
    "grouped",
    "nested_write",
    "parse_flat_failure",
    "parse_flat_success",
    "parse_nested",
    "parse_read",
    "read_request",
]

_kind = attrgetter("kind")
# The kinds whose responses are only the first pages of their answers.
_PAGED: Final = frozenset(kind for kind, codec in READS.items() if codec.paged)


def nested_write(requests: Iterable[WriteRequest], prefix: str) -> list[bytes]:
    """Return each write as one field of the batch's transaction, with its own outcome."""
    codecs = WRITES
    return [codecs[request.kind].nested(request, prefix) for request in requests]


def grouped(fields: Sequence[bytes], size: int) -> bytes:
    """Return a transaction of nested ones, each with up to ``size`` of the ``fields``.

    The sizes of the groups differ by one at most.
    """
    count = ceil(len(fields) / size)
    edges = [len(fields) * index // count for index in range(count + 1)]
    groups = []
    for start, end in pairwise(edges):
        groups.append(field(b"\x12", field(b"\x22", b"".join(fields[start:end]))))
    return b"".join(groups)


def flat_write(requests: Iterable[WriteRequest], prefix: str) -> bytes:
    """Return one flat transaction that applies all writes, or applies none and reads each path."""
    parts = [WRITES[request.kind].flat(request, prefix) for request in requests]
    return b"".join(part for column in zip(*parts, strict=True) for part in column)


def read_request(requests: Iterable[ReadRequest], prefix: str) -> bytes:
    """Return one flat transaction of ranges, which etcd answers without a raft proposal."""
    codecs = READS
    return b"".join([codecs[request.kind].encode(request, prefix) for request in requests])


def parse_nested(requests: Sequence[WriteRequest], response: Any, in_groups: bool) -> list[Answer]:
    """Return the answers to the fields of ``nested_write``, sent directly or ``grouped``."""
    revision = response.header.revision
    results = response.responses
    if in_groups:
        results = [result for group in results for result in group.response_txn.responses]
    codecs = WRITES
    return [
        codecs[request.kind].of_nested(request, result, revision)
        for request, result in zip(requests, results, strict=True)
    ]


def parse_flat_success(requests: Sequence[WriteRequest], response: Any) -> list[Answer]:
    """Return the answers to a flat transaction that was applied."""
    revision = response.header.revision
    return [
        WRITES[request.kind].of_flat(request, result, revision)
        for request, result in zip(requests, response.responses, strict=True)
    ]


def parse_flat_failure(
    requests: Sequence[WriteRequest], response: Any
) -> list[MetadataStoreError | None]:
    """Return the error of each write in a transaction that was not applied, or ``None``."""
    results = iter(response.responses)
    reasons: list[MetadataStoreError | None] = []
    for request in requests:
        codec = WRITES[request.kind]
        if codec.unconditional(request):
            reasons.append(None)
        else:
            reasons.append(refusal_of(request, [next(results) for _ in range(codec.weight)]))
    return reasons


def parse_read(
    requests: Sequence[ReadRequest], response: Any
) -> tuple[list[Answer], list[tuple[int, Any]]]:
    """Return the answers to ``read_request``, and the first pages of paged answers.

    Each page comes with its index, and takes its place among the answers when it is complete.
    """
    codecs = READS
    results = response.responses
    answers = [
        codecs[request.kind].answer(request, result)
        for request, result in zip(requests, results, strict=True)
    ]
    if _PAGED.isdisjoint(map(_kind, requests)):
        return answers, []
    return answers, [
        (index, results[index].response_range)
        for index, request in enumerate(requests)
        if request.kind in _PAGED
    ]
