"""The cache for threads, on every store.

Many tests restate a scenario of Pulsar's ``MetadataCacheTest``, or a report of its users; these
name the report.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import batchkeeper as bk
from batchkeeper.coordination import MetadataCache
from batchkeeper.coordination.entries import NOT_CACHED, Entries
from batchkeeper.ops.errors import ValueDecodeError
from batchkeeper.ops.results import CacheResult
from batchkeeper.ops.serdes import Serde, bytes_serde, json_serde
from batchkeeper.testing import FaultInjector

from ..waiting import PATIENCE, until
from .caching import (  # noqa: F401 - some are fixtures
    Thread,
    loads,
    memory,
    opened_store,
    other_client,
    seen_requests,
    size,
    warm,
    warm_cache,
)

# --- reading and writing


def test_values_come_and_go(cache: MetadataCache[Any]) -> None:
    """A read sees the last create, put, update and delete, and the cache has it after a read."""
    assert cache.get_if_cached("/a/b") is NOT_CACHED
    assert cache.get("/a/b") is None
    assert cache.get_if_cached("/a/b") is None
    created = cache.create("/a/b", {"n": 1})
    assert created.version == 0
    assert cache.get("/a/b") == {"n": 1}
    with pytest.raises(bk.BadVersionError):
        cache.create("/a/b", {"n": 2})
    assert cache.get("/a/b") == {"n": 1}
    assert cache.put("/a/b", {"n": 3}).version == 1
    assert cache.get("/a/b") == {"n": 3}
    assert cache.get_with_stat("/a/b") is not None
    with pytest.raises(bk.BadVersionError):
        cache.put("/a/b", {"n": 4}, expected_version=0)
    assert cache.get("/a/b") == {"n": 3}
    assert cache.put("/a/b", {"n": 5}, expected_version=1).version == 2
    assert cache.read_modify_update("/a/b", lambda value: {"n": value["n"] + 1}) == {"n": 6}
    assert cache.get("/a/b") == {"n": 6}
    assert cache.exists("/a/b")
    with pytest.raises(bk.BadVersionError):
        cache.delete("/a/b", expected_version=1)
    cache.delete("/a/b", expected_version=3)
    assert cache.get("/a/b") is None
    assert not cache.exists("/a/b")
    with pytest.raises(bk.NotFoundError):
        cache.delete("/a/b")


def test_the_stat_of_a_value(cache: MetadataCache[Any], store: bk.MetadataStore) -> None:
    """A value comes with the stat that the store has, after a write and after a read."""
    assert cache.get_with_stat("/a/b") is None
    stat = cache.put("/a/b", 1)
    found = store.get("/a/b").result()
    assert found is not None
    assert cache.get_with_stat("/a/b") == CacheResult(1, stat)
    cache.invalidate("/a/b")
    again = cache.get_with_stat("/a/b")
    assert again is not None
    assert again == (1, found.stat)


def test_hits_and_cached_absence_ask_nobody(
    cache: MetadataCache[Any], store: bk.MetadataStore, faults: FaultInjector
) -> None:
    """Cached state is not read again: values, absence, children and existence."""
    store.put("/a/b", b"1").result()
    until(lambda: cache.get("/a/b") == 1)
    until(lambda: cache.get_children("/a") == ["b"])

    def reads() -> int:
        cache.get("/a/b"), cache.get("/a/none"), cache.get_children("/a")
        return len([call for call in faults.calls if call.method == "read"])

    until(lambda: reads() == reads())  # The event of the put has arrived.
    before = reads()
    for _ in range(3):
        assert cache.get("/a/b") == 1
        assert cache.get_if_cached("/a/b") == 1
        assert cache.get("/a/none") is None
        assert cache.get_if_cached("/a/none") is None
        assert cache.exists("/a/b")
        assert not cache.exists("/a/none")
        assert cache.get_children("/a") == ["b"]
    assert reads() == before


def test_own_writes_are_in_the_cache(store: bk.MetadataStore, cache: MetadataCache[Any]) -> None:
    """After a write the cache has the new value, and its own event does not drop it.

    Pulsar #12788: after a write, ``getIfCached`` found nothing until somebody read.
    """
    events: list[str] = []
    with cache.add_listener(lambda event: events.append(event.path)):
        cache.put("/a/b", 1)
        assert cache.get("/a/b") == 1
        until(lambda: "/a/b" in events)
    if store.capabilities >= {"expected_revisions"}:  # The event has told its revision.
        assert cache.get_if_cached("/a/b") == 1


def test_writes_of_others_arrive(cache: MetadataCache[Any], other: bk.MetadataStore) -> None:
    """Creations, changes and deletions by others end what the cache has: values and absences."""
    assert cache.get("/a/b") is None
    other.put("/a/b", b"1").result()
    until(lambda: cache.get("/a/b") == 1)
    other.put("/a/b", b"2").result()
    until(lambda: cache.get("/a/b") == 2)
    other.delete("/a/b").result()
    until(lambda: cache.get("/a/b") is None)
    other.put("/a", b"3").result()
    until(lambda: cache.get("/a") == 3)


def test_children(cache: MetadataCache[Any], other: bk.MetadataStore, store_url: str) -> None:
    """A list of children follows own and others' creations and deletions, also deeper ones."""
    assert cache.get_children("/a") == []
    cache.put("/a/b", 1)
    assert cache.get_children("/a") == ["b"]
    cache.put("/a/c/d/e", 1)
    assert cache.get_children("/a") == ["b", "c"]
    assert cache.get_children("/a/c") == ["d"]
    cache.get_children("/a").append("x")
    assert cache.get_children("/a") == ["b", "c"]
    other.put("/a/f/g", b"1").result()
    until(lambda: cache.get_children("/a") == ["b", "c", "f"])
    other.delete("/a/b").result()
    until(lambda: cache.get_children("/a") == ["c", "f"])
    cache.delete("/a/c/d/e")
    if not bk.store_kind(store_url).parents_count:
        assert cache.get_children("/a") == ["f"]
    assert cache.get_children("/a/c/d") == []


def test_the_prefix(store: bk.MetadataStore) -> None:
    """A cache has its prefix and what lies below it; everything else is refused, by all methods."""
    with MetadataCache(store, "/a") as cache:
        assert cache.prefix == "/a"
        cache.put("/a", b"1")
        cache.put("/a/b", b"2")
        assert (cache.get("/a"), cache.get("/a/b")) == (b"1", b"2")
        calls: list[Callable[[Any], object]] = [
            cache.get,
            cache.get_if_cached,
            cache.get_with_stat,
            cache.get_children,
            cache.exists,
            cache.refresh,
            cache.delete,
            cache.invalidate,
            lambda path: cache.put(path, b""),
            lambda path: cache.create(path, b""),
            lambda path: cache.read_modify_update(path, bytes),
            lambda path: cache.read_modify_update_or_create(path, lambda _: b""),
        ]
        paths: list[Any] = ["/ab", "/", "/b/a", "", "a"]
        for call in calls:
            for path in paths:
                with pytest.raises(bk.InvalidPathError):
                    call(path)
        for call in calls:
            if call not in (cache.get_if_cached, cache.invalidate):
                with pytest.raises(bk.InvalidPathError):
                    call("/a//b")
    with MetadataCache(store, "/") as cache:
        warm(cache, "/a/b")
        assert cache.get_children("/") == ["a"]
        cache.put("/c", b"")
        assert cache.get_children("/") == ["a", "c"]


def test_a_slash_at_the_end(cache: MetadataCache[Any]) -> None:
    """Such a path is invalid, also if the children of the path without it are cached."""
    cache.create("/a/b/c", 1)
    warm(cache, "/a/b/c")
    assert cache.get_children("/a/b") == ["c"]
    for read in (cache.get, cache.exists, cache.get_with_stat):
        with pytest.raises(bk.InvalidPathError):
            read("/a/b/")


def test_bad_arguments() -> None:
    """Bad settings are refused by the call that makes the cache."""
    with memory() as store:
        arguments: Any
        for arguments in (
            {"max_entries": 0},
            {"max_bytes": -1},
            {"max_age": 0},
            {"max_age": "1"},
        ):
            with pytest.raises(bk.InvalidSettingError):
                MetadataCache(store, "/a", **arguments)
        with pytest.raises(bk.InvalidPathError):
            MetadataCache(store, "a")
        with MetadataCache(store, "/a") as cache:

            async def listener(event: bk.WatchEvent) -> None: ...

            wrong: Any
            for wrong in (listener, 1):
                with pytest.raises(bk.InvalidSettingError):
                    cache.add_listener(wrong)


def test_refresh_and_invalidate(
    cache: MetadataCache[Any], store: bk.MetadataStore, faults: FaultInjector
) -> None:
    """After ``invalidate`` the next read goes to the store; ``refresh`` reads at once."""
    cache.put("/a/b", 1)
    warm(cache, "/a/b")
    before = loads(faults, "get", "/a/b")
    assert cache.refresh("/a/b") == 1
    assert loads(faults, "get", "/a/b") == before + 1
    cache.invalidate("/a/b")
    assert cache.get_if_cached("/a/b") is NOT_CACHED
    cache.get_children("/a")
    warm(cache, "/a/b")
    cache.invalidate_all()
    assert cache.get_if_cached("/a/b") is NOT_CACHED
    assert not size(cache)
    warm(cache, "/a/b")


# --- serdes


def test_a_serde_of_ones_own() -> None:
    """Any pair of functions serves, as this one of numbers in ASCII."""
    numbers: Serde[int] = Serde(lambda number: str(number).encode(), int)
    with memory() as store, MetadataCache(store, "/a", numbers) as cache:
        cache.create("/a/n", 1)
        assert cache.get("/a/n") == 1
        assert cache.read_modify_update("/a/n", lambda n: n + 1) == 2
        assert store.get("/a/n").result().value == b"2"  # type: ignore[union-attr]


def test_a_value_that_cannot_be_decoded(
    cache: MetadataCache[Any], store: bk.MetadataStore, faults: FaultInjector
) -> None:
    """It is an error of its path with its version, is cached, and can be overwritten by it.

    Pulsar #12788: such a value was read from the store again and again.
    """
    store.put("/a/b", b"-----").result()
    store.put("/a/b", b"----").result()
    cache.put("/a/c", 1)
    until(lambda: is_undecodable(cache, 1))
    before = loads(faults, "get", "/a/b")
    seen = []
    for read in (cache.get, cache.get_if_cached, cache.get_with_stat):
        with pytest.raises(ValueDecodeError, match="/a/b") as raised:
            read("/a/b")
        assert (raised.value.path, raised.value.version) == ("/a/b", 1)
        assert isinstance(raised.value.__cause__, ValueError)
        seen.append(raised.value)
    assert len({id(error) for error in seen}) == len(seen)
    for update in (cache.read_modify_update, cache.read_modify_update_or_create):
        with pytest.raises(ValueDecodeError):
            update("/a/b", lambda _: 1)
    assert cache.exists("/a/b")
    assert cache.get("/a/c") == 1
    assert loads(faults, "get", "/a/b") == before
    cache.put("/a/b", {"good": True}, expected_version=raised.value.version)
    assert cache.get("/a/b") == {"good": True}


def is_undecodable(cache: MetadataCache[Any], version: int) -> bool:
    """Say whether the cache has a value at a version that cannot be decoded."""
    with pytest.raises(ValueDecodeError):
        cache.get("/a/b")
    try:
        cache.get_if_cached("/a/b")
    except ValueDecodeError as error:
        return error.version == version
    return False


def test_a_value_that_cannot_be_encoded(store: bk.MetadataStore, cache: MetadataCache[Any]) -> None:
    """The writer gets the serde's own error, and nothing is written."""
    cache.put("/a/b", 1)
    for write in (
        lambda: cache.put("/a/b", object()),
        lambda: cache.create("/a/c", object()),
        lambda: cache.read_modify_update("/a/b", lambda _: object()),
    ):
        with pytest.raises(TypeError):
            write()
    assert cache.get("/a/b") == 1
    assert cache.get("/a/c") is None
    text: Any = Serde(lambda value: value, bytes_serde.decode)
    with MetadataCache(store, "/a", text) as broken:
        with pytest.raises(bk.InvalidSettingError, match="bytes"):
            broken.put("/a/b", "text")
        broken.put("/a/b", bytearray(b"2"))
        assert broken.get("/a/b") == b"2"


def test_written_objects_are_not_shared(cache: MetadataCache[Any]) -> None:
    """A change of an object after its write does not reach the cache; readers share one object."""
    value = {"n": 1}
    cache.put("/a/b", value)
    value["n"] = 2
    first = cache.get("/a/b")
    assert first == {"n": 1}
    warm(cache, "/a/b")
    assert cache.get("/a/b") is cache.get("/a/b")


# --- loads


def test_one_load_however_many_ask(
    store: bk.MetadataStore, cache: MetadataCache[Any], faults: FaultInjector
) -> None:
    """Twenty threads that ask for one path at the same time cause one read."""
    store.put("/a/b", b"1").result()
    warm(cache, "/a/b")
    seen: list[str] = []
    cache.add_listener(lambda event: seen.append(event.path))
    store.put("/a/end", b"1").result()
    until(lambda: "/a/end" in seen)  # Neither a gap nor an event can end the load now.
    cache.invalidate("/a/b")
    held = faults.delay("get", "/a/b")
    before = loads(faults, "get", "/a/b")
    asking = [Thread(lambda: cache.get("/a/b")) for _ in range(20)]
    held.wait(timeout=PATIENCE)
    held.release()
    assert [thread.result() for thread in asking] == [1] * 20
    assert loads(faults, "get", "/a/b") == before + 1


def test_a_load_that_fails(faults: FaultInjector, monkeypatch: pytest.MonkeyPatch) -> None:
    """All who wait for it get the error, each one of its own, and the next read reads again."""
    with memory(faults) as store, MetadataCache(store, "/a", json_serde) as cache:
        warm(cache, "/a/warm")
        joined: list[Any] = []
        join = Entries.join
        monkeypatch.setattr(Entries, "join", lambda *args: joined.append(join(*args)) or joined[-1])
        held = faults.delay("get", "/a/b", applied=True)
        faults.refuse(bk.AuthenticationError("no"), "get", "/a/b")
        asking = [Thread(lambda: cache.get("/a/b")) for _ in range(3)]
        held.wait(timeout=PATIENCE)
        until(lambda: len(joined) == 3)
        held.release()
        errors = []
        for thread in asking:
            with pytest.raises(bk.AuthenticationError) as raised:
                thread.result()
            errors.append(raised.value)
        assert len({id(error) for error in errors}) >= 2
        assert cache.get("/a/b") is None


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["join", "end", "give_up", "set"])
def test_ctrl_c_in_a_load(
    faults: FaultInjector, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """Wherever it comes, those who wait for the load go on, and the next get reads."""
    with memory(faults) as store, MetadataCache(store, "/a", json_serde) as cache:
        warm(cache, "/a/warm")
        joined: list[Any] = []
        real = Entries.join

        def interrupt(load: object = None, *_: object) -> None:
            if moment != "give_up" or load is joined[0]:  # The others have nothing to give up.
                monkeypatch.undo()
                raise KeyboardInterrupt

        def join(entries: Entries[Any, Any], own: Any) -> Any:
            joined.append(real(entries, own))
            if joined == [own]:
                if moment == "join":
                    interrupt()
                monkeypatch.setattr(own.done if moment == "set" else entries, moment, interrupt)
            return joined[-1]

        monkeypatch.setattr(Entries, "join", join)
        held = faults.delay("get", "/a/b")
        asking = [Thread(lambda: cache.get("/a/b"))]
        if moment != "join":
            held.wait(timeout=PATIENCE)
            asking += [Thread(lambda: cache.get("/a/b")) for _ in range(3)]
            until(lambda: len(joined) == 4)
        held.release()
        with pytest.raises(KeyboardInterrupt):
            asking[0].result()
        for thread in [*asking[1:], Thread(lambda: cache.get("/a/b"))]:
            assert thread.result() is None
        store.put("/a/b", b"1").result()
        until(lambda: cache.get("/a/b") == 1)
