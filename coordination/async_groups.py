# async:
# `_sync/groups.py` is generated from this file: after a change, run `python tools/faces.py`.
# end
"""Groups of processes: their members, and the data of each member."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Final, Literal, TypeAlias

from ..batching import AsyncMetadataStore
from ..batching.async_background import AsyncSignal, async_spawn
from ..batching.async_listeners import AsyncListener, still_open
from ..ops.backoff import Backoff
from ..ops.errors import (
    MetadataStoreError,
    StoreClosedError,
    StoreUnavailableError,
    passes,
    passes_anew,
)
from ..ops.log import get_logger
from ..ops.operations import Get
from ..ops.paths import check_path
from ..ops.results import GetResult, WatchEvent
from .async_following import AsyncFollower
from .async_kinds import async_check_store
from .async_memberships import AsyncMembership
from .deadlines import Deadline
from .members import Card, Member, check_name, decode, member_name, member_path

__all__ = ["AsyncGroup", "AsyncGroupListener", "GroupCallback", "GroupEvent"]

log = get_logger("batchkeeper.coordination")

# Seconds between two checks of the session. Closing a store causes no session event.
_POLL: Final = 0.25
_BACKOFF: Final = Backoff(first=_POLL, longest=2.0)

#: A change of a member.
GroupEvent: TypeAlias = Literal["joined", "left", "changed"]
#: Receives the change and the member: its current state, or its state when it left.
GroupCallback: TypeAlias = Callable[[GroupEvent, Member], object]


class AsyncGroupListener(AsyncListener[dict[str, Member]]):
    """A listener of a group. Close it to get no more events; it is also a context manager."""

    def __init__(self, of: str, callback: GroupCallback, done: Callable[[], None]) -> None:
        super().__init__(of, callback, most=1)  # A newer view replaces a waiting one.
        self._done = done
        self._known: dict[str, Member] = {}  # the last reported members

    def close(self) -> None:
        """End the listener. Any thread or its own callback may call it, even twice."""
        super().close()
        self._done()

    def _calls(self, members: dict[str, Member]) -> Iterator[tuple[GroupEvent, Member]]:
        """Yield the difference to the last reported state. Members that left come first."""
        known, self._known = self._known, members
        for name, old in known.items():
            if name not in members or members[name].incarnation != old.incarnation:
                yield "left", old
        for name, new in members.items():
            before = known.get(name)
            if before is None or before.incarnation != new.incarnation:
                yield "joined", new
            elif before.data != new.data:
                yield "changed", new


class AsyncGroup:
    """The members of a group, each with a unique name, some data, and an incarnation.

    A member exists while the session of its store is alive: after a crash or a longer pause, it is
        gone. The group does not show which members work, only whose sessions are alive.

    Args:
        store: the store, with ``"ephemerals"``, ``"transactions"`` and ``"watches"``.
        path: the path of the group. Values below it are its members; put nothing else there.
        leaf: a path component. With it, members are at ``PATH/NAME/LEAF`` instead of ``PATH/NAME``.
            You may then use all other paths ``PATH/NAME/...`` and ``PATH/NAME`` itself freely. All
            users of the group must use the same leaf.

    Raises:
        InvalidPathError: the path, or the leaf, is not valid.
        UnsupportedError: the store lacks a capability.
    """

    def __init__(self, store: AsyncMetadataStore, path: str, leaf: str = "") -> None:
        async_check_store(store, "a group", "ephemerals", "transactions", "watches")
        self.path = check_path(path)
        if leaf:
            check_path(f"{path}/{check_name(leaf, leaf)}")
        self._store = store
        self._leaf = leaf
        self._lock = threading.RLock()  # guards the following fields
        self._own: set[AsyncMembership] = set()
        self._keeping = False  # whether the keeper runs
        self._listeners: tuple[AsyncGroupListener, ...] = ()
        self._follower: AsyncFollower | None = None
        self._changed: set[str] = set()  # the names to read again
        self._all_changed = False
        self._wake = AsyncSignal()

    async def join(
        self, name: str, data: bytes = b"", timeout: float | None = None
    ) -> AsyncMembership:
        """Become a member of the group until ``leave``.

        If another member has the name, for example this process before its restart, the call waits
        for the end of that member. It also waits out outages.

        Args:
            name: a path component, which must not start with a dot unless the group has a leaf.
            data: what the others see, such as an address.
            timeout: seconds to wait; unlimited by default. If no server answers, the call may take
                up to two seconds longer.

        Raises:
            LockBusyError: another member had the name for the whole ``timeout``. The error has its
                data as ``value``.
            InvalidPathError: the name is not valid.
            MetadataStoreError: a request has failed permanently, or for the whole ``timeout``.
        """
        deadline = Deadline(timeout)
        check_path(member_path(self.path, check_name(name, self._leaf), self._leaf))
        self._store.session  # noqa: B018 - it raises in a forked process, whose lock may be held
        membership = AsyncMembership(self._store, self.path, name, self._leaf, data, self._forget)
        await membership.join(deadline)
        try:
            with self._lock:
                if not self._keeping:
                    async_spawn(f"keeper of {self.path}", self._keep)
                    self._keeping = True
                self._own.add(membership)
        except BaseException:  # For example, no thread can be started.
            await membership.leave()
            raise
        return membership

    async def members(self) -> dict[str, Member]:
        """Read the current members, by name."""
        return {name: card.member for name, card in (await self._read()).items()}

    def add_listener(self, callback: GroupCallback) -> AsyncGroupListener:
        """Call a function for each current member, and for each later change.

        It receives ``"joined"``, ``"left"`` or ``"changed"``, and the member. Changes in quick
            succession can be merged: a member that joins and leaves at once may cause no event.
            After an outage, or where the store cannot report all events, it gets the difference.

        Each listener has its own task (for threads: its own thread) while events are pending. So it
        may block, wait, and call this object, and delays only its own later events. Its exceptions
        are logged. Close the result to end the listener.

        Raises:
            InvalidSettingError: the callback is not a function, or for threads a coroutine
                function.
        """
        listener = AsyncGroupListener(self.path, callback, self._listen_no_more)
        self._store.session  # noqa: B018 - it raises in a forked process, whose lock may be held
        with self._lock:
            self._listeners = (*still_open(self._listeners), listener)
            follower, begin = self._follower, self._follower is None
            if follower is None:
                follower = self._follower = AsyncFollower(
                    self._store,
                    self.path,
                    read=self._note_all,
                    event=self._note,
                    ended=self._end,
                )
        if begin:
            follower.start()
            try:
                async_spawn(f"view of {self.path}", self._notify_listeners, follower)
            except BaseException:  # No thread is left. The next listener begins again.
                follower.close()
                self._end(StoreUnavailableError("no view could begin", path=self.path))
                raise
        else:
            self._mark(None)
        return listener

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.path!r} of {self._store!r}>"

    async def _read(self) -> dict[str, Card]:
        cards = {}
        async for path, value, stat in self._store.scan(self.path):
            name = member_name(self.path, path, self._leaf)
            if name is not None:
                cards[name] = decode(name, value, stat)
        return cards

    # --- the own members

    def _forget(self, membership: AsyncMembership) -> None:
        with self._lock:
            self._own.discard(membership)

    async def _keep(self) -> None:
        """Notice the end of sessions, and join again."""
        rounds = 0
        while True:
            with self._lock:
                own = list(self._own)
                if not own:
                    self._keeping = False
                    return
            out = [membership for membership in own if membership.check_session()]
            rounds = rounds + 1 if out else 0
            for membership in out:
                await self._rejoin(membership)
            await asyncio.sleep(_BACKOFF.pause(rounds) if rounds else _POLL)

    async def _rejoin(self, membership: AsyncMembership) -> None:
        try:
            if await membership.attempt():
                log.info("joined again", path=membership.path)
        except MetadataStoreError as error:
            if not passes_anew(error):
                log.info("joins no more", path=membership.path, reason=str(error))
                membership.drop()

    # --- the view of the listeners

    def _listen_no_more(self) -> None:
        """Stop following if all listeners are closed."""
        try:
            self._store.session  # noqa: B018 - it raises in a forked process
        except StoreClosedError:
            return
        with self._lock:
            self._listeners = still_open(self._listeners)
            follower = None
            if not self._listeners:
                follower, self._follower = self._follower, None
        if follower is not None:
            follower.close()
            self._wake.set()

    async def _note_all(self) -> None:
        self._mark(None)

    async def _note(self, event: WatchEvent) -> None:
        name = member_name(self.path, event.path, self._leaf)
        if name is not None:
            self._mark(name)

    def _mark(self, name: str | None) -> None:
        """Make the view of the listeners read a name, or all names."""
        with self._lock:
            if name is None:
                self._all_changed = True
            else:
                self._changed.add(name)
        self._wake.set()

    def _end(self, error: MetadataStoreError) -> None:
        report = log.info if isinstance(error, StoreClosedError) else log.error
        report("a group's listeners end", path=self.path, reason=str(error))
        with self._lock:
            self._follower = None
            listeners, self._listeners = self._listeners, ()
        for listener in listeners:
            listener.close()
        self._wake.set()

    async def _notify_listeners(self, follower: AsyncFollower) -> None:
        """Read and report changes until the follower ends."""
        cards: dict[str, Card] = {}
        failures = 0
        while True:
            await self._wake.wait()
            with self._lock:
                if self._follower is not follower:
                    return
                self._wake = AsyncSignal()
                listeners, own = self._listeners, list(self._own)
                names, self._changed = self._changed, set()
                everything, self._all_changed = self._all_changed, False
            try:
                cards = await self._read() if everything else await self._updated(cards, names)
                for membership in own:
                    card = cards.get(membership.name)
                    await membership.verify(None if card is None else card.id)
                failures = 0
            except MetadataStoreError as error:
                if not passes(error):
                    follower.close()
                    self._end(error)
                    return
                await asyncio.sleep(_BACKOFF.pause(failures))
                failures += 1
                self._mark(None)
                continue
            members = {name: card.member for name, card in cards.items()}
            for listener in listeners:
                listener.notify(members)

    async def _updated(self, cards: dict[str, Card], names: set[str]) -> dict[str, Card]:
        """Return the cards after reading some names again, in one batch."""
        ops = [Get(member_path(self.path, name, self._leaf)) for name in names]
        updated = dict(cards)
        for name, outcome in zip(names, await self._store.apply(ops), strict=True):
            if outcome.error is not None:
                raise outcome.error
            if isinstance(outcome.result, GetResult):
                updated[name] = decode(name, outcome.result.value, outcome.result.stat)
            else:
                updated.pop(name, None)
        return updated
