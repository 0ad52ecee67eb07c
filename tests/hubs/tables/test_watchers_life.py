"""The life of watchers and of their watch: failures, closes, forks, missing threads."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

import batchkeeper as bk
from batchkeeper.hubs.tables import MetaStore, Table, Version
from batchkeeper.hubs.tables._sync.watchers import Watchers, _Baseline, _difference
from batchkeeper.testing import FaultInjector

from ...background import working
from ...forks import holds_in_a_child, locked_elsewhere
from ...waiting import PATIENCE, result, until
from .watching import CHANGED, REMOVED, Calls, arm, settle

NEW, ANY = Version.NEW, Version.ANY


# --- what is not armed any more


def test_a_watcher_that_is_disarmed(table: Table) -> None:
    """It is not called; of one that is armed twice, one call stays."""
    calls = Calls()
    arm(table, "k", calls)
    arm(table, "k", calls)
    assert table.disarm("k", calls)
    assert not table.disarm("k", print)
    assert not table.disarm("kk", calls)
    table.put("k", {}, NEW)
    settle(table)
    assert calls == [("k", CHANGED)]
    assert not table.disarm("k", calls)


def test_a_read_that_fails_arms_nothing(
    memory: bk.MetadataStore, faults: FaultInjector, watched: Table
) -> None:
    """After an error of the store, the watcher is not called; after a damaged record, it is."""
    lost, calls = Calls(), Calls()
    result(memory.put("/metastore/tables/t/k", b"damaged"))
    with pytest.raises(bk.ValueDecodeError):
        watched.get("k", watcher=calls)
    faults.fail("get")
    with pytest.raises(bk.StoreUnavailableError):
        watched.get("k", watcher=lost)
    assert faults.hits
    result(memory.delete("/metastore/tables/t/k"))
    calls.wait(("k", REMOVED))
    assert not watched.disarm("k", lost)
    assert lost == []


@pytest.mark.slow
@pytest.mark.parametrize("which", ["tables", "store"])
def test_nothing_is_called_after_a_close(
    store_url: str, fresh_url: Callable[[str], str], which: str
) -> None:
    """Neither armed watchers nor those whose calls are due; a call under way goes on."""
    with bk.open_store(store_url) as store:
        tables = MetaStore(store)
        table = tables.create_table("t")
        begun, ended, calls = threading.Event(), threading.Event(), Calls()

        def wait(*_: object) -> None:
            begun.set()
            assert ended.wait(PATIENCE)
            ended.clear()

        table.put("k", {}, NEW)
        arm(table, "k", wait)
        for _ in range(3):
            arm(table, "k", calls)
            arm(table, "other", calls)
        forgotten = Calls()
        left = weakref.ref(forgotten)
        arm(table, "other", forgotten)
        del forgotten
        table.put("k", {}, ANY)
        assert begun.wait(PATIENCE)
        # Those that the same event concerns are due since then.
        if which == "tables":
            tables.close()
            result(store.put("/metastore/tables/t/other", b""))
            until(lambda: store.metrics().watches == 0)
        else:
            store.close()
        ended.set()
        until(lambda: not ended.is_set())
        until(lambda: not working("listener of table at"))
        assert calls == []
        until(lambda: gc.collect() >= 0 and left() is None)
        with pytest.raises(bk.StoreClosedError):
            table.get("k", watcher=calls)


# --- the watch of the store


@pytest.mark.slow
def test_the_wait_for_the_watch_is_bounded(faults: FaultInjector, watched: Table) -> None:
    """It ends with an error at the operation's time-out, and nothing is read or armed."""
    held, calls = faults.delay("watch"), Calls()
    with pytest.raises(bk.OperationTimeoutError, match="in place"):
        watched.get("k", watcher=calls)
    assert not watched.disarm("k", calls)
    held.remove()
    arm(watched, "k", calls)
    watched.put("k", {}, NEW)
    calls.wait(("k", CHANGED))


@pytest.mark.parametrize("which", ["tables", "store"])
def test_a_close_ends_the_wait_for_the_watch(fresh_url: Callable[[str], str], which: str) -> None:
    """The waiting calls raise StoreClosedError at once."""
    faults = FaultInjector()
    url = fresh_url("memory")
    with bk.open_store(url, wrap=faults, operation_timeout=2 * PATIENCE) as store:
        tables = MetaStore(store)
        table = tables.create_table("t")
        held = faults.delay("watch")
        with ThreadPoolExecutor(3) as pool:
            waiting = [pool.submit(table.get, "k", None, Calls()) for _ in range(3)]
            held.wait()
            (tables if which == "tables" else store).close()
            for future in waiting:
                assert isinstance(future.exception(PATIENCE), bk.StoreClosedError)
        held.remove()


def test_a_thread_that_does_not_start(watched: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """All who wait get an error; a later call begins again."""
    start = threading.Thread.start
    armed = watched._watchers._armed

    def fail(thread: threading.Thread) -> None:
        if "follower" not in thread.name:
            start(thread)
            return
        until(lambda: sum(map(len, armed.values())) == 2)  # Both wait for it.
        raise RuntimeError("can't start new thread")

    calls = Calls()
    with monkeypatch.context() as patch, ThreadPoolExecutor(2) as pool:
        patch.setattr(threading.Thread, "start", fail)
        for future in [pool.submit(watched.get, "k", None, calls) for _ in range(2)]:
            error = future.exception(PATIENCE)
            assert isinstance(error, bk.MetadataStoreError)
            assert "new thread" in str(error)
    assert not watched.disarm("k", calls)
    arm(watched, "k", calls)
    watched.put("k", {}, NEW)
    calls.wait(("k", CHANGED))


def test_a_watch_that_is_refused(faults: FaultInjector, watched: Table) -> None:
    """The call raises what the store says, and a later call begins again."""
    faults.fail("watch", error=bk.AuthenticationError("no watches for you"))
    with pytest.raises(bk.AuthenticationError):
        watched.get("k", watcher=Calls())
    calls = Calls()
    arm(watched, "k", calls)
    watched.put("k", {}, NEW)
    calls.wait(("k", CHANGED))


def test_a_watch_that_fails_for_good(faults: FaultInjector, watched: Table) -> None:
    """Armed watchers stay armed: with the next watch, they get the missed changes."""
    calls, later = Calls(), Calls()
    arm(watched, "k", calls)
    assert faults.end_watches(bk.AuthenticationError("no more watches for you")) == 1
    until(lambda: not working("follower of"))
    watched.put("k", {}, NEW)
    arm(watched, "other", later)
    calls.wait(("k", CHANGED))
    watched.put("other", {}, NEW)
    later.wait(("other", CHANGED))


def test_the_watch_ends_when_nothing_is_armed(
    memory: bk.MetadataStore, watched: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends some time after the last call of a watcher; a later get begins another."""
    monkeypatch.setattr(Watchers, "linger", 0.05)
    calls = Calls()
    arm(watched, "k", calls)
    watched.put("k", {}, NEW)
    calls.wait(("k", CHANGED))
    until(lambda: memory.metrics().watches == 0)
    arm(watched, "k", calls)
    watched.put("k", {}, ANY)
    calls.wait(("k", CHANGED), ("k", CHANGED))


def test_the_watch_of_a_busy_table_ends_too(
    memory: bk.MetadataStore, watched: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends at a change of the table if nothing was armed for long, and not while one is."""
    calls = Calls()
    arm(watched, "k", calls)
    monkeypatch.setattr(Watchers, "linger", 0.0)
    watched.put("other", {}, NEW)
    watched.put("k", {}, NEW)
    calls.wait(("k", CHANGED))
    until(lambda: watched.put("other", {}, ANY) and memory.metrics().watches == 0)
    arm(watched, "k", calls)
    watched.put("k", {}, ANY)
    calls.wait(("k", CHANGED), ("k", CHANGED))


def test_one_watch_serves_a_table(memory: bk.MetadataStore, watched: Table) -> None:
    """A thousand watchers need one watch of the store, and two threads at most."""
    before = threading.active_count()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: arm(watched, str(n), print), range(1000)))
        assert memory.metrics().watches == 1
    assert threading.active_count() <= before + 2


def test_a_forked_child(tables_in_memory: MetaStore, watched: Table) -> None:
    """A child gets an error, even if a thread of the parent holds the lock."""
    calls = Calls()
    arm(watched, "k", calls)

    def refused() -> bool:
        for call in (
            lambda: watched.get("k", watcher=calls),
            lambda: watched.disarm("k", calls),
        ):
            try:
                call()
            except bk.StoreClosedError:
                continue
            return False
        tables_in_memory.close()
        return True

    with locked_elsewhere(watched):
        assert holds_in_a_child(refused)
    watched.put("k", {}, NEW)
    calls.wait(("k", CHANGED))


def test_a_store_whose_revisions_ran_back() -> None:
    """In a store that was restored, a changed value may have a smaller revision than before."""
    stat = bk.Stat("/a", 0, 7, None, None)
    restored = bk.GetResult(b"", stat)
    assert _difference(restored, _Baseline(True, 7)) is None
    for before in (_Baseline(True, 1000), _Baseline(False, 1000)):
        assert _difference(restored, before) is CHANGED
