"""Tables: the same answers on every store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

import batchkeeper as bk
from batchkeeper.hubs.errors import IllegalOperationError, KeyExistsError, NoKeyError
from batchkeeper.hubs.tables import AsyncMetaStore, MetaStore, ScannableTable, Table, Version

from ...waiting import PATIENCE, result, until

NEW, ANY = Version.NEW, Version.ANY


@pytest.fixture
def tables(store: bk.MetadataStore) -> Iterator[MetaStore]:
    """An empty store of tables, on each kind of store."""
    with MetaStore(store) as made:
        yield made


@pytest.fixture
def table(tables: MetaStore) -> ScannableTable:
    """An empty table, on each kind of store."""
    return tables.create_scannable_table("t")


# --- values and versions


def test_a_put_merges(table: Table) -> None:
    """Fields that are given are set, None removes one, and the others stay."""
    first = table.put("k", {"a": b"1", "b": b"\xff\x00"}, NEW)
    assert table.get("k") == ({"a": b"1", "b": b"\xff\x00"}, first)
    second = table.put("k", {"a": None, "c": b"", "é": "日".encode(), "never": None}, first)
    assert table.get("k") == ({"b": b"\xff\x00", "c": b"", "é": "日".encode()}, second)
    third = table.put("k", {}, ANY)
    assert table.get("k", ()) == ({}, third)
    assert len({first, second, third}) == 3
    assert table.get("k", ["c", "missing"]).value == {"c": b""}


def test_a_refused_put_changes_nothing(table: Table) -> None:
    """Each refusal has its error, and leaves the value and its version as they were."""
    old = table.put("k", {"a": b"1"}, NEW)
    now = table.put("k", {"a": b"2"}, old)
    with pytest.raises(KeyExistsError):
        table.put("k", {"a": b"3"}, NEW)
    with pytest.raises(bk.BadVersionError):
        table.put("k", {"a": b"3"}, old)
    assert table.get("k") == ({"a": b"2"}, now)
    for version in (ANY, now):
        with pytest.raises(NoKeyError):
            table.put("missing", {"a": b"3"}, version)
    with pytest.raises(NoKeyError):
        table.get("missing")


def test_a_removal_needs_the_version(table: Table) -> None:
    """NEW never matches, an old version neither; ANY and the present one do."""
    old = table.put("k", {"a": b"1"}, NEW)
    now = table.put("k", {}, old)
    for version in (NEW, old):
        with pytest.raises(bk.BadVersionError):
            table.remove("k", version)
    table.remove("k", now)
    for version in (NEW, ANY, now):
        with pytest.raises(NoKeyError):
            table.remove("k", version)
    table.put("k", {"b": b"2"}, NEW)
    table.remove("k", ANY)
    with pytest.raises(NoKeyError):
        table.get("k")


def test_versions_never_come_back(table: Table) -> None:
    """A version from before a removal does not match, however often the key is put again."""
    seen: list[Version] = []
    for _ in range(4):
        seen.append(table.put("k", {"a": b"1"}, NEW))
        seen.append(table.put("k", {"a": b"2"}, ANY))
        for version in seen[:-1]:
            with pytest.raises(bk.BadVersionError):
                table.put("k", {"a": b"lost"}, version)
            with pytest.raises(bk.BadVersionError):
                table.remove("k", version)
        table.remove("k", seen[-1])
    assert len(set(seen)) == len(seen)


@pytest.mark.parametrize("change", ["put", "remove"])
def test_a_key_that_was_replaced_meanwhile_is_not_touched(
    tables: MetaStore, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """Between its read and its write, others remove the key and put it as often as before."""
    mine, other = tables.create_table("t"), tables.create_scannable_table("t")
    version = mine.put("k", {"a": b"mine"}, NEW)
    read = mine._states.read

    def slow(path: str) -> Any:
        found = read(path)
        monkeypatch.setattr(mine._states, "read", read)
        other.remove("k", ANY)
        other.put("k", {"a": b"other"}, NEW)
        read(path)  # so that this client knows of the removal, too
        return found

    monkeypatch.setattr(mine._states, "read", slow)
    lost = {"b": b"lost"}
    call = partial(mine.put, "k", lost) if change == "put" else partial(mine.remove, "k")
    with pytest.raises(bk.BadVersionError):
        call(version)
    assert other.get("k").value == {"a": b"other"}


def test_puts_of_different_fields_all_take_effect(table: Table) -> None:
    """Eight threads each set a field of one key, again and again."""
    table.put("k", {}, NEW)

    def work(name: str) -> None:
        for number in range(10):
            table.put("k", {name: b"%d" % number}, ANY)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, "abcdefgh"))
    assert table.get("k").value == dict.fromkeys("abcdefgh", b"9")


def test_keys_of_all_kinds_have_their_own_values(tables: MetaStore) -> None:
    """Neither keys nor tables collide, whatever characters they have."""
    keys = [
        "a",
        "A",
        "a/b",
        "a.1b",
        ".",
        "..",
        "/",
        "\x00",
        "~",
        "~7e",
        "é",
        "e\u0301",
        "日本",
        " ",
    ]
    for name in ("t", "t/a", "t.1a"):
        table = tables.create_scannable_table(name)
        for key in keys:
            table.put(key, {"key": key.encode(), "table": name.encode()}, NEW)
        for key in keys:
            assert table.get(key).value == {"key": key.encode(), "table": name.encode()}
        found = [entry.key for entry in table.open_cursor()]
        assert found == sorted(keys, key=str.encode)


@pytest.mark.parametrize(
    "call",
    [
        *(lambda t, key=key: t.get(key) for key in (None, b"k", "", 5, "\ud800")),
        *(lambda t, key=key: t.remove(key, ANY) for key in (None, b"k", "")),
        *(
            lambda t, value=value: t.put("k", value, NEW)
            for value in (None, [], b"v", {"a": "text"}, {"": b""}, {5: b""}, {"\ud800": b""})
        ),
        *(
            lambda t, version=version: t.put("k", {}, version)
            for version in (None, 0, -1, "1", (0, 1))
        ),
        lambda t: t.remove("k", 0),
        *(lambda t, fields=fields: t.get("k", fields) for fields in ("a", b"a", 5, [5], [""])),
        lambda t: t.open_cursor("b", True, "a"),
        lambda t: t.open_cursor(order="up"),
        lambda t: t.open_cursor(b"a"),
        lambda t: t.open_cursor(fields="a"),
        lambda t: t.open_cursor().read_entries(0),
    ],
)
def test_bad_input_is_refused(fresh_url: Callable[[str], str], call: Any) -> None:
    """It is an error of its own at once, and nothing was sent."""
    with bk.open_store(fresh_url("memory")) as store, MetaStore(store) as tables:
        with pytest.raises(IllegalOperationError) as raised:
            call(tables.create_scannable_table("t"))
        assert isinstance(raised.value, ValueError)
        assert result(store.get_children("/")) == []


def test_a_damaged_record_is_named(store: bk.MetadataStore, table: Table) -> None:
    """What is no record, or one of a later format, is an error with its path."""
    for value in (b"", b"{", b"[]", b'{"v":2,"fields":{}}', b'{"v":1,"fields":{"a":["x","y"]}}'):
        result(store.put("/metastore/tables/t/k", value))
        with pytest.raises(bk.ValueDecodeError) as raised:
            table.get("k")
        assert raised.value.path == "/metastore/tables/t/k"


# --- cursors


def keys_of(cursor: Any) -> list[str]:
    return [entry.key for entry in cursor]


def test_cursors_show_ranges(table: ScannableTable) -> None:
    """All ends and both orders, also where no key is; a range without keys is no error."""
    keys = ["b", "b0", "d", "é"]
    for key in keys:
        table.put(key, {"f": key.encode(), "g": b""}, NEW)
    ends = [None, "a", "b", "b0", "c", "d", "zz", "é", "日"]
    for first in ends:
        for last in ends:
            if first is not None and last is not None and first.encode() > last.encode():
                with pytest.raises(IllegalOperationError, match="greater"):
                    table.open_cursor(first, True, last)
                continue
            for low in (True, False):
                for high in (True, False):
                    wanted = [
                        key
                        for key in keys
                        if (first is None or key > first or (low and key == first))
                        and (last is None or key < last or (high and key == last))
                    ]
                    cursor = table.open_cursor(first, low, last, high)
                    assert keys_of(cursor) == wanted
                    cursor = table.open_cursor(first, low, last, high, "descending")
                    assert keys_of(cursor) == wanted[::-1]
    assert [entry.value for entry in table.open_cursor("b", fields=["f"])] == [
        {"f": key.encode()} for key in keys
    ]


def test_cursors_show_what_is_there_when_a_page_is_read(table: ScannableTable) -> None:
    """New keys are not shown, removed ones are left out, changed ones have their new value."""
    for key in "abcdef":
        table.put(key, {"n": b"1"}, NEW)
    with table.open_cursor() as cursor:
        assert [entry.key for entry in cursor.read_entries(2)] == ["a", "b"]
        table.remove("d", ANY)
        table.put("bb", {"n": b"2"}, NEW)
        version = table.put("e", {"n": b"2"}, ANY)
        found = cursor.read_entries(3)
        assert [(entry.key, entry.value) for entry in found] == [
            ("c", {"n": b"1"}),
            ("e", {"n": b"2"}),
            ("f", {"n": b"1"}),
        ]
        assert found[1].version == version
        assert not cursor.has_more_entries
        assert cursor.read_entries(1) == []
    assert keys_of(table.open_cursor()) == ["a", "b", "bb", "c", "e", "f"]


def test_a_cursor_that_is_closed_has_no_more(table: ScannableTable) -> None:
    """It ends, also in the middle of a page."""
    for key in "abc":
        table.put(key, {}, NEW)
    cursor = table.open_cursor()
    next(cursor)
    cursor.close()
    assert not cursor.has_more_entries
    assert keys_of(cursor) == []


def test_emptying_a_table_bears_concurrent_removals(table: ScannableTable) -> None:
    """Each key is removed once, by this call or by somebody else."""
    keys = [f"{number:04}" for number in range(1500)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda key: table.put(key, {"n": key.encode()}, NEW), keys))
        removals = [pool.submit(table.remove, key, ANY) for key in keys[::50]]
        removed = table.clear()
        others = sum(future.exception() is None for future in removals)
    assert removed + others == 1500
    assert keys_of(table.open_cursor()) == []
    assert table.clear() == 0


# --- watchers


def test_a_watcher_is_called_once(table: Table) -> None:
    """It hears the first change after its read; so does each of several on one key."""
    told: list[Any] = []
    table.put("k", {}, NEW)
    for number in range(2):
        table.get("k", (), lambda kind, key, number=number: told.append((number, kind, key)))
    table.put("other", {}, NEW)
    table.put("k", {"a": b"1"}, ANY)
    until(lambda: len(told) == 2)
    assert sorted(told) == [(0, "changed", "k"), (1, "changed", "k")]
    table.get("k", watcher=lambda kind, key: told.append((2, kind, key)))
    table.remove("k", ANY)
    until(lambda: len(told) == 3)
    assert told[2] == (2, "removed", "k")
    with pytest.raises(NoKeyError):
        table.get("k", watcher=lambda kind, key: told.append((3, kind, key)))
    table.put("k", {}, NEW)
    until(lambda: len(told) == 4)
    assert told[3] == (3, "changed", "k")
    table.put("k", {}, ANY)
    table.get("k", watcher=lambda kind, key: told.append((4, kind, key)))
    table.put("k", {}, ANY)
    until(lambda: len(told) == 5)
    assert told[4] == (4, "changed", "k")


def test_no_watcher_is_called_after_the_end(store: bk.MetadataStore) -> None:
    """Closing the tables ends their watchers; a later one is refused."""
    tables = MetaStore(store)
    table, told = tables.create_table("t"), []
    table.put("k", {}, NEW)
    table.get("k", watcher=lambda *call: told.append(call))
    tables.close()
    table.put("k", {}, ANY)
    with pytest.raises(bk.StoreClosedError):
        table.get("k", watcher=lambda *call: told.append(call))
    assert told == []


# --- asyncio


def test_tasks_have_the_same_tables(store_url: str) -> None:
    """The names are the same, with await, async with and async for."""

    async def main() -> None:
        async with bk.open_async_store(store_url) as store, AsyncMetaStore(store) as tables:
            table = await tables.create_scannable_table("t")
            told = asyncio.Event()
            with pytest.raises(NoKeyError):
                await table.get("b", watcher=lambda *_: told.set())
            versions = [await table.put(key, {"f": key.encode()}, NEW) for key in "abc"]
            await told.wait()
            await asyncio.gather(*[table.put("a", {name: b"1"}, ANY) for name in "xyz"])
            assert (await table.get("a", ["x", "y", "z"])).value == dict.fromkeys("xyz", b"1")
            with pytest.raises(bk.BadVersionError):
                await table.put("a", {}, versions[0])
            found = [entry.key async for entry in await table.open_cursor(order="descending")]
            assert found == ["c", "b", "a"]
            await table.remove("b", versions[1])
            assert await table.clear() == 2

    async def limited() -> None:
        async with asyncio.timeout(PATIENCE):
            await main()

    asyncio.run(limited())
