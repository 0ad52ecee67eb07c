# async:
# `_sync/persistent.py` is generated from this file: after a change, run `python tools/faces.py`.
# end
"""An ephemeral value that is created again after each lost session, until it is closed.

It is a membership (see ``async_memberships``) at any path, whose value is the caller's alone. A
follower of the path notices when it is gone.
"""

from __future__ import annotations

import asyncio
from itertools import count
from typing import Final, Self

from ..batching import AsyncMetadataStore
from ..batching.async_background import AsyncSignal
from ..ops.backoff import Backoff
from ..ops.errors import LockLostError, MetadataStoreError, StoreClosedError, passes_anew
from ..ops.log import get_logger
from ..ops.paths import check_path, parent
from ..ops.results import GetResult, WatchEvent
from .async_following import AsyncFollower
from .async_kinds import async_check_store
from .async_memberships import AsyncIncarnation, AsyncMembership
from .deadlines import Deadline
from .members import Card, Member

__all__ = ["AsyncPersistentEphemeral"]

log = get_logger("batchkeeper.coordination")

_BACKOFF: Final = Backoff(first=0.05, longest=2.0)


class AsyncPersistentEphemeral:
    """An ephemeral value that outlives the session: Curator calls it a ``PersistentNode``.

    While it is open, the value exists as long as the session does. It is created again when a
    session is lost, or when somebody has deleted it. If another session has a value at the path, it
    waits for the end of that. Open it in a ``with`` block, or with :meth:`start`.

    One store must not open two at the same path: each would take the other's value for its own.

    Args:
        store: the store, with ``"ephemerals"``, ``"transactions"`` and ``"watches"``.
        path: the path of the value.
        value: the value.

    Raises:
        InvalidPathError: the path is not valid.
        UnsupportedError: the store lacks a capability.
    """

    def __init__(self, store: AsyncMetadataStore, path: str, value: bytes = b"") -> None:
        async_check_store(store, "a persistent ephemeral", "ephemerals", "transactions", "watches")
        self.path = check_path(path)
        self._store = store
        self._started = self._closed = False
        self._membership = _AsyncPlain(store, path, value)
        self._follower = AsyncFollower(
            store, path, read=self._restore, event=self._note, ended=self._end
        )

    async def start(self, timeout: float | None = None) -> Self:
        """Create the value, and keep it from now on. Outages are waited out. Once is enough.

        Args:
            timeout: seconds to wait; unlimited by default.

        Raises:
            LockBusyError: another session had a value there for the whole ``timeout``. The error
                has it as ``value``.
            LockLostError: it was closed before.
            MetadataStoreError: a request has failed permanently, or for the whole ``timeout``.
        """
        if self._closed:
            raise LockLostError(f"{self.path} was closed; make a new object", path=self.path)
        if self._started:
            return self
        if self._membership.left:  # An earlier attempt has failed.
            self._membership = _AsyncPlain(self._store, self.path, self.value)
        await self._membership.join(Deadline(timeout))
        self._started = True
        try:
            self._follower.start()
        except BaseException:  # For example, no thread can be started.
            await self.close()
            raise
        return self

    @property
    def value(self) -> bytes:
        """The value that others see, or will see when it exists again."""
        return self._membership.data

    @property
    def exists(self) -> bool:
        """Whether the value exists, as far as this process knows."""
        return self._membership.joined

    @property
    def lost(self) -> AsyncSignal:
        """An event that is set when the current value has ended; the next one has another event."""
        return self._membership.lost

    def held_until(self) -> float:
        """Return the time before which its session cannot have ended.

        The time is a value of ``time.monotonic()``: ``math.inf`` on stores without a server, and
        ``-math.inf`` if the value does not exist.
        """
        return self._membership.held_until()

    async def update(self, value: bytes) -> None:
        """Replace the value. In an outage of the session, it takes effect with the next one.

        Raises:
            LockLostError: it is closed.
            MetadataStoreError: the write has failed; see its ``outcome``.
        """
        await self._membership.update(value)

    async def close(self) -> None:
        """Remove the value, and create it no more. A second call does nothing.

        If no server answers, it is removed in the background, or with the end of the session.
        """
        self._closed = True
        self._follower.close()
        await self._membership.leave()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.path!r}{' exists' if self.exists else ''}>"

    async def _restore(self) -> None:
        """Create the value again if it is gone, unless another session has the path."""
        await self._membership.verify(None)
        for attempt in count():
            if not self._membership.check_session():
                return
            try:
                created = await self._membership.attempt()
            except MetadataStoreError as error:
                if not passes_anew(error):
                    raise
                await asyncio.sleep(_BACKOFF.pause(attempt))
            else:
                if created:
                    log.info("created again", path=self.path)
                return

    async def _note(self, event: WatchEvent) -> None:
        if event.path == self.path and event.kind == "deleted":
            await self._restore()

    def _end(self, error: MetadataStoreError) -> None:
        if not isinstance(error, StoreClosedError):
            log.warning("created no more", path=self.path, reason=str(error))
        self._membership.drop()


class _AsyncPlain(AsyncMembership):
    """A membership whose value says nothing but its data, and so belongs to whose session it is."""

    def __init__(self, store: AsyncMetadataStore, path: str, value: bytes) -> None:
        name = path.rpartition("/")[2]
        super().__init__(store, parent(path), name, "", value, lambda _: None)
        self.path = path  # of the root's, too
        self._guarded = False

    def _value(self, _: AsyncIncarnation, number: int | None) -> bytes:
        del number
        return self._data

    def _card(self, found: GetResult, incarnation: AsyncIncarnation) -> Card:
        identity = incarnation.id if found.stat.owned else ""
        return Card(identity, Member(self.name, found.value, found.stat.revision))
