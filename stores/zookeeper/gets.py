"""Reads in packets: the loop over the operations of a call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ...ops.acceleration import accelerated
from .jute import EXISTS, GET_DATA
from .nodes import Generations, size_of
from .packets import ANSWER_BYTES, ENTRY_BYTES, READ_OVERHEAD, SMALL, Packet

__all__ = ["add_reads"]

# More make hardly a difference for the client.
_PACKET_READS: Final = 256


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
