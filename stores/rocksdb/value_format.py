"""The forms of a value in RocksDB: a header with its stat, followed by the value.

The first byte of a record is its form. The header of an ephemeral value also has the number of the
session that created it. That of a plain value is the one of the first releases, byte for byte.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from ...ops.acceleration import accelerated, bind
from ...ops.errors import MetadataStoreError
from ...ops.results import GetResult, ScanPage, Stat, StatPage
from ..backend import ReadRequest, WriteRequest
from ..keys import Sorted
from ..refusals import not_ours

__all__ = [
    "EPHEMERAL",
    "EPHEMERAL_HEADER",
    "HEADER",
    "LONGEST_HEADER",
    "PLAIN",
    "answer_reads",
    "found_at",
    "is_ours",
    "is_plain",
    "plain_puts",
    "scan_page",
    "session_of",
    "stat_page",
]

#: The forms of records.
PLAIN: Final = 1
EPHEMERAL: Final = 2

#: Form, version, revision, created and modified in milliseconds since the epoch.
HEADER: Final = struct.Struct(">BIQQQ")
#: The same, and the number of the session.
EPHEMERAL_HEADER: Final = struct.Struct(">BIQQQQ")
#: The first bytes of a record that contain its header, whatever its form.
LONGEST_HEADER: Final = EPHEMERAL_HEADER.size

_SESSION: Final = struct.Struct(">Q")
_SIZES: Final = {PLAIN: HEADER.size, EPHEMERAL: EPHEMERAL_HEADER.size}

_PLAIN: Final = bytes([PLAIN])
_HIGH: Final = 0x80  # the highest bit of a number's first byte

_NO_RECORD: Final[Any] = object()

_new = tuple.__new__  # does the work of Stat(...) and GetResult(...) in half the time


def is_plain(record: bytes) -> bool:
    """Say whether a record, or its first bytes, begins with the header of a plain value.

    None of its numbers has the highest bit: no store counts that far, and Spark's integers are
    signed.
    """
    return (
        len(record) >= HEADER.size
        and record[0] == PLAIN
        and record[1] < _HIGH
        and record[5] < _HIGH
        and record[13] < _HIGH
        and record[21] < _HIGH
    )


def is_ours(record: bytes) -> bool:
    """Say whether a record, or its first bytes, begins with a header of this package."""
    return (
        is_plain(record)
        or (
            len(record) >= EPHEMERAL_HEADER.size
            and record[0] == EPHEMERAL
            # Otherwise, the header begins like that of a plain value.
            and is_plain(_PLAIN + record[1 : HEADER.size])
        )
    )


def session_of(record: bytes) -> int | None:
    """Return the session of a record that is this package's; ``None`` if it is not ephemeral."""
    if record[0] != EPHEMERAL:
        return None
    session: int = _SESSION.unpack_from(record, HEADER.size)[0]
    return session


def found_at(path: str, record: bytes, owns: bool) -> GetResult | MetadataStoreError:
    """Return the value in a record, with its stat; an error if the record is not this package's.

    Args:
        path: the path of the record.
        record: the whole record.
        owns: whether ephemeral values belong to the session of this store.
    """
    if is_plain(record):
        _, version, revision, created, modified = HEADER.unpack_from(record)
        stat = _new(Stat, (path, version, revision, created, modified, False, False))
        return _new(GetResult, (record[HEADER.size :], stat))
    if not is_ours(record):
        return not_ours(path)
    _, version, revision, created, modified, _ = EPHEMERAL_HEADER.unpack_from(record)
    stat = Stat(path, version, revision, created, modified, ephemeral=True, owned=owns)
    return GetResult(record[EPHEMERAL_HEADER.size :], stat)


@accelerated
def answer_reads(
    requests: Iterable[ReadRequest], records: Iterator[bytes | None], owns: bool
) -> list[GetResult | MetadataStoreError | bool | None]:
    """Return the answers to reads, up to the first that asks for more than a record.

    Args:
        requests: the reads.
        records: their records, whole; one is taken for each read that is looked at.
        owns: see :func:`found_at`.
    """
    answers: list[GetResult | MetadataStoreError | bool | None] = []
    for request in requests:
        record = next(records, _NO_RECORD)
        if record is _NO_RECORD:
            raise ValueError("fewer records than requests")
        if request.kind == "get":
            answers.append(None if record is None else found_at(request.path, record, owns))
        elif request.kind == "exists":
            answers.append(record is not None)
        else:
            break
    return answers


bind(found_at=found_at, GetResult=GetResult, Stat=Stat)


@accelerated
def plain_puts(
    requests: Sequence[WriteRequest],
    headers: Sequence[bytes | None],
    start: int,
    revision: int,
    now: int,
) -> tuple[list[Stat], list[bytes]]:
    """Return the answers and the records of puts without options.

    They end before the first write that is not a put, whose value before is not plain, or whose
    condition does not hold.

    Args:
        requests: the writes of a call, without options.
        headers: their records before the call, or the headers of these.
        start: the place of the first put.
        revision: the revision of the call.
        now: milliseconds since the epoch.
    """
    stats, records = [], []
    fresh = HEADER.pack(PLAIN, 0, revision, now, now)
    # This loop runs once for every put, so it does no unnecessary work.
    for place in range(start, len(requests)):
        request, before = requests[place], headers[place]
        if request.kind != "put":
            break
        expected, version, created, header = request.expected_version, 0, now, fresh
        if before is not None:
            if not is_plain(before):
                break
            _, version, _, created, _ = HEADER.unpack_from(before)
            version += 1
            header = HEADER.pack(PLAIN, version, revision, created, now)
        if expected is not None and expected != version - 1:
            break
        records.append(header + (request.value or b""))
        stats.append(_new(Stat, (request.path, version, revision, created, now, False, False)))
    return stats, records


def scan_page(keys: Sorted, records: Sequence[bytes], owns: bool) -> ScanPage:
    """Return a page of values from whole records.

    Args:
        keys: the keys of the page.
        records: the records of its paths.
        owns: whether ephemeral values belong to the session of this store.

    Raises:
        MetadataStoreError: a record is not this package's.
    """
    stats = stat_page(keys, records, owns)
    if True not in stats.ephemeral:
        values = [record[HEADER.size :] for record in records]
    else:
        values = [record[_SIZES[record[0]] :] for record in records]
    return ScanPage(
        stats.paths,
        values,
        stats.versions,
        stats.revisions,
        stats.ephemeral,
        stats.created,
        stats.modified,
        stats.owned,
        foreign=stats.foreign,
    )


def stat_page(keys: Sorted, records: Sequence[bytes], owns: bool) -> StatPage:
    """Return a page of stats from records, of which only the headers are needed.

    Args and errors are those of :func:`scan_page`.
    """
    paths = keys.paths
    if not records:
        return StatPage.of([], keys.foreign)
    ephemeral: Sequence[bool]
    try:
        columns = zip(*map(HEADER.unpack_from, records), strict=True)
        forms, versions, revisions, created, modified = columns
        fine = max(versions) < 1 << 31 and max(map(max, (revisions, created, modified))) < 1 << 63
    except struct.error:
        fine = False
    if fine and forms.count(PLAIN) == len(forms):
        ephemeral = [False] * len(paths)
    elif fine and all(map(is_ours, records)):
        ephemeral = [form == EPHEMERAL for form in forms]
    else:
        looked_at = zip(paths, records, strict=True)
        raise not_ours(next(path for path, record in looked_at if not is_ours(record)))
    return StatPage(
        paths,
        versions,
        revisions,
        ephemeral,
        created,
        modified,
        ephemeral if owns and True in ephemeral else None,
        foreign=keys.foreign,
    )
