"""Recovers the results of a multi that was applied, but whose answer was lost.

A multi is all or nothing, so each of its operations succeeded, at the zxid and the time of the
multi's slot. A node that a put created is at version 0. For a node that existed before, the client
reads its creation and, without a condition, its new version. These belong to the multi if the node
was last changed at its zxid or, with a condition, at least was not created again since. If another
client was quicker, the put ends with ``IndeterminateError(applied=True)``. ``sequences`` finds the
names of sequential nodes.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final

from ...ops.errors import MetadataStoreError
from ...ops.results import Stat
from ..backend import Answer
from .batches import Batch
from .connection import ZooKeeperConnection
from .forms import ANY_VERSION
from .groups import Group
from .jute import DELETE, SEQUENTIAL, SET_DATA, ZNode
from .multi_settling import Applied
from .outcomes import answer_op, created_again, replaced, without_stat
from .reads import Reader
from .sequences import find_suffixes

__all__ = ["PATIENCE", "recover"]

#: Seconds for reading back after the deadline has passed.
PATIENCE: Final = 5.0


def recover(
    batch: Batch,
    group: Group,
    applied: Applied,
    reader: Reader,
    connection: ZooKeeperConnection,
    deadline: float,
) -> None:
    """Fill in the answers of the requests in a multi that was applied."""
    until = max(deadline, time.monotonic() + PATIENCE)
    suffixes: Mapping[int, str] = {}
    if group.sequences and applied.zxid is not None:
        suffixes = find_suffixes(batch, group, applied.zxid, connection, until)
    answers, requests = batch.answers, batch.requests
    changed = []
    for opcode, i, _ in group.ops:
        if opcode == SET_DATA:
            changed.append(i)
        elif opcode == DELETE:
            answers[i] = None
        else:
            suffix = suffixes.get(i) if opcode == SEQUENTIAL else ""
            answer_op(batch, i, opcode, applied, suffix)
    if not changed:
        return
    try:
        nodes = reader.read_nodes([batch.paths[i] for i in changed], until, fresh=True)
    except MetadataStoreError as error:
        nodes = []
        for i in changed:
            answers[i] = without_stat(requests[i].path, f"its result was not read back: {error}")
    for i, node in zip(changed, nodes, strict=False):
        answers[i] = _updated(batch, i, node, applied, reader)


def _updated(batch: Batch, i: int, node: object, applied: Applied, reader: Reader) -> Answer:
    step, seen = batch.step(i), batch.seen.get(i)
    zxid, when, _ = applied
    # If the node was created again since, it is not the node that was set.
    if zxid is None or not isinstance(node, ZNode) or node.created_zxid > zxid:
        return without_stat(step.path, "the path has changed again since")
    if replaced(step, seen, node.created_zxid, node.owner):
        return created_again(step.path, "put")
    version = node.version
    if node.modified_zxid != zxid:
        _, compared, _ = batch.form(i)
        if compared == ANY_VERSION:
            return without_stat(step.path, "the path has changed again since")
        version = compared + 1
    owner = node.owner
    return Stat(step.path, version, zxid, node.created, when, owner != 0, reader.owned_here(owner))
