"""The answers of the requests in a multi that was applied.

Nearly always, these come from the multi's own results.

If the answer was lost, :func:`recover` finds them. A multi is all or nothing, so each of its
operations succeeded, at the zxid and the time of the multi's slot. A node that a put created is at
version 0. For a node that existed before, the client reads its creation and, without a condition,
its new version. These belong to the multi if the node was last changed at its zxid or, with a
condition, at least was not created again since. If another client was quicker, the put ends with
``IndeterminateError(applied=True)``. ``sequences`` finds the names of sequential nodes.

:class:`SecondRead` finds out whether conditions held that the server cannot check. No check
distinguishes a value at version 0 from a parent without one, or an ephemeral node from another one.
So the client looks at the node before the transaction, and again after it. If it is the same node,
the check was right. The second read follows the multi at once, without waiting for its answer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Literal, TypeAlias, cast

from ....ops.acceleration import accelerated, bind
from ....ops.errors import IndeterminateError, MetadataStoreError
from ....ops.results import Stat
from ....ops.steps import Step
from ...backend import Answer, PartRequest, is_plain_put, send_by
from ..reads.reader import BY_MULTI, Reader
from ..session.connection import ZooKeeperConnection
from ..wire.jute import (
    CHECK,
    CREATE,
    DELETE,
    EPHEMERAL,
    PARENT,
    PROBE,
    SEQUENTIAL,
    SET_DATA,
    Op,
    Opcode,
    Update,
    ZNode,
)
from ..wire.nodes import Generations
from .batches import Batch
from .forms import ANY_VERSION, is_ephemeral, is_unproven
from .groups import Group
from .sequences import find_suffixes
from .settling import Applied

__all__ = ["SecondRead", "answer", "fleeting", "gather", "members", "note_ops", "recover"]


# Seconds for reading back after the deadline has passed.
_PATIENCE: Final = 5.0

_CREATIONS: Final = (CREATE, EPHEMERAL, SEQUENTIAL)

#: An op that :func:`answer_ops` has not answered: its opcode, its request, and the result of a
#: setData.
Left: TypeAlias = tuple[Opcode | Literal[-1], int, Update | None]

# Ops that leave their request's value at its path.
_KEEPS: Final = frozenset({CREATE, SET_DATA, EPHEMERAL})

bind(Stat=Stat)


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


@accelerated
def answer_ops(
    ops: Sequence[Op],
    requests: Sequence[PartRequest],
    answers: list[Answer],
    updates: Sequence[Update],
    zxid: int | None,
    when: int | None,
    /,
) -> list[Left]:
    """Answer the requests of a multi that was applied, at a zxid and a time.

    Returns:
        the ops that it has not answered, in order.
    """
    new = tuple.__new__  # half the cost of Stat(...), for each of a thousand
    fields, fleeting = (zxid, when, when, False, False), (zxid, when, when, True, True)
    results = iter(updates)
    left: list[Left] = []
    for opcode, i, _ in ops:
        if opcode == CREATE and zxid is not None:
            answers[i] = new(Stat, (requests[i].path, 0, *fields))
        elif opcode == EPHEMERAL and zxid is not None:
            answers[i] = new(Stat, (requests[i].path, 0, *fleeting))
        elif opcode == SET_DATA:
            request = requests[i]
            update = next(results)
            _, _, revision, made, modified, version, owner = update
            expected = request.expected_version
            if is_plain_put(request) and owner == 0 and (expected is None or expected > 0):
                answers[i] = new(
                    Stat, (request.path, version, revision, made, modified, False, False)
                )
            else:
                left.append((opcode, i, update))
        elif opcode == DELETE:
            answers[i] = None
        else:
            left.append((opcode, i, None))
    return left


@accelerated
def note_ops(
    ops: Sequence[Op],
    requests: Sequence[PartRequest],
    paths: Sequence[str],
    generations: Generations,
    /,
) -> tuple[int, int]:
    """Note the nodes that a multi has left at its paths; return the values and their bytes."""
    young, old = generations
    values = value_bytes = 0
    for opcode, i, _ in ops:
        if opcode == DELETE:
            young.pop(paths[i], None)
            old.pop(paths[i], None)
        # A write without a value of its own has left the one that was there.
        elif opcode in _KEEPS and (value := requests[i].value) is not None:
            size = young[paths[i]] = len(value)
            values += 1
            value_bytes += size
    return values, value_bytes


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
    request, seen = batch.requests[i], batch.seen.get(i)
    _, born, revision, made, modified, version, owner = update
    if request.expected_version == 0:  # Most. `replaced` says the same.
        again = seen is None or seen.created_zxid != born
    else:
        again = replaced(batch.step(i), seen, born, owner)
    if again:
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


def recover(
    batch: Batch,
    group: Group,
    applied: Applied,
    reader: Reader,
    connection: ZooKeeperConnection,
    deadline: float,
) -> None:
    """Fill in the answers of the requests in a multi that was applied."""
    until = max(deadline, time.monotonic() + _PATIENCE)
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
        nodes = reader.read_nodes([batch.paths[i] for i in changed], until, after=BY_MULTI)
    except MetadataStoreError as error:
        nodes = []
        for i in changed:
            answers[i] = without_stat(requests[i].path, f"its result was not read back: {error}")
    for i, node in zip(changed, nodes, strict=False):
        answers[i] = _recovered(batch, i, node, applied, reader)


def _recovered(batch: Batch, i: int, node: object, applied: Applied, reader: Reader) -> Answer:
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


class SecondRead:
    """The second read of the nodes of one round, behind its multis.

    Args:
        batch: the call.
        groups: the multis.
        reader: reads the nodes.
        connection: the number of the connection before the multis are sent.
        deadline: that of the call.
    """

    def __init__(
        self,
        batch: Batch,
        groups: Sequence[Group],
        reader: Reader,
        connection: int,
        deadline: float,
    ) -> None:
        self._batch = batch
        self._reader = reader
        self._connection = connection
        self._deadline = deadline
        # By part.
        self._checked = {k: _checked(batch, k) for group in groups for k in group.unproven}
        # Transactions may check the same paths.
        self._paths = list(dict.fromkeys([path for path, _ in self._checked.values()]))
        self._wait: Callable[[], Sequence[int]] | None = None
        self._czxids: dict[str, int] | None = None

    def begin(self) -> None:
        """Send it; any earlier one no longer counts."""
        if self._paths:
            until = max(self._deadline, time.monotonic() + _PATIENCE)
            self._wait = self._reader.begin_czxids(
                self._paths, send_by(self._deadline), until, self._connection
            )

    def judge(self, parts: Sequence[int]) -> None:
        """End the transactions of parts that may not have held as applied, but no more is known."""
        if self._czxids is None:
            self._czxids = self._read()
        batch, czxids = self._batch, self._czxids
        for k in parts:
            path, expected = self._checked[k]
            whole = batch.whole[k]
            failed = isinstance(batch.answers[whole], MetadataStoreError)
            if not failed and czxids.get(path) != expected:
                batch.answers[whole] = created_again(batch.requests[k].path, "transaction")

    def _read(self) -> dict[str, int]:
        if self._wait is None:
            self.begin()  # The last multis were not sent.
        assert self._wait is not None
        try:
            return dict(zip(self._paths, self._wait(), strict=True))
        except MetadataStoreError:
            return {}


def _checked(batch: Batch, k: int) -> tuple[str, int]:
    """Return the path of the node that was checked, and the zxid of its creation when seen."""
    seen = batch.seen.get(k)
    # No node has 0.
    czxid = seen.created_zxid if isinstance(seen, ZNode) else 0
    return batch.shelters.get(k) or (batch.paths[k], czxid)
