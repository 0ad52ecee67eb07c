"""The table of ledgers: the same answers on every store."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import batchkeeper as bk
from batchkeeper.hubs import (
    IllegalOperationError,
    KeyExistsError,
    LedgerExistsError,
    LedgerMetadata,
    LedgerTable,
    MetaStore,
    NoKeyError,
    NoLedgerError,
    Table,
    Version,
)
from batchkeeper.testing import FaultInjector

from ...background import working
from ...forgetting import forgets
from ...forks import holds_in_a_child, locked_elsewhere
from ...waiting import PATIENCE, result, until

NEW, ANY = Version.NEW, Version.ANY
LAST = 2**63 - 1


@pytest.fixture
def tables(store: bk.MetadataStore) -> Iterator[MetaStore]:
    """An empty store of tables, on each kind of store."""
    with MetaStore(store) as made:
        yield made


@pytest.fixture
def ledgers(tables: MetaStore) -> LedgerTable:
    """An empty table of ledgers, on each kind of store."""
    return LedgerTable(tables)


@pytest.fixture
def faults() -> FaultInjector:
    """Faults of the store in memory."""
    return FaultInjector()


@pytest.fixture
def quick(fresh_url: Callable[[str], str], faults: FaultInjector) -> Iterator[MetaStore]:
    """An empty store of tables in memory."""
    with (
        bk.open_store(fresh_url("memory"), wrap=faults, operation_timeout=2.0) as store,
        MetaStore(store) as tables,
    ):
        yield tables


@pytest.fixture
def memory(quick: MetaStore) -> LedgerTable:
    """An empty table of ledgers in memory."""
    return LedgerTable(quick)


class Told(list[tuple[int, bytes | None]]):
    """A callback that notes its calls, without versions."""

    def __call__(self, ledger_id: int, found: LedgerMetadata | None) -> None:
        self.append((ledger_id, None if found is None else found.metadata))

    def wait(self, *expected: tuple[int, bytes | None]) -> None:
        """Wait for these calls; there must be no others."""
        until(lambda: len(self) >= len(expected), f"waited for {expected}, but found {self}")
        assert self == [*expected]


# --- one ledger


def test_the_life_of_a_ledger(ledgers: LedgerTable) -> None:
    """Created once, read, written at its version only, removed at its version only."""
    with pytest.raises(NoLedgerError):
        ledgers.read(5)
    first = ledgers.create(5, b"open \x00\xff")
    assert ledgers.read(5) == (b"open \x00\xff", first)
    with pytest.raises(LedgerExistsError):
        ledgers.create(5, b"other")
    second = ledgers.write(5, b"closed", first)
    for version in (first, NEW):
        with pytest.raises(bk.BadVersionError):
            ledgers.write(5, b"lost", version)
        with pytest.raises(bk.BadVersionError):
            ledgers.remove(5, version)
    found = ledgers.read(5)
    assert (found.metadata, found.version) == (b"closed", second)
    third = ledgers.write(5, b"", ANY)
    assert ledgers.read(5) == (b"", third)
    ledgers.remove(5, third)
    for version in (third, ANY, NEW):
        with pytest.raises(NoLedgerError):
            ledgers.write(5, b"lost", version)
        with pytest.raises(NoLedgerError):
            ledgers.remove(5, version)
    assert ledgers.create(5, b"again") not in {first, second, third}
    with pytest.raises(bk.BadVersionError):
        ledgers.write(5, b"lost", third)


def test_errors_are_those_of_tables_too() -> None:
    """Who knows only tables catches them."""
    assert issubclass(NoLedgerError, NoKeyError)
    assert issubclass(LedgerExistsError, KeyExistsError)


BAD: list[Any] = [-1, 2**63, True, "5", 5.0, None, b"5"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "call",
    [
        *(lambda t, bad=bad: t.create(bad, b"") for bad in BAD),
        *(lambda t, bad=bad: t.read(bad) for bad in BAD),
        *(lambda t, bad=bad: t.write(bad, b"", ANY) for bad in BAD),
        *(lambda t, bad=bad: t.remove(bad, ANY) for bad in BAD),
        *(lambda t, bad=bad: t.add_listener(bad, print) for bad in BAD),
        *(lambda t, bad=bad: t.ledgers(bad) for bad in BAD),
        *(lambda t, bad=bad: t.ledgers(0, bad) for bad in BAD),
        *(lambda t, bad=bad: t.create(5, bad) for bad in (None, "text", 5, [1])),
        *(lambda t, bad=bad: t.write(5, bad, ANY) for bad in (None, "text", 5, [1])),
        *(lambda t, bad=bad: t.write(5, b"", bad) for bad in (None, 0, -1, "1")),
        *(lambda t, bad=bad: t.remove(5, bad) for bad in (None, 0, -1, "1")),
        lambda t: t.ledgers(6, 5),
        lambda t: t.add_listener(5, "text"),
    ],
)
def test_bad_input_is_refused(memory: LedgerTable, faults: FaultInjector, call: Any) -> None:
    """It is an error of its own at once, and nothing was sent."""
    with pytest.raises(IllegalOperationError):
        call(memory)
    assert faults.calls == ()


def test_a_name_that_is_none_is_refused(quick: MetaStore) -> None:
    """Like the name of any table."""
    for name in ("", None, 5):
        with pytest.raises(IllegalOperationError):
            LedgerTable(quick, name)  # type: ignore[arg-type]


def test_a_ledger_without_metadata(tables: MetaStore, ledgers: LedgerTable) -> None:
    """A foreign value under the key of a ledger is a clear error."""
    tables.create_table("ledgers").put(f"{5:019}", {"other": b""}, NEW)
    with pytest.raises(bk.ValueDecodeError, match="ledger 5"):
        ledgers.read(5)

    def fail(told: Told) -> None:
        with pytest.raises(bk.ValueDecodeError):
            ledgers.add_listener(5, told)

    assert forgets(Told, fail)
    assert ledgers.write(5, b"mended", ANY) == ledgers.read(5).version


# --- the list


IDS = [0, 1, 9, 10, 99, 2**31 - 1, 2**31, 2**32, 10**18 - 1, 10**18, LAST - 1, LAST]


def test_ledgers_are_listed_in_numeric_order(ledgers: LedgerTable) -> None:
    """All ids of 63 bits, with any ends; a range without ledgers is empty."""
    versions = {number: ledgers.create(number, b"%d" % number) for number in reversed(IDS)}
    found = list(ledgers.ledgers())
    assert [ledger.ledger_id for ledger in found] == IDS
    assert [ledger.metadata for ledger in found] == [b"%d" % number for number in IDS]
    assert {ledger.ledger_id: ledger.version for ledger in found} == versions
    for first in (0, 1, 2, 10**18, LAST):
        for last in (first, 98, 99, 10**18 - 1, LAST):
            if first <= last:
                some = [ledger.ledger_id for ledger in ledgers.ledgers(first, last)]
                assert some == [number for number in IDS if first <= number <= last]


def test_foreign_keys_are_left_out(
    store: bk.MetadataStore, tables: MetaStore, ledgers: LedgerTable
) -> None:
    """Also those between the keys of ledgers, and those that cannot be read."""
    table = tables.create_table("ledgers")
    for key in ("a", "5", f"{5:018}", f"{5:020}", f"{LAST + 1}", f"{5:018}x", "٣" * 19):
        table.put(key, {"metadata": b"foreign"}, NEW)
    result(store.put("/metastore/tables/ledgers/" + "0" * 18, b"damaged"))
    ledgers.create(5, b"mine")
    assert [ledger.ledger_id for ledger in ledgers.ledgers()] == [5]


def test_a_cursor_shows_what_there_was(ledgers: LedgerTable) -> None:
    """It begins with its first step, passes over damaged ledgers, and ends with its close."""
    for number in (1, 2, 3):
        ledgers.create(number, b"")
    with ledgers.ledgers() as cursor:
        ledgers.create(4, b"")
        assert next(cursor).ledger_id == 1
        ledgers.create(5, b"")
        assert [ledger.ledger_id for ledger in cursor] == [2, 3, 4]
    with ledgers.ledgers() as cursor:
        next(cursor)
    assert list(cursor) == []


def test_a_damaged_ledger_does_not_end_the_list(tables: MetaStore, ledgers: LedgerTable) -> None:
    """The step raises, and the next one goes on behind it."""
    for number in (1, 3):
        ledgers.create(number, b"")
    tables.create_table("ledgers").put(f"{2:019}", {}, NEW)
    cursor = ledgers.ledgers()
    assert next(cursor).ledger_id == 1
    with pytest.raises(bk.ValueDecodeError, match="ledger 2"):
        next(cursor)
    assert next(cursor).ledger_id == 3


# --- ids


def test_new_ids_are_unique(store: bk.MetadataStore, ledgers: LedgerTable) -> None:
    """In several objects and threads; they are ids that a ledger can have."""
    with MetaStore(store) as others:
        objects = [ledgers, LedgerTable(others)]
        with ThreadPoolExecutor(4) as pool:
            ids = list(pool.map(lambda n: objects[n % 2].new_id(), range(200)))
        other = LedgerTable(others, "other")
        assert other.new_id() == 0
    assert len(set(ids)) == 200
    for number in ids[:5]:
        ledgers.create(number, b"")


def test_an_id_that_somebody_has_taken(ledgers: LedgerTable) -> None:
    """Its creation fails, and the next id is another."""
    first = ledgers.new_id()
    ledgers.create(first + 1, b"by hand")
    second = ledgers.new_id()
    assert second == first + 1
    with pytest.raises(LedgerExistsError):
        ledgers.create(second, b"")
    ledgers.create(ledgers.new_id(), b"")


def test_the_last_ids(store: bk.MetadataStore, ledgers: LedgerTable) -> None:
    """No id is greater than 63 bits hold; then there are no more."""
    result(store.put("/metastore/ids/ledgers", b"%d" % (LAST - 10)))
    with pytest.raises(OverflowError):
        ledgers.new_id()


# --- listeners


def test_a_listener_is_told_of_each_state(ledgers: LedgerTable) -> None:
    """The first state, and the state after each change, with its version; also after a removal."""
    told: list[Any] = []
    with ledgers.add_listener(5, lambda *args: told.append(args)):
        until(lambda: len(told) == 1)
        version = ledgers.create(5, b"1")
        until(lambda: len(told) == 2)
        ledgers.create(6, b"other")
        second = ledgers.write(5, b"2", version)
        until(lambda: len(told) == 3)
        ledgers.remove(5, ANY)
        until(lambda: len(told) == 4)
        third = ledgers.create(5, b"3")
        until(lambda: len(told) == 5)
    assert told == [
        (5, None),
        (5, (b"1", version)),
        (5, (b"2", second)),
        (5, None),
        (5, (b"3", third)),
    ]


def test_the_last_state_is_never_missed(ledgers: LedgerTable) -> None:
    """However quick the changes, states come in their order, and the last one comes."""
    ledgers.create(5, b"0")
    told = [Told(), Told()]
    with ledgers.add_listener(5, told[0]), ledgers.add_listener(5, told[1]):
        for number in range(1, 60):
            ledgers.write(5, b"%d" % number, ANY)
        until(lambda: all(some and some[-1] == (5, b"59") for some in told))
    for some in told:
        numbers = [int(metadata or b"-1") for _, metadata in some]
        assert numbers == sorted(set(numbers))


def test_a_change_before_the_first_call(
    memory: LedgerTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change while the listener is being added is reported after the earlier read."""
    memory.create(5, b"1")
    get = Table.get

    def slow(table: Table, *args: Any) -> Any:
        monkeypatch.setattr(Table, "get", get)
        value = get(table, *args)
        memory.write(5, b"2", ANY)
        # Until its watcher was called: this one is called after it.
        calls = threading.Event()
        table.get(f"{5:019}", (), lambda *_: calls.set())
        memory.write(5, b"3", ANY)
        assert calls.wait(PATIENCE)
        return value

    monkeypatch.setattr(Table, "get", slow)
    told = Told()
    with memory.add_listener(5, told):
        told.wait((5, b"1"), (5, b"3"))


@pytest.mark.slow
def test_a_closed_listener_is_told_nothing(ledgers: LedgerTable) -> None:
    """It leaves no watcher behind; its callback may close it; others go on."""
    told, others = Told(), Told()
    closing: list[Any] = []
    ended = threading.Event()

    def close(ledger_id: int, found: LedgerMetadata | None) -> None:
        if found is not None:
            closing[0].close()
            told(ledger_id, found)
            ended.set()

    def listen(told: Told) -> None:
        listener = ledgers.add_listener(5, told)
        listener.close()
        listener.close()

    assert forgets(Told, listen)
    closing.append(ledgers.add_listener(5, close))
    with ledgers.add_listener(5, others):
        others.wait((5, None))
        version = ledgers.create(5, b"1")
        assert ended.wait(PATIENCE)
        others.wait((5, None), (5, b"1"))
        ledgers.write(5, b"2", version)
        others.wait((5, None), (5, b"1"), (5, b"2"))
    assert told == [(5, b"1")]


def test_a_slow_or_failing_listener_delays_nobody(ledgers: LedgerTable) -> None:
    """Others of the same ledger go on, and so do its own next calls after an error."""
    release = threading.Event()
    quick, failing = Told(), Told()

    def fail(ledger_id: int, found: LedgerMetadata | None) -> None:
        failing(ledger_id, found)
        raise KeyError(ledger_id)

    with (
        ledgers.add_listener(5, lambda *_: release.wait(PATIENCE)),
        ledgers.add_listener(5, fail),
        ledgers.add_listener(5, quick),
    ):
        until(lambda: quick and failing)
        ledgers.create(5, b"1")
        quick.wait((5, None), (5, b"1"))
        failing.wait((5, None), (5, b"1"))
        release.set()


def test_a_listener_outlives_failures(memory: LedgerTable, faults: FaultInjector) -> None:
    """A read that fails is repeated until it succeeds, whatever the error."""
    memory.create(5, b"1")
    told = Told()
    with memory.add_listener(5, told):
        told.wait((5, b"1"))
        faults.fail("get", skip=1, times=2)
        faults.fail("get", error=bk.AuthenticationError("not now"), skip=1)
        memory.write(5, b"2", ANY)
        told.wait((5, b"1"), (5, b"2"))
        memory.write(5, b"3", ANY)
        told.wait((5, b"1"), (5, b"2"), (5, b"3"))


def test_a_listener_that_cannot_begin(memory: LedgerTable, faults: FaultInjector) -> None:
    """The call raises the error, and nothing is called later."""
    told, others = Told(), Told()
    faults.fail("get")
    with pytest.raises(bk.StoreUnavailableError):
        memory.add_listener(5, told)
    with memory.add_listener(5, others):
        memory.create(5, b"")
        others.wait((5, None), (5, b""))
    assert told == []


def test_a_listener_of_a_damaged_ledger(
    tables: MetaStore, ledgers: LedgerTable, caplog: pytest.LogCaptureFixture
) -> None:
    """While it cannot be read, nothing is reported; afterwards, its state."""
    told = Told()
    table = tables.create_table("ledgers")
    with ledgers.add_listener(5, told):
        told.wait((5, None))
        table.put(f"{5:019}", {"other": b""}, NEW)
        until(lambda: "a ledger cannot be read" in caplog.text)
        ledgers.write(5, b"1", ANY)
        told.wait((5, None), (5, b"1"))


@pytest.mark.parametrize("which", ["tables", "store"])
def test_a_close_ends_all(store_url: str, which: str) -> None:
    """Listeners get no more calls, and all methods raise StoreClosedError."""
    with bk.open_store(store_url) as store:
        tables = MetaStore(store)
        ledgers, told = LedgerTable(tables), Told()
        listener = ledgers.add_listener(5, told)
        told.wait((5, None))
        ledgers.new_id()
        if which == "tables":
            tables.close()
            result(store.put(f"/metastore/tables/ledgers/{5:019}", b""))
        else:
            store.close()
        for call in (
            lambda: ledgers.read(5),
            lambda: ledgers.create(5, b""),
            lambda: list(ledgers.ledgers()),
            lambda: ledgers.add_listener(5, told),
        ):
            with pytest.raises(bk.StoreClosedError):
                call()
        if which == "tables":
            with pytest.raises(bk.StoreClosedError):
                ledgers.new_id()
        listener.close()
        assert told == [(5, None)]


@pytest.mark.slow
def test_a_close_during_the_read_of_a_listener(
    quick: MetaStore, memory: LedgerTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A result that it has read is no longer reported."""
    told = Told()
    get = Table.get
    memory.add_listener(5, told)
    told.wait((5, None))

    def close(table: Table, *args: Any) -> Any:
        value = get(table, *args)
        quick.close()
        return value

    monkeypatch.setattr(Table, "get", close)
    memory.create(5, b"1")
    until(lambda: quick.closed)
    until(lambda: not working("listener of ledger"))
    assert told == [(5, None)]


def test_a_forked_child(memory: LedgerTable) -> None:
    """Calls raise StoreClosedError there, and a close of a listener does not hang."""
    listener = memory.add_listener(5, Told())

    def refused() -> bool:
        for call in (
            lambda: memory.add_listener(5, Told()),
            lambda: memory.read(5),
            memory.new_id,
        ):
            try:
                call()
            except bk.StoreClosedError:
                continue
            return False
        listener.close()
        return True

    memory.new_id()
    with locked_elsewhere(memory, listener):
        assert holds_in_a_child(refused)
    listener.close()
