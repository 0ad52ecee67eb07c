"""A store in a directory of this machine, on RocksDB through rocksdict.

How the data lie in RocksDB, in the default column family:

- the key of a value is its path in UTF-8, nothing before it, so that RocksDB's order is the order
  of the paths; its record is ``HEADER`` followed by the value;
- ``META_KEY``, which no path equals, holds ``META``: the format, the last revision, and the size
  of the largest record that was ever put. It is written in the same write batch as the values, so a
  revision is never given twice.

RocksDB has no compare-and-set here, so a lock of ours makes reading the old records, deciding and
writing the batch one step. One process has the directory open to write at a time: RocksDB's own
lock sees to that. How a batch comes to the disk is in ``commits``.
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
# RocksDB takes values below 4 GiB; nobody who comes near means it.
_MOST_MAX_VALUE_BYTES: Final = 1024 * _MIB

# How much one call may carry.
_CALL_OPS: Final = 10_000
_CALL_BYTES: Final = 64 * _MIB
# What the answers to one call of reads have at most, as far as the number of them can see to it.
_ANSWER_BYTES: Final = 128 * _MIB

_new = tuple.__new__  # what Stat(...) does, in half the time


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
        """Return the limits, which become smaller with the largest record that was ever put."""
        return Limits(
            write_ops=_CALL_OPS,
            read_ops=max(1, min(_CALL_OPS, _ANSWER_BYTES // max(1, largest))),
            request_bytes=_CALL_BYTES + self._max_value_bytes,
            # The header, and the lengths and checks that a write batch adds.
            op_bytes=HEADER.size + 16,
            value_bytes=self._max_value_bytes,
            # One reads and decides, one waits for the sync that runs, and two that were written in
            # that time share the next sync: with a sync of 2 ms that is 1.3 times what two in
            # flight put, and without a wait no less. A single write costs a sync like a batch.
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
        """Write a batch; return the answers, the number of the batch to sync, and if it is ours."""
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
        """Put into ``batch`` what holds; return the answers and the size of the largest record."""
        revision = self._commits.revision + 1
        now = time.time_ns() // 1_000_000
        fresh = HEADER.pack(FORMAT, 0, revision, now, now)
        headers = self._database.headers(keys, self._commits.largest)
        answers: list[Answer] = []
        deletes: list[int] = []
        largest = 0
        # This loop runs once for every put: what it does not need to do, it does not do.
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

        Different paths have no order that a caller could rely on. Among themselves they count in
        their order, so a leaf and then its parent go in one call.
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
        """Whether there is a value below ``key`` that is not among those ``gone``."""
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
                # Over everything else below that child. A child's own key is not followed by what
                # is below it: names that begin with it, such as "x!" after "x", may come between.
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
        return None  # Of a key that no path leads to.


def connect(url: StoreURL, options: ConnectOptions) -> Backend:
    """Open the store in the directory of ``rocksdb:///absolute/path``.

    Where there is none, a new one is made, unless ``create`` is false or ``read_only`` true.

    Options: ``sync`` (true: a write is on the disk before it is acknowledged; false: it survives
    the end of the process, not of the machine), ``max_value_bytes`` (16 MiB), ``read_only`` (false;
    true: as it is on the disk now, whoever else has it open, and nothing is written).

    Raises:
        InvalidSettingError: the URL, or something else than a store of ours is in the directory;
            nothing in there was changed.
        StoreUnavailableError: the directory cannot be used, there is no store and none is to be
            made, somebody has the store open, or it is damaged.
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
