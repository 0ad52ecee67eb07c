"""Distributes the undecided writes of a call over multis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ....ops.acceleration import accelerated, bind
from ....ops.errors import ValueTooLargeError
from ....ops.operations import ABSENT
from ..session.sizes import Sizes
from ..wire.jute import (
    CREATE,
    EPHEMERAL,
    REPLACE,
    SEQUENTIAL,
    SET_DATA,
    Opcode,
    ephemeral,
    header_and_length,
    length,
    version_field,
)
from ..wire.nodes import SKIPPED, VALUE_MARK, Generations, size_of
from .batches import Batch, parent_of
from .forms import ANY_VERSION, ONLY_EPHEMERAL
from .groups import CREATE_OVERHEAD, DELETE_OVERHEAD, Changes, Group
from .transactions import TransactionPlanner

__all__ = ["REQUEST_OVERHEAD", "MultiPlan", "add_puts"]

#: xid, opcode and the end of the list.
REQUEST_OVERHEAD: Final = 17

bind(only_ephemeral=ONLY_EPHEMERAL)


class MultiPlan:
    """The multis of one round, in ``groups``.

    Puts come first, then transactions, then deletes. Parents come before children and, among
    deletes, children before parents. A transaction keeps its own order. What does not fit in that
    order waits for the next round, which shows its result:

    - the delete of a path below which something is created;
    - a creation that would directly follow that of a value right above it (in the next multi);
    - a put below a path that becomes ephemeral;
    - a transaction that another request of the plan would disturb (see ``transactions``).
    """

    def __init__(
        self,
        batch: Batch,
        sizes: Sizes,
        room: int,
        acl: bytes,
        limit: int,
    ) -> None:
        """Plan one round.

        Args:
            batch: the call. Oversized requests get their answers here.
            sizes: the limits of a multi's length.
            room: the bytes that a multi has beside its planned operations.
            acl: the access rights of new nodes, encoded.
            limit: the most requests in one multi.
        """
        self.groups: list[Group] = []
        self._batch = batch
        self._acl = acl
        self._overhead = REQUEST_OVERHEAD + room
        self._packet = sizes.usual - self._overhead
        self._most = sizes.most - self._overhead
        self._limit = limit
        self._group = Group()
        paths = batch.paths
        by_length = sorted(batch.pending, key=[*map(len, paths)].__getitem__)
        if batch.parts:
            by_length = [i for i in by_length if i not in batch.parts]
        deletes = [i for i in by_length if i in batch.deletes] if batch.deletes else []
        self._changes = Changes({paths[i] for i in deletes})
        self._put_all([i for i in by_length if i not in batch.deletes] if deletes else by_length)
        if batch.parts:
            planner = TransactionPlanner(batch, acl, self._changes, by_length, self._mark)
            planner.add_all(self._fit)
        for i in reversed(deletes):
            if paths[i] not in self._changes.kept:
                self._delete(i)
        self._close()

    def _put_all(self, places: Sequence[int]) -> None:
        batch, changes, nodes = self._batch, self._changes, self._batch.nodes
        acl, room, limit = self._acl, self._packet, self._limit
        start, end = 0, len(places)
        while start < end:
            start = add_puts(
                self._group, batch, changes, nodes.generations, places, start, acl, room, limit
            )
            plain = start == end
            while not plain:
                self._put(places[start])
                start += 1
                # Puts with a fixed form are sequential: never plain, and often many together.
                plain = start == end or places[start] not in batch.fixed

    def _put(self, i: int) -> None:
        """Add a put that is not plain, or the first in the next multi."""
        batch, acl = self._batch, self._acl
        path = batch.paths[i]
        opcode, _, value = form = batch.form(i)
        if opcode != SET_DATA and not self._need(parent_of(path), i):
            return
        # All of it goes into one multi, so it is made apart.
        own = Group()
        if opcode == SEQUENTIAL:
            for _ in range(batch.skips.get(i, 0)):
                own.add_probe(i, parent_of(path) + SKIPPED, acl)
            own.add_sequential(i, path, value, acl, fleeting=i in batch.ephemerals)
        else:
            own.add_put(i, path, form, acl)
        if i in batch.ephemerals:
            own.session = batch.session
        group = self._fit(own.size, i)
        if group is None:
            return
        group.merge(own)
        if opcode != SEQUENTIAL:
            self._changes.made.add(path)
        if opcode in (EPHEMERAL, REPLACE):
            self._changes.fleeting.add(path)

    def _mark(self, parent: str, i: int) -> None:
        """Mark the last value if it was created at ``parent``, or above it.

        If a creation below it followed directly, the value would look like a parent without one in
        the events of the multi (see ``events``).
        """
        last = self._group.last_value(self._batch.paths)
        if last is None or not f"{parent}/".startswith(f"{last}/"):
            return
        mark, group = last + VALUE_MARK, self._group
        size = CREATE_OVERHEAD + DELETE_OVERHEAD + 2 * len(mark.encode()) + len(self._acl)
        if group.size + size > self._packet or group.operations >= self._limit:
            self._close()  # Another multi does it, too, where events have zxids.
            return
        group.add_probe(i, mark, self._acl)

    def _delete(self, i: int) -> None:
        path = self._batch.paths[i]
        _, version, _ = self._batch.form(i)
        group = self._fit(DELETE_OVERHEAD + len(path.encode()), i)
        if group is not None:
            group.add_delete(i, path, version)
            group.operations += 1

    def _need(self, parent: str, i: int) -> bool:
        """Create the parents of a put that are not known to exist; say whether it may follow."""
        self._mark(parent, i)
        changes = self._changes
        missing = []
        while parent and parent not in changes.made and self._batch.nodes.size(parent) is None:
            missing.append(parent)
            parent = parent_of(parent)
        if parent in changes.fleeting:
            return False
        if changes.deleted:
            changes.kept |= changes.deleted.intersection((parent, *missing))
        for path in reversed(missing):
            group = self._fit(CREATE_OVERHEAD + len(path.encode()) + len(self._acl), i)
            if group is None:
                return False
            group.add_parent(i, path, self._acl)
            changes.made.add(path)
            changes.planted.add(path)
        return True

    def _fit(self, size: int, i: int) -> Group | None:
        """Return a group with room for an operation; refuse a request that fits in none."""
        group = self._group
        if group.size + size > self._packet or group.operations >= self._limit:
            if size > self._most:
                path = self._batch.requests[i].path
                self._batch.answers[i] = ValueTooLargeError(
                    f"the operation on {path!r:.80} takes {self._overhead + size} bytes; a request "
                    f"to ZooKeeper has at most {self._overhead + self._most} (jute.maxbuffer)",
                    path=path,
                )
                return None
            self._close()
            group = self._group
        return group

    def _close(self) -> None:
        if self._group.ops:
            self.groups.append(self._group)
            self._group = Group()


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

    Nearly all operations of nearly all calls are added here. What is rare is left to the caller, so
    that the compiled twin need not handle it.

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
