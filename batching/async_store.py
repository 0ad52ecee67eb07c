# async:
# `store.py` is made from this file: after a change run `python tools/faces.py`.
"""The store that asyncio tasks hold."""
# sync:
# | """The store that threads hold."""
# end

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterable, Sequence
from types import TracebackType
from typing import Any, Literal, NoReturn, Self, overload

from ..ops.capabilities import Capability
from ..ops.operations import ABSENT, Operation, PutOptions, check_expected, check_value
from ..ops.paths import check_parent, check_path
from ..ops.results import Change, GetResult, Outcome, Range, ScanPage, ScanResult, Stat, StatPage
from .async_store_base import AsyncStoreBase
from .changes import changes_of_async, check_changes
from .checks import check_operation, check_size, check_supported
from .metrics import Metrics
from .scans import AsyncResultStream, check_scan, check_split, pages_of_async, results_of_async
from .settings import check_seconds

# sync:
# | import time
# | from .bulk import OutcomeStream
# | from .entry import Entry
# | from .futures import OperationFuture
# end

__all__ = ["AsyncMetadataStore"]


class AsyncMetadataStore(AsyncStoreBase):
    # async:
    """A store of small values at paths, for the tasks of one event loop.

    The same as :class:`MetadataStore` in every respect, with coroutines of the same names. An
    operation is submitted when its coroutine first runs, and waits its turn, without holding up
    the loop, when the queue is full. Cancelling the task that awaits it removes an operation that
    is still queued; one that was sent goes on.

    ``apply`` and ``apply_stream`` take asynchronous iterables as well, and submit each operation of
    those before they ask for the next. Scans and changes are read on threads of the loop's default
    executor; ``aclose()`` closes their iterators, and so does the end of the task.

    Made by :func:`batchkeeper.open_async_store`; to be closed, or used in an ``async with`` block.
    """

    # sync:
    # | """A store of small values at paths, for any number of threads.
    # |
    # | Operations return a ``concurrent.futures.Future`` at once; they are gathered into batches
    # | (see :class:`BatchingConfig`) and those of one path take effect in the order of the calls.
    # | Each future ends exactly once: with its result, with a ``MetadataStoreError``, or cancelled
    # | before it was sent. Done-callbacks run on a thread of their own.
    # |
    # | Bad input is refused by the call itself: ``InvalidPathError``, ``InvalidSettingError``,
    # | ``ValueTooLargeError``, ``UnsupportedError``; so is every call after ``close``
    # | (``StoreClosedError``). A call waits only if a queue is full and the settings say so, and
    # | then raises ``QueueFullError`` at the operation's deadline.
    # |
    # | Every operation takes ``timeout``: seconds from the call until the operation's deadline; the
    # | store's ``operation_timeout`` where it is not given. One that was not sent by then ends with
    # | ``OperationTimeoutError``, or ``StoreUnavailableError`` where there is no server, and never
    # | will be; a write that was sent and not answered ends with ``IndeterminateError``.
    # |
    # | Made by :func:`batchkeeper.open_store`; to be closed, or used in a ``with`` block.
    # | """
    # end

    @property
    def capabilities(self) -> frozenset[Capability]:
        """What the store can do beyond the operations that all have, as its kind states it.

        What needs another capability is ``UnsupportedError``, from the call itself.
        """
        return self._engine.capabilities

    async def get(self, path: str, *, timeout: float | None = None) -> GetResult | None:
        """Return a path's value with its stat; ``None`` if the path holds none."""
        check_path(path)
        return await self._run("get", path, timeout)

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
        (:data:`ABSENT`: if it holds no value), and fails with ``BadVersionError`` otherwise.
        """
        check_path(path)
        if type(value) is not bytes:
            value = check_value(value)
        if expected_version is not None:
            check_expected(expected_version, ABSENT)
        engine = self._engine
        options = None
        if ephemeral is not False or sequential is not False:
            options = PutOptions.of(ephemeral, sequential)
            if options is not None:
                check_supported(options, engine.capabilities, engine.name)
        if len(value) > engine.limits.value_bytes:
            check_size(path, value, engine.limits.value_bytes)
        # async:
        return await self._run("put", path, timeout, value, expected_version, options)
        # sync:
        # | # This is `_run`, without what calling it costs: a fiftieth of a put.
        # | seconds = self._timeout if timeout is None else check_seconds("timeout", timeout)
        # | now = time.monotonic()
        # | entry = Entry(
        # |     "put", path, value, expected_version, options,
        # |     engine.lanes, self._sink, now, seconds
        # | )
        # | engine.submit(entry)
        # | future = OperationFuture()
        # | future._entry = entry
        # | return future
        # end

    async def delete(
        self, path: str, expected_version: int | None = None, *, timeout: float | None = None
    ) -> None:
        """Remove a path's value.

        It fails with ``NotFoundError`` if there is none, with ``BadVersionError`` if it is not at
        ``expected_version``, and with ``NotEmptyError`` if there are values below the path.
        """
        check_path(path)
        check_expected(expected_version, 0)
        return await self._run("delete", path, timeout, None, expected_version)

    async def get_children(self, path: str, *, timeout: float | None = None) -> list[str]:
        """Return the sorted names below a path, ``/`` among them; none for a missing path.

        Each name makes a valid path; those of other clients' keys that do not are left out. It is
        not ordered against writes below the path: ``flush()`` first where that matters.
        """
        check_parent(path)
        return await self._run("get_children", path, timeout)

    async def exists(self, path: str, *, timeout: float | None = None) -> bool:
        """Say whether a path holds a value."""
        check_path(path)
        return await self._run("exists", path, timeout)

    def submit(self, op: Operation, *, timeout: float | None = None) -> asyncio.Future[Any]:
        # async:
        """Execute an operation that was made before; its future holds its result.

        The one method that is no coroutine: it returns at once.

        Raises:
            QueueFullError: there is no room; a future could not hold up its caller.
        """
        # sync:
        # | """Execute an operation that was made before; its future holds its result."""
        # end
        engine = self._engine
        check_operation(op, engine.limits.value_bytes, engine.capabilities, engine.name)
        return self._submit(op, self._seconds(timeout))

    async def apply(
        self, ops: Iterable[Operation] | AsyncIterable[Operation], *, timeout: float | None = None
    ) -> list[Outcome]:
        """Execute operations and return their outcomes, in the order given.

        It raises for no single operation: an error is that operation's outcome. A full queue makes
        it wait. ``timeout`` holds for each operation by itself. ``ops`` is read, and submitted,
        some hundred operations at a time: one that waits for what became of earlier ones is for
        ``apply_stream``.
        """
        return await self._collect(ops, self._seconds(timeout))

    def apply_stream(
        self,
        ops: Iterable[Operation] | AsyncIterable[Operation],
        *,
        timeout: float | None = None,
        # async:
    ) -> AsyncIterator[Outcome]:
        # sync:
        # | ) -> OutcomeStream:
        # end
        """Execute operations as they come and yield their outcomes, in the order given.

        Like ``apply``, with bounded memory: it starts at the first ``anext`` and reads ahead by no
        more operations than the queues hold, and no more gets than bring as many bytes. An
        exception of ``ops`` itself is passed on after the outcomes of all that came before it.
        Closing the iterator early (``aclose()``) cancels what is queued, and waits for what was
        sent.
        """
        return self._stream(ops, self._seconds(timeout))

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

        That is the value at ``prefix`` itself, if it holds one, and those of all paths below it
        (``/``: the whole store), in the byte order of UTF-8. It is read in pages, with bounded
        memory, as the iterator goes on; closing it ends the scan. On etcd all pages are of one
        revision: a consistent snapshot. It is not ordered against writes under way: ``flush()``
        first where that matters.

        Keys that other clients have written and that are not valid paths (``/a/``, ``/a//b``) are
        left out. The iterator's ``foreign`` says how many were met so far, and names the first
        ten. A scan of ``/`` counts those without a leading slash, too, where the store's URL has no
        prefix.

        Args:
            prefix: a path, or ``/``.
            start: only this path and those after it.
            end: only paths before this one.
            revision: on etcd, the revision whose values are to be given, in place of the newest.
            timeout: seconds for each request; ``operation_timeout`` where it is not given.

        Raises:
            RevisionCompactedError: the store does not keep the revision any more; with the oldest
                one that it does.
            InvalidSettingError: the revision does not exist yet.
            UnsupportedError: ``revision`` is given, and the store lacks ``"snapshots"``.
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

        For those who take much, and take it on by columns, as Arrow does: a third of the work.

        Without ``values`` the pages are :class:`StatPage`: the same paths and stats, and no values,
        which then are neither sent by etcd nor held in memory. ZooKeeper sends them along where
        they have less than a kilobyte on average, which costs it less than to be asked for each
        stat by itself; RocksDB reads them from the disk.

        Each page has ``foreign``: the keys in its part of the store that are left out because they
        are not valid paths. A page may have these only, and no result. Over the ranges of
        :meth:`split` each such key comes once.
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
        scanner, seconds = self._engine.scanner(), self._seconds(timeout)
        return await asyncio.to_thread(scanner.split, prefix, n, seconds)

    async def delete_recursive(self, path: str, *, timeout: float | None = None) -> int:
        """Remove the value at a path and all below it, in batches; return how many that were.

        On threads the call itself does the work, and returns a future that has ended. For a task
        another thread does it, and goes on if the task is cancelled. It is not atomic, and what
        others put there meanwhile may be removed or stay. Keys that are not valid paths stay, and
        are not counted; :meth:`scan` counts them. ``timeout`` holds for each request.
        """
        check_parent(path)
        scanner, seconds = self._engine.scanner(), self._seconds(timeout)
        return await self._walk(scanner.delete_recursive, path, seconds)

    async def revision(self, *, timeout: float | None = None) -> int:
        """Return the store's revision: that of every later change is greater.

        For :meth:`scan` and :meth:`changes` on etcd: noted once, it is one snapshot for all ranges.
        """
        return await asyncio.to_thread(self._engine.scanner().revision, self._seconds(timeout))

    def changes(
        self, prefix: str, after: int, until: int, *, timeout: float | None = None
    ) -> AsyncResultStream[Change]:
        """Give each change under ``prefix`` between two revisions once, in their order (etcd).

        That are puts and deletes of ``prefix`` itself and of all paths below it (``/``: the whole
        store), of revisions greater than ``after`` and not greater than ``until``. It is read out
        of the store's history: asked again, the iterator gives the same. ``revision()`` is the
        greatest ``until`` there can be. It is read as the iterator goes on, with bounded memory;
        closing it ends it. History ends where etcd was compacted. Changes of keys that are not
        valid paths are left out, and counted in the iterator's ``foreign``, as those of a scan.

        Args:
            prefix: a path, or ``/``.
            after: the revision that is known already; 0 for all changes there have ever been.
            until: the last revision whose changes are to be given.
            timeout: seconds without news from the server; ``operation_timeout`` where it is not
                given.

        Raises:
            RevisionCompactedError: the store does not keep all changes after ``after`` any more;
                with the oldest revision that they can follow.
            InvalidSettingError: ``until`` does not exist yet.
            UnsupportedError: the store lacks ``"history"``.
        """
        asked = check_changes(prefix, after, until)
        return changes_of_async(self._engine.historian(), *asked, self._seconds(timeout))

    async def flush(self) -> None:
        """Send what is queued at once; return when all that was submitted before has ended."""
        await asyncio.to_thread(self._engine.flush)

    async def sync(self, timeout: float | None = None) -> None:
        """Return when later reads see all that anybody had written before.

        Only on ZooKeeper, whose reads may lag behind other sessions' writes, is there something
        to wait for; elsewhere reads are linearizable as they are.

        Raises:
            OperationTimeoutError: the server did not answer within ``timeout`` seconds
                (``operation_timeout`` where it is not given).
            StoreUnavailableError: there was no server to answer within that time.
        """
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
        await self._close(timeout)

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

    def _seconds(self, timeout: float | None) -> float:
        return self._timeout if timeout is None else check_seconds("timeout", timeout)
