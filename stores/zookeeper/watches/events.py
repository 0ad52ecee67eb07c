"""Turns the server's events of nodes into events of values.

The server reports nodes; a watch of a store reports values. They differ for parents without a
value: nodes with null data. The server reports the creation of such a parent, its first value as a
change of data, and its removal. So this module knows the *bare* nodes, those without a value, and
turns what the server reports

- as created into nothing for a bare node, otherwise into ``created``
- as changed into ``created`` for a bare node, which it then no longer is, otherwise ``modified``
- as deleted into nothing for a bare node, otherwise into ``deleted``.

An event does not say whether a new node is bare. So the client reads each new node. The server
answers after it has sent the events of everything that the answer shows. So if the node is still at
version 0, the answer shows the data of its creation. If it has changed or is gone by then, the next
event decides: a writer of this package creates a parent directly before what needs it, in the same
multi, and never does that with a value without a mark in between, a node that is created and
deleted at once (``plan``, ``transactions``). This fails if other clients do that in one multi; and
before 3.9, whose events have no zxid, for two nodes of two calls that were created one right after
the other, and deleted as quickly. If the upper one had a value, it then counts as a parent, and as
created with its next change.

A transaction of this package may create a node only to delete it again, to check that there is
none. Another mark, directly after the creation, shows that. Such a node counts as bare.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from struct import Struct
from typing import Final, NamedTuple

from ....ops.paths import all_reachable, reachable
from ....ops.results import WatchEvent
from ..wire.jute import CHANGED, CREATED, DELETED, ZNode
from ..wire.kazoo_client import EVENT_PATH
from ..wire.nodes import ABSENCE_MARK, MARKS, NULL, VALUE_MARK

__all__ = ["NodeEvent", "Translator", "decode"]

# The zxid in the header of an event, and its kind.
_zxid_and_kind = Struct("!4xq4xi")


class NodeEvent(NamedTuple):
    """What the server reports.

    ``path`` has no chroot. ``zxid`` is -1 before ZooKeeper 3.9. ``number`` counts all events.
    """

    kind: int
    path: str
    zxid: int
    number: int


def decode(packets: Sequence[bytes], first: int, chroot_bytes: int) -> list[NodeEvent]:
    """Return the events of valid paths and of marks, from packets of ``Handler.on_events``.

    ``first`` is the number of the first packet.
    """
    events: list[NodeEvent] = []
    append, unpack, new = events.append, _zxid_and_kind.unpack_from, tuple.__new__
    start: Final = EVENT_PATH + chroot_bytes
    for number, packet in enumerate(packets, first):
        zxid, kind = unpack(packet)
        path = str(packet[start:], "utf-8", "surrogateescape")
        append(new(NodeEvent, (kind, path, zxid, number)))
    if not all_reachable([event.path for event in events]):
        events = [e for e in events if reachable(e.path) or e.path.endswith(MARKS)]
    return events


class Translator:
    """Knows the bare nodes below the watched paths. Pure; for one thread.

    Attributes:
        bare: the version of each of them.
    """

    def __init__(self) -> None:
        self.bare: dict[str, int] = {}

    def translate(
        self,
        events: Sequence[NodeEvent],
        found: Mapping[str, object],
        following: Sequence[NodeEvent],
    ) -> list[WatchEvent | None]:
        """Return the event for each of ``events``; ``None`` where there is none.

        Args:
            events: the next events, in order.
            found: by path, a node as it was read after its creation was reported. Anything but a
                node means that there was none, or that it could not be read.
            following: the events after them that have come: at least those of the same multi as the
                last one of ``events``, because the read of its node came later.
        """
        bare = self.bare
        results: list[WatchEvent | None] = []
        append, new = results.append, tuple.__new__
        deleted = _last_deletions(events, following)
        for i, event in enumerate(events):
            kind, path, zxid, _ = event
            revision = zxid if zxid > 0 else None
            if path.endswith(MARKS):
                append(None)
                continue
            if kind == CREATED:
                node = found.get(path)
                after = events[i + 1] if i + 1 < len(events) else next(iter(following), None)
                if after is not None and after.path == path + ABSENCE_MARK:
                    # Only to show that there was none. The same multi may create it after that.
                    is_bare = True
                elif type(node) is ZNode and node.created_zxid == zxid and node.version == 0:
                    is_bare = node.size == NULL
                else:
                    node = _of(event, node, deleted.get(path, -1) < i)
                    is_bare = _is_bare(event, after, node, found)
                    revision = revision if node is None else node.created_zxid
                if not is_bare:
                    append(new(WatchEvent, ("created", path, 0, revision)))
                    continue
                bare[path] = 0
            elif kind == CHANGED:
                version = bare.pop(path, None)
                if version is None:
                    append(new(WatchEvent, ("modified", path, None, revision)))
                else:
                    append(new(WatchEvent, ("created", path, version + 1, revision)))
                continue
            elif kind == DELETED and bare.pop(path, None) is None:
                append(new(WatchEvent, ("deleted", path, None, revision)))
                continue
            append(None)
        return results


def _last_deletions(
    events: Sequence[NodeEvent], following: Sequence[NodeEvent]
) -> Mapping[str, int]:
    """Return the places of the last deletion of each path. Only events without zxids need them."""
    if not events or events[0].zxid > 0:
        return {}
    deletions = enumerate(chain(events, following))
    return {event.path: place for place, event in deletions if event.kind == DELETED}


def _of(event: NodeEvent, found: object, last: bool) -> ZNode | None:
    """Return a node that was found if it is the one whose creation an event reports.

    It may also be a later one. ``last`` says that no deletion of its path follows the event.
    """
    if type(found) is not ZNode:
        return None
    same = found.created_zxid == event.zxid if event.zxid > 0 else last
    return found if same else None


def _is_bare(
    event: NodeEvent, after: NodeEvent | None, node: ZNode | None, found: Mapping[str, object]
) -> bool:
    """Say whether a node was created without a value.

    Args:
        event: reports the creation.
        after: the next event.
        node: the node, if it could be read.
        found: all nodes that were read.
    """
    if node is not None and node.version == 0:
        return node.size == NULL
    return _is_parent(event, after, found)


def _is_parent(event: NodeEvent, after: NodeEvent | None, found: Mapping[str, object]) -> bool:
    """Say whether a node was created only because something directly below it was."""
    if after is None or after.kind != CREATED or not after.path.startswith(event.path + "/"):
        return False
    if after.path == event.path + VALUE_MARK:
        return False
    if event.zxid > 0:
        return event.zxid == after.zxid
    node, child = found.get(event.path), found.get(after.path)
    if type(node) is ZNode and type(child) is ZNode:
        return node.created_zxid == child.created_zxid
    return True
