"""The files of a store on RocksDB: checks whether they are batchkeeper's, and opens them."""

from __future__ import annotations

import json
import os
import re
import struct
import tempfile
import time
import zlib
from contextlib import suppress
from typing import Final

from rocksdict import (
    AccessType,
    BlockBasedOptions,
    Cache,
    DBCompressionType,
    DBRecoveryMode,
    Options,
    Rdict,
    WriteOptions,
)

from ...ops.errors import InvalidSettingError, StoreUnavailableError
from .layout import FORMATS, META, META_KEY, PLAIN_FORMAT, Meta
from .sessions import LOCK_FILE

__all__ = [
    "note_synced",
    "open_files",
    "open_files_to_read",
    "prepare",
    "read_meta",
    "read_synced",
]

_MIB: Final = 1024 * 1024

# The files that RocksDB and rocksdict leave if they die before they have created a database.
_UNFINISHED = re.compile(
    r"LOCK|LOG(\.old\.\d+)?|IDENTITY|(MANIFEST|OPTIONS)-\d+|\d+\.dbtmp|OPTIONS-\d+\.dbtmp"
    r"|rocksdict-config\.json"
)

# The files of a database that RocksDB reads.
_READ: Final = re.compile(r"CURRENT|IDENTITY|MANIFEST-\d+|\d+\.(log|sst)")

# The reasons why a directory can be read but not opened for writes, and the advice.
_UNWRITABLE: Final = "No space left|too large|Read-only file system|Permission denied"
_READ_ONLY: Final = (
    ". Opening writes to the directory; the option read_only=true of the URL reads without it"
)

_CONFIG: Final = "rocksdict-config.json"

# A revision, and the checksum of its bytes.
_SYNCED: Final = struct.Struct(">8sI")
_SYNCED_FILE: Final = "SYNCED"

# What RocksDB says of a lock that this process, or another, holds.
_HELD: Final = re.compile("lock hold by current process|While lock file: .*/LOCK: Resource temp")

_BETWEEN_OPENINGS: Final = 0.01  # seconds


def prepare(directory: str, create: bool) -> bool:
    """Check a directory before it is opened; say whether the store has to be created in it.

    With ``create``, a missing directory is created. Without it, nothing is, and the store must
    exist.

    Raises:
        InvalidSettingError: the directory contains something other than a store of batchkeeper.
        StoreUnavailableError: there is no store, and ``create`` is false.
        OSError: the directory cannot be created or read.
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
            if not (_UNFINISHED.fullmatch(name) or LOCK_FILE.fullmatch(name)):
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
    except Exception:  # It is damaged, or just being written. Opening it shows which.
        return set()


def _missing(directory: str) -> StoreUnavailableError:
    return StoreUnavailableError(
        f"there is no RocksDB store in {directory}, and this call does not create one: check the "
        "path, or write to the store first ('batchkeeper put', or open_store with create=True)"
    )


def _may_be_ours(config: str) -> bool:
    """Say whether rocksdict may have created this database, in the mode that this package uses.

    rocksdict would open any other database as well, and write its own configuration into it.
    """
    try:
        with open(config, encoding="utf-8") as file:
            return bool(json.load(file).get("raw_mode", True))
    except FileNotFoundError:
        return False
    except (ValueError, AttributeError):
        # A torn file: rocksdict rewrites it whenever it opens the store, and not atomically.
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
        if _HELD.search(reason):
            raise StoreUnavailableError(
                f"the RocksDB store in {directory} is already open, in this process or another; "
                f"only one opener at a time is possible"
            ) from error
        advice = "" if read_only or not re.search(_UNWRITABLE, reason) else _READ_ONLY
        raise StoreUnavailableError(
            f"RocksDB cannot open the store in {directory}: {reason}{advice}"
        ) from error


def open_files_to_read(directory: str, deadline: float) -> Rdict:
    """Open a store beside its writer, with everything that was on the disk at the time of the call.

    RocksDB reads the manifest, and then the logs that exist. If the writer has moved a log into a
    table meanwhile and deleted the log, its records are in neither, and RocksDB does not report
    that. Each such move is in the manifest before the log is deleted. So this opens the store again
    until the manifest is the same before and after.

    Raises:
        StoreUnavailableError: it cannot be opened, or its files kept changing until ``deadline``.
    """
    while True:
        before = _manifest(directory)
        failure = None
        try:
            db = _open_linked(directory)
        except StoreUnavailableError as error:
            failure = error  # The writer may have deleted a table, too.
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


def _open_linked(directory: str) -> Rdict:
    """Open a store for reading in a directory of our own, with links to its files.

    rocksdict writes its configuration into the directory that it opens, even for reading. RocksDB
    itself opens all files at once, so the links may go then.
    """
    links = ""
    try:
        with tempfile.TemporaryDirectory(prefix="batchkeeper-") as links:
            for name in filter(_READ.fullmatch, os.listdir(directory)):
                os.symlink(os.path.join(directory, name), os.path.join(links, name))
            return open_files(links, new=False, read_only=True)
    except (OSError, StoreUnavailableError) as error:
        reason = str(error).replace(links or directory, directory)
        raise StoreUnavailableError(reason) from error


def _manifest(directory: str) -> tuple[str, int]:
    """Return the current manifest's name and length, which grows with every change of the files."""
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
        return name, -1  # Another manifest is current by now, or the store is damaged.


def _options(new: bool) -> Options:
    """Return options for frequent small writes; at most 50 MiB of memory, usually half of that."""
    options = Options(raw_mode=True)
    options.create_if_missing(new)
    options.set_write_buffer_size(8 * _MIB)
    # If the disk does not keep up and all buffers are full, a write stops, and the interpreter too.
    options.set_max_write_buffer_number(4)
    # Most puts of a hub are of new paths. Filters save the search for them, in memory and on the
    # disk. In memory, one percent is about 10 bits for each record of 100 bytes, and the search
    # costs a third of the time.
    options.set_memtable_whole_key_filtering(True)
    options.set_memtable_prefix_bloom_ratio(0.01)
    # A compaction holds filter and index of the table that it writes. With the usual tables of 64
    # MiB, eight million puts took 146 MiB of memory, with these 53. Tables further down are larger,
    # because RocksDB keeps all files open.
    options.set_target_file_size_base(4 * _MIB)
    options.set_target_file_size_multiplier(4)
    options.set_compression_type(DBCompressionType.lz4())
    tables = BlockBasedOptions()
    tables.set_bloom_filter(10, False)
    tables.set_block_cache(Cache(16 * _MIB))
    options.set_block_based_table_factory(tables)
    # By default, RocksDB drops everything behind a damaged record of its log without an error.
    options.set_wal_recovery_mode(DBRecoveryMode.tolerate_corrupted_tail_records())
    # RocksDB's own log. By default, it keeps a thousand files of any size.
    options.set_keep_log_file_num(2)
    options.set_max_log_file_size(_MIB)
    options.set_stats_dump_period_sec(0)
    return options


def note_synced(directory: str, revision: int) -> None:
    """Note beside RocksDB's files that the changes up to a revision are on the disk.

    RocksDB cannot know that its newest log was cut or removed: only the log itself says how long it
    was. The note itself is not synced, so after a power cut it may be an older one.
    """
    number = revision.to_bytes(8)
    with suppress(OSError):  # It only serves to recognize damage.
        file = os.open(os.path.join(directory, _SYNCED_FILE), os.O_WRONLY | os.O_CREAT, 0o666)
        try:
            os.pwrite(file, _SYNCED.pack(number, zlib.crc32(number)), 0)
        finally:
            os.close(file)


def read_synced(directory: str) -> int:
    """Return the revision of the note, or 0 if there is none. Read it before RocksDB is opened."""
    with suppress(OSError, struct.error), open(os.path.join(directory, _SYNCED_FILE), "rb") as file:
        number, checksum = _SYNCED.unpack(file.read())
        return int.from_bytes(number) if zlib.crc32(number) == checksum else 0
    return 0


def read_meta(directory: str, db: Rdict, sync: bool, synced: int, read_only: bool = False) -> Meta:
    """Return the record that a store keeps of itself; write it to a new store.

    Raises:
        StoreUnavailableError: RocksDB fails, or a part of the changes up to ``synced`` is missing.
        InvalidSettingError: it is not a store of batchkeeper, or that of a later release.
    """
    try:
        record: bytes | None = db.get(META_KEY)
        empty = record is None and not any(True for _ in db.keys())  # noqa: SIM118 - an Rdict is not iterable
        if empty:
            record = META.pack(PLAIN_FORMAT, 0, 0)
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
    meta = Meta(*META.unpack(record))
    if meta.format not in FORMATS:
        raise InvalidSettingError(
            f"the store in {directory} has format {meta.format}; this batchkeeper supports "
            f"formats {FORMATS[0]} to {FORMATS[-1]}"
        )
    if meta.revision < synced:
        raise StoreUnavailableError(
            f"RocksDB cannot open the store in {directory}: its changes after revision "
            f"{meta.revision} are lost, up to {synced} at least, because its log was cut or "
            f"removed. Restore a backup. To go on without them, remove {_SYNCED_FILE}"
        )
    return meta
