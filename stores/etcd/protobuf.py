"""The parts of protobuf's encoding that hand-written requests need."""

from __future__ import annotations

from typing import Final

__all__ = ["VARINT", "field"]


class _Varints(dict[int, bytes]):
    """Protobuf's base-128 integers by value. The table has small ones; larger ones are computed."""

    def __missing__(self, number: int) -> bytes:
        encoded = bytearray()
        while number > 127:
            encoded.append(number & 127 | 128)
            number >>= 7
        encoded.append(number)
        return bytes(encoded)


VARINT: Final = _Varints()
VARINT.update({number: VARINT[number] for number in range(4096)})


def field(tag: bytes, body: bytes) -> bytes:
    """Return a field that contains bytes or a message."""
    return tag + VARINT[len(body)] + body
