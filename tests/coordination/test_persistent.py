"""An ephemeral value that is created again, as often as it is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

import batchkeeper as bk
from batchkeeper.testing.servers import LocalServer

from ..waiting import PATIENCE, result, until
from .held_lines import HeldLine

Opens = Callable[[], bk.MetadataStore]


def value_at(store: bk.MetadataStore, path: str) -> bytes | None:
    store.sync()
    found = result(store.get(path))
    return None if found is None else found.value


def test_a_value_that_comes_back(store: bk.MetadataStore, another: Opens) -> None:
    """It is there as given, is created again when somebody deletes it, and ends at a close."""
    other = another()
    with bk.PersistentEphemeral(store, "/a/b", b"1") as kept:
        stat = result(store.get("/a/b")).stat
        assert (kept.exists, stat.ephemeral, stat.owned) == (True, True, True)
        kept.update(b"2")
        until(lambda: value_at(other, "/a/b") == b"2")
        lost = kept.lost
        result(other.delete("/a/b"))
        assert lost.wait(PATIENCE)
        until(lambda: kept.exists and value_at(other, "/a/b") == b"2")
        kept.update(b"3")
        assert (kept.value, value_at(other, "/a/b")) == (b"3", b"3")
    assert (kept.exists, value_at(other, "/a/b")) == (False, None)
    assert result(store.get_children("/a")) == []
    for call in (kept.start, lambda: kept.update(b"4")):
        with pytest.raises(bk.LockLostError):
            call()
    kept.close()


def test_a_rival(stores: Callable[..., bk.MetadataStore]) -> None:
    """While another session has the path, it waits; its value is left alone."""
    store, other = stores(), stores()
    result(other.put("/a", b"rival", ephemeral=True))
    with pytest.raises(bk.LockBusyError) as busy:
        bk.PersistentEphemeral(store, "/a", b"mine").start(0.05)
    assert (busy.value.value, value_at(store, "/a")) == (b"rival", b"rival")
    with bk.PersistentEphemeral(stores(), "/b", b"first"):
        kept = bk.PersistentEphemeral(store, "/b", b"mine")
        for _ in range(2):
            with pytest.raises(bk.LockBusyError):
                kept.start(0)
    with kept, kept.start():
        result(store.delete("/b"))
        result(other.put("/b", b"rival"))  # Quicker, or the value is put again before.
        result(other.delete("/b"))
        until(lambda: kept.exists and value_at(other, "/b") == b"mine")


def test_a_lost_session(server: LocalServer, line: HeldLine) -> None:
    """It comes back in the next session, with what it was updated to meanwhile."""
    with (
        bk.open_store(server.url) as other,
        bk.open_store(f"{server.name}://{line.address}", session_timeout=2.0) as store,
        bk.PersistentEphemeral(store, "/a/b", b"1") as kept,
    ):
        first = kept.lost
        line.hold()
        until(lambda: value_at(other, "/a/b") is None)
        line.release()
        line.cut()
        assert first.wait(PATIENCE)
        kept.update(b"2")
        until(lambda: kept.exists and value_at(other, "/a/b") == b"2")
        assert result(store.get("/a/b")).stat.owned


def test_tasks(store_url: str) -> None:
    """For tasks, it is the same."""

    async def main() -> None:
        async with bk.open_async_store(store_url) as store:
            async with bk.AsyncPersistentEphemeral(store, "/a", b"1") as kept:
                await store.delete("/a")
                while not (kept.exists and await store.exists("/a")):  # noqa: ASYNC110
                    await asyncio.sleep(0.001)
            assert not await store.exists("/a")

    asyncio.run(main())
