"""The files of a store on RocksDB: checks whether they are batchkeeper's, and opens them."""

from __future__ import annotations

import json
import os
import re
import struct
import time
from typing import Final

from rocksdict import (
    AccessType,
    BlockBasedOptions,
    Cache,
    DBCompressionType,
    Options,
    Rdict,
    WriteOptions,
)

from ...ops.errors import InvalidSettingError, StoreUnavailableError

__all__ = [
    "FORMAT",
    "META",
    "META_KEY",
    "open_files",
    "open_files_to_read",
    "prepare",
    "read_meta",
]

_MIB: Final = 1024 * 1024

FORMAT: Final = 1
META_KEY: Final = b"batchkeeper"
#: The format, the last revision, and the size of the largest record that was ever put.
META: Final = struct.Struct(">BQI")

# What RocksDB and rocksdict leave behind when they die before the directory has become a RocksDB.
_UNFINISHED = re.compile(
    r"LOCK|LOG(\.old\.\d+)?|IDENTITY|(MANIFEST|OPTIONS)-\d+|\d+\.dbtmp|OPTIONS-\d+\.dbtmp"
    r"|rocksdict-config\.json"
)

_CONFIG: Final = "rocksdict-config.json"

_BETWEEN_OPENINGS: Final = 0.01  # seconds


def prepare(directory: str, create: bool) -> bool:
    """Return whether the store in the directory is yet to be made.

    With ``create`` a missing directory is made. Without it nothing is, and the store must be there.

    Raises:
        InvalidSettingError: something else than a store of ours is there.
        StoreUnavailableError: there is no store, and ``create`` is false.
        OSError: the directory cannot be made or read.
    """
    if os.path.lexists(directory) and not os.path.isdir(directory):
        raise InvalidSettingError(f"a RocksDB store must be a directory: {directory}")
    if create:
        os.makedirs(directory, exist_ok=True)
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        raise _missing(directory) from None
    if "CURRENT" not in names:
        for name in names:
            if not _UNFINISHED.fullmatch(name):
                raise InvalidSettingError(
                    f"not a RocksDB store, and not empty (it contains {name!r}): {directory}"
                )
        if not create:
            raise _missing(directory)
        return True
    if not _may_be_ours(os.path.join(directory, _CONFIG)):
        raise InvalidSettingError(
            f"a RocksDB database that batchkeeper did not create: {directory}"
        )
    if others := _column_families(directory) - {"default"}:
        raise InvalidSettingError(
            f"a RocksDB database with column families of another program, which no scan shows "
            f"({', '.join(sorted(others))}): {directory}"
        )
    return False


def _column_families(directory: str) -> set[str]:
    try:
        return set(Rdict.list_cf(directory))
    except Exception:  # Damaged, or just being written: opening it says which.
        return set()


def _missing(directory: str) -> StoreUnavailableError:
    return StoreUnavailableError(
        f"there is no RocksDB store in {directory}, and this call does not create one: check the "
        "path, or write to the store first ('batchkeeper put', or open_store with create=True)"
    )


def _may_be_ours(config: str) -> bool:
    """Whether rocksdict made this RocksDB, in the mode that we use.

    It would open any other as well, and write its own configuration into it.
    """
    try:
        with open(config, encoding="utf-8") as file:
            return bool(json.load(file).get("raw_mode", True))
    except FileNotFoundError:
        return False
    except (ValueError, AttributeError):
        # Torn: rocksdict writes it anew, and not atomically, whenever it opens the store.
        return True


def open_files(directory: str, new: bool, read_only: bool = False) -> Rdict:
    access = (
        AccessType.read_only(error_if_log_file_exist=False)
        if read_only
        else AccessType.read_write()
    )
    try:
        return Rdict(directory, _options(new), access_type=access)
    except Exception as error:
        reason = str(error)
        if "lock" in reason and "/LOCK" in reason:
            raise StoreUnavailableError(
                f"the RocksDB store in {directory} is already open, in this process or another; "
                f"only one opener at a time is possible"
            ) from error
        raise StoreUnavailableError(
            f"RocksDB cannot open the store in {directory}: {reason}"
        ) from error


def open_files_to_read(directory: str, deadline: float) -> Rdict:
    """Open a store beside its writer, with all that was on the disk when this was called.

    RocksDB reads the manifest first, and then those logs that are there. A log whose records the
    writer has moved into a table meanwhile is deleted: then they are in none of what was read, and
    RocksDB does not say so. Each such move stands in the manifest before the log goes, so the store
    is opened again, until the manifest is the same before and after.

    Raises:
        StoreUnavailableError: it cannot be opened, or changed all the time until ``deadline``.
    """
    while True:
        before = _manifest(directory)
        failure = None
        try:
            db = open_files(directory, new=False, read_only=True)
        except StoreUnavailableError as error:
            failure = error  # A table may be gone, too.
        if _manifest(directory) == before:
            if failure is not None:
                raise failure
            return db
        if failure is None:
            db.close()
        if time.monotonic() >= deadline:
            raise StoreUnavailableError(
                f"the RocksDB store in {directory} cannot be read: its writer rearranged the files "
                "during every attempt to open them"
            ) from failure
        time.sleep(_BETWEEN_OPENINGS)


def _manifest(directory: str) -> tuple[str, int]:
    """Return which manifest is current, and its length: it grows with every change of the files."""
    try:
        with open(os.path.join(directory, "CURRENT"), encoding="utf-8") as file:
            name = file.read().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise StoreUnavailableError(
            f"RocksDB cannot open the store in {directory}: {error}"
        ) from error
    try:
        return name, os.stat(os.path.join(directory, name)).st_size
    except OSError:
        return name, -1  # Another one is current by now, or the store is damaged.


def _options(new: bool) -> Options:
    """Small and frequent writes of small values; 50 MiB of memory at most, half of it as a rule."""
    options = Options(raw_mode=True)
    options.create_if_missing(new)
    options.set_write_buffer_size(8 * _MIB)
    # A disk that does not keep up stops a write, and the interpreter with it, once all are full.
    options.set_max_write_buffer_number(4)
    # Most puts of a hub are of new paths. Filters spare the search for them, in memory (one percent
    # is about 10 bits for each record of 100 bytes; the search costs a third of what it did) and on
    # the disk.
    options.set_memtable_whole_key_filtering(True)
    options.set_memtable_prefix_bloom_ratio(0.01)
    options.set_compression_type(DBCompressionType.lz4())
    tables = BlockBasedOptions()
    tables.set_bloom_filter(10, False)
    tables.set_block_cache(Cache(16 * _MIB))
    options.set_block_based_table_factory(tables)
    # RocksDB's own log: its default keeps a thousand files of any size.
    options.set_keep_log_file_num(2)
    options.set_max_log_file_size(_MIB)
    options.set_stats_dump_period_sec(0)
    return options


def read_meta(directory: str, db: Rdict, sync: bool, read_only: bool = False) -> tuple[int, int]:
    """Return the last revision and the size of the largest record; write them to a new store."""
    try:
        record: bytes | None = db.get(META_KEY)
        empty = record is None and not any(True for _ in db.keys())  # noqa: SIM118 - an Rdict is not iterable
        if empty:
            record = META.pack(FORMAT, 0, 0)
            options = WriteOptions()
            options.sync = sync
            if not read_only:
                db.put(META_KEY, record, options)
    except Exception as error:
        raise StoreUnavailableError(
            f"RocksDB cannot open the store in {directory}: {error}"
        ) from error
    if record is None or len(record) != META.size:
        raise InvalidSettingError(
            f"a RocksDB database that batchkeeper did not create: {directory}"
        )
    written_format, revision, largest = META.unpack(record)
    if written_format != FORMAT:
        raise InvalidSettingError(
            f"the store in {directory} has format {written_format}; this batchkeeper supports "
            f"format {FORMAT}"
        )
    return revision, largest
