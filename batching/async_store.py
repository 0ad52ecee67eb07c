# async:
# `_sync/store.py` is generated from this file: after a change, run `python tools/faces.py`.
"""The store that asyncio tasks hold."""
# sync:
# | """The store that threads hold."""
# end

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterable, Sequence
from typing import Any, Literal, NoReturn, Self, TypeVar, overload

from ..ops.capabilities import Capability
from ..ops.errors import InvalidPathError
from ..ops.operations import (
    ABSENT,
    ConditionOptions,
    Operation,
    Part,
    PutOptions,
    TransactionOptions,
    check_expected,
    check_value,
)
from ..ops.paths import check_parent, check_path, check_stem
from ..ops.results import (
    Acl,
    Change,
    GetResult,
    Outcome,
    Range,
    ScanPage,
    ScanResult,
    Stat,
    StatPage,
)
from ..ops.serdes import Serde, bytes_serde
from .async_store_base import AsyncStoreBase
from .async_views import AsyncView
from .async_watches import AsyncWatch
from .changes import changes_of_async, check_changes
from .checks import check_operation, check_size, check_supported, check_transaction
from .feeds import MAX_EVENTS, WatchCallback, check_callback, check_watch
from .metrics import Metrics
from .scans import AsyncResultStream, check_scan, check_split, pages_of_async, results_of_async
from .sessions import Session, SessionCallback, SessionListener
from .settings import check_seconds
from .values import with_values

# sync:
# | from .reentry import refused
# end

# sync:
# | from .bulk import OutcomeStream
# end

__all__ = ["AsyncMetadataStore"]


T = TypeVar("T")


class AsyncMetadataStore(AsyncStoreBase):
    # async:
    """A store of small values at paths, for the tasks of one event loop.

    It behaves like :class:`MetadataStore`, with coroutines of the same names. An operation is
    submitted when its coroutine first runs. If the queue is full, it waits without blocking the
    loop. Cancelling the task that awaits an operation removes the operation from the queue; if it
    was already sent, it continues.

    ``apply`` and ``apply_stream`` also take asynchronous iterables. They submit each operation of
    an asynchronous iterable before they request the next. Scans and changes are read on threads of
    the loop's default executor. ``aclose()`` closes their iterators, and so does the end of the
    task.

    :func:`batchkeeper.open_async_store` opens it. Close it, or use it in an ``async with`` block.
    """

    # sync:
    # | """A store of small values at paths, for any number of threads.
    # |
    # | Operations return a ``concurrent.futures.Future`` at once and are sent in batches (see
    # | :class:`BatchingConfig`). Operations on one path take effect in the order of the calls. Each
    # | future ends exactly once: with its result, with a ``MetadataStoreError``, or cancelled
    # | before it was sent. Done-callbacks run on a thread of their own.
    # |
    # | The call itself refuses bad input with ``InvalidPathError``, ``InvalidSettingError``,
    # | ``ValueTooLargeError`` or ``UnsupportedError``. After ``close``, every call raises
    # | ``StoreClosedError``. A call waits only if the queue is full and ``on_full`` lets it wait,
    # | and then raises ``QueueFullError`` at the operation's deadline.
    # |
    # | Every operation takes ``timeout``: seconds from the call until the operation's deadline, by
    # | default the store's ``operation_timeout``. At its deadline, an operation that cannot have
    # | changed anything ends with ``OperationTimeoutError``, or with ``StoreUnavailableError`` if
    # | no server is connected; if it was not sent, it never is. A write that may have been applied
    # | ends with ``IndeterminateError``.
    # |
    # | :func:`batchkeeper.open_store` opens it. Close it, or use it in a ``with`` block.
    # | """
    # end

    @property
    def capabilities(self) -> frozenset[Capability]:
        """The features of this store beyond the operations that all stores have.

        A call that needs a missing capability raises ``UnsupportedError``.
        """
        return self._engine.capabilities

    @property
    def advisory(self) -> str | None:
        """A fault of the server's version that can lose data, in a sentence; ``None`` without one.

        It was found as the store was opened, and logged once for each server.
        """
        return self._engine.advisory

    @property
    def operation_timeout(self) -> float:
        """The seconds that each operation without a ``timeout`` of its own has."""
        return self._timeout

    async def get(self, path: str, *, timeout: float | None = None) -> GetResult | None:
        """Return a path's value with its stat, or ``None`` if the path holds no value."""
        check_path(path)
        return await self._run("get", path, timeout)

    async def put(
        self,
        path: str,
        value: bytes | bytearray | memoryview,
        expected_version: int | None = None,
        *,
        ephemeral: bool = False,
        sequential: bool = False,
        expected_revision: int | None = None,
        timeout: float | None = None,
    ) -> Stat:
        """Set a path's value and return its new stat. A missing path is created.

        Args:
            path: the path.
            value: the value.
            expected_version: the put fails with ``BadVersionError`` unless the path is at this
                version (:data:`ABSENT`: unless it holds no value).
            ephemeral: if the put creates the path, the value ends with the store's session, and not
                before. A later put changes only the value, with or without this flag. If the
                session ends before the put takes effect, it fails with ``SessionLostError``.
            sequential: the store appends ten digits to the path, which grow with each sequential
                put below the same parent and never repeat. The stat has the real path. With a path
                that ends with ``/``, the digits are the whole name.
            expected_revision: the put fails with ``BadVersionError`` unless the path is at this
                revision. Unlike a version, a revision never returns after a delete.
            timeout: seconds until the deadline; ``operation_timeout`` by default.
        """
        if sequential is True:
            check_stem(path)
        else:
            check_path(path)
        if type(value) is not bytes:
            value = check_value(value)
        if expected_version is not None:
            check_expected(expected_version, ABSENT)
        engine = self._engine
        options = None
        if ephemeral is not False or sequential is not False or expected_revision is not None:
            options = PutOptions.of(ephemeral, sequential, expected_revision)
            if options is not None:
                options.check(expected_version)
                check_supported(options, engine.capabilities, engine.name)
        if len(value) > engine.limits.value_bytes:
            check_size(path, value, engine.limits.value_bytes)
        return await self._run("put", path, timeout, value, expected_version, options)

    async def delete(
        self,
        path: str,
        expected_version: int | None = None,
        *,
        expected_revision: int | None = None,
        timeout: float | None = None,
    ) -> None:
        """Remove a path's value.

        It fails with ``NotFoundError`` if the path holds no value, with ``BadVersionError`` if the
        path is not at ``expected_version`` or ``expected_revision``, and with ``NotEmptyError`` if
        values lie below it.
        """
        check_path(path)
        check_expected(expected_version, 0)
        options = None
        if expected_revision is not None:
            options = ConditionOptions(expected_revision)
            check_supported(options, self._engine.capabilities, self._engine.name)
        return await self._run("delete", path, timeout, None, expected_version, options)

    async def transaction(
        self, ops: Iterable[Part], *, timeout: float | None = None
    ) -> list[Stat | None]:
        """Execute checks, puts and deletes together: all of them take effect, or none does.

        The store decides and applies them in order. The result is a list with one entry for each: a
        ``Stat`` for a put, ``None`` for a check or a delete. The transaction travels in a batch
        like any other operation, and keeps the order of all of its paths. Transactions that only
        check the same path do not wait for each other.

        It fails with ``TransactionRefusedError`` if one of the operations does not hold. The error
        has the ``index`` of the first such operation, and the ``error`` with which it would have
        ended alone.

        Raises:
            InvalidSettingError: there is no operation, one of another kind, a sequential put, a
                path that occurs twice, or more operations than the store accepts.
            ValueTooLargeError: it is larger than the store's largest request.
        """
        options = TransactionOptions.of(ops)
        engine = self._engine
        check_transaction(options, engine.limits, engine.capabilities, engine.name)
        return await self._run("transaction", options.paths[0], timeout, None, None, options)

    async def get_children(self, path: str, *, timeout: float | None = None) -> list[str]:
        """Return the sorted names below a path, or below ``/``; an empty list for a missing path.

        Names of other clients' keys are left out if they form no valid path. The call is not
        ordered against writes below the path: call ``flush()`` first if that matters.
        """
        check_parent(path)
        return await self._run("get_children", path, timeout)

    async def exists(self, path: str, *, timeout: float | None = None) -> bool:
        """Say whether a path holds a value."""
        check_path(path)
        return await self._run("exists", path, timeout)

    def submit(self, op: Operation, *, timeout: float | None = None) -> asyncio.Future[Any]:
        # async:
        """Submit an operation object and return the future of its result.

        This method is not a coroutine: it returns at once.

        Raises:
            QueueFullError: the queue is full. The call cannot wait for room.
        """
        # sync:
        # | """Submit an operation object and return the future of its result."""
        # end
        engine = self._engine
        check_operation(op, engine.limits, engine.capabilities, engine.name)
        return self._submit(op, self._seconds(timeout))

    async def get_many(
        self, paths: Iterable[str], *, timeout: float | None = None
    ) -> list[GetResult | None]:
        """Return the values of many paths with their stats, in the order given.

        Each is what ``get`` would return, and no more than that: the paths have no moment in
        common. This is the cheapest way to read values at known paths. It keeps them all in memory;
        ``apply_stream`` reads with a bound.

        Args:
            paths: the paths; one may occur twice.
            timeout: seconds that each get has from its submission, as with ``apply``.

        Raises:
            InvalidPathError: a path is not valid, or ``paths`` is a single one. Nothing was read.
            MetadataStoreError: a get failed; the first error in the order of the paths.
        """
        if isinstance(paths, str):
            raise InvalidPathError(f"paths is one path, not several: {paths!r}", path=paths)
        return await self._many([*map(check_path, paths)], self._seconds(timeout))

    async def apply(
        self, ops: Iterable[Operation] | AsyncIterable[Operation], *, timeout: float | None = None
    ) -> list[Outcome]:
        """Execute operations and return their outcomes, in the order given.

        An error of one operation is that operation's outcome and is not raised. If the queue is
        full, the call waits. ``timeout`` applies to each operation. The call reads and submits
        ``ops`` up to 256 operations at a time; if an operation depends on earlier outcomes, use
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
        """Execute operations as they arrive and yield their outcomes, in the order given.

        This is ``apply`` with bounded memory. It starts at the first ``anext`` and reads ahead at
        most as many operations as the queues hold, and as many gets as return at most
        ``max_queued_bytes`` on average. An exception of ``ops`` is raised after the outcomes of all
        operations before it. Closing the iterator early (``aclose()``) cancels queued operations
        and waits for sent ones.
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
        """Yield ``(path, value, stat)`` for every value under ``prefix``, in the order of paths.

        The scan covers ``prefix`` itself and all paths below it (``/``: the whole store), in the
        byte order of UTF-8. The iterator reads pages as it advances, with bounded memory; closing
        it ends the scan. On etcd, all pages show one revision, so the scan is a consistent
        snapshot. The scan is not ordered against writes under way: call ``flush()`` first if that
        matters.

        Keys of other clients that are not valid paths (``/a/``, ``/a//b``) are left out, and on
        ZooKeeper nodes that the login may not read, with all below them. The iterator's ``foreign``
        counts the keys left out so far and names the first ten. If the
        store's URL has no prefix, a scan of ``/`` also counts keys without a leading slash.

        Args:
            prefix: a path, or ``/``.
            start: the first path of the scan.
            end: the path before which the scan ends.
            revision: on etcd, the revision to read; the newest by default.
            timeout: seconds for each request; ``operation_timeout`` by default.

        Raises:
            RevisionCompactedError: the store no longer keeps the revision. The error names the
                oldest revision that can be read.
            InvalidSettingError: the revision does not exist yet.
            UnsupportedError: ``revision`` is given, but the store lacks ``"snapshots"``.
        """
        asked = check_scan(prefix, start, end, revision)
        return results_of_async(self._engine.facets.scans(revision), *asked, self._seconds(timeout))

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
        """Yield the results of :meth:`scan` in the pages that the store reads, as columns.

        For callers that process many results by columns, as Arrow does, this takes a third of the
        work.

        With ``values=False``, the pages are :class:`StatPage`: the same paths and stats without
        values. etcd then sends no values, and none are held in memory. ZooKeeper still sends values
        that average less than a kilobyte, because separate requests for stats cost it more. RocksDB
        still reads them from the disk.

        ``foreign`` of a page lists the keys that are left out of its part of the store because they
        are not valid paths, or may not be read. A page may have such keys and no results. The
        ranges of :meth:`split` list each key once.
        """
        asked = check_scan(prefix, start, end, revision)
        scanner, seconds = self._engine.facets.scans(revision), self._seconds(timeout)
        return pages_of_async(scanner, *asked, seconds, values=values)

    async def split(self, prefix: str, n: int, *, timeout: float | None = None) -> Sequence[Range]:
        """Return up to ``n`` ranges for ``scan``, with about the same number of values in each.

        Together they cover every path under ``prefix``, later ones included: the first range has no
        start, and the last has no end.
        """
        check_split(prefix, n)
        scanner, seconds = self._engine.facets.scans(), self._seconds(timeout)
        # async:
        self._check_loop()
        # end
        return await asyncio.to_thread(scanner.split, prefix, n, seconds)

    async def delete_recursive(self, path: str, *, timeout: float | None = None) -> int:
        """Remove the value at a path and all values below it, and return the number removed.

        A store for threads does the work in the call and returns a future that has ended. A store
        for tasks does it on another thread, which continues if the task is cancelled. The removal
        takes several batches and is not atomic: values that others put there meanwhile may be
        removed or stay. Keys that are not valid paths stay and are not counted; :meth:`scan` counts
        them. ``timeout`` applies to each request.
        """
        check_parent(path)
        scanner, seconds = self._engine.facets.scans(), self._seconds(timeout)
        return await self._walk(scanner.delete_recursive, path, seconds)

    async def revision(self, path: str = "/", *, timeout: float | None = None) -> int:
        """Return the store's current revision. Every later change has a greater one.

        On etcd, pass it to :meth:`scan` to read several ranges of one snapshot, to :meth:`changes`,
        or to :meth:`watch`. A login that may not read ``/`` names a path that it may read.
        """
        # async:
        self._check_loop()
        # end
        seconds = self._seconds(timeout)
        if path == "/":
            return await asyncio.to_thread(self._engine.facets.scans().revision, seconds)
        check_path(path)
        return await asyncio.to_thread(self._engine.facets.history().revision, path, seconds)

    @overload
    async def view(
        self,
        prefix: str,
        serde: None = None,
        *,
        max_bytes: int = 1 << 30,
        timeout: float | None = None,
    ) -> AsyncView[bytes]: ...
    @overload
    async def view(
        self,
        prefix: str,
        serde: Serde[T],
        *,
        max_bytes: int = 1 << 30,
        timeout: float | None = None,
    ) -> AsyncView[T]: ...
    async def view(
        self,
        prefix: str,
        serde: Serde[Any] | None = None,
        *,
        max_bytes: int = 1 << 30,
        timeout: float | None = None,
    ) -> AsyncView[Any]:
        """Return the values of a path and of all paths below it, as a mapping that is kept current.

        It is complete when it is returned: see :class:`AsyncView`. One watch follows the changes of
        all clients. Close it, or use it as a context manager; closing the store ends it, too.

        Args:
            prefix: a path, or ``/``.
            serde: decodes the values, when they are looked up; bytes by default.
            max_bytes: the limit of the bytes of paths and values, with 300 more for each. A view of
                more is refused, and one that grows beyond it ends with an error.
            timeout: seconds within which it must be complete; without a limit by default, as long
                as the store answers.

        Raises:
            UnsupportedError: the store lacks ``"watches"``.
            ValueTooLargeError: there is more than ``max_bytes``.
            OperationTimeoutError: the view is not complete within ``timeout``.
            MetadataStoreError: as for a scan or a watch.
        """
        if timeout is not None:
            check_seconds("timeout", timeout)
        self._engine.facets.watches(None)
        # async:
        self._check_loop()
        # sync:
        # | if self._interrupted():
        # |     raise refused(prefix)
        # end
        view = AsyncView(self, prefix, bytes_serde if serde is None else serde, max_bytes)
        return await view.begin(timeout)

    async def get_acl(self, path: str, *, timeout: float | None = None) -> Acl:
        """Return the access control list of a path; ``/`` is the root of the store.

        Raises:
            NotFoundError: the path does not exist.
            UnsupportedError: the store has none; see the capability ``"acls"``.
        """
        check_parent(path)
        acls, seconds = self._engine.facets.acls(), self._seconds(timeout)
        # async:
        self._check_loop()
        # end
        return await asyncio.to_thread(acls.get, path, seconds)

    async def set_acl(
        self,
        path: str,
        acl: str | Sequence[str],
        expected_version: int | None = None,
        *,
        timeout: float | None = None,
    ) -> int:
        """Replace the access control list of a path, and return the new version of the list.

        ``acl`` is what ``open_store`` takes. ``expected_version`` is the ``version`` of the
        :class:`Acl`, which is not that of the value.

        Raises:
            InvalidSettingError: it is no list.
            NotFoundError: the path does not exist.
            BadVersionError: the list is not at the expected version.
            UnsupportedError: the store has none; see the capability ``"acls"``.
        """
        check_parent(path)
        check_expected(expected_version, 0)
        acls, seconds = self._engine.facets.acls(), self._seconds(timeout)
        # async:
        self._check_loop()
        # end
        return await asyncio.to_thread(acls.set, path, acl, expected_version, seconds)

    def changes(
        self, prefix: str, after: int, until: int, *, timeout: float | None = None
    ) -> AsyncResultStream[Change]:
        """Yield each change under ``prefix`` between two revisions once, in order (etcd).

        The changes are the puts and deletes of ``prefix`` itself and of all paths below it (``/``:
        the whole store), with revisions greater than ``after`` and up to ``until``. They come from
        the store's history, so a second call yields the same changes. The iterator reads pages as
        it advances, with bounded memory; closing it ends the reading. etcd drops its history when
        it is compacted. Changes of keys that are not valid paths are left out and counted in the
        iterator's ``foreign``, as in a scan.

        Args:
            prefix: a path, or ``/``.
            after: the revision after which the changes begin; 0 for the whole history.
            until: the last revision, at most ``revision()``.
            timeout: seconds without an answer from the server; ``operation_timeout`` by default.

        Raises:
            RevisionCompactedError: the store no longer keeps all changes after ``after``. The error
                names the oldest revision that can be passed as ``after``.
            InvalidSettingError: ``until`` does not exist yet.
            UnsupportedError: the store lacks ``"history"``.
        """
        asked = check_changes(prefix, after, until)
        return changes_of_async(self._engine.facets.history(), *asked, self._seconds(timeout))

    def watch(
        self,
        prefix: str,
        *,
        after: int | None = None,
        max_events: int = MAX_EVENTS,
        callback: WatchCallback | None = None,
        values: bool = False,
        timeout: float | None = None,
    ) -> AsyncWatch:
        """Watch a path and all paths below it (``/``: the whole store) for changes.

        The watch reports every change that takes effect once it is in place, from any client: once
        each, in the order of the store, as :class:`WatchEvent`. A put that is submitted then gives
        an event. A store for threads returns the watch when it is in place. A store for tasks
        returns it at once: await it, use it in ``async with``, or iterate over it with ``async
        for``, which all wait until it is in place.

        A watch holds ``max_events`` events for a slow reader. If there are more, the oldest are
        dropped, and one event of the kind ``"gap"`` stands in their place. A gap also stands where
        the store cannot give what happened during an outage. After a gap, read the paths again.

        After an outage, the watch goes on. If it fails for good, for example because the login may
        no longer read the paths, its iterator raises the error after the last event. A callback
        then gets a last gap, and the watch has the ``error``, which is also logged.

        Args:
            prefix: a path, or ``/``.
            after: a revision; the watch then begins with the changes after it (etcd).
            max_events: the most events that the watch holds.
            callback: receives the events, one by one, instead of an iterator: on the thread of the
                done-callbacks, or on the loop for tasks. It may call the store and close the watch.
                An exception in it is logged, and the next event follows.
            values: whether events of puts have the value with its stat in ``found``. etcd sends
                them with the events; on other stores, the client reads them after the events, in
                batches. The watch then also holds at most 64 MiB of values.
            timeout: seconds within which the watch must be in place; ``operation_timeout`` by
                default.

        Raises:
            UnsupportedError: the store lacks ``"watches"``, or ``after`` is given and it lacks
                ``"history"``.
            RevisionCompactedError: the store no longer keeps all changes after ``after``.
            OperationTimeoutError: the watch is not in place within ``timeout``.
            StoreUnavailableError: no server was connected at the end of that time.
        """
        asked = check_watch(prefix, after, max_events, callback, values=values)
        watches, seconds = self._engine.facets.watches(after), self._seconds(timeout)
        begin = with_values(self._engine, watches, self._timeout) if values else watches.watch
        return self._watch(begin, asked, seconds)

    def _watch_deletion(self, path: str, timeout: float | None) -> tuple[AsyncWatch, bool]:
        """Watch one path, which is never put again, until its deletion.

        The second value says whether the watch reports it also if the path is missing already.
        """
        begin, looks = self._engine.facets.deletions()
        return self._watch(begin, check_watch(path), self._seconds(timeout)), looks

    @property
    def session(self) -> Session:
        """The session of the store, to which its ephemeral values belong.

        Reading it raises ``UnsupportedError`` if the store lacks ``"ephemerals"``.
        """
        return Session(self._engine.facets.session())

    def add_session_listener(self, callback: SessionCallback) -> SessionListener:
        """Call a function at each event of the store's session (see ``session``).

        It receives ``"connection_lost"``, ``"reconnected"``, ``"session_lost"`` or
        ``"session_reestablished"``, each once and in order. A short outage gives the first two. A
        longer one, in which the server ends the session, gives all four, the last when a new
        session stands and watches go on. The ephemeral values of a lost session are gone, and
        nothing puts them again.

        The function runs on the thread of the done-callbacks, or on the loop for tasks. It may call
        the store. An exception in it is logged. Close the result to end the listener.

        Raises:
            UnsupportedError: the store lacks ``"ephemerals"``, and so it has no session.
        """
        check_callback(callback)
        self._engine.check_open()
        return self._listeners.add(self._engine.facets.session(), callback)

    async def flush(self) -> None:
        """Send all queued operations at once, and return when all earlier operations have ended."""
        # async:
        self._check_loop()
        # end
        await asyncio.to_thread(self._engine.flush)

    async def sync(self, timeout: float | None = None) -> None:
        """Make sure that later reads see every write that any client has completed.

        Only ZooKeeper needs this, because its reads may lag behind other sessions' writes. On the
        other stores, reads are linearizable.

        Raises:
            OperationTimeoutError: the server did not answer within ``timeout`` seconds
                (``operation_timeout`` by default).
            StoreUnavailableError: no server was connected at the end of that time.
        """
        await self._sync(self._seconds(timeout))

    def metrics(self) -> Metrics:
        """Return a snapshot of the store's queues, batches, timings, failures and watches."""
        return self._engine.metrics()

    async def close(self, timeout: float | None = None) -> None:
        """Send all queued operations, wait for them, and close the store.

        After ``timeout`` seconds, operations that were not sent end with ``StoreClosedError``, and
        writes without an answer with ``IndeterminateError``. Without ``timeout``, operations end at
        their own deadlines at the latest. Closing a store twice does no harm.
        """
        if timeout is not None:
            timeout = 0.0 if timeout == 0 else check_seconds("timeout", timeout)
        await self._close(timeout)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
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
