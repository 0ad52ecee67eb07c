"""Rows, cells and failed calls of the HBase store, without a server."""

from __future__ import annotations

import struct
import time
from typing import Any

import pytest

import batchkeeper as bk
from batchkeeper.stores.hbase.layout import MARKS, NO_ROW, Row, rows_in
from batchkeeper.stores.hbase.sequences import Entry, Taken, pack, unpack
from batchkeeper.stores.hbase.wire.cells import Cell, cells_in
from batchkeeper.stores.hbase.wire.connection import LostError, RemoteError
from batchkeeper.stores.hbase.wire.errors import error_of, meaning_of
from batchkeeper.stores.hbase.wire.messages import MESSAGES


def test_a_row_tells_its_last_changes() -> None:
    """Whether a change was made is known as long as its mark is kept; times grow in any case."""
    future = int(time.time() * 1000) + 3_600_000
    row, changes = NO_ROW._replace(time=future), list[Row]()
    for number in range(2 * MARKS):
        other = row.changed(number, b"other" + number.to_bytes(11))
        row = row.changed(number, b"mine!" + number.to_bytes(11))
        changes += [row, other]
        assert row.time == future + number + 1
        [(key, read)] = rows_in([Cell(b"/a", b"f:n", row.time, row.state)])
        assert (key, read) == (b"/a", row)
        for back, (mine, theirs) in enumerate(
            zip(changes[::-1][1::2], changes[::-1][::2], strict=True)
        ):
            known = back < MARKS
            assert row.has(mine) is (True if known else None)
            assert row.has(theirs) is (False if known else None)
    assert NO_ROW.has(row) is None  # It was deleted, and forgotten.
    created = NO_ROW.changed(0, b"mine!" + bytes(11))
    taken = Taken(2**40, [Entry("/é/a-0000000001", created, b"x"), Entry("/b", created, b"")])
    assert (unpack(pack(taken)), unpack(b"")) == (taken, (0, ()))
    with pytest.raises(bk.UnsupportedError, match="not written by this client"):
        rows_in([Cell(b"/a", b"f:n", 1, b"short")])


def test_cells_and_messages_are_those_of_hbase() -> None:
    """A block of cells is read whole, or refused; a message has the numbers of its fields."""
    cells = [Cell(b"/a", b"f:n", 7, b"x" * 16), Cell(b"/b", b"f:v", 2**40, b"y" * 16)]
    block = b""
    for row, column, when, value in cells:
        family, _, qualifier = column.partition(b":")
        key = struct.pack(">H", len(row)) + row + bytes([len(family)]) + family + qualifier
        key += struct.pack(">QB", when, 4)
        body = struct.pack(">II", len(key), len(value)) + key + value
        block += struct.pack(">I", len(body)) + body
    assert cells_in(block) == cells
    first = len(block) // 2
    assert cells_in(block[:first]) == cells[:1]
    for cut in {*range(1, len(block))} - {first}:
        with pytest.raises(ValueError, match="cells of an answer"):
            cells_in(block[:cut])
    sent = MESSAGES.ScanRequest(
        region=MESSAGES.RegionSpecifier(type=1, value=b"r"), number_of_rows=3, close_scanner=True
    )
    assert sent.SerializeToString() == b"\x0a\x05\x08\x01\x12\x01r\x20\x03\x28\x01"


def test_what_a_failed_call_means() -> None:
    """Each failure says whether the request can have been applied."""
    too_large = RemoteError("a.DoNotRetryIOException", "Cell of size 3 exceeds limit of 2 bytes")
    meanings: list[tuple[Any, str, type[bk.MetadataStoreError]]] = [
        (LostError("x", sent=False), "moved", bk.StoreUnavailableError),
        (LostError("x", sent=True), "lost", bk.IndeterminateError),
        (RemoteError("a.b.NotServingRegionException", ""), "moved", bk.StoreUnavailableError),
        (RemoteError("a.b.CallQueueTooBigException", ""), "busy", bk.StoreUnavailableError),
        (RemoteError("java.io.IOException", ""), "lost", bk.IndeterminateError),
        (RemoteError("a.AccessDeniedException", ""), "refused", bk.AuthenticationError),
        (RemoteError("a.b.NoSuchColumnFamilyException", ""), "refused", bk.UnsupportedError),
        (RemoteError("a.b.TableExistsException", "t"), "refused", bk.UnsupportedError),
        (too_large, "refused", bk.ValueTooLargeError),
    ]
    for failure, meaning, error in meanings:
        assert meaning_of(failure) == meaning
        assert type(error_of(failure, "/a")) is error


def test_what_is_refused_before_a_connection() -> None:
    """Wrong names and options, passwords, and addresses at which nobody listens."""
    for url, match in (
        ("hbase://127.0.0.1:1/a/b", "must be named"),
        ("hbase://127.0.0.1:1/t?x=1", "no option 'x'"),
    ):
        with pytest.raises(bk.InvalidSettingError, match=match):
            bk.open_store(url)
    with pytest.raises(bk.UnsupportedError, match="Kerberos"):
        bk.open_store("hbase://127.0.0.1:1/t", username="x", password="y")
    with pytest.raises(bk.StoreUnavailableError, match=r"127\.0\.0\.1:1"):
        bk.open_store("hbase://127.0.0.1:1/t", connect_timeout=0.2)
