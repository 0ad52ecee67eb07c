"""Recovers the results of a multi that was applied, but whose answer was lost.

A multi is all or nothing, so each of its operations succeeded, at the zxid and the time of the
multi's slot. A node that a put created is at version 0. For a node that existed before, the client
reads its creation and, without a condition, its new version. These belong to the multi if the node
was last changed at its zxid or, with a condition, at least was not created again since. If another
client was quicker, the put ends with ``IndeterminateError(applied=True)``.
"""

from __future__ import annotations

import time
from typing import Final, assert_never

from ...ops.errors import IndeterminateError, MetadataStoreError
from ...ops.operations import ABSENT
from ...ops.results import Stat
from ..backend import Answer
from .jute import CREATE, DELETE, PARENT, SET_DATA, ZNode
from .multi_settling import Applied
from .plan import Batch, Group
from .reads import Reader

__all__ = ["recover", "without_stat"]

# Seconds for reading back after the deadline has passed.
_PATIENCE: Final = 5.0


def recover(batch: Batch, group: Group, applied: Applied, reader: Reader, deadline: float) -> None:
    """Fill in the answers of the requests in a multi that was applied."""
    answers, requests = batch.answers, batch.requests
    zxid, when, _ = applied
    changed = []
    for opcode, i, _ in group.steps:
        if opcode == DELETE:
            answers[i] = None
        elif opcode == SET_DATA:
            changed.append(i)
        elif opcode == CREATE:
            path = requests[i].path
            answers[i] = without_stat(path) if zxid is None else Stat(path, 0, zxid, when, when)
        elif opcode != PARENT:
            assert_never(opcode)
    if not changed:
        return
    try:
        until = max(deadline, time.monotonic() + _PATIENCE)
        nodes = reader.look([batch.paths[i] for i in changed], until, fresh=True)
    except MetadataStoreError as error:
        nodes = []
        for i in changed:
            answers[i] = without_stat(requests[i].path, f"its result was not read back: {error}")
    for i, node in zip(changed, nodes, strict=False):
        answers[i] = _updated(batch, i, node, applied, reader)


def _updated(batch: Batch, i: int, node: object, applied: Applied, reader: Reader) -> Answer:
    request = batch.requests[i]
    zxid, when, _ = applied
    expected = request.expected_version
    # If the node was created again since, it is not the node that was set.
    if zxid is None or not isinstance(node, ZNode) or node.created_zxid > zxid:
        return without_stat(request.path, "the path has changed again since")
    seen = batch.seen.get(i)
    if (
        expected is not None
        and expected <= 0
        and (not isinstance(seen, ZNode) or seen.created_zxid != node.created_zxid)
    ):
        return IndeterminateError(
            f"{request.path!r} was removed and created again during the put: the value is written, "
            "but the value before it may not have had the expected version",
            path=request.path,
            applied=True,
        )
    if node.modified_zxid == zxid:
        version = node.version
    elif expected is None:
        return without_stat(request.path, "the path has changed again since")
    else:
        assert isinstance(seen, ZNode) or expected != ABSENT
        version = 1 + (seen.version if expected == ABSENT and seen is not None else expected)
    owner = node.owner
    return Stat(
        request.path, version, zxid, node.created, when, owner != 0, reader.owned_here(owner)
    )


def without_stat(
    path: str, reason: str = "its result could not be read back"
) -> IndeterminateError:
    """Return the error of a put that was certainly applied, without anything else known."""
    return IndeterminateError(
        f"the put of {path!r} was applied, but {reason}", path=path, applied=True
    )
