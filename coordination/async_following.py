# async:
# `_sync/following.py` is generated from this file: after a change, run `python tools/faces.py`.
# end
"""Keeps a view of the paths below a prefix current, in the background."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from ..batching import AsyncMetadataStore, AsyncWatch
from ..batching.async_background import AsyncSignal, async_spawn
from ..ops.backoff import Backoff
from ..ops.errors import MetadataStoreError, StoreUnavailableError, passes
from ..ops.log import get_logger
from ..ops.results import WatchEvent

__all__ = ["AsyncFollower"]

log = get_logger("batchkeeper.coordination")

_BACKOFF: Final = Backoff(first=0.05, longest=2.0)


class AsyncFollower:
    """Reads the paths below a prefix, and passes on every later change of them.

    It runs in its own task (for threads: its own thread) until it is closed, the store is closed,
    or ``idle`` returns true. All functions that it calls run there, one after the other. It
    survives outages: after a temporary failure, it starts a new watch and reads again.

    ``read`` is called when a watch is in place and after each gap, so that every change that it
    misses arrives afterwards as an event. An event may be older than the state that was read.

    Args:
        store: the store.
        prefix: the path to watch, with the paths below it.
        read: reads the state of the view. A temporary error leads to another call.
        event: receives each change.
        ended: receives the error that has ended it: ``StoreClosedError``, a permanent error, or
            that of ``start``. It is not called after ``close``, or if ``idle`` has ended it.
        broken: called after each temporary failure: no changes arrive until the next ``read``.
        idle: called after each ``linger`` seconds without an event; returns whether the view is no
            longer needed.
        linger: see ``idle``.
    """

    def __init__(
        self,
        store: AsyncMetadataStore,
        prefix: str,
        *,
        read: Callable[[], Awaitable[None]],
        event: Callable[[WatchEvent], Awaitable[None]],
        ended: Callable[[MetadataStoreError], None],
        broken: Callable[[], None] | None = None,
        idle: Callable[[], bool] | None = None,
        linger: float | None = None,
    ) -> None:
        self._store = store
        self._prefix = prefix
        self._read = read
        self._event = event
        self._ended = ended
        self._broken = broken
        self._idle = idle
        self._linger = linger
        self._closing = AsyncSignal()
        self._watch: AsyncWatch | None = None
        self._failures = 0  # in a row
        #: Set while the view is current, as far as is known, and when the follower has ended. After
        #: a gap or a failure, it is another signal until ``read`` has returned.
        self.ready = AsyncSignal()

    def start(self, after: float = 0.0) -> None:
        """Start after some seconds, without waiting. ``ready`` is set when the view is complete.

        Raises:
            StoreUnavailableError: no thread is left. ``ended`` has received the error.
        """
        try:
            async_spawn(f"follower of {self._prefix}", self._run, after)
        except BaseException as error:
            failure = StoreUnavailableError(f"no watch could begin: {error!r}", path=self._prefix)
            self._ended(failure)
            self.ready.set()  # Other calls wait for it.
            if isinstance(error, RuntimeError):
                raise failure from error
            raise

    def close(self) -> None:
        """End the follower, from any thread. A running call of ``read`` or ``event`` finishes."""
        self._closing.set()
        watch = self._watch
        if watch is not None:
            watch.close()

    async def _run(self, after: float) -> None:
        try:
            if after:
                await self._closing.wait(after)
            while not self._closing.is_set():
                try:
                    await self._follow()
                except MetadataStoreError as error:
                    if self._closing.is_set():
                        return
                    if not passes(error):
                        self._ended(error)
                        return
                    log.info("a view begins again", prefix=self._prefix, reason=str(error))
                except Exception:
                    # Any error: other callers wait for the view.
                    log.exception("a view failed, and begins again", prefix=self._prefix)
                else:
                    return
                self._grow_old()
                if self._broken is not None:
                    self._broken()
                await self._closing.wait(_BACKOFF.pause(self._failures))
                self._failures += 1
        finally:
            self.ready.set()

    async def _follow(self) -> None:
        """Follow one watch until the follower ends."""
        async with self._store.watch(self._prefix) as watch:
            self._watch = watch
            if self._closing.is_set():  # It may have been set before ``_watch`` was.
                return
            await self._read()
            self.ready.set()
            self._failures = 0
            while True:
                event = await watch.next_event(timeout=self._linger)
                if event is None:
                    if self._idle is not None and self._idle():
                        return
                elif event.kind == "gap":
                    self._grow_old()
                    await self._read()
                    self.ready.set()
                else:
                    await self._event(event)

    def _grow_old(self) -> None:
        if self.ready.is_set():  # Otherwise, a caller waits for this one.
            self.ready = AsyncSignal()
