"""The answers of the requests in a multi that was applied.

This module answers them from the multi's own results. ``recovery`` reads what they were if the
answer was lost.
"""

from __future__ import annotations

from typing import Final, Literal, cast

from ...ops.errors import IndeterminateError, MetadataStoreError
from ...ops.results import Stat
from ...ops.steps import Step
from ..backend import Answer
from .batches import Batch
from .forms import is_ephemeral, is_unproven
from .groups import Group
from .jute import (
    CHECK,
    CREATE,
    DELETE,
    EPHEMERAL,
    PARENT,
    PROBE,
    SEQUENTIAL,
    SET_DATA,
    Opcode,
    Update,
    ZNode,
)
from .multi_settling import Applied
from .puts import answer_ops
from .reads import Reader

__all__ = [
    "answer",
    "answer_op",
    "created_again",
    "fleeting",
    "gather",
    "members",
    "replaced",
    "without_stat",
]


_CREATIONS: Final = (CREATE, EPHEMERAL, SEQUENTIAL)


def answer(batch: Batch, group: Group, applied: Applied, reader: Reader) -> None:
    """Answer the requests of a multi that was applied and answered."""
    zxid, when, results = applied
    assert results is not None
    left = answer_ops(group.ops, batch.requests, batch.answers, results.updates, zxid, when)
    suffixes = iter(results.suffixes)
    for opcode, i, update in left:
        if update is not None:
            batch.answers[i] = _updated(batch, i, update, reader)
        else:
            suffix = next(suffixes) if opcode == SEQUENTIAL else ""
            answer_op(batch, i, opcode, applied, suffix)


def answer_op(
    batch: Batch,
    i: int,
    opcode: Opcode | Literal[-1],
    applied: Applied,
    suffix: str | None,
) -> None:
    """Answer a request by one of its ops: any but a setData or a delete.

    ``suffix`` is the suffix of a sequential node, ``None`` if it is not known.
    """
    request = batch.requests[i]
    zxid, when, _ = applied
    if opcode in _CREATIONS:
        if zxid is None:
            batch.answers[i] = without_stat(request.path)
        elif suffix is None:
            batch.answers[i] = without_stat(request.path, "its name could not be found again")
        else:
            owned = opcode == EPHEMERAL or (opcode == SEQUENTIAL and i in batch.ephemerals)
            batch.answers[i] = Stat(request.path + suffix, 0, zxid, when, when, owned, owned)
    elif opcode != CHECK and opcode != PARENT and opcode != PROBE:
        raise AssertionError(f"an op of type {opcode}")


def _updated(batch: Batch, i: int, update: Update, reader: Reader) -> Answer:
    request = batch.requests[i]
    _, born, revision, made, modified, version, owner = update
    if replaced(batch.step(i), batch.seen.get(i), born, owner):
        return created_again(request.path, "put")
    return Stat(
        request.path, version, revision, made, modified, owner != 0, reader.owned_here(owner)
    )


def gather(batch: Batch, whole: int) -> None:
    """Answer a transaction that was applied, from the answers of its parts."""
    places = batch.parts[whole]
    answers = batch.answers[places.start : places.stop]
    for answer in answers:
        if isinstance(answer, MetadataStoreError):
            batch.answers[whole] = answer
            return
    batch.answers[whole] = cast("list[Stat | None]", answers)


def members(batch: Batch, group: Group) -> list[int]:
    """Return the requests of a multi, each once."""
    whole = batch.whole
    members = [i for opcode, i, _ in group.ops if opcode != PARENT]
    if not whole and group.session is None and not group.sequences:
        return members
    return list(dict.fromkeys([whole.get(i, i) for i in members]))


def fleeting(batch: Batch, group: Group) -> set[int]:
    """Return the requests of a multi that leave nothing behind when their session ends."""
    whole, lasting = batch.whole, set()
    for opcode, i, _ in group.ops:
        if opcode in (CREATE, SET_DATA) or (opcode == DELETE and i in batch.deletes):
            lasting.add(whole.get(i, i))
    return {i for i in batch.ephemerals if i in members(batch, group)} - lasting


def replaced(step: Step, seen: ZNode | None, born: int, owner: int) -> bool:
    """Say whether a put that was applied may have met another node than the client has seen.

    ``born`` and ``owner`` describe the node that was set. The server cannot check that a node holds
    a value, so the client has looked at the nodes of puts that expect version 0 or ABSENT, or are
    ephemeral.
    """
    if step.condition == "any":
        # A parent without a value is never ephemeral. A put that is not ephemeral may set it.
        if owner != 0 or not is_ephemeral(step):
            return False
    elif not is_unproven(step.condition):
        return False
    return seen is None or seen.created_zxid != born


def created_again(path: str, what: str) -> IndeterminateError:
    """Return the error of a write that was applied, perhaps against its condition."""
    return IndeterminateError(
        f"a node was removed during the {what}: it was applied, but {path!r} may not have been as "
        "expected before",
        path=path,
        applied=True,
    )


def without_stat(
    path: str, reason: str = "its result could not be read back"
) -> IndeterminateError:
    """Return the error of a put that was certainly applied, without anything else known."""
    return IndeterminateError(
        f"the put of {path!r} was applied, but {reason}", path=path, applied=True
    )
