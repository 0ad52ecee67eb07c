"""The bytes of messages that are sent by the thousand.

A change of a row is a dozen messages inside each other. To make the objects of these takes several
times as long as to write their bytes. So those are written here, field by field, with the numbers
of ``messages``; a test compares them.
"""

from __future__ import annotations

from typing import Final

__all__ = ["Encoded", "field", "number", "varint"]

_SMALL: Final = 1 << 14


class Encoded(bytes):
    """A message that is encoded already."""

    __slots__ = ()

    def SerializeToString(self) -> bytes:  # noqa: N802 - as protobuf names it
        """Return its bytes, as a message does."""
        return self


def varint(value: int) -> bytes:
    """Return a number of at least 0, with seven bits in each byte, the lowest first."""
    head = bytearray()
    while value > 0x7F:
        head.append(value & 0x7F | 0x80)
        value >>= 7
    head.append(value)
    return bytes(head)


_VARINTS: Final = [varint(value) for value in range(_SMALL)]


def field(place: int, content: bytes) -> bytes:
    """Return a field with bytes, text or a message. Its number is at most 15."""
    size = len(content)
    return b"%c%b%b" % (place << 3 | 2, _VARINTS[size] if size < _SMALL else varint(size), content)


def number(place: int, value: int) -> bytes:
    """Return a field with a number."""
    return b"%c%b" % (place << 3, _VARINTS[value] if value < _SMALL else varint(value))
