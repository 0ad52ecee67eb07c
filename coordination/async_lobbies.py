# async:
# `_sync/lobbies.py` is generated from this file: after a change, run `python tools/faces.py`.
# end
"""The line of contenders for one path, as one store sees it: the base of locks and elections.

Each contender puts an ephemeral sequential value below the path, and waits for those before it, one
at a time. If the same store has contenders before it, it first waits for the last of those, without
any request. Then it waits for its nearest remaining predecessor, by watching that one value. So the
end of a value wakes one contender, however many wait. A contender of a semaphore, whose turn comes
when any of its predecessors leave, watches the whole line instead.

A read of the line serves all contenders of the store that it shows: those before them were created
earlier, so the read shows all that they will ever wait for.

A contender holds the path only after the values of its predecessors are gone. Holding it as soon as
a predecessor of the same store begins its release would save a round trip, but fenced writes of
that predecessor might still be on their way, and would take effect.

The lobby creates one value at a time. Values created in one batch would share a revision, which
could then not serve as a fencing token.
"""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import Awaitable, Callable
from typing import Final

from ..batching import AsyncMetadataStore
from ..batching.async_background import AsyncGate, AsyncSignal
from ..ops.backoff import Backoff
from ..ops.errors import (
    InvalidSettingError,
    MetadataStoreError,
    SessionLostError,
    passes,
    passes_anew,
)
from ..ops.paths import check_path
from .async_claims import AsyncClaim, async_warden
from .async_kinds import async_check_store
from .contenders import Contender, Need, Participant, blocking, differs, line_of, parse, turns
from .deadlines import Deadline

__all__ = ["AsyncLobby", "async_lobby"]

# No contender has a smaller number than 0.
_NONE: Final = -1
# Between two attempts to enter the line, or to read it.
_BACKOFF: Final = Backoff(first=0.05, longest=2.0)
# Between two checks whether the session is certain to be there. They need no request.
_CERTAIN: Final = Backoff(first=0.01, longest=0.1)


class AsyncLobby:
    """The line of contenders for one path. :func:`async_lobby` returns it."""

    def __init__(self, store: AsyncMetadataStore, path: str) -> None:
        self.store = store
        self.path = path
        self._warden = async_warden(store)
        self._entrance = AsyncGate()
        self._lock = threading.RLock()  # guards the following fields
        # Of this store, by the heads of their names, until their values are gone.
        self._claims: dict[str, AsyncClaim] = {}
        # The line up to a number: those whom the last read has shown, and the store's own after
        # them, without those that are known to be gone.
        self._line: list[Contender] = []
        self._up_to = _NONE
        # ZooKeeper, which lacks this, counts from 0 again below a path that was deleted meanwhile.
        self._counts_on = "linearizable_reads" in store.capabilities

    async def claim(
        self,
        need: Need,
        value: bytes,
        deadline: Deadline,
        *,
        wait: bool = True,
        waits: Callable[[AsyncClaim], Awaitable[None]] | None = None,
    ) -> AsyncClaim | None:
        """Wait in line until the turn comes, and then hold the path.

        Args:
            need: when the turn comes.
            value: the value that others see.
            deadline: of the waiting. Each request also has the time that is left, but at least a
                second.
            wait: whether to stay in line if the turn does not come at once.
            waits: receives the claim if it has to wait for a predecessor.

        Returns:
            the claim, which is held; or ``None`` if its turn has not come in time.

        Raises:
            InvalidSettingError: the semaphore is in use with another limit.
            MetadataStoreError: a request has failed. The contender has left the line, or will soon.
        """
        self.store.session  # noqa: B018 - it raises in a forked process, whose locks may be held
        claim = AsyncClaim(self.store, self._warden, self.path, need, value, self._forget)
        with self._lock:
            self._claims[claim.head] = claim
        deadline.wake = lambda: claim.wake()  # noqa: PLW0108 - it changes
        try:
            held = await self._stand(claim, deadline, wait, waits)
        except InvalidSettingError:  # Its value must be gone before another one looks at the line.
            await claim.release(deadline.for_request())
            raise
        except BaseException:
            claim.lose()
            raise
        if held:
            return claim
        await claim.release(deadline.for_request())
        return None

    async def claim_patiently(
        self, need: Need, value: bytes, deadline: Deadline, *, wait: bool = True
    ) -> AsyncClaim | None:
        """Like ``claim``, but wait out outages and lost sessions, at the end of the line.

        Raises:
            MetadataStoreError: a request has failed permanently, or until the deadline, or ``wait``
                is ``False``.
        """
        attempts = 0
        while True:
            try:
                return await self.claim(need, value, deadline, wait=wait)
            except MetadataStoreError as error:
                passing = passes_anew(error)
                if not (passing and wait) or deadline.passed:
                    raise
            await _pause(deadline, deadline, _BACKOFF.pause(attempts))
            attempts += 1

    async def first_value(self, timeout: float | None = None) -> bytes | None:
        """Return the value of the first in line, or ``None`` if the line is empty.

        ``timeout`` applies to each request.
        """
        names = await self.store.get_children(self.path, timeout=timeout)
        for contender in line_of(names):
            found = await self.store.get(f"{self.path}/{contender.name}", timeout=timeout)
            if found is not None:  # Otherwise it has just left.
                return found.value
        return None

    async def participants(self, n: int) -> list[Participant]:
        """Return those in line, in their order. ``n`` is the limit of those whose names show none.

        One that leaves while the line is read is missing.
        """
        line = line_of(await self.store.get_children(self.path))
        found = await self.store.get_many([f"{self.path}/{other.name}" for other in line])
        there = [(other, its) for other, its in zip(line, found, strict=True) if its is not None]
        holding = turns([other for other, _ in there], n)
        return [
            Participant(value, stat.path, holds, stat.owned, stat.created)
            for (_, (value, stat)), holds in zip(there, holding, strict=True)
        ]

    async def _stand(
        self,
        claim: AsyncClaim,
        deadline: Deadline,
        wait: bool,
        waits: Callable[[AsyncClaim], Awaitable[None]] | None,
    ) -> bool:
        """Create the value of a claim, and wait for its turn; return whether it holds the path."""
        if not await self._entrance.enter(deadline.left()):
            return False
        try:
            if deadline.cancelled:
                return False
            await claim.create(deadline.for_request())
            self._enter(claim)
        finally:
            self._entrance.leave()
        try:
            self._warden.guard(claim)
        except BaseException:  # For example, no thread can be started.
            await claim.release(deadline.for_request())
            raise
        return await self._wait(claim, deadline, wait, waits) and await self._hold(claim, deadline)

    async def _hold(self, claim: AsyncClaim, deadline: Deadline) -> bool:
        """Hold the path as soon as the session is certainly alive.

        After an outage, the turn may come before the first keep-alive.
        """
        attempts = 0
        while True:
            if claim.ended or not claim.same_session:
                raise SessionLostError(
                    f"the session ended while this contender stood in line for {self.path}, "
                    "or somebody has deleted its value",
                    path=self.path,
                )
            if claim.begin():
                return True
            if deadline.passed:
                return False
            await asyncio.sleep(deadline.within(_CERTAIN.pause(attempts)))
            attempts += 1

    def _enter(self, claim: AsyncClaim) -> None:
        """Add a claim to the known line, unless there may be others in between."""
        assert claim.contender is not None
        with self._lock:
            if claim.number == self._up_to + 1 and (self._counts_on or self._stays()):
                self._line.append(claim.contender)
                self._up_to = claim.number

    def _stays(self) -> bool:
        """Return, with the lock, whether a value of the known line certainly still exists.

        In that case, the path has not been deleted in the meantime.
        """
        return any(
            other.contender in self._line and not other.ended and other.same_session
            for other in self._claims.values()
        )

    def _leave(self, contender: Contender) -> None:
        """Note that a value is gone."""
        with self._lock:
            if contender in self._line:
                self._line.remove(contender)

    def _forget(self, claim: AsyncClaim, gone: bool) -> None:
        self._warden.dismiss(claim)
        if gone and claim.contender is not None:
            self._leave(claim.contender)
        with self._lock:
            self._claims.pop(claim.head, None)
            behind, claim.behind = claim.behind, set()
        for woken in behind:
            woken.set()

    # --- waiting

    async def _wait(
        self,
        claim: AsyncClaim,
        deadline: Deadline,
        wait: bool,
        waits: Callable[[AsyncClaim], Awaitable[None]] | None,
    ) -> bool:
        """Wait until the turn of a claim has come, or it has ended; return ``False`` if neither."""
        must_read, failures = not claim.certain, 0
        while not claim.ended:
            try:
                before = None if must_read else self._known(claim)
                if before is None or (before and not wait):
                    before = await self._read_line(claim, deadline)
                    failures = 0
                if not before:
                    break
                if not wait or deadline.passed:
                    return False
                if waits is not None:
                    await waits(claim)
                    waits = None
                must_read = not await self._until_left(claim, before, deadline)
                if deadline.passed:
                    return self._known(claim) == []
            except MetadataStoreError as error:
                if claim.ended or deadline.cancelled:  # This may be the end of its watch.
                    break
                if not (wait and passes(error)) or deadline.passed:
                    raise
                await _pause(claim, deadline, _BACKOFF.pause(failures))
                failures += 1
                must_read = True
        return not deadline.cancelled

    def _known(self, claim: AsyncClaim) -> list[Contender] | None:
        """Return the claims to wait for, or ``None`` if the line must be read to know them.

        If the store has contenders before it, it must first wait for the last of them. Only then do
        others count.
        """
        number, need = claim.number, claim.need
        with self._lock:
            if any(differs(other, need) for other in self._line if other.number < number):
                return None  # They may have left: only a read of the line is a reason to refuse.
            before = blocking(self._line, number, need) if claim.contender in self._line else None
            if before != [] and need.limit == 1:
                contenders = [other.contender for other in self._claims.values()]
                own = blocking(sorted(filter(None, contenders)), number, need)
                before = own[-1:] or before
            return before

    async def _read_line(self, claim: AsyncClaim, deadline: Deadline) -> list[Contender]:
        """Read the line; return those before a claim that it must wait for."""
        # A late answer is harmless: those before the claim can only leave.
        names = await self.store.get_children(self.path, timeout=deadline.for_request())
        line = line_of(names)
        if claim.contender not in line:
            claim.vanish()
            return []
        if differs(line[0], claim.need):
            raise InvalidSettingError(
                f"the semaphore {self.path} is in use with n={line[0].n}, not {claim.need.n}: all "
                "that use it at a time must give the same n. Give that one, or change it in all "
                "clients while nobody holds the semaphore or waits for it",
                path=self.path,
            )
        with self._lock:
            self._line, self._up_to = line, line[-1].number
        return blocking(line, claim.number, claim.need)

    async def _until_left(
        self, claim: AsyncClaim, before: list[Contender], deadline: Deadline
    ) -> bool:
        """Wait until some of those before a claim have left; return whether they are known."""
        if claim.need.limit > 1:
            return await self._until_few(claim, deadline)
        last = before[-1]
        with self._lock:
            own = self._claims.get(last.head)
            if own is not None:
                woken = AsyncSignal()
                own.behind.add(woken)
        if own is not None:
            claim.wake = woken.set
            try:
                if not claim.ended:  # It may have ended before ``wake`` was set.
                    await woken.wait(deadline.left())
            finally:
                with self._lock:
                    own.behind.discard(woken)
            return True
        gone = await self._until_deleted(claim, f"{self.path}/{last.name}", deadline)
        if gone:
            self._leave(last)
        # Usually, the others have left before the last one.
        return gone and len(before) == 1

    async def _until_deleted(self, claim: AsyncClaim, path: str, deadline: Deadline) -> bool:
        """Wait until a value is gone; return ``False`` if that is uncertain."""
        begun, looks = self.store._watch_deletion(path, deadline.for_request())
        async with begun as watch:
            claim.wake = watch.close
            gone = not (looks or await self.store.exists(path, timeout=deadline.for_request()))
            while not (gone or claim.ended):
                event = await watch.next_event(timeout=deadline.left())
                if event is None or event.kind == "gap":
                    return False
                gone = event.kind == "deleted" and event.path == path
        return gone

    async def _until_few(self, claim: AsyncClaim, deadline: Deadline) -> bool:
        """Wait until few enough are before a claim; return whether its turn has come."""
        async with self.store.watch(self.path, timeout=deadline.for_request()) as watch:
            claim.wake = watch.close
            before = await self._read_line(claim, deadline)
            while before and not claim.ended:
                event = await watch.next_event(timeout=deadline.left())
                if event is None:
                    return False
                if event.kind == "gap":
                    before = await self._read_line(claim, deadline)
                elif event.kind == "deleted":
                    left = parse(event.path.rpartition("/")[2])
                    before = blocking(
                        [other for other in before if other != left], claim.number, claim.need
                    )
                    if left is not None:
                        self._leave(left)
        return True


async def _pause(waker: AsyncClaim | Deadline, deadline: Deadline, seconds: float) -> None:
    """Wait some seconds, or until ``wake`` is called, or the deadline has passed."""
    woken = AsyncSignal()
    waker.wake = woken.set
    await woken.wait(deadline.within(seconds))


# Guards the table.
_lock = threading.RLock()
_lobbies: Final[
    weakref.WeakKeyDictionary[AsyncMetadataStore, weakref.WeakValueDictionary[str, AsyncLobby]]
] = weakref.WeakKeyDictionary()


def async_lobby(store: AsyncMetadataStore, path: str) -> AsyncLobby:
    """Return the lobby of a store for a path.

    Raises:
        InvalidPathError: the path is not valid.
        UnsupportedError: the store lacks a capability that the lobby needs.
    """
    async_check_store(store, "a lock or an election", "ephemerals", "sequences", "watches")
    check_path(path)
    with _lock:
        lobbies = _lobbies.setdefault(store, weakref.WeakValueDictionary())
        lobby = lobbies.get(path)
        if lobby is None:
            lobby = lobbies[path] = AsyncLobby(store, path)
        return lobby


def _renew_lock() -> None:
    # A thread of the parent may have held the lock at the moment of the fork.
    global _lock  # noqa: PLW0603
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_renew_lock)
