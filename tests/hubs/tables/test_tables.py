"""Tables: the same answers on every store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest

import batchkeeper as bk
from batchkeeper.hubs.errors import IllegalOperationError, KeyExistsError, NoKeyError
from batchkeeper.hubs.ledgers import LedgerTable
from batchkeeper.hubs.tables import (
    AsyncMetaStore,
    MetaStore,
    Order,
    ScannableTable,
    Table,
    Version,
)
from batchkeeper.hubs.tables._sync.generations import ByGeneration
from batchkeeper.hubs.tables._sync.writes import execute
from batchkeeper.hubs.tables.records import Record, encoded
from batchkeeper.hubs.tables.rows import Row
from batchkeeper.testing import FaultInjector

from ...waiting import PATIENCE, result

NEW, ANY = Version.NEW, Version.ANY


# --- values and versions


def test_a_put_merges(table: Table) -> None:
    """Given fields are set, None removes one, and the others stay."""
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
    store: bk.MetadataStore, tables: MetaStore, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """Between its read and its write, others remove the key and put it as often as before."""
    mine, other = tables.create_table("t"), tables.create_scannable_table("t")
    version = mine.put("k", {"a": b"mine"}, NEW)
    get = store.get

    def slow(path: str) -> Any:
        found = get(path)
        result(found)
        monkeypatch.setattr(store, "get", get)
        # This client learns of the removal, too: it reads the key again, for another call.
        for table in (other, mine):
            table.remove("k", ANY)
            other.put("k", {"a": b"other"}, NEW)
        return found

    monkeypatch.setattr(store, "get", slow)
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
        *(
            lambda t, version=version: t.put("k", {}, version)
            for version in (Version(0, "1"), Version(None, 1), Version(0, True))  # type: ignore[arg-type]
        ),
        lambda t: t.open_cursor("b", True, "a"),
        lambda t: t.open_cursor("a", "z"),
        lambda t: t.open_cursor(last_inclusive=None),
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
    """A value that is not a record, or has a newer format, is an error with its path."""
    for value in (b"", b"{", b"[]", b'{"v":2,"fields":{}}', b'{"v":1,"fields":{"a":["x","y"]}}'):
        result(store.put("/metastore/tables/t/k", value))
        with pytest.raises(bk.ValueDecodeError) as raised:
            table.get("k")
        assert raised.value.path == "/metastore/tables/t/k"
        for change in (partial(table.put, "k", {"a": b""}, ANY), partial(table.remove, "k", ANY)):
            with pytest.raises(bk.ValueDecodeError):
                change()
        assert result(store.get("/metastore/tables/t/k")).value == value


def test_bytes_of_all_kinds_are_kept(table: Table) -> None:
    """Text stays readable; other bytes, and control characters, take a third more."""
    values = [b"", b"line\n", "日".encode(), b"\x00" * 90_000, bytes(range(256)), b'["base64","x"]']
    fields = {str(number): value for number, value in enumerate(values)}
    table.put("k", fields, NEW)
    assert table.get("k").value == fields
    assert len(encoded(Record({"f": b"\x00" * 90_000}))) < 121_000


def test_closed_tables_refuse_calls(store: bk.MetadataStore) -> None:
    """Including tables created later. The store stays open."""
    tables = MetaStore(store)
    table = tables.create_table("t")
    tables.close()
    for call in (table.open_cursor, table.clear, lambda: tables.create_table("u").get("k")):
        with pytest.raises(bk.StoreClosedError):
            call()
    assert result(store.get_children("/")) == []


class Lagging:
    """A store whose next session begins on a server that lags, until it has caught up."""

    def __init__(self, store: bk.MetadataStore, path: str) -> None:
        self._store = store
        self._old = store.get(path)
        self._path = path
        self.session = SimpleNamespace(id="second")

    def sync(self) -> None:
        self._path = ""

    def get(self, path: str) -> Any:
        return self._old if path == self._path else self._store.get(path)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def test_a_new_session_that_lags_does_not_bring_versions_back(
    fresh_url: Callable[[str], str],
) -> None:
    """A read in an earlier session does not vouch for reads in the next one."""
    with bk.open_store(fresh_url("memory")) as store:
        states: Any = ByGeneration(store, "/removals")
        row = Row("/k", "t", "k")
        execute(store, states, states.creation(row, {"a": b"old"}))
        before = Lagging(store, "/k")
        other = ByGeneration(store, "/removals")
        seen = other.read("/k")
        assert seen is not None
        execute(store, other, other.removal(row, seen))
        execute(store, other, other.creation(row, {"b": b"new"}))
        states.read("/k")  # so that the generation is known
        states._store = before
        found = states.read("/k")
        assert b"new" in found.found.value


class Behind(Lagging):
    """The same, for a store that says that its reads may lag."""

    @property
    def capabilities(self) -> frozenset[bk.Capability]:
        return self._store.capabilities - {"linearizable_reads"}


def test_an_outdated_read_refuses_no_put(fresh_url: Callable[[str], str]) -> None:
    """Where reads may lag, a refusal by what was read is an error only after a second look."""
    with bk.open_store(fresh_url("memory")) as store, MetaStore(store) as tables:
        behind: Any = Behind(store, "/metastore/tables/t/k")
        tables.create_table("t").put("k", {"a": b"1"}, NEW)
        with MetaStore(behind) as late:
            late.create_table("t").put("k", {"b": b"2"}, ANY)
        assert tables.create_table("t").get("k").value == {"a": b"1", "b": b"2"}


# --- cursors


def keys_of(cursor: Any) -> list[str]:
    return [entry.key for entry in cursor]


ENDS = [None, "a", "b", "b0", "c", "d", "zz", "é", "日"]


@pytest.mark.parametrize("order", ["ascending", "descending"])
def test_cursors_show_ranges(table: ScannableTable, order: Order) -> None:
    """All ends, also where no key is. Only an inverted range is an error, in either order."""
    keys = ["b", "b0", "d", "é"]
    for key in keys:
        table.put(key, {"f": key.encode(), "g": b""}, NEW)
    for first, last in product(ENDS, ENDS):
        low, high = (first, last) if order == "ascending" else (last, first)
        if low is not None and high is not None and low.encode() > high.encode():
            with pytest.raises(IllegalOperationError, match="inverted"):
                table.open_cursor(first, True, last, True, order)
            continue
        for with_first, with_last in product((True, False), repeat=2):
            with_low, with_high = (
                (with_first, with_last) if order == "ascending" else (with_last, with_first)
            )
            wanted = [
                key
                for key in keys
                if (low is None or key > low or (with_low and key == low))
                and (high is None or key < high or (with_high and key == high))
            ]
            if order == "descending":
                wanted.reverse()
            assert keys_of(table.open_cursor(first, with_first, last, with_last, order)) == wanted
    assert [entry.value for entry in table.open_cursor("b", fields=["f"])] == [
        {"f": key.encode()} for key in keys
    ]


def test_a_range_reads_only_its_keys(memory: bk.MetadataStore, faults: FaultInjector) -> None:
    """Neither a cursor over a range nor one over some ledgers lists the names of all others."""
    with MetaStore(memory) as tables:
        table, ledgers = tables.create_scannable_table("t"), LedgerTable(tables)
        for number in range(9):
            table.put(f"k{number}", {}, Version.NEW)
            ledgers.create(number, b"")
        faults.fail("get_children", error=bk.StoreUnavailableError("all names were read"))
        assert keys_of(table.open_cursor("k3", False, "k5")) == ["k4", "k5"]
        assert [ledger.ledger_id for ledger in ledgers.ledgers(7)] == [7, 8]
        assert [ledger.ledger_id for ledger in ledgers.ledgers(last=1)] == [0, 1]


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


def test_a_cursor_goes_on_after_an_error(
    store: bk.MetadataStore, table: ScannableTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No key is lost: neither those of a failed read, nor those behind a damaged record."""
    for key in "abcdef":
        table.put(key, {}, NEW)
    result(store.put("/metastore/tables/t/d", b"no record"))
    result(store.put("/metastore/tables/t/~zz", b"no key"))
    apply = store.apply

    def failing(ops: Any) -> Any:
        monkeypatch.setattr(store, "apply", apply)
        outcomes = apply(ops)
        failed = bk.Outcome(outcomes[1].op, None, bk.StoreUnavailableError("no answer"))
        return [outcomes[0], failed, *outcomes[2:]]

    cursor = table.open_cursor()
    monkeypatch.setattr(store, "apply", failing)
    with pytest.raises(bk.StoreUnavailableError):
        cursor.read_entries(6)
    with pytest.raises(bk.ValueDecodeError, match="tables/t/d"):
        cursor.read_entries(6)
    assert keys_of(cursor) == ["a", "b", "c", "e", "f"]


def test_emptying_a_table_bears_concurrent_removals(table: ScannableTable) -> None:
    """Each key is removed once, by this call or by somebody else."""
    keys = [f"{number:04}" for number in range(1500)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda key: table.put(key, {"n": key.encode()}, NEW), keys))
        removals = [pool.submit(table.remove, key, ANY) for key in keys[::50]]
        clears = [pool.submit(table.clear) for _ in range(2)]
        others = sum(future.exception() is None for future in removals)
        removed = [result(future) for future in clears]
    assert sum(removed) + others == 1500
    assert keys_of(table.open_cursor()) == []
    assert table.clear() == 0


@pytest.mark.slow
def test_emptying_a_large_table(fresh_url: Callable[[str], str]) -> None:
    """20,000 keys go in batches, beside removals of single keys; each is removed once."""
    with bk.open_store(fresh_url("memory")) as store, MetaStore(store) as tables:
        table = tables.create_scannable_table("t")
        record = encoded(Record({"f": b"1"}))
        keys = [f"{number:06}" for number in range(20_000)]
        puts = (bk.Put(f"/metastore/tables/t/{key}", record) for key in keys)
        assert all(outcome.ok for outcome in store.apply_stream(puts))
        before = store.metrics().writes.batches
        with ThreadPoolExecutor(2) as pool:
            clears = [pool.submit(table.clear) for _ in range(2)]
            others = 0
            for key in keys[::-100]:
                try:
                    table.remove(key, ANY)
                except NoKeyError:
                    continue
                others += 1
            removed = [result(future) for future in clears]
        assert store.metrics().writes.batches - before < 4_000
        assert sum(removed) + others == 20_000
        assert keys_of(table.open_cursor()) == []


# --- asyncio


def test_tasks_have_the_same_tables(store_url: str) -> None:
    """The names are the same, with await, async with and async for."""

    async def main() -> None:
        async with bk.open_async_store(store_url) as store, AsyncMetaStore(store) as tables:
            table = await tables.create_scannable_table("t")
            with pytest.raises(NoKeyError):
                await table.get("b")
            versions = [await table.put(key, {"f": key.encode()}, NEW) for key in "abc"]
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
