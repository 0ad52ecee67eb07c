# async:
# `_sync/locks.py` is generated from this file: after a change, run `python tools/faces.py`.
# end
"""Locks and semaphores across processes, which know when they no longer hold."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final, Self

from ..batching import AsyncMetadataStore
from ..batching.async_background import AsyncGate, AsyncSignal
from ..batching.settings import check_flag
from ..ops.errors import (
    InvalidSettingError,
    LockBusyError,
    LockCancelledError,
    MetadataStoreError,
    StoreClosedError,
)
from ..ops.log import get_logger
from ..ops.operations import check_value
from .async_claims import AsyncClaim
from .async_holds import AsyncHold
from .contenders import EXCLUSIVE, SHARED, Need, Participant
from .deadlines import Deadline

# sync:
# | import threading
# | from contextlib import nullcontext
# |
# | from .crossings import waiting_for
# end

__all__ = ["AsyncLock", "AsyncSemaphore"]

log = get_logger("batchkeeper.coordination")

# Seconds after which a caller that waits for this object checks whether the store was closed.
_POLL: Final = 1.0


class AsyncHolder(AsyncHold):
    """What locks and semaphores have in common: those who share the object take turns."""

    def __init__(
        self, store: AsyncMetadataStore, path: str, need: Need, value: bytes = b""
    ) -> None:
        super().__init__(store, path, value)
        self._need = need
        self._gate = AsyncGate()  # Held by the call that waits for the lock.
        # From an acquisition to the end of its release, and what wakes the call in the gate then.
        self._used = False
        self._freed: Callable[[], object] = bool
        self._waiting: set[Deadline] = set()  # of the calls that `cancel` ends
        # async:
        self._owner: asyncio.Task[object] | None = None
        # sync:
        # | self._owner: threading.Thread | None = None
        # end

    @property
    def held(self) -> bool:
        """Whether this object certainly holds the lock at this moment."""
        return self.held_until() > time.monotonic()

    async def acquire(self, timeout: float | None = None) -> None:
        """Wait in line until this object holds the lock.

        The order is first come, first served. The call waits out outages.

        Args:
            timeout: seconds to wait; unlimited by default.

        Raises:
            LockBusyError: the lock was not free within ``timeout`` seconds. It has the holder's
                value. It is also raised, at once, if this thread or task already holds the lock
                through this object, or if its holder waits without limit for an update of a cache
                by this thread.
            LockCancelledError: :meth:`cancel` was called meanwhile.
            MetadataStoreError: a request has failed permanently, or for the whole ``timeout``.
        """
        deadline = Deadline(timeout)
        if not await self._acquire(deadline, wait=True):
            raise await self._busy(f"{self.path} was not free within {timeout} s", deadline)

    async def try_acquire(self) -> bool:
        """Acquire the lock if it is free; return whether this call has acquired it."""
        return await self._acquire(Deadline(None), wait=False)

    def cancel(self) -> None:
        """End the calls of ``acquire`` that wait for this object, with ``LockCancelledError``.

        Any thread or task may do so, and a signal handler, too. The calls leave the line, and end
        at once; one that has sent a request ends after its answer. When this call has returned,
        none of them acquires the lock any more. A hold stays, and so do calls that begin later.
        """
        self._store._check_caller()
        with self._lock:
            waiting = list(self._waiting)
            for deadline in waiting:
                deadline.cancel()
        for deadline in waiting:
            deadline.wake()

    async def release(self) -> None:
        """Give the lock to the next in line. Any thread or task may do so.

        If no server answers, the lock is released in the background. Until then, others wait, but
        at most until the end of the session.

        Raises:
            LockLostError: this object does not hold the lock, or has lost it.
            MetadataStoreError: the value cannot be removed, for example for lack of permission.
        """
        self._store._check_caller()
        claim = self._take()
        if claim is None:
            raise self._not_held()
        held = claim.held_until() > time.monotonic()
        try:
            await claim.release()
        except MetadataStoreError as error:
            if held:
                raise
            raise claim.loss() from error
        finally:
            self._free()
        if not held:
            raise claim.loss()

    async def update(self, value: bytes) -> None:
        """Change the value that others see, without giving up the lock.

        Without a hold, the value applies to the next hold.

        Raises:
            LockLostError: this object has lost the lock.
            MetadataStoreError: the put has failed; see its ``outcome``.
        """
        self._store._check_caller()
        value = check_value(value)
        claim = self._claim
        if claim is not None:
            await claim.update(value)
        self._value = value

    async def holder(self) -> bytes | None:
        """Return the value of the first in line, or ``None`` if the line is empty."""
        return await self._lobby.first_value()

    async def contenders(self) -> list[Participant]:
        """Return those that hold the lock or wait for it, in their order.

        It is what one read of the line shows, without those that leave meanwhile: for people and
        logs, not for decisions. On ZooKeeper, it may lag behind other sessions: call
        ``store.sync()`` before.

        Raises:
            MetadataStoreError: the store cannot be read.
        """
        return await self._lobby.participants(self._need.limit)

    async def __aenter__(self) -> Self:
        await self.acquire()
        return self

    async def __aexit__(self, _: object, error: BaseException | None, *__: object) -> None:
        try:
            await self.release()
        except MetadataStoreError as failure:
            # The error of the block says more.
            if error is None:
                raise
            log.info("a lock was not released", path=self.path, reason=str(failure))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.path!r}{' held' if self.held else ''}>"

    async def _acquire(self, deadline: Deadline, *, wait: bool) -> bool:
        self._store._check_caller()
        if wait:
            self._check_owner()
            with self._lock:
                self._waiting.add(deadline)
        acquired = False
        try:
            acquired = await self._enter(deadline, wait=wait)
        except MetadataStoreError as error:
            if deadline.cancelled:
                raise self._cancelled() from error
            raise
        finally:
            with self._lock:
                self._waiting.discard(deadline)
        if deadline.cancelled and not acquired:
            raise self._cancelled()
        return acquired

    async def _enter(self, deadline: Deadline, *, wait: bool) -> bool:
        """Wait for the turn among the users of this object, and then in the line."""
        # async:
        entered = await self._turn(deadline, wait=wait)
        # sync:
        # | limited = not wait or deadline.left() is not None
        # | what = f"an acquisition of {self.path}"
        # | with nullcontext() if limited else waiting_for(self._thread, what, LockBusyError):
        # |     entered = self._turn(deadline, wait=wait)
        # end
        if not entered:
            return False
        claim = None
        try:
            claim = await self._lobby.claim_patiently(self._need, self._value, deadline, wait=wait)
        finally:
            with self._lock:
                acquired = claim is not None and not deadline.cancelled
                if acquired:
                    self._claim, self._owner, self._used = claim, self._caller(), True
            self._gate.leave()
            if claim is not None and not acquired:
                claim.lose()
        return acquired

    async def _turn(self, deadline: Deadline, *, wait: bool) -> bool:
        """Enter the gate when nobody uses this object; return ``False`` at the deadline."""
        while not await self._gate.enter(deadline.within(_POLL) if wait else 0.0):
            if not self._goes_on(deadline, wait):
                return False
        free = False
        try:
            while self._used:
                freed = AsyncSignal()
                deadline.wake = self._freed = freed.set
                # Looked at again now, because whoever frees it calls `_freed` afterwards.
                if (
                    self._used
                    and not await freed.wait(deadline.within(_POLL) if wait else 0.0)
                    and not self._goes_on(deadline, wait)
                ):
                    return False
            free = True
        finally:
            if not free:
                self._gate.leave()
        return True

    def _goes_on(self, deadline: Deadline, wait: bool) -> bool:
        if self._store.session.state == "closed":
            raise StoreClosedError("the store was closed", path=self.path)
        return wait and not deadline.passed

    def _free(self) -> None:
        """Let the next user of this object go on."""
        self._used = False
        self._freed()

    def _take(self) -> AsyncClaim | None:
        """Take the claim out of this object. Only one caller gets it."""
        with self._lock:
            claim, self._claim, self._owner = self._claim, None, None
        return claim

    async def _busy(self, why: str, deadline: Deadline) -> LockBusyError:
        try:
            value = await self._lobby.first_value(deadline.for_request())
        except MetadataStoreError:
            value = None
        return LockBusyError(why, path=self.path, value=value)

    def _cancelled(self) -> LockCancelledError:
        return LockCancelledError(f"a wait for {self.path} was cancelled", path=self.path)

    # async:
    def _caller(self) -> asyncio.Task[object] | None:
        return asyncio.current_task()

    # sync:
    # | def _caller(self) -> threading.Thread:
    # |     return threading.current_thread()
    # |
    # | def _thread(self) -> int:
    # |     """Return the thread that has acquired the lock, or 0."""
    # |     owner = self._owner
    # |     # The system may have given the number of a thread that has ended to another one.
    # |     return owner.ident or 0 if owner is not None and owner.is_alive() else 0
    # |
    # end
    def _check_owner(self) -> None:
        """Refuse a caller that would wait for itself. If its hold is lost, it starts over."""
        if self._owner is None or self._owner is not self._caller():
            return
        if self.held:
            raise LockBusyError(
                f"whoever calls this holds {self.path} already, and would wait for itself",
                path=self.path,
                value=self._value,
            )
        claim = self._take()
        if claim is not None:
            claim.lose()
            self._free()


class AsyncLock(AsyncHolder):
    """A lock that one client at a time holds, across processes, in the order of their arrival.

    It is held as long as the session of the store is alive: after an outage shorter than the
        session, it is still held. ``held_until`` and ``lost`` show when the hold ends, before
        another client can hold the lock. A lock alone protects nothing if its holder pauses for
        longer than the session and then resumes: fence its writes (:func:`fenced`,
        ``fencing_token``).

    One object has one place in line. Threads that share it wait for each other as for a
    ``threading.Lock``; it is not reentrant. Use it in a ``with`` block, or release it.

    Args:
        store: the store, with the capabilities ``"ephemerals"``, ``"sequences"`` and ``"watches"``.
        path: the path of the lock. Values below it are its contenders; put nothing else there.
        value: bytes that other clients see while this client holds the lock, such as its address.
        shared: whether other shared holders may hold it at the same time.

    Raises:
        InvalidPathError: the path is not valid.
        InvalidSettingError: ``shared`` is not a bool.
        UnsupportedError: the store lacks a capability.
    """

    def __init__(
        self, store: AsyncMetadataStore, path: str, value: bytes = b"", *, shared: bool = False
    ) -> None:
        check_flag("shared", shared)
        super().__init__(store, path, SHARED if shared else EXCLUSIVE, value)


class AsyncSemaphore(AsyncHolder):
    """A lock that up to ``n`` clients hold at the same time, in the order of their arrival.

    Everything else is as with :class:`Lock`. All that hold it or wait for it have the same ``n``:
    an ``acquire`` with another one raises ``InvalidSettingError``. ``n`` can change when nobody
    holds the semaphore or waits for it.

    Args:
        store: the store, with the capabilities that a lock needs.
        path: the path of the semaphore.
        n: the limit of simultaneous holders, 1 or more.
        value: bytes that the others see.

    Raises:
        InvalidSettingError: ``n`` is not an int of 1 or more.
    """

    def __init__(self, store: AsyncMetadataStore, path: str, n: int, value: bytes = b"") -> None:
        if type(n) is not int or n < 1:
            raise InvalidSettingError(f"n must be an int of 1 or more, not {n!r:.80}")
        super().__init__(store, path, Need("x", n, n), value)

    async def holders(self) -> list[Participant]:
        """Return those that hold it, first come first; see :meth:`contenders`."""
        return [one for one in await self.contenders() if one.holds]
