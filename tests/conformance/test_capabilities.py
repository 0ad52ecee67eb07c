"""Every store has the capabilities that it states. Calls that need others raise and name them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest

import batchkeeper as bk


def changed_once(store: bk.MetadataStore) -> tuple[int, int]:
    """Put ``/a`` twice; return the store's revision after each."""
    revisions = []
    for value in (b"old", b"new"):
        store.put("/a", value).result()
        revisions.append(store.revision())
    return revisions[0], revisions[1]


def refuses(capability: bk.Capability, *calls: Callable[[], object]) -> None:
    """Check that each call is refused when it is made, with the capability's name."""
    for call in calls:
        with pytest.raises(bk.UnsupportedError, match=f"'{capability}'"):
            call()


def test_snapshots(store: bk.MetadataStore) -> None:
    """A scan of an old revision gives what was there then, or is refused."""
    old, _ = changed_once(store)

    def scan() -> bk.ResultStream[bk.ScanResult]:
        return store.scan("/", revision=old)

    def pages() -> object:
        return store.scan_pages("/", revision=old)

    if "snapshots" in store.capabilities:
        assert [(found.path, found.value) for found in scan()] == [("/a", b"old")]
        assert [found.value for found in store.scan("/")] == [b"new"]
    else:
        refuses("snapshots", scan, pages)


def test_history(store: bk.MetadataStore) -> None:
    """The changes between two revisions are given, or refused."""
    first, last = changed_once(store)

    def changes() -> bk.ResultStream[bk.Change]:
        return store.changes("/", first, last)

    if "history" in store.capabilities:
        assert [(found.path, found.value) for found in changes()] == [("/a", b"new")]
    else:
        refuses("history", changes)


def test_writes_that_need_a_capability(store: bk.MetadataStore) -> None:
    """A write that needs a missing capability is refused by the call, and changes nothing."""
    calls: dict[bk.Capability, list[Callable[[], object]]] = {
        "ephemerals": [
            lambda: store.put("/a", b"", ephemeral=True),
            lambda: store.submit(bk.Put("/a", b"", ephemeral=True)),
            lambda: store.submit(bk.Transaction([bk.Put("/a", b"", ephemeral=True)])),
        ],
        "sequences": [
            lambda: store.put("/a", b"", sequential=True),
            lambda: store.submit(bk.Put("/a", b"", sequential=True)),
        ],
        "expected_revisions": [
            lambda: store.put("/a", b"", expected_revision=1),
            lambda: store.delete("/a", expected_revision=1),
            lambda: store.submit(bk.Delete("/a", expected_revision=1)),
        ],
        "transactions": [
            lambda: store.transaction([bk.Put("/a", b"")]),
            lambda: store.submit(bk.Transaction([bk.Put("/a", b"")])),
        ],
    }
    for capability, some in calls.items():
        if capability not in store.capabilities:
            for call in some:
                with pytest.raises(bk.UnsupportedError):
                    call()
            refuses(capability, *some[:2])
    if not calls.keys() & store.capabilities:
        assert store.get_children("/").result() == []


def test_an_unsupported_operation_of_a_bulk_is_that_outcome(store: bk.MetadataStore) -> None:
    """A bulk call continues after an unsupported operation, whose error names the capability."""
    ops: list[tuple[bk.Capability, bk.Operation]] = [
        ("ephemerals", bk.Put("/a", b"", ephemeral=True)),
        ("sequences", bk.Put("/b", b"", sequential=True)),
        ("transactions", bk.Transaction([bk.Put("/c", b"")])),
    ]
    *outcomes, done = store.apply([*(op for _, op in ops), bk.Put("/d", b"")])
    for (capability, _), outcome in zip(ops, outcomes, strict=True):
        if capability in store.capabilities:
            assert outcome.ok
        else:
            assert isinstance(outcome.error, bk.UnsupportedError)
            assert f"'{capability}'" in str(outcome.error)
    assert done.ok


def test_watches(store: bk.MetadataStore) -> None:
    """A store without watches refuses them, and one without history those after a revision."""
    if "watches" not in store.capabilities:
        refuses("watches", lambda: store.watch("/a"), lambda: store.watch("/a", callback=print))
    elif "history" not in store.capabilities:
        refuses("history", lambda: store.watch("/a", after=store.revision()))
    else:
        with store.watch("/a", after=store.revision()) as watch:
            store.put("/a", b"").result()
            assert next(watch).kind == "created"


def test_a_session(store: bk.MetadataStore) -> None:
    """A store without ephemerals has no session and no listeners of it."""
    if "ephemerals" in store.capabilities:
        assert store.session.state in {"new", "connected"}
        store.add_session_listener(print).close()
    else:
        refuses("ephemerals", lambda: store.session, lambda: store.add_session_listener(print))


def test_times(store: bk.MetadataStore) -> None:
    """Every stat, of a put or of a scan, has both times, or neither."""
    put = store.put("/a", b"1").result()
    (scanned,) = store.scan("/")
    (page,) = store.scan_pages("/", values=False)
    for stat in (put, scanned.stat, page[0]):
        times = (stat.created is not None, stat.modified is not None)
        assert times == (("times" in store.capabilities,) * 2)


def test_linearizable_reads(store: bk.MetadataStore, store_url: str) -> None:
    """Another client's read sees a write that has ended, at once or after a sync."""
    one_opener = bk.store_kind(store_url).local_directory
    with nullcontext(store) if one_opener else bk.open_store(store_url) as other:
        for number in range(50):
            value = str(number).encode()
            store.put("/a", value).result()
            if "linearizable_reads" not in store.capabilities:
                other.sync()
            found = other.get("/a").result()
            assert found is not None
            assert found.value == value


def test_the_capabilities_are_those_of_the_kind(store: bk.MetadataStore, store_url: str) -> None:
    """Capabilities are known before a store is opened, and cannot be changed."""
    assert store.capabilities == bk.store_kind(store_url).capabilities
    assert isinstance(store.capabilities, frozenset)
    with pytest.raises(AttributeError):
        store.capabilities = frozenset()  # type: ignore[misc]


def test_tasks_see_the_same(store_url: str, batching: bk.BatchingConfig) -> None:
    """The asynchronous face states the same, and refuses from the call itself as well."""

    async def main() -> None:
        async with bk.open_async_store(store_url, batching=batching) as store:
            assert store.capabilities == bk.store_kind(store_url).capabilities
            await store.put("/a", b"1")
            revision = await store.revision()
            if "snapshots" in store.capabilities:
                assert [found.path async for found in store.scan("/", revision=revision)] == ["/a"]
            else:
                refuses(
                    "snapshots",
                    lambda: store.scan("/", revision=revision),
                    lambda: store.scan_pages("/", revision=revision),
                )
            if "history" in store.capabilities:
                changes: Any = store.changes("/", revision - 1, revision)
                assert [found.path async for found in changes] == ["/a"]
            else:
                refuses("history", lambda: store.changes("/", 0, revision))
            if "ephemerals" not in store.capabilities:
                refuses("ephemerals", lambda: store.submit(bk.Put("/b", b"", ephemeral=True)))
            if "sequences" not in store.capabilities:
                with pytest.raises(bk.UnsupportedError, match="'sequences'"):
                    await store.put("/b", b"", sequential=True)
            if "transactions" not in store.capabilities:
                with pytest.raises(bk.UnsupportedError, match="'transactions'"):
                    await store.transaction([bk.Put("/b", b"")])
            if "watches" not in store.capabilities:
                refuses("watches", lambda: store.watch("/a"))
            if "ephemerals" not in store.capabilities:
                refuses(
                    "ephemerals",
                    lambda: store.session,
                    lambda: store.add_session_listener(print),
                )

    asyncio.run(main())
