"""A store in a directory of this machine, on RocksDB through rocksdict.

How the data lie in RocksDB, in the default column family:

- the key of a value is its path in UTF-8, nothing before it, so that RocksDB's order is the order
  of the paths; its record is ``HEADER`` followed by the value;
- ``META_KEY``, which no path equals, holds ``META``: the format, the last revision, and the size
  of the largest record that was ever put. It is written in the same write batch as the values, so a
  revision is never given twice.

RocksDB has no compare-and-set here, so a lock of ours makes reading the old records, deciding and
writing the batch one step. One process has the directory open to write at a time: RocksDB's own
lock sees to that.

A batch goes to RocksDB's log unsynced, and the log is synced after that, outside the lock, once for
all the batches that wait for it (group commit). For rocksdict 0.3.29 keeps the GIL while it writes,
a synced write would stop the whole interpreter until the disk has answered, and the next call may
read and decide in that time. RocksDB shows a batch to reads as soon as it is written; so that
nobody learns of what a power cut may still take back, every answer, a refusal as well, waits until
all that it may rest on is on the disk.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import Final, TypeVar, assert_never, cast

from rocksdict import (
    Rdict,
    RdictIter,
    ReadOptions,
    WriteBatch,
    WriteOptions,
)

from ...ops.errors import (
    IndeterminateError,
    InvalidSettingError,
    MetadataStoreError,
    OperationTimeoutError,
    StoreClosedError,
    StoreUnavailableError,
    UnsupportedError,
)
from ...ops.operations import ABSENT
from ...ops.paths import children_of
from ...ops.results import Range, ScanPage, ScanResult, Stat, StatPage
from ..backend import (
    Answer,
    Backend,
    Limits,
    ReadRequest,
    Request,
    RequestRefusedError,
    Scans,
    Tally,
    WriteRequest,
    partly_removed,
    refusal,
)
from ..keys import Sorted, sort_keys
from ..spans import EVERYTHING, evenly, with_outside
from ..urls import ConnectOptions, StoreURL
from .files import (
    FORMAT,
    META,
    META_KEY,
    open_files,
    open_files_to_read,
    prepare,
    read_meta,
)
from .records import HEADER, found_at, is_ours, not_ours, scan_page, stat_page
from .walks import KeyWalk

__all__ = ["connect"]

_Made = TypeVar("_Made", ScanPage, StatPage)

_MIB: Final = 1024 * 1024
DEFAULT_MAX_VALUE_BYTES: Final = 16 * _MIB
# RocksDB takes values below 4 GiB; nobody who comes near means it.
_MOST_MAX_VALUE_BYTES: Final = 1024 * _MIB

# How much one call may read at a time. Where old records are read to learn their versions, their
# values come along.
_RECORDS_BYTES: Final = 64 * _MIB
_CALL_OPS: Final = 10_000
_CALL_BYTES: Final = 64 * _MIB
# What the answers to one call of reads have at most, as far as the number of them can see to it.
_ANSWER_BYTES: Final = 128 * _MIB

# How many keys a split keeps of each range that it is to give, at most: so close are its ends.
_KEPT_PER_RANGE: Final = 64

_new = tuple.__new__  # what Stat(...) does, in half the time


class _RocksBackend:
    history = None

    def __init__(
        self, directory: str, db: Rdict, meta: tuple[int, int], sync: bool, max_value_bytes: int
    ) -> None:
        self._directory = directory
        self._db = db
        self._write_options = WriteOptions()
        # Guards _revision, _largest and _written, and holds off other writes between the reading
        # of the old records and the writing of the batch.
        self._write_lock = threading.Lock()
        self._revision, self._largest = meta
        self._sync = sync
        self._written = 0  # batches that are in the log, counted since the opening
        # Keys of the batches that are in the log, or about to be, and not on the disk yet, by their
        # number. Put in under _write_lock, taken out under _sync_lock, looked at without a lock.
        self._unsynced: dict[int, list[bytes]] = {}
        # Held by whoever syncs the log, so that others wait for that; guards the two below.
        self._sync_lock = threading.Lock()
        self._synced = 0  # batches that are on the disk
        self._sync_failure: Exception | None = None
        # Guards _running and _closed. RocksDB must not be closed under a call.
        self._state = threading.Lock()
        self._running = 0
        self._closed = False
        # Ended before RocksDB is closed. Each change of it is atomic and takes no lock: a scan that
        # was dropped is closed by the garbage collector, in a thread that may hold any lock.
        self._walks: set[KeyWalk] = set()
        self._left = threading.Event()  # closed, and the last call has ended
        self._ended = threading.Event()  # RocksDB is closed
        self.tally = Tally()
        self.connected = True
        self._max_value_bytes = max_value_bytes
        self.limits = self._limits()

    def _limits(self) -> Limits:
        """Return the limits, which become smaller with the largest record that was ever put."""
        return Limits(
            write_ops=_CALL_OPS,
            read_ops=max(1, min(_CALL_OPS, _ANSWER_BYTES // max(1, self._largest))),
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
        self._enter()
        try:
            with self._writing(deadline):
                answers, number, changed = self._write(requests, keys)
            failure = self._sync_to(number)
            if failure is None:
                return answers
            error = self._unsynced_error(failure) if changed else self._unsyncable(failure)
            raise error from failure
        finally:
            self._leave()

    @contextmanager
    def _writing(self, deadline: float) -> Generator[None, None, None]:
        """Hold the write lock, if writes are still taken."""
        if not self._write_lock.acquire(timeout=max(0.0, deadline - time.monotonic())):
            raise OperationTimeoutError(
                f"the RocksDB store in {self._directory} was busy until the deadline"
            )
        try:
            if self._sync_failure is not None:
                raise self._unsyncable(self._sync_failure) from self._sync_failure
            yield
        finally:
            self._write_lock.release()

    def _write(
        self, requests: Sequence[WriteRequest], keys: list[bytes]
    ) -> tuple[list[Answer], int, bool]:
        """Write a batch; return the answers, the number of the batch to sync, and if it is ours."""
        batch = WriteBatch(raw_mode=True)
        try:
            answers, largest = self._decide(batch, requests, keys)
        except Exception as error:
            raise self._unreadable(error, requests) from error
        if batch.is_empty():
            return answers, self._written, False
        return answers, self._commit(batch, keys, largest), True

    def _commit(self, batch: WriteBatch, keys: list[bytes], largest: int) -> int:
        """Write a batch under the write lock; return its number, for it is yet to be synced."""
        # Given away even if the write fails: nobody knows what is on the disk then.
        self._revision += 1
        if largest > self._largest:
            self._largest = largest
            self.limits = self._limits()
        batch[META_KEY] = META.pack(FORMAT, self._revision, self._largest)
        number = self._written + 1
        # Before it can be read. If the write fails, the next one takes its number and its place.
        if self._sync:
            self._unsynced[number] = keys
        try:
            self._db.write(batch, self._write_options)
        except Exception as error:
            # What reached the log before the failure may come back when the log is replayed.
            raise IndeterminateError(
                f"RocksDB failed to write in {self._directory}: {error}"
            ) from error
        self._written = number
        return number

    def _sync_to(self, number: int) -> Exception | None:
        """Return when all batches up to ``number`` are on the disk; or why they may not be.

        One sync serves all that was written before it began: who comes while another one runs
        waits for it, and those who waited together share the next one.
        """
        if not self._sync or number <= self._synced:
            return None
        with self._sync_lock:
            if number <= self._synced:
                return None
            # Once a sync has failed, the system may have thrown away what it could not write, and
            # the next sync would succeed without it. Then nothing that follows in the log would
            # survive a power cut either, so nothing more is written.
            if self._sync_failure is None:
                written = self._written
                try:
                    self._db.flush_wal(True)
                except Exception as error:
                    self._sync_failure = error
                else:
                    for done in range(self._synced + 1, written + 1):
                        self._unsynced.pop(done, None)
                    self._synced = written
            return self._sync_failure

    def _unsynced_error(self, failure: Exception) -> IndeterminateError:
        return IndeterminateError(f"RocksDB failed to sync in {self._directory}: {failure}")

    def _unsyncable(self, failure: Exception) -> StoreUnavailableError:
        return StoreUnavailableError(
            f"RocksDB failed to sync in {self._directory}; close the store and open it again: "
            f"{failure}"
        )

    def _decide(
        self, batch: WriteBatch, requests: Sequence[WriteRequest], keys: list[bytes]
    ) -> tuple[list[Answer], int]:
        """Put into ``batch`` what holds; return the answers and the size of the largest record."""
        revision = self._revision + 1
        now = time.time_ns() // 1_000_000
        fresh = HEADER.pack(FORMAT, 0, revision, now, now)
        headers = self._headers(keys)
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

    def _headers(self, keys: list[bytes]) -> list[bytes | None]:
        """Return each key's record, or only its header; ``None`` where there is none."""
        found = self._records(keys)
        if isinstance(found, list):
            return found
        return [record and record[: HEADER.size] for record in found]

    def _records(self, keys: list[bytes]) -> Iterable[bytes | None]:
        """Return the keys' records: a list, or one after the other where they may be large."""
        get = self._db.get
        if len(keys) == 1:
            return [get(keys[0])]
        if len(keys) * self._largest <= _RECORDS_BYTES:
            # One call for all. Such a call gives the GIL away, and getting it back from a busy
            # thread costs up to 5 ms; that is also why these are not read in parts when some of
            # them may be too large for one call, but by calls that keep the GIL.
            return cast("list[bytes | None]", get([*keys]))
        return map(get, keys)

    def _occupied(self, key: bytes, gone: set[bytes]) -> bool:
        """Whether there is a value below ``key`` that is not among those ``gone``."""
        below, _bound = self._below(key + b"/")
        while below.valid():
            if below.key() not in gone:
                return True
            below.next()
        below.status()
        return False

    def _below(self, prefix: bytes) -> tuple[RdictIter, ReadOptions]:
        """Return an iterator at the first of the keys that start with ``prefix``, up to the last.

        ``prefix`` ends with a slash. The bound also keeps a seek from walking over everything that
        was deleted after the prefix and is not compacted away yet. The caller keeps the options
        for as long as the iterator: in rocksdict 0.3.29 the bound lies in memory of theirs.
        """
        options = ReadOptions()
        options.set_iterate_upper_bound(prefix[:-1] + b"0")  # what follows the slash in ASCII
        below = self._db.iter(options)
        below.seek(prefix)
        return below, options

    def read(self, requests: Sequence[ReadRequest], deadline: float) -> Sequence[Answer]:
        keys = [request.path.encode() for request in requests]
        self._enter()
        try:
            try:
                answers = self._answers(requests, keys)
            except Exception as error:
                raise self._unreadable(error, requests) from error
            if self._unsynced and (failure := self._sync_what_was_read(requests, keys)):
                raise self._unsyncable(failure) from failure
            return answers
        finally:
            self._leave()

    def _answers(self, requests: Sequence[ReadRequest], keys: list[bytes]) -> list[Answer]:
        answers: list[Answer] = []
        answer = answers.append
        for request, record in zip(requests, self._records(keys), strict=True):
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

    def _sync_what_was_read(
        self, requests: Sequence[Request], keys: list[bytes]
    ) -> Exception | None:
        """Wait for the disk if an answer may rest on what is not there yet; or say what failed.

        The engine sends no read beside a write of its path, so as a rule only the names below a
        path make a read wait.
        """
        unsynced = dict(self._unsynced)
        asked = set(keys)
        if not any(request.kind == "get_children" for request in requests) and all(
            map(asked.isdisjoint, unsynced.values())
        ):
            return None
        return self._sync_to(max(unsynced, default=0))

    def _children(self, path: str) -> list[str]:
        prefix = b"/" if path == "/" else path.encode() + b"/"
        names: set[bytes] = set()
        below, _bound = self._below(prefix)
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
        with self._state:
            first = not self._closed
            self._closed = True
            if not self._running:
                self._left.set()
        self._left.wait()
        if first:
            # A copy, for scans that are dropped meanwhile are taken out of it.
            for walk in self._walks.copy():
                walk.close()
            try:
                self._db.close()
            except Exception as error:
                raise StoreUnavailableError(
                    f"RocksDB failed to close the store in {self._directory}: {error}"
                ) from error
            finally:
                self._ended.set()
        self._ended.wait()

    @property
    def scans(self) -> Scans:
        return self

    def scan(
        self, prefix: str, within: Range, revision: int | None, timeout: float
    ) -> Generator[Sequence[ScanResult], None, None]:
        """Give what lies under ``prefix``, as of the first page. See :class:`Scans`."""
        return self._pages(prefix, within, None, scan_page)

    def scan_stats(
        self, prefix: str, within: Range, revision: int | None, timeout: float
    ) -> Generator[StatPage, None, None]:
        """Give the stats of what lies under ``prefix``. See :class:`Scans`."""
        return self._pages(prefix, within, HEADER.size, stat_page)

    def _pages(
        self,
        prefix: str,
        within: Range,
        first: int | None,
        made_of: Callable[[Sorted, Sequence[bytes]], _Made],
    ) -> Generator[_Made, None, None]:
        with self._walk(prefix, within) as walk:
            while not walk.done:
                page = made_of(*self._page(walk, first))
                if page or page.foreign:
                    yield page

    def _page(self, walk: KeyWalk, first: int | None) -> tuple[Sorted, Sequence[bytes]]:
        """Return the next keys of a walk, with the first bytes of the paths' records, or with all.

        The keys are sorted by what callers may see of them.
        """
        self._enter()
        try:
            found = walk.page(first)
        except Exception as error:
            raise self._unreadable(error, ()) from error
        finally:
            self._leave()
        keys = sort_keys([key for key, _ in found], shared=False)
        others = [key for key in keys.foreign if key != META_KEY]
        return keys._replace(foreign=others), keys.of([record for _, record in found])

    @contextmanager
    def _walk(self, prefix: str, within: Range = EVERYTHING) -> Generator[KeyWalk, None, None]:
        """Give a walk, which ends with the store, and sees nothing that is not on the disk."""
        self._enter()
        try:
            try:
                walk = KeyWalk(self._db, with_outside(prefix, within))
            except Exception as error:
                raise self._unreadable(error, ()) from error
            unsynced = max(dict(self._unsynced), default=0)
            if failure := self._sync_to(unsynced):
                raise self._unsyncable(failure) from failure
            self._walks.add(walk)
        finally:
            self._leave()
        try:
            yield walk
        finally:
            self._walks.discard(walk)
            walk.close()

    def split(self, prefix: str, n: int, timeout: float) -> Sequence[Range]:
        """Return ranges with about equally many values. See :class:`Scans`."""
        # Every so many keys one is kept, and half of these whenever they are too many.
        kept: list[str] = []
        stride, place = 1, 0
        with self._walk(prefix) as walk:
            while not walk.done:
                paths = self._page(walk, 0)[0].paths
                kept += paths[-place % stride :: stride]
                place += len(paths)
                if len(kept) > n * _KEPT_PER_RANGE:
                    kept, stride = kept[::2], stride * 2
        return evenly(kept, n)

    def delete_recursive(self, path: str, timeout: float) -> int:
        """Remove what lies under ``path`` now. See :class:`Scans`."""
        removed = 0
        try:
            with self._walk(path) as walk:
                while not walk.done:
                    if paths := self._page(walk, 0)[0].paths:
                        removed += self._remove([found.encode() for found in paths], timeout)
        except MetadataStoreError as error:
            raise partly_removed(removed, path, error) from error
        return removed

    def _remove(self, keys: list[bytes], timeout: float) -> int:
        """Remove keys; return how many were there, for others remove some meanwhile."""
        batch = WriteBatch(raw_mode=True)
        self._enter()
        try:
            with self._writing(time.monotonic() + timeout):
                try:
                    headers = self._headers(keys)
                except Exception as error:
                    raise self._unreadable(error, ()) from error
                there = [
                    key for key, header in zip(keys, headers, strict=True) if header is not None
                ]
                for key in there:
                    batch.delete(key)
                number = self._commit(batch, there, 0) if there else self._written
            if failure := self._sync_to(number):
                error_of = self._unsynced_error if there else self._unsyncable
                raise error_of(failure) from failure
            return len(there)
        finally:
            self._leave()

    def revision(self, timeout: float) -> int:
        """Return the number of the last change."""
        self._enter()
        try:
            return self._revision
        finally:
            self._leave()

    def _enter(self) -> None:
        """Keep RocksDB open until ``_leave``."""
        with self._state:
            if self._closed:
                raise StoreClosedError(f"the RocksDB store in {self._directory} is closed")
            self._running += 1

    def _leave(self) -> None:
        with self._state:
            self._running -= 1
            if self._closed and not self._running:
                self._left.set()

    def _unreadable(self, error: Exception, requests: Sequence[Request]) -> MetadataStoreError:
        """Return what a failure of RocksDB is for its caller, before anything was written."""
        if type(error) is not Exception:
            raise error  # rocksdict raises bare Exceptions; anything else is a fault of ours
        failure = StoreUnavailableError(
            f"RocksDB failed to read in {self._directory}: {error}",
            path=requests[0].path if len(requests) == 1 else None,
        )
        # One damaged block fails the reading of all: let the engine find whom it concerns.
        return failure if len(requests) <= 1 else RequestRefusedError(failure)


class _ReadOnlyBackend(_RocksBackend):
    """The store as it was on the disk when it was opened, for any number of processes."""

    def write(self, requests: Sequence[WriteRequest], deadline: float) -> Sequence[Answer]:
        raise self._refused()

    def delete_recursive(self, path: str, timeout: float) -> int:
        raise self._refused()

    def _refused(self) -> UnsupportedError:
        return UnsupportedError(f"the RocksDB store in {self._directory} is open read-only")


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
    return _RocksBackend(directory, db, meta, sync, max_value_bytes)


def _connect_read_only(directory: str, max_value_bytes: int, deadline: float) -> Backend:
    db = open_files_to_read(directory, deadline)
    try:
        meta = read_meta(directory, db, sync=False, read_only=True)
    except BaseException:
        db.close()
        raise
    return _ReadOnlyBackend(directory, db, meta, False, max_value_bytes)
