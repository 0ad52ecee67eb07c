"""Writes batches to RocksDB's log, and syncs the log once for all that wait (group commit).

A batch goes to RocksDB's log unsynced, and the log is synced after that, outside the lock, once for
all the batches that wait for it. For rocksdict 0.3.29 keeps the GIL while it writes, a synced write
would stop the whole interpreter until the disk has answered, and the next call may read and decide
in that time. RocksDB shows a batch to reads as soon as it is written; so that nobody learns of what
a power cut may still take back, every answer, a refusal as well, waits until all that it may rest
on is on the disk.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Generator, Iterable
from contextlib import contextmanager

from rocksdict import WriteBatch, WriteOptions

from ...ops.errors import (
    IndeterminateError,
    OperationTimeoutError,
    StoreUnavailableError,
)
from .database import Database
from .files import FORMAT, META, META_KEY

__all__ = ["Commits"]


class Commits:
    """The writes of a store. Whoever calls keeps the database open.

    The write lock is held within :meth:`writing`: it makes reading the old records, deciding and
    writing the batch one step, and guards ``revision``, ``largest`` and the number of the last
    batch. The sync lock is held by whoever syncs the log, so that others wait for that; it guards
    the number of the last synced batch, and whether a sync has failed. Nobody who holds one of
    them takes the other.

    Args:
        database: where to.
        revision: the last one.
        largest: the size of the largest record that was ever put.
        sync: whether batches are on the disk before they are acknowledged.

    Attributes:
        revision: of the last change.
        largest: as above.
    """

    def __init__(self, database: Database, revision: int, largest: int, sync: bool) -> None:
        self.revision = revision
        self.largest = largest
        self._database = database
        self._sync = sync
        self._write_options = WriteOptions()
        self._write_lock = threading.Lock()
        self._written = 0  # batches that are in the log, counted since the opening
        # Keys of the batches that are in the log, or about to be, and not on the disk yet, by their
        # number. Put in under the write lock, taken out under the sync lock, looked at without one.
        self._unsynced: dict[int, list[bytes]] = {}
        self._sync_lock = threading.Lock()
        self._synced = 0  # batches that are on the disk
        self._sync_failure: Exception | None = None

    @contextmanager
    def writing(self, deadline: float) -> Generator[None, None, None]:
        """Hold the write lock, if writes are still taken.

        Raises:
            OperationTimeoutError: others held it until the deadline.
            StoreUnavailableError: a sync has failed, and nothing is written any more.
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
        """Write a batch within :meth:`writing`; return its number, to wait for.

        Args:
            batch: what is to be changed; the store's own record is added.
            keys: that it changes.
            largest: the size of its largest record.

        Raises:
            IndeterminateError: RocksDB failed.
        """
        # Given away even if the write fails: nobody knows what is on the disk then.
        self.revision += 1
        self.largest = max(self.largest, largest)
        batch[META_KEY] = META.pack(FORMAT, self.revision, self.largest)
        number = self._written + 1
        # Before it can be read. If the write fails, the next one takes its number and its place.
        if self._sync:
            self._unsynced[number] = keys
        try:
            self._database.db.write(batch, self._write_options)
        except Exception as error:
            # What reached the log before the failure may come back when the log is replayed.
            raise IndeterminateError(
                f"RocksDB failed to write in {self._database.directory}: {error}"
            ) from error
        self._written = number
        return number

    @property
    def unsynced(self) -> bool:
        """Whether there may be something that is not on the disk, and so is to be waited for."""
        return bool(self._unsynced)

    @property
    def written(self) -> int:
        """The number of the last batch that was written, asked for within :meth:`writing`."""
        return self._written

    def wait(self, number: int, *, changed: bool) -> None:
        """Return when all batches up to ``number`` are on the disk.

        Args:
            number: of the last batch that the caller's answers rest on.
            changed: whether that batch is the caller's own.

        Raises:
            IndeterminateError: the sync failed, and the caller's batch may be lost.
            StoreUnavailableError: the sync failed, and the caller has changed nothing.
        """
        failure = self._sync_to(number)
        if failure is None:
            return
        raise (self._may_be_lost(failure) if changed else self._unsyncable(failure)) from failure

    def wait_to_read(self, keys: Iterable[bytes] | None) -> None:
        """Return when what was read before is on the disk.

        The engine sends no read beside a write of its path, so as a rule only the names below a
        path make a read wait.

        Args:
            keys: that were read; ``None`` if it may have been any.

        Raises:
            StoreUnavailableError: it may not be on the disk, because a sync failed.
        """
        unsynced = dict(self._unsynced)
        if keys is not None and all(map(set(keys).isdisjoint, unsynced.values())):
            return
        self.wait(max(unsynced, default=0), changed=False)

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
                    self._database.db.flush_wal(True)
                except Exception as error:
                    self._sync_failure = error
                else:
                    for done in range(self._synced + 1, written + 1):
                        self._unsynced.pop(done, None)
                    self._synced = written
            return self._sync_failure

    def _may_be_lost(self, failure: Exception) -> IndeterminateError:
        return IndeterminateError(
            f"RocksDB failed to sync in {self._database.directory}: {failure}"
        )

    def _unsyncable(self, failure: Exception) -> StoreUnavailableError:
        return StoreUnavailableError(
            f"RocksDB failed to sync in {self._database.directory}; close the store and open it "
            f"again: {failure}"
        )
