"""The form of a value in RocksDB: a header with its stat, followed by the value."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from ...ops.errors import MetadataStoreError
from ...ops.results import GetResult, ScanPage, Stat, StatPage
from ..keys import Sorted
from .files import FORMAT

__all__ = ["HEADER", "found_at", "is_ours", "not_ours", "scan_page", "stat_page"]

#: Format, version, revision, created and modified in milliseconds since the epoch.
HEADER: Final = struct.Struct(">BIQQQ")

_HIGH: Final = 0x80  # the highest bit of a number's first byte

_new = tuple.__new__  # does the work of Stat(...) and GetResult(...) in half the time


def is_ours(record: bytes) -> bool:
    """Say whether a record, or its first bytes, begins with a header of this package.

    None of its numbers has the highest bit: no store counts that far, and Spark's integers are
    signed.
    """
    return (
        len(record) >= HEADER.size
        and record[0] == FORMAT
        and record[1] < _HIGH
        and record[5] < _HIGH
        and record[13] < _HIGH
        and record[21] < _HIGH
    )


def not_ours(path: str) -> MetadataStoreError:
    """Return the error of a path whose value another program wrote, or which is damaged."""
    return MetadataStoreError(
        f"batchkeeper did not write the value at {path!r}: another program did, or the value is "
        "damaged",
        path=path,
    )


def found_at(path: str, record: bytes) -> GetResult | MetadataStoreError:
    """Return the value in a record, with its stat; an error if the record is not this package's."""
    if not is_ours(record):
        return not_ours(path)
    _, version, revision, created, modified = HEADER.unpack_from(record)
    stat = _new(Stat, (path, version, revision, created, modified, False, False))
    return _new(GetResult, (record[HEADER.size :], stat))


def scan_page(keys: Sorted, records: Sequence[bytes]) -> ScanPage:
    """Return a page of values from whole records.

    Raises:
        MetadataStoreError: a record is not this package's.
    """
    stats = stat_page(keys, records)
    return ScanPage(
        stats.paths,
        [record[HEADER.size :] for record in records],
        stats.versions,
        stats.revisions,
        stats.ephemeral,
        stats.created,
        stats.modified,
        foreign=stats.foreign,
    )


def stat_page(keys: Sorted, records: Sequence[bytes]) -> StatPage:
    """Return a page of stats from records, of which only the headers are needed.

    Raises:
        MetadataStoreError: a record is not this package's.
    """
    paths = keys.paths
    if not records:
        return StatPage.of([], keys.foreign)
    try:
        columns = zip(*map(HEADER.unpack_from, records), strict=True)
        formats, versions, revisions, created, modified = columns
        fine = (
            formats.count(FORMAT) == len(formats)
            and max(versions) < 1 << 31
            and max(map(max, (revisions, created, modified))) < 1 << 63
        )
    except struct.error:
        fine = False
    if not fine:
        looked_at = zip(paths, records, strict=True)
        raise not_ours(next(path for path, record in looked_at if not is_ours(record)))
    return StatPage(
        paths,
        versions,
        revisions,
        [False] * len(paths),
        created,
        modified,
        foreign=keys.foreign,
    )
