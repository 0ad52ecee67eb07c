"""Packs reads into one request: a multi-read, or a plain request for a single read."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final, Generic, TypeVar

from ...ops.errors import MetadataStoreError
from .answers import Reply, parse_reply
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
