# Made from async_fencing.py by `python tools/faces.py`: change that file, and run this command.
"""A store whose writes take effect only while a lock is held."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from typing import Any, Final, Self, TypeVar

from ...batching import MetadataStore
from ...ops.errors import InvalidSettingError, MetadataStoreError, UnsupportedError
from ...ops.kinds import KINDS
from ...ops.operations import Delete, Exists, Get, GetChildren, Operation, Part, Put, Transaction
from ...ops.results import Outcome, Stat
from ..job_board import ClaimedJob
from .fences import Fence, Holder, Write
from .kinds import check_store

__all__ = ["FencedOutcomes", "FencedStore", "fenced"]

# The limits of running operations in a bulk call: in general, and with gets, whose values have
# unknown sizes.
_AHEAD: Final = 1_000
_GETS_AHEAD: Final = 64
_END: Final[Any] = object()  # of a source

_T = TypeVar("_T")


class FencedOutcomes(Iterator[Outcome]):
    """The outcomes of operations that a fenced store executes as they arrive, in the order given.

    Close it to end early: unsent operations are then never sent.
    """

    def __init__(
        self,
        store: FencedStore,
        ops: Iterable[Operation],
        timeout: float | None,
    ) -> None:
        self._fenced = store
        self._source = iter(ops)
        self._timeout = timeout
        self._open: deque[tuple[Operation, Future[Any] | MetadataStoreError]] = deque()
        self._ahead = _AHEAD
        self._read = False  # whether the source has ended
        self._error: Exception | None = None  # the error of the source

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Outcome:
        """Return the next outcome.

        Raises:
            Exception: an exception of the source, after the outcomes of all operations before it.
        """
        while not (self._read or self._full()):
            self._read_one()
        if not self._open:
            error, self._error = self._error, None
            raise error or StopIteration
        op, future = self._open[0]
        result: Any = None
        failed = future if isinstance(future, MetadataStoreError) else None
        if not isinstance(future, MetadataStoreError):
            try:
                result = future.result()
            except MetadataStoreError as error:
                failed = error
        self._open.popleft()
        return Outcome(op, result, failed)

    def close(self) -> None:
        """End early; see the class."""
        self._read, self._error = True, None
        while self._open:
            _, future = self._open.popleft()
            if isinstance(future, MetadataStoreError):
                continue
            if not future.cancel():
                future.exception()

    def _full(self) -> bool:
        if not self._open:
            return False
        first = self._open[0][1]
        ended = isinstance(first, MetadataStoreError) or first.done()
        return ended or len(self._open) >= self._ahead

    def _read_one(self) -> None:
        op: Any = None
        try:
            op = next(self._source, _END)
        except Exception as error:
            op, self._error = _END, error
        if op is _END:
            self._read = True
            return
        if getattr(op, "kind", None) == "get":
            self._ahead = _GETS_AHEAD
        try:
            self._open.append((op, self._fenced.begin(op, self._timeout)))
        except MetadataStoreError as error:
            self._open.append((op, error))


class FencedStore:
    """A store whose writes take effect only while a lock is held. :func:`fenced` returns it.

    It has the operations of :class:`MetadataStore`, with the same results and errors. A write
    may also end with ``LockLostError``: the lock was lost, and nothing was written.

    Reads are those of the store. A read does not wait for an earlier write that is sent again
    because of an ``update`` of the lock: wait for the write first if that matters.
    """

    def __init__(self, store: MetadataStore, lock: Holder) -> None:
        self._fence = Fence(store, lock)
        self._plain = plain = store
        self.capabilities = plain.capabilities
        self.operation_timeout = plain.operation_timeout
        self.get = plain.get
        self.exists = plain.exists
        self.get_children = plain.get_children
        self.scan = plain.scan
        self.scan_pages = plain.scan_pages
        self.split = plain.split
        self.revision = plain.revision
        self.changes = plain.changes
        self.watch = plain.watch
        self.view = plain.view
        self.sync = plain.sync

    def put(
        self,
        path: str,
        value: bytes | bytearray | memoryview,
        expected_version: int | None = None,
        *,
        ephemeral: bool = False,
        sequential: bool = False,
        expected_revision: int | None = None,
        timeout: float | None = None,
    ) -> Future[Stat]:
        """Set a path's value while the lock is held; see ``put`` of the store.

        Raises:
            LockLostError: the lock is no longer held.
            UnsupportedError: ``sequential`` is set. A transaction cannot contain such a put.
        """
        op = Put(
            path,
            value,
            expected_version,
            ephemeral=ephemeral,
            sequential=sequential,
            expected_revision=expected_revision,
        )
        return self._write(op, timeout)

    def delete(
        self,
        path: str,
        expected_version: int | None = None,
        *,
        expected_revision: int | None = None,
        timeout: float | None = None,
    ) -> Future[None]:
        """Remove a path's value while the lock is held; see ``delete`` of the store."""
        op = Delete(path, expected_version, expected_revision=expected_revision)
        return self._write(op, timeout)

    def transaction(
        self,
        ops: Iterable[Part],
        *,
        timeout: float | None = None,
    ) -> Future[list[Stat | None]]:
        """Execute checks, puts and deletes together if the lock is held.

        Like the store's ``transaction``, with one operation fewer than the store accepts.
        """
        return self._write(Transaction(ops), timeout)

    def submit(self, op: Operation, *, timeout: float | None = None) -> Future[Any]:
        """Submit an operation object and return the future of its result. Writes are fenced."""
        return self.begin(op, timeout, patient=False)

    def apply(
        self,
        ops: Iterable[Operation],
        *,
        timeout: float | None = None,
    ) -> list[Outcome]:
        """Execute operations, the writes fenced, and return their outcomes, in the order given."""
        outcomes = self.apply_stream(ops, timeout=timeout)
        try:
            return list(outcomes)
        finally:
            outcomes.close()

    def apply_stream(
        self,
        ops: Iterable[Operation],
        *,
        timeout: float | None = None,
    ) -> FencedOutcomes:
        """Execute operations as they arrive, and yield their outcomes, in the order given.

        Up to 1,000 operations run at a time, or 64 if there are gets among them. Close the iterator
        to end early.
        """
        return FencedOutcomes(self, ops, timeout)

    def begin(self, op: Operation, timeout: float | None, *, patient: bool = True) -> Future[Any]:
        """Submit an operation. If the queue is full and ``patient`` is set, it waits for room."""
        if isinstance(op, Put) and op.sequential:
            raise UnsupportedError(
                "a fenced put cannot be sequential, because a transaction cannot contain such a put"
            )
        if isinstance(op, Put | Delete | Transaction):
            single = not isinstance(op, Transaction)
            parts = op.ops if isinstance(op, Transaction) else (op,)
            write = Write(self._fence, parts, single=single, timeout=timeout)
            self._fence.submit(write, patient=patient)
            return write
        read: Get | Exists | GetChildren = op  # A new kind of writes must not pass unfenced.
        if (row := KINDS.get(getattr(op, "kind", "get"))) is not None and row.writes:
            raise UnsupportedError(f"a fenced store has no {op.kind}")
        return self._plain.submit(read, timeout=timeout)

    def _write(self, op: Operation, timeout: float | None) -> Future[_T]:
        return self.begin(op, timeout)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} by {self._fence.path!r} of {self._plain!r}>"


def fenced(store: MetadataStore, lock: Holder) -> FencedStore:
    """Return a store whose writes take effect only while a lock is held, however late they arrive.

    Each write is a transaction with a check of the lock's value, so the server decides. Writes of a
    holder that was paused or cut off have no effect after another client has got the lock.

    The result belongs to the current hold. After a release, its writes are refused, even if the
        same object acquires the lock again: a thread that was paused in between must not write
        under a hold that it does not know. Call ``fenced`` after each acquisition.

    Args:
        store: the store of the lock, or another one on the same server and prefix.
        lock: a lock, a semaphore or an election that is held.

    Raises:
        InvalidSettingError: ``lock`` is a job of a work queue, or no lock, or ``store`` no store.
        LockLostError: the lock is not held.
        UnsupportedError: the store lacks ``"transactions"``.
    """
    check_store(store, "a fenced write", "transactions")
    if not callable(getattr(lock, "check", None)):
        raise InvalidSettingError(f"lock must be a lock, a semaphore or an election: {lock!r:.80}")
    if isinstance(lock, ClaimedJob):
        # The next worker's claim would look like an update of this one's: the path is the same.
        raise InvalidSettingError(f"a job is no lock: put its check() into transactions: {lock!r}")
    return FencedStore(store, lock)
