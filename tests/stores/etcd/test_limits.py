"""Limits of an etcd below the assumed ones: they are detected, kept, and harm no outcome."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from batchkeeper import open_store
from batchkeeper.ops import (
    ABSENT,
    BadVersionError,
    Delete,
    Exists,
    Get,
    GetChildren,
    IndeterminateError,
    MetadataStoreError,
    NotEmptyError,
    NotFoundError,
    Operation,
    Put,
    Stat,
    UnsupportedError,
    ValueTooLargeError,
)
from batchkeeper.stores import RequestRefusedError
from batchkeeper.stores.etcd.backend import EtcdBackend
from batchkeeper.stores.etcd.reads import reader as reads
from batchkeeper.stores.etcd.sizes import requests
from batchkeeper.stores.etcd.sizes.estimates import (
    AnswerBytes,
    Pace,
    RequestBytes,
)
from batchkeeper.stores.etcd.wire.connection import EtcdConnection
from batchkeeper.stores.etcd.wire.members import ANSWER_BYTES
from batchkeeper.testing.servers import EtcdServer

from ...waiting import soon
from ..calls import kinds
from .imitation import Imitation, imitated, kine, without_conditions, without_nesting
from .opening import calls_to_etcd, opened, recorded, without_write_ids

SMALL = ("--max-request-bytes", "16384")


def refusals(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that grows with each request that etcd refuses."""
    seen: list[str] = []
    call = EtcdConnection.call

    def watching(self: EtcdConnection, *args: Any, **more: Any) -> Any:
        try:
            return call(self, *args, **more)
        except RequestRefusedError as refusal:
            seen.append(str(refusal))
            raise

    monkeypatch.setattr(EtcdConnection, "call", watching)
    return seen


def mixed(round_: int, value: bytes) -> tuple[list[Operation], list[type]]:
    """Return operations of all kinds below a name, each with its expected outcome.

    The name holds ``there`` and ``full/leaf``.
    """
    at = f"/{round_}"
    cases: list[tuple[Operation, type]] = [
        (Put(f"{at}/fresh", value, ABSENT), Stat),
        (Put(f"{at}/there", value, 5), BadVersionError),
        (Put(f"{at}/full/leaf", value, ABSENT), BadVersionError),
        (Put(f"{at}/plain", value), Stat),
        (Delete(f"{at}/missing"), NotFoundError),
        (Delete(f"{at}/full"), NotEmptyError),
        (Delete(f"{at}/gone", 0), type(None)),
        *((Put(f"{at}/more/{number}", value), Stat) for number in range(20)),
        *((Put(f"{at}/create/{number}", value, ABSENT), Stat) for number in range(20)),
    ]
    return [op for op, _ in cases], [kind for _, kind in cases]


def prepare(backend: EtcdBackend, round_: int) -> None:
    """Write what ``mixed`` finds."""
    at = f"/{round_}"
    for path in (f"{at}/there", f"{at}/full", f"{at}/full/leaf", f"{at}/gone"):
        assert kinds(backend.write([Put(path, b"")], soon())) == [Stat]


@pytest.mark.parametrize(
    "flags",
    [
        ("--max-txn-ops", "2"),
        ("--max-txn-ops", "3"),
        pytest.param(("--max-txn-ops", "4"), marks=pytest.mark.full),
        ("--max-txn-ops", "8"),
        pytest.param(("--max-txn-ops", "16"), marks=pytest.mark.full),
        SMALL,
        (*SMALL, "--max-txn-ops", "16"),
        ("--max-request-bytes", "2048", "--max-txn-ops", "3"),
    ],
    ids=" ".join,
)
def test_every_operation_gets_its_outcome_whatever_the_limits(
    own_etcd: Callable[..., EtcdServer],
    monkeypatch: pytest.MonkeyPatch,
    flags: tuple[str, ...],
) -> None:
    """A lower limit is detected by the first refusal at the latest; later, nothing is refused.

    With nested transactions, and with flat ones.
    """
    server = own_etcd(*flags)
    seen = refusals(monkeypatch)
    for flat_only in (False, True):
        with opened(f"{server.url}/flat-{flat_only}", flat_only=flat_only) as backend:
            for round_ in range(4):
                prepare(backend, round_)
                operations, expected = mixed(round_, bytes(600))
                if round_ == 2:
                    seen.clear()
                assert kinds(backend.write(operations, soon())) == expected
                reads = [Get(op.path) for op in operations] * 3
                found = [answer and answer.value for answer in backend.read(reads, soon())]
                there = {Stat: bytes(600), BadVersionError: b"", NotEmptyError: b""}
                assert found == [there.get(kind) for kind in expected] * 3
            assert seen == []


def test_the_least_that_etcd_can_be_set_to(own_etcd: Callable[..., EtcdServer]) -> None:
    """With one operation per transaction, only deletes fail, because they need two."""
    server = own_etcd("--max-txn-ops", "1")
    with opened(server.url) as backend:
        answers = backend.write([Put("/a", b"", ABSENT), Put("/b", b""), Put("/c", b"", 3)], soon())
        assert kinds(answers) == [Stat, Stat, BadVersionError]
        assert backend.read([Exists("/a"), Exists("/c"), GetChildren("/")], soon()) == [
            True,
            False,
            ["a", "b"],
        ]
        (error,) = backend.write([Delete("/a")], soon())
        assert type(error) is UnsupportedError
        assert "--max-txn-ops 1" in str(error)


def test_the_limit_of_bytes_is_found_exactly(
    own_etcd: Callable[..., EtcdServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Detecting the limit takes one refusal, and one larger request whose refusal names it."""
    server = own_etcd(*SMALL)
    seen = refusals(monkeypatch)
    with opened(server.url) as backend:
        before = backend.limits
        assert backend.limits is before  # not created for each check
        paths = [f"/{number}" for number in range(100)]
        assert kinds(backend.write([Put(path, bytes(1000)) for path in paths], soon())) == [
            Stat
        ] * len(paths)
        assert len(seen) == 2
        assert backend.tally.counts()["split"] >= 1
        limits = backend.limits
        assert 15_500 < limits.request_bytes < 16_384
        assert limits.value_bytes < limits.request_bytes
        seen.clear()
        large = Put("/large", bytes(limits.value_bytes), ABSENT)
        assert kinds(backend.write([large], soon())) == [Stat]
        assert seen == []


def test_many_threads_find_a_limit_out_once(
    own_etcd: Callable[..., EtcdServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other callers with refused requests do not search for the limit again."""
    server = own_etcd(*SMALL)
    with opened(server.url) as backend, ThreadPoolExecutor(8) as pool:
        seen = refusals(monkeypatch)

        def write(name: int) -> Sequence[Any]:
            return backend.write([Put(f"/{name}/{n}", bytes(1000)) for n in range(100)], soon())

        answers = [answer for some in pool.map(write, range(8)) for answer in some]
        assert kinds(answers) == [Stat] * 800
        assert sum("received message" in text for text in seen) == 1
        assert len(seen) <= 9


@pytest.mark.parametrize("size", [16_200, 40_000, 3_000_000])
def test_an_operation_too_large_by_itself_is_refused_alone(
    own_etcd: Callable[..., EtcdServer], size: int
) -> None:
    """Its neighbours are executed, the message names the limit, and the connection stays usable."""
    server = own_etcd(*SMALL)
    with opened(server.url) as backend:
        for round_ in range(2):
            operations = [Put(f"/{round_}/{number}", bytes(100)) for number in range(20)]
            operations[7] = Put(f"/{round_}/large", bytes(size))
            operations[13] = Put(f"/{round_}/large/too", bytes(size), ABSENT)
            answers = backend.write(operations, soon())
            expected = [Stat] * 20
            expected[7] = expected[13] = ValueTooLargeError
            assert kinds(answers) == expected
            assert answers[7].path == f"/{round_}/large"
            # A request above any etcd's default is not even sent.
            assert ("16,128" if size < 10**6 else "1.5 MiB") in str(answers[7])
        assert backend.tally.counts()["reconnect"] == 0


@pytest.mark.server
def test_a_server_that_comes_back_with_less_is_asked_for_less(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Limits that a restart has lowered are detected like those at the beginning."""
    server = EtcdServer(tmp_path / "etcd")
    with server, opened(server.url) as backend:
        prepare(backend, 0)
        assert backend.limits.write_ops == 1024
        monkeypatch.setattr(server, "_flags", (*SMALL, "--max-txn-ops", "16"))
        server.restart()
        for round_ in range(3):
            prepare(backend, round_ + 1)
            operations, expected = mixed(round_ + 1, bytes(600))
            seen = refusals(monkeypatch)
            assert kinds(backend.write(operations, soon())) == expected
            assert len(backend.read([Exists(op.path) for op in operations] * 3, soon())) == 3 * 47
            assert seen == [] or round_ == 0
        assert backend.limits.write_ops == 36
        assert backend.limits.read_ops == 16


def as_after_many_small_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let back ends that are opened from now on expect small values."""
    for module in (reads, requests):
        monkeypatch.setattr(module, "AnswerBytes", lambda: AnswerBytes(1_000))


def test_large_values_are_read_a_few_at_a_time(
    own_etcd: Callable[..., EtcdServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No answer except the first is much larger than the server's comfortable size."""
    server = own_etcd()
    paths = [f"/{number}" for number in range(64)]
    with opened(server.url) as writer:
        for path in paths:
            writer.write([Put(path, bytes(2**20))], soon())
    with opened(server.url) as backend:
        sizes: list[int] = []
        call = EtcdConnection.call

        def watching(self: EtcdConnection, *args: Any, **more: Any) -> Any:
            response = call(self, *args, **more)
            sizes.append(len(response))
            return response

        monkeypatch.setattr(EtcdConnection, "call", watching)
        seen = refusals(monkeypatch)
        answers = backend.read([Get(path) for path in paths], soon())
        assert [len(answer.value) for answer in answers] == [2**20] * 64
        assert seen == []
        assert sizes[0] < 20 * 2**20
        assert max(sizes[1:]) < 5 * 2**20


def test_gets_that_find_nothing_are_soon_many_at_a_time(
    etcd_server: EtcdServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a value, nothing is known that speaks against larger requests."""
    with opened(etcd_server.url) as backend:
        calls = calls_to_etcd(monkeypatch)
        for _ in range(4):
            calls.clear()
            answers = backend.read([Get(f"/missing/{number}") for number in range(100)], soon())
            assert answers == [None] * 100
        assert calls == ["txn"]


def test_an_answer_too_large_to_be_taken_in_is_asked_for_in_parts(
    own_etcd: Callable[..., EtcdServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Large values among many small ones arrive, and from then on without extra requests."""
    server = own_etcd()
    with opened(server.url) as backend:
        for number in range(64):
            backend.write([Put(f"/large/{number}", bytes(2**20))], soon())
    as_after_many_small_ones(monkeypatch)
    with opened(server.url) as backend:
        seen = refusals(monkeypatch)
        for _ in range(2):
            answers = backend.read([Get(f"/large/{number}") for number in range(64)], soon())
            assert [len(answer.value) for answer in answers] == [2**20] * 64
        assert len(seen) == 1
        assert backend.tally.counts()["reconnect"] == 0


@pytest.mark.parametrize("flat_only", [False, True], ids=["nested", "flat"])
def test_writes_over_large_values_end_with_their_results(
    own_etcd: Callable[..., EtcdServer], flat_only: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer with old values that is too large to receive does not hide the outcomes."""
    server = own_etcd()
    with opened(server.url, flat_only=flat_only) as backend:
        for number in range(48):
            backend.write([Put(f"/{number}", bytes(2**20))], soon())
    as_after_many_small_ones(monkeypatch)
    with opened(server.url, flat_only=flat_only) as backend:
        answers = backend.write([Put(f"/{number}", b"") for number in range(48)], soon())
        assert [answer.version for answer in answers] == [1] * 48
        assert backend.tally.counts()["settled"] == 1


def test_an_answer_that_is_lost_for_its_size_claims_no_more_than_is_known(
    own_etcd: Callable[..., EtcdServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a write id: what was sent may have been applied, plain puts among it."""
    server = own_etcd()
    with opened(server.url) as backend:
        for number in range(40):
            backend.write([Put(f"/{number}", bytes(2**20))], soon())
    as_after_many_small_ones(monkeypatch)
    with recorded(server.url) as (backend, connection):
        without_write_ids(connection)
        plain = [Put(f"/{number}", b"") for number in range(39)]
        answers = backend.write([*plain, Put("/39", b"", ABSENT)], soon())
        assert kinds(answers) == [IndeterminateError] * 40
        assert [answer.applied for answer in answers] == [False] * 40
        first, last = backend.read([Get("/0"), Get("/39")], soon())
        assert (first.stat.version, last.stat.version) == (1, 0)


# --- what is learned, without a server


def test_without_a_number_the_limit_is_bisected() -> None:
    """Each refusal halves the distance to the largest accepted request."""
    limit, learned = 100_000, RequestBytes()
    learned.accepted(40_000)
    tries = 0
    while learned.most > limit:
        tries += 1
        learned.refused(learned.most, None, None)
    assert tries <= 5
    assert learned.most > limit // 2


@pytest.mark.parametrize("limit", [16_384, 100_000, 1_000_000])
def test_grpc_names_the_limit(limit: int) -> None:
    """The server's gRPC accepts 512 KiB more than etcd; an impossible limit is ignored."""
    learned = RequestBytes()
    size = limit + 1_000
    grpc = limit + 512 * 1024
    learned.refused(size, None, grpc)
    assert limit - 512 < learned.most < limit
    known = learned.most
    learned.refused(known // 2, None, grpc)  # a proxy's, or another member's
    assert learned.most < known // 2


def test_an_answer_grows_by_four_times_at_most() -> None:
    """After small values, pages ask for more; after large ones, at once for fewer."""
    learned = AnswerBytes()
    first = learned.values
    assert first * 1.5 * 2**20 < ANSWER_BYTES
    learned.saw(first, first * 100)
    assert learned.values == 4 * first
    learned.saw(2, 2 * 2**20)
    assert learned.values <= 8
    learned.saw(1, 100 * 2**20)
    assert learned.values == 1
    learned.saw(100, 0)
    assert learned.values == 4


def test_the_pace_follows_the_time_that_transactions_take() -> None:
    """Slow transactions make them smaller, down to a bound; fast and full ones larger again."""
    pace = Pace(1_000)
    for _ in range(200):
        pace.took(min(pace.writes, 500), 0.1)
    slowest = pace.writes
    assert 32 <= slowest <= 128
    for seconds in (0.001, 1.0) * 100:
        pace.took(1, seconds)  # says nothing about larger ones
    assert pace.writes == slowest
    for _ in range(300):
        pace.took(pace.writes, 0.001)
    assert pace.writes == 1_000


def test_the_pace_allows_for_some_slow_transactions() -> None:
    """One in twenty may be late for other reasons; one in five is too many."""
    pace = Pace(1_000)
    for number in range(1, 401):
        pace.took(pace.writes, 0.002 if number % 20 else 0.5)
    assert pace.writes > 850
    for number in range(1, 401):
        pace.took(pace.writes, 0.002 if number % 5 else 0.5)
    assert pace.writes < 200


def test_errors_of_parts_stay_with_their_operations(
    own_etcd: Callable[..., EtcdServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failure of one part of a request does not decide the other parts."""
    server = own_etcd("--max-txn-ops", "4")
    with opened(server.url) as backend:
        prepare(backend, 0)
        call, wrong = EtcdConnection.call, iter([False, True, False, False])

        def failing(self: EtcdConnection, method: Any, *args: Any, **more: Any) -> Any:
            if method == "txn" and next(wrong, False):
                raise MetadataStoreError("the second part")
            return call(self, method, *args, **more)

        monkeypatch.setattr(EtcdConnection, "call", failing)
        answers = backend.write([Put(f"/{number}", b"") for number in range(9)], soon())
        assert kinds(answers) == [Stat] * 3 + [MetadataStoreError] * 3 + [Stat] * 3
        assert [answer.path for answer in answers] == [f"/{number}" for number in range(9)]


# --- servers with a part of etcd's API


@pytest.mark.parametrize("imitation", [kine, without_conditions])
def test_a_server_without_etcd_s_transactions_is_refused(
    etcd_server: EtcdServer, imitation: Imitation
) -> None:
    """As kine is: nothing could be written to it, or conditions would mean nothing."""
    with (
        imitated(etcd_server.address, imitation) as address,
        pytest.raises(UnsupportedError, match=f"at {address} does not execute a transaction of"),
    ):
        open_store(f"etcd://{address}")


def test_a_server_that_does_not_nest_gets_flat_transactions(etcd_server: EtcdServer) -> None:
    """Each operation still has an outcome of its own."""
    with (
        imitated(etcd_server.address, without_nesting) as address,
        open_store(f"etcd://{address}/{uuid.uuid4().hex}") as store,
    ):
        outcomes = store.apply([Put("/a", b"", ABSENT), Put("/b", b"", 7), Delete("/c")])
    assert [type(outcome.error) for outcome in outcomes] == [
        type(None),
        BadVersionError,
        NotFoundError,
    ]
