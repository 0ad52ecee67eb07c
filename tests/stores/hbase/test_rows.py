"""Rows, cells and failed calls of the HBase store, without a server."""

from __future__ import annotations

import socket
import struct
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest

import batchkeeper as bk
from batchkeeper.stores.hbase.cluster import Region
from batchkeeper.stores.hbase.forms import STATES_AND_VALUES, gets, multi, put, remove
from batchkeeper.stores.hbase.layout import FOREIGN, MARKS, NO_ROW, Row, next_key, rows_in
from batchkeeper.stores.hbase.sequences import Entry, Taken, pack, unpack
from batchkeeper.stores.hbase.wire.cells import Cell, cells_in
from batchkeeper.stores.hbase.wire.connection import Connection, LostError, RemoteError
from batchkeeper.stores.hbase.wire.errors import error_of, meaning_of
from batchkeeper.stores.hbase.wire.messages import MESSAGES

from ...waiting import PATIENCE, soon


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
    # Too many changes for the marks, but not in the time since then.
    late = NO_ROW._replace(time=row.time - len(changes)).changed(0, b"late!" + bytes(11))
    assert row.has(late._replace(time=row.time - 2 * MARKS + 1)) is None
    assert row.has(late._replace(time=row.time - 2 * MARKS + 2)) is False
    created = NO_ROW.changed(0, b"mine!" + bytes(11))
    taken = Taken(2**40, [Entry("/é/a-0000000001", created, b"x"), Entry("/b", created, b"")])
    assert (unpack(pack(taken)), unpack(b"")) == (taken, (0, ()))
    text = b"abcdefghijklmnopqrstuvwxyz 0123456789 abc"
    for junk in (b"x", text[:24], text[:40], bytes(40), created.state[1:], created.state + b"x"):
        [(_, foreign)] = rows_in([Cell(b"/a", b"f:n", 7, junk)])
        assert foreign == NO_ROW._replace(state=junk, time=7, version=FOREIGN)
        after = foreign.changed(-1, b"mine!" + bytes(11))
        assert rows_in([Cell(b"/a", b"f:n", after.time, after.state)]) == [(b"/a", after)]
    assert rows_in([Cell(b"/a", b"f:n", 7, b"")]) == [(b"/a", NO_ROW._replace(time=7))]


def test_the_next_key() -> None:
    """Nothing lies between a key and the next one, also at the greatest length."""
    longest = b"/" + b"k" * 32_766
    assert [
        next_key(key) for key in (b"/a", longest[:-1], longest, longest[:-2] + b"\xff\xff")
    ] == [
        b"/a\0",
        longest[:-1] + b"\0",
        longest[:-1] + b"l",
        longest[:-3] + b"l",
    ]


def test_what_is_written_by_the_thousand_is_what_the_messages_say() -> None:
    """The bytes of changes and gets, which are written without messages, are those of messages."""
    region = Region.of(b"t,,1.x.", b"", b"", "h:1")
    for size, when in ((0, 1), (3, 2**14), (200, 2**41), (70_000, 2**62)):
        key, value = b"/" + b"k" * size, b"v" * size
        before = Row(b"s" * 24, 1, 0, when - 1)
        after = Row(b"t" * size, 2, 1, when)
        changes = [
            put(region.field, key, before, after, value),
            remove(region.field, key, before, after),
        ]
        read = gets(region.field, [key] * 300, STATES_AND_VALUES)
        sent = MESSAGES.MultiRequest.FromString(multi([*changes, read]))
        assert sent.SerializeToString() == multi([*changes, read])
        assert {action.region.value for action in sent.region_action} == {region.name}
        assert {action.region.type for action in sent.region_action} == {1}
        first, second, third = sent.region_action
        for change in (first, second):
            condition = change.condition
            assert (change.atomic, condition.row, condition.family) == (True, key, b"f")
            assert (condition.qualifier, condition.compare_type) == (b"n", 2)
            compared = MESSAGES.BinaryComparator.FromString(
                condition.comparator.serialized_comparator
            )
            assert compared.comparable.value == before.state
        (made,) = [action.mutation for action in first.action]
        assert (made.row, made.mutate_type, made.column_value[0].family) == (key, 2, b"f")
        cells = [
            (cell.qualifier, cell.value, cell.timestamp)
            for cell in made.column_value[0].qualifier_value
        ]
        assert cells == [(b"n", after.state, when), (b"v", value, when)]
        left, gone = [action.mutation for action in second.action]
        assert [action.index for action in second.action] == [0, 1]
        assert (left.mutate_type, gone.mutate_type) == (2, 3)
        assert [(pair.name, len(pair.value)) for pair in left.attribute] == [("_ttl", 8)]
        assert [
            (cell.qualifier, cell.timestamp, cell.delete_type)
            for cell in gone.column_value[0].qualifier_value
        ] == [(b"n", when - 1, 1), (b"v", when - 1, 1)]
        assert [action.index for action in third.action] == [*range(300)]
        asked = third.action[299].get
        assert (asked.row, [*asked.column[0].qualifier]) == (key, [b"n", b"v"])


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
        (LostError("x", sent=False, refused="server"), "moved", bk.StoreUnavailableError),
        (LostError("x", sent=False, refused="client"), "moved", bk.AuthenticationError),
        (RemoteError("a.b.NotServingRegionException", ""), "moved", bk.StoreUnavailableError),
        (RemoteError("a.b.CallQueueTooBigException", ""), "busy", bk.StoreUnavailableError),
        (RemoteError("java.io.IOException", ""), "lost", bk.IndeterminateError),
        (RemoteError("a.AccessDeniedException", ""), "refused", bk.AuthenticationError),
        (RemoteError("a.b.NoSuchColumnFamilyException", ""), "refused", bk.UnsupportedError),
        (RemoteError("a.b.TableExistsException", "t"), "refused", bk.UnsupportedError),
        (too_large, "refused", bk.ValueTooLargeError),
        (RemoteError("a.SpaceLimitingException", ""), "refused", bk.UnsupportedError),
        (RemoteError("a.RequestTooBigException", ""), "refused", bk.ValueTooLargeError),
        (RemoteError("a.MultiActionResultTooLarge", ""), "busy", bk.StoreUnavailableError),
    ]
    for failure, meaning, error in meanings:
        assert meaning_of(failure) == meaning
        assert type(error_of(failure, "/a")) is error


def test_a_server_that_refuses_the_connection() -> None:
    """The error is what the server says about it, in an answer to no call."""
    kind, why = "a.AccessDeniedException", "Authentication is required"
    header = MESSAGES.ResponseHeader(
        call_id=2**32 - 1,
        exception=MESSAGES.ExceptionResponse(
            exception_class_name=kind, stack_trace=f"{kind}: {why}\n at x"
        ),
    ).SerializeToString()
    answer = bytes([len(header)]) + header

    def refuse() -> None:
        with server.accept()[0] as line:
            line.recv(1000)
            line.sendall(struct.pack(">I", len(answer)) + answer)

    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as pool:
        pool.submit(refuse)
        address = f"127.0.0.1:{server.getsockname()[1]}"
        made = Connection(address, "ClientMetaService", "tests", PATIENCE)
        with closing(made), pytest.raises(LostError, match=why):
            made.begin("GetActiveMaster", MESSAGES.Empty(), MESSAGES.Empty, soon()).wait(soon())


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
