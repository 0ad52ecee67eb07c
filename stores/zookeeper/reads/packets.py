"""Packs reads into one request: a multi-read, or a plain request for a single read."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final, Generic, TypeVar

from ....ops.acceleration import accelerated
from ....ops.errors import MetadataStoreError
from ....ops.results import GetResult
from ..wire.exchanges import Reply, parse_reply
from ..wire.jute import EXISTS, GET_DATA, MULTI_READ, Found, multi_read, parse_reads, single_read
from ..wire.nodes import Generations, size_of

__all__ = [
    "ANSWER_BYTES",
    "ENTRY_BYTES",
    "FIRST_GUESS",
    "READ_OVERHEAD",
    "REQUEST_OVERHEAD",
    "SMALL",
    "Packet",
    "add_reads",
    "place_values",
]

# The size of an answer is known only when it arrives, and the server builds it in its heap, which
# many answers of a megabyte can exhaust. So answers are planned for about a megabyte each.
ANSWER_BYTES: Final = 1 << 20
#: A Stat, a length and a header.
ENTRY_BYTES: Final = 81
#: The assumed size of a value before any was seen.
FIRST_GUESS: Final = 1 << 16
#: Up to this size, reading the value along costs less than a separate request for the Stat.
SMALL: Final = 1024
#: xid, opcode and the end of the list.
REQUEST_OVERHEAD: Final = 17
#: Header, length and watch flag of one read.
READ_OVERHEAD: Final = 14

# More make hardly a difference for the client.
_PACKET_READS: Final = 256

_T = TypeVar("_T")


class Packet(Generic[_T]):
    """One request of one or more reads.

    Attributes:
        reads: the caller's objects, one for each read.
        encoded: opcode and path of each, as they are sent.
        sent_bytes: the bytes of the request. Those who add reads keep it, if they need it.
        answer_bytes: the expected bytes of the answer, likewise.
    """

    __slots__ = ("answer_bytes", "encoded", "reads", "sent_bytes")

    def __init__(self) -> None:
        self.reads: list[_T] = []
        self.encoded: list[tuple[int, bytes]] = []
        self.sent_bytes = REQUEST_OVERHEAD
        self.answer_bytes = 0

    @classmethod
    def of(cls, read: _T, opcode: int, path: bytes) -> Packet[_T]:
        """Return a packet of one read."""
        packet = cls()
        packet.reads.append(read)
        packet.encoded.append((opcode, path))
        return packet

    @property
    def opcode(self) -> int:
        return self.encoded[0][0] if len(self.encoded) == 1 else MULTI_READ

    def request(self) -> tuple[int, bytes]:
        """Return opcode and body; those of the read itself if it is the only one."""
        if len(self.encoded) == 1:
            return self.opcode, single_read(self.encoded[0][1])
        return MULTI_READ, multi_read(self.encoded)

    def parse(
        self, reply: Reply, paths: Sequence[str | None] = ()
    ) -> list[Found] | int | MetadataStoreError:
        """Return an entry for each read, or the code or error that the reply is.

        ``paths`` is that of ``parse_multi_read``.
        """
        return parse_reply(reply, partial(parse_reads, self.encoded, paths))


@accelerated
def add_reads(
    packet: Packet[int],
    opcodes: Sequence[int],
    paths: Sequence[str],
    waiting: Sequence[int],
    start: int,
    alone: set[int],
    generations: Generations,
    guess: int,
    longest: int,
    usual: int,
    bytes_room: int,
    unknown_room: int,
    /,
) -> tuple[int, int, int]:
    """Add reads to a packet, until one goes alone or does not fit.

    Args:
        packet: the packet. If it is empty, the first read fits.
        opcodes: the opcodes of all reads of the call.
        paths: their full paths.
        waiting: the reads to send.
        start: where to begin in ``waiting``.
        alone: the reads that go alone, as an EXISTS of a large value does.
        generations: the known nodes.
        guess: the bytes of an answer with a value of unknown size.
        longest: the bytes of the longest path.
        usual: the most bytes of the packet.
        bytes_room: enough bytes of answers; the last read may exceed that.
        unknown_room: the most values of unknown size.

    Returns:
        the index in ``waiting`` of the first read that was not added, the bytes of the answers to
        those that were, and the number of their values of unknown size.
    """
    reads, encoded = packet.reads, packet.encoded
    answer_bytes, sent_bytes = packet.answer_bytes, packet.sent_bytes
    added = unknown = 0
    end = start
    while end < len(waiting) and added < bytes_room and unknown < unknown_room:
        i = waiting[end]
        opcode, path = opcodes[i], paths[i]
        raw = path.encode()
        size = size_of(generations, path)
        expected = guess if size is None else ENTRY_BYTES + size
        if i in alone or len(raw) > longest or (opcode == EXISTS and expected > SMALL):
            break
        more = READ_OVERHEAD + len(raw)
        if reads and (
            len(reads) >= _PACKET_READS
            or answer_bytes + expected > ANSWER_BYTES
            or sent_bytes + more > usual
        ):
            break
        reads.append(i)
        encoded.append((GET_DATA if opcode == EXISTS else opcode, raw))
        answer_bytes += expected
        sent_bytes += more
        added += expected
        unknown += size is None
        end += 1
    packet.answer_bytes, packet.sent_bytes = answer_bytes, sent_bytes
    return end, added, unknown


@accelerated
def place_values(
    reads: Sequence[int],
    entries: Sequence[Found],
    paths: Sequence[str],
    endings: list[Any],
    sizes: dict[str, int],
    /,
) -> tuple[list[int], int]:
    """Put the results of gets in their places, and note the sizes of their values.

    Args:
        reads: the place of each entry.
        entries: the answers.
        paths: the full paths of all places.
        endings: the result at each place.
        sizes: the known sizes, by full path.

    Returns:
        the positions of the entries that are no results of gets, and the bytes of the values.
    """
    others = []
    total = 0
    for position, (place, entry) in enumerate(zip(reads, entries, strict=True)):
        if type(entry) is not GetResult:
            others.append(position)
            continue
        endings[place] = entry
        sizes[paths[place]] = size = len(entry[0])
        total += size
    return others, total
