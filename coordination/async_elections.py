# async:
# `_sync/elections.py` is generated from this file: after a change, run `python tools/faces.py`.
# end
"""Leader election: one of several candidates leads, and knows when it no longer does.

A candidate waits in the line of a lobby, like a lock, but in the background: its own task (for
threads: its own thread) keeps it there from the first campaign until it resigns. The first in line
leads.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Final, Literal, Self, TypeVar

from ..batching import AsyncMetadataStore
from ..batching.async_background import AsyncSignal, async_spawn
from ..batching.async_listeners import AsyncListener, still_open
from ..ops.backoff import Backoff
from ..ops.errors import (
    LockBusyError,
    LockCancelledError,
    LockLostError,
    MetadataStoreError,
    StoreClosedError,
    passes_anew,
)
from ..ops.log import get_logger
from ..ops.operations import check_value
from ..ops.sessions import SessionState
from .async_claims import AsyncClaim
from .async_holds import AsyncHold
from .async_leaders import AsyncLeaderWatch
from .contenders import EXCLUSIVE, Participant
from .deadlines import Deadline

__all__ = ["AsyncElection", "AsyncElectionListener"]

log = get_logger("batchkeeper.coordination")

_BACKOFF: Final = Backoff(first=0.05, longest=2.0)
# Seconds for each request after the timeout of a campaign.
_GRACE: Final = 2.0
# Seconds until a leader whose time has passed has certainly noticed it.
_NOTICE: Final = 0.01

_T = TypeVar("_T")

ElectionEvent = Literal["leading", "following", "lost"]

# async:
AsyncElectionCallback = Callable[[ElectionEvent], Awaitable[None] | None]
# sync:
# | ElectionCallback = Callable[[ElectionEvent], None]
# end


class AsyncElectionListener(AsyncListener[ElectionEvent]):
    """A listener of an election. Close it to get no more events; it is also a context manager."""

    def forget_untrue(self) -> None:
        """Drop the pending events that a resignation has made obsolete."""
        with self._lock:
            while self._waiting and self._waiting[-1] != "lost":
                self._waiting.pop()


class _Candidacy:
    """A candidacy, from the first campaign to a resignation. The election's lock guards it.

    Attributes:
        claim: the current claim, once it waits in line or leads.
        elected: set when it leads, or when it is over. Each loss creates a new one.
        over: set when it has ended.
        error: the error that ended it, unless the candidate ended it.
        campaigns: the calls of ``campaign`` that wait.
        kept: whether it continues when no campaign waits.
    """

    def __init__(self) -> None:
        self.claim: AsyncClaim | None = None
        self.elected = AsyncSignal()
        self.over = AsyncSignal()
        self.error: Exception | None = None
        self.campaigns = 0
        self.kept = False


class AsyncElection(AsyncHold):
    """An election: at most one of its candidates leads at a time, across processes.

    A candidate that has led once, or that called :meth:`stand`, remains a candidate until
    :meth:`resign` or :meth:`close`: if it loses its session or its value is deleted, it stands
    again automatically, at the end of the line. An outage shorter than the session changes nothing.

    By the clock of this process, :meth:`is_leader` turns false before another candidate can lead,
    unless the leader's value is deleted by hand: both candidates notice that a moment later. A
    process that pauses just after it has called ``is_leader`` may still act alongside the next
    leader. So fence its writes: :func:`fenced`, :meth:`check`, ``fencing_token``.

    One object has one place in line. Any thread may use it. It is also a context manager, which
    closes it at the end; entering the block does not start a campaign.

    Args:
        store: the store, with the capabilities ``"ephemerals"``, ``"sequences"`` and ``"watches"``.
        path: the path of the election. Values below it are its candidates; put nothing else there.
        value: bytes that the others see while this candidate leads, such as its address.

    Raises:
        InvalidPathError: the path is not valid.
        UnsupportedError: the store lacks a capability.
    """

    def __init__(self, store: AsyncMetadataStore, path: str, value: bytes = b"") -> None:
        super().__init__(store, path, value)
        self._closed = False
        # The lock guards the following fields, too, the candidacy, and the order of the events.
        self._candidacy: _Candidacy | None = None
        self._listeners: tuple[AsyncElectionListener, ...] = ()
        self._last_event: ElectionEvent | None = None  # the last event sent to listeners

    def is_leader(self) -> bool:
        """Return whether this candidate certainly leads at this moment, without a request."""
        return self.held_until() > time.monotonic()

    async def campaign(self, timeout: float | None = None) -> None:
        """Stand for election, and wait until this candidate leads; return at once if it does.

        Outages and lost sessions are waited out.

        Args:
            timeout: seconds to wait; unlimited by default. After a timeout or a cancelled call, the
                candidacy ends, unless another call needs it: :meth:`stand`, an earlier successful
                :meth:`campaign`, or one that waits in another thread. An election takes two
                requests, so 0 is too short.

        Raises:
            LockBusyError: another candidate led for ``timeout`` seconds. It has the leader's value.
            LockCancelledError: :meth:`cancel` was called in the meantime.
            LockLostError: :meth:`resign` was called in the meantime.
            StoreClosedError: the store or this object is closed.
            MetadataStoreError: a request has failed permanently.
        """
        deadline = Deadline(timeout)
        candidacy = self._begin(campaign=True)
        try:
            elected = await self._elected(candidacy, deadline)
        except BaseException:
            claim = self._end_campaign(candidacy, kept=False)
            if claim is not None:
                claim.lose()
            raise
        claim = self._end_campaign(candidacy, kept=elected)
        if claim is not None:
            await claim.release(_GRACE)
        if not elected:
            raise await self._busy(timeout)

    async def run(
        self, call: Callable[[AsyncSignal], Awaitable[_T]], timeout: float | None = None
    ) -> _T:
        """Lead once: wait for the leadership, call a function, resign, and return its result.

        One object has one candidacy: of calls that share it, the first to end resigns for all.

        Args:
            call: receives ``lost`` of this term, which is set when the term is over. It should then
                return soon: another candidate may lead already, or this one, in a later term.
            timeout: as for :meth:`campaign`.

        Raises:
            LockLostError: the term was over before the function returned.
            MetadataStoreError: as for :meth:`campaign` and :meth:`resign`. After an exception of
                the function, which is passed on, an error of ``resign`` is only logged.
        """
        await self.campaign(timeout)
        claim = self._claim
        if claim is None:  # Somebody has resigned meanwhile.
            raise self._not_held()
        try:
            result = await call(claim.lost)
        except BaseException:
            try:
                await self.resign()
            except MetadataStoreError as failure:
                log.info("a leader did not resign", path=self.path, reason=str(failure))
            raise
        held = claim.held_until() > time.monotonic()
        await self.resign()
        if not held:
            raise claim.loss()
        return result

    def stand(self) -> None:
        """Stand for election in the background, without waiting; see :meth:`add_listener`.

        Raises:
            StoreClosedError: the store or this object is closed.
        """
        self._begin(campaign=False)

    def cancel(self) -> None:
        """Leave the line, unless this candidate leads, from any thread or task.

        Calls of :meth:`campaign` that wait end at once, with ``LockCancelledError``, and
        :meth:`stand` is over. A leader stays. When this call has returned, this object does not
        become the leader before it stands again.
        """
        self._store._check_caller()
        with self._lock:
            candidacy = self._candidacy
            if candidacy is None or self.is_leader():
                return
            why = f"the candidacy for {self.path} was cancelled"
            claim = self._finish(candidacy, LockCancelledError(why, path=self.path))
        if claim is not None:
            claim.lose()

    async def resign(self) -> None:
        """Give up the leadership, or the candidacy. The next in line leads.

        Without a candidacy, the call does nothing. This object can stand again afterwards. If no
        server answers, its value is removed in the background. Until then, no other candidate can
        lead, but at most until the end of the session. The call never removes the value of another
        candidate.

        Raises:
            MetadataStoreError: the value cannot be removed, for example for lack of permission.
        """
        try:
            self._store._check_caller()
        except StoreClosedError:
            return
        with self._lock:
            candidacy = self._candidacy
        claim = None if candidacy is None else self._end(candidacy)
        if claim is not None:
            with suppress(StoreClosedError):  # The session has ended with its store.
                await claim.release()

    async def close(self) -> None:
        """Resign permanently, and close the listeners. A second call does nothing.

        Raises:
            MetadataStoreError: as for :meth:`resign`.
        """
        with suppress(StoreClosedError):  # a forked process, where `resign` does nothing
            self._store._check_caller()
        self._closed = True
        for listener in self._listeners:
            listener.close()
        await self.resign()

    async def update(self, value: bytes) -> None:
        """Change the value that other clients see, without a new election.

        A candidate that waits keeps its place, too, unless its value is just being created. After a
        failure whose outcome is unknown, this candidate uses the new value when it stands again.

        Raises:
            MetadataStoreError: the put has failed; see its ``outcome``.
        """
        value = check_value(value)
        self._state()
        with self._lock:
            self._value = value
            claim = None if self._candidacy is None else self._candidacy.claim
        if claim is not None:
            try:
                with suppress(LockLostError):  # It stands again, with the new value.
                    await claim.update(value)
            except MetadataStoreError as error:
                if error.outcome == "not_applied":
                    self._agree(claim)
                raise
            self._agree(claim)

    def _agree(self, claim: AsyncClaim) -> None:
        """Restore the value that others see, after an update that failed or was overtaken."""
        with self._lock:
            if not claim.ended:
                self._value = claim.value

    async def leader(self) -> bytes | None:
        """Return the current leader's value, or ``None`` if no candidate leads.

        On ZooKeeper, the answer may lag behind other sessions: call ``store.sync()`` before.

        Raises:
            MetadataStoreError: the store cannot be read.
        """
        return await self._lobby.first_value()

    async def candidates(self) -> list[Participant]:
        """Return the candidates, the leader first; see :meth:`Lock.contenders`."""
        return await self._lobby.participants(1)

    def observe(self) -> AsyncLeaderWatch:
        """Iterate over the leader's values: first the current one, then one for each change."""
        return AsyncLeaderWatch(self._store, self.path)

    def add_listener(self, callback: AsyncElectionCallback) -> AsyncElectionListener:
        """Call a function each time the state of this candidate changes.

        It receives one of these strings. ``"leading"``: it leads. ``"following"``: it is a
            candidate, and another one leads. ``"lost"``: it has lost the leadership involuntarily.
            ``"lost"`` comes before another candidate can lead, as far as the clock of this process
            allows; ``is_leader()`` and ``lost`` are exact. A resignation causes no event, and drops
            pending events that it makes obsolete.

        Each listener has its own task (for threads: its own thread) while events are pending. So it
        may block, wait, and call this object, and delays only its own later events. Its exceptions
        are logged. A listener gets only events that happen after it was added.

        Raises:
            InvalidSettingError: ``callback`` is not a function, or for threads a coroutine
                function.
        """
        listener = AsyncElectionListener(self.path, callback)
        self._state()
        with self._lock:
            self._listeners = (*still_open(self._listeners), listener)
        return listener

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.path!r}{' leading' if self.is_leader() else ''}>"

    # --- the candidacy

    def _begin(self, *, campaign: bool) -> _Candidacy:
        """Return the candidacy; start one if there is none."""
        if self._state() == "closed":
            raise StoreClosedError(f"the store is closed: {self._store!r}", path=self.path)
        with self._lock:
            if self._closed:
                raise self._closed_error()
            candidacy = self._candidacy or _Candidacy()
            begin, self._candidacy = candidacy is not self._candidacy, candidacy
            if campaign:
                candidacy.campaigns += 1
            else:
                candidacy.kept = True
        if begin:
            try:
                async_spawn(f"candidate for {self.path}", self._run, candidacy)
            except BaseException:  # No thread is left.
                self._end(candidacy)
                raise
        return candidacy

    def _end(self, candidacy: _Candidacy, error: Exception | None = None) -> AsyncClaim | None:
        """End a candidacy, unless it has ended; return the claim to release."""
        with self._lock:
            return self._finish(candidacy, error)

    def _end_campaign(self, candidacy: _Candidacy, *, kept: bool) -> AsyncClaim | None:
        """End the wait of a campaign, and the candidacy too if no other call needs it."""
        with self._lock:
            candidacy.campaigns -= 1
            candidacy.kept |= kept
            wanted = candidacy.kept or candidacy.campaigns
            return None if wanted else self._finish(candidacy, None)

    def _finish(self, candidacy: _Candidacy, error: Exception | None) -> AsyncClaim | None:
        """Do as ``_end``, with the lock."""
        if self._candidacy is not candidacy:
            return None
        candidacy.error = error
        candidacy.over.set()
        candidacy.elected.set()
        self._candidacy = self._claim = self._last_event = None
        for listener in self._listeners:
            listener.forget_untrue()
        return candidacy.claim

    async def _elected(self, candidacy: _Candidacy, deadline: Deadline) -> bool:
        """Wait until this candidate leads; return whether it does."""
        while True:
            with self._lock:
                elected = candidacy.elected
            if not await elected.wait(deadline.left()):
                return False
            if candidacy.over.is_set():
                raise self._why_over(candidacy)
            if self.is_leader():
                return True
            # It has just lost, and is about to notice it.
            if deadline.passed:
                return False
            await asyncio.sleep(deadline.within(_NOTICE))

    async def _run(self, candidacy: _Candidacy) -> None:
        """Keep a candidate in the line until its candidacy is over."""
        try:
            await self._stand(candidacy)
        except Exception as error:
            if not isinstance(error, StoreClosedError):
                log.exception("a candidacy has failed", path=self.path)
            claim = self._end(candidacy, error)
            if claim is not None:
                claim.lose()

    async def _stand(self, candidacy: _Candidacy) -> None:
        failures = 0
        waits = partial(self._follow, candidacy)
        while not candidacy.over.is_set():
            try:
                claim = await self._lobby.claim(EXCLUSIVE, self._value, Deadline(None), waits=waits)
            except MetadataStoreError as error:
                if candidacy.over.is_set():
                    return
                if not passes_anew(error):
                    raise
                await candidacy.over.wait(_BACKOFF.pause(failures))
                failures += 1
                continue
            assert claim is not None
            failures = 0
            if not self._lead(candidacy, claim):
                await _give_up(claim)
                continue
            claim.follow()
            await claim.lost.wait()
            self._lose(candidacy)

    async def _follow(self, candidacy: _Candidacy, claim: AsyncClaim) -> None:
        """Take over a claim that waits in line."""
        with self._lock:
            fits = self._take(candidacy, claim)
            begun = self._notify("following") if fits else []
        if fits:
            claim.follow()
        else:
            await _give_up(claim)
        _start(begun)

    def _lead(self, candidacy: _Candidacy, claim: AsyncClaim) -> bool:
        """Begin a term; return whether it is still wanted."""
        with self._lock:
            if claim.ended or not self._take(candidacy, claim):
                return False
            self._claim = claim
            begun = self._notify("leading")
        candidacy.elected.set()
        _start(begun)
        return True

    def _lose(self, candidacy: _Candidacy) -> None:
        """End a term, unless the candidacy is over, too."""
        with self._lock:
            if candidacy.over.is_set():
                return
            candidacy.elected = AsyncSignal()
            begun = self._notify("lost")
        _start(begun)

    def _take(self, candidacy: _Candidacy, claim: AsyncClaim) -> bool:
        """Take over a claim, with the lock; return whether it is still wanted."""
        if candidacy.over.is_set():
            return False
        if candidacy.claim is claim:
            return True
        if claim.value != self._value:  # It was updated meanwhile.
            return False
        candidacy.claim = claim
        return True

    def _notify(self, event: ElectionEvent) -> list[AsyncElectionListener]:
        """Pass an event on, with the lock; return the listeners that must be started."""
        if event == self._last_event:
            return []
        self._last_event = event
        return [listener for listener in self._listeners if listener.add(event)]

    def _state(self) -> SessionState:
        """Return the state of the session, before anything takes the lock.

        Raises:
            StoreClosedError: this is a forked process, where the lock may be held forever.
        """
        return self._store.session.state

    # --- errors

    async def _busy(self, timeout: float | None) -> LockBusyError:
        try:
            value = await self._lobby.first_value(_GRACE)
        except MetadataStoreError:
            value = None
        why = f"this candidate did not lead {self.path} within {timeout} s"
        return LockBusyError(why, path=self.path, value=value)

    def _why_over(self, candidacy: _Candidacy) -> Exception:
        error = candidacy.error
        if error is not None:
            return error.for_path(self.path) if isinstance(error, MetadataStoreError) else error
        if self._closed:
            return self._closed_error()
        return LockLostError(f"the candidacy for {self.path} has ended: resigned", path=self.path)

    def _closed_error(self) -> StoreClosedError:
        return StoreClosedError(f"the election is closed: {self.path}", path=self.path)

    def _not_held(self) -> LockLostError:
        return LockLostError(f"this candidate does not lead {self.path}", path=self.path)


async def _give_up(claim: AsyncClaim) -> None:
    """Leave the line before the next claim, which would wait for this one, and show its value."""
    with suppress(MetadataStoreError):  # It is tried again in the background.
        await claim.release()


def _start(listeners: list[AsyncElectionListener]) -> None:
    for listener in listeners:
        listener.start()
