"""The store that asyncio tasks hold."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Sequence
from types import TracebackType
from typing import Any, Final, NoReturn, Self

from ..ops.errors import MetadataStoreError
from ..ops.operations import ABSENT, Kind, Operation, check_expected, check_value
from ..ops.paths import check_parent, check_path
from ..ops.results import GetResult, Outcome, Stat
from ..stores.backend import Backend
from .bulk import ReadAhead
from .checks import check_operation, check_size, check_supported
from .engine import Engine
from .entry import Entry
from .lane import Lane
from .metrics import Metrics
from .settings import BatchingConfig, check_seconds

__all__ = ["AsyncMetadataStore"]

# Operations that a bulk call takes from a plain iterable before it lets other tasks run.
_TURN: Final = 100


class _AsyncEntry(Entry):
    """An operation whose caller waits on an event loop."""

    __slots__ = ("future",)
    future: asyncio.Future[Any]


class _LoopSink:
    """Ends the futures of one event loop on that loop, with one hand-over for a whole batch."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def deliver(self, entries: Sequence[_AsyncEntry]) -> None:
        try:
            self._loop.call_soon_threadsafe(_end_futures, entries)
        except RuntimeError:
            # The loop was closed with operations under way; nobody is left to be told.
            return


def _end_futures(entries: Sequence[_AsyncEntry]) -> None:
    for entry in entries:
        if not entry.future.done():
            answer = entry.answer
            if isinstance(answer, MetadataStoreError):
                entry.future.set_exception(answer)
            else:
                entry.future.set_result(answer)


class AsyncMetadataStore:
    """A store of small values at paths, for the tasks of one event loop.

    The same as :class:`MetadataStore` in every respect, with coroutines of the same names. An
    operation is submitted when its coroutine first runs, and waits its turn, without holding up
    the loop, when the queue is full. Cancelling the task that awaits it removes an operation that
    is still queued; one that was sent goes on.

    Made by :func:`batchkeeper.open_async_store`.
    """

    def __init__(
        self,
        backend: Backend,
        batching: BatchingConfig,
        operation_timeout: float,
        name: str,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._engine = engine = Engine(backend, batching, name)
        self._loop = loop
        self._sink = _LoopSink(loop)
        self._reads = engine.reads
        self._writes = engine.writes
        self._value_bytes = backend.limits.value_bytes
        self._timeout = operation_timeout

    async def get(self, path: str, *, timeout: float | None = None) -> GetResult | None:
        """Return a path's value with its stat; ``None`` if the path holds none."""
        check_path(path)
        result: GetResult | None = await self._run("get", path, None, None, self._reads, timeout)
        return result

    async def put(
        self,
        path: str,
        value: bytes | bytearray | memoryview,
        expected_version: int | None = None,
        ephemeral: bool = False,
        sequential: bool = False,
        *,
        timeout: float | None = None,
    ) -> Stat:
        """Set a path's value and return its new stat; make the path where it is missing.

        With ``expected_version`` the put holds only if the path is at that version
        (:data:`ABSENT`: if it holds no value), and raises ``BadVersionError`` otherwise.
        """
        check_path(path)
        value = check_value(value)
        check_expected(expected_version, ABSENT)
        check_supported(ephemeral, sequential, self._engine.name)
        check_size(path, value, self._value_bytes)
        stat: Stat = await self._run("put", path, value, expected_version, self._writes, timeout)
        return stat

    async def delete(
        self, path: str, expected_version: int | None = None, *, timeout: float | None = None
    ) -> None:
        """Remove a path's value.

        It raises ``NotFoundError`` if there is none, ``BadVersionError`` if it is not at
        ``expected_version``, and ``NotEmptyError`` if there are values below the path.
        """
        check_path(path)
        check_expected(expected_version, 0)
        await self._run("delete", path, None, expected_version, self._writes, timeout)

    async def get_children(self, path: str, *, timeout: float | None = None) -> list[str]:
        """Return the sorted names below a path, ``/`` among them; none for a missing path."""
        check_parent(path)
        names: list[str] = await self._run("get_children", path, None, None, self._reads, timeout)
        return names

    async def exists(self, path: str, *, timeout: float | None = None) -> bool:
        """Say whether a path holds a value."""
        check_path(path)
        found: bool = await self._run("exists", path, None, None, self._reads, timeout)
        return found

    def submit(self, op: Operation, *, timeout: float | None = None) -> asyncio.Future[Any]:
        """Execute an operation that was made before; its future holds what its method returns.

        The one method that is no coroutine: it returns at once.

        Raises:
            QueueFullError: there is no room; a future could not hold up its caller.
        """
        check_operation(op, self._value_bytes, self._engine.name)
        entry = self._entry(*self._engine.fields(op), self._seconds(timeout))
        self._engine.submit(entry, "raise", block=False)

        def ended(future: asyncio.Future[Any]) -> None:
            if future.cancelled():
                self._withdraw(entry)

        entry.future.add_done_callback(ended)
        return entry.future

    async def apply(
        self,
        ops: Iterable[Operation] | AsyncIterable[Operation],
        *,
        timeout: float | None = None,
    ) -> list[Outcome]:
        """Execute operations and return their outcomes, in the order given.

        It raises for no single operation: an error is that operation's outcome.
        """
        return [outcome async for outcome in self.apply_stream(ops, timeout=timeout)]

    async def apply_stream(
        self,
        ops: Iterable[Operation] | AsyncIterable[Operation],
        *,
        timeout: float | None = None,
    ) -> AsyncIterator[Outcome]:
        """Execute operations as they come and yield their outcomes, in the order given.

        It reads ahead by no more operations than the queues hold. An exception of ``ops`` itself
        is passed on after the outcomes of all that came before it. Closing the iterator early
        cancels what is queued, and waits for what was sent.
        """
        seconds = self._seconds(timeout)
        ahead = ReadAhead(self._engine)
        open_ops: deque[tuple[Operation, _AsyncEntry | MetadataStoreError]] = deque()
        source_error: Exception | None = None
        source = aiter(ops) if isinstance(ops, AsyncIterable) else _each(ops)
        try:
            while True:
                try:
                    op = await anext(source)
                except StopAsyncIteration:
                    break
                except Exception as error:
                    source_error = error
                    break
                entry = self._enter_or_error(op, seconds)
                open_ops.append((op, entry))
                ahead.enter(entry)
                while open_ops and (ahead.full() or _has_ended(open_ops[0][1])):
                    outcome = await _outcome(*open_ops[0])
                    ahead.leave(open_ops.popleft()[1])
                    yield outcome
            while open_ops:
                outcome = await _outcome(*open_ops[0])
                open_ops.popleft()
                yield outcome
        finally:
            # Reached with operations left only if the caller stops early, or is cancelled.
            await self._give_up([entry for _, entry in open_ops if isinstance(entry, _AsyncEntry)])
        if source_error is not None:
            raise source_error

    async def flush(self) -> None:
        """Send what is queued at once; return when all that was submitted before has ended."""
        await asyncio.to_thread(self._engine.flush)

    async def sync(self, timeout: float | None = None) -> None:
        """Return when later reads see all that anybody had written before (ZooKeeper lags)."""
        await asyncio.to_thread(self._engine.sync, self._seconds(timeout))

    def metrics(self) -> Metrics:
        """Return a snapshot of what the store holds and has done."""
        return self._engine.metrics()

    async def close(self, timeout: float | None = None) -> None:
        """Send what is queued, wait for it, and close the store. Closing twice does no harm.

        After ``timeout`` seconds (without one: at their own deadlines) operations that were not
        sent end with ``StoreClosedError``, and writes that were sent and not answered with
        ``IndeterminateError``.
        """
        if timeout is not None:
            timeout = 0.0 if timeout == 0 else check_seconds("timeout", timeout)
        await asyncio.to_thread(self._engine.close, timeout)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._engine.name}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "an open store cannot be pickled: it has threads and connections. Pickle its URL and "
            "its BatchingConfig, and open it where it is needed"
        )

    async def _run(
        self,
        kind: Kind,
        path: str,
        value: bytes | None,
        expected_version: int | None,
        lane: Lane,
        timeout: float | None,
    ) -> Any:
        entry = self._entry(kind, path, value, expected_version, lane, self._seconds(timeout))
        self._engine.submit(entry, block=False)
        try:
            return await entry.future
        except asyncio.CancelledError:
            self._withdraw(entry)
            raise

    def _entry(
        self,
        kind: Kind,
        path: str,
        value: bytes | None,
        expected_version: int | None,
        lane: Lane,
        seconds: float,
    ) -> _AsyncEntry:
        times = self._engine.times(seconds)
        entry = _AsyncEntry(kind, path, value, expected_version, lane, self._sink, *times)
        entry.future = self._loop.create_future()
        return entry

    def _enter_or_error(self, op: Operation, seconds: float) -> _AsyncEntry | MetadataStoreError:
        try:
            check_operation(op, self._value_bytes, self._engine.name)
            entry = self._entry(*self._engine.fields(op), seconds)
            self._engine.submit(entry, "wait", block=False)
        except MetadataStoreError as error:
            return error
        return entry

    def _withdraw(self, entry: _AsyncEntry) -> None:
        if self._engine.withdraw(entry):
            entry.future.cancel()
            self._engine.settle([entry])

    async def _give_up(self, entries: Sequence[_AsyncEntry]) -> None:
        """Cancel what is queued, and wait for what was sent."""
        for entry in entries:
            self._withdraw(entry)
        await asyncio.gather(*(entry.future for entry in entries), return_exceptions=True)

    def _seconds(self, timeout: float | None) -> float:
        return self._timeout if timeout is None else check_seconds("timeout", timeout)


async def _each(ops: Iterable[Operation]) -> AsyncIterator[Operation]:
    for number, op in enumerate(ops):
        if number % _TURN == 0:
            await asyncio.sleep(0)
        yield op


def _has_ended(entry: _AsyncEntry | MetadataStoreError) -> bool:
    return isinstance(entry, MetadataStoreError) or entry.future.done()


async def _outcome(op: Operation, entry: _AsyncEntry | MetadataStoreError) -> Outcome:
    if isinstance(entry, MetadataStoreError):
        return Outcome(op, None, entry)
    if not entry.future.done():
        # Unlike an await, this does not cancel the future of a sent operation with the task.
        await asyncio.wait([entry.future])
    try:
        return Outcome(op, entry.future.result())
    except MetadataStoreError as error:
        return Outcome(op, None, error)
