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

_T = TypeVar("_T")


class Packet(Generic[_T]):
    """One request of one or more reads. Each read stands for an object of the caller."""

    __slots__ = ("_sent_bytes", "answer_bytes", "encoded", "reads")

    def __init__(self) -> None:
        self.reads: list[_T] = []
        #: Opcode and path of each read, as they are sent.
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
        """Add a read, whose answer will have about ``answer_bytes``."""
        self.reads.append(read)
        self.encoded.append((opcode, path))
        self.answer_bytes += answer_bytes
        self._sent_bytes += READ_OVERHEAD + len(path)

    def has_room(
        self, path: bytes, answer_bytes: int, *, most_reads: int, request_bytes: int
    ) -> bool:
        """Say whether one more read fits; the first one always does."""
        return not self.reads or (
            len(self.reads) < most_reads
            and self.answer_bytes + answer_bytes <= ANSWER_BYTES
            and self._sent_bytes + READ_OVERHEAD + len(path) <= request_bytes
        )

    @property
    def opcode(self) -> int:
        return self.encoded[0][0] if len(self.encoded) == 1 else MULTI_READ

    def request(self) -> tuple[int, bytes]:
        """Return opcode and body; those of the read itself if it is the only one."""
        if len(self.encoded) == 1:
            return self.opcode, single_read(self.encoded[0][1])
        return MULTI_READ, multi_read(self.encoded)

    def understand(self, reply: Reply) -> list[Found] | int | MetadataStoreError:
        """Return an entry for each read, or the code or error that the reply is."""
        return understand(reply, partial(parse_reads, self.encoded))
