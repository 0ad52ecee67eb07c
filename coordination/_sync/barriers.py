# Made from async_barriers.py by `python tools/faces.py`: change that file, and run this command.
"""A barrier that processes wait for, and one that they enter together and leave together."""

from __future__ import annotations

import contextlib
import re
import time
import uuid
from collections.abc import Callable
from typing import Final, Self

from ...batching import MetadataStore
from ...batching.background import Gate, spawn
from ...ops.backoff import Backoff
from ...ops.errors import (
    BadVersionError,
    InvalidSettingError,
    LockBusyError,
    LockLostError,
    MetadataStoreError,
    NotFoundError,
    OperationTimeoutError,
    StoreUnavailableError,
    TransactionRefusedError,
    ValueDecodeError,
    passes,
    passes_anew,
    shape,
)
from ...ops.log import get_logger
from ...ops.operations import ABSENT, Check, Put, check_value
from ...ops.paths import check_path
from ..deadlines import Deadline
from .conflicts import Conflicts
from .kinds import check_store

__all__ = ["Barrier", "DoubleBarrier"]

log = get_logger("batchkeeper.coordination")

_ROUND: Final = re.compile(rb"[0-9]{1,10}")
_BACKOFF: Final = Backoff(first=0.05, longest=2.0)


class Barrier:
    """Holds processes back until somebody removes it.

    It is there while its path has a value, which outlives its creator. All calls may be repeated.

    Args:
        store: the store, with the capability ``"watches"``.
        path: the path of the barrier. Put nothing below it.
        value: bytes that others see at the path, such as the reason.

    Raises:
        InvalidPathError: the path is not valid.
        InvalidSettingError: the value is not bytes.
        UnsupportedError: the store lacks the capability.
    """

    def __init__(self, store: MetadataStore, path: str, value: bytes = b"") -> None:
        check_store(store, "a barrier", "watches")
        self._store = store
        self._path = check_path(path)
        self._value = check_value(value)

    @property
    def path(self) -> str:
        """The path of the barrier."""
        return self._path

    def create(self) -> bool:
        """Set the barrier up; return ``False`` if it was there before.

        Raises:
            MetadataStoreError: the put has failed; see its ``outcome``.
        """
        try:
            self._store.put(self._path, self._value, ABSENT).result()
        except BadVersionError:
            return False
        return True

    def remove(self) -> bool:
        """Let all that wait go on; return ``False`` if there was no barrier.

        Raises:
            MetadataStoreError: the delete has failed; see its ``outcome``.
        """
        try:
            self._store.delete(self._path).result()
        except NotFoundError:
            return False
        return True

    def wait(self, timeout: float | None = None) -> None:
        """Return when there is no barrier: at once, or when it is removed.

        The call waits out outages. If the barrier is removed and created again during an outage,
        the call goes on waiting.

        Args:
            timeout: seconds to wait; unlimited by default.

        Raises:
            OperationTimeoutError: the barrier was still there after ``timeout`` seconds.
            MetadataStoreError: a request has failed permanently, or for the whole ``timeout``.
        """
        deadline = Deadline(timeout)
        self._store._check_caller()

        def gone() -> bool:
            return not self._store.exists(self._path, timeout=deadline.for_request()).result()

        if not _watched(self._store, self._path, deadline, gone, deletion=True):
            why = f"the barrier {self._path} was not removed within {timeout} s"
            raise OperationTimeoutError(why, path=self._path)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._path!r}>"


class DoubleBarrier:
    """Lets ``n`` participants start together, and finish together.

    :meth:`enter` returns when ``n`` participants are at the barrier, :meth:`leave` when all that
    entered together have left. One object is one participant. Each participant has an ephemeral
    value below the path while it waits or is inside, so a participant whose session ends has left.

    The barrier is reusable: the value at the path is the number of the current round. The n-th
        participant closes the round with a conditional put. From that put, all others learn that
        they have entered, even if a participant dies at that moment. Later participants wait for
        the next round. If more than ``n`` arrive at once, the round can have more.

    Args:
        store: the store, with the capabilities ``"ephemerals"``, ``"transactions"`` and
            ``"watches"``.
        path: the path of the barrier. Put nothing else there or below it.
        n: the participants of a round, 1 or more. All must give the same number.
        value: bytes that identify the participant to others, such as an address.

    Raises:
        InvalidPathError: the path is not valid.
        InvalidSettingError: ``n`` is not an int of 1 or more, or the value is not bytes.
        UnsupportedError: the store lacks a capability.
    """

    def __init__(self, store: MetadataStore, path: str, n: int, value: bytes = b"") -> None:
        check_store(store, "a barrier", "ephemerals", "transactions", "watches")
        self._store = store
        self._path = check_path(path)
        if type(n) is not int or n < 1:
            raise InvalidSettingError(f"n must be an int of 1 or more, not {n!r:.80}")
        self._n = n
        self._value = check_value(value)
        self._gate = Gate()  # guards the following fields
        self._deadline = Deadline(None)  # of the running call
        self._own: str | None = None  # the path of the value, while it waits or is inside
        self._leftover: str | None = None  # the path of an earlier value, which may still exist
        self._round = -1  # the round that it takes part in
        self._inside = False  # from the return of `enter` to that of `leave`

    @property
    def path(self) -> str:
        """The path of the barrier. Its participants have values below it."""
        return self._path

    def enter(self, timeout: float | None = None) -> None:
        """Wait until ``n`` participants are at the barrier.

        The call waits out outages. A participant whose session ends while it waits enters again,
        for the next round if necessary.

        Args:
            timeout: seconds to wait; unlimited by default.

        Raises:
            OperationTimeoutError: fewer than ``n`` participants arrived within ``timeout`` seconds.
                This one is no longer at the barrier.
            LockBusyError: this object has already entered.
            ValueDecodeError: the value at the path is not the number of a round.
            MetadataStoreError: a request has failed permanently, or for the whole ``timeout``.
        """
        self._begin(timeout)
        entered = False
        try:
            if self._inside:
                raise LockBusyError(
                    f"this object has entered {self._path} already; leave first",
                    path=self._path,
                    value=self._value,
                )
            try:
                entered = self._inside = _watched(
                    self._store, self._path, self._deadline, self._stand
                )
                if not entered and self._own is not None:
                    # Before the call ends, because it must not count for those who come later.
                    with contextlib.suppress(MetadataStoreError):
                        self._remove(self._own, self._left())
                        self._own = None
            finally:
                if not entered:
                    self._withdraw()
                    self._round = -1
        finally:
            self._gate.leave()
        if not entered:
            raise self._late(f"fewer than {self._n} participants came", timeout)

    def leave(self, timeout: float | None = None) -> None:
        """Leave, and wait until all that entered with this participant have left.

        After an error, this participant has left, or will have soon. Call ``leave`` again to wait
        for the others, or ``enter`` for the next round.

        Args:
            timeout: seconds to wait; unlimited by default.

        Raises:
            OperationTimeoutError: another participant was still inside after ``timeout`` seconds.
            LockLostError: this object has not entered.
            MetadataStoreError: a request has failed permanently, or for the whole ``timeout``.
        """
        self._begin(timeout)
        left = False
        try:
            if self._round < 0:
                raise LockLostError(f"this object has not entered {self._path}", path=self._path)
            left = _watched(self._store, self._path, self._deadline, self._go)
            if left:
                self._round = -1
        finally:
            self._inside = False
            self._withdraw()
            self._gate.leave()
        if not left:
            raise self._late("somebody else was still inside", timeout)

    def __enter__(self) -> Self:
        self.enter()
        return self

    def __exit__(self, _: object, error: BaseException | None, *__: object) -> None:
        if error is None:
            self.leave()
        else:
            # The error of the block must not wait for others, and others must not wait for this
            # one.
            self._inside, self._round = False, -1
            self._withdraw()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._path!r} of {self._n}>"

    def _begin(self, timeout: float | None) -> None:
        """Enter the gate: the calls of one object run one after the other."""
        deadline = Deadline(timeout)
        self._store._check_caller()
        if not self._gate.enter(deadline.left()):
            raise LockBusyError(f"another call of this object waits at {self._path}")
        self._deadline = deadline

    def _stand(self) -> bool:
        """Enter the current round; return whether it is full."""
        conflicts = Conflicts(self._deadline, self._path)
        while True:
            # First the round, then the participants: those still there after their round is closed
            # were there when it was closed.
            found = self._store.get(self._path, timeout=self._left()).result()
            if found is None:
                self._put_round(0, ABSENT, conflicts)
                continue
            if not _ROUND.fullmatch(found.value):
                raise ValueDecodeError(
                    f"{self._path} holds {shape(found.value)}, which is no number of a round",
                    path=self._path,
                    version=found.stat.version,
                )
            gathering, version = int(found.value), found.stat.version
            if self._own is None:
                self._stand_for(gathering, version, conflicts)
                continue
            there = self._there()
            if self._own not in there:  # The session has ended, or there never was a value.
                self._drop()
            elif gathering > self._round:
                return True
            elif len(there) < self._n:
                return False
            elif self._put_round(gathering + 1, version, conflicts):
                return True

    def _stand_for(self, gathering: int, version: int, conflicts: Conflicts) -> None:
        """Create the value of this participant, unless the round closes in the meantime."""
        if self._leftover is not None:
            # One participant must not count twice. This delete also waits for the end of a
            # creation whose outcome is unknown.
            self._remove(self._leftover, self._left())
            self._leftover = None
        own = f"{self._path}/{_prefix(gathering)}{uuid.uuid4().hex}"
        self._own, self._round = own, gathering
        try:
            self._store.transaction(
                [Check(self._path, version), Put(own, self._value, ABSENT, ephemeral=True)],
                timeout=self._left(),
            ).result()
        except TransactionRefusedError as refused:
            self._own = None
            conflicts.pause(refused)

    def _put_round(self, number: int, version: int, conflicts: Conflicts) -> bool:
        """Set the current round; return whether this call was the first to do so."""
        try:
            self._store.put(self._path, b"%d" % number, version, timeout=self._left()).result()
        except BadVersionError as refused:
            conflicts.pause(refused)
            return False
        return True

    def _go(self) -> bool:
        """Leave; return whether all others of the round have left."""
        if self._own is not None:
            self._remove(self._own, self._left())
            self._own = None
        return not self._there()

    def _there(self) -> list[str]:
        """Return the paths of the participants of this round."""
        names = self._store.get_children(self._path, timeout=self._left()).result()
        return [f"{self._path}/{name}" for name in names if name.startswith(_prefix(self._round))]

    def _drop(self) -> None:
        self._leftover, self._own = self._own, None

    def _withdraw(self) -> None:
        """Remove the value of this participant in the background, if it may exist."""
        own = self._own
        if own is not None:
            self._drop()  # The next attempt to enter removes it, too.
            try:
                spawn(f"removal below {self._path}", self._keep_removing, own)
            except RuntimeError:
                log.exception("a value stays for now", path=own)

    def _keep_removing(self, path: str) -> None:
        attempts = 0
        while True:
            try:
                self._remove(path)
            except MetadataStoreError as error:
                if not passes(error):
                    log.info("a value stays until its session ends", path=path, reason=str(error))
                    return
            else:
                return
            time.sleep(_BACKOFF.pause(attempts))
            attempts += 1

    def _remove(self, path: str, timeout: float | None = None) -> None:
        with contextlib.suppress(NotFoundError):
            self._store.delete(path, timeout=timeout).result()

    def _left(self) -> float | None:
        """Return the seconds for a request, or ``None`` for the store's own."""
        return self._deadline.for_request()

    def _late(self, why: str, timeout: float | None) -> OperationTimeoutError:
        return OperationTimeoutError(f"{why} within {timeout} s at {self._path}", path=self._path)


def _watched(
    store: MetadataStore,
    path: str,
    deadline: Deadline,
    ready: Callable[[], bool],
    *,
    deletion: bool = False,
) -> bool:
    """Call a function now, and after changes at the path or below, until it returns true.

    ``deletion`` says that a deletion of the value at the path itself is enough, too.

    Return ``False`` at the deadline. Temporary errors lead to another attempt.
    """
    attempts = 0
    while True:
        try:
            with store.watch(path, timeout=deadline.for_request()) as watch:
                while not ready():
                    event = watch.next_event(timeout=deadline.left())
                    if event is None:
                        return False
                    while event is not None:  # One check serves all changes before it.
                        if deletion and event.kind == "deleted" and event.path == path:
                            return True
                        event = watch.next_event(timeout=0)
                return True
        except MetadataStoreError as error:
            passing = passes_anew(error)
            if passing and deadline.passed and not isinstance(error, StoreUnavailableError):
                return False
            if not passing or deadline.passed:
                raise
            log.info("a barrier is looked at again", path=path, reason=str(error))
        time.sleep(deadline.within(_BACKOFF.pause(attempts)))
        attempts += 1


def _prefix(number: int) -> str:
    return f"{number:010d}-"
