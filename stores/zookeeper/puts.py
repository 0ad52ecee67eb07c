"""Plain puts in a multi: nearly all operations of nearly all calls.

The functions here are the loops over the operations of a call. Each leaves what is rare to its
caller, so that its compiled twin need not handle it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, TypeAlias

from ...ops.acceleration import accelerated, bind
from ...ops.operations import ABSENT
from ...ops.results import Stat
from ..backend import Answer, PartRequest
from .batches import Batch, parent_of
from .forms import ANY_VERSION, ONLY_EPHEMERAL
from .groups import CREATE_OVERHEAD, Group
from .jute import (
    CREATE,
    DELETE,
    EPHEMERAL,
    SET_DATA,
    Op,
    Opcode,
    Update,
    ephemeral,
    header_and_length,
    length,
    version_field,
)
from .nodes import Generations, size_of
from .transactions import Changes

__all__ = ["add_puts", "answer_ops", "note_ops"]

#: An op that :func:`answer_ops` has not answered: its opcode, its request, and the result of a
#: setData.
Left: TypeAlias = tuple[Opcode | Literal[-1], int, Update | None]

# Ops that leave their request's value at its path.
_KEEPS: Final = frozenset({CREATE, SET_DATA, EPHEMERAL})

bind(Stat=Stat, only_ephemeral=ONLY_EPHEMERAL)


@accelerated
def add_puts(  # noqa: C901, PLR0912, PLR0915 - in one piece: every operation pays for each call
    group: Group,
    batch: Batch,
    changes: Changes,
    generations: Generations,
    places: Sequence[int],
    start: int,
    acl: bytes,
    room: int,
    limit: int,
    /,
) -> int:
    """Add puts to a multi, as long as they are plain and fit.

    A put is not plain if it is sequential, if it is ephemeral and may meet a node, if its parent is
    not certain to exist when it is created, or if a mark must go before it.

    Args:
        group: the multi.
        batch: the call.
        changes: what the plan does to the tree.
        generations: the known nodes.
        places: the places of all puts of the call.
        start: where to begin in ``places``.
        acl: the access rights of new nodes, encoded.
        room: the most bytes of the multi's operations.
        limit: the most requests in one multi.

    Returns:
        the index in ``places`` of the first put that was not added.
    """
    requests, paths, seen = batch.requests, batch.paths, batch.seen
    parts, ops = group.parts, group.ops
    made = changes.made
    size, operations = group.size, group.operations
    fleeting_acl = ephemeral(acl)
    last_parent: str | None = None
    end = start
    for end in range(start, len(places)):
        i = places[end]
        request, path = requests[i], paths[i]
        expected, value, options = request.expected_version, request.value, request.options
        if request.kind != "put" or value is None:
            break
        opcode: Opcode = CREATE
        tail = acl
        if options is not None:
            if (options is not ONLY_EPHEMERAL and options != ONLY_EPHEMERAL) or i in seen:
                break
            if expected is None:
                if size_of(generations, path) is not None:
                    break
            elif expected != ABSENT:
                break
            opcode, tail = EPHEMERAL, fleeting_acl
        elif expected is None:
            there = seen[i] if i in seen else size_of(generations, path)
            if there is not None:
                opcode, tail = SET_DATA, version_field(ANY_VERSION)
        elif expected != ABSENT:
            opcode, tail = SET_DATA, version_field(expected)
        elif (node := seen.get(i)) is not None:
            opcode, tail = SET_DATA, version_field(node.version)
        if opcode != SET_DATA:
            parent = parent_of(path)
            if parent != last_parent:
                if not _has_parent(group, batch, changes, generations, parent):
                    break
                last_parent = parent
        raw = path.encode()
        more = CREATE_OVERHEAD + len(raw) + len(value) + len(tail)
        if size + more > room or operations >= limit:
            break
        size += more
        operations += 1
        parts += (
            header_and_length(CREATE if opcode == EPHEMERAL else opcode, len(raw)),
            raw,
            length(len(value)),
            value,
            tail,
        )
        ops.append((opcode, i, len(raw)))
        made.add(path)
        if opcode != SET_DATA and group.created is None:
            group.created = path
        if opcode == EPHEMERAL:
            changes.fleeting.add(path)
            group.session = batch.session
    else:
        end = len(places)
    group.size, group.operations = size, operations
    return end


def _has_parent(
    group: Group, batch: Batch, changes: Changes, generations: Generations, parent: str
) -> bool:
    """Say whether a creation below ``parent`` needs nothing else before it."""
    if parent in changes.deleted or parent in changes.fleeting:
        return False
    if parent and parent not in changes.made and size_of(generations, parent) is None:
        return False
    last = group.last_value(batch.paths)
    return last is None or not f"{parent}/".startswith(f"{last}/")


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
            if (
                request.kind == "put"
                and request.options is None
                and owner == 0
                and (expected is None or expected > 0)
            ):
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
