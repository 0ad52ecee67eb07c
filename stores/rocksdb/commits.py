"""Writes batches to RocksDB's log, and syncs the log once for all waiting batches (group commit).

The batch is first written to the log unsynced, under a lock. Then the log is synced outside the
lock, once for all batches that wait for it. The reason is that rocksdict 0.3.29 keeps the GIL while
it writes: a synced write would stop the whole interpreter until the disk has answered. This way,
the next call can read and decide meanwhile. RocksDB shows a batch to reads as soon as it is
written. So every answer, even a refusal, waits until all data that it may depend on is on the disk.
No caller learns of anything that a power cut could still undo. The events of watches wait for the
same sync.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager

from rocksdict import WriteBatch, WriteOptions

from ...ops.errors import (
    IndeterminateError,
    MetadataStoreError,
    OperationTimeoutError,
    StoreUnavailableError,
)
from ...ops.results import WatchEvent
from ..backend import WatchHandle
from ..local import Concerned, LocalWatches
from .database import Database
from .files import note_synced
from .layout import META, META_KEY, SESSIONS_FORMAT, Meta

__all__ = ["Commits"]

_FULL = (
    ". Make room: RocksDB looks for it every 5 seconds and refuses all writes until then; if the "
    "store is closed and opened again, it looks at once"
)


class Commits:
    """The writes of a store. The caller keeps the database open.

    :meth:`writing` holds the write lock. It makes reading the old records, deciding and writing the
    batch one step, and guards ``revision``, ``largest``, the format and the number of the last
    batch. The thread that syncs the log holds the sync lock, and others wait for it there. It
    guards the number of the last synced batch, and whether a sync has failed. No thread takes one
    of these locks while it holds the other.

    Args:
        database: the database to write to.
        meta: the record of the store about itself.
        sync: whether batches are on the disk before they are acknowledged.

    Attributes:
        revision: the revision of the last change.
        largest: the size of the largest record ever put.
        watches: the watches of the store.
    """

    def __init__(self, database: Database, meta: Meta, sync: bool) -> None:
        self._format, self.revision, self.largest = meta
        self.watches = LocalWatches()
        self._database = database
        self._sync = sync
        self._write_options = WriteOptions()
        self._write_lock = threading.Lock()
        self._written = 0  # batches in the log, counted since the store was opened
        self._written_revision = self.revision  # that of the last of them, set after its number
        # The keys of each batch that is in the log, or about to be, but not on the disk, by the
        # batch's number. Added under the write lock, removed under the sync lock, read without one.
        self._unsynced: dict[int, list[bytes]] = {}
        self._sync_lock = threading.Lock()
        self._synced = 0  # batches on the disk
        self._sync_failure: Exception | None = None
        # Events of batches, by the batches' numbers, that wait for the disk. Added under the write
        # lock. The lock keeps them in order while they go to the watches.
        self._events: deque[tuple[int, Concerned]] = deque()
        self._events_lock = threading.Lock()

    @contextmanager
    def writing(self, deadline: float) -> Generator[None, None, None]:
        """Hold the write lock, if the store still accepts writes.

        Raises:
            OperationTimeoutError: other threads held the lock until the deadline.
            StoreUnavailableError: a sync has failed, so the store accepts no more writes.
        """
        if not self._write_lock.acquire(timeout=max(0.0, deadline - time.monotonic())):
            raise OperationTimeoutError(
                f"the RocksDB store in {self._database.directory} was busy until the deadline"
            )
        try:
            if self._sync_failure is not None:
                raise self._unsyncable(self._sync_failure) from self._sync_failure
            yield
        finally:
            self._write_lock.release()

    def write(self, batch: WriteBatch, keys: list[bytes], largest: int = 0) -> int:
        """Write a batch within :meth:`writing`, and return its number for :meth:`wait`.

        Args:
            batch: the changes; the store's own record is added.
            keys: the keys that the batch changes.
            largest: the size of its largest record.

        Raises:
            IndeterminateError: RocksDB failed.
        """
        # The revision is used up even if the write fails, because it may be on the disk then.
        self.revision += 1
        self.largest = max(self.largest, largest)
        batch[META_KEY] = META.pack(self._format, self.revision, self.largest)
        number = self._written + 1
        # Set before reads can see the batch. If the write fails, the next one takes its number.
        if self._sync:
            self._unsynced[number] = keys
        try:
            self._database.db.write(batch, self._write_options)
        except Exception as error:
            # Records that reached the log before the failure may return when the log is replayed.
            advice = _FULL if "No space left" in str(error) else ""
            raise IndeterminateError(
                f"RocksDB failed to write in {self._database.directory}: {error}{advice}"
            ) from error
        self._written = number
        self._written_revision = self.revision
        return number

    def use_sessions_format(self) -> None:
        """Give the store, with the next batch, the format for ephemeral values and sequences.

        Call it within :meth:`writing`.
        """
        self._format = SESSIONS_FORMAT

    def watch(
        self,
        prefix: str,
        deliver: Callable[[Sequence[WatchEvent]], None],
        fail: Callable[[MetadataStoreError], None],
        deadline: float,
    ) -> WatchHandle:
        """Report each later batch that changes something under ``prefix``.

        Raises:
            OperationTimeoutError: other threads held the write lock until the deadline.
            StoreUnavailableError: a sync has failed, so nothing will change any more.
        """
        # Within the lock, no batch is visible already but not reported yet.
        with self.writing(deadline):
            watch = self.watches.watch(prefix, deliver, fail)
            # A sync that has failed in between may have ended the other watches without this one.
            if (failure := self._sync_failure) is None:
                return watch
        watch.close()
        raise self._unsyncable(failure) from failure

    def report(self, events: Sequence[WatchEvent]) -> None:
        """Report the changes of the last batch to the watches, as soon as it is on the disk.

        Call it within :meth:`writing`, after :meth:`write`.
        """
        if concerned := self.watches.concerned(events):
            self._events.append((self._written, concerned))

    @property
    def unsynced(self) -> bool:
        """Whether some batches may not be on the disk yet."""
        return bool(self._unsynced)

    @property
    def written(self) -> int:
        """The number of the last batch written. Read it within :meth:`writing`."""
        return self._written

    def wait(self, number: int, *, changed: bool) -> None:
        """Return when all batches up to ``number`` are on the disk.

        Args:
            number: the number of the last batch that the caller's answers depend on.
            changed: whether that batch is the caller's own.

        Raises:
            IndeterminateError: the sync failed, and the caller's batch may be lost.
            StoreUnavailableError: the sync failed, and the caller has changed nothing.
        """
        failure = self._sync_to(number)
        if failure is None:
            if self._events:
                self._send_events()
            return
        raise (self._may_be_lost(failure) if changed else self._unsyncable(failure)) from failure

    def wait_to_read(self, keys: Iterable[bytes] | None) -> None:
        """Return when the data that the caller has read is on the disk.

        The engine sends no read of a path beside a write of it. So usually only reads of the names
        below a path have to wait.

        Args:
            keys: the keys that were read; ``None`` if these may be any keys.

        Raises:
            StoreUnavailableError: a sync failed, so the data may not be on the disk.
        """
        unsynced = dict(self._unsynced)
        if keys is not None and all(map(set(keys).isdisjoint, unsynced.values())):
            return
        self.wait(max(unsynced, default=0), changed=False)

    def _sync_to(self, number: int) -> Exception | None:
        """Return when all batches up to ``number`` are on the disk; else return the sync's error.

        One sync covers everything written before it began. A thread that arrives during a sync
        waits for its end, and all threads that waited share the next one.
        """
        if not self._sync or number <= self._synced:
            return None
        with self._sync_lock:
            if number <= self._synced:
                return None
            # After a failed sync, the system may have dropped what it could not write, and the
            # next sync would succeed without it. Nothing later in the log would then survive a
            # power cut, so the store writes nothing more.
            if self._sync_failure is None:
                revision = self._written_revision  # Read first: a later batch may be under way.
                written = self._written
                try:
                    self._database.db.flush_wal(True)
                except Exception as error:
                    self._sync_failure = error
                    self._send_events()
                    self.watches.fail(self._unsyncable(error))
                else:
                    for done in range(self._synced + 1, written + 1):
                        self._unsynced.pop(done, None)
                    self._synced = written
                    note_synced(self._database.directory, revision)
            return self._sync_failure

    def _send_events(self) -> None:
        """Send the events of all batches on the disk, in the order of the batches."""
        with self._events_lock:
            events = self._events
            while events and (not self._sync or events[0][0] <= self._synced):
                self.watches.send(events.popleft()[1])

    def _may_be_lost(self, failure: Exception) -> IndeterminateError:
        return IndeterminateError(
            f"RocksDB failed to sync in {self._database.directory}: {failure}"
        )

    def _unsyncable(self, failure: Exception) -> StoreUnavailableError:
        error = StoreUnavailableError(
            f"RocksDB failed to sync in {self._database.directory}; close the store and open it "
            f"again: {failure}"
        )
        error.retriable = False
        return error
