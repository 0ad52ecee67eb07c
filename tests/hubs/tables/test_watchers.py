"""One-shot watchers of keys: the same calls on every store."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import batchkeeper as bk
from batchkeeper.hubs.errors import IllegalOperationError, NoKeyError
from batchkeeper.hubs.tables import MetaStore, Table, Version
from batchkeeper.testing import FaultInjector

from ...waiting import PATIENCE, result, until
from .watching import CHANGED, REMOVED, Calls, arm, held_events, settle, tells_revisions

NEW, ANY = Version.NEW, Version.ANY


# --- the calls


def test_each_change_is_told(table: Table) -> None:
    """A creation and an update are CHANGED, a removal is REMOVED; a missing key is watched too."""
    calls = Calls()
    with pytest.raises(NoKeyError):
        table.get("k", watcher=calls)
    version = table.put("k", {"f": b"1"}, NEW)
    calls.wait(("k", CHANGED))
    assert table.get("k", ["f"], calls) == ({"f": b"1"}, version)
    table.put("k", {}, ANY)
    calls.wait(("k", CHANGED), ("k", CHANGED))
    table.get("k", (), watcher=calls)
    table.remove("k", ANY)
    calls.wait(("k", CHANGED), ("k", CHANGED), ("k", REMOVED))


def test_a_watcher_is_called_once(table: Table) -> None:
    """The first change is reported, and no later one; other keys are not reported at all."""
    calls, others = Calls(), Calls()
    arm(table, "k", calls)
    for key in ("j", "kk", "k."):
        arm(table, key, others)
    for key in ("k/k", "k"):
        table.put(key, {}, NEW)
        table.put(key, {"f": b"1"}, ANY)
        table.put(key, {"f": b"2"}, ANY)
    settle(table)
    assert calls == [("k", CHANGED)]
    assert others == []


def test_each_get_arms_a_watcher_of_its_own(table: Table) -> None:
    """Several on one key are all called, one as often as it was armed."""
    first, second = Calls(), Calls()
    table.put("k", {}, NEW)
    for watcher in (first, second, first):
        arm(table, "k", watcher)
    table.put("k", {}, ANY)
    settle(table)
    assert (first, second) == ([("k", CHANGED)] * 2, [("k", CHANGED)])


def test_a_key_that_is_replaced_was_removed_first(store: bk.MetadataStore, table: Table) -> None:
    """Of a removal and a creation, the first is reported; without revisions, the state found
    then."""
    calls = Calls()
    table.put("k", {}, NEW)
    arm(table, "k", calls)
    table.remove("k", ANY)
    table.put("k", {}, NEW)
    settle(table)
    told = (REMOVED,) if tells_revisions(store) else (REMOVED, CHANGED)
    assert calls in [[("k", event)] for event in told]


def test_emptying_a_table_is_told(table: Table) -> None:
    """Each key of it was removed."""
    calls = Calls()
    for key in "abc":
        table.put(key, {}, NEW)
        arm(table, key, calls)
    assert table.clear() == 3
    until(lambda: len(calls) == 3)
    assert sorted(calls) == [(key, REMOVED) for key in "abc"]


def test_the_last_change_is_never_missed(table: Table) -> None:
    """Who arms a watcher at each call, and reads then, ends with the last value."""
    table.put("k", {"n": b"0"}, NEW)
    seen: list[int] = []

    def look(*_: object) -> None:
        seen.append(int(table.get("k", watcher=look).value["n"]))

    look()
    for number in range(1, 60):
        table.put("k", {"n": b"%d" % number}, ANY)
    until(lambda: seen[-1] == 59)
    assert seen == sorted(set(seen))  # Each call was for a change that was not read before.


# --- events older than the read, or during it


@pytest.mark.parametrize("revisions", [True, False], ids=["revisions", "no-revisions"])
@pytest.mark.parametrize("there", [True, False], ids=["there", "missing"])
def test_older_events_are_not_told(
    table: Table, monkeypatch: pytest.MonkeyPatch, there: bool, revisions: bool
) -> None:
    """A change that the read has seen is not reported, however late its event comes."""
    calls = Calls()
    with held_events(table, monkeypatch, revisions=revisions) as events:
        table.put("k", {}, NEW)
        table.put("k", {}, ANY)
        table.remove("k", ANY)
        if there:
            table.put("k", {}, NEW)
        assert events.waits.wait(PATIENCE)
        arm(table, "k", calls)
        events.release()
        settle(table)
        assert calls == []
        table.put("k", {}, ANY if there else NEW)
        calls.wait(("k", CHANGED))


def test_the_first_change_is_told_without_revisions(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where events have no revisions, what is there when they come is compared."""
    changed, removed = Calls(), Calls()
    for key in "abc":
        table.put(key, {}, NEW)
    with held_events(table, monkeypatch, revisions=False) as events:
        arm(table, "a", changed)
        arm(table, "b", changed)
        arm(table, "c", removed)
        table.put("a", {}, ANY)
        table.remove("b", ANY)
        table.put("b", {}, NEW)
        table.remove("c", ANY)
        events.release()
        removed.wait(("c", REMOVED))
        settle(table)
        assert changed == [("a", CHANGED), ("b", CHANGED)]


@pytest.mark.parametrize("revisions", [True, False], ids=["revisions", "no-revisions"])
@pytest.mark.parametrize("there", [True, False], ids=["there", "missing"])
def test_events_during_the_read_are_told(
    store: bk.MetadataStore,
    table: Table,
    monkeypatch: pytest.MonkeyPatch,
    there: bool,
    revisions: bool,
) -> None:
    """All events during the read are kept. The first of them is reported.

    Without revisions, it is the difference between the two reads.
    """
    revisions = revisions and tells_revisions(store)
    if there:
        table.put("k", {"f": b"1"}, NEW)
    get, reads = store.get, 0
    with held_events(table, monkeypatch, revisions=revisions) as events:
        events.release()

        def slow(path: str) -> Any:
            nonlocal reads
            seen = get(path)
            result(seen)
            reads += path.endswith("/k")
            if reads < (1 if there else 2):  # A missing key is read twice.
                return seen
            patch.setattr(store, "get", get)
            before = len(events.handled)
            table.put("k", {"f": b"2"}, ANY if there else NEW)
            table.remove("k", ANY)
            if not there:
                table.put("k", {"f": b"3"}, NEW)
            until(lambda: len(events.handled) >= before + (2 if there else 3))
            return seen

        calls, other = Calls(), Calls()
        with monkeypatch.context() as patch:
            patch.setattr(store, "get", slow)
            if there:
                assert table.get("k", watcher=calls).value == {"f": b"1"}
            else:
                arm(table, "k", calls)
        calls.wait(("k", REMOVED if there and not revisions else CHANGED))
        arm(table, "k", other)
        settle(table)
        assert other == []


@pytest.mark.parametrize("changed", [False, True])
def test_a_key_that_goes_before_the_read(
    store: bk.MetadataStore, table: Table, monkeypatch: pytest.MonkeyPatch, changed: bool
) -> None:
    """A key that comes and goes within the call was missing, and its removal is not reported."""
    calls = Calls()
    arm(table, "first", print)
    ask = store.revision

    def slow() -> int:
        table.put("k", {}, NEW)
        revision = ask()
        if changed:
            table.put("k", {}, ANY)
        table.remove("k", ANY)
        return revision

    with monkeypatch.context() as patch:
        patch.setattr(store, "revision", slow)
        arm(table, "k", calls)
    settle(table)
    assert calls == []
    table.put("k", {}, NEW)
    calls.wait(("k", CHANGED))


def test_a_store_that_tells_no_revision(
    store: bk.MetadataStore, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A missing key is read again at each of its events."""

    def refuse() -> int:
        raise bk.UnsupportedError("no scans")

    monkeypatch.setattr(store, "revision", refuse)
    calls = Calls()
    with held_events(table, monkeypatch) as events:
        table.put("k", {}, NEW)
        table.remove("k", ANY)
        arm(table, "k", calls)
        events.release()
        settle(table)
        assert calls == []
        table.put("k", {}, NEW)
        calls.wait(("k", CHANGED))


# --- gaps


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the store's watches hold few events."""
    watch = bk.MetadataStore.watch
    monkeypatch.setattr(
        bk.MetadataStore,
        "watch",
        lambda store, prefix: watch(store, prefix, max_events=2),
    )


@pytest.mark.usefixtures("small")
def test_a_gap_is_compared(
    store: bk.MetadataStore, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where events are missing, all armed keys are read again, and differences are reported."""
    calls, same = Calls(), Calls()
    for key in ("a", "b", "c", "same"):
        table.put(key, {}, NEW)
    with held_events(table, monkeypatch) as events:
        for key in ("a", "b", "c", "d"):
            arm(table, key, calls)
        arm(table, "same", same)
        arm(table, "missing", same)
        table.put("block", {}, NEW)
        assert events.waits.wait(PATIENCE)
        table.put("a", {}, ANY)
        table.remove("b", ANY)
        table.remove("c", ANY)
        table.put("c", {}, NEW)
        table.put("d", {}, NEW)
        for _ in range(3):
            table.put("block", {}, ANY)
        until(lambda: store.metrics().watch_drops == 6)  # all but the last two
        events.release()
        until(lambda: len(calls) == 4)
        settle(table)
        assert sorted(calls) == [("a", CHANGED), ("b", REMOVED), ("c", CHANGED), ("d", CHANGED)]
        assert same == []


@pytest.mark.usefixtures("small")
def test_a_gap_during_a_read(
    store: bk.MetadataStore, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The key is read again, because its change may be among what is missing."""
    table.put("k", {"f": b"1"}, NEW)
    with held_events(table, monkeypatch) as events:
        table.put("block", {}, NEW)
        assert events.waits.wait(PATIENCE)
        get, apply = store.get, store.apply
        compared = threading.Event()

        def compare(ops: Any) -> Any:
            found = apply(ops)
            compared.set()
            return found

        def slow(path: str) -> Any:
            seen = get(path)
            result(seen)
            monkeypatch.setattr(store, "get", get)
            table.put("k", {"f": b"2"}, ANY)
            for _ in range(3):
                table.put("block", {}, ANY)
            until(lambda: store.metrics().watch_drops == 2)  # That of "k" is among them.
            monkeypatch.setattr(store, "apply", compare)  # The first watcher waits.
            events.release()
            assert compared.wait(PATIENCE)
            return seen

        monkeypatch.setattr(store, "get", slow)
        calls = Calls()
        assert table.get("k", watcher=calls).value == {"f": b"2"}
        settle(table)
        assert calls == []
        table.remove("k", ANY)
        calls.wait(("k", REMOVED))


# --- callbacks


def test_a_slow_watcher_delays_only_its_table(tables: MetaStore) -> None:
    """Others of its table wait; calls of the table, other tables and the store go on."""
    slow, quick = tables.create_table("slow"), tables.create_table("quick")
    begun, ended, calls, others = threading.Event(), threading.Event(), Calls(), Calls()

    def wait(*_: object) -> None:
        begun.set()
        assert ended.wait(PATIENCE)

    arm(slow, "a", wait)
    arm(slow, "b", calls)
    slow.put("a", {}, NEW)
    assert begun.wait(PATIENCE)
    slow.put("b", {}, NEW)
    slow.get("b", watcher=calls)
    arm(quick, "c", others)
    quick.put("c", {}, NEW)
    others.wait(("c", CHANGED))
    assert calls == []
    ended.set()
    calls.wait(("b", CHANGED))


def test_watchers_are_called_one_after_the_other(table: Table) -> None:
    """A hundred calls due at once take no hundred threads, and an error stops no other."""
    running, most = 0, 0
    threads: set[int] = set()
    calls = Calls()

    def watcher(key: str, event: Any) -> None:
        nonlocal running, most
        running += 1
        threads.add(threading.get_ident())
        most = max(most, running)
        running -= 1
        calls(key, event)
        raise KeyError(key)

    table.put("k", {}, NEW)
    for _ in range(100):
        arm(table, "k", watcher)
    table.put("k", {}, ANY)
    until(lambda: len(calls) == 100)
    assert most == 1
    assert len(threads) < 10
    assert threading.get_ident() not in threads


@pytest.mark.parametrize("watcher", [5, "text", b""])
def test_what_is_no_function_is_refused(watched: Table, watcher: Any) -> None:
    """It is an error at once, whether the key is there or not."""
    with pytest.raises(IllegalOperationError, match="function"):
        watched.get("k", watcher=watcher)


def test_a_coroutine_function_is_refused(watched: Table) -> None:
    """Nothing would await it."""

    async def watcher(*_: object) -> None: ...

    with pytest.raises(IllegalOperationError, match="function"):
        watched.get("k", watcher=watcher)


def test_a_store_without_watches(
    faults: FaultInjector, watched: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is refused before anything is read."""
    monkeypatch.setattr(bk.MetadataStore, "capabilities", frozenset({"expected_revisions"}))
    with pytest.raises(bk.UnsupportedError, match="'watches'"):
        watched.get("k", watcher=Calls())
    assert faults.calls == ()
