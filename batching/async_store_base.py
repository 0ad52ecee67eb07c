"""Passes the calls of tasks to the engine; ``store_base.py`` does the same for threads.

Both are written by hand, because the faces differ here in more than ``async`` and ``await``.
"""

from __future__ import annotations

import asyncio
import time
from asyncio import _get_running_loop, get_running_loop
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Sequence
from typing import Any, ParamSpec, TypeVar

from ..ops.capabilities import Capability
from ..ops.errors import MetadataStoreError, UnsupportedError
from ..ops.operations import Kind, Operation, Options
from ..ops.results import GetResult, Outcome
from ..stores.backend import Backend, BeginWatch
from .async_watches import AsyncWatch
from .bulk import Bulk, lies_ready
from .engine import Engine
from .entry import CANCELLED, ENDED, Entry, entry_of
from .feeds import AskedWatch
from .hooks import Hook
from .lifetime import on_thread
from .sessions import Listeners, listen_for_hooks
from .settings import BatchingConfig, check_seconds

__all__ = ["AsyncStoreBase"]

_T = TypeVar("_T")
_P = ParamSpec("_P")


class _LoopSink:
    """Ends the futures of one event loop on that loop, with one hand-over for a whole batch.

    An entry's ``caller`` is its ``asyncio.Future``.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def deliver(self, entries: Sequence[Entry]) -> None:
        _hand_over(self._loop, _end_futures, entries)


def _end_futures(entries: Sequence[Entry]) -> None:
    # This loop runs once for every operation.
    for entry in entries:
        future = entry.caller
        if not future.done():
            answer = entry.answer
            if isinstance(answer, MetadataStoreError):
                future.set_exception(answer)
            else:
                future.set_result(answer)


class _BulkSink:
    """Lets the task of one bulk call wait for its operations."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        # The loop sets this before it checks the entry's state. A sender sets the state before it
        # checks this. So at least one of them sees the other's change.
        self._waited_for: Entry | None = None
        self._woken = asyncio.Event()

    def deliver(self, entries: Sequence[Entry]) -> None:
        waited_for = self._waited_for
        if waited_for is not None and waited_for.state >= ENDED:
            _hand_over(self._loop, self._woken.set)

    async def wait_for(self, entry: Entry) -> None:
        self._waited_for = entry
        try:
            while entry.state < ENDED:
                self._woken.clear()
                await self._woken.wait()
        finally:
            self._waited_for = None


def _hand_over(loop: asyncio.AbstractEventLoop, call: Callable[..., None], *args: Any) -> None:
    try:
        loop.call_soon_threadsafe(call, *args)
    except RuntimeError:
        # The loop was closed with operations under way, so no task waits for them any more.
        return


class AsyncStoreBase:
    """Submits operations for the tasks of one event loop, which await them."""

    def __init__(
        self,
        backend: Backend,
        batching: BatchingConfig,
        operation_timeout: float,
        name: str,
        loop: asyncio.AbstractEventLoop,
        capabilities: frozenset[Capability] = frozenset(),
        hooks: Sequence[Hook] = (),
    ) -> None:
        self._engine = Engine(backend, batching, name, capabilities, hooks)
        self._loop = loop
        # The tasks that would close it have ended with their loop.
        self._engine.close_when(loop.is_closed)
        self._sink = _LoopSink(loop)
        self._timeout = operation_timeout
        self._syncing: asyncio.Task[None] | None = None  # the last request that has begun
        self._next_sync: asyncio.Task[None] | None = None  # the one that has not
        # As with other callbacks of a loop, SystemExit ends the loop.
        self._listeners = Listeners(
            lambda notice: _hand_over(loop, notice.run_callbacks), Exception
        )
        listen_for_hooks(self._engine, self._listeners)

    async def _run(
        self,
        kind: Kind,
        path: str,
        timeout: float | None,
        value: bytes | None = None,
        expected_version: int | None = None,
        options: Options | None = None,
    ) -> _T:
        """Submit an operation that was checked, and wait for its result."""
        if get_running_loop() is not self._loop:
            raise self._foreign_loop()
        engine = self._engine
        future: asyncio.Future[_T] = self._loop.create_future()
        seconds = self._timeout if timeout is None else check_seconds("timeout", timeout)
        lanes, now = engine.lanes, time.monotonic()
        entry = Entry(
            kind, path, value, expected_version, options, lanes, self._sink, now, seconds, future
        )
        engine.submit(entry, block=False)
        try:
            return await future
        except asyncio.CancelledError:
            self._withdraw(entry)
            raise

    def _check_loop(self) -> None:
        """Refuse to work in another loop than the store's.

        Raises:
            UnsupportedError: the running loop is another, or none runs.
        """
        if _get_running_loop() is not self._loop:
            raise self._foreign_loop()

    def _check_caller(self) -> None:
        """Refuse a call whose requests the store would refuse, before it changes anything.

        Raises:
            StoreClosedError: this is a forked process, where any lock may be held.
            UnsupportedError: the running loop is not the store's.
        """
        self._engine.check_not_forked()
        self._check_loop()

    def _foreign_loop(self) -> UnsupportedError:
        return UnsupportedError(
            f"the store was opened in another event loop, and works only there: "
            f"{self._engine.name}. Open a store in each loop, or share one of open_store among "
            f"loops, with asyncio.wrap_future around its futures"
        )

    async def _sync(self, seconds: float) -> None:
        """Catch up. Tasks that come while a request is under way share the next one.

        Each request takes a thread, and thousands of tasks may ask at once, such as those of a hub
        that claims the topics of another.
        """
        self._check_loop()
        deadline = time.monotonic() + seconds
        request = self._next_sync
        if request is None:
            made = self._request_sync(self._syncing, deadline)
            request = self._next_sync = self._loop.create_task(made)
        await asyncio.wait([request])
        if request.cancelled() or request.exception() is not None:
            # It had the timeout of the first caller. The others may have more time, or get its
            # error.
            await self._sync_alone(deadline)

    async def _request_sync(self, before: asyncio.Task[None] | None, deadline: float) -> None:
        await asyncio.sleep(0)  # A loop with an eager task factory has begun it already.
        if before is not None:
            await asyncio.wait([before])
        # Whoever comes from here on needs another request: this one may miss what is new to it.
        self._syncing, self._next_sync = self._next_sync, None
        await self._sync_alone(deadline)

    async def _sync_alone(self, deadline: float) -> None:
        await asyncio.to_thread(self._engine.sync, max(0.0, deadline - time.monotonic()))

    def _submit(self, op: Operation, seconds: float) -> asyncio.Future[Any]:
        """Submit an operation that its caller has made, without waiting for room."""
        self._check_loop()
        future: asyncio.Future[Any] = self._loop.create_future()
        entry = entry_of(op, self._engine.lanes, self._sink, time.monotonic(), seconds, future)
        self._engine.submit(entry, "raise", block=False)

        def ended(future: asyncio.Future[Any]) -> None:
            if future.cancelled():
                self._withdraw(entry)

        future.add_done_callback(ended)
        return future

    def _stream(
        self, ops: Iterable[Operation] | AsyncIterable[Operation], seconds: float
    ) -> AsyncIterator[Outcome]:
        return self._outcomes(ops, seconds, keeps=False)

    async def _outcomes(
        self,
        ops: Iterable[Any] | AsyncIterable[Operation],
        seconds: float,
        *,
        keeps: bool,
        bare: bool = False,
    ) -> AsyncIterator[Any]:
        self._check_loop()
        sink = _BulkSink(self._loop)
        bulk = Bulk(self._engine, seconds, sink, block=False, keeps=keeps, bare=bare)
        source: Sequence[Operation] | Iterator[Operation] | AsyncIterator[Operation]
        if isinstance(ops, AsyncIterable):
            source = aiter(ops)
        else:
            source = ops if lies_ready(ops) else iter(ops)
        source_error: Exception | None = None
        reading = True
        try:
            while reading or bulk.head():
                try:
                    while reading and not (bulk.full() or bulk.has_ended()):
                        reading = await _read_some(bulk, source, keeps)
                except Exception as error:
                    reading, source_error = False, error
                if head := bulk.head():
                    await sink.wait_for(head)
                for outcome in bulk.outcomes():
                    yield outcome
        finally:
            # Reached with operations left only if the caller stops early, or is cancelled.
            for entry in bulk.give_up():
                await sink.wait_for(entry)
        if source_error is not None:
            raise source_error

    async def _collect(
        self, ops: Iterable[Operation] | AsyncIterable[Operation], seconds: float
    ) -> list[Outcome]:
        return [outcome async for outcome in self._outcomes(ops, seconds, keeps=True)]

    async def _many(self, paths: list[str], seconds: float) -> list[GetResult | None]:
        found = self._outcomes(paths, seconds, keeps=True, bare=True)
        return [result async for result in found]

    async def _walk(self, call: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Run a call over many paths on another thread; it continues if the task is cancelled."""
        self._check_loop()
        return await asyncio.to_thread(call, *args, **kwargs)

    def _watch(self, begin: BeginWatch, asked: AskedWatch, seconds: float) -> AsyncWatch:
        """Return a watch that begins when a task awaits it, enters it or iterates over it."""
        return AsyncWatch(self._engine.feeds, begin, asked, seconds, self._loop, self._check_loop)

    async def _close(self, timeout: float | None) -> None:
        # On a separate thread: scans may occupy all of the loop's threads, and only this ends them.
        # In any loop: the store's own may have ended.
        await asyncio.wrap_future(on_thread(self._engine.close, timeout))

    def _withdraw(self, entry: Entry) -> None:
        try:
            if self._engine.withdraw(entry):
                entry.caller.cancel()
        finally:
            if entry.state == CANCELLED:
                self._engine.release([entry])


async def _read_some(
    bulk: Bulk,
    source: Sequence[Operation] | Iterator[Operation] | AsyncIterator[Operation],
    together: bool,
) -> bool:
    """Submit some operations; say whether the source may have more."""
    if isinstance(source, AsyncIterator):
        try:
            op = await anext(source)
        except StopAsyncIteration:
            return False
        return bulk.read_singly(iter((op,)), 1)
    await asyncio.sleep(0)  # Other tasks have their turn.
    if isinstance(source, Sequence):
        return bulk.read_ready(source)
    return bulk.read_together(source) if together else bulk.read_singly(source)
