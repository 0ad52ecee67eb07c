"""Answers reads: many in one multi-read, as long as their answers are small enough for that."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias, assert_never, cast

from ....ops.errors import MetadataStoreError, ValueTooLargeError
from ....ops.operations import ReadKind
from ....ops.paths import children_of
from ....ops.results import GetResult, Stat
from ...backend import Answer, ReadRequest, column
from ..session.connection import ZooKeeperConnection
from ..session.sizes import ENVELOPE, Sizes
from ..wire.errors import CONNECTION_LOSS, NO_NODE, UNIMPLEMENTED, refused
from ..wire.exchanges import Reply
from ..wire.jute import (
    EMPTY_MULTI,
    EXISTS,
    GET_CHILDREN,
    GET_DATA,
    MULTI,
    MULTI_READ,
    SYNC,
    SYNC_ROOT,
    Found,
    ZNode,
)
from ..wire.nodes import NULL, Nodes
from .packets import (
    ENTRY_BYTES,
    FIRST_GUESS,
    READ_OVERHEAD,
    REQUEST_OVERHEAD,
    SMALL,
    Packet,
    add_reads,
    place_values,
)

__all__ = ["BY_MULTI", "BY_SYNC", "CatchUp", "Reader"]

#: The end of a read: its result, or the error of the request that contained it.
_Ending: TypeAlias = Found | MetadataStoreError

# The bytes under way for a call, about four answers, estimated from the last known size of each
# path, or from the recent mean of all paths.
_WAVE_BYTES: Final = 4 << 20
# The mean may be far off, if a client that has seen only small values meets large ones. So a call
# begins with this many paths of unknown size, and multiplies that with each wave.
_UNKNOWN_READS: Final = 16
# Reads of nodes serve writes, whose own values are a better guess at those that they replace.
_UNKNOWN_NODES: Final = 64
_GROWTH: Final = 4
# The largest values that are read along so that nodes are seen at one moment.
_JOINT_BYTES: Final = 1 << 14

#: A request that catches up with the leader. A leader that the others have replaced, and that does
#: not know it yet, answers a sync for its own clients, but applies no multi. A sync costs no entry
#: in the log.
CatchUp: TypeAlias = tuple[int, bytes]
BY_MULTI: Final[CatchUp] = (MULTI, EMPTY_MULTI)
BY_SYNC: Final[CatchUp] = (SYNC, SYNC_ROOT)


class Reader:
    """Answers reads, and looks at nodes for writes. Used by several threads at once."""

    def __init__(
        self, connection: ZooKeeperConnection, sizes: Sizes, nodes: Nodes, chroot: str
    ) -> None:
        self._connection = connection
        self._sizes = sizes
        self._nodes = nodes
        self._chroot = chroot

    def read(self, requests: Sequence[ReadRequest], deadline: float) -> list[Answer]:
        """Return one answer for each get, exists and get_children.

        Raises:
            MetadataStoreError: all of them failed with this error.
        """
        kinds: list[ReadKind] = column(requests, "kind")
        gets: Sequence[str | None]
        gets = paths = column(requests, "path")
        opcodes = [GET_DATA] * len(kinds)
        if kinds.count("get") < len(kinds):
            opcodes = [*map(_opcode, kinds)]
            gets = [
                path if kind == "get" else None for path, kind in zip(paths, kinds, strict=True)
            ]
        if chroot := self._chroot:
            paths = [chroot + path if path != "/" else chroot for path in paths]
        endings = self._fetch(opcodes, paths, deadline, _UNKNOWN_READS, gets)
        _raise_if_all_failed(endings)
        if [*map(type, endings)].count(GetResult) == len(endings):
            return cast("list[Answer]", endings)
        return [
            ending if type(ending) is GetResult else self._answer(request, ending)
            for request, ending in zip(requests, endings, strict=True)
        ]

    def sync(self, deadline: float) -> None:
        """Catch up with the leader: later reads see everything written before this call.

        Raises:
            MetadataStoreError: there was no answer by the deadline, or a refusal.
        """
        while True:
            (reply,) = self._connection.exchange([BY_MULTI], deadline, repeat=True)
            if _has_synced(reply):
                return

    def read_nodes(
        self, paths: Sequence[str], deadline: float, *, after: CatchUp | None, joint: bool = False
    ) -> list[ZNode | int | ValueTooLargeError]:
        """Return the node at each full path, or the reason why there is none.

        With ``after``, the reader catches up with the leader first. Without it, a session sees its
        own writes and the state that refused them. With ``joint``, nodes whose values are not
        large are read by one request, so at one moment, as many as fit into its answer.

        Raises:
            MetadataStoreError: one of them got no answer.
        """
        opcodes = [EXISTS] * len(paths)
        for i, path in enumerate(paths if joint else ()):
            if (self._nodes.size(path) or 0) <= _JOINT_BYTES:
                opcodes[i] = GET_DATA  # A multi-read has no exists.
        found = self._fetch(opcodes, paths, deadline, _UNKNOWN_NODES, after=after)
        for ending in found:
            if type(ending) is ZNode or type(ending) is int:
                continue
            if isinstance(ending, MetadataStoreError) and not isinstance(
                ending, ValueTooLargeError
            ):
                raise ending
        return cast("list[ZNode | int | ValueTooLargeError]", found)

    def begin_czxids(
        self, paths: Sequence[str], sent_by: float, deadline: float, since: int
    ) -> Callable[[], list[int]]:
        """Ask for the zxid of each node's creation; return a function that waits for the answers.

        This waits for a connection until ``sent_by``, the function for answers until ``deadline``.
        It returns -1 where there is no node. The answers show all that was sent before over the
        connection with the number ``since``. If there is another one by then, or the question could
        not be sent, the function catches up with the leader and asks again.

        The function raises:
            MetadataStoreError: one of them got no answer.
        """
        czxids = [-1] * len(paths)
        endings: list[_Ending] = [CONNECTION_LOSS] * len(paths)
        opcodes = [EXISTS] * len(paths)
        waiting = [*range(len(paths))]
        packets = self._next_wave(opcodes, paths, waiting, _UNKNOWN_NODES, set(), endings)
        requests = [packet.request() for packet in packets]
        finish = self._sizes.begin(requests, sent_by, repeat=True)

        def wait() -> list[int]:
            for packet, reply in zip(packets, finish(deadline), strict=True):
                found = packet.parse(reply)
                if not isinstance(found, list):
                    waiting.extend(packet.reads)
                    continue
                for i, entry in zip(packet.reads, found, strict=True):
                    if type(entry) is ZNode:
                        czxids[i] = entry.created_zxid
            again = waiting if self._connection.number == since else range(len(paths))
            if again:
                nodes = self.read_nodes([paths[i] for i in again], deadline, after=BY_MULTI)
                for i, node in zip(again, nodes, strict=True):
                    czxids[i] = node.created_zxid if isinstance(node, ZNode) else -1
            return czxids

        return wait

    def _answer(self, request: ReadRequest, ending: _Ending) -> Answer:
        kind, path = request.kind, request.path
        if isinstance(ending, MetadataStoreError):
            return ending.for_path(path)
        if isinstance(ending, int) and ending != NO_NODE:
            return self._connection.refused(ending, path)
        match kind:
            case "get":
                if not isinstance(ending, ZNode):
                    return ending if isinstance(ending, GetResult) else None
                value, _, _, revision, created, modified, version, owner, _ = ending
                if value is None:
                    return None
                owned = self.owned_here(owner)
                stat = Stat(path, version, revision, created, modified, owner != 0, owned)
                return GetResult(value, stat)
            case "exists":
                return isinstance(ending, ZNode) and ending.size != NULL
            case "get_children":
                return sorted(children_of(path, ending)) if isinstance(ending, list) else []
            case _:
                assert_never(kind)

    def owned_here(self, owner: int) -> bool:
        """Say whether a node with this owner is an ephemeral one of this session."""
        return owner != 0 and owner == self._connection.session_id

    def _fetch(
        self,
        opcodes: list[int],
        paths: Sequence[str],
        deadline: float,
        unknown: int,
        gets: Sequence[str | None] = (),
        *,
        after: CatchUp | None = None,
    ) -> list[_Ending]:
        """Return the result for each opcode and full path. Opcodes of repeated reads may change.

        For EXISTS, the value may be missing, but ``size`` distinguishes null from empty.
        ``unknown`` is the number of values of unknown size to request at first. ``gets`` are the
        callers' paths, for ``parse_multi_read``. With ``after``, the reader catches up with the
        leader before the first of them.

        Raises:
            MetadataStoreError: catching up failed.
        """
        endings: list[_Ending] = [CONNECTION_LOSS] * len(paths)
        waiting = [*range(len(paths))]
        alone: set[int] = set()
        while waiting:
            packets = self._next_wave(opcodes, paths, waiting, unknown, alone, endings)
            unknown = min(unknown * _GROWTH, len(paths))
            requests = [packet.request() for packet in packets]
            if after is not None:
                # In one go: the server answers reads behind a write after the write.
                session = self._connection.sessions
                synced, *replies = self._sizes.exchange([after, *requests], deadline, repeat=True)
                if not _has_synced(synced) or self._connection.sessions != session:
                    # Lost, or answered in an earlier session, which guarantees nothing.
                    waiting += [i for packet in packets for i in packet.reads]
                    continue
                after = None
            else:
                replies = self._sizes.exchange(requests, deadline, repeat=True)
            for packet, request, reply in zip(packets, requests, replies, strict=True):
                opcode, reads = packet.opcode, packet.reads
                answer = packet.parse(reply, [*map(gets.__getitem__, reads)] if gets else ())
                if isinstance(answer, MetadataStoreError):
                    for i in reads:
                        endings[i] = answer
                elif isinstance(answer, list):
                    waiting += self._sort(packet, opcodes, paths, answer, endings)
                elif answer == CONNECTION_LOSS or (
                    opcode == MULTI_READ and answer != UNIMPLEMENTED
                ):
                    # Sent twice and lost, or refused as a whole: the request may be too long, or
                    # the answer too large for some part of the way. Single reads continue until the
                    # deadline.
                    if answer == CONNECTION_LOSS:
                        self._sizes.drops(ENVELOPE + len(request[1]), deadline)
                    alone.update(reads)
                    waiting += reads
                else:
                    self._sort(packet, opcodes, paths, [answer] * len(reads), endings)
        return endings

    def _next_wave(
        self,
        opcodes: Sequence[int],
        paths: Sequence[str],
        waiting: list[int],
        most: int,
        alone: set[int],
        endings: list[_Ending],
    ) -> list[Packet[int]]:
        """Return the packets to send together, with at most ``most`` reads of unknown size.

        Their reads no longer wait.
        """
        packets: list[Packet[int]] = []
        packet: Packet[int] = Packet()
        sizes, mean = self._sizes, self._nodes.mean
        guess = ENTRY_BYTES + int(FIRST_GUESS if mean is None else mean)
        longest = sizes.most - REQUEST_OVERHEAD - READ_OVERHEAD
        if len(waiting) == 1:
            alone = {*waiting}
        wave_bytes = unknown = start = 0
        while start < len(waiting) and wave_bytes < _WAVE_BYTES and unknown < most:
            start, added, guessed = add_reads(
                packet,
                opcodes,
                paths,
                waiting,
                start,
                alone,
                self._nodes.generations,
                guess,
                longest,
                sizes.usual,
                _WAVE_BYTES - wave_bytes,
                most - unknown,
            )
            wave_bytes += added
            unknown += guessed
            if added:
                continue
            i = waiting[start]
            opcode, path = opcodes[i], paths[i]
            raw = path.encode()
            size = self._nodes.size(path)
            expected = guess if size is None else ENTRY_BYTES + size
            if len(raw) > longest:
                endings[i] = ValueTooLargeError(
                    f"the path has {len(raw)} bytes, more than fit into a request to ZooKeeper "
                    f"({sizes.most} bytes)",
                    path=path,
                )
            elif i in alone or (opcode == EXISTS and expected > SMALL):
                packets.append(Packet.of(i, opcode, raw))
                if opcode == EXISTS:
                    wave_bytes += ENTRY_BYTES
                else:
                    wave_bytes += expected
                    unknown += size is None
            else:
                packets.append(packet)
                packet = Packet()
                continue
            start += 1
        if packet.reads:
            packets.append(packet)
        del waiting[:start]
        return packets

    def _sort(
        self,
        packet: Packet[int],
        opcodes: list[int],
        paths: Sequence[str],
        entries: Sequence[Found],
        endings: list[_Ending],
    ) -> list[int]:
        """Put results in their places; return the reads to repeat, with other opcodes."""
        again = []
        sizes: dict[str, int] = {}
        exists = packet.opcode == EXISTS
        young, _ = self._nodes.generations
        others, total = place_values(packet.reads, entries, paths, endings, young)
        for position in others:
            i, entry = packet.reads[position], entries[position]
            if type(entry) is ZNode:
                size = entry[1]
                if exists and size == 0:
                    # The value is null or empty; only getData shows which.
                    opcodes[i] = GET_DATA
                    again.append(i)
                    continue
                sizes[paths[i]] = size
            elif entry == NO_NODE:
                self._nodes.forget(paths[i])
            endings[i] = entry
        self._nodes.note_all(sizes)
        values = len(entries) - len(others) + len(sizes)
        self._nodes.learn(values, total + sum([size for size in sizes.values() if size > 0]))
        return again


def _opcode(kind: ReadKind) -> int:
    match kind:
        case "get":
            return GET_DATA
        case "exists":
            return EXISTS
        case "get_children":
            return GET_CHILDREN
        case _:
            assert_never(kind)


def _has_synced(reply: Reply) -> bool:
    """Say whether a sync was answered, and not lost.

    Raises:
        MetadataStoreError: there was no answer by the deadline, or a refusal.
    """
    if isinstance(reply, MetadataStoreError):
        raise reply
    if isinstance(reply, int) and reply != CONNECTION_LOSS:
        raise refused(reply, "/")
    return isinstance(reply, tuple)


def _raise_if_all_failed(endings: Sequence[_Ending]) -> None:
    first = endings[0] if endings else None
    if isinstance(first, MetadataStoreError) and all(ending is first for ending in endings):
        raise first
