"""The guarantees for callers on every store: neighbours, order, endings."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, as_completed, wait
from typing import Any

import pytest

import batchkeeper as bk

from ..contents import put_all
from ..waiting import PATIENCE, error, result

# --- neighbours and order


def test_neighbours_do_not_matter(store: bk.MetadataStore) -> None:
    """Operations submitted together have the outcomes that each would have had alone."""
    result(store.put("/there", b"old"))
    result(store.put("/parent/child", b""))
    futures: list[Future[Any]] = [
        store.put("/fresh", b"", expected_version=bk.ABSENT),
        store.put("/there", b"new", expected_version=9),
        store.put("/parent/child", b"", expected_version=bk.ABSENT),
        store.delete("/missing"),
        store.put("/new/deep/path", b"x"),
        store.get("/nothing"),
        store.delete("/parent"),
        store.exists("/there"),
        store.get_children("/parent"),
    ]
    wait(futures, PATIENCE)
    ended = [
        type(future.exception()).__name__ if future.exception() else future.result()
        for future in futures
    ]
    assert ended[0].version == 0
    assert ended[1:4] == ["BadVersionError", "BadVersionError", "NotFoundError"]
    assert ended[4].version == 0
    assert ended[5:] == [None, "NotEmptyError", True, ["child"]]
    assert result(store.get("/there")).value == b"old"


def test_one_failure_in_ten_hurts_nobody_else(store: bk.MetadataStore) -> None:
    """Of 500 conditional puts, exactly the one in ten with a wrong version fails."""
    taken = {f"/{number}" for number in range(0, 500, 10)}
    put_all(store, dict.fromkeys(taken, b"old"))
    outcomes = store.apply(bk.Put(f"/{number}", b"new", bk.ABSENT) for number in range(500))
    assert {outcome.op.path for outcome in outcomes if not outcome.ok} == taken
    assert all(isinstance(o.error, bk.BadVersionError) for o in outcomes if not o.ok)
    found = store.apply(bk.Get(f"/{number}") for number in range(500))
    assert [o.result.value for o in found] == [
        b"old" if o.op.path in taken else b"new" for o in found
    ]


def test_operations_on_one_path_take_effect_in_order(store: bk.MetadataStore) -> None:
    """Writes and reads of a path, none of them awaited, see exactly what came before them."""
    futures: list[Future[Any]] = []
    for number in range(50):
        value = b"%d" % number
        futures += [
            store.put("/a", value, expected_version=bk.ABSENT),
            store.get("/a"),
            store.put("/a", value * 2, expected_version=0),
            store.exists("/a"),
            store.get("/a"),
            store.delete("/a", expected_version=1),
            store.get("/a"),
            store.delete("/a"),
        ]
    for number in range(50):
        value = b"%d" % number
        created, first, changed, there, second, deleted, third, refused = futures[
            8 * number : 8 * number + 8
        ]
        assert result(created).version == 0
        assert result(first).value == value
        assert result(changed).version == 1
        assert result(there) is True
        assert result(second).value == value * 2
        assert result(deleted) is None
        assert result(third) is None
        assert type(error(refused)) is bk.NotFoundError


@pytest.mark.slow
def test_many_puts_on_one_path_come_in_order(store: bk.MetadataStore) -> None:
    """The versions of 500 puts on one path from one thread are 0 to 499, in that order."""
    puts = (bk.Put("/hot", b"%d" % number) for number in range(500))
    outcomes = store.apply(puts, timeout=600)  # Each needs a round trip, on a busy machine too.
    assert [outcome.result.version for outcome in outcomes] == list(range(500))
    assert result(store.get("/hot")).value == b"499"


def test_a_chain_of_compares_can_be_submitted_at_once(store: bk.MetadataStore) -> None:
    """A put may expect the version that an earlier, unfinished put of its path will give."""
    futures = [
        store.put("/a", b"", expected_version=number - 1 if number else bk.ABSENT)
        for number in range(200)
    ]
    assert [result(future).version for future in futures] == list(range(200))


@pytest.mark.slow
def test_a_counter_loses_no_increment(store: bk.MetadataStore) -> None:
    """Eight threads that read, add one and put what they read expect: every increment counts."""
    result(store.put("/counter", b"0"))

    def increment(_: int) -> None:
        while True:
            found = result(store.get("/counter"))
            value = b"%d" % (int(found.value) + 1)
            try:
                result(store.put("/counter", value, expected_version=found.stat.version))
            except bk.BadVersionError:
                continue
            return

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(increment, range(80)))
    found = result(store.get("/counter"))
    assert (found.value, found.stat.version) == (b"80", 80)


def test_of_two_clients_one_creates(
    store: bk.MetadataStore, another: Callable[[], bk.MetadataStore]
) -> None:
    """When two clients create the same paths at once, each path has exactly one creator."""
    clients = ((store, b"one"), (another(), b"two"))
    paths = [f"/owner/{number}" for number in range(100)]
    claims = [
        [client.put(path, name, expected_version=bk.ABSENT) for path in paths]
        for client, name in clients
    ]
    winners = []
    for claim in zip(*claims, strict=True):
        errors = [future.exception(PATIENCE) for future in claim]
        assert sorted(type(found).__name__ for found in errors) == ["BadVersionError", "NoneType"]
        winners.append(b"one" if errors[0] is None else b"two")
    third = another()
    third.sync()
    found = third.apply(bk.Get(path) for path in paths)
    assert [outcome.result.value for outcome in found] == winners


# --- many at once


@pytest.mark.slow
def test_thousands_of_futures_all_end(store: bk.MetadataStore) -> None:
    """3,000 puts without waiting: each future ends with its stat, and every value is there."""
    puts = [store.put(f"/m/{number}", b"%d" % number) for number in range(3000)]
    assert {result(future).version for future in puts} == {0}
    gets = {store.get(f"/m/{number}"): number for number in range(3000)}
    for future in as_completed(gets, PATIENCE):
        assert future.result().value == b"%d" % gets[future]


def test_large_values_are_spread_over_requests(store: bk.MetadataStore) -> None:
    """Values whose sum far exceeds the limit of one request arrive, and come back."""
    values = {f"/large/{number}": bytes([number]) * 300_000 for number in range(30)}
    puts = [store.put(path, value) for path, value in values.items()]
    assert {result(future).version for future in puts} == {0}
    gets = {path: store.get(path) for path in values}
    assert all(result(gets[path]).value == value for path, value in values.items())


# --- flushing, cancelling, closing


def test_flush_returns_when_all_has_ended(store: bk.MetadataStore) -> None:
    """After flush every operation submitted before it has ended."""
    futures: list[Future[Any]] = [store.put(f"/{number}", b"") for number in range(300)]
    futures += [store.get(f"/{number}") for number in range(300)]
    store.flush()
    assert all(future.done() for future in futures)
    assert len(result(store.get_children("/"))) == 300


def test_a_queued_operation_can_be_cancelled(store_url: str) -> None:
    """A cancelled operation is never executed, and its neighbours are."""
    patient = bk.BatchingConfig(linger="fixed", max_delay=60)
    with bk.open_store(store_url, batching=patient) as store:
        kept, dropped = store.put("/kept", b""), store.put("/dropped", b"")
        assert dropped.cancel()
        assert dropped.cancelled()
        store.flush()
        assert result(kept).version == 0
        assert not kept.cancel()
        reads = [store.exists("/kept"), store.exists("/dropped")]
        store.flush()
        assert [result(read) for read in reads] == [True, False]


def test_close_finishes_what_was_submitted(store_url: str, batching: bk.BatchingConfig) -> None:
    """At the end of a with-block everything has ended and is in the store for the next opener."""
    # Values in memory go with their last opener, so one stays.
    keeper = bk.open_store(store_url) if bk.store_kind(store_url).in_process else None
    with bk.open_store(store_url, batching=batching) as store:
        futures = [store.put(f"/{number}", b"%d" % number) for number in range(500)]
    assert all(future.done() for future in futures)
    assert {future.result().version for future in futures} == {0}
    with bk.open_store(store_url, batching=batching) as store:
        found = store.apply(bk.Get(f"/{number}") for number in range(500))
        assert [o.result.value for o in found] == [b"%d" % number for number in range(500)]
        assert found[0].result.stat.revision == futures[0].result().revision
    if keeper is not None:
        keeper.close()


def test_after_close_every_call_is_refused(store_url: str, batching: bk.BatchingConfig) -> None:
    """A closed store raises StoreClosedError from each call, and may be closed again."""
    store = bk.open_store(store_url, batching=batching)
    result(store.put("/a", b""))
    store.close()
    store.close()
    for call in (
        lambda: store.get("/a"),
        lambda: store.put("/a", b""),
        lambda: store.delete("/a"),
        lambda: store.exists("/a"),
        lambda: store.get_children("/"),
        lambda: store.submit(bk.Get("/a")),
    ):
        with pytest.raises(bk.StoreClosedError):
            call()
    (outcome,) = store.apply([bk.Get("/a")])
    assert isinstance(outcome.error, bk.StoreClosedError)


def test_an_exception_in_the_with_block_still_closes(
    store_url: str, batching: bk.BatchingConfig
) -> None:
    """A with-block that is left by an exception drains and closes the store as well."""
    store = bk.open_store(store_url, batching=batching)

    def leave() -> None:
        with store:
            future = store.put("/a", b"")
            {}[future]

    with pytest.raises(KeyError) as caught:
        leave()
    (future,) = caught.value.args
    assert future.done()
    with pytest.raises(bk.StoreClosedError):
        store.get("/a")


def test_submit_takes_every_operation(store: bk.MetadataStore) -> None:
    """submit gives for each operation what its method gives."""
    assert result(store.submit(bk.Put("/a", b"1", bk.ABSENT))).version == 0
    assert result(store.submit(bk.Get("/a"))).value == b"1"
    assert result(store.submit(bk.Exists("/a"))) is True
    assert result(store.submit(bk.GetChildren("/"))) == ["a"]
    assert isinstance(error(store.submit(bk.Put("/a", b"", 5))), bk.BadVersionError)
    assert result(store.submit(bk.Delete("/a", 0))) is None
    with pytest.raises(bk.InvalidSettingError, match="not an operation"):
        store.submit("get /a")  # type: ignore[arg-type]


def test_after_a_sync_reads_see_what_others_wrote_before(
    store: bk.MetadataStore, store_url: str, batching: bk.BatchingConfig
) -> None:
    """A second session that catches up sees the first one's writes, at once and every time."""
    if bk.store_kind(store_url).local_directory:
        other = store  # One opener at a time: it has to see its own writes.
    else:
        other = bk.open_store(store_url, batching=batching)
    try:
        for number in range(50):
            stat = store.put("/shared", b"%d" % number).result()
            other.sync()
            assert other.get("/shared").result() == bk.GetResult(b"%d" % number, stat)
    finally:
        other.close()
    with pytest.raises(bk.StoreClosedError):
        other.sync()
