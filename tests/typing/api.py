"""A user of the public face, for the type checker: the types are part of its contract.

``tox -e types`` checks it against the installed package. It never runs. A ``type: ignore`` is part
of the contract, too: mypy reports it if the line becomes valid.
"""

from __future__ import annotations

import asyncio
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Coroutine,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from concurrent.futures import Future
from typing import Any, Literal, assert_never, assert_type

import batchkeeper as bk
from batchkeeper.observability import (
    MetricsServer,
    OpenTelemetryHooks,
    OpenTelemetryMetrics,
    PrometheusCollector,
    serve_metrics,
)
from batchkeeper.ops.errors import error_class
from batchkeeper.stores import Answer, Limits, PassingBackend
from batchkeeper.stores.backend import ReadRequest, WriteRequest
from batchkeeper.testing import FaultInjector, Hit, Injection
from batchkeeper.testing.faults import FaultyBackend

assert_type(bk.accelerated, bool)

# Opening


class Conflicts:
    def on_conflict(self, conflict: bk.Conflict) -> None:
        assert_type(conflict.error, bk.MetadataStoreError)

    def on_session(self, change: bk.SessionChange) -> None:
        assert_type(change.event, bk.SessionEvent)


class Batches:
    def on_batch_ended(self, ended: bk.EndedBatch) -> None:
        assert_type(ended.batch, bk.Batch)
        assert_type(ended.errors, Mapping[str, int])


class WrongBatches:
    def on_batch_ended(self, ended: bk.Batch) -> None: ...


def observe(threads: bk.MetadataStore, tasks: bk.AsyncMetadataStore) -> None:
    collector = PrometheusCollector(threads, name="threads")
    collector.add(tasks)
    OpenTelemetryMetrics(threads).add(tasks, name="tasks")
    bk.open_async_store("memory://api", hooks=[OpenTelemetryHooks(spans=False), Batches()])
    with serve_metrics(tasks, port=0, host="localhost") as served:
        assert_type(served, MetricsServer)
        assert_type(served.url, str)
    assert_type(threads.metrics().to_dict(), dict[str, Any])


def open_for_threads() -> None:
    with bk.open_store("memory://api") as opened:
        assert_type(opened, bk.MetadataStore)
    store = bk.open_store(
        "memory://api",
        batching=bk.BatchingConfig(max_ops=128),
        connect_timeout=1.0,
        session_timeout=10,
        operation_timeout=5.0,
        username="user",
        password=None,
        password_file=None,
        sasl="gssapi",
        sasl_service="zookeeper",
        acl=("auth::cdrwa",),
        create=False,
        wrap=[FaultyBackend, PassingBackend],
        hooks=[Conflicts(), Batches()],
    )
    any_hook: bk.Hook = Batches()
    bk.open_store("memory://api", hooks=any_hook)
    assert_type(store, bk.MetadataStore)
    bk.open_store("memory://api", hooks=Conflicts())
    bk.open_store("memory://api", hooks=object())  # type: ignore[arg-type]
    bk.open_store("memory://api", hooks=WrongBatches())  # type: ignore[arg-type]
    bk.open_store("memory://api", None)
    bk.open_store(b"memory://api")  # type: ignore[arg-type]
    bk.open_store("memory://api", None, 1.0)  # type: ignore[call-arg]
    bk.open_store("memory://api", connect_timeout="1")  # type: ignore[arg-type]


async def open_for_tasks() -> None:
    async with bk.open_async_store(
        "memory://api",
        batching=bk.BatchingConfig(max_ops=128),
        connect_timeout=1.0,
        session_timeout=10,
        operation_timeout=5.0,
        username="user",
        password=None,
        create=False,
        wrap=FaultyBackend,
    ) as opened:
        assert_type(opened, bk.AsyncMetadataStore)
    store = await bk.open_async_store("memory://api")
    assert_type(store, bk.AsyncMetadataStore)
    bk.open_async_store("memory://api", connect_timeout="1")  # type: ignore[arg-type]
    with bk.open_async_store("memory://api"):  # type: ignore[attr-defined]
        pass


def settings() -> None:
    config = bk.BatchingConfig(
        enabled=True,
        max_ops=1,
        max_bytes=1,
        max_delay=0,
        read_queue_size=1,
        write_queue_size=1,
        max_queued_bytes=1,
        max_in_flight=None,
        max_singles=0,
        on_full="block",
        linger="fixed",
    )
    assert_type(config.enabled, bool)
    assert_type(config.max_ops, int)
    assert_type(config.max_bytes, int)
    assert_type(config.max_delay, float)
    assert_type(config.read_queue_size, int)
    assert_type(config.write_queue_size, int)
    assert_type(config.max_queued_bytes, int)
    assert_type(config.max_in_flight, int | None)
    assert_type(config.max_singles, int)
    assert_type(config.on_full, Literal["single", "block", "raise"])
    assert_type(config.linger, Literal["adaptive", "fixed"])
    bk.BatchingConfig(on_full="wait")  # type: ignore[arg-type]
    bk.BatchingConfig(True)  # type: ignore[call-arg]
    config.max_ops = 2  # type: ignore[misc]


def kinds(kind: bk.StoreKind, url: bk.StoreURL) -> None:
    assert_type(bk.store_kind("memory://api"), bk.StoreKind)
    assert_type(bk.store_kind(url), bk.StoreKind)
    assert_type(kind.scheme, str)
    assert_type(kind.schemes, tuple[str, ...])
    assert_type(kind.title, str)
    assert_type(kind.url_form, str)
    assert_type(kind.capabilities, frozenset[bk.Capability])
    assert_type(kind.in_process, bool)
    known: bk.Capability = "snapshots"
    assert known not in kind.capabilities
    unknown: bk.Capability = "colours"  # type: ignore[assignment]
    assert unknown
    assert_type(bk.parse_url("memory://api"), bk.StoreURL)
    assert_type(url.scheme, str)
    assert_type(url.hosts, tuple[str, ...])
    assert_type(url.path, str)
    assert_type(url.options, Mapping[str, str])
    assert_type(url.text, str)


# Wrappers


class Counting(PassingBackend):
    """A wrapper as a class: its own arguments come from a function around it."""

    def __init__(self, backend: bk.Backend, calls: list[int]) -> None:
        super().__init__(backend)
        self._calls = calls

    def write(self, requests: Sequence[WriteRequest], deadline: float) -> Sequence[Answer]:
        self._calls.append(len(requests))
        return super().write(requests, deadline)

    def read(self, requests: Sequence[ReadRequest], deadline: float) -> Sequence[Answer]:
        self._calls.append(len(requests))
        return super().read(requests, deadline)


def counting(calls: list[int]) -> bk.Wrapper:
    return lambda backend: Counting(backend, calls)


def unchanged(backend: bk.Backend) -> bk.Backend:
    assert_type(backend.limits, Limits)
    assert_type(backend.connected, bool)
    assert_type(backend.write([bk.Put("/a", b"")], 0.0), Sequence[Answer])
    return backend


def no_wrapper(backend: bk.Backend) -> None:
    backend.close()


def wrappers(
    calls: list[int], backend: bk.Backend, given: bk.Wrapper, several: Sequence[bk.Wrapper]
) -> None:
    bk.open_store("memory://api", wrap=unchanged)
    bk.open_store("memory://api", wrap=lambda backend: Counting(backend, calls))
    bk.open_store("memory://api", wrap=[counting(calls), unchanged, FaultyBackend, given])
    bk.open_store("memory://api", wrap=several)
    bk.open_async_store("memory://api", wrap=unchanged)
    bk.open_async_store("memory://api", wrap=(unchanged, given))
    assert_type(given(Counting(backend, calls)), bk.Backend)
    bk.open_store("memory://api", wrap=no_wrapper)  # type: ignore[arg-type]
    bk.open_store("memory://api", wrap=None)  # type: ignore[arg-type]
    bk.open_store("memory://api", wrap=FaultyBackend(backend))  # type: ignore[arg-type]


# Operations, results and errors


def operations() -> None:
    put = bk.Put("/a", bytearray(), bk.ABSENT, ephemeral=True, sequential=False)
    assert_type(put.kind, Literal["put"])
    assert_type(put.path, str)
    assert_type(put.value, bytes)
    assert_type(put.expected_version, int | None)
    assert_type(put.ephemeral, bool)
    assert_type(put.sequential, bool)
    assert_type(put.options, bk.PutOptions | None)
    options = bk.PutOptions(ephemeral=True, sequential=True)
    assert_type(options.ephemeral, bool)
    assert_type(options.sequential, bool)
    assert_type(bk.Put("/a", memoryview(b""), options=options), bk.Put)
    assert_type(put.expected_revision, int | None)
    delete = bk.Delete("/a", expected_version=0, expected_revision=1)
    assert_type(delete.expected_revision, int | None)
    check = bk.Check("/a", bk.ABSENT)
    assert_type(check.expected_version, int | None)
    assert_type(bk.Check("/a", expected_revision=2).expected_revision, int | None)
    transaction = bk.Transaction([check, put, delete])
    assert_type(transaction.ops, tuple[bk.Check | bk.Put | bk.Delete, ...])
    bk.Transaction([bk.Get("/a")])  # type: ignore[list-item]
    assert_type(delete.kind, Literal["delete"])
    assert_type(delete.expected_version, int | None)
    assert_type(bk.Get("/a").kind, Literal["get"])
    assert_type(bk.GetChildren("/").kind, Literal["get_children"])
    assert_type(bk.Exists("/a").kind, Literal["exists"])
    version: int = bk.ABSENT
    assert version
    bk.Put("/a", "text")  # type: ignore[arg-type]
    bk.Put("/a", b"", options={"ephemeral": True})  # type: ignore[arg-type]
    bk.Put("/a", b"", None, True)  # type: ignore[call-arg]
    put.path = "/b"  # type: ignore[misc]
    options.ephemeral = False  # type: ignore[misc]


def every_operation(op: bk.Operation) -> str:
    """The union is closed: a caller can tell its members apart."""
    if isinstance(op, bk.Get | bk.GetChildren | bk.Exists):
        assert_type(op.kind, Literal["get", "get_children", "exists"])
    elif isinstance(op, bk.Put):
        assert_type(op.value, bytes)
    elif isinstance(op, bk.Transaction):
        return op.ops[0].path
    elif isinstance(op, bk.Delete):
        assert_type(op.expected_version, int | None)
    else:
        assert_never(op)
    return op.path


def every_result(result: bk.Result) -> str:
    if result is None or isinstance(result, bool):
        return "nothing"
    if isinstance(result, bk.Stat):
        return result.path
    if isinstance(result, bk.GetResult):
        return result.stat.path
    assert_type(result, list[str] | list[bk.Stat | None])
    return str(result)


def sessions_and_watches(
    event: bk.WatchEvent, happened: bk.SessionEvent, state: bk.SessionState
) -> None:
    assert_type(event.kind, Literal["created", "modified", "deleted", "gap"])
    assert_type(event.path, str)
    assert_type(event.version, int | None)
    assert_type(event.revision, int | None)
    assert_type(event.found, bk.GetResult | None)
    assert_type(event.value, bytes | None)
    assert_type(
        happened,
        Literal["connection_lost", "reconnected", "session_lost", "session_reestablished"],
    )
    assert_type(state, Literal["new", "connected", "suspended", "lost", "closed"])


def values(stat: bk.Stat, found: bk.GetResult, outcome: bk.Outcome, part: bk.Range) -> None:
    assert_type(stat.path, str)
    assert_type(stat.version, int)
    assert_type(stat.revision, int)
    assert_type(stat.created, int | None)
    assert_type(stat.modified, int | None)
    assert_type(stat.ephemeral, bool)
    assert_type(stat.owned, bool)
    assert_type(found.value, bytes)
    assert_type(found.stat, bk.Stat)
    value, stat = found
    assert_type(value, bytes)
    assert_type(outcome.op, bk.Operation)
    assert_type(outcome.result, bk.Result)
    assert_type(outcome.error, bk.MetadataStoreError | None)
    assert_type(outcome.ok, bool)
    assert_type(part.start, str | None)
    assert_type(part.end, str | None)
    assert_type("/a" in bk.Range("/a", None), bool)


def scanned(result: bk.ScanResult, change: bk.Change, foreign: bk.ForeignKeys) -> None:
    path, value, stat = result
    assert_type(path, str)
    assert_type(value, bytes)
    assert_type(stat, bk.Stat)
    assert_type(result.path, str)
    assert_type(result.value, bytes)
    assert_type(result.stat, bk.Stat)
    assert_type(change.path, str)
    assert_type(change.op, Literal["put", "delete"])
    assert_type(change.value, bytes | None)
    assert_type(change.version, int | None)
    assert_type(change.revision, int)
    assert_type(change.ephemeral, bool)
    assert_type(foreign.count, int)
    assert_type(foreign.first, list[bytes])


def pages(page: bk.ScanPage, stats: bk.StatPage) -> None:
    assert_type(len(page), int)
    assert_type(page[0], bk.ScanResult)
    assert_type(page[1:], Sequence[bk.ScanResult])
    assert_type(list(page), list[bk.ScanResult])
    assert_type(page.paths, Sequence[str])
    assert_type(page.values, Sequence[bytes])
    assert_type(page.versions, Sequence[int])
    assert_type(page.revisions, Sequence[int])
    assert_type(page.ephemeral, Sequence[bool])
    assert_type(page.created, Sequence[int | None] | None)
    assert_type(page.modified, Sequence[int | None] | None)
    assert_type(page.owned, Sequence[bool] | None)
    assert_type(page.foreign, Sequence[bytes])
    assert_type(stats[0], bk.Stat)
    assert_type(stats[1:], Sequence[bk.Stat])
    assert_type(list(stats), list[bk.Stat])
    assert_type(stats.values, None)
    assert_type(stats.foreign, Sequence[bytes])


def errors() -> str | None:
    try:
        open_for_threads()
    except bk.BadVersionError as error:
        assert_type(error.expected, int | None)
        assert_type(error.actual, int | None)
        return error.path
    except bk.IndeterminateError as error:
        assert_type(error.applied, bool)
        return error.outcome
    except bk.RevisionCompactedError as error:
        assert_type(error.oldest, int | None)
    except bk.MetadataStoreError as error:
        assert_type(error.outcome, Literal["not_applied", "unknown"])
        assert_type(error.retriable, bool)
        assert_type(error.path, str | None)
    return None


def error_classes() -> None:
    # Every class by its public name, as the root of all or as what else it is.
    every: list[type[bk.MetadataStoreError]] = [
        bk.AuthenticationError,
        bk.BadVersionError,
        bk.IndeterminateError,
        bk.InvalidPathError,
        bk.InvalidSettingError,
        bk.NotEmptyError,
        bk.NotFoundError,
        bk.OperationTimeoutError,
        bk.QueueFullError,
        bk.RevisionCompactedError,
        bk.SessionLostError,
        bk.TransactionRefusedError,
        bk.StoreClosedError,
        bk.StoreUnavailableError,
        bk.UnsupportedError,
        bk.ValueTooLargeError,
    ]
    bad: list[type[ValueError]] = [bk.InvalidPathError, bk.InvalidSettingError]
    late: list[type[TimeoutError]] = [
        bk.OperationTimeoutError,
        bk.IndeterminateError,  # type: ignore[list-item]
        bk.StoreUnavailableError,  # type: ignore[list-item]
    ]
    assert len(every) > len(bad) + len(late)
    assert_type(error_class("NotFoundError"), type[bk.MetadataStoreError] | None)


def numbers(metrics: bk.Metrics, lane: bk.LaneMetrics, histogram: bk.Histogram) -> None:
    assert_type(metrics.reads, bk.LaneMetrics)
    assert_type(metrics.writes, bk.LaneMetrics)
    assert_type(metrics.singles, bk.LaneMetrics)
    assert_type(metrics.queued_bytes, int)
    assert_type(metrics.waits, int)
    assert_type(metrics.errors, Mapping[str, int])
    assert_type(metrics.operations, Mapping[str, int])
    assert_type(metrics.failures, Mapping[str, int])
    assert_type(metrics.conflicts, int)
    assert_type(metrics.aborts, int)
    assert_type(metrics.splits, int)
    assert_type(metrics.retries, int)
    assert_type(metrics.settled, int)
    assert_type(metrics.reconnects, int)
    assert_type(metrics.watches, int)
    assert_type(metrics.watch_events, int)
    assert_type(metrics.watch_drops, int)
    assert_type(metrics.session_losses, int)
    assert_type(lane.queued, int)
    assert_type(lane.waiting, int)
    assert_type(lane.in_flight, int)
    assert_type(lane.batches, int)
    assert_type(lane.operations, int)
    assert_type(lane.bytes, int)
    assert_type(lane.causes, Mapping[str, int])
    assert_type(lane.operations_per_batch, bk.Histogram)
    assert_type(lane.bytes_per_batch, bk.Histogram)
    assert_type(lane.queue_seconds, bk.Histogram)
    assert_type(lane.store_seconds, bk.Histogram)
    assert_type(histogram.bounds, tuple[float, ...])
    assert_type(histogram.counts, tuple[int, ...])
    assert_type(histogram.count, int)
    assert_type(histogram.sum, float)
    assert_type(histogram.mean, float)
    assert_type(histogram.max, float)
    assert_type(histogram.percentile(99), float)
    counts: Mapping[str, int] = bk.Counts({"put": 1})
    assert counts
    metrics.waits = 0  # type: ignore[misc]


# The store for threads


def threads(store: bk.MetadataStore, data: bytes | bytearray | memoryview) -> None:
    with store as entered:
        assert_type(entered, bk.MetadataStore)
    assert_type(store.capabilities, frozenset[bk.Capability])
    assert_type(store.advisory, str | None)
    assert_type(store.operation_timeout, float)
    assert_type(store.get("/a"), Future[bk.GetResult | None])
    assert_type(store.get("/a", timeout=1.0).result(), bk.GetResult | None)
    assert_type(store.put("/a", data), Future[bk.Stat])
    assert_type(store.put("/a", b"", expected_version=bk.ABSENT), Future[bk.Stat])
    assert_type(store.put("/a", b"", 1, ephemeral=True, sequential=True), Future[bk.Stat])
    assert_type(store.put("/a", b"", timeout=1.0).result(), bk.Stat)
    assert_type(store.delete("/a"), Future[None])
    assert_type(store.delete("/a", expected_version=0, timeout=1.0), Future[None])
    assert_type(store.delete("/a", expected_revision=3), Future[None])
    assert_type(
        store.transaction([bk.Check("/a", 0), bk.Put("/b", b"")], timeout=1.0),
        Future[list[bk.Stat | None]],
    )
    assert_type(store.get_children("/", timeout=1.0), Future[list[str]])
    assert_type(store.exists("/a", timeout=1.0), Future[bool])
    assert_type(store.submit(bk.Get("/a"), timeout=1.0), Future[Any])
    assert_type(store.delete_recursive("/a", timeout=1.0), Future[int])
    assert_type(store.split("/", 4, timeout=1.0), Sequence[bk.Range])
    assert_type(store.revision(timeout=1.0), int)
    assert_type(store.get_acl("/", timeout=1.0), bk.Acl)
    assert_type(store.set_acl("/", ["world:anyone:r"], 0, timeout=1.0), int)
    assert_type(store.metrics(), bk.Metrics)
    store.flush()
    store.sync()
    store.sync(timeout=1.0)
    store.close()
    store.close(timeout=1.0)
    store.put("/a", "text")  # type: ignore[arg-type]
    store.get("/a", 1.0)  # type: ignore[call-arg]
    store.submit("/a")  # type: ignore[arg-type]


def bulk_for_threads(
    store: bk.MetadataStore,
    ops: Iterable[bk.Operation],
    puts: list[bk.Put],
    later: AsyncIterable[bk.Operation],
) -> None:
    assert_type(store.get_many(("/a",), timeout=1.0), list[bk.GetResult | None])
    assert_type(store.apply(ops, timeout=1.0), list[bk.Outcome])
    assert_type(store.apply(puts), list[bk.Outcome])
    assert_type(store.apply([bk.Put("/a", b""), bk.Get("/a")]), list[bk.Outcome])
    stream = store.apply_stream((bk.Delete(path) for path in ("/a",)), timeout=1.0)
    assert_type(stream, bk.OutcomeStream)
    assert_type(next(stream), bk.Outcome)
    outcomes: Iterator[bk.Outcome] = stream
    assert_type(list(outcomes), list[bk.Outcome])
    stream.close()
    store.apply(later)  # type: ignore[arg-type]


def scans_for_threads(store: bk.MetadataStore, both: bool) -> None:
    scan = store.scan("/", "/a", "/b", 1, timeout=1.0)
    assert_type(scan, bk.ResultStream[bk.ScanResult])
    assert_type(next(scan), bk.ScanResult)
    assert_type(list(store.scan("/a", start="/a", end="/b", revision=1)), list[bk.ScanResult])
    assert_type(scan.foreign, bk.ForeignKeys)
    scan.close()
    generator: Generator[bk.ScanResult, None, None] = scan
    assert generator
    changes = store.changes("/", 0, store.revision(), timeout=1.0)
    assert_type(changes, bk.ResultStream[bk.Change])
    assert_type(changes.foreign, bk.ForeignKeys)
    assert_type(next(changes), bk.Change)
    assert_type(store.changes("/", after=0, until=1), bk.ResultStream[bk.Change])
    found = store.scan_pages("/", "/a", "/b", 1, timeout=1.0)
    assert_type(found, Generator[bk.ScanPage, None, None])
    assert_type(store.scan_pages("/", values=True), Generator[bk.ScanPage, None, None])
    assert_type(store.scan_pages("/", values=False), Generator[bk.StatPage, None, None])
    either = store.scan_pages("/", values=both)
    assert_type(either, Generator[bk.ScanPage | bk.StatPage, None, None])
    assert_type(next(either).values, Sequence[bytes] | None)


def watches_for_threads(store: bk.MetadataStore) -> None:
    watch = store.watch("/a", after=1, max_events=10, callback=None, timeout=1.0)
    assert_type(watch, bk.Watch)
    with watch as entered:
        assert_type(entered, bk.Watch)
    assert_type(next(watch), bk.WatchEvent)
    assert_type(list(watch), list[bk.WatchEvent])
    assert_type(watch.next_event(), bk.WatchEvent | None)
    assert_type(watch.next_event(timeout=1.0), bk.WatchEvent | None)
    assert_type(watch.next_events(timeout=1.0), list[bk.WatchEvent])
    assert_type(watch.lag, float)
    assert_type(watch.prefix, str)
    assert_type(watch.closed, bool)
    assert_type(watch.error, bk.MetadataStoreError | None)
    watch.close()
    seen: list[bk.WatchEvent] = []
    store.watch("/", callback=seen.append)
    store.watch("/", callback=lambda event: event.path)
    store.watch("/", callback=lambda: None)  # type: ignore[misc, arg-type]
    store.watch("/", 1)  # type: ignore[call-arg]


def views(store: bk.MetadataStore) -> None:
    view = store.view("/a", max_bytes=1, timeout=1.0)
    assert_type(view, bk.View[bytes])
    numbers = store.view("/a", bk.Serde(lambda number: b"%d" % number, int))
    assert_type(numbers, bk.View[int])
    assert_type(numbers["/a"], bk.CacheResult[int])
    assert_type(numbers.get("/a"), bk.CacheResult[int] | None)
    assert_type([*numbers.items()], list[tuple[str, bk.CacheResult[int]]])
    assert_type(numbers.snapshot(), bk.ViewSnapshot[int])
    assert_type(numbers.snapshot().revision, int | None)
    assert_type((numbers.revision, numbers.lag), tuple[int | None, float])
    assert_type(numbers.error, bk.MetadataStoreError | None)
    assert_type(numbers.prefix, str)
    assert_type(numbers.children("/a"), list[str])
    assert_type(numbers.add_listener(lambda path, old, new: path), bk.ViewListener[int])
    numbers.add_listener(lambda path: path)  # type: ignore[misc, arg-type]
    with numbers as entered:
        assert_type(entered, bk.View[int])
    store.view("/a", int)  # type: ignore[call-overload]


async def views_for_tasks(store: bk.AsyncMetadataStore) -> None:
    async with await store.view("/a", bk.json_serde, timeout=1.0) as view:
        assert_type(view, bk.AsyncView[Any])
    listener = (await store.view("/a")).add_listener(lambda *_: None, replay=True)
    assert_type(listener, bk.AsyncViewListener[bytes])
    async with store.watch("/a", values=True) as watch:
        assert_type(await watch.next_events(), list[bk.WatchEvent])
        assert_type(watch.lag, float)


def sessions(store: bk.MetadataStore, session: bk.Session) -> None:
    assert_type(store.session, bk.Session)
    assert_type(session.id, str | None)
    assert_type(session.timeout, float)
    assert_type(session.state, bk.SessionState)
    assert_type(session.valid_until(), float)
    events: list[bk.SessionEvent] = []
    listener = store.add_session_listener(events.append)
    assert_type(listener, bk.SessionListener)
    listener.close()
    with listener as entered:
        assert_type(entered, bk.SessionListener)
    store.add_session_listener(lambda: None)  # type: ignore[misc, arg-type]
    session.id = "other"  # type: ignore[misc]


# The store for tasks


async def tasks(store: bk.AsyncMetadataStore, data: bytes | bytearray | memoryview) -> None:
    async with store as entered:
        assert_type(entered, bk.AsyncMetadataStore)
    assert_type(store.capabilities, frozenset[bk.Capability])
    assert_type(store.advisory, str | None)
    assert_type(store.operation_timeout, float)
    assert_type(await store.get("/a", timeout=1.0), bk.GetResult | None)
    assert_type(await store.put("/a", data), bk.Stat)
    assert_type(await store.put("/a", b"", expected_version=bk.ABSENT), bk.Stat)
    assert_type(await store.put("/a", b"", 1, ephemeral=True, sequential=True), bk.Stat)
    assert_type(await store.put("/a", b"", timeout=1.0), bk.Stat)
    assert_type(await store.delete("/a"), None)
    assert_type(await store.delete("/a", expected_version=0, timeout=1.0), None)
    assert_type(
        await store.transaction([bk.Check("/a", 0), bk.Put("/b", b"")]), list[bk.Stat | None]
    )
    deleting: Coroutine[Any, Any, None] = store.delete("/a")
    await deleting
    assert_type(await store.get_children("/", timeout=1.0), list[str])
    assert_type(await store.exists("/a", timeout=1.0), bool)
    assert_type(store.submit(bk.Exists("/a"), timeout=1.0), asyncio.Future[Any])
    assert_type(await store.delete_recursive("/a", timeout=1.0), int)
    assert_type(await store.split("/", 4, timeout=1.0), Sequence[bk.Range])
    assert_type(await store.revision(timeout=1.0), int)
    assert_type(await store.get_acl("/", timeout=1.0), bk.Acl)
    assert_type(await store.set_acl("/", "open"), int)
    assert_type(store.metrics(), bk.Metrics)
    assert_type(await store.flush(), None)
    assert_type(await store.sync(), None)
    assert_type(await store.sync(timeout=1.0), None)
    assert_type(await store.close(), None)
    assert_type(await store.close(timeout=1.0), None)
    await store.put("/a", "text")  # type: ignore[arg-type]
    await store.get("/a", 1.0)  # type: ignore[call-arg]
    store.submit("/a")  # type: ignore[arg-type]
    with store:  # type: ignore[attr-defined]
        pass


async def bulk_for_tasks(
    store: bk.AsyncMetadataStore,
    ops: Iterable[bk.Operation],
    puts: list[bk.Put],
    later: AsyncIterable[bk.Operation],
) -> None:
    assert_type(await store.get_many(("/a",), timeout=1.0), list[bk.GetResult | None])
    assert_type(await store.apply(ops, timeout=1.0), list[bk.Outcome])
    assert_type(await store.apply(puts), list[bk.Outcome])
    assert_type(await store.apply(later), list[bk.Outcome])
    assert_type(store.apply_stream(puts), AsyncIterator[bk.Outcome])
    assert_type(await anext(store.apply_stream(later, timeout=1.0)), bk.Outcome)


async def scans_for_tasks(store: bk.AsyncMetadataStore, both: bool) -> None:
    scan = store.scan("/", "/a", "/b", 1, timeout=1.0)
    assert_type(scan, bk.AsyncResultStream[bk.ScanResult])
    assert_type(await anext(scan), bk.ScanResult)
    scan = store.scan("/a", start="/a", end="/b", revision=1)
    assert_type([found async for found in scan], list[bk.ScanResult])
    assert_type(scan.foreign, bk.ForeignKeys)
    await scan.aclose()
    generator: AsyncGenerator[bk.ScanResult, None] = scan
    assert generator
    changes = store.changes("/", 0, await store.revision(), timeout=1.0)
    assert_type(changes, bk.AsyncResultStream[bk.Change])
    assert_type(changes.foreign, bk.ForeignKeys)
    assert_type(await anext(changes), bk.Change)
    assert_type(store.changes("/", after=0, until=1), bk.AsyncResultStream[bk.Change])
    found = store.scan_pages("/", "/a", "/b", 1, timeout=1.0)
    assert_type(found, AsyncGenerator[bk.ScanPage, None])
    assert_type(store.scan_pages("/", values=True), AsyncGenerator[bk.ScanPage, None])
    assert_type(store.scan_pages("/", values=False), AsyncGenerator[bk.StatPage, None])
    either = store.scan_pages("/", values=both)
    assert_type(either, AsyncGenerator[bk.ScanPage | bk.StatPage, None])
    assert_type((await anext(either)).values, Sequence[bytes] | None)


async def watches_for_tasks(store: bk.AsyncMetadataStore) -> None:
    watch = await store.watch("/a", after=1, max_events=10, callback=None, timeout=1.0)
    assert_type(watch, bk.AsyncWatch)
    async with store.watch("/a") as entered:
        assert_type(entered, bk.AsyncWatch)
    assert_type(await anext(watch), bk.WatchEvent)
    assert_type([event async for event in store.watch("/a")], list[bk.WatchEvent])
    assert_type(await watch.next_event(), bk.WatchEvent | None)
    assert_type(await watch.next_event(timeout=1.0), bk.WatchEvent | None)
    assert_type(watch.prefix, str)
    assert_type(watch.closed, bool)
    assert_type(watch.error, bk.MetadataStoreError | None)
    await watch.close()
    seen: list[bk.WatchEvent] = []
    watch = await store.watch("/", callback=seen.append)
    watch.close()
    next(watch)  # type: ignore[call-overload]


def sessions_of_tasks(store: bk.AsyncMetadataStore, events: list[bk.SessionEvent]) -> None:
    assert_type(store.session, bk.Session)
    listener = store.add_session_listener(events.append)
    assert_type(listener, bk.SessionListener)
    listener.close()


# Faults


def inject_faults() -> None:
    faults = FaultInjector()
    bk.open_store("memory://api", wrap=faults)
    bk.open_async_store("memory://api", wrap=[faults])
    injection = faults.fail("put", "/a", error=bk.StoreUnavailableError("gone"), times=None)
    assert_type(injection, Injection)
    assert_type(injection.wait(), list[Hit])
    faults.refuse(bk.BadVersionError("no"), where=lambda op: op.value == b"" and op.path == "/a")
    faults.refuse()  # type: ignore[call-arg]
    faults.fail(error=ValueError())  # type: ignore[arg-type]
    faults.delay("get", applied=True, seconds=1).release()
    assert_type(faults.lose_answer(skip=1, applied=False).armed, bool)
    assert_type(faults.cut("put"), Injection | None)
    faults.restore(gap=True)
    faults.lose_session(end_ephemerals=False)
    assert_type(faults.gap("/a"), int)
    (what, kind, path, call) = faults.hits[0]
    assert_type(what, Literal["fail", "refuse", "lose_answer", "delay", "cut"])
    assert_type((kind, path, call), tuple[str, str | None, int])


def limits() -> None:
    limit = bk.RateLimit(5.0, budget="b", writes_only=True)
    assert_type(limit.wait(), None)
    assert_type((limit.rate, limit.budget), tuple[float, str | None])
    assert_type(bk.open_store("memory://a", rate_limit=limit), bk.MetadataStore)
    bk.open_store("memory://a", rate_limit="5")  # type: ignore[arg-type]
