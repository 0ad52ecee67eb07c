"""The results of metrics(): counts by kind and by cause, histograms, and immutable snapshots."""

from __future__ import annotations

import dataclasses
import itertools
import json
import logging
import pickle
from bisect import bisect_left
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import batchkeeper as bk
from batchkeeper.batching import Counts, Histogram
from batchkeeper.batching.metrics import BYTES, OPERATIONS, SECONDS, Distribution
from batchkeeper.stores.backend import EVENTS
from batchkeeper.testing.faults import Plan

from .faulty import MakeBackend, OpenOn
from .waiting import PATIENCE

values = st.lists(st.floats(0, 200) | st.sampled_from(SECONDS), min_size=1, max_size=50)


# --- histograms and counts


@pytest.mark.parametrize("bounds", [SECONDS, OPERATIONS, BYTES])
def test_each_bound_is_twice_the_one_before(bounds: tuple[float, ...]) -> None:
    """Bounds double, so an estimate from a bucket is wrong by at most a factor of 2."""
    assert all(high == pytest.approx(2 * low) for low, high in itertools.pairwise(bounds))


@settings(deadline=None)
@given(batches=st.lists(values, min_size=1, max_size=5))
def test_a_batch_counts_like_its_values_one_by_one(batches: list[list[float]]) -> None:
    """Every value is in the first bucket whose bound it does not exceed."""
    together, singly = Distribution(SECONDS), Distribution(SECONDS)
    counts = [0] * (len(SECONDS) + 1)
    for batch in batches:
        together.add_all(list(batch))
        for value in batch:
            singly.add(value)
            counts[bisect_left(SECONDS, value)] += 1
    found, expected = together.snapshot(), singly.snapshot()
    assert found.counts == expected.counts == tuple(counts)
    assert found.sum == pytest.approx(expected.sum)
    assert found.max == expected.max == max(value for batch in batches for value in batch)
    assert found.count == sum(map(len, batches))


@settings(deadline=None)
@given(values=values, percent=st.floats(0, 100))
def test_a_percentile_lies_in_the_bucket_of_the_true_one(
    values: list[float], percent: float
) -> None:
    """The estimate is between the bounds of that bucket, and no more than the largest value."""
    distribution = Distribution(SECONDS)
    distribution.add_all(values)
    histogram = distribution.snapshot()
    rank = max(percent / 100 * len(values), 1)
    true = next(value for number, value in enumerate(sorted(values), 1) if number >= rank)
    bucket = bisect_left(SECONDS, true)
    estimate = histogram.percentile(percent)
    assert estimate <= max(values)
    assert (SECONDS[bucket - 1] if bucket else 0) <= estimate
    assert bucket == len(SECONDS) or estimate <= SECONDS[bucket]


def test_an_empty_histogram_says_nothing() -> None:
    """Without values everything is 0."""
    empty = Distribution(OPERATIONS).snapshot()
    assert (empty.count, empty.mean, empty.percentile(99), empty.max) == (0, 0, 0, 0)


@pytest.mark.parametrize("percent", [-1, 100.5])
def test_a_wrong_percent_is_refused(percent: float) -> None:
    """The message holds the number."""
    with pytest.raises(bk.InvalidSettingError, match=str(percent)):
        Histogram((1.0,), (1, 0)).percentile(percent)


def test_counts_are_a_mapping_that_stays() -> None:
    """Counts compare and hash by their contents, and leave out zeros."""
    source = {"put": 2, "get": 0}
    counts = Counts(source)
    source["put"] = 7
    assert counts == {"put": 2}
    assert hash(counts) == hash(Counts({"put": 2}))
    assert pickle.loads(pickle.dumps(counts)) == counts
    with pytest.raises(TypeError):
        cast("Any", counts)["put"] = 3


# --- what a store counts


def test_operations_and_failures_are_counted_by_kind(
    make_backend: MakeBackend, open_on: OpenOn
) -> None:
    """Each kind has its operations that ended and its failures; cancelled ones do not count."""
    store = open_on(make_backend())
    store.apply(
        [
            bk.Put("/a", b""),
            bk.Put("/a", b"", 7),
            bk.Put("/a", b"", bk.ABSENT),
            bk.Delete("/missing"),
            bk.Put("/a/b", b""),
            bk.Delete("/a"),
            bk.Get("/a"),
            bk.Get("/missing"),
            bk.Exists("/a"),
            bk.GetChildren("/"),
        ]
    )
    metrics = store.metrics()
    assert metrics.operations == {"put": 4, "delete": 2, "get": 2, "exists": 1, "get_children": 1}
    assert metrics.failures == {"put": 2, "delete": 2}
    assert metrics.errors == {"BadVersionError": 2, "NotFoundError": 1, "NotEmptyError": 1}
    assert metrics.conflicts == 4


def test_who_has_a_result_finds_it_counted(make_backend: MakeBackend, open_on: OpenOn) -> None:
    """An operation is counted before its caller is notified."""
    store = open_on(make_backend())
    for number in range(1, 200):
        store.put("/a", b"").result(PATIENCE)
        assert store.metrics().operations == {"put": number}


def test_cancelled_operations_are_not_counted_as_ended(
    make_backend: MakeBackend, open_on: OpenOn, hold_all: Plan
) -> None:
    """An operation that its caller gave up is not counted."""
    backend = make_backend(hold_all)
    store = open_on(backend, max_in_flight=1)
    store.put("/in-flight", b"")
    (call,) = backend.wait_for_calls(1)
    assert store.put("/queued", b"").cancel()
    backend.plan = None
    call.release()
    store.flush()
    assert store.metrics().operations == {"put": 1}


def test_each_batch_is_in_the_histograms(make_backend: MakeBackend, open_on: OpenOn) -> None:
    """Operations, bytes and time at the store count batches; time in the queue operations."""
    store = open_on(make_backend(), linger="fixed", max_delay=60, max_ops=4)
    store.apply([bk.Put(f"/{number}", bytes(10)) for number in range(8)])
    store.get("/0")
    store.flush()
    writes, reads = store.metrics().writes, store.metrics().reads
    per_batch = writes.operations_per_batch
    assert (per_batch.count, per_batch.sum, per_batch.max, per_batch.mean) == (2, 8, 4, 4)
    assert (writes.bytes_per_batch.count, writes.bytes_per_batch.sum) == (2, writes.bytes)
    assert writes.bytes == 8 * 12
    assert writes.queue_seconds.count == 8
    assert writes.store_seconds.count == 2
    assert (reads.queue_seconds.count, reads.store_seconds.count) == (1, 1)
    assert 0 <= writes.queue_seconds.percentile(50) <= writes.queue_seconds.max


@pytest.mark.slow
def test_time_in_the_queue_and_at_the_store_are_told_apart(
    make_backend: MakeBackend, open_on: OpenOn, hold_all: Plan, pool: ThreadPoolExecutor
) -> None:
    """Operations behind a held batch add time in the queue; the batch adds time at the store."""
    backend = make_backend(hold_all)
    store = open_on(backend, max_in_flight=1, max_delay=0.0)
    held = store.put("/held", b"")
    (call,) = backend.wait_for_calls(1)
    behind = store.put("/behind", b"", timeout=PATIENCE)
    with pytest.raises(TimeoutError):
        behind.result(0.5)
    backend.plan = None
    call.release()
    for future in (held, behind):
        future.result(PATIENCE)
    store.flush()
    writes = store.metrics().writes
    assert writes.store_seconds.max >= 0.5
    assert writes.queue_seconds.max >= 0.5
    assert min(writes.queue_seconds.percentile(1), writes.store_seconds.percentile(1)) < 0.5


def test_the_back_ends_events_have_names_of_their_own(
    make_backend: MakeBackend, open_on: OpenOn
) -> None:
    """Aborts, splits, retries, settled writes and reconnects come from the back end's tally."""
    backend = make_backend()
    for times, event in enumerate(EVENTS, 1):
        backend.tally.add(event, times)
    metrics = open_on(backend).metrics()
    found = (metrics.aborts, metrics.splits, metrics.retries, metrics.settled, metrics.reconnects)
    assert found == (1, 2, 3, 4, 5)


def test_a_snapshot_pickles_and_compares(make_backend: MakeBackend, open_on: OpenOn) -> None:
    """An exporter may hand it to another process."""
    store = open_on(make_backend())
    store.apply([bk.Put("/a", b""), bk.Delete("/missing"), bk.Get("/a")])
    metrics = store.metrics()
    assert pickle.loads(pickle.dumps(metrics)) == metrics
    with pytest.raises(dataclasses.FrozenInstanceError):
        metrics.waits = 1  # type: ignore[misc]


# --- log events


def test_events_say_what_happens_and_hold_no_values(
    make_backend: MakeBackend, open_on: OpenOn, caplog: pytest.LogCaptureFixture
) -> None:
    """Opening, closing and new limits at info, batches at debug; never a value or a path."""
    backend = make_backend()
    with caplog.at_level(logging.DEBUG, "batchkeeper"):
        store = open_on(backend)
        store.put("/secret-path", b"secret-value").result(PATIENCE)
        backend.allowed = dataclasses.replace(backend.limits, write_ops=7)  # type: ignore[attr-defined]
        store.put("/secret-path", b"secret-value").result(PATIENCE)
        store.close()
    events = [(record.levelname, record.getMessage()) for record in caplog.records]
    for level, event in [
        ("INFO", "store opened"),
        ("DEBUG", "batch sent"),
        ("DEBUG", "batch ended"),
        ("INFO", "the store's limits have changed"),
        ("INFO", "store closed"),
    ]:
        assert any(level == found and event in message for found, message in events), event
    assert "secret" not in caplog.text


def test_without_debug_a_batch_makes_no_event(
    make_backend: MakeBackend, open_on: OpenOn, caplog: pytest.LogCaptureFixture
) -> None:
    """Log events below the level are not created."""
    with caplog.at_level(logging.INFO, "batchkeeper"):
        store = open_on(make_backend())
        store.put("/a", b"").result(PATIENCE)
        store.close()
    assert [record.levelname for record in caplog.records] == ["INFO", "INFO"]


def test_a_snapshot_becomes_json_and_loses_nothing() -> None:
    """The names are those of the attributes, at every depth, and json.dumps takes all values."""
    with bk.open_store("memory://json") as store:
        store.put("/a", b"1").result()
        store.put("/a", b"1", 7).exception()
        metrics = store.metrics()
    plain = json.loads(json.dumps(metrics.to_dict()))
    assert plain == metrics.to_dict()
    assert list(plain) == [field.name for field in dataclasses.fields(metrics)]
    assert plain["operations"] == {"put": 2}
    assert plain["errors"] == {"BadVersionError": 1}
    writes = plain["writes"]
    assert list(writes) == [field.name for field in dataclasses.fields(metrics.writes)]
    assert writes["causes"] == dict(metrics.writes.causes)
    found = {
        name: tuple(v) if isinstance(v, list) else v for name, v in writes["store_seconds"].items()
    }
    assert Histogram(**found) == metrics.writes.store_seconds
    assert sum(found["counts"]) == 2
