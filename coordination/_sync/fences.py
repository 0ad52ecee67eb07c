# Made from async_fences.py by `python tools/faces.py`: change that file, and run this command.
"""Fenced writes, which take effect only while a lock is held, and their order.

Each write becomes a transaction: a check of the lock's value, and the write itself. The check names
a version, which ``update`` of the lock changes. A write that is refused only because of that is
sent again, in its original position: the refused writes after it are sent again behind it, and new
ones wait until then. So the writes of a path keep their order.

::

    open ──(one write had an old version)──> draining ──(all that were sent have ended)──> sending
     ^                                           ^───────(again an old version)──────────────┤
     └────────────────────────────────(all were sent, with the present version)──────────────┘
"""

from __future__ import annotations

import contextlib
import threading
import time
from concurrent.futures import CancelledError, Future, InvalidStateError
from typing import Any, Final, Protocol

from ...batching import MetadataStore
from ...batching.background import Signal, spawn
from ...batching.settings import check_seconds
from ...ops.errors import (
    BadVersionError,
    LockLostError,
    MetadataStoreError,
    OperationTimeoutError,
    QueueFullError,
    TransactionRefusedError,
    is_conflict,
)
from ...ops.log import get_logger
from ...ops.operations import Check, Part, Transaction

__all__ = ["Fence", "Write", "Holder"]

log = get_logger("batchkeeper.coordination")

_ENDED: Final = InvalidStateError
# Seconds between two attempts to send a write while the queue is full.
_MOMENT: Final = 0.005
# Seconds for which a write without its own timeout is resent, if the lock is updated continuously.
_LONGEST: Final = 30.0


class Holder(Protocol):
    """A lock, a semaphore or an election."""

    def check(self) -> Check:
        """Return the condition that the lock is held, by a path that no other hold ever has.

        Raises:
            LockLostError: the lock is not held.
        """
        ...


class Write(Future[Any]):
    """The future of a fenced write.

    Attributes:
        parts: its operations.
        single: whether the caller gets the result of the only part, and not a list.
        timeout: seconds until its deadline, or ``None`` for the store's default.
        sent: whether it was sent or is about to be, and has not ended.
        inner: the future of its transaction, while that is running.
        moved: while it waits to be sent again: set when it was sent, or will not be.
        answered: whether ``answer`` is known. The future ends a little later.
        answer: its result, or its error.
    """

    def __init__(
        self, fence: Fence, parts: tuple[Part, ...], *, single: bool, timeout: float | None
    ) -> None:
        super().__init__()
        self._fence = fence
        self.parts = parts
        self.single = single
        self.timeout = None if timeout is None else check_seconds("timeout", timeout)
        self._begun = time.monotonic()
        self.sent = False
        self.inner: Future[Any] | None = None
        self.moved: Signal | None = None
        self.answered = False
        self.answer: Any = None

    def left(self) -> float | None:
        """Return the seconds that it has if it is sent again; ``None`` for the store's default.

        Raises:
            OperationTimeoutError: no time is left.
        """
        longest = _LONGEST if self.timeout is None else self.timeout
        left = self._begun + longest - time.monotonic()
        if left <= 0:
            raise OperationTimeoutError(
                "the deadline passed before the write could be sent again",
                path=self.parts[0].path,
            )
        return None if self.timeout is None else left

    def ended(self, inner: Future[Any]) -> None:
        """Note the end of its transaction. It runs where done-callbacks run."""
        self._fence.note(self, inner)
        self.complete()

    def complete(self) -> None:
        """End the future if the answer is known. Several threads may do so."""
        if not self.answered or self.done():
            return
        with contextlib.suppress(_ENDED):  # Another thread was faster.
            if isinstance(self.answer, MetadataStoreError):
                self.set_exception(self.answer)
            else:
                self.set_result(self.answer)

    def cancel(self) -> bool:
        """Cancel the write if it has not been sent; say whether it is cancelled."""
        inner = self.inner
        if inner is not None and not inner.cancel():
            return self.cancelled()
        # Only one thread finds it there, and only it may tell those that wait.
        if self._fence.forget(self, waiting=inner is None) and super().cancel():
            self.set_running_or_notify_cancel()
        return self.cancelled()

    def result(self, timeout: float | None = None) -> Any:
        """Wait like ``concurrent.futures.Future.result``, also in a done-callback."""
        if not self._wait(timeout):
            return super().result(0)
        if isinstance(self.answer, MetadataStoreError):
            raise self.answer
        return self.answer

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait like ``concurrent.futures.Future.exception``, also in a done-callback."""
        if not self._wait(timeout):
            return super().exception(0)
        return self.answer if isinstance(self.answer, MetadataStoreError) else None

    def _wait(self, timeout: float | None) -> bool:
        """Wait for the answer; return whether there is one. Otherwise the write is cancelled.

        It waits for the transaction, whose done-callback may be behind the one that waits.
        """
        end = None if timeout is None else time.monotonic() + timeout
        while not (self.answered or self.done()):
            left = None if end is None else max(0.0, end - time.monotonic())
            inner, moved = self.inner, self.moved
            if inner is not None:
                with contextlib.suppress(CancelledError):
                    inner.exception(left)
                self._fence.note(self, inner)
            elif moved is not None and not moved.wait(left):
                raise TimeoutError
        return self.answered


class Fence:
    """Sends the writes of one hold, in their order."""

    def __init__(self, store: MetadataStore, holder: Holder) -> None:
        self.plain = store
        self._holder = holder
        self._check = holder.check()  # what writes are sent with
        self.path = self._check.path
        self._lock = threading.RLock()  # guards the following fields, and those of the writes
        self._version = self._check.expected_version or 0  # the newest known version
        self._writes: dict[Write, None] = {}  # unfinished writes, in the order of the calls
        self._draining = False  # whether a write had an old version, and what was sent ends first
        self._holding = False  # whether new writes wait, and a resender runs

    def submit(self, write: Write, *, patient: bool = False) -> None:
        """Send a write, or queue it.

        Args:
            write: the write.
            patient: whether it waits if the queue is full.

        Raises:
            LockLostError: the lock is not held.
            MetadataStoreError: the store has refused the call.
        """
        self.plain.session  # noqa: B018 - it raises in a forked process, whose lock may be held
        present = self._present()
        with self._lock:
            # While others are running, a newer version would let this one overtake them.
            if not self._writes and (present.expected_version or 0) > self._version:
                self._check, self._version = present, present.expected_version or 0
            self._writes[write] = None
            if self._holding:
                write.moved = Signal()
                return
            write.sent, check = True, self._check
        try:
            self._send(write, check, write.timeout)
        except QueueFullError:
            if not patient:
                self.forget(write)
                raise
            with self._lock:
                begins = self._hold(write)
            self._begin(begins)
        except BaseException:
            self.forget(write)
            raise

    def note(self, write: Write, inner: Future[Any]) -> None:
        """Handle the end of a transaction. Several threads may do so; the first one counts."""
        if inner.cancelled():  # `cancel` does the rest.
            return
        answer, version = self._answer_of(write, inner)
        with self._lock:
            if write.inner is not inner:
                return
            if version is None:
                write.answer, write.answered, write.inner = answer, True, None
                self._writes.pop(write, None)
                return
            # In the same step: after it, another thread with the same news would hold the write
            # again, although it may have been sent by then.
            self._version = max(self._version, version)
            self._draining = True
            begins = self._hold(write)
        self._begin(begins)

    def forget(self, write: Write, *, waiting: bool = False) -> bool:
        """Drop an unfinished write; return whether there was one.

        Args:
            write: the write.
            waiting: whether to do so only if it waits to be sent.
        """
        with self._lock:
            if write not in self._writes or (waiting and write.sent):
                return False
            del self._writes[write]
            write.inner = None
            if write.moved is not None:
                write.moved.set()
        return True

    def _present(self) -> Check:
        check = self._holder.check()
        if check.path != self.path:
            raise LockLostError(
                f"this belongs to an earlier hold of the lock, by {self.path}; call fenced() again",
                path=self.path,
            )
        return check

    def _send(self, write: Write, check: Check, timeout: float | None) -> None:
        op = Transaction((check, *write.parts))
        inner = self.plain.submit(op, timeout=timeout)
        write.inner = inner
        inner.add_done_callback(write.ended)

    def _hold(self, write: Write) -> bool:
        """Queue a write, and all later ones, with the lock; return whether to call ``_begin``."""
        write.moved = Signal()  # before the next line: see `_wait`
        write.sent, write.inner = False, None
        begins, self._holding = not self._holding, True
        return begins

    def _begin(self, begins: bool) -> None:
        if begins:
            try:
                spawn(f"fenced writes by {self.path}", self._run)
            except RuntimeError as error:  # No thread is left.
                self._fail(error)

    def _run(self) -> None:
        try:
            self._resend()
        except Exception as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        """End the writes that wait to be sent again, because nothing sends them."""
        log.error("fenced writes could not be sent again", path=self.path, exc_info=error)
        with self._lock:
            self._holding = False
            waiting = [(write, write.moved) for write in self._writes]
            failed = [(write, moved) for write, moved in waiting if moved and not moved.is_set()]
            for write, moved in failed:
                del self._writes[write]
                why = f"the write could not be sent again: {type(error).__name__}: {error}"
                write.answer = MetadataStoreError(why, path=write.parts[0].path)
                write.answered = True
                moved.set()
        for write, _ in failed:
            write.complete()

    def _resend(self) -> None:
        """Send the queued writes until there are none."""
        while True:
            with self._lock:
                sent = [(write, write.inner) for write in self._writes if write.sent]
                if not (self._draining and sent):
                    if self._draining:
                        self._check = Check(self.path, expected_version=self._version)
                    self._draining, sent = False, []
                    waiting = [write for write in self._writes if not write.sent]
                    if not waiting:
                        self._holding = False
                        break
                    for write in waiting:
                        write.sent = True
            if sent:
                self._drain(sent)
            elif failed := [write for write in waiting if not self._sent(write)]:
                # Not here: done-callbacks may block.
                spawn(f"failed writes by {self.path}", _complete, failed)

    def _drain(self, sent: list[tuple[Write, Future[Any] | None]]) -> None:
        """Wait until all sent writes have ended, without relying on done-callbacks."""
        for write, inner in sent:
            if inner is None:  # Another thread is about to send it.
                time.sleep(_MOMENT)
                continue
            with contextlib.suppress(CancelledError):
                inner.exception()
            self.note(write, inner)

    def _sent(self, write: Write) -> bool:
        """Send a queued write; return whether that succeeded."""
        moved = write.moved  # Once it is sent, another thread may queue it again, with a new one.
        while write in self._writes:
            try:
                self._present()
                self._send(write, self._check, write.left())
            except QueueFullError:
                time.sleep(_MOMENT)
                continue
            except MetadataStoreError as error:
                write.answer, write.answered = error, True
                self.forget(write)
                return False
            if moved is not None:
                moved.set()
            return True
        return True  # It was cancelled.

    def _answer_of(self, write: Write, inner: Future[Any]) -> tuple[Any, int | None]:
        """Return the result or error of a write, and the current version if it must be resent."""
        error = inner.exception()
        if error is None:
            results = inner.result()
            return results[1] if write.single else results[1:], None
        if isinstance(error, TransactionRefusedError) and error.error is not None:
            refused = error.error
            if error.index == 0 and is_conflict(error):
                actual = refused.actual if isinstance(refused, BadVersionError) else None
                expected = refused.expected if isinstance(refused, BadVersionError) else None
                if actual is not None and expected is not None and actual > expected:
                    return None, actual
                lost = LockLostError(
                    f"nothing was written, because {self.path} is not there: the lock was lost",
                    path=write.parts[0].path,
                )
                lost.__cause__ = error
                return lost, None
            if write.single or error.index == 0:
                return refused, None
            own = TransactionRefusedError(
                f"nothing was applied, because operation {error.index - 1} does not hold: "
                f"{refused}",
                path=error.path,
                index=error.index - 1,
                error=refused,
            )
            return own, None
        if isinstance(error, MetadataStoreError) and error.path == self.path:
            return error.for_path(write.parts[0].path), None
        return error, None


def _complete(writes: list[Write]) -> None:
    for write in writes:
        write.complete()
