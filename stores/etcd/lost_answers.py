"""Finds the answers of writes whose transaction was applied, but whose response was lost.

At the revision of the transaction, each path shows whether its write was applied there: nothing
else has that revision. A write that was not applied is either refused by the state that it found,
or sent again: it changed nothing, so its outcome may as well be that of the next attempt.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any, assert_never

from ...ops.operations import ABSENT
from ...ops.results import Stat
from ..backend import PartRequest, WriteRequest
from ..refusals import refusal
from .attempts import Attempt, Creation, Pending, Terms, there_of

__all__ = ["Unclear", "answer_at_revision", "answer_from_before"]


class Unclear(Enum):
    """Shows that the revision of a transaction alone does not reveal the answer of a write."""

    READ_BEFORE = "read at the revision before its transaction's"


def answer_at_revision(
    request: WriteRequest, kvs: Sequence[Any | None], revision: int, terms: Terms
) -> Pending | Unclear:
    """Return the answer of a write from its keys at the revision of its transaction.

    Args:
        request: the write.
        kvs: the keys of ``transactions.changes_of``; ``None`` for a missing one.
        revision: the revision.
        terms: those of the transaction.
    """
    if not kvs:
        return Attempt(request)  # It changes nothing.
    kv = kvs[0]
    if request.kind == "transaction":
        return _of_transaction(request, kvs, revision, terms)
    if request.kind == "put":
        if kv and kv.mod_revision == revision:
            return _stat(request, kv, terms)
        if isinstance(request, Creation):
            return Attempt(request)
    elif request.kind == "delete":
        if kv is None:
            return Unclear.READ_BEFORE  # At a revision, a deleted path looks like one never put.
    else:
        assert_never(request.kind)
    actual, found = (kv.version - 1, kv.mod_revision) if kv else (ABSENT, 0)
    return refusal(request, actual, False, found) or _again(request)


def answer_from_before(request: WriteRequest, there: bool, occupied: bool) -> Pending:
    """Return the answer of a write from the state of a path before its transaction.

    Args:
        request: a write that deletes, and puts nothing, with a path that is missing afterwards.
        there: whether there was a value at the path.
        occupied: whether there were values below it.
    """
    if there:
        if request.kind == "transaction":
            assert request.options is not None
            nothing: list[Stat | None] = [None for _ in request.options.parts]
            return nothing
        return None
    if request.kind == "transaction":
        return _again(request)
    return refusal(request, ABSENT, occupied) or _again(request)


def _of_transaction(
    request: WriteRequest, kvs: Sequence[Any | None], revision: int, terms: Terms
) -> Pending | Unclear:
    assert request.options is not None
    parts = request.options.parts
    if all(part.kind != "put" for part in parts):
        return Unclear.READ_BEFORE if kvs[0] is None else _again(request)
    if kvs[0] is None or kvs[0].mod_revision != revision:
        return _again(request)
    found = iter(kvs)
    return [_stat(part, next(found), terms) if part.kind == "put" else None for part in parts]


def _stat(request: PartRequest, kv: Any, terms: Terms) -> Stat:
    lease = kv.lease
    owned = lease != 0 and terms.owns(lease)
    return Stat(request.path, kv.version - 1, kv.mod_revision, None, None, lease != 0, owned)


def _again(request: WriteRequest) -> Attempt:
    return Attempt(request, there_of(request))
