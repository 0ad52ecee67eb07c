"""Transactions: checks, puts and deletes that take effect together, or not at all."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import batchkeeper as bk

from ..contents import contents, put_all
from ..waiting import PATIENCE, error, result

pytestmark = pytest.mark.needs("transactions")

Opens = Callable[[], bk.MetadataStore]
Parts = Sequence[bk.Check | bk.Put | bk.Delete]


def refused(store: bk.MetadataStore, ops: Parts) -> bk.TransactionRefusedError:
    """Return the error of a transaction that must be refused, and has to have an inner error."""
    found = error(store.transaction(ops))
    assert type(found) is bk.TransactionRefusedError
    assert (found.outcome, found.retriable) == ("not_applied", False)
    assert found.error is not None
    assert found.path == found.error.path == ops[found.index].path
    assert str(found.error) in str(found)
    return found


# --- what takes effect


def test_all_of_it_takes_effect(store: bk.MetadataStore) -> None:
    """The result has a stat for each put and None for the others, in order, and all is done."""
    put_all(store, {"/checked": b"", "/deleted": b"", "/changed": b"old"})
    ops = [
        bk.Check("/checked", 0),
        bk.Put("/changed", b"new", 0),
        bk.Delete("/deleted", 0),
        bk.Put("/created", b"1", bk.ABSENT),
        bk.Put("/put", b"2"),
        bk.Check("/missing", bk.ABSENT),
    ]
    results = result(store.transaction(ops))
    assert isinstance(results, list)
    check, changed, deleted, created, put, missing = results
    assert (check, deleted, missing) == (None, None, None)
    for stat, path, version in (
        (changed, "/changed", 1),
        (created, "/created", 0),
        (put, "/put", 0),
    ):
        assert stat is not None
        assert (stat.path, stat.version, stat.ephemeral) == (path, version, False)
        assert result(store.get(path)).stat == stat
    assert changed.revision == created.revision == put.revision
    assert contents(store) == {
        "/changed": b"new",
        "/checked": b"",
        "/created": b"1",
        "/put": b"2",
    }


def test_checks_change_nothing(store: bk.MetadataStore) -> None:
    """A transaction of checks alone gives None for each, and leaves versions as they are."""
    stat = result(store.put("/a", b""))
    ops = [bk.Check("/a", 0), bk.Check("/b/c/d", bk.ABSENT)]
    assert result(store.transaction(ops)) == [None, None]
    assert result(store.get("/a")).stat == stat
    assert result(store.get_children("/")) == ["a"]


def test_one_operation_is_enough(store: bk.MetadataStore) -> None:
    """A transaction of one operation does what the operation does alone."""
    (stat,) = result(store.transaction([bk.Put("/a", b"1")]))
    assert stat.version == 0
    assert result(store.transaction([bk.Put("/a", b"2", 0)]))[0].version == 1
    assert result(store.transaction([bk.Delete("/a", 1)])) == [None]
    assert contents(store) == {}


def test_missing_parents_are_no_obstacle(store: bk.MetadataStore) -> None:
    """Puts of a transaction make their parents, also a parent that two of them share."""
    ops = [bk.Put("/a/b/c", b"1"), bk.Put("/a/b/d", b"2"), bk.Put("/e/f", b"3")]
    assert [stat.version for stat in result(store.transaction(ops))] == [0, 0, 0]
    assert contents(store) == {"/a/b/c": b"1", "/a/b/d": b"2", "/e/f": b"3"}
    assert result(store.exists("/a/b")) is False


def test_many_operations(store: bk.MetadataStore) -> None:
    """Thirty operations are one transaction; one that does not hold undoes all of them."""
    puts = [bk.Put(f"/a/{n:02d}", b"%d" % n, bk.ABSENT) for n in range(30)]
    assert refused(store, [*puts, bk.Check("/missing", 0)]).index == 30
    assert contents(store) == {}
    assert len(result(store.transaction(puts))) == 30
    assert contents(store) == {f"/a/{n:02d}": b"%d" % n for n in range(30)}


# --- what is refused


CASES = {
    "a check of another version": (bk.Check("/there", 4), bk.BadVersionError),
    "a check of a missing path": (bk.Check("/missing", 0), bk.BadVersionError),
    "a check of absence": (bk.Check("/there", bk.ABSENT), bk.BadVersionError),
    "a put of another version": (bk.Put("/there", b"x", 4), bk.BadVersionError),
    "a put of a missing path": (bk.Put("/missing", b"x", 0), bk.BadVersionError),
    "a put that creates": (bk.Put("/there", b"x", bk.ABSENT), bk.BadVersionError),
    "a delete of another version": (bk.Delete("/there", 4), bk.BadVersionError),
    "a delete of a missing path": (bk.Delete("/missing"), bk.NotFoundError),
    "a delete of a missing version": (bk.Delete("/missing", 0), bk.NotFoundError),
    "a delete above values": (bk.Delete("/parent"), bk.NotEmptyError),
}


@pytest.mark.parametrize("index", [0, 1, 3])
def test_an_operation_that_does_not_hold(store: bk.MetadataStore, index: int) -> None:
    """The error has the operation's index and its own error, and nothing has been applied."""
    before = {"/there": b"old", "/parent": b"", "/parent/child": b"", "/other": b"old"}
    put_all(store, before)
    versions = [found.stat for found in store.scan("/")]
    for case, (bad, kind) in CASES.items():
        ops: list[Any] = [
            bk.Put("/other", b"new"),
            bk.Check("/parent/child", 0)
            if kind is bk.NotEmptyError
            else bk.Delete("/parent/child"),
            bk.Put("/new/x", b""),
        ]
        ops.insert(index, bad)
        found = refused(store, ops)
        assert found.index == index, case
        assert type(found.error) is kind, case
        assert found.error.path == bad.path, case
        if isinstance(found.error, bk.BadVersionError):
            assert found.error.expected == bad.expected_version, case
        assert contents(store) == before, case
        assert [found.stat for found in store.scan("/")] == versions, case
        assert result(store.get_children("/")) == ["other", "parent", "there"], case


def test_the_first_that_does_not_hold_is_named(store: bk.MetadataStore) -> None:
    """Of several operations that do not hold, the error names the first in order."""
    ops = [
        bk.Put("/a", b""),
        bk.Delete("/missing"),
        bk.Check("/nowhere", 3),
        bk.Put("/b", b"", 1),
    ]
    found = refused(store, ops)
    assert found.index == 1
    assert type(found.error) is bk.NotFoundError
    found = refused(store, ops[:1] + ops[2:])
    assert found.index == 1
    assert type(found.error) is bk.BadVersionError


def test_operations_are_decided_in_order(store: bk.MetadataStore) -> None:
    """Each operation sees what those before it have done: children can go before their parent."""
    put_all(store, {"/a": b"", "/a/b": b"", "/a/b/c": b""})
    found = refused(store, [bk.Delete("/a"), bk.Delete("/a/b"), bk.Delete("/a/b/c")])
    assert found.index == 0
    assert type(found.error) is bk.NotEmptyError
    ops = [bk.Delete("/a/b/c"), bk.Delete("/a/b"), bk.Delete("/a")]
    assert result(store.transaction(ops)) == [None] * 3
    assert contents(store) == {}
    result(store.put("/a", b""))
    found = refused(store, [bk.Put("/a/b", b""), bk.Delete("/a")])
    assert found.index == 1
    assert type(found.error) is bk.NotEmptyError
    assert contents(store) == {"/a": b""}


def test_a_value_moves(store: bk.MetadataStore) -> None:
    """A delete and a put move a value to another path in one step."""
    result(store.put("/from", b"v"))
    assert result(store.transaction([bk.Delete("/from", 0), bk.Put("/to", b"v", bk.ABSENT)]))[1]
    assert contents(store) == {"/to": b"v"}


def test_fencing(store: bk.MetadataStore, another: Opens) -> None:
    """A write that checks its owner's record is refused once the record has changed."""
    other = another()
    owner = result(store.put("/owner", b"hub-1", bk.ABSENT))
    guarded = [bk.Check("/owner", owner.version), bk.Put("/ledger", b"1")]
    assert result(store.transaction(guarded))[1].version == 0
    result(other.put("/owner", b"hub-2", expected_version=owner.version))
    found = refused(store, [bk.Check("/owner", owner.version), bk.Put("/ledger", b"2")])
    assert found.index == 0
    store.sync()
    assert result(store.get("/ledger")).value == b"1"


@pytest.mark.needs("expected_revisions")
def test_revisions_may_be_expected(store: bk.MetadataStore) -> None:
    """Each kind of operation may expect a revision; deletes and re-creations are noticed."""
    old = result(store.put("/a", b"")).revision
    result(store.delete("/a"))
    new = result(store.put("/a", b"")).revision
    for bad in (
        bk.Check("/a", expected_revision=old),
        bk.Check("/a", 0, expected_revision=old),
        bk.Put("/a", b"x", expected_revision=old),
        bk.Delete("/a", expected_revision=old),
    ):
        found = refused(store, [bk.Put("/b", b""), bad])
        assert found.index == 1
        assert isinstance(found.error, bk.BadVersionError)
        assert (found.error.expected_revision, found.error.actual_revision) == (old, new)
    ops = [bk.Check("/a", 0, expected_revision=new), bk.Put("/b", b"")]
    assert result(store.transaction(ops))[1].version == 0
    assert result(store.transaction([bk.Delete("/a", expected_revision=new)])) == [None]


# --- beside other operations


def test_the_order_of_all_of_its_paths(store: bk.MetadataStore) -> None:
    """Operations before and after it on any of its paths take effect before and after it."""
    for n in range(20):
        a, b = f"/{n}/a", f"/{n}/b"
        futures: list[Any] = [
            store.put(a, b"0", bk.ABSENT),
            store.put(b, b"0", bk.ABSENT),
            store.transaction([bk.Put(b, b"1", 0), bk.Put(a, b"1", 0)]),
            store.get(a),
            store.put(b, b"2", 1),
            store.transaction([bk.Check(b, 2), bk.Delete(a, 1)]),
            store.exists(a),
        ]
        results = [result(future) for future in futures]
        assert [stat.version for stat in results[2]] == [1, 1]
        assert results[3].value == b"1"
        assert results[4].version == 2
        assert results[6] is False


def test_transactions_whose_paths_cross(store: bk.MetadataStore) -> None:
    """Transactions that name the same paths in opposite orders all end, each with all it did."""
    paths = [f"/{n}" for n in range(6)]
    futures = []
    for n in range(120):
        order = paths if n % 2 else paths[::-1]
        some = [path for k, path in enumerate(order) if (n + k) % 3]
        futures.append(store.transaction([bk.Put(path, b"%d" % n) for path in some]))
        futures.append(store.put(paths[n % 6], b"%d" % n))
    for future in futures:
        result(future)
    puts = sum(found.stat.version + 1 for found in store.scan("/"))
    assert puts == 120 * 4 + 120


@pytest.mark.parametrize("version", [bk.ABSENT, 0, 2])
def test_many_check_one_path(store: bk.MetadataStore, version: int) -> None:
    """Any number of writes may check one owner's record; all before its change hold, none after."""
    for value in range(version + 1):
        result(store.put("/owner", b"%d" % value))
    store.apply([bk.Put("/held", b""), bk.Put("/wrong", b""), bk.Put("/late", b"")])

    def guarded(name: str, expected: int) -> list[bk.Operation]:
        return [
            bk.Transaction([bk.Check("/owner", expected), bk.Put(f"/{name}/{n}", b"", bk.ABSENT)])
            for n in range(100)
        ]

    def refused_with(outcomes: Sequence[bk.Outcome], actual: int) -> None:
        for outcome in outcomes:
            assert isinstance(outcome.error, bk.TransactionRefusedError)
            assert outcome.error.index == 0
            assert isinstance(outcome.error.error, bk.BadVersionError)
            assert outcome.error.error.actual == actual

    held, wrong = guarded("held", version), guarded("wrong", version + 2)
    mixed = [op for pair in zip(held, wrong, strict=True) for op in pair]
    change = bk.Put("/owner", b"another", version)
    outcomes = store.apply([*mixed, bk.Get("/owner"), change, *guarded("late", version)])
    before, (found, changed), after = outcomes[:200], outcomes[200:202], outcomes[202:]
    assert [outcome.result[1].version for outcome in before[::2]] == [0] * 100
    refused_with(before[1::2], version)
    assert (found.result and found.result.stat.version) == (None if version < 0 else version)
    assert changed.ok
    refused_with(after, version + 1)
    for name, count in (("held", 100), ("wrong", 0), ("late", 0)):
        assert len(result(store.get_children(f"/{name}"))) == count


def test_a_refused_one_costs_its_neighbours_nothing(store: bk.MetadataStore) -> None:
    """In one bulk call, each transaction and each plain operation ends as it would alone."""
    ops: list[bk.Operation] = []
    for n in range(60):
        ops += [
            bk.Put(f"/plain/{n}", b""),
            bk.Transaction([bk.Put(f"/bad/{n}", b""), bk.Check(f"/missing/{n}", 0)]),
            bk.Transaction([bk.Put(f"/x/{n}", b""), bk.Put(f"/y/{n}", b"")]),
            bk.Put(f"/missing/{n}", b"", 7),
        ]
    outcomes = store.apply(ops)
    assert all(outcome.ok for outcome in outcomes[::4])
    for outcome in outcomes[1::4]:
        assert isinstance(outcome.error, bk.TransactionRefusedError)
        assert outcome.error.index == 1
    assert all(len(outcome.result) == 2 for outcome in outcomes[2::4])
    assert all(isinstance(outcome.error, bk.BadVersionError) for outcome in outcomes[3::4])
    parents = {path: len(result(store.get_children(path))) for path in ("/plain", "/x", "/y")}
    assert parents == {"/plain": 60, "/x": 60, "/y": 60}
    assert not result(store.get_children("/bad"))


def test_nothing_in_between(store: bk.MetadataStore, another: Opens) -> None:
    """Threads of two clients move amounts between accounts; the sum stays what it was."""
    accounts = [f"/account/{n}" for n in range(5)]
    put_all(store, dict.fromkeys(accounts, b"100"))
    clients = [store, another()]

    def move(thread: int) -> int:
        client, moved = clients[thread % 2], 0
        for n in range(1, 26):
            giver, taker = accounts[(thread + n) % 5], accounts[(thread * 2 + n * 3) % 5]
            if giver == taker:
                continue
            client.sync()
            gives, takes = result(client.get(giver)), result(client.get(taker))
            future = client.transaction(
                [
                    bk.Put(giver, b"%d" % (int(gives.value) - n), gives.stat.version),
                    bk.Put(taker, b"%d" % (int(takes.value) + n), takes.stat.version),
                ]
            )
            refusal = future.exception(PATIENCE)
            if refusal is None:
                moved += 1
            else:
                assert isinstance(refusal, bk.TransactionRefusedError)
                assert isinstance(refusal.error, bk.BadVersionError)
        return moved

    with ThreadPoolExecutor(6) as pool:
        moved = sum(pool.map(move, range(6)))
    found = {path: result(store.get(path)) for path in accounts}
    assert moved > 0
    assert sum(int(value.value) for value in found.values()) == 500
    assert sum(value.stat.version for value in found.values()) == 2 * moved


def test_readers_see_all_or_nothing(store: bk.MetadataStore, another: Opens) -> None:
    """A transaction of checks, which reads two paths at one moment, finds both or neither."""
    stop = threading.Event()

    def write() -> None:
        present = False
        while not stop.is_set():
            ops: list[Any] = [bk.Delete("/a"), bk.Delete("/b")]
            if not present:
                ops = [bk.Put("/a", b"", bk.ABSENT), bk.Put("/b", b"", bk.ABSENT)]
            result(store.transaction(ops))
            present = not present

    reader = another()
    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(100):
            for first, second in (("/a", "/b"), ("/b", "/a")):
                half = [bk.Check(first, 0), bk.Check(second, bk.ABSENT)]
                assert isinstance(error(reader.transaction(half)), bk.TransactionRefusedError)
    finally:
        stop.set()
        writer.join(PATIENCE)


# --- mistakes


@pytest.mark.call
@pytest.mark.parametrize(
    ("ops", "message"),
    [
        ([], "at least one"),
        ([bk.Put("/a", b""), bk.Get("/b")], "operation 1"),
        ([bk.Put("/a", b""), bk.Check("/a", 0)], "operation 1.*'/a'"),
        ([bk.Put("/a", b""), bk.Put("/b", b""), bk.Delete("/a")], "operation 2.*'/a'"),
        ([bk.Put("/a", b"", sequential=True)], "sequential"),
        (["/a"], "operation 0"),
        (None, "list"),
        (bk.Put("/a", b""), "list"),
    ],
    ids=["empty", "get", "twice", "put and deleted", "sequential", "text", "None", "no list"],
)
def test_the_call_refuses_what_is_no_transaction(
    store: bk.MetadataStore, ops: Any, message: str
) -> None:
    """What cannot be a transaction raises from the call, with the reason, and changes nothing."""
    with pytest.raises(bk.InvalidSettingError, match=message):
        store.transaction(ops)
    assert contents(store) == {}


def test_a_check_needs_a_condition(store: bk.MetadataStore) -> None:
    """A Check without a version or a revision cannot be made, nor can it be submitted alone."""
    with pytest.raises(bk.InvalidSettingError, match="expected_version"):
        bk.Check("/a")
    with pytest.raises(bk.InvalidPathError):
        bk.Check("a", 0)
    with pytest.raises(bk.InvalidSettingError, match="not an operation"):
        store.submit(bk.Check("/a", 0))  # type: ignore[arg-type]


def test_too_many_operations(store: bk.MetadataStore) -> None:
    """More operations than the store takes in one request raise from the call."""
    with pytest.raises(bk.InvalidSettingError, match=r"20000 operations"):
        store.transaction([bk.Put(f"/{n}", b"") for n in range(20_000)])
    assert contents(store) == {}


def test_too_many_bytes(store: bk.MetadataStore) -> None:
    """Values with a total size above the store's largest request raise from the call."""
    with pytest.raises(bk.ValueTooLargeError):
        store.transaction([bk.Put("/a", bytes(17 * 1024 * 1024)), bk.Put("/b", b"")])
    half = bytes(10 * 1024 * 1024)
    with pytest.raises(bk.ValueTooLargeError):
        store.transaction([bk.Put(f"/{n}", half) for n in range(10)])
    assert contents(store) == {}


def test_no_transaction_on_a_closed_store(store: bk.MetadataStore) -> None:
    """After close, a transaction is StoreClosedError."""
    store.close()
    with pytest.raises(bk.StoreClosedError):
        store.transaction([bk.Put("/a", b"")])


# --- the other ways to submit


def test_operations_and_bulk_calls(store: bk.MetadataStore) -> None:
    """submit and apply take transactions; in a bulk call, a refused one is its own outcome."""
    op = bk.Transaction([bk.Put("/a", b"", bk.ABSENT), bk.Put("/b", b"")])
    assert [stat.version for stat in result(store.submit(op))] == [0, 0]
    again, after = store.apply_stream([op, bk.Transaction([bk.Check("/a", 0)])])
    assert again.op is op
    assert isinstance(again.error, bk.TransactionRefusedError)
    assert after.result == [None]


def test_tasks(store_url: str, batching: bk.BatchingConfig) -> None:
    """The asynchronous face executes transactions, and raises a refusal from the await."""

    async def main() -> None:
        async with asyncio.timeout(PATIENCE):
            async with bk.open_async_store(store_url, batching=batching) as store:
                claims = [
                    store.transaction([bk.Put("/claim", b"", bk.ABSENT), bk.Put(f"/{n}", b"")])
                    for n in range(20)
                ]
                ended = await asyncio.gather(*claims, return_exceptions=True)
                won = [n for n, outcome in enumerate(ended) if isinstance(outcome, list)]
                assert len(won) == 1
                for n, outcome in enumerate(ended):
                    if n not in won:
                        assert isinstance(outcome, bk.TransactionRefusedError)
                        assert outcome.index == 0
                assert await store.get_children("/") == sorted(["claim", f"{won[0]}"])
                with pytest.raises(bk.InvalidSettingError):
                    await store.transaction([])

    asyncio.run(main())


def test_what_is_too_much_for_one_transaction_is_refused_by_the_call(
    store: bk.MetadataStore,
) -> None:
    """Too many operations are refused before anything is queued, whatever they count as."""

    def takes(most: int) -> bool:
        try:
            future = store.transaction([bk.Delete(f"/none/{number}") for number in range(most)])
        except bk.InvalidSettingError:
            return False
        assert isinstance(future.exception(PATIENCE), bk.TransactionRefusedError)
        return True

    few, many = 10, 3_000
    assert takes(few)
    assert not takes(many)
    while many - few > 1:  # The most that the call takes is no more than the store takes.
        middle = (few + many) // 2
        few, many = (middle, many) if takes(middle) else (few, middle)
