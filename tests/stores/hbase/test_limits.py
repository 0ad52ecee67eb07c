"""The HBase store on a real server that accepts less than others do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import pytest

import batchkeeper as bk
from batchkeeper.testing.servers import HBaseServer
from batchkeeper.testing.servers.installing import install
from batchkeeper.testing.servers.releases import parse_release

from ...waiting import PATIENCE, result

pytestmark = [pytest.mark.soak, pytest.mark.server]

_MIB: Final = 1024 * 1024
_ROWS: Final = 200


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HBaseServer]:
    """An HBase with low limits of cells, messages, rows and answers."""
    install(parse_release("hbase@2.6"))
    settings = {
        "hbase.server.keyvalue.maxsize": str(_MIB),
        "hbase.ipc.max.request.size": str(4 * _MIB),
        "hbase.rpc.rows.warning.threshold": str(_ROWS),
        "hbase.rpc.rows.size.threshold.reject": "true",
        "hbase.server.scanner.max.result.size": str(_MIB),
    }
    with HBaseServer(tmp_path_factory.mktemp("hbase"), settings=settings) as made:
        yield made


@pytest.fixture
def store(server: HBaseServer, request: pytest.FixtureRequest) -> Iterator[bk.MetadataStore]:
    table = request.node.name.translate({ord("["): "-", ord("]"): None})
    with bk.open_store(
        f"{server.url}/{table}",
        # Each list is one batch.
        batching=bk.BatchingConfig(max_bytes=64 * _MIB, max_delay=0.2, linger="fixed"),
        connect_timeout=PATIENCE,
        operation_timeout=10 * PATIENCE,  # Only a wait until the deadline would end otherwise.
    ) as opened:
        yield opened


def ends(outcomes: Sequence[bk.Outcome]) -> list[type[bk.MetadataStoreError] | None]:
    """Return the kinds of the errors. Nothing that failed may have been applied."""
    assert {outcome.error.outcome for outcome in outcomes if outcome.error} <= {"not_applied"}
    return [None if outcome.error is None else type(outcome.error) for outcome in outcomes]


@pytest.mark.parametrize("sequential", [False, True])
def test_values_that_are_too_large(store: bk.MetadataStore, *, sequential: bool) -> None:
    """One above the limit of a cell or of a message fails alone, whatever else is in its batch."""
    sizes = [_MIB // 2] * 40
    sizes[7], sizes[20] = 3 * _MIB // 2, 5 * _MIB
    expected = [None if size < _MIB else bk.ValueTooLargeError for size in sizes]
    for turn in range(2):
        puts = [
            bk.Put(f"/{turn}/{number:02}-", bytes(size), sequential=sequential)
            for number, size in enumerate(sizes)
        ]
        outcomes = store.apply(puts)
        assert ends(outcomes) == expected
        reasons = "hbase.server.keyvalue.maxsize", "hbase.ipc.max.request.size"
        for place, reason in zip((7, 20), reasons, strict=True):
            assert reason in str(outcomes[place].error)
            assert outcomes[place].error.path == puts[place].path
        names = result(store.get_children(f"/{turn}"))
        kept = [puts[place].path for place, end in enumerate(expected) if end is None]
        assert [f"/{turn}/{name}"[: len(kept[0])] for name in names] == kept
        paths = [f"/{turn}/{name}" for name in names]
        before = store.metrics().retries
        read = [result(future) for future in [store.get(path) for path in paths]]
        assert [len(found.value) for found in read if found is not None] == [_MIB // 2] * 38
        assert store.metrics().retries > before  # The server has ended its answers at the limit.


def test_batches_that_are_too_large(store: bk.MetadataStore) -> None:
    """They are sent in parts that fit, by their rows and by their bytes; so are reads."""
    for name in ("/", "/" + "p" * 31_000 + "/"):
        paths = [f"{name}{number:04}" for number in range(5 * _ROWS)]
        assert {*ends(store.apply([bk.Put(path, b"") for path in paths]))} == {None}
        assert all(result(future) for future in [store.exists(path) for path in paths])
        assert {*ends(store.apply([bk.Delete(path) for path in paths]))} == {None}
    numbered = [bk.Put("/n/", b"", sequential=True) for _ in range(5 * _ROWS)]
    assert {*ends(store.apply(numbered))} == {None}
    assert result(store.delete_recursive("/")) == 5 * _ROWS
    assert list(store.scan("/")) == []
