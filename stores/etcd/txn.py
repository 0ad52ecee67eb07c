"""Turns batches into parts of etcd's transactions, and their responses into answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from math import ceil
from operator import attrgetter
from typing import Any, Final, NamedTuple, assert_never, get_args

from ...ops.acceleration import accelerated, bind
from ...ops.operations import WriteKind
from ...ops.results import GetResult, Stat
from ..backend import Answer, PartRequest, ReadRequest, WriteRequest
from .attempts import Pending
from .batches import parsed
from .codecs import DELETE, PUT, READS, WriteCodec
from .fields import then_put, unleased, version_is
from .protobuf import field
from .protos import messages
from .transactions import HotTransaction

__all__ = [
    "HOT",
    "Response",
    "grouped",
    "joint_changes",
    "joint_compares",
    "lease_compares",
    "nested_write",
    "parse_read",
    "read_request",
    "read_response",
]


def _hot_codec(kind: WriteKind) -> WriteCodec:
    match kind:
        case "put":
            return PUT
        case "delete":
            return DELETE
        case "transaction":
            return HotTransaction()
        case _:
            assert_never(kind)


#: The codecs for writes while there are no sessions. Not all transactions suit theirs.
HOT: Final[Mapping[WriteKind, WriteCodec]] = {
    kind: _hot_codec(kind) for kind in get_args(WriteKind)
}

_kind = attrgetter("kind")
# The kinds whose responses are only the first pages of their answers.
_PAGED: Final = frozenset(kind for kind, codec in READS.items() if codec.paged)


@accelerated("etcd_writes")
def nested_write(requests: Iterable[WriteRequest], prefix: str) -> bytes:
    """Return each write as one field of the batch's transaction, with the fastest codec."""
    codecs = HOT
    return b"".join([codecs[request.kind].nested(request, prefix) for request in requests])


@accelerated("etcd_compares")
def joint_compares(requests: Iterable[PartRequest], prefix: str) -> bytes:
    """Return the conditions of puts and checks that expect versions."""
    compares = []
    for request in requests:
        assert request.expected_version is not None
        key = (prefix + request.path).encode()
        compares.append(version_is(key, request.expected_version + 1))
    return b"".join(compares)


@accelerated("etcd_lease_compares")
def lease_compares(requests: Iterable[WriteRequest], prefix: str) -> bytes:
    """Return the conditions that no key of these puts has a lease."""
    return b"".join([unleased((prefix + request.path).encode()) for request in requests])


@accelerated("etcd_changes")
def joint_changes(requests: Iterable[WriteRequest], prefix: str, extra: bytes = b"") -> bytes:
    """Return the changes of puts that expect versions; for ``extra`` see ``fields.put``."""
    return b"".join(
        [
            then_put((prefix + request.path).encode(), request.value or b"", extra)
            for request in requests
        ]
    )


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


class Header(NamedTuple):
    """The header of a response."""

    revision: int


class Response:
    """A transaction's response in which the answers to most groups are already there.

    Attributes:
        header: its header.
        succeeded: whether the transaction was applied.
        responses: for each group that has named its writes and was applied, the list of its
            answers; otherwise etcd's message.
    """

    __slots__ = ("header", "responses", "succeeded")

    def __init__(self, revision: int, responses: list[Any], succeeded: bool = True) -> None:
        self.header = Header(revision)
        self.responses = responses
        self.succeeded = succeeded


@accelerated("etcd_response")
def read_response(answer: bytes, groups: Sequence[Sequence[WriteRequest] | None]) -> Response:
    """Return the response to groups of writes.

    Args:
        answer: the response.
        groups: for each result of the transaction if it was applied, the writes that a group names
            (``Group.answered``), or ``None`` if the result is something else.

    Raises:
        DecodeError: the answer is no response.
        LookupError: the answer does not fit the writes.
        ValueError: it does not fit them, or has no revision.
    """
    codecs = HOT
    response = parsed(answer)
    revision, results = response.header.revision, [*response.responses]
    if not response.succeeded:
        return Response(revision, results, succeeded=False)
    for place, (writes, result) in enumerate(zip(groups, results, strict=True)):
        txn = result.response_txn
        if writes is not None and txn.succeeded:
            results[place] = [
                codecs[write.kind].of_nested(write, found, revision)
                for write, found in zip(writes, txn.responses, strict=True)
            ]
    return Response(revision, results)


def _write_answer(write: WriteRequest, result: bytes, revision: int) -> Pending:
    """Return the answer to an infrequent kind of write."""
    return HOT[write.kind].of_nested(write, messages.ResponseOp.FromString(result), revision)


@accelerated("etcd_reads")
def read_request(requests: Iterable[ReadRequest], prefix: str) -> bytes:
    """Return one flat transaction of ranges, which etcd answers without a raft proposal."""
    codecs = READS
    return b"".join([codecs[request.kind].encode(request, prefix) for request in requests])


@accelerated("etcd_read_answers")
def parse_read(
    requests: Sequence[ReadRequest], answer: bytes, owns: Callable[[int], bool]
) -> tuple[list[Answer], list[tuple[int, Any]]]:
    """Return the answers to ``read_request``, and the first pages of paged answers.

    Each page comes with its index, and takes its place among the answers when it is complete.
    ``owns`` says whether a lease is that of the client's session.
    """
    codecs = READS
    results = parsed(answer).responses
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


def _read_answer(
    request: ReadRequest,
    result: bytes,
    owns: Callable[[int], bool],
    index: int,
    pages: list[tuple[int, Any]],
) -> Answer:
    """Return the answer to an infrequent kind of read, and add its first page, if any."""
    parts = messages.ResponseOp.FromString(result)
    if request.kind in _PAGED:
        pages.append((index, parts.response_range))
    return READS[request.kind].answer(request, parts, owns)


bind(
    Stat=Stat,
    GetResult=GetResult,
    etcd_Response=Response,
    etcd_result=messages.ResponseOp.FromString,
    etcd_write_answer=_write_answer,
    etcd_read_answer=_read_answer,
)
