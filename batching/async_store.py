"""The store that asyncio tasks hold."""

from __future__ import annotations

import asyncio
import time
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Callable,
    Iterable,
    Iterator,
    Sequence,
)
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Literal, NoReturn, Self, overload

from ..ops.capabilities import Capability
from ..ops.errors import MetadataStoreError
from ..ops.operations import (
    ABSENT,
    Kind,
    Operation,
    PutOptions,
    check_expected,
    check_value,
)
from ..ops.paths import check_parent, check_path
from ..ops.results import Change, GetResult, Outcome, Range, ScanPage, ScanResult, Stat, StatPage
from ..stores.backend import Backend
from .bulk import Bulk, lies_ready
from .changes import changes_of_async, check_changes
from .checks import check_operation, check_size, check_supported
from .engine import Engine
from .entry import ENDED, Entry
from .metrics import Metrics
from .scans import (
    AsyncResultStream,
    check_scan,
    check_split,
    pages_of_async,
    results_of_async,
)
from .settings import BatchingConfig, check_seconds

__all__ = ["AsyncMetadataStore"]


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
        # Set on the loop, before a look at the entry's state; a sender sets the state first, and
        # then looks here: so one of the two sees what the other has done.
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
        # The loop was closed with operations under way; nobody is left to be told.
        return


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
        capabilities: frozenset[Capability] = frozenset(),
    ) -> None:
        self._engine = Engine(backend, batching, name, capabilities)
        self._loop = loop
        self._sink = _LoopSink(loop)
        self._timeout = operation_timeout

    @property
    def capabilities(self) -> frozenset[Capability]:
        """What the store can do beyond the operations that all have, as its kind states it.

        What needs another capability is ``UnsupportedError``, from the call itself.
        """
        return self._engine.capabilities

    async def get(self, path: str, *, timeout: float | None = None) -> GetResult | None:
        """Return a path's value with its stat; ``None`` if the path holds none."""
        check_path(path)
        result: GetResult | None = await self._run("get", path, None, None, None, timeout)
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
        options = PutOptions.of(ephemeral, sequential)
        if options is not None:
            check_supported(options, self._engine.capabilities, self._engine.name)
        check_size(path, value, self._engine.limits.value_bytes)
        stat: Stat = await self._run("put", path, value, expected_version, options, timeout)
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
        await self._run("delete", path, None, expected_version, None, timeout)

    async def get_children(self, path: str, *, timeout: float | None = None) -> list[str]:
        """Return the sorted names below a path, ``/`` among them; none for a missing path."""
        check_parent(path)
        names: list[str] = await self._run("get_children", path, None, None, None, timeout)
        return names

    async def exists(self, path: str, *, timeout: float | None = None) -> bool:
        """Say whether a path holds a value."""
        check_path(path)
        found: bool = await self._run("exists", path, None, None, None, timeout)
        return found

    def submit(self, op: Operation, *, timeout: float | None = None) -> asyncio.Future[Any]:
        """Execute an operation that was made before; its future holds what its method returns.

        The one method that is no coroutine: it returns at once.

        Raises:
            QueueFullError: there is no room; a future could not hold up its caller.
        """
        engine = self._engine
        check_operation(op, engine.limits.value_bytes, engine.capabilities, engine.name)
        seconds = self._seconds(timeout)
        future: asyncio.Future[Any] = self._loop.create_future()
        entry = Entry.of(op, engine.lanes, self._sink, time.monotonic(), seconds, future)
        self._engine.submit(entry, "raise", block=False)

        def ended(future: asyncio.Future[Any]) -> None:
            if future.cancelled():
                self._withdraw(entry)

        future.add_done_callback(ended)
        return future

    async def apply(
        self,
        ops: Iterable[Operation] | AsyncIterable[Operation],
        *,
        timeout: float | None = None,
    ) -> list[Outcome]:
        """Execute operations and return their outcomes, in the order given.

        It raises for no single operation: an error is that operation's outcome. ``ops``, unless it
        is asynchronous, is read and submitted some hundred operations at a time.
        """
        stream = self._stream(ops, self._seconds(timeout), together=True)
        return [outcome async for outcome in stream]

    def apply_stream(
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
        return self._stream(ops, self._seconds(timeout), together=lies_ready(ops))

    async def _stream(
        self,
        ops: Iterable[Operation] | AsyncIterable[Operation],
        seconds: float,
        *,
        together: bool,
    ) -> AsyncIterator[Outcome]:
        sink = _BulkSink(self._loop)
        bulk = Bulk(self._engine, seconds, sink, block=False)
        source: Iterator[Operation] | AsyncIterator[Operation]
        source = aiter(ops) if isinstance(ops, AsyncIterable) else iter(ops)
        source_error: Exception | None = None
        reading = True
        try:
            while reading or bulk.head():
                try:
                    while reading and not (bulk.full() or bulk.has_ended()):
                        reading = await _read_some(bulk, source, together)
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

    def scan(
        self,
        prefix: str,
        start: str | None = None,
        end: str | None = None,
        revision: int | None = None,
        *,
        timeout: float | None = None,
    ) -> AsyncResultStream[ScanResult]:
        """Give ``(path, value, stat)`` of all that lies under ``prefix``, in the order of paths.

        See :meth:`MetadataStore.scan`. Pages are read on threads of the loop's default executor;
        ``aclose()``, or the end of the task, ends the scan.
        """
        asked = check_scan(prefix, start, end, revision)
        return results_of_async(self._engine.scanner(revision), *asked, self._seconds(timeout))

    @overload
    def scan_pages(
        self,
        prefix: str,
        start: str | None = None,
        end: str | None = None,
        revision: int | None = None,
        *,
        values: Literal[True] = True,
        timeout: float | None = None,
    ) -> AsyncGenerator[ScanPage, None]: ...
    @overload
    def scan_pages(
        self,
        prefix: str,
        start: str | None = None,
        end: str | None = None,
        revision: int | None = None,
        *,
        values: Literal[False],
        timeout: float | None = None,
    ) -> AsyncGenerator[StatPage, None]: ...
    @overload
    def scan_pages(
        self,
        prefix: str,
        start: str | None = None,
        end: str | None = None,
        revision: int | None = None,
        *,
        values: bool,
        timeout: float | None = None,
    ) -> AsyncGenerator[ScanPage | StatPage, None]: ...
    def scan_pages(
        self,
        prefix: str,
        start: str | None = None,
        end: str | None = None,
        revision: int | None = None,
        *,
        values: bool = True,
        timeout: float | None = None,
    ) -> AsyncGenerator[ScanPage | StatPage, None]:
        """Give what :meth:`scan` gives, in the pages that the store reads, as columns.

        See :meth:`MetadataStore.scan_pages`. They are read as those of :meth:`scan`.
        """
        asked = check_scan(prefix, start, end, revision)
        scanner, seconds = self._engine.scanner(revision), self._seconds(timeout)
        return pages_of_async(scanner, *asked, seconds, values=values)

    async def split(self, prefix: str, n: int, *, timeout: float | None = None) -> Sequence[Range]:
        """Return up to ``n`` ranges for ``scan`` that hold about equally many values each.

        Together they hold all that lies under ``prefix``, whatever is put there later: the first
        has no start, and the last no end.
        """
        check_split(prefix, n)
        seconds = self._seconds(timeout)
        return await asyncio.to_thread(self._engine.scanner().split, prefix, n, seconds)

    async def delete_recursive(self, path: str, *, timeout: float | None = None) -> int:
        """Remove the value at a path and all below it, in batches; return how many that were.

        See :meth:`MetadataStore.delete_recursive`. It goes on if the task that awaits it is
        cancelled.
        """
        check_parent(path)
        seconds = self._seconds(timeout)
        return await asyncio.to_thread(self._engine.scanner().delete_recursive, path, seconds)

    async def revision(self, *, timeout: float | None = None) -> int:
        """Return the store's revision: that of every later change is greater."""
        return await asyncio.to_thread(self._engine.scanner().revision, self._seconds(timeout))

    def changes(
        self, prefix: str, after: int, until: int, *, timeout: float | None = None
    ) -> AsyncResultStream[Change]:
        """Give each change under ``prefix`` between two revisions once, in their order (etcd).

        See :meth:`MetadataStore.changes`. They are read on threads of the loop's default executor;
        ``aclose()``, or the end of the task, ends it.
        """
        asked = check_changes(prefix, after, until)
        return changes_of_async(self._engine.historian(), *asked, self._seconds(timeout))

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
        # On a thread of its own: the loop's may all be busy with scans that only this ends.
        executor = ThreadPoolExecutor(1, "batchkeeper-close")
        try:
            await self._loop.run_in_executor(executor, self._engine.close, timeout)
        finally:
            executor.shutdown(wait=False)

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
        options: PutOptions | None,
        timeout: float | None,
    ) -> Any:
        engine, future = self._engine, self._loop.create_future()
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

    def _withdraw(self, entry: Entry) -> None:
        if self._engine.withdraw(entry):
            entry.caller.cancel()
            self._engine.settle([entry])

    def _seconds(self, timeout: float | None) -> float:
        return self._timeout if timeout is None else check_seconds("timeout", timeout)


async def _read_some(
    bulk: Bulk, source: Iterator[Operation] | AsyncIterator[Operation], together: bool
) -> bool:
    """Submit some operations; say whether the source may have more."""
    if isinstance(source, AsyncIterator):
        try:
            op = await anext(source)
        except StopAsyncIteration:
            return False
        return bulk.read_singly(iter((op,)), 1)
    await asyncio.sleep(0)  # Other tasks have their turn.
    return bulk.read_together(source) if together else bulk.read_singly(source)
