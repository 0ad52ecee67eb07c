"""A line to ZooKeeper that changes the requests and answers on it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from socket import SHUT_RDWR, socket
from struct import calcsize, pack, unpack_from

from ...proxy import Proxy

__all__ = ["BODY", "GREETING", "HEADER", "Altering", "once", "with_code"]

#: Of an answer: xid, zxid, error.
HEADER = "!iqi"
#: Where the body of an answer begins.
BODY = 4 + calcsize(HEADER)
#: The opcode that stands for the greeting.
GREETING = 0

#: Gives what is passed on instead of a request of a type, or instead of the answer to it, length
#: and all. ``None`` ends the line.
Alter = Callable[[int, bytes], bytes | None]


class Altering(Proxy):
    """Passes each answer through ``alter``, and ends the connection after those in ``last``.

    Requests pass through ``alter_request``.
    """

    def __init__(self, address: str) -> None:
        self.alter: Alter = lambda _, packet: packet
        self.alter_request: Alter = lambda _, packet: packet
        self.last: set[int] = set()
        self._opcodes: dict[int, int] = {}  # by xid: answered before the xid is used again
        super().__init__(address)

    def _pass_on(self, source: socket, target: socket, sent: bytearray | None) -> None:
        greeted = False
        with suppress(OSError), source.makefile("rb") as stream:
            while len(length := stream.read(4)) == 4:
                packet = length + stream.read(unpack_from("!i", length)[0])
                if sent is None:
                    opcode = self._opcodes.get(unpack_from("!i", packet, 4)[0], -1)
                    opcode = opcode if greeted else GREETING
                    altered = self.alter(opcode, packet)
                else:
                    sent += packet
                    self.on_request()
                    opcode, altered = GREETING, packet
                    if greeted:
                        xid, opcode = unpack_from("!ii", packet, 4)
                        self._opcodes[xid] = opcode
                        altered = self.alter_request(opcode, packet)
                target.sendall(altered or b"")
                if altered is None or (sent is None and opcode in self.last):
                    break
                greeted = True
        for side in (source, target):
            with suppress(OSError):
                side.shutdown(SHUT_RDWR)


def once(opcode: int, alter: Callable[[bytes], bytes | None], times: int = 1) -> Alter:
    """Alter the first answers to requests of a type."""
    left = [None] * times

    def alter_first(answered: int, packet: bytes) -> bytes | None:
        if answered == opcode and left:
            left.pop()
            return alter(packet)
        return packet

    return alter_first


def with_code(code: int, packet: bytes) -> bytes:
    """Return the answer that refuses the same request."""
    xid, zxid, _ = unpack_from(HEADER, packet, 4)
    return pack("!iiqi", calcsize(HEADER), xid, zxid, code)
