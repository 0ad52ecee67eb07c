# Made from async_claims.py by `python tools/faces.py`: change that file, and run this command.
"""One contender of this process for one path, and whether it may still act as the holder.

A claim holds for certain only while the session in which its value was created cannot have ended.
Three things end it, whichever comes first:

- the clock: ``session.valid_until()`` has passed. The server may have ended the session, and
  another client may hold the path;
- the session: the store reports that it has ended;
- the value: it was deleted by hand.

A warden checks the first two for all claims of a store. The third is detected when the line or the
value is read; a claim that must know it at once watches its own value. A lost claim never holds
again, even if its value still exists: the warden removes the value.
"""

from __future__ import annotations

import math
import os
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from ...batching import MetadataStore
from ...batching.background import Gate, Signal, spawn
from ...ops.backoff import Backoff
from ...ops.errors import (
    BadVersionError,
    LockLostError,
    MetadataStoreError,
    NotEmptyError,
    NotFoundError,
    passes,
)
from ...ops.log import get_logger
from ...ops.operations import Check
from ...ops.results import Stat, WatchEvent
from ...ops.sessions import SessionEvent
from ..contenders import Contender, Need, new_head, parse
from .conflicts import Conflicts
from .following import Follower

__all__ = ["Claim", "Warden", "warden"]

log = get_logger("batchkeeper.coordination")

# Seconds between two checks of the session while nothing else wakes the warden. Closing a store
# causes no session event, so this is how soon its claims are lost.
_CHECK: Final = 0.25
# The number of checks after which a warden without claims ends. Otherwise, each briefly held lock
# would start a new thread.
_EMPTY: Final = 20
# Between two attempts to remove values.
_BACKOFF: Final = Backoff(first=0.05, longest=2.0)
# Seconds of search for a value whose creation had no answer, from the first answer to the search. A
# request on its way takes effect within that time, if ever.
_SEARCH: Final = 30.0


class Claim:
    """One contender of this process.

    Args:
        store: the store.
        warden: the store's warden.
        path: the path below which its value is.
        need: when its turn comes.
        value: the value that others see.
        forget: called once at its end: with ``True`` when its value is gone, or with ``False`` if
            its value cannot be removed, and ends with its session.

    Attributes:
        need: when its turn comes.
        head: the beginning of its name.
        contender: its name and number, or ``None`` until they are known.
        value: the value that others see.
        stat: the stat of its creation, or ``None`` before. Its revision is the fencing token.
        version: the version of its value, as far as it is known.
        lost: set when it has ended.
        wake: wakes the call that waits for its turn.
        behind: functions that wake the claims behind it. The lobby's lock guards it.
        held: whether it holds the path. The warden may notice a loss late; ``held_until`` is exact.
        ended: whether it was released, lost or withdrawn, so that it never holds again.
        sent: whether its value was created, or may have been.
        certain: whether the session of its value is known without a read of the line.
    """

    def __init__(
        self,
        store: MetadataStore,
        warden: Warden,
        path: str,
        need: Need,
        value: bytes,
        forget: Callable[[Claim, bool], None],
    ) -> None:
        self._store = store
        self._warden = warden
        self._path = path
        self._forget = forget
        self._session: str | None = None
        self._sought: float | None = None  # since when servers answer the search for its value
        self._follower: Follower | None = None  # of its own value
        self._updating = Gate()
        self._lock = threading.RLock()  # guards the changes of `held` and `ended`
        self.need = need
        self.head = new_head(need)
        self.contender: Contender | None = None
        self.value = value
        self.stat: Stat | None = None
        self.version = 0
        self.lost = Signal()
        self.wake: Callable[[], object] = bool  # which does nothing
        self.behind: set[Signal] = set()
        self.held = False
        self.ended = False
        self.sent = False
        self.certain = False

    @property
    def number(self) -> int:
        """Its number in the line, after its creation."""
        assert self.contender is not None
        return self.contender.number

    def create(self, timeout: float | None) -> None:
        """Create its value. Each request has ``timeout`` seconds.

        Raises:
            MetadataStoreError: a request has failed. ``sent`` says whether the value may exist.
        """
        # The value belongs to this session if the session is the same afterwards.
        session = self._store.session.id
        self.sent = True
        try:
            stat = self._store.put(
                f"{self._path}/{self.head}",
                self.value,
                ephemeral=True,
                sequential=True,
                timeout=timeout,
            ).result()
        except MetadataStoreError as error:
            self.sent = error.outcome == "unknown"
            raise
        self.contender = parse(stat.path.rpartition("/")[2])
        self.stat = stat
        # Without a session before, the put has begun one. That one may have ended again, and the
        # store may have another by now: only a read of the line that finds the value excludes it.
        self.certain = session is not None
        self._session = session or self._store.session.id

    @property
    def same_session(self) -> bool:
        """Whether the session in which its value was created is still the store's session."""
        try:
            return self._session is not None and self._store.session.id == self._session
        except MetadataStoreError:  # This is a forked process.
            return False

    def valid_until(self) -> float:
        """Return the time before which its session cannot have ended; see ``Session``."""
        if self.ended:
            return -math.inf
        try:
            session = self._store.session
            until = session.valid_until()
        except MetadataStoreError:  # This is a forked process.
            return -math.inf
        # In this order: a new session's time must not count for the old one.
        return until if self.same_session else -math.inf

    def held_until(self) -> float:
        """Return the time before which no other client can hold the path, or ``-math.inf``."""
        return self.valid_until() if self.held else -math.inf

    def over(self, now: float) -> bool:
        """Return whether it has ended: by the clock if it is held, or with its session."""
        if self.held:
            return self.held_until() <= now
        return self.ended or not self.same_session

    def begin(self) -> bool:
        """Start to hold the path; return whether the session is certainly alive."""
        certain = self.valid_until() > time.monotonic()
        with self._lock:
            self.held = certain and not self.ended
            return self.held

    def end(self) -> bool:
        """End the hold; return whether this call has ended it. Any thread may call it.

        The caller that has ended it must remove its value.
        """
        first = self._mark_ended()
        self._tell_end()
        return first

    def _mark_ended(self) -> bool:
        with self._lock:
            first, self.ended, self.held = not self.ended, True, False
            return first

    def _tell_end(self) -> None:
        self.lost.set()
        self.wake()
        if self._follower is not None:
            self._follower.close()

    def follow(self) -> None:
        """End it as soon as its value is deleted, by a watch in the background."""
        if self._follower is not None:
            return
        assert self.stat is not None
        follower = Follower(
            self._store,
            self.stat.path,
            read=self._check_value,
            event=self._hear,
            ended=self._unseen,
        )
        follower.start()
        self._follower = follower
        if self.ended:  # It may have ended before the field was set.
            follower.close()

    def _check_value(self) -> None:
        if not self._store.exists(self.check().path).result():
            self.vanish()

    def _hear(self, event: WatchEvent) -> None:
        if event.kind == "deleted" and event.path == self.check().path:
            self.vanish()

    def _unseen(self, error: MetadataStoreError) -> None:
        log.info("a deletion would not be noticed", path=self._path, reason=str(error))

    def vanish(self) -> None:
        """End it, because its value is gone."""
        self._mark_ended()
        # Before its owner is told, who may stand again at once, and would wait for this one.
        self._forget(self, True)
        self._tell_end()

    def lose(self) -> None:
        """End it, and remove its value in the background, so that no caller waits."""
        if not self.end():
            return
        if self.sent:
            self._warden.withdraw(self)
        else:
            self._forget(self, True)

    def release(self, timeout: float | None = None) -> None:
        """End it, and remove its value; in the background if no server answers.

        Raises:
            MetadataStoreError: the value cannot be removed, for example for lack of permission.
        """
        if not self.end():
            return
        removed = not self.sent
        try:
            removed = removed or self._remove(timeout)
        finally:
            if removed:
                self._forget(self, True)
            else:
                self._warden.withdraw(self)

    def keep_removing(self) -> bool:
        """Try to remove its value; return whether there is nothing left to do."""
        gone = False
        try:
            gone = self._remove(None)
            if not gone:
                return False
        except MetadataStoreError as error:
            log.info("a value stays until its session ends", path=self._path, reason=str(error))
        except Exception:
            # A bug here must not keep the values of all other claims.
            log.exception("a value could not be removed", path=self._path)
        self._forget(self, gone)
        return True

    def _remove(self, timeout: float | None) -> bool:
        """Try to remove its value; return whether it is gone for good.

        Without an answer to its creation, its name is unknown, and it may appear later.
        """
        try:
            contender = self.contender or self._find(timeout)
            if contender is None:
                return self._sought is not None and time.monotonic() > self._sought + _SEARCH
            path = f"{self._path}/{contender.name}"
            try:
                self._store.delete(path, timeout=timeout).result()
            except NotEmptyError:
                # Another program has put values there by mistake. They must not block the line.
                log.warning("values below a contender are removed with it", path=path)
                self._store.delete_recursive(path, timeout=timeout).result()
        except NotFoundError:
            return True
        except MetadataStoreError as error:
            if not passes(error):
                raise
            return False
        return True

    def _find(self, timeout: float | None) -> Contender | None:
        """Look for its name."""
        for name in self._store.get_children(self._path, timeout=timeout).result():
            if name.startswith(self.head):
                self.contender = parse(name)
        if self._sought is None:
            self._sought = time.monotonic()
        return self.contender

    def update(self, value: bytes) -> None:
        """Change the value that others see.

        Raises:
            LockLostError: it has ended.
            MetadataStoreError: the put has failed; see its ``outcome``.
        """
        with self._updating:
            conflicts = Conflicts(self._store.operation_timeout, self._path)
            while refused := self._put(value):
                conflicts.pause(refused)
                self._read()

    def _put(self, value: bytes) -> BadVersionError | None:
        """Put a value; return the refusal if its version is not the known one."""
        path = self.check().path
        try:
            # Conditional: an unconditional put after a loss would leave a value without a session.
            stat = self._store.put(path, value, expected_version=self.version).result()
        except BadVersionError as refused:
            return refused
        except MetadataStoreError as error:
            if error.outcome == "unknown":
                with suppress(MetadataStoreError):
                    self._read()
            raise
        self.version, self.value = stat.version, value
        return None

    def _read(self) -> None:
        """Read its version, after an unanswered put or a put by another client."""
        found = self._store.get(self.check().path).result()
        if found is None:
            self.vanish()
            raise self.loss()
        self.version, self.value = found.stat.version, found.value

    def check(self) -> Check:
        """Return the condition that its value exists at its current version.

        Raises:
            LockLostError: it has ended.
        """
        if self.ended or self.stat is None:
            raise self.loss()
        return Check(self.stat.path, expected_version=self.version)

    def loss(self) -> LockLostError:
        """Return the error that says that it has ended."""
        return LockLostError(
            f"{self._path} was lost: its session has ended, or may have, or its value was deleted",
            path=self._path,
        )


class Warden:
    """Guards the claims of one store, on two background tasks.

    One task detects claims lost by the clock or with the session. The other removes the values of
    ended claims, and retries until they are gone or the session has ended.
    """

    def __init__(self, store: MetadataStore) -> None:
        self._lock = threading.RLock()  # guards the following fields
        self._claims: set[Claim] = set()
        self._watching = False
        self._leaving: list[Claim] = []
        self._removing = False
        self._more = Signal()  # that `_leaving` has grown, during a pause
        store.add_session_listener(self._hear)

    def guard(self, claim: Claim) -> None:
        """Guard a claim, from the creation of its value to its end."""
        with self._lock:
            self._claims.add(claim)
            if not self._watching:
                spawn("warden", self._watch)
                self._watching = True

    def dismiss(self, claim: Claim) -> None:
        """Stop guarding a claim."""
        with self._lock:
            self._claims.discard(claim)

    def withdraw(self, claim: Claim) -> None:
        """Remove the value of a claim that has ended."""
        with self._lock:
            self._leaving.append(claim)
            self._more.set()
        self._begin_removal()

    def _begin_removal(self) -> None:
        with self._lock:
            if self._removing or not self._leaving:
                return
            try:
                spawn("removal", self._remove)
            except RuntimeError:  # No thread is left. The next check retries.
                log.exception("values stay for now")
            else:
                self._removing = True

    def _watch(self) -> None:
        empty = 0
        while True:
            claims = self._end_lost()
            self._begin_removal()
            left = min((claim.held_until() for claim in claims if claim.held), default=math.inf)
            empty = 0 if claims else empty + 1
            with self._lock:
                if empty > _EMPTY and not self._claims:
                    self._watching = False
                    return
            time.sleep(min(max(left - time.monotonic(), 0.0), _CHECK))

    def _hear(self, _event: SessionEvent) -> None:
        self._end_lost()

    def _end_lost(self) -> list[Claim]:
        """End the claims that no longer hold; return those that hold or wait in line."""
        with self._lock:
            claims = list(self._claims)
        now = time.monotonic()
        over = [claim for claim in claims if claim.over(now)]
        for claim in over:
            claim.lose()
        with self._lock:
            self._claims.difference_update(over)
        return [claim for claim in claims if not claim.ended]

    def _remove(self) -> None:
        attempts = 0
        while True:
            with self._lock:
                leaving, self._leaving = self._leaving, []
                more = self._more = Signal()
                if not leaving:
                    self._removing = False
                    return
            for claim in leaving:
                if not claim.keep_removing():
                    with self._lock:
                        self._leaving.append(claim)
            with self._lock:
                if not self._leaving:
                    continue
            attempts = 0 if more.wait(_BACKOFF.pause(attempts)) else attempts + 1


# Guards the table. A warden refers to its store only through its claims.
_lock = threading.RLock()
_wardens: Final[weakref.WeakKeyDictionary[MetadataStore, Warden]] = weakref.WeakKeyDictionary()


def warden(store: MetadataStore) -> Warden:
    """Return the warden of a store."""
    with _lock:
        warden = _wardens.get(store)
        if warden is None:
            warden = _wardens[store] = Warden(store)
        return warden


def _renew_lock() -> None:
    # A thread of the parent may have held the lock at the moment of the fork.
    global _lock  # noqa: PLW0603
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_renew_lock)
