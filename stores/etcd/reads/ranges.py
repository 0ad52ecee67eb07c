"""The forms of reads: each kind in one flat transaction of ranges, and its answer.

etcd answers such a transaction without a raft proposal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, assert_never

from ....ops.acceleration import accelerated, bind
from ....ops.results import GetResult, Stat
from ...backend import Answer, ReadRequest
from ..wire.batches import parsed
from ..wire.fields import VARINT, below_of
from ..wire.protos import messages

__all__ = ["FIRST_PAGE", "parse_read", "read_request"]

#: The names that a get_children asks for at first: most directories are smaller.
FIRST_PAGE: Final = 64

_new = tuple.__new__


class _GetHeads(dict[int, bytes]):
    """The bytes before the key of a get in its field of a transaction, by the key's length."""

    def __missing__(self, length: int) -> bytes:
        key = b"\x0a" + VARINT[length]
        size = len(key) + length
        head = b"\x0a" + VARINT[size] + key
        self[length] = head = b"\x12" + VARINT[len(head) + length] + head
        return head


_GET_HEAD: Final = _GetHeads()


@accelerated("etcd_reads")
def read_request(requests: Iterable[ReadRequest], prefix: str) -> bytes:
    """Return the ranges of reads."""
    return b"".join([_range_of(request, prefix) for request in requests])


def _range_of(request: ReadRequest, prefix: str) -> bytes:
    """Return a read as one range of a transaction."""
    kind, varint = request.kind, VARINT
    match kind:
        case "get":
            key = (prefix + request.path).encode()
            return _GET_HEAD[len(key)] + key
        case "exists":
            key = (prefix + request.path).encode()
            return _range(b"\x0a%b%b\x48\x01" % (varint[len(key)], key))  # count_only
        case "get_children":
            below, end = below_of(request.path, prefix)
            return _range(
                b"\x0a%b%b\x12%b%b\x18%b\x40\x01"
                % (varint[len(below)], below, varint[len(end)], end, varint[FIRST_PAGE])
            )
        case _:
            assert_never(kind)


def _range(body: bytes) -> bytes:
    varint = VARINT
    body_size = varint[len(body)]
    return b"\x12%b\x0a%b%b" % (varint[len(body) + 1 + len(body_size)], body_size, body)


@accelerated("etcd_read_answers")
def parse_read(
    requests: Sequence[ReadRequest], answer: bytes, owns: Callable[[int], bool]
) -> tuple[list[Answer], list[tuple[int, Any]]]:
    """Return the answers to ``read_request``, and the first pages of listings.

    Each page comes with its index, and takes its place among the answers when it is complete.
    ``owns`` says whether a lease is that of the client's session.
    """
    pages: list[tuple[int, Any]] = []
    answers = [
        _answer_of(request, result, owns, index, pages)
        for index, (request, result) in enumerate(
            zip(requests, parsed(answer).responses, strict=True)
        )
    ]
    return answers, pages


def _answer_of(
    request: ReadRequest,
    result: Any,
    owns: Callable[[int], bool],
    index: int,
    pages: list[tuple[int, Any]],
) -> Answer:
    """Return the answer to a read; of a listing, add its first page."""
    kind, found = request.kind, result.response_range
    match kind:
        case "get":
            if not found.kvs:
                return None
            kv = found.kvs[0]
            new, path, lease = _new, request.path, kv.lease
            owned = lease != 0 and owns(lease)
            stat = new(Stat, (path, kv.version - 1, kv.mod_revision, None, None, lease != 0, owned))
            return new(GetResult, (kv.value, stat))
        case "exists":
            return bool(found.count > 0)
        case "get_children":
            pages.append((index, found))
            return None
        case _:
            assert_never(kind)


def _infrequent_answer(
    request: ReadRequest,
    result: bytes,
    owns: Callable[[int], bool],
    index: int,
    pages: list[tuple[int, Any]],
) -> Answer:
    """Return what ``_answer_of`` does, from the bytes of a result."""
    return _answer_of(request, messages.ResponseOp.FromString(result), owns, index, pages)


bind(GetResult=GetResult, Stat=Stat, etcd_read_answer=_infrequent_answer)
