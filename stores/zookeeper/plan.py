"""Distributes the undecided writes of a call over multis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ...ops.errors import ValueTooLargeError
from .batches import Batch, parent_of
from .groups import CREATE_OVERHEAD, DELETE_OVERHEAD, Group
from .jute import EPHEMERAL, REPLACE, SEQUENTIAL, SET_DATA, WriteOpcode
from .nodes import SKIPPED, VALUE_MARK
from .puts import add_puts
from .sizes import Sizes
from .transactions import Changes, TransactionPlanner

__all__ = ["OP_OVERHEAD", "REQUEST_OVERHEAD", "MultiPlan"]

#: xid, opcode and the end of the list.
REQUEST_OVERHEAD: Final = 17
#: The most bytes that a put has beside path and value.
OP_OVERHEAD: Final = CREATE_OVERHEAD + 32
# What a setData has behind its value.
_VERSION_BYTES: Final = 4


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
        batch, changes = self._batch, self._changes
        acl, room, limit = self._acl, self._packet, self._limit
        start, end = 0, len(places)
        while start < end:
            start = add_puts(
                self._group,
                batch,
                changes,
                batch.nodes.generations,
                places,
                start,
                acl,
                room,
                limit,
            )
            plain = start == end
            while not plain:
                self._put(places[start])
                start += 1
                # Sequential puts are never plain, and often many come together.
                plain = start == end or places[start] not in batch.fixed

    def _put(self, i: int) -> None:
        """Add a put that is not plain, or the first in the next multi."""
        batch, changes, acl = self._batch, self._changes, self._acl
        path = batch.paths[i]
        opcode, version, value = batch.form(i)
        if opcode != SET_DATA and not self._need(parent_of(path), i):
            return
        if opcode in (SEQUENTIAL, REPLACE):
            self._create_special(i, opcode, version, value)
            return
        size = CREATE_OVERHEAD + len(path.encode()) + len(value)
        group = self._fit(size + (_VERSION_BYTES if opcode == SET_DATA else len(acl)), i)
        if group is None:
            return
        if opcode == SET_DATA:
            group.add_set(i, path, value, version)
        elif opcode == EPHEMERAL:
            group.add_ephemeral(i, path, value, acl)
            changes.fleeting.add(path)
        else:
            group.add_create(i, path, value, acl)
        group.operations += 1
        changes.made.add(path)
        if i in batch.ephemerals:
            group.session = batch.session

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
        group.size += size
        group.add_probe(i, mark, self._acl)

    def _create_special(self, i: int, opcode: WriteOpcode, version: int, value: bytes) -> None:
        """Add the creation of a sequential node, or of an ephemeral one in place of another."""
        batch, acl, changes = self._batch, self._acl, self._changes
        path = batch.paths[i]
        # All of it goes into one multi, so it is made apart.
        own = Group()
        if opcode == SEQUENTIAL:
            size = 0
            for _ in range(batch.skips.get(i, 0)):
                size += own.add_probe(i, parent_of(path) + SKIPPED, acl)
            size += own.add_sequential(i, path, value, acl, fleeting=i in batch.ephemerals)
        else:
            # The node that was there is a parent without anything below it.
            size = own.add_delete(i, path, version)
            size += own.add_ephemeral(i, path, value, acl)
        if i in batch.ephemerals:
            own.session = batch.session
        group = self._fit(size, i)
        if group is not None:
            group.merge(own)
            if opcode != SEQUENTIAL:
                changes.fleeting.add(path)
                changes.made.add(path)

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
        group.size += size
        return group

    def _close(self) -> None:
        if self._group.ops:
            self.groups.append(self._group)
            self._group = Group()
