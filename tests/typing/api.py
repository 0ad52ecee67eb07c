"""A user of the public face, for the type checker: the types are part of its contract.

``tox -e types`` checks it against the installed package. It never runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import Future
from typing import Any, Literal, assert_type

import batchkeeper as bk
from batchkeeper.stores import PassingBackend
from batchkeeper.stores.faults import FaultyBackend


def threads() -> None:
    with bk.open_store(
        "memory://api",
        batching=bk.BatchingConfig(max_ops=128, max_delay=0.001, on_full="block", linger="fixed"),
        connect_timeout=1.0,
        session_timeout=10.0,
        operation_timeout=5.0,
        create=False,
        wrap=[FaultyBackend, PassingBackend],
    ) as store:
        assert_type(store.capabilities, frozenset[bk.Capability])
        assert_type(store, bk.MetadataStore)
        assert_type(store.get("/a"), Future[bk.GetResult | None])
        assert_type(store.put("/a", b"", expected_version=bk.ABSENT), Future[bk.Stat])
        assert_type(store.put("/a", bytearray(), timeout=1.0), Future[bk.Stat])
        assert_type(store.delete("/a", expected_version=0), Future[None])
        assert_type(store.get_children("/"), Future[list[str]])
        assert_type(store.exists("/a"), Future[bool])
        assert_type(store.submit(bk.Get("/a")), Future[Any])
        assert_type(store.apply([bk.Put("/a", b"")]), list[bk.Outcome])
        assert_type(store.apply_stream(bk.Delete(path) for path in ("/a",)), bk.OutcomeStream)
        outcomes: Iterator[bk.Outcome] = store.apply_stream([])
        assert_type(next(outcomes), bk.Outcome)
        assert_type(next(store.scan("/a", end="/b", revision=1)), bk.ScanResult)
        scan = store.scan("/")
        assert_type(scan, bk.ResultStream[bk.ScanResult])
        assert_type(list(scan), list[bk.ScanResult])
        assert_type(scan.foreign, bk.ForeignKeys)
        assert_type((scan.foreign.count, scan.foreign.first), tuple[int, list[bytes]])
        assert_type(next(store.scan_pages("/a")).foreign, Sequence[bytes])
        assert_type(next(store.scan_pages("/a")), bk.ScanPage)
        assert_type(next(store.scan_pages("/a")).values, Sequence[bytes])
        stats = next(store.scan_pages("/a", values=False))
        assert_type(stats, bk.StatPage)
        assert_type(stats[0], bk.Stat)
        either = next(store.scan_pages("/a", values=bool(stats)))
        assert_type(either, bk.ScanPage | bk.StatPage)
        assert_type(either.values, Sequence[bytes] | None)
        assert_type(store.split("/", 4), Sequence[bk.Range])
        assert_type(store.delete_recursive("/a"), Future[int])
        assert_type(store.revision(), int)
        assert_type(store.metrics(), bk.Metrics)
        store.flush()
        store.close(timeout=1.0)


async def tasks() -> None:
    async with bk.open_async_store("memory://api", wrap=FaultyBackend) as store:
        assert_type(store.capabilities, frozenset[bk.Capability])
        assert_type(store, bk.AsyncMetadataStore)
        assert_type(await store.get("/a"), bk.GetResult | None)
        assert_type(await store.put("/a", b""), bk.Stat)
        assert_type(await store.get_children("/"), list[str])
        assert_type(await store.exists("/a"), bool)
        assert_type(store.submit(bk.Exists("/a")), asyncio.Future[Any])
        assert_type(await store.apply([bk.GetChildren("/")]), list[bk.Outcome])
        assert_type(store.apply_stream([bk.Get("/a")]), AsyncIterator[bk.Outcome])
        assert_type(await anext(store.scan("/a", "/a/b")), bk.ScanResult)
        scan = store.scan("/")
        assert_type(scan, bk.AsyncResultStream[bk.ScanResult])
        assert_type([found async for found in scan], list[bk.ScanResult])
        assert_type(scan.foreign.count, int)
        assert_type(await anext(store.scan_pages("/a")), bk.ScanPage)
        assert_type(await anext(store.scan_pages("/a", values=False)), bk.StatPage)
        assert_type(await store.split("/", 4), Sequence[bk.Range])
        assert_type(await store.delete_recursive("/a"), int)
        assert_type(await store.revision(), int)
        await store.delete("/a")
        await store.flush()
    opened = await bk.open_async_store("memory://api")
    assert_type(opened, bk.AsyncMetadataStore)
    await opened.close()


def kinds(kind: bk.StoreKind) -> None:
    assert_type(bk.store_kind("memory://api"), bk.StoreKind)
    assert_type(kind.capabilities, frozenset[bk.Capability])
    assert_type(kind.in_process, bool)
    known: bk.Capability = "snapshots"
    assert known not in kind.capabilities


def values(stat: bk.Stat, found: bk.GetResult, outcome: bk.Outcome) -> None:
    assert_type(stat.path, str)
    assert_type(stat.version, int)
    assert_type(stat.revision, int)
    assert_type(stat.created, int | None)
    assert_type(found.value, bytes)
    assert_type(found.stat, bk.Stat)
    assert_type(outcome.ok, bool)
    assert_type(outcome.op, bk.Operation)
    assert_type(outcome.error, bk.MetadataStoreError | None)


def errors() -> str | None:
    try:
        threads()
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
    return None
