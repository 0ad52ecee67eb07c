"""The costs of the hot path, piece by piece.

``tox -e bench`` measures. The ordinary tests call each piece once, so that none falls behind the
code that it measures.

Each operation of the pieces is one in a batch of a thousand, so a thousandth of a figure is what
one operation pays.
"""

from __future__ import annotations

import struct
import time
import uuid
from array import array
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

import batchkeeper as bk
from batchkeeper.batching.accumulator import Accumulator
from batchkeeper.batching.checks import check_operation
from batchkeeper.batching.engine import engine_of
from batchkeeper.batching.entry import QUEUED, SENT, Entry
from batchkeeper.batching.futures import FutureSink, OperationFuture
from batchkeeper.batching.queues import end_sent
from batchkeeper.bench.figures import histogram
from batchkeeper.ops.paths import check_path
from batchkeeper.stores.etcd.reads.ranges import parse_read
from batchkeeper.stores.etcd.wire.protos import messages
from batchkeeper.stores.etcd.writes.hot import nested_write
from batchkeeper.stores.zookeeper.session.sizes import Sizes
from batchkeeper.stores.zookeeper.wire.jute import ANYONE, END, parse_multi_read
from batchkeeper.stores.zookeeper.wire.nodes import Nodes
from batchkeeper.stores.zookeeper.writes.plan import Batch, MultiPlan

pytestmark = pytest.mark.benchmark

#: Calls a piece, with its arguments.
Measure = Callable[..., object]

COUNT = 1_000
VALUE = b"." * 100
PATHS = [f"/bench/owners/ns-{number // 64}/topic-{number}" for number in range(COUNT)]
PUTS = [bk.Put(path, VALUE) for path in PATHS]
CLAIMS = [bk.Put(path, VALUE, bk.ABSENT) for path in PATHS]


@pytest.fixture
def measure(request: pytest.FixtureRequest) -> Measure:
    """Runs a piece: it is timed if benchmarks were requested, and otherwise called once."""
    if request.config.option.markexpr == "benchmark":
        timed: Measure = request.getfixturevalue("benchmark")
        return timed
    return _once


def _once(piece: Callable[..., object], *arguments: object) -> None:
    piece(*arguments)


@pytest.fixture
def store() -> Iterator[bk.MetadataStore]:
    with bk.open_store(f"memory://{uuid.uuid4().hex}") as opened:
        yield opened


def test_check_of_a_path(measure: Measure) -> None:
    """Every path is checked once, at the call."""

    def check() -> None:
        for path in PATHS:
            check_path(path)

    measure(check)


def test_making_of_an_operation(measure: Measure) -> None:
    """Bulk calls take operations that were made before, path and value checked."""

    def make() -> list[bk.Put]:
        return [bk.Put(path, VALUE) for path in PATHS]

    measure(make)


def test_check_of_an_operation(measure: Measure, store: bk.MetadataStore) -> None:
    """An operation object is checked against the limits of the store."""
    limits = engine_of(store).limits

    def check() -> None:
        for put in PUTS:
            check_operation(put, limits, frozenset(), "memory://x")

    measure(check)


@pytest.mark.parametrize("future", [True, False])
def test_making_of_a_future(measure: Measure, store: bk.MetadataStore, future: bool) -> None:
    """An entry and its future for each call of a method; a bare entry for each of a bulk call."""
    engine = engine_of(store)
    lane, sink = engine.writes, FutureSink(engine)
    now = time.monotonic()

    def make() -> list[Any]:
        made: list[Any] = []
        for path in PATHS:
            entry: Any = Entry("put", path, VALUE, None, None, {"put": lane}, sink, now, 30)
            if future:
                made.append(OperationFuture())
                made[-1]._entry = entry
            else:
                made.append(entry)
        return made

    measure(make)


def test_puts_with_a_future_each(measure: Measure, store: bk.MetadataStore) -> None:
    """The whole engine on the store in memory: submit a thousand puts, look at each result."""

    def put() -> None:
        for future in [store.put(path, VALUE) for path in PATHS]:
            future.result()

    measure(put)


def test_gets_with_a_future_each(measure: Measure, store: bk.MetadataStore) -> None:
    """The same with reads."""
    store.apply(PUTS)

    def get() -> None:
        for future in [store.get(path) for path in PATHS]:
            future.result()

    measure(get)


def test_puts_in_bulk(measure: Measure, store: bk.MetadataStore) -> None:
    """The same puts through ``apply``, with no future each."""
    measure(store.apply, PUTS)


def test_a_put_on_an_idle_store(measure: Measure, store: bk.MetadataStore) -> None:
    """One put at a time: this figure is one operation's, there and back between two threads."""
    measure(lambda: store.put("/one", VALUE).result())


@pytest.mark.parametrize("puts", [PUTS, CLAIMS], ids=["puts", "claims"])
def test_encoding_for_etcd(measure: Measure, puts: list[bk.Put]) -> None:
    """A thousand writes to the bytes of nested transactions, 32 in each."""
    groups = [puts[start : start + 32] for start in range(0, len(puts), 32)]
    measure(lambda: [nested_write(group, "/prefix") for group in groups])


@pytest.mark.parametrize("puts", [PUTS, CLAIMS], ids=["puts", "claims"])
def test_encoding_for_zookeeper(measure: Measure, puts: list[bk.Put]) -> None:
    """A thousand writes, their missing parents included, to the bytes of one multi."""

    sizes = Sizes(cast("Any", None), 1 << 20)  # No connection: it asks no server here.

    def encode() -> bytes:
        batch = Batch(puts, "/chroot", Nodes())
        (group,) = MultiPlan(batch, sizes, 64, ANYONE, COUNT).groups
        return group.body()

    measure(encode)


class Ready:
    """A queue of ready entries, as the accumulator wants it."""

    def __init__(self) -> None:
        self._runs: deque[Any] = deque()
        self.put_nowait = self._runs.append
        self.get_nowait = self._runs.popleft


def test_adding_and_taking(measure: Measure, store: bk.MetadataStore) -> None:
    """A thousand entries become ready together, and are taken as one batch."""
    engine = engine_of(store)
    lane, sink = engine.writes, FutureSink(engine)
    entries: list[Any] = [
        Entry("put", path, VALUE, None, None, {"put": lane}, sink, time.monotonic(), 30)
        for path in PATHS
    ]
    batches = Accumulator(
        Ready(), COUNT, max_ops=COUNT, max_bytes=1 << 30, max_delay=1.0, adaptive=True
    )

    def take() -> None:
        for entry in entries:
            entry.state = QUEUED
        batches.add_all(entries, COUNT * entries[0].weight)
        assert len(batches.take()) == COUNT

    measure(take)


def test_finishing(measure: Measure, store: bk.MetadataStore) -> None:
    """A thousand sent entries end with their answers."""
    engine = engine_of(store)
    lane, sink = engine.writes, FutureSink(engine)
    entries: list[Any] = [
        Entry("put", path, VALUE, None, None, {"put": lane}, sink, time.monotonic(), 30)
        for path in PATHS
    ]
    answers = [bk.Stat(path, 0, 1) for path in PATHS]

    def finish() -> None:
        for entry in entries:
            entry.state = SENT
        assert len(end_sent(entries, answers)) == COUNT

    measure(finish)


def test_parsing_for_etcd(measure: Measure) -> None:
    """The answer to a thousand gets in one flat transaction."""
    gets = [bk.Get(path) for path in PATHS]
    answer = messages.TxnResponse(succeeded=True, header=messages.ResponseHeader(revision=7))
    for path in PATHS:
        found = answer.responses.add().response_range
        found.count = 1
        found.kvs.add(key=path.encode(), value=VALUE, version=1, create_revision=5, mod_revision=5)
    text = answer.SerializeToString()
    measure(lambda: parse_read(gets, text, lambda lease: False))


def test_parsing_for_zookeeper(measure: Measure) -> None:
    """The answer to a thousand gets in one multi-read."""
    # getData: the header, the value with its length, and a Stat of 68 bytes.
    one = struct.pack("!i?ii", 4, False, 0, len(VALUE)) + VALUE + bytes(68)
    answer = one * COUNT + END
    reads = [(4, path.encode()) for path in PATHS]
    assert len(parse_multi_read(reads, PATHS, answer, 0)) == COUNT
    measure(parse_multi_read, reads, PATHS, answer, 0)


def test_hits_of_a_cache(measure: Measure, store: bk.MetadataStore) -> None:
    """A thousand values that a cache holds."""
    store.apply([bk.Put(path, b"7") for path in PATHS])
    with bk.MetadataCache(store, "/bench", bk.json_serde) as cache:
        for path in PATHS:
            cache.get(path)

        def read() -> None:
            for path in PATHS:
                cache.get(path)

        measure(read)


def test_a_histogram_of_latencies(measure: Measure) -> None:
    """The cost of a histogram of a thousand latencies, after the clock was stopped."""
    measure(histogram, array("q", range(1_000_000, 2_000_000, 1_000)))
