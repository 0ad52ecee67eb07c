"""Packs reads into one request: a multi-read, or a plain request for a single read."""

from __future__ import annotations

from functools import partial
from typing import Final, Generic, TypeVar

from ...ops.errors import MetadataStoreError
from .answers import Reply, understand
from .jute import MULTI_READ, Found, multi_read, parse_reads, single_read

__all__ = [
    "ANSWER_BYTES",
    "ENTRY_BYTES",
    "FIRST_GUESS",
    "READ_OVERHEAD",
    "REQUEST_OVERHEAD",
    "SMALL",
    "Packet",
]

# How large an answer is, is known only when it is there, and the server builds it in its heap,
# which many of a megabyte can exhaust. So answers are planned, and for about a megabyte each.
ANSWER_BYTES: Final = 1 << 20
#: A Stat, a length and a header.
ENTRY_BYTES: Final = 81
#: The size of a value before any was seen.
FIRST_GUESS: Final = 1 << 16
#: Up to this size of the value it costs less to read it along than to ask for the Stat singly.
SMALL: Final = 1024
#: xid, opcode and the end of the list.
REQUEST_OVERHEAD: Final = 17
#: Header, length and watch flag of one read.
READ_OVERHEAD: Final = 14

_T = TypeVar("_T")


class Packet(Generic[_T]):
    """One request of one or more reads, each of which stands for something of the caller's."""

    __slots__ = ("_sent_bytes", "answer_bytes", "encoded", "reads")

    def __init__(self) -> None:
        self.reads: list[_T] = []
        #: Opcode and path of each, as they are sent.
        self.encoded: list[tuple[int, bytes]] = []
        self.answer_bytes = 0
        self._sent_bytes = REQUEST_OVERHEAD

    @classmethod
    def of(cls, read: _T, opcode: int, path: bytes, answer_bytes: int) -> Packet[_T]:
        """Return a packet of one read."""
        packet = cls()
        packet.add(read, opcode, path, answer_bytes)
        return packet

    def add(self, read: _T, opcode: int, path: bytes, answer_bytes: int) -> None:
        """Take in a read, whose answer will have about so many bytes."""
        self.reads.append(read)
        self.encoded.append((opcode, path))
        self.answer_bytes += answer_bytes
        self._sent_bytes += READ_OVERHEAD + len(path)

    def has_room(
        self, path: bytes, answer_bytes: int, *, most_reads: int, request_bytes: int
    ) -> bool:
        """Whether one more read fits in; the first one always does."""
        return not self.reads or (
            len(self.reads) < most_reads
            and self.answer_bytes + answer_bytes <= ANSWER_BYTES
            and self._sent_bytes + READ_OVERHEAD + len(path) <= request_bytes
        )

    @property
    def opcode(self) -> int:
        return self.encoded[0][0] if len(self.encoded) == 1 else MULTI_READ

    def request(self) -> tuple[int, bytes]:
        """Return opcode and body: of the read itself where there is only one."""
        if len(self.encoded) == 1:
            return self.opcode, single_read(self.encoded[0][1])
        return MULTI_READ, multi_read(self.encoded)

    def understand(self, reply: Reply) -> list[Found] | int | MetadataStoreError:
        """Return what a reply says: an entry for each read, or why there are none."""
        return understand(reply, partial(parse_reads, self.encoded))
