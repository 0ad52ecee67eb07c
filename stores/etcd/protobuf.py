"""The parts of protobuf's encoding that hand-written requests need."""

from __future__ import annotations

from typing import Final

__all__ = ["VARINT", "field"]


class _Varints(dict[int, bytes]):
    """Protobuf's base-128 integers by value. The table keeps small ones; others are computed."""

    def __missing__(self, number: int) -> bytes:
        encoded = bytearray()
        rest = number
        while rest > 127:
            encoded.append(rest & 127 | 128)
            rest >>= 7
        encoded.append(rest)
        found = bytes(encoded)
        if number < 4096:
            self[number] = found
        return found


VARINT: Final = _Varints()


def field(tag: bytes, body: bytes) -> bytes:
    """Return a field that contains bytes or a message."""
    return tag + VARINT[len(body)] + body
