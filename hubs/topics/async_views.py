# async:
# `_sync/views.py` is generated from this file: after a change, run `python tools/faces.py`.
# end
"""An in-memory view of the decoded values below a path, kept current by one watch.

Unlike ``MetadataCache``, it keeps its contents when the connection is lost: a hub that serves its
topics through a short outage needs the last known hubs and rules.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

from ...batching import AsyncMetadataStore
from ...batching.async_background import AsyncGate
from ...coordination.async_following import AsyncFollower
from ...coordination.async_kinds import async_check_store
from ...ops.errors import MetadataStoreError, OperationTimeoutError, StoreClosedError
from ...ops.log import get_logger
from ...ops.paths import check_path
from ...ops.results import GetResult, WatchEvent

__all__ = ["AsyncView"]

T = TypeVar("T")
V = TypeVar("V")

log = get_logger("batchkeeper.hubs")


class AsyncView(Generic[T, V]):
    """The values below a path, decoded. Nothing happens before the first use.

    During an outage, it shows the last known values.

    Args:
        store: the store, with ``"watches"`` and ``"ephemerals"``.
        path: the path. A value at the path itself is not in the view.
        decode: decodes the value at a path, or returns ``None`` to ignore it. It must not raise.
        show: builds the result for callers from all decoded values, by path. It is called at most
            once for each change, possibly in several threads at the same time.

    Raises:
        InvalidPathError: the path is not valid.
        UnsupportedError: the store lacks a capability.
    """

    def __init__(
        self,
        store: AsyncMetadataStore,
        path: str,
        decode: Callable[[str, GetResult], T | None],
        show: Callable[[Mapping[str, T]], V],
    ) -> None:
        async_check_store(store, "a view", "watches", "ephemerals")
        self._path = check_path(path)
        self._store = store
        self._lags = "linearizable_reads" not in store.capabilities
        self._decode = decode
        self._show = show
        # Held while values are read and replaced, so that older values never replace newer ones.
        self._gate = AsyncGate()
        self._lock = threading.RLock()  # guards the following fields; they are read without it
        self._follower: AsyncFollower | None = None
        self._values: Mapping[str, T] | None = None  # replaced as a whole, never mutated
        self._shown: tuple[Mapping[str, T], V] | None = None
        self._error: MetadataStoreError | None = None
        self._closed = False

    async def get(self, timeout: float | None = None) -> V:
        """Return the contents of the view. Only the first call waits, until the view is complete.

        Args:
            timeout: seconds to wait; the store's ``operation_timeout`` by default.

        Raises:
            OperationTimeoutError: the view was not complete in that time.
            StoreClosedError: the view or the store is closed.
            MetadataStoreError: the store has refused the watch or a read.
        """
        self.check_open()
        values = self._values
        if values is None:
            values = await self._first(
                self._store.operation_timeout if timeout is None else timeout
            )
        return self._show_of(values)

    def latest(self) -> V:
        """Return the current contents without waiting; empty if the view is not complete yet."""
        return self._show_of(self._values or {})

    async def refresh(self, *paths: str) -> None:
        """Read some paths now, if the view is in use, so that it has the caller's own writes."""
        if self._values is not None:
            await self._read_some(paths)

    def close(self) -> None:
        """End it. Later calls raise ``StoreClosedError``."""
        with self._lock:
            self._closed = True
            follower, self._follower = self._follower, None
        if follower is not None:
            follower.close()

    def check_open(self) -> None:
        """Refuse a use after the end.

        Raises:
            StoreClosedError: the view or the store is closed, or this is a forked process.
        """
        if self._store.session.state == "closed" or self._closed:  # Raises in a forked child.
            raise StoreClosedError(f"the view of {self._path}, or its store, is closed")

    async def _first(self, timeout: float) -> Mapping[str, T]:
        follower = self._begin()
        await follower.ready.wait(timeout)
        self.check_open()
        values, error = self._values, self._error
        if values is not None:
            return values
        if error is not None:
            raise error.for_path(self._path)
        raise OperationTimeoutError(
            f"{self._path} could not be read within {timeout:g} s", path=self._path
        )

    def _begin(self) -> AsyncFollower:
        """Return the follower; start one on first use or after a refusal."""
        with self._lock:
            follower, begin = self._follower, self._follower is None
            if follower is None:
                self._error = None
                follower = self._follower = AsyncFollower(
                    self._store,
                    self._path,
                    read=self._read_all,
                    event=self._read_changed,
                    ended=self._end,
                )
        if begin:
            follower.start()
        return follower

    def _end(self, error: MetadataStoreError) -> None:
        if not isinstance(error, StoreClosedError):
            log.error("a view ends", path=self._path, reason=str(error))
        with self._lock:
            self._follower = None
            self._values = None
            self._error = error

    def _show_of(self, values: Mapping[str, T]) -> V:
        shown = self._shown
        if shown is None or shown[0] is not values:
            shown = self._shown = values, self._show(values)
        return shown[1]

    # --- in the follower

    async def _read_all(self) -> None:
        async with self._gate:
            if self._lags:  # A new session may start on a server that lags behind.
                await self._store.sync()
            values = {}
            async for path, value, stat in self._store.scan(self._path):
                decoded = self._decode(path, GetResult(value, stat))
                if path != self._path and decoded is not None:
                    values[path] = decoded
            self._values = values

    async def _read_changed(self, event: WatchEvent) -> None:
        if event.path != self._path:
            await self._read_some((event.path,))

    async def _read_some(self, paths: tuple[str, ...]) -> None:
        async with self._gate:
            before = self._values
            if before is None:  # It has ended, and its next use begins anew.
                return
            values = dict(before)
            for path in paths:
                found = await self._store.get(path)
                decoded = None if found is None else self._decode(path, found)
                if decoded is None:
                    values.pop(path, None)
                else:
                    values[path] = decoded
            with self._lock:
                if self._values is before:
                    self._values = values
