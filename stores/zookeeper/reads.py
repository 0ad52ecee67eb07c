"""Answers reads: many in one multi-read, as long as their answers are small enough for that."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias, cast

from ...ops.errors import MetadataStoreError, ValueTooLargeError
from ...ops.results import GetResult, Stat
from ..backend import Answer, ReadRequest
from .answers import Reply
from .codecs import READS
from .connection import ZooKeeperConnection
from .errors import CONNECTION_LOSS, NO_NODE, UNIMPLEMENTED, refused
from .jute import (
    EXISTS,
    GET_DATA,
    MULTI_READ,
    SYNC,
    Found,
    ZNode,
    length,
)
from .nodes import Nodes
from .packets import (
    ANSWER_BYTES,
    ENTRY_BYTES,
    FIRST_GUESS,
    READ_OVERHEAD,
    REQUEST_OVERHEAD,
    SMALL,
    Packet,
)
from .sizes import ENVELOPE, Sizes

__all__ = ["Reader"]

#: A read to do: its index among the endings, opcode, full path.
_Read: TypeAlias = tuple[int, int, str]

#: The end of a read: its result, or the error of the request that contained it.
_Ending: TypeAlias = Found | MetadataStoreError

# The bytes under way for a call, about four answers, estimated from the last known size of each
# path, or from the recent mean of all paths.
_WAVE_BYTES: Final = 4 << 20
_PACKET_READS: Final = 128
# The mean may be far off, if a client that has seen only small values meets large ones. So a call
# begins with this many paths of unknown size, and multiplies that with each wave.
_UNKNOWN_READS: Final = 16
# Looks serve writes, whose own values are a better guess at those that they replace.
_UNKNOWN_LOOKS: Final = 64
_GROWTH: Final = 4

_ROOT: Final = length(1) + b"/"


class Reader:
    """Answers reads, and looks at nodes for writes. Used by several threads at once."""

    def __init__(
        self, connection: ZooKeeperConnection, sizes: Sizes, nodes: Nodes, chroot: str
    ) -> None:
        self._connection = connection
        self._sizes = sizes
        self._nodes = nodes
        self._chroot = chroot
        # The recent mean size of values, None before the first. No lock, because it is a guess.
        self._seen_mean: float | None = None

    def read(self, requests: Sequence[ReadRequest], deadline: float) -> list[Answer]:
        """Return one answer for each get, exists and get_children.

        Raises:
            MetadataStoreError: all of them failed with this error.
        """
        chroot = self._chroot
        wants = []
        for request in requests:
            path = request.path
            full = chroot + path if path != "/" else chroot or "/"
            wants.append((READS[request.kind].opcode, full))
        endings = self._fetch(wants, deadline, _UNKNOWN_READS)
        _raise_if_all_failed(endings)
        answers: list[Answer] = []
        new = tuple.__new__
        for request, ending in zip(requests, endings, strict=True):
            # Nearly all answers are of this kind; _answer handles the others.
            if type(ending) is ZNode and request.kind == "get" and ending.owner == 0:
                value, _, _, revision, created, modified, version, _, _ = ending
                if value is None:
                    answers.append(None)
                    continue
                stat = new(Stat, (request.path, version, revision, created, modified, False, False))
                answers.append(new(GetResult, (value, stat)))
            else:
                answers.append(self._answer(request, ending))
        return answers

    def learn(self, values: int, total_bytes: int) -> None:
        """Note the sizes of values that were read or written."""
        if values:
            # It rises at once and falls by halves, because only too small a guess does damage.
            self._seen_mean = max(total_bytes / values, (self._seen_mean or 0) / 2)

    def expect(self, values: int, total_bytes: int) -> None:
        """Use these values as the estimate, as long as no other has been seen."""
        if self._seen_mean is None:
            self.learn(values, total_bytes)

    def sync(self, deadline: float) -> None:
        """Catch up with the leader: later reads see everything written before this call.

        Raises:
            MetadataStoreError: there was no answer by the deadline, or a refusal.
        """
        while True:
            # This syncs the whole ensemble: the server checks only the form of the path.
            (reply,) = self._connection.exchange([(SYNC, _ROOT)], deadline, repeat=True)
            if _has_synced(reply):
                return

    def look(
        self, paths: Sequence[str], deadline: float, *, fresh: bool
    ) -> list[ZNode | int | ValueTooLargeError]:
        """Return the node at each full path, or the reason why there is none.

        With ``fresh``, the reader catches up with the leader first. Without it, a session sees its
        own writes and the state that refused them.

        Raises:
            MetadataStoreError: one of them got no answer.
        """
        wants = [(EXISTS, path) for path in paths]
        found = self._fetch(wants, deadline, _UNKNOWN_LOOKS, fresh=fresh)
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
        waiting = deque((i, EXISTS, path) for i, path in enumerate(paths))
        packets = self._next_wave(waiting, _UNKNOWN_LOOKS, set(), endings)
        requests = [packet.request() for packet in packets]
        finish = self._sizes.begin(requests, sent_by, repeat=True)

        def wait() -> list[int]:
            for packet, reply in zip(packets, finish(deadline), strict=True):
                found = packet.understand(reply)
                if not isinstance(found, list):
                    waiting.extend(packet.reads)
                    continue
                for (i, _, _), entry in zip(packet.reads, found, strict=True):
                    if type(entry) is ZNode:
                        czxids[i] = entry.created_zxid
            again = [(i, path) for i, _, path in waiting]
            if self._connection.number != since:
                again = list(enumerate(paths))
            if again:
                looks = self.look([path for _, path in again], deadline, fresh=True)
                for (i, _), look in zip(again, looks, strict=True):
                    czxids[i] = look.created_zxid if isinstance(look, ZNode) else -1
            return czxids

        return wait

    def _answer(self, request: ReadRequest, ending: _Ending) -> Answer:
        codec, path = READS[request.kind], request.path
        if isinstance(ending, MetadataStoreError):
            return ending.for_path(path)
        if isinstance(ending, list):
            return codec.of_names(request, ending)
        if isinstance(ending, int):
            return codec.missing() if ending == NO_NODE else refused(ending, path)
        return codec.of_node(request, ending, self.owned_here(ending.owner))

    def owned_here(self, owner: int) -> bool:
        """Say whether a node with this owner is an ephemeral one of this session."""
        return owner != 0 and owner == self._connection.session_id

    def _fetch(
        self,
        wants: Sequence[tuple[int, str]],
        deadline: float,
        unknown: int,
        *,
        fresh: bool = False,
    ) -> list[_Ending]:
        """Return the result for each ``(opcode, full path)``.

        For EXISTS, the value may be missing, but ``size`` distinguishes null from empty.
        ``unknown`` is the number of values of unknown size to request at first. With ``fresh``, the
        reader catches up with the leader before the first of them.

        Raises:
            MetadataStoreError: catching up failed.
        """
        endings: list[_Ending] = [CONNECTION_LOSS] * len(wants)
        waiting = deque((i, opcode, path) for i, (opcode, path) in enumerate(wants))
        alone: set[int] = set()
        while waiting:
            packets = self._next_wave(waiting, unknown, alone, endings)
            unknown *= _GROWTH
            requests = [packet.request() for packet in packets]
            if fresh:
                # In one go: the server answers reads behind a sync after the sync.
                session = self._connection.sessions
                synced, *replies = self._sizes.exchange(
                    [(SYNC, _ROOT), *requests], deadline, repeat=True
                )
                if not _has_synced(synced) or self._connection.sessions != session:
                    # Lost, or answered in an earlier session, which guarantees nothing.
                    waiting.extend(read for packet in packets for read in packet.reads)
                    continue
                fresh = False
            else:
                replies = self._sizes.exchange(requests, deadline, repeat=True)
            for packet, request, reply in zip(packets, requests, replies, strict=True):
                opcode, reads = packet.opcode, packet.reads
                answer = packet.understand(reply)
                if isinstance(answer, MetadataStoreError):
                    for i, _, _ in reads:
                        endings[i] = answer
                elif isinstance(answer, list):
                    waiting.extend(self._sort(opcode, reads, answer, endings))
                elif answer == CONNECTION_LOSS or (
                    opcode == MULTI_READ and answer != UNIMPLEMENTED
                ):
                    # Sent twice and lost, or refused as a whole: the request may be too long, or
                    # the answer too large for some part of the way. Single reads continue until the
                    # deadline.
                    if answer == CONNECTION_LOSS:
                        self._sizes.drops(ENVELOPE + len(request[1]), deadline)
                    alone.update(i for i, _, _ in reads)
                    waiting.extend(reads)
                else:
                    self._sort(opcode, reads, [answer] * len(reads), endings)
        return endings

    def _next_wave(
        self, waiting: deque[_Read], most: int, alone: set[int], endings: list[_Ending]
    ) -> list[Packet[_Read]]:
        """Return the packets to send together, with at most ``most`` reads of unknown size."""
        packets: list[Packet[_Read]] = []
        packet: Packet[_Read] = Packet()
        # The sizes of the packet's answer and of the packet.
        answer_bytes, sent_bytes = 0, REQUEST_OVERHEAD
        wave_bytes = unknown = 0
        size_of, usual = self._nodes.size, self._sizes.usual
        longest = self._sizes.most - REQUEST_OVERHEAD - READ_OVERHEAD
        mean = self._seen_mean
        guess = ENTRY_BYTES + int(FIRST_GUESS if mean is None else mean)
        all_single = len(waiting) == 1
        while waiting and wave_bytes < _WAVE_BYTES and unknown < most:
            read = waiting.popleft()
            i, opcode, path = read
            raw = path.encode()
            if len(raw) > longest:
                endings[i] = ValueTooLargeError(
                    f"the path has {len(raw)} bytes, more than fit into a request to ZooKeeper "
                    f"({self._sizes.most} bytes)",
                    path=path,
                )
                continue
            size = size_of(path)
            expected = guess if size is None else ENTRY_BYTES + size
            single = all_single or i in alone
            if opcode == EXISTS and (single or expected > SMALL):
                single, expected = True, ENTRY_BYTES
            elif size is None:
                unknown += 1
            wave_bytes += expected
            if single:
                packets.append(Packet.of(read, opcode, raw))
                continue
            answer_bytes += expected
            sent_bytes += READ_OVERHEAD + len(raw)
            if packet.reads and (
                len(packet.reads) >= _PACKET_READS
                or answer_bytes > ANSWER_BYTES
                or sent_bytes > usual
            ):
                packets.append(packet)
                packet = Packet()
                answer_bytes = expected
                sent_bytes = REQUEST_OVERHEAD + READ_OVERHEAD + len(raw)
            packet.reads.append(read)
            packet.encoded.append((GET_DATA if opcode == EXISTS else opcode, raw))
        if packet.reads:
            packets.append(packet)
        return packets

    def _sort(
        self,
        opcode: int,
        reads: Sequence[_Read],
        entries: Sequence[Found],
        endings: list[_Ending],
    ) -> list[_Read]:
        """Put results in their places; return the reads that must be repeated."""
        again = []
        seen_bytes = seen = 0
        note = self._nodes.note
        for (i, _, path), entry in zip(reads, entries, strict=True):
            if type(entry) is ZNode:
                size = entry[1]
                if size == 0 and opcode == EXISTS:
                    # The value is null or empty; only getData shows which.
                    again.append((i, GET_DATA, path))
                    continue
                note(path, size)
                seen_bytes += max(0, size)
                seen += 1
            elif entry == NO_NODE:
                self._nodes.forget(path)
            endings[i] = entry
        self.learn(seen, seen_bytes)
        return again


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
