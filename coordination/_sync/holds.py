# Made from async_holds.py by `python tools/faces.py`: change that file, and run this command.
"""The common base of locks, semaphores and elections: at most one claim at a time."""

from __future__ import annotations

import math
import threading

from ...batching import MetadataStore
from ...batching.background import Signal
from ...ops.errors import LockLostError
from ...ops.operations import Check, check_value
from .claims import Claim
from .lobbies import lobby

__all__ = ["Hold"]


class Hold:
    """A place in the line for one path, with the state of its claim."""

    def __init__(self, store: MetadataStore, path: str, value: bytes) -> None:
        self._store = store
        self._lobby = lobby(store, path)
        self._lock = threading.RLock()  # guards the changes of all other fields
        self._value = check_value(value)
        self._claim: Claim | None = None  # the current or last holder

    @property
    def path(self) -> str:
        """The path. Its contenders have values below it."""
        return self._lobby.path

    @property
    def value(self) -> bytes:
        """The value that other clients see while this object holds the path, or waits for it."""
        return self._value

    @property
    def lost(self) -> Signal:
        """An event that is set when this hold or term of leadership is over.

        It belongs to the current hold or term, and is already set if there is none. ``release`` and
        ``resign`` also set it.
        """
        claim = self._claim
        if claim is not None:
            return claim.lost
        signal = Signal()
        signal.set()
        return signal

    @property
    def fencing_token(self) -> int:
        """A number that is greater for each later holder or leader: the revision of its claim.

        Pass it to a service outside the store that refuses smaller tokens than it has seen. For
        writes in the store itself, use :func:`fenced`. Read it once when the hold or the term
        begins: the next one has another token. It stays readable after a loss, until the next one,
        or until ``release`` or ``resign``.

        Raises:
            LockLostError: this object does not hold the path.
        """
        claim = self._claim
        if claim is None or claim.stat is None:
            raise self._not_held()
        return claim.stat.revision

    def held_until(self) -> float:
        """Return the time before which no other client can hold the path, or lead.

        It is a value of ``time.monotonic()``, which grows with each keep-alive of the session:
        ``math.inf`` on stores without a server, ``-math.inf`` if this object does not hold it.
        """
        claim = self._claim
        return -math.inf if claim is None else claim.held_until()

    def check(self) -> Check:
        """Return the condition that this object holds the path, or leads, for a transaction.

        It names the claim and the current version of its value, which changes with ``update``. A
        transaction with it is refused if the hold or the term has ended in the meantime.

        Raises:
            LockLostError: this object does not hold the path.
        """
        claim = self._claim
        if claim is None:
            raise self._not_held()
        return claim.check()

    def _not_held(self) -> LockLostError:
        return LockLostError(f"this object does not hold {self.path}", path=self.path)
