"""Turns batches into parts of etcd's transactions, and their responses into answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from math import ceil
from operator import attrgetter
from typing import Any, Final

from ...ops.operations import WriteKind
from ..backend import Answer, ReadRequest, WriteRequest
from .codecs import DELETE, PUT, READS, WriteCodec
from .protobuf import field
from .transactions import HotTransaction

__all__ = [
    "HOT",
    "grouped",
    "nested_write",
    "parse_read",
    "read_request",
]

#: The codecs for writes while there are no sessions. Not all transactions suit theirs.
HOT: Final[Mapping[WriteKind, WriteCodec]] = {
    "put": PUT,
    "delete": DELETE,
    "transaction": HotTransaction(),
}

_kind = attrgetter("kind")
# The kinds whose responses are only the first pages of their answers.
_PAGED: Final = frozenset(kind for kind, codec in READS.items() if codec.paged)


def nested_write(requests: Iterable[WriteRequest], prefix: str) -> list[bytes]:
    """Return each write as one field of the batch's transaction, with the fastest codec."""
    codecs = HOT
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


def read_request(requests: Iterable[ReadRequest], prefix: str) -> bytes:
    """Return one flat transaction of ranges, which etcd answers without a raft proposal."""
    codecs = READS
    return b"".join([codecs[request.kind].encode(request, prefix) for request in requests])


def parse_read(
    requests: Sequence[ReadRequest], response: Any, owns: Callable[[int], bool]
) -> tuple[list[Answer], list[tuple[int, Any]]]:
    """Return the answers to ``read_request``, and the first pages of paged answers.

    Each page comes with its index, and takes its place among the answers when it is complete.
    ``owns`` says whether a lease is that of the client's session.
    """
    codecs = READS
    results = response.responses
    answers = [
        codecs[request.kind].answer(request, result, owns)
        for request, result in zip(requests, results, strict=True)
    ]
    if _PAGED.isdisjoint(map(_kind, requests)):
        return answers, []
    return answers, [
        (index, results[index].response_range)
        for index, request in enumerate(requests)
        if request.kind in _PAGED
    ]
