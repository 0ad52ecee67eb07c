# Made from async_locks.py by `python tools/faces.py`: change that file, and run this command.
"""Locks and semaphores that hold across processes, and say when they do not any more."""

from __future__ import annotations

import math
import threading
import time
from types import TracebackType
from typing import Final, Self

from ..batching import MetadataStore
from ..ops.errors import (
    InvalidSettingError,
    LockBusyError,
    LockLostError,
    MetadataStoreError,
    StoreClosedError,
)
from ..ops.log import get_logger
from ..ops.operations import Check, check_value
from .background import Gate, Signal
from .claims import Claim
from .contenders import EXCLUSIVE, SHARED, Need
from .deadlines import Deadline
from .lobbies import lobby

__all__ = ["Lock", "Semaphore"]

log = get_logger("batchkeeper.coordination")

# Seconds after which whoever waits for this object looks whether the store was closed.
_LOOK: Final = 1.0


class Holder:
    """What locks and semaphores have in common: at most one claim for a path at a time."""

    def __init__(self, store: MetadataStore, path: str, need: Need, value: bytes = b"") -> None:
        self._store = store
        self._need = need
        self._value = check_value(value)
        self._lobby = lobby(store, path)
        self._gate = Gate()  # Whoever holds the lock, or waits for it, has passed it.
        self._lock = threading.Lock()  # guards the changes of the following fields
        self._claim: Claim | None = None
        self._owner: threading.Thread | None = None

    @property
    def path(self) -> str:
        """The path of the lock. Its contenders have values below it."""
        return self._lobby.path

    @property
    def value(self) -> bytes:
        """The value that others see while this object holds the lock, or waits for it."""
        return self._value

    @property
    def held(self) -> bool:
        """Whether this object holds the lock for certain, at this moment."""
        return self.held_until() > time.monotonic()

    @property
    def lost(self) -> Signal:
        """An event that is set when the lock is not held any more.

        It belongs to the present hold, and is set at once if there is none. It is also set by
        :meth:`release`.
        """
        claim = self._claim
        if claim is not None:
            return claim.lost
        signal = Signal()
        signal.set()
        return signal

    @property
    def fencing_token(self) -> int:
        """A number that is greater for each later holder of the lock: the revision of its claim.

        Pass it to a service outside the store that refuses smaller tokens than it has seen. For
        writes in the store itself, use :func:`fenced`. A token stays readable after a loss, until
        ``release``.

        Raises:
            LockLostError: this object does not hold the lock.
        """
        claim = self._claim
        if claim is None or claim.stat is None:
            raise self._not_held()
        return claim.stat.revision

    def held_until(self) -> float:
        """Return the time before which nobody else can hold the lock.

        It is a value of ``time.monotonic()``, which grows with each keep-alive of the session:
        ``math.inf`` on stores without a server, ``-math.inf`` if the lock is not held.
        """
        claim = self._claim
        return -math.inf if claim is None else claim.held_until()

    def acquire(self, timeout: float | None = None) -> None:
        """Wait in line until this object holds the lock.

        Who came first goes first. An outage during the wait is waited out.

        Args:
            timeout: seconds to wait; for ever by default.

        Raises:
            LockBusyError: the lock was not free within ``timeout`` seconds. It has the holder's
                value. It is also raised, at once, if this thread or task already holds the lock
                through this object.
            MetadataStoreError: a request has failed for good, or until the end of ``timeout``.
        """
        deadline = Deadline(timeout)
        if not self._acquire(deadline, wait=True):
            raise self._busy(f"{self.path} was not free within {timeout} s", deadline)

    def try_acquire(self) -> bool:
        """Acquire the lock if it is free; return whether this call has acquired it."""
        return self._acquire(Deadline(None), wait=False)

    def release(self) -> None:
        """Give the lock to the next in line. Any thread or task may do so.

        If no server answers, the lock is released in the background; until then, others wait, but
        no longer than until the end of the session.

        Raises:
            LockLostError: this object does not hold the lock, or has lost it meanwhile.
            MetadataStoreError: the value cannot be removed, for example for lack of permission.
        """
        self._check_process()
        claim = self._take()
        if claim is None:
            raise self._not_held()
        held = claim.held_until() > time.monotonic()
        try:
            claim.release()
        except MetadataStoreError as error:
            if held:
                raise
            raise claim.loss() from error
        finally:
            self._gate.leave()
        if not held:
            raise claim.loss()

    def update(self, value: bytes) -> None:
        """Change the value that others see, without giving up the lock.

        Without a hold, it is the value of the next one.

        Raises:
            LockLostError: this object has lost the lock.
            MetadataStoreError: the put has failed; see its ``outcome``.
        """
        self._check_process()
        value = check_value(value)
        claim = self._claim
        if claim is not None:
            claim.update(value)
        self._value = value

    def holder(self) -> bytes | None:
        """Return the value of the first in line, whoever it is, or ``None`` if nobody is."""
        return self._lobby.first_value()

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self.release()
        except MetadataStoreError as failure:
            # The error of the block says more.
            if error is None:
                raise
            log.info("a lock was not released", path=self.path, reason=str(failure))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.path!r}{' held' if self.held else ''}>"

    def check(self) -> Check:
        """Return the condition that this object holds the lock, for a transaction.

        It names the present version of the claim, which changes with :meth:`update`.

        Raises:
            LockLostError: this object does not hold the lock.
        """
        claim = self._claim
        if claim is None:
            raise self._not_held()
        return claim.check()

    def _acquire(self, deadline: Deadline, *, wait: bool) -> bool:
        self._check_process()
        if wait:
            self._check_owner()
        if not self._enter(deadline, wait=wait):
            return False
        claim = None
        try:
            claim = self._lobby.claim_patiently(self._need, self._value, deadline, wait=wait)
        finally:
            if claim is None:
                self._gate.leave()
            else:
                with self._lock:
                    self._claim, self._owner = claim, self._caller()
        return claim is not None

    def _enter(self, deadline: Deadline, *, wait: bool) -> bool:
        """Wait for the turn among those who share this object."""
        while not self._gate.enter(deadline.within(_LOOK) if wait else 0.0):
            if self._store.session.state == "closed":
                raise StoreClosedError("the store was closed", path=self.path)
            if not wait or deadline.passed:
                return False
        return True

    def _take(self) -> Claim | None:
        """Take the claim out of this object. Only one caller gets it."""
        with self._lock:
            claim, self._claim, self._owner = self._claim, None, None
        return claim

    def _busy(self, why: str, deadline: Deadline) -> LockBusyError:
        try:
            value = self._lobby.first_value(deadline.for_request())
        except MetadataStoreError:
            value = None
        by = "" if value is None else f"; its holder is {value!r:.80}"
        return LockBusyError(why + by, path=self.path, value=value)

    def _caller(self) -> threading.Thread:
        return threading.current_thread()

    def _check_owner(self) -> None:
        """Refuse a caller that would wait for itself. If its hold is lost, it begins anew."""
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

    def _check_process(self) -> None:
        # In a forked process, another thread may have held a lock of this object for ever.
        self._store.session  # noqa: B018 - it raises there

    def _not_held(self) -> LockLostError:
        return LockLostError(f"this object does not hold {self.path}", path=self.path)


class Lock(Holder):
    """A lock that one client at a time holds, across processes, in the order of their arrival.

    It is held for as long as the session of the store lives, and no longer: after an outage that is
    shorter than the session, it is still held. ``held_until`` and ``lost`` tell when that is over,
    before anybody else can hold the lock. A lock protects nothing by itself if its holder stops for
    longer than the session and then goes on: fence its writes (:func:`fenced`, ``fencing_token``).

    One object has one place in line. Threads that share it wait for each other as for a
    ``threading.Lock``; it is not reentrant. Use it in a ``with`` block, or release it.

    Args:
        store: the store, with the capabilities ``"ephemerals"``, ``"sequences"`` and ``"watches"``.
        path: the path of the lock. Values below it are its contenders; put nothing else there.
        value: bytes that the others see while this client holds the lock, such as its address.
        shared: whether other shared holders may hold it at the same time.

    Raises:
        InvalidPathError: the path is not valid.
        UnsupportedError: the store lacks a capability.
    """

    def __init__(
        self, store: MetadataStore, path: str, value: bytes = b"", *, shared: bool = False
    ) -> None:
        super().__init__(store, path, SHARED if shared else EXCLUSIVE, value)


class Semaphore(Holder):
    """A lock that up to ``n`` clients hold at the same time, in the order of their arrival.

    Everything else is as with :class:`Lock`. All clients must give the same ``n``.

    Args:
        store: the store, with the capabilities that a lock needs.
        path: the path of the semaphore.
        n: the most holders at a time, 1 or more.
        value: bytes that the others see.

    Raises:
        InvalidSettingError: ``n`` is not an int of 1 or more.
    """

    def __init__(self, store: MetadataStore, path: str, n: int, value: bytes = b"") -> None:
        if type(n) is not int or n < 1:
            raise InvalidSettingError(f"n must be an int of 1 or more, not {n!r:.80}")
        super().__init__(store, path, Need("x", n), value)
