"""The cells of rows, as HBase's ``KeyValueCodec`` writes them beside a message.

Each cell is its length (4 bytes) and a ``KeyValue``: the lengths of its key and its value (4 bytes
each), the key and the value. The key is the length of the row (2 bytes), the row, the length of the
family (1 byte), the family, the qualifier, the time in ms (8 bytes) and the type (1 byte).
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

__all__ = ["CODEC", "Cell", "cells_in"]

CODEC: Final = "org.apache.hadoop.hbase.codec.KeyValueCodec"

_LENGTHS: Final = struct.Struct(">IIIH")
_TIME: Final = struct.Struct(">Q")


class Cell(NamedTuple):
    """One cell.

    Attributes:
        row: the key of its row.
        column: its family and its qualifier, with a colon between them.
        time: its time, in milliseconds since the epoch.
        value: its value.
    """

    row: bytes
    column: bytes
    time: int
    value: bytes


def cells_in(block: bytes | memoryview) -> list[Cell]:
    """Return the cells of a block.

    Raises:
        ValueError: it is cut off, or its lengths contradict each other.
    """
    data = bytes(block)
    found: list[Cell] = []
    at, end = 0, len(data)
    unpack, unpack_time = _LENGTHS.unpack_from, _TIME.unpack_from
    try:
        while at < end:
            length, key, value, row = unpack(data, at)
            start = at + 14
            family = start + row + 1
            family_size = data[family - 1]
            qualifier = family + family_size
            after_key = at + 12 + key
            at += 4 + length
            if at > end or after_key + value > at:
                raise ValueError("the cells of an answer are cut off")
            found.append(
                Cell(
                    data[start : start + row],
                    data[family:qualifier] + b":" + data[qualifier : after_key - 9],
                    unpack_time(data, after_key - 9)[0],
                    data[after_key : after_key + value],
                )
            )
    except (struct.error, IndexError) as error:
        raise ValueError(f"the cells of an answer cannot be read: {error}") from error
    return found
