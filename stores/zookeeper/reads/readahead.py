"""The reads under way for a walk: many in flight, within a bound of bytes.

As soon as there is room, the walk is asked for its next reads, so the reads that it needs first are
sent first. The size of an answer is known only when it arrives, and the server builds it in its
heap. So the sizes are estimated from the values that this walk has seen. A walk begins with a few
reads, and continues with four times as many as have been answered.

Answers count only if they come from the session of the last sync, because within a session the
servers never go back. Reads of another session are sent again after a new sync.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Final, NamedTuple

from ....ops.errors import MetadataStoreError
from ..session.connection import ZooKeeperConnection
from ..session.sizes import ENVELOPE, Sizes
from ..wire.errors import CONNECTION_LOSS, UNIMPLEMENTED
from ..wire.exchanges import Reply, parse_reply
from ..wire.jute import (
    EXISTS,
    GET_CHILDREN,
    GET_DATA,
    MULTI_READ,
    Found,
    ZNode,
    parse_single,
    single_read,
)
from .packets import (
    ANSWER_BYTES,
    ENTRY_BYTES,
    FIRST_GUESS,
    READ_OVERHEAD,
    REQUEST_OVERHEAD,
    SMALL,
    Packet,
)

__all__ = ["Read", "ReadAhead"]

# The most bytes under way; the most reads in one packet, and in all.
_BYTES: Final = 4 << 20
_PACKET_READS: Final = 64
_FLIGHTS: Final = 8
_READS: Final = _PACKET_READS * _FLIGHTS
# The number of reads under way at first, and later its ratio to the reads answered.
_FIRST_READS: Final = 16
_GROWTH: Final = 4
# About the number of bytes of a name in a list of children.
_NAME_BYTES: Final = 40


class Read(NamedTuple):
    """One read.

    ``opcode`` is GET_DATA, GET_CHILDREN, or EXISTS for a node whose value is not needed (only
    whether it is null). ``path`` is the caller's, without the chroot. ``children`` is the
    approximate number of names, for GET_CHILDREN.
    """

    opcode: int
    path: str
    children: int = 0


class _Flight(NamedTuple):
    """Requests that were sent together."""

    session: int
    requests: Sequence[tuple[int, bytes]]
    packets: Sequence[Packet[Read]]
    reads: int
    expected: int
    finish: Callable[[float], list[Reply]]


class ReadAhead:
    """The reads of one walk. For one thread.

    Args:
        connection: the session.
        sizes: the limits of requests.
        sync: catches up with the leader, until a deadline.
        chroot: precedes all paths.
        timeout: seconds for each request.
    """

    def __init__(
        self,
        connection: ZooKeeperConnection,
        sizes: Sizes,
        sync: Callable[[float], None],
        chroot: str,
        timeout: float,
    ) -> None:
        self._connection = connection
        self.refused = connection.refused
        self._sizes = sizes
        self._sync = sync
        self._chroot = chroot.encode()
        self._timeout = timeout
        self._session = 0  # the session of the last sync; 0 for none yet
        self._flights: deque[_Flight] = deque()
        self._again: deque[Read] = deque()
        self._reads = 0  # under way
        self._bytes = 0  # expected in answers
        self._most = _FIRST_READS  # reads that may be under way
        self._seen = 0  # nodes so far
        self._mean: float | None = None  # the recent mean size of values

    def expected(self, opcode: int) -> int:
        """Return about the number of bytes of a node in an answer to GET_DATA or to EXISTS."""
        node_bytes = ENTRY_BYTES + int(FIRST_GUESS if self._mean is None else self._mean)
        return ENTRY_BYTES if opcode == EXISTS and node_bytes > SMALL else node_bytes

    @property
    def under_way(self) -> bool:
        """Whether there are answers to collect."""
        return bool(self._flights)

    def fill(self, take: Callable[[], Read | None]) -> None:
        """Send as many reads as should be under way. ``take`` returns the next one, if any.

        Raises:
            MetadataStoreError: catching up with the leader failed.
        """
        if self._session == 0:
            self._catch_up(self._deadline())
        while self._reads < self._most and self._bytes < _BYTES and len(self._flights) < _FLIGHTS:
            if not self._send_some(take):
                return

    def collect(self) -> list[tuple[Read, Found]]:
        """Wait for the reads that were sent first, and return their answers.

        An ``int`` is the server's error code. Reads that have to be repeated are left out.

        Raises:
            MetadataStoreError: they could not be answered in time.
        """
        flight = self._flights.popleft()
        self._reads -= flight.reads
        self._bytes -= flight.expected
        deadline = self._deadline()
        replies = flight.finish(deadline)
        answers: list[tuple[Read, Found]] = []
        for packet, request, reply in zip(flight.packets, flight.requests, replies, strict=True):
            opcode, reads = packet.opcode, packet.reads
            answer = packet.parse(reply)
            if isinstance(answer, MetadataStoreError):
                raise answer
            if isinstance(answer, list):
                answers += zip(reads, answer, strict=True)
            elif answer == CONNECTION_LOSS or (opcode == MULTI_READ and answer != UNIMPLEMENTED):
                # Sent twice and lost, or refused as a whole: the request may be too long, or the
                # answer too large for some part of the way.
                if answer == CONNECTION_LOSS:
                    self._sizes.drops(ENVELOPE + len(request[1]), deadline)
                answers += zip(reads, self._read_singly(reads, deadline), strict=True)
            else:
                answers += [(read, answer) for read in reads]
        if self._connection.sessions != flight.session:
            # Some answers may come from a session that has never caught up.
            self._catch_up(deadline)
            self._again.extend(read for packet in flight.packets for read in packet.reads)
            return []
        return self._settled(flight, answers)

    def fetch(self, reads: Iterable[Read]) -> Iterator[tuple[Read, Found]]:
        """Yield the answer to each read, in any order."""
        waiting = iter(reads)
        while True:
            self.fill(lambda: next(waiting, None))
            if not self.under_way:
                return
            yield from self.collect()

    def _send_some(self, take: Callable[[], Read | None]) -> bool:
        """Send a multi-read, and single reads beside it; say whether anything was sent."""
        together: Packet[Read] = Packet()
        packets: list[Packet[Read]] = []
        node_bytes, again, full = self.expected(GET_DATA), self._again, self._full
        exists_singly = node_bytes > SMALL
        room = min(_PACKET_READS, self._most - self._reads)
        usual = self._sizes.usual
        expected, sent_bytes = 0, REQUEST_OVERHEAD
        while room > 0 and expected < ANSWER_BYTES:
            read = again.popleft() if again else take()
            if read is None:
                break
            opcode, path, children = read
            raw = full(path)
            if opcode == EXISTS and exists_singly:
                answer_bytes = ENTRY_BYTES
                packets.append(Packet.of(read, EXISTS, raw))
            else:
                names = opcode == GET_CHILDREN
                answer_bytes = ENTRY_BYTES + _NAME_BYTES * children if names else node_bytes
                sent_bytes += READ_OVERHEAD + len(raw)
                if together.reads and sent_bytes > usual:
                    again.appendleft(read)
                    break
                together.reads.append(read)
                together.encoded.append((opcode if names else GET_DATA, raw))
            room -= 1
            expected += answer_bytes
        if together.reads:
            packets.append(together)
        if not packets:
            return False
        requests = [packet.request() for packet in packets]
        count = sum(len(packet.reads) for packet in packets)
        finish = self._sizes.begin(requests, self._deadline(), repeat=True)
        self._flights.append(_Flight(self._session, requests, packets, count, expected, finish))
        self._reads += count
        self._bytes += expected
        return True

    def _read_singly(self, reads: Sequence[Read], deadline: float) -> list[Found]:
        """Send each read by itself, until the deadline."""
        opcodes = [GET_CHILDREN if read.opcode == GET_CHILDREN else GET_DATA for read in reads]
        requests = [
            (opcode, single_read(self._full(read.path)))
            for opcode, read in zip(opcodes, reads, strict=True)
        ]
        found: list[Found] = [CONNECTION_LOSS] * len(reads)
        # One after the other, because an answer may be too large to arrive.
        for k, request in enumerate(requests):
            while found[k] == CONNECTION_LOSS:
                (reply,) = self._connection.exchange([request], deadline, repeat=True)
                answer = parse_reply(reply, partial(parse_single, opcodes[k]))
                if isinstance(answer, MetadataStoreError):
                    raise answer
                found[k] = answer
        return found

    def _settled(
        self, flight: _Flight, answers: list[tuple[Read, Found]]
    ) -> list[tuple[Read, Found]]:
        """Learn from answers; leave out unclear ones, and queue their reads again."""
        singly = {packet.reads[0].path for packet in flight.packets if packet.opcode == EXISTS}
        total = nodes = 0
        unclear = False
        for read, found in answers:
            if type(found) is ZNode:
                total += max(0, found.size)
                nodes += 1
                unclear = unclear or (found.size == 0 and read.path in singly)
        if nodes:
            # The mean rises at once and falls by halves at most, because only too small a guess
            # does damage. If only stats are wanted, it also falls from the first guess like this:
            # the first nodes are often parents without a value, after which the large values below
            # them would be read along.
            guess = FIRST_GUESS if singly else 0
            before = guess if self._mean is None else self._mean
            self._mean = max(total / nodes, before / 2)
            self._seen += nodes
            self._most = min(_READS, max(_FIRST_READS, _GROWTH * self._seen))
        if not unclear:
            return answers
        # The value is null or empty; only getData shows which.
        clear = []
        for read, found in answers:
            if type(found) is ZNode and found.size == 0 and read.path in singly:
                self._again.append(Read(GET_DATA, read.path))
            else:
                clear.append((read, found))
        return clear

    def _full(self, path: str) -> bytes:
        return self._chroot + path.encode() if path != "/" else self._chroot or b"/"

    def _catch_up(self, deadline: float) -> None:
        while self._session != self._connection.sessions:
            session = self._connection.sessions
            self._sync(deadline)
            self._session = session

    def _deadline(self) -> float:
        return time.monotonic() + self._timeout
