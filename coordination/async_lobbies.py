# async:
# `lobbies.py` is generated from this file: after a change, run `python tools/faces.py`.
# end
"""The contenders for one path, as one store sees them; locks and elections stand on it.

Each contender puts an ephemeral sequential value below the path. Its turn comes when the values
before it allow that. Who finds it free needs two requests: the creation, and one look at the line.
If it has to wait, the lobby begins one watch for all contenders of its store, and from then on a
creation is the only request of each: the events say who stands in line. A hand-over wakes the one
contender whose turn it is.

The lobby creates one value at a time. Values that were created in one batch would share a revision,
which could not serve as a fencing token then, nor give the order of events.
"""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import Callable, Iterable
from typing import Final

from ..batching import AsyncMetadataStore
from ..batching.checks import check_capability
from ..ops.backoff import Backoff
from ..ops.capabilities import Capability
from ..ops.errors import MetadataStoreError, SessionLostError, passes
from ..ops.paths import check_path
from ..ops.results import WatchEvent
from .async_background import AsyncGate
from .async_claims import AsyncClaim, async_warden
from .async_following import AsyncFollower
from .contenders import Contenders, Need, Place, parse
from .deadlines import Deadline

__all__ = ["AsyncLobby", "async_lobby"]

_NEEDED: Final[tuple[Capability, ...]] = ("ephemerals", "sequences", "watches")
# Seconds for which a lobby that nobody needs goes on watching.
_LINGER: Final = 5.0
# Between two attempts to stand in line.
_BACKOFF: Final = Backoff(first=0.05, longest=2.0)
# Between two looks whether the session is certain to be there. They need no request.
_CERTAIN: Final = Backoff(first=0.01, longest=0.1)


class AsyncLobby:
    """The line of contenders for one path. :func:`async_lobby` returns it."""

    def __init__(self, store: AsyncMetadataStore, path: str) -> None:
        self.store = store
        self.path = path
        self._warden = async_warden(store)
        self._entrance = AsyncGate()
        self._lock = threading.Lock()  # guards the following fields
        self._contenders = Contenders()
        self._claims: dict[Place, AsyncClaim] = {}  # of this process, until they have ended
        self._follower: AsyncFollower | None = None
        self._live = False  # whether `_contenders` is current

    async def claim(
        self,
        need: Need,
        value: bytes,
        deadline: Deadline,
        *,
        wait: bool = True,
        waits: Callable[[AsyncClaim], None] | None = None,
    ) -> AsyncClaim | None:
        """Stand in line until one's turn comes, and hold the path then.

        Args:
            need: when the turn comes.
            value: the value that others see.
            deadline: of the waiting. Each request also has the time that is left, but at least a
                second.
            wait: whether to stay in line if the turn has not come at once.
            waits: receives the claim if it has to wait, because somebody stands before it. With
                this, the line is read in any case.

        Returns:
            the claim, which is held; or ``None`` if its turn has not come in time.

        Raises:
            MetadataStoreError: a request has failed. The contender is not in the line any more, or
                will not be soon.
        """
        self.store.session  # noqa: B018 - it raises in a forked process, whose locks may be held
        claim = AsyncClaim(self.store, self._warden, self.path, need, value, self._forget)
        with self._lock:
            self._contenders.expect(claim.place)
            self._claims[claim.place] = claim
        try:
            held = await self._stand(claim, deadline, wait, waits)
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
            MetadataStoreError: a request has failed for good, or until the deadline, or ``wait`` is
                ``False``.
        """
        attempts = 0
        while True:
            try:
                return await self.claim(need, value, deadline, wait=wait)
            except MetadataStoreError as error:
                passing = passes(error) or isinstance(error, SessionLostError)
                if not (passing and wait) or deadline.passed:
                    raise
            await asyncio.sleep(deadline.within(_BACKOFF.pause(attempts)))
            attempts += 1

    async def release(self, claim: AsyncClaim, timeout: float | None = None) -> None:
        """Leave the line. If no server answers, the value is removed in the background.

        ``timeout`` applies to each request.

        Raises:
            MetadataStoreError: the value cannot be removed, for example for lack of permission.
        """
        await claim.release(timeout)

    async def first_value(self, timeout: float | None = None) -> bytes | None:
        """Return the value of the first in line, or ``None`` if nobody is there.

        ``timeout`` applies to each request.
        """
        names = await self.store.get_children(self.path, timeout=timeout)
        for contender in sorted(filter(None, map(parse, names))):
            found = await self.store.get(f"{self.path}/{contender.name}", timeout=timeout)
            if found is not None:  # Otherwise it has just left.
                return found.value
        return None

    async def _stand(
        self,
        claim: AsyncClaim,
        deadline: Deadline,
        wait: bool,
        waits: Callable[[AsyncClaim], None] | None,
    ) -> bool:
        """Create the value of a claim, and wait for its turn; return whether it holds the path."""
        if not await self._entrance.enter(deadline.left()):
            return False
        try:
            await claim.create(deadline.for_request())
        finally:
            self._entrance.leave()
        self._warden.guard(claim)
        if waits is not None or not (wait and self._live and claim.certain):
            await self._look(claim, deadline)
        if not claim.woken.is_set():
            if not wait or deadline.passed:
                return False
            self.follow()
            if waits is not None:
                waits(claim)
            if not await claim.woken.wait(deadline.left()):
                return False
        return await self._hold(claim, deadline)

    async def _look(self, claim: AsyncClaim, deadline: Deadline) -> None:
        """Read the line once, for a claim that no watch tells of it."""
        # An answer that comes late does no harm: those before the claim can only leave.
        names = await self.store.get_children(self.path, timeout=deadline.for_request())
        with self._lock:
            changed = self._contenders.look(claim.place, names)
        self._tell(changed)

    async def _hold(self, claim: AsyncClaim, deadline: Deadline) -> bool:
        """Hold the path, as soon as the session is certain to be there.

        After an outage, the news that it is one's turn may come before the first keep-alive.
        """
        attempts = 0
        while True:
            if claim.ended or not claim.same_session:
                raise SessionLostError(
                    f"the session ended while this contender stood in line for {self.path}, "
                    "or somebody has deleted its value",
                    path=self.path,
                )
            if claim.error is not None and not claim.place.front:
                raise claim.error.for_path(self.path) from claim.error.__cause__
            if claim.begin():
                return True
            if deadline.passed:
                return False
            await asyncio.sleep(deadline.within(_CERTAIN.pause(attempts)))
            attempts += 1

    def _forget(self, claim: AsyncClaim) -> None:
        self._warden.dismiss(claim)
        with self._lock:
            self._contenders.forget(claim.place)
            self._claims.pop(claim.place, None)

    # --- the view of the line

    def follow(self) -> None:
        """Begin to watch the line, unless that goes on already.

        It goes on while there is a claim, which then ends as soon as somebody deletes its value.
        """
        with self._lock:
            if self._follower is not None:
                return
            follower = AsyncFollower(
                self.store,
                self.path,
                read=self._read,
                event=self._hear,
                ended=self._end,
                idle=self._idle,
                linger=_LINGER,
            )
            follower.start()
            self._follower = follower

    async def _read(self) -> None:
        with self._lock:
            created = self._contenders.created()
        names = await self.store.get_children(self.path)
        with self._lock:
            self._live = True
            changed = self._contenders.replace(names, created)
        self._tell(changed)

    async def _hear(self, event: WatchEvent) -> None:
        parent, _, name = event.path.rpartition("/")
        if parent != self.path:
            return
        with self._lock:
            if event.kind == "created":
                changed = self._contenders.add(name)
            elif event.kind == "deleted":
                changed = self._contenders.remove(name)
            else:
                changed = []
        self._tell(changed)

    def _tell(self, changed: Iterable[Place]) -> None:
        """Tell claims, without the lock, that their turn has come or that they have ended."""
        for place in changed:
            claim = self._claims.get(place)
            if claim is None:
                continue
            if place.state == "gone":
                claim.vanish()
            else:
                claim.woken.set()

    def _idle(self) -> bool:
        with self._lock:
            if self._claims:
                return False
            self._follower, self._live = None, False
            return True

    def _end(self, error: MetadataStoreError) -> None:
        with self._lock:
            self._follower, self._live = None, False
            waiting = [claim for claim in self._claims.values() if not claim.held]
        for claim in waiting:
            claim.error = error
            claim.woken.set()


# Guards the table.
_lock = threading.Lock()
_lobbies: Final[
    weakref.WeakKeyDictionary[AsyncMetadataStore, weakref.WeakValueDictionary[str, AsyncLobby]]
] = weakref.WeakKeyDictionary()


def async_lobby(store: AsyncMetadataStore, path: str) -> AsyncLobby:
    """Return the lobby of a store for a path.

    Raises:
        InvalidPathError: the path is not valid.
        UnsupportedError: the store lacks a capability that the lobby needs.
    """
    check_path(path)
    for needed in _NEEDED:
        check_capability(needed, "a line of contenders", store.capabilities, repr(store))
    with _lock:
        lobbies = _lobbies.setdefault(store, weakref.WeakValueDictionary())
        lobby = lobbies.get(path)
        if lobby is None:
            lobby = lobbies[path] = AsyncLobby(store, path)
        return lobby


def _renew_lock() -> None:
    # A thread of the parent may have held the lock at the moment of the fork.
    global _lock  # noqa: PLW0603
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)
