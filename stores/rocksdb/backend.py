"""A store in a directory of this machine, on RocksDB through rocksdict.

The layout in RocksDB, in the default column family:

- The key of a value is its path in UTF-8, without a prefix, so RocksDB's order is the order of
  paths. Its record is ``HEADER``, followed by the value.
- ``META_KEY``, which equals no path, holds ``META``: the format, the last revision, and the size of
  the largest record ever put. Every write batch writes it with the values, so no revision is used
  twice.

RocksDB has no compare-and-set here, so a lock of this package makes reading the old records,
deciding and writing the batch one step. RocksDB's own lock lets only one process at a time open the
directory for writing. ``commits`` brings batches to the disk.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final, assert_never

from rocksdict import WriteBatch

from ...ops.errors import InvalidSettingError, StoreUnavailableError
from ...ops.operations import ABSENT
from ...ops.paths import children_of
from ...ops.results import Stat
from ..backend import (
    Answer,
    Backend,
    Limits,
    ReadRequest,
    Scans,
    Tally,
    WriteRequest,
    refusal,
)
from ..urls import ConnectOptions, StoreURL
from .commits import Commits
from .database import Database
from .files import FORMAT, open_files, open_files_to_read, prepare, read_meta
from .records import HEADER, found_at, is_ours, not_ours
from .scans import ReadOnlyScans, RocksScans, read_only

__all__ = ["connect"]

_MIB: Final = 1024 * 1024
DEFAULT_MAX_VALUE_BYTES: Final = 16 * _MIB
# RocksDB accepts values below 4 GiB; this limit is far above any sensible setting.
_MOST_MAX_VALUE_BYTES: Final = 1024 * _MIB

# The most operations, and bytes, of one call.
_CALL_OPS: Final = 10_000
_CALL_BYTES: Final = 64 * _MIB
# The intended maximum for the answers to one call of reads, enforced through the number of reads.
_ANSWER_BYTES: Final = 128 * _MIB

_new = tuple.__new__  # does the work of Stat(...) in half the time


class _RocksBackend:
    history = None

    def __init__(
        self, database: Database, commits: Commits, scans: Scans, max_value_bytes: int
    ) -> None:
        self._database = database
        self._commits = commits
        self.scans = scans
        self.tally = Tally()
        self.connected = True
        self._max_value_bytes = max_value_bytes
        self.limits = self._limits(commits.largest)

    def _limits(self, largest: int) -> Limits:
        """Return the limits, which become smaller as the largest record ever put grows."""
        return Limits(
            write_ops=_CALL_OPS,
            read_ops=max(1, min(_CALL_OPS, _ANSWER_BYTES // max(1, largest))),
            request_bytes=_CALL_BYTES + self._max_value_bytes,
            # The header, and the lengths and checksums that a write batch adds.
            op_bytes=HEADER.size + 16,
            value_bytes=self._max_value_bytes,
            # One batch reads and decides, one waits for the sync that runs, and the two that were
            # written meanwhile share the next sync. With a sync of 2 ms, this puts 1.3 times as
            # much as two in flight, and no less without a sync. A single write costs a whole sync.
            in_flight=4,
            singles=1,
        )

    def write(self, requests: Sequence[WriteRequest], deadline: float) -> Sequence[Answer]:
        keys = [request.path.encode() for request in requests]
        with self._database:
            with self._commits.writing(deadline):
                answers, number, changed = self._write(requests, keys)
            self._commits.wait(number, changed=changed)
            return answers

    def _write(
        self, requests: Sequence[WriteRequest], keys: list[bytes]
    ) -> tuple[list[Answer], int, bool]:
        """Write a batch; return its answers, the batch to sync, and whether anything changed."""
        batch = WriteBatch(raw_mode=True)
        try:
            answers, largest = self._decide(batch, requests, keys)
        except Exception as error:
            raise self._database.unreadable(error, requests) from error
        if batch.is_empty():
            return answers, self._commits.written, False
        if largest > self._commits.largest:
            self.limits = self._limits(largest)
        return answers, self._commits.write(batch, keys, largest), True

    def _decide(
        self, batch: WriteBatch, requests: Sequence[WriteRequest], keys: list[bytes]
    ) -> tuple[list[Answer], int]:
        """Add the allowed changes to ``batch``; return the answers and the largest record's size.

        Deletes count as if they came before the puts (see ``_delete``).
        """
        revision = self._commits.revision + 1
        now = time.time_ns() // 1_000_000
        fresh = HEADER.pack(FORMAT, 0, revision, now, now)
        headers = self._database.headers(keys, self._commits.largest)
        answers: list[Answer] = []
        deletes: list[int] = []
        largest = 0
        # This loop runs once for every put, so it does no unnecessary work.
        for request, key, header in zip(requests, keys, headers, strict=True):
            kind = request.kind
            if kind == "delete":
                deletes.append(len(answers))
                answers.append(None)
                continue
            if kind != "put":
                assert_never(kind)
            value = request.value or b""
            expected = request.expected_version
            if header is None:
                version, created, record = 0, now, fresh + value
            else:
                if not is_ours(header):
                    answers.append(not_ours(request.path))
                    continue
                _, version, _, created, _ = HEADER.unpack_from(header)
                version += 1
                record = HEADER.pack(FORMAT, version, revision, created, now) + value
            if expected is not None and expected != version - 1:
                answers.append(refusal(request, version - 1, occupied=False))
                continue
            batch[key] = record
            if len(record) > largest:  # noqa: PLR1730 - no call for every put
                largest = len(record)
            answers.append(
                _new(Stat, (request.path, version, revision, created, now, False, False))
            )
        if deletes:
            self._delete(batch, requests, keys, headers, answers, deletes)
        return answers, largest

    def _delete(
        self,
        batch: WriteBatch,
        requests: Sequence[WriteRequest],
        keys: list[bytes],
        headers: list[bytes | None],
        answers: list[Answer],
        deletes: list[int],
    ) -> None:
        """Decide the deletes of a call, as if they came before its puts.

        Callers cannot rely on any order of different paths. Among themselves, deletes keep their
        order, so a leaf and then its parent can be deleted in one call.
        """
        gone: set[bytes] = set()
        for index in deletes:
            key, header = keys[index], headers[index]
            if header is not None and not is_ours(header):
                answers[index] = not_ours(requests[index].path)
                continue
            actual = ABSENT if header is None else HEADER.unpack_from(header)[1]
            error = refusal(requests[index], actual, occupied=self._occupied(key, gone))
            if error is None:
                batch.delete(key)
                gone.add(key)
            answers[index] = error

    def _occupied(self, key: bytes, gone: set[bytes]) -> bool:
        """Say whether there is a value below ``key`` that is not among ``gone``."""
        below, _bound = self._database.below(key + b"/")
        while below.valid():
            if below.key() not in gone:
                return True
            below.next()
        below.status()
        return False

    def read(self, requests: Sequence[ReadRequest], deadline: float) -> Sequence[Answer]:
        keys = [request.path.encode() for request in requests]
        with self._database:
            try:
                answers = self._answers(requests, keys)
            except Exception as error:
                raise self._database.unreadable(error, requests) from error
            if self._commits.unsynced:
                names = any(request.kind == "get_children" for request in requests)
                self._commits.wait_to_read(None if names else keys)
            return answers

    def _answers(self, requests: Sequence[ReadRequest], keys: list[bytes]) -> list[Answer]:
        answers: list[Answer] = []
        answer = answers.append
        records = self._database.records(keys, self._commits.largest)
        for request, record in zip(requests, records, strict=True):
            kind = request.kind
            if kind == "get":
                answer(None if record is None else found_at(request.path, record))
            elif kind == "exists":
                answer(record is not None)
            elif kind == "get_children":
                answer(self._children(request.path))
            else:
                assert_never(kind)
        return answers

    def _children(self, path: str) -> list[str]:
        prefix = b"/" if path == "/" else path.encode() + b"/"
        names: set[bytes] = set()
        below, _bound = self._database.below(prefix)
        while below.valid():
            name, slash, _ = below.key()[len(prefix) :].partition(b"/")
            names.add(name)
            if slash:
                # Skip everything else below that child. The values below a child do not directly
                # follow its own key: names that begin with its name, such as "x!" after "x", may
                # come between.
                below.seek(prefix + name + b"0")
            else:
                below.next()
        below.status()
        texts = [text for name in sorted(names) if (text := _text(name)) is not None]
        return children_of(path, texts)

    def sync(self, deadline: float) -> None:
        """Do nothing: reads are linearizable."""

    def close(self) -> None:
        self._database.close()


class _ReadOnlyBackend(_RocksBackend):
    """The store as it was on the disk when it was opened, for any number of processes."""

    def write(self, requests: Sequence[WriteRequest], deadline: float) -> Sequence[Answer]:
        raise read_only(self._database.directory)


def _text(name: bytes) -> str | None:
    try:
        return name.decode()
    except UnicodeDecodeError:
        return None  # The key is not a valid path.


def connect(url: StoreURL, options: ConnectOptions) -> Backend:
    """Open the store in the directory of ``rocksdb:///absolute/path``.

    A missing store is created, unless ``create`` is false or ``read_only`` is true.

    Options: ``sync`` (default true: a write is on the disk before it is acknowledged; false: it
    survives the end of the process, but not of the machine), ``max_value_bytes`` (16 MiB),
    ``read_only`` (default false; true: shows the store as it is on the disk now, even if another
    process has it open, and writes nothing).

    Raises:
        InvalidSettingError: the URL is invalid, or the directory contains something other than a
            store of batchkeeper. Nothing in it was changed.
        StoreUnavailableError: the directory cannot be used, the store is missing and may not be
            created, another opener has it open, or it is damaged.
    """
    url.check_options(("sync", "max_value_bytes", "read_only"))
    if url.hosts or not url.path.startswith("/") or "\0" in url.path:
        raise InvalidSettingError(
            f"a RocksDB URL needs an absolute directory after three slashes, as in "
            f"rocksdb:///var/lib/hub: {url.text}"
        )
    max_value_bytes = url.number("max_value_bytes", default=DEFAULT_MAX_VALUE_BYTES)
    if max_value_bytes > _MOST_MAX_VALUE_BYTES:
        raise InvalidSettingError(
            f"option 'max_value_bytes' must be at most {_MOST_MAX_VALUE_BYTES}: {url.text}"
        )
    sync = url.flag("sync", default=True)
    read_only = url.flag("read_only", default=False)
    directory = url.path
    deadline = time.monotonic() + options.connect_timeout
    try:
        new = prepare(directory, create=options.create and not read_only)
    except OSError as error:
        raise StoreUnavailableError(
            f"the directory {directory} cannot be used: {error.strerror}"
        ) from error
    if read_only:
        return _connect_read_only(directory, max_value_bytes, deadline)
    db = open_files(directory, new)
    try:
        meta = read_meta(directory, db, sync)
    except BaseException:
        db.close()
        raise
    database = Database(directory, db)
    commits = Commits(database, *meta, sync)
    return _RocksBackend(database, commits, RocksScans(database, commits), max_value_bytes)


def _connect_read_only(directory: str, max_value_bytes: int, deadline: float) -> Backend:
    db = open_files_to_read(directory, deadline)
    try:
        meta = read_meta(directory, db, sync=False, read_only=True)
    except BaseException:
        db.close()
        raise
    database = Database(directory, db)
    commits = Commits(database, *meta, sync=False)
    return _ReadOnlyBackend(database, commits, ReadOnlyScans(database, commits), max_value_bytes)
