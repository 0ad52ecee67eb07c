"""Ephemeral values: bound at their creation to the session of their creator, and gone with it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import batchkeeper as bk

from ..contents import contents
from ..programs import run_python
from ..waiting import PATIENCE, error, result, until

pytestmark = pytest.mark.needs("ephemerals")

Opens = Callable[[], bk.MetadataStore]


def stat_of(store: bk.MetadataStore, path: str) -> bk.Stat:
    """Return the stat of a path, which must hold a value."""
    store.sync()
    found = result(store.get(path))
    assert found is not None
    return found.stat


def gone(store: bk.MetadataStore, *paths: str) -> None:
    """Wait until paths hold no value. On ZooKeeper, another session may learn of it later."""

    def missing() -> bool:
        store.sync()
        return not any(result(future) for future in [store.exists(path) for path in paths])

    until(missing, f"still there: {paths}")


# --- what the stats say


def test_an_ephemeral_put_says_that_it_is(store: bk.MetadataStore) -> None:
    """The stat of an ephemeral put, of a get and of a scan is ephemeral and owned."""
    stat = result(store.put("/a", b"1", ephemeral=True))
    assert (stat.path, stat.version, stat.ephemeral, stat.owned) == ("/a", 0, True, True)
    assert stat_of(store, "/a") == stat
    assert [found.stat for found in store.scan("/")] == [stat]
    (page,) = [page for page in store.scan_pages("/", values=False) if len(page)]
    assert (page[0].ephemeral, page[0].owned) == (True, True)


def test_a_plain_put_says_that_it_is_not(store: bk.MetadataStore) -> None:
    """The stat of a plain value is neither ephemeral nor owned, beside ephemeral ones as well."""
    futures = [store.put(f"/{n}", b"", ephemeral=n % 2 == 1) for n in range(20)]
    for n, future in enumerate(futures):
        stat = result(future)
        assert (stat.ephemeral, stat.owned) == (n % 2 == 1,) * 2
        assert stat_of(store, f"/{n}") == stat


def test_other_clients_see_whose_it_is_not(
    store: bk.MetadataStore, another: Opens, one_opener: bool
) -> None:
    """Another client reads and scans the value as ephemeral, and not as its own."""
    result(store.put("/a", b"1", ephemeral=True))
    other = another()
    stat = stat_of(other, "/a")
    assert (stat.ephemeral, stat.owned) == (True, one_opener)
    (found,) = other.scan("/")
    assert (found.value, found.stat) == (b"1", stat)


# --- its end


def test_it_is_gone_when_its_session_ends(store: bk.MetadataStore, successor: Opens) -> None:
    """Closing the store ends its session and removes its ephemeral values, and nothing else."""
    for path, ephemeral in (("/a", True), ("/b/c", True), ("/b/d", False), ("/e", False)):
        result(store.put(path, b"", ephemeral=ephemeral))
    after = successor()
    gone(after, "/a", "/b/c")
    assert contents(after) == {"/b/d": b"", "/e": b""}
    assert result(after.get_children("/b")) == ["d"]


def test_many_of_one_session_go_together(store: bk.MetadataStore, successor: Opens) -> None:
    """1,000 ephemeral values that were put in batches are all there, and later all gone."""
    ops = [bk.Put(f"/hubs/{n:04d}", b"%d" % n, ephemeral=True) for n in range(1_000)]
    ops += [bk.Put(f"/kept/{n}", b"") for n in range(10)]
    assert all(outcome.ok for outcome in store.apply(ops))
    assert len(result(store.get_children("/hubs"))) == 1_000
    after = successor()
    until(lambda: (after.sync(), result(after.get_children("/hubs")))[1] == [], "some are left")
    assert len(result(after.get_children("/kept"))) == 10


def test_it_lasts_while_its_session_does(store: bk.MetadataStore, another: Opens) -> None:
    """The end of another session removes nothing of this one."""
    result(store.put("/mine", b"", ephemeral=True))
    other = another()
    if other is not store:
        result(other.put("/theirs", b"", ephemeral=True))
        other.close()
        gone(store, "/theirs")
    assert stat_of(store, "/mine").owned


def test_two_stores_of_one_process_have_a_session_each(
    store: bk.MetadataStore, another: Opens, one_opener: bool
) -> None:
    """With two stores on one URL, each owns what it has put, and only that."""
    other = another()
    result(store.put("/one", b"", ephemeral=True))
    result(other.put("/two", b"", ephemeral=True))
    assert [stat_of(store, path).owned for path in ("/one", "/two")] == [True, one_opener]
    assert [stat_of(other, path).owned for path in ("/one", "/two")] == [one_opener, True]


# --- later puts


@pytest.mark.parametrize("flag", [False, True])
def test_a_later_put_changes_the_value_only(
    store: bk.MetadataStore, successor: Opens, flag: bool
) -> None:
    """A put over an ephemeral value leaves it ephemeral, with or without the flag."""
    result(store.put("/a", b"0", ephemeral=True))
    unconditional = result(store.put("/a", b"1", ephemeral=flag))
    assert (unconditional.version, unconditional.ephemeral, unconditional.owned) == (1, True, True)
    expected = result(store.put("/a", b"2", expected_version=1, ephemeral=flag))
    assert (expected.version, expected.ephemeral, expected.owned) == (2, True, True)
    assert stat_of(store, "/a") == expected
    gone(successor(), "/a")


@pytest.mark.parametrize("flag", [False, True])
def test_another_clients_put_does_not_take_it_over(
    store: bk.MetadataStore, another: Opens, successor: Opens, flag: bool
) -> None:
    """Whoever puts over an ephemeral value, it stays with the session that has created it."""
    result(store.put("/a", b"0", ephemeral=True))
    other = another()
    for version, expected in ((1, None), (2, 1)):
        stat = result(other.put("/a", b"x", expected, ephemeral=flag))
        assert (stat.version, stat.ephemeral, stat.owned) == (version, True, other is store)
    stat = stat_of(store, "/a")
    assert (stat.version, stat.ephemeral, stat.owned) == (2, True, True)
    gone(successor(), "/a")


def test_puts_over_ephemerals_in_one_batch_with_others(
    store: bk.MetadataStore, another: Opens, successor: Opens
) -> None:
    """In one batch, puts over ephemeral and over plain values leave each what it was."""
    ops = [bk.Put(f"/{n}", b"", ephemeral=n % 3 == 0) for n in range(60)]
    assert all(outcome.ok for outcome in store.apply(ops))
    outcomes = another().apply([bk.Put(f"/{n}", b"new", ephemeral=n % 2 == 0) for n in range(70)])
    stats = [outcome.result for outcome in outcomes]
    for n, stat in enumerate(stats[:60]):
        assert isinstance(stat, bk.Stat)
        assert (stat.version, stat.ephemeral) == (1, n % 3 == 0)
    after = successor()
    gone(after, *(f"/{n}" for n in range(0, 60, 3)))
    left = contents(after)
    assert {f"/{n}" for n in range(60) if n % 3} <= left.keys()


def test_a_plain_value_stays_plain(store: bk.MetadataStore, successor: Opens) -> None:
    """An ephemeral put over a plain value changes its value, and binds it to no session."""
    result(store.put("/a", b"0"))
    stat = result(store.put("/a", b"1", ephemeral=True))
    assert (stat.version, stat.ephemeral, stat.owned) == (1, False, False)
    assert contents(successor()) == {"/a": b"1"}


def test_conditions_hold_as_for_any_put(store: bk.MetadataStore, another: Opens) -> None:
    """Of two that claim a path with ABSENT, the second is refused, and the claim stays."""
    result(store.put("/claim", b"first", bk.ABSENT, ephemeral=True))
    refused = error(another().put("/claim", b"second", bk.ABSENT, ephemeral=True))
    assert isinstance(refused, bk.BadVersionError)
    assert (refused.path, refused.expected) == ("/claim", bk.ABSENT)
    assert isinstance(error(store.put("/claim", b"", 3, ephemeral=True)), bk.BadVersionError)
    assert isinstance(error(store.put("/no", b"", 0, ephemeral=True)), bk.BadVersionError)
    assert contents(store) == {"/claim": b"first"}


# --- deletes


def test_anybody_may_delete_it(store: bk.MetadataStore, another: Opens) -> None:
    """A delete by another client removes an ephemeral value like any other."""
    result(store.put("/a", b"", ephemeral=True))
    other = another()
    other.sync()
    assert isinstance(error(other.delete("/a", expected_version=4)), bk.BadVersionError)
    result(other.delete("/a", expected_version=0))
    gone(store, "/a")


def test_what_is_put_after_a_delete_is_new(store: bk.MetadataStore, successor: Opens) -> None:
    """A path that is put again after a delete is ephemeral if that put says so, and only then."""
    for path, first in (("/plain", True), ("/ephemeral", False)):
        result(store.put(path, b"", ephemeral=first))
        result(store.delete(path))
        stat = result(store.put(path, b"new", bk.ABSENT, ephemeral=not first))
        assert (stat.version, stat.ephemeral, stat.owned) == (0, not first, not first)
    after = successor()
    gone(after, "/ephemeral")
    assert contents(after) == {"/plain": b"new"}


def test_what_another_has_put_after_a_delete_is_the_others(
    store: bk.MetadataStore, another: Opens
) -> None:
    """The end of the first owner's session leaves the path to the second owner."""
    first = another()
    result(first.put("/a", b"1", ephemeral=True))
    result(first.delete("/a"))
    store.sync()
    result(store.put("/a", b"2", bk.ABSENT, ephemeral=True))
    if first is not store:
        first.close()
        result(store.put("/b", b""))
    stat = stat_of(store, "/a")
    assert (stat.ephemeral, stat.owned) == (True, True)


def test_a_recursive_delete_removes_it(store: bk.MetadataStore) -> None:
    """delete_recursive removes ephemeral values, and counts them."""
    result(store.put("/a", b""))
    for n in range(5):
        result(store.put(f"/a/{n}", b"", ephemeral=n % 2 == 0))
    assert result(store.delete_recursive("/a")) == 6
    assert contents(store) == {}
    assert result(store.put("/a/0", b"", bk.ABSENT)).ephemeral is False


# --- parents


def test_its_parents_are_plain(store: bk.MetadataStore, successor: Opens) -> None:
    """A parent of an ephemeral path has no value, and stays free for plain ones."""
    result(store.put("/a/b/c", b"", ephemeral=True))
    assert result(store.exists("/a/b")) is False
    result(store.put("/a/b", b"kept"))
    after = successor()
    gone(after, "/a/b/c")
    assert contents(after) == {"/a/b": b"kept"}


def test_below_an_ephemeral_path(
    store: bk.MetadataStore, successor: Opens, on_zookeeper: bool
) -> None:
    """ZooKeeper takes no value below an ephemeral path and says so; elsewhere it stays there."""
    result(store.put("/a", b"", ephemeral=True))
    futures = [store.put("/a/b", b"below"), store.put("/c", b"beside")]
    if on_zookeeper:
        refused = error(futures[0])
        assert type(refused) is bk.UnsupportedError
        assert (refused.path, refused.outcome) == ("/a/b", "not_applied")
        assert "ephemeral" in str(refused)
    else:
        assert result(futures[0]).version == 0
        assert type(error(store.delete("/a"))) is bk.NotEmptyError
    result(futures[1])
    after = successor()
    gone(after, "/a")
    left = {"/c": b"beside"} if on_zookeeper else {"/a/b": b"below", "/c": b"beside"}
    assert contents(after) == left


# --- mistakes


@pytest.mark.call
@pytest.mark.parametrize("bad", ["yes", 1, None])
def test_the_flag_is_a_bool(store: bk.MetadataStore, bad: Any) -> None:
    """Anything but a bool is refused by the call."""
    for call in (store.put, bk.Put):
        with pytest.raises(bk.InvalidSettingError, match="ephemeral"):
            call("/a", b"", ephemeral=bad)
    assert contents(store) == {}


FORKED = """
import os, sys, warnings
import batchkeeper as bk

warnings.simplefilter("ignore", DeprecationWarning)
with bk.open_store(sys.argv[1]) as store:
    store.put("/parent", b"", ephemeral=True).result()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            store.put("/child", b"", ephemeral=True)
        except bk.StoreClosedError as error:
            status = 0 if "before this process was forked" in str(error) else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert store.put("/parent", b"").result().owned
    assert store.exists("/child").result() is False
"""


@pytest.mark.slow
def test_a_forked_child_has_no_session(store_url: str) -> None:
    """An ephemeral put after a fork is refused in the child; the parent keeps its values."""
    ended = run_python("-c", FORKED, store_url, timeout=PATIENCE)
    assert ended.returncode == 0, ended.stderr


def test_no_ephemeral_put_on_a_closed_store(store: bk.MetadataStore) -> None:
    """After close, an ephemeral put is StoreClosedError, like any other."""
    store.close()
    with pytest.raises(bk.StoreClosedError):
        store.put("/a", b"", ephemeral=True)


# --- the other ways to submit


def test_operations_and_bulk_calls(store: bk.MetadataStore, successor: Opens) -> None:
    """submit and apply take ephemeral puts as put does."""
    assert result(store.submit(bk.Put("/a", b"", ephemeral=True))).owned
    outcomes = store.apply([bk.Put("/b", b"", ephemeral=True), bk.Put("/c", b"")])
    assert [outcome.result.ephemeral for outcome in outcomes] == [True, False]
    after = successor()
    gone(after, "/a", "/b")
    assert contents(after) == {"/c": b""}


@pytest.mark.needs("transactions")
def test_in_a_transaction(store: bk.MetadataStore, successor: Opens) -> None:
    """A transaction may claim a path with an ephemeral put, beside a plain one."""
    both = [bk.Put("/claim", b"", bk.ABSENT, ephemeral=True), bk.Put("/log", b"")]
    claim, log = result(store.transaction(both))
    assert (claim.ephemeral, claim.owned, log.ephemeral, log.owned) == (True, True, False, False)
    assert stat_of(store, "/claim") == claim
    assert isinstance(error(store.transaction(both)), bk.TransactionRefusedError)
    after = successor()
    gone(after, "/claim")
    assert contents(after) == {"/log": b""}


@pytest.mark.needs("transactions")
def test_a_refused_transaction_leaves_it_what_it_was(
    store: bk.MetadataStore, another: Opens, successor: Opens
) -> None:
    """An ephemeral value that a refused transaction was to delete or change stays ephemeral."""
    for path in ("/deleted", "/changed"):
        result(store.put(path, b"old", ephemeral=True))
    before = [stat_of(store, path) for path in ("/changed", "/deleted")]
    other = another()
    other.sync()
    ops = [
        bk.Delete("/deleted"),
        bk.Put("/changed", b"new"),
        bk.Put("/new", b"", ephemeral=True),
        bk.Check("/missing", 0),
    ]
    assert isinstance(error(other.transaction(ops)), bk.TransactionRefusedError)
    assert [found.stat for found in store.scan("/")] == before
    assert result(other.transaction(ops[1:3]))[0].ephemeral
    assert stat_of(store, "/changed").owned
    after = successor()
    gone(after, "/deleted", "/changed")


def test_tasks(store_url: str, batching: bk.BatchingConfig) -> None:
    """The asynchronous face puts ephemeral values, whose end comes with its own close."""

    async def main() -> None:
        async with asyncio.timeout(PATIENCE):
            async with bk.open_async_store(store_url, batching=batching) as store:
                await store.put("/plain", b"")
                stats = await asyncio.gather(
                    *(store.put(f"/e/{n}", b"", ephemeral=True) for n in range(50))
                )
                assert all(stat.ephemeral and stat.owned for stat in stats)
                assert len(await store.get_children("/e")) == 50
                if bk.store_kind(store_url).local_directory:
                    return
                other = await bk.open_async_store(store_url, batching=batching)
                assert (await other.put("/theirs", b"", ephemeral=True)).owned
                await other.close()
                while await store.exists("/theirs"):
                    await store.sync()
                assert (await store.put("/e/0", b"")).owned

    asyncio.run(main())
