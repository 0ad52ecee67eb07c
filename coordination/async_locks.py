# async:
# `_sync/locks.py` is generated from this file: after a change, run `python tools/faces.py`.
# end
"""Locks and semaphores across processes, which know when they no longer hold."""

from __future__ import annotations

import asyncio
import time
from typing import Final, Self

from ..batching import AsyncMetadataStore
from ..batching.async_background import AsyncGate
from ..batching.settings import check_flag
from ..ops.errors import (
    InvalidSettingError,
    LockBusyError,
    MetadataStoreError,
    StoreClosedError,
)
from ..ops.log import get_logger
from ..ops.operations import check_value
from .async_claims import AsyncClaim
from .async_holds import AsyncHold
from .contenders import EXCLUSIVE, SHARED, Need
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
        self._gate = AsyncGate()  # Held by the user that holds the lock or waits for it.
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
            MetadataStoreError: a request has failed permanently, or for the whole ``timeout``.
        """
        deadline = Deadline(timeout)
        if not await self._acquire(deadline, wait=True):
            raise await self._busy(f"{self.path} was not free within {timeout} s", deadline)

    async def try_acquire(self) -> bool:
        """Acquire the lock if it is free; return whether this call has acquired it."""
        return await self._acquire(Deadline(None), wait=False)

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
            self._gate.leave()
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
        # async:
        entered = await self._enter(deadline, wait=wait)
        # sync:
        # | limited = not wait or deadline.left() is not None
        # | what = f"an acquisition of {self.path}"
        # | with nullcontext() if limited else waiting_for(self._thread, what, LockBusyError):
        # |     entered = self._enter(deadline, wait=wait)
        # end
        if not entered:
            return False
        claim = None
        try:
            claim = await self._lobby.claim_patiently(self._need, self._value, deadline, wait=wait)
        finally:
            if claim is None:
                self._gate.leave()
            else:
                with self._lock:
                    self._claim, self._owner = claim, self._caller()
                # sync:
                # | self._gate.forget()
                # end
        return claim is not None

    async def _enter(self, deadline: Deadline, *, wait: bool) -> bool:
        """Wait for the turn among the users of this object."""
        while not await self._gate.enter(deadline.within(_POLL) if wait else 0.0):
            if self._store.session.state == "closed":
                raise StoreClosedError("the store was closed", path=self.path)
            if not wait or deadline.passed:
                return False
        return True

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
            self._gate.leave()


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

    Everything else is as with :class:`Lock`. All clients must use the same ``n``.

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
        super().__init__(store, path, Need("x", n), value)
