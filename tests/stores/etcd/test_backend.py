"""The etcd back end on a real etcd: outcomes, transactions, limits, keys."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from batchkeeper.ops import (
    ABSENT,
    BadVersionError,
    Check,
    Delete,
    Exists,
    Get,
    GetChildren,
    GetResult,
    InvalidSettingError,
    NotEmptyError,
    NotFoundError,
    OperationTimeoutError,
    Put,
    Stat,
    StoreClosedError,
    Transaction,
    TransactionRefusedError,
    ValueTooLargeError,
)
from batchkeeper.stores import ConnectOptions, RequestRefusedError, connect, parse_url
from batchkeeper.stores.etcd.backend import EtcdBackend
from batchkeeper.stores.etcd.sizes import estimates
from batchkeeper.stores.etcd.sizes.estimates import Refusals
from batchkeeper.stores.etcd.wire.connection import EtcdConnection
from batchkeeper.stores.etcd.wire.protos import grpc_stubs, messages
from batchkeeper.stores.etcd.writes.hot import nested_write
from batchkeeper.testing.servers import EtcdServer

from ...waiting import PATIENCE, soon
from ..calls import kinds
from ..foreign import etcd_client
from .opening import calls_to_etcd, opened


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no transaction count as slow: later ones would be smaller, on a loaded machine."""
    monkeypatch.setattr(estimates, "_SLOW", PATIENCE)


@pytest.fixture(params=[False, True], ids=["nested", "flat"])
def backend(
    request: pytest.FixtureRequest, fresh_url: Callable[[str], str], etcd_server: object
) -> Iterator[Any]:
    """An empty store, once with nested transactions and once without."""
    with opened(fresh_url("etcd"), flat_only=request.param) as found:
        yield found


@pytest.fixture
def nesting(url: str) -> Iterator[EtcdBackend]:
    """An empty store with nested transactions."""
    with opened(url) as found:
        yield found


def counted(backend: EtcdBackend, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that grows by the method's name with each call to etcd."""
    backend.write([Delete("/counted")], soon())  # The first write asks for a lease, too.
    return calls_to_etcd(monkeypatch)


MIXED = [
    Put("/fresh", b"1", ABSENT),
    Put("/there", b"2", 5),
    Put("/held", b"3", ABSENT),
    Delete("/missing"),
    Put("/new", b"4"),
    Put("/old", b"5"),
    Delete("/parent"),
    Delete("/leaf", 0),
    Put("/there2", b"6", 0),
    Delete("/parent2", 3),
    Put("/gone", b"", 0),
]
MIXED_KINDS = [
    Stat,
    BadVersionError,
    BadVersionError,
    NotFoundError,
    Stat,
    Stat,
    NotEmptyError,
    type(None),
    Stat,
    BadVersionError,
    BadVersionError,
]


def prepare(backend: EtcdBackend) -> None:
    """Write what MIXED finds."""
    names = ["there", "held", "old", "parent", "parent/below", "leaf", "there2", "parent2"]
    answers = backend.write([Put(f"/{name}", b"0") for name in names], soon())
    assert kinds(answers) == [Stat] * len(names)


def test_outcomes_in_one_request_are_independent(backend: EtcdBackend) -> None:
    """Each operation succeeds or fails independently of its neighbours."""
    prepare(backend)
    answers = backend.write(MIXED, soon())
    assert kinds(answers) == MIXED_KINDS
    versions = [answer.version for answer in answers if isinstance(answer, Stat)]
    assert versions == [0, 0, 1, 1]
    wrong = [answer for answer in answers if isinstance(answer, BadVersionError)]
    assert [(error.path, error.expected, error.actual) for error in wrong] == [
        ("/there", 5, 0),
        ("/held", ABSENT, 0),
        ("/parent2", 3, 0),
        ("/gone", 0, ABSENT),
    ]
    found = backend.read([Get("/fresh"), Get("/there"), Exists("/leaf"), Exists("/gone")], soon())
    assert [answer.value for answer in found[:2]] == [b"1", b"0"]
    assert found[2:] == [False, False]


def test_a_nested_request_takes_one_round_trip(
    nesting: EtcdBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """etcd is called once, whatever the number of failing operations."""
    prepare(nesting)
    calls = counted(nesting, monkeypatch)
    assert kinds(nesting.write(MIXED, soon())) == MIXED_KINDS
    assert calls == ["txn"]


@pytest.mark.server
def test_a_flat_request_is_sent_again_without_what_cannot_hold(
    fresh_url: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without nesting, one call finds all failures, and a second one executes the rest."""
    with opened(fresh_url("etcd"), flat_only=True) as backend:
        prepare(backend)
        calls = counted(backend, monkeypatch)
        assert kinds(backend.write(MIXED, soon())) == MIXED_KINDS
        assert calls == ["txn", "txn"]


def test_a_thousand_operations_fit_into_one_transaction(
    nesting: EtcdBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Creates, puts and deletes by the thousand share a revision; conflicts take one more."""
    calls = counted(nesting, monkeypatch)
    paths = [f"/many/{number:04d}" for number in range(1000)]
    created = nesting.write([Put(path, b"x", ABSENT) for path in paths], soon())
    assert [answer.path for answer in created] == paths
    assert len({answer.revision for answer in created}) == 1
    again = nesting.write(
        [
            Delete(path) if number % 3 == 0 else Put(path, b"y", number % 3 - 1)
            for number, path in enumerate(paths)
        ],
        soon(),
    )
    assert kinds(again[:3]) == [type(None), Stat, BadVersionError]
    assert kinds(again) == (kinds(again[:3]) * 334)[:1000]
    assert calls == ["txn", "txn", "txn"]
    assert len(nesting.read([GetChildren("/many")], soon())[0]) == 666


def test_a_refused_put_does_not_matter_to_those_that_share_its_group(
    nesting: EtcdBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others are applied with the next request. After that, each has its own outcome."""
    nesting.write([Put("/c/30", b"0"), Put("/u/30", b"0"), Put("/d/30", b"0")], soon())
    calls = counted(nesting, monkeypatch)
    creates = [Put(f"/c/{number}", b"c", ABSENT) for number in range(70)]
    answers = nesting.write(creates, soon())
    assert kinds(answers) == [Stat] * 30 + [BadVersionError] + [Stat] * 39
    assert all(answer.version == 0 for answer in answers if isinstance(answer, Stat))
    assert calls == ["txn", "txn"]
    updates = [Put(f"/c/{number}", b"u", 0) for number in range(70)]
    answers = nesting.write([*updates[:60], Delete("/none"), *updates[60:]], soon())
    assert kinds(answers) == [Stat] * 60 + [NotFoundError] + [Stat] * 10
    assert {answer.version for answer in answers if isinstance(answer, Stat)} == {1}
    refused = [Put(f"/u/{number}", b"c", ABSENT) for number in range(70)]
    assert kinds(nesting.write(refused, soon())).count(BadVersionError) == 1
    assert calls == ["txn"] * 4
    # After many writes without a refusal, puts share their conditions again.
    monkeypatch.setattr(Refusals, "quiet", 60)
    nesting.write([Put(f"/e/{number}", b"e") for number in range(60)], soon())
    refused = [Put(f"/d/{number}", b"c", ABSENT) for number in range(70)]
    assert kinds(nesting.write(refused, soon())).count(BadVersionError) == 1
    assert calls == ["txn"] * 7


def fenced(path: str, epoch: int = 0) -> Transaction:
    """Return a creation that only the owner in an epoch may do."""
    return Transaction([Check("/owner", epoch), Put(path, b"f", ABSENT)])


def test_transactions_share_their_conditions(
    nesting: EtcdBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many fenced writes are one request, also beside creations."""
    nesting.write([Put("/owner", b"o")], soon())
    calls = counted(nesting, monkeypatch)
    writes = [*(fenced(f"/f/{number}") for number in range(40)), Put("/alone", b"a", ABSENT)]
    answers = nesting.write(writes, soon())
    assert [[check, stat.path, stat.version] for check, stat in answers[:40]] == [
        [None, f"/f/{number}", 0] for number in range(40)
    ]
    assert (answers[40].path, answers[40].version) == ("/alone", 0)
    assert calls == ["txn"]


def test_a_refused_transaction_does_not_matter_to_those_that_share_its_group(
    nesting: EtcdBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others are applied with the next request. After that, each has its own outcome."""
    nesting.write([Put("/owner", b"o"), Put("/f/7", b"0")], soon())
    calls = counted(nesting, monkeypatch)
    writes = [fenced(f"/f/{number}", epoch=int(number == 20)) for number in range(40)]
    answers = nesting.write(writes, soon())
    refused = {n: a for n, a in enumerate(answers) if isinstance(a, TransactionRefusedError)}
    assert {number: error.index for number, error in refused.items()} == {7: 1, 20: 0}
    assert kinds(answers).count(list) == 38
    assert len(nesting.read([GetChildren("/f")], soon())[0]) == 39
    assert calls[:2] == ["txn", "txn"]
    del calls[:]
    assert kinds(nesting.write([fenced("/f/7"), *map(fenced, ["/g/1", "/g/2"])], soon())) == [
        TransactionRefusedError,
        list,
        list,
    ]
    more = [fenced("/f/7"), *(fenced(f"/h/{number}") for number in range(20))]
    assert kinds(nesting.write(more, soon())).count(list) == 20
    assert calls == ["txn", "txn"]


def test_few_puts_do_not_share_their_conditions(
    nesting: EtcdBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A refusal among them takes no second request."""
    nesting.write([Put("/c/3", b"0")], soon())
    calls = counted(nesting, monkeypatch)
    answers = nesting.write([Put(f"/c/{number}", b"c", ABSENT) for number in range(7)], soon())
    assert kinds(answers) == [Stat] * 3 + [BadVersionError] + [Stat] * 3
    assert calls == ["txn"]


def test_limits_are_those_that_hold(backend: EtcdBackend) -> None:
    """A batch as large as the limits allow is accepted, even with the longest values."""
    limits = backend.limits
    number = limits.write_ops
    deletes = backend.write([Delete(f"/{index}") for index in range(number)], soon())
    assert kinds(deletes) == [NotFoundError] * number
    creates = backend.write([Put(f"/{index}", b"", ABSENT) for index in range(number)], soon())
    assert kinds(creates) == [Stat] * number
    reads = [Exists(f"/{index % number}") for index in range(limits.read_ops)]
    assert all(backend.read(reads, soon()))
    large = Put("/large", bytes(limits.value_bytes), ABSENT)
    assert kinds(backend.write([large], soon())) == [Stat]
    size = limits.request_bytes // 10 - limits.op_bytes - 10
    ten = [Put(f"/ten/{index}", bytes(size), ABSENT) for index in range(10)]
    assert kinds(backend.write(ten, soon())) == [Stat] * 10


def test_a_value_that_is_too_large_is_refused_alone(backend: EtcdBackend) -> None:
    """The message has the limit, and the connection stays usable."""
    (error,) = backend.write([Put("/large", bytes(2 * 2**20))], soon())
    assert type(error) is ValueTooLargeError
    assert error.path == "/large"
    assert "1.5 MiB" in str(error)
    # Beyond what the server's gRPC takes in, too.
    (error,) = backend.write([Put("/large", bytes(8 * 2**20), 3)], soon())
    assert type(error) is ValueTooLargeError
    assert kinds(backend.write([Put("/small", b"")], soon())) == [Stat]


def test_a_request_that_is_too_large_is_carried_out_in_parts(backend: EtcdBackend) -> None:
    """An operation that is too large is refused alone; the rest is divided until it fits."""
    operations = [Put(f"/{number}", bytes(2**19), ABSENT) for number in range(8)]
    operations[3] = Put("/3", bytes(2**21), ABSENT)
    answers = backend.write(operations, soon())
    assert kinds(answers) == [Stat] * 3 + [ValueTooLargeError] + [Stat] * 4
    assert backend.read([Exists(op.path) for op in operations], soon()) == [
        number != 3 for number in range(8)
    ]
    assert backend.tally.counts()["split"] > 0


def test_versions_and_revisions_are_etcd_s(backend: EtcdBackend) -> None:
    """Versions count puts from 0, a revision is shared by what one transaction changed."""
    first = backend.write([Put("/a", b"1"), Put("/b", b"1", ABSENT)], soon())
    assert [answer.version for answer in first] == [0, 0]
    second = backend.write([Put("/a", b"2"), Put("/b", b"2", 0)], soon())
    assert [answer.version for answer in second] == [1, 1]
    assert first[0].revision == first[1].revision < second[0].revision == second[1].revision
    assert backend.read([Get("/a"), Get("/c")], soon()) == [GetResult(b"2", second[0]), None]


def test_a_delete_and_its_neighbours_below(backend: EtcdBackend) -> None:
    """Guards check the state before the request: the parent is refused, the child is deleted."""
    backend.write([Put("/a", b""), Put("/a/b", b""), Put("/a.c", b""), Put("/a0", b"")], soon())
    # The child first: the parent's refusal is explained when there is nothing below it any more.
    answers = backend.write([Delete("/a/b"), Delete("/a")], soon())
    assert kinds(answers) == [type(None), NotEmptyError]
    backend.write([Put("/a/b", b"")], soon())
    answers = backend.write([Delete("/a"), Delete("/a/b")], soon())
    assert kinds(answers) == [NotEmptyError, type(None)]
    # Names that merely begin alike are not below.
    assert backend.write([Delete("/a")], soon()) == [None]
    assert backend.read([GetChildren("/")], soon()) == [["a.c", "a0"]]


@pytest.mark.server
def test_keys_are_prefix_and_path(fresh_url: Callable[[str], str]) -> None:
    """Another client finds each value at the prefix and the path, in UTF-8."""
    url = fresh_url("etcd")
    with opened(url) as backend, etcd_client(url) as (plain, prefix):
        backend.write([Put("/é/日", b"value"), Put("/plain", b"")], soon())
        backend.write([Put("/plain", b"2")], soon())
        ours = f"{prefix}/.batchkeeper/"
        found = {
            meta.key.decode(): (value, meta)
            for value, meta in plain.get_prefix(prefix)
            if not meta.key.startswith(ours.encode())
        }
        assert {key: value for key, (value, _) in found.items()} == {
            f"{prefix}/é/日": b"value",
            f"{prefix}/plain": b"2",
        }
        plain.put(f"{prefix}/plain", b"3")
        (got,) = backend.read([Get("/plain")], soon())
        assert (got.value, got.stat.version) == (b"3", 2)


def test_children_are_names_not_subtrees(
    nesting: EtcdBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The names below a deep tree's root are listed in order with a few pages."""
    tree = [f"/top/{name}/{leaf:03d}" for name in ("a", "a-b", "é", "日") for leaf in range(250)]
    assert kinds(nesting.write([Put(path, b"") for path in tree], soon())) == [Stat] * 1000
    nesting.write([Put("/top/a", b""), Put("/top/a.", b""), Put("/topmost", b"")], soon())
    calls = counted(nesting, monkeypatch)
    names = ["a", "a-b", "a.", "é", "日"]
    assert nesting.read([GetChildren("/top")], soon()) == [names]
    assert len(calls) < 8
    answers = nesting.read([GetChildren("/"), Get("/top"), GetChildren("/top/a.")], soon())
    assert answers == [["top", "topmost"], None, []]


def test_a_large_directory_is_complete_and_of_one_moment(
    nesting: EtcdBackend, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    """Pages after the first show the same revision, whatever is written between them."""
    for start in range(0, 5000, 1000):
        batch = [Put(f"/dir/{number:04d}", b"") for number in range(start, start + 1000)]
        assert kinds(nesting.write(batch, soon())) == [Stat] * 1000
    call = EtcdConnection.call

    def disturbing(self: EtcdConnection, method: Any, *args: Any, **more: Any) -> Any:
        if method == "range":
            body = nested_write([Put("/dir/9999", b""), Delete("/dir/4999")], prefix)
            call(self, "txn", body, soon(), write=True)
        return call(self, method, *args, **more)

    prefix = parse_url(url).prefix()
    monkeypatch.setattr(EtcdConnection, "call", disturbing)
    (names,) = nesting.read([GetChildren("/dir")], soon())
    assert names == [f"{number:04d}" for number in range(5000)]
    (names,) = nesting.read([GetChildren("/dir")], soon())
    assert names == [*(f"{number:04d}" for number in range(4999)), "9999"]


def test_a_listing_starts_again_when_its_revision_is_compacted(
    nesting: EtcdBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compaction in the middle of a listing costs time and not the answer."""
    assert kinds(nesting.write([Put(f"/dir/{n:04d}", b"") for n in range(1000)], soon()))
    call = EtcdConnection.call
    compacted: list[int] = []

    def compacting(self: EtcdConnection, method: Any, request: Any, *args: Any, **more: Any) -> Any:
        if method == "range" and not compacted:
            (stat,) = nesting.write([Put("/dir/0000", b"")], soon())
            channel = self._members[0].channel
            stub = grpc_stubs.KVStub(channel)
            stub.Compact(messages.CompactionRequest(revision=stat.revision))
            compacted.append(stat.revision)
        return call(self, method, request, *args, **more)

    monkeypatch.setattr(EtcdConnection, "call", compacting)
    (names,) = nesting.read([GetChildren("/dir")], soon())
    assert compacted
    assert names == [f"{number:04d}" for number in range(1000)]


@pytest.mark.server
def test_reserved_names_are_hidden_at_the_root(fresh_url: Callable[[str], str]) -> None:
    """Internal keys are not listed; at other places, their names are ordinary."""
    url = fresh_url("etcd")
    with opened(url) as backend, etcd_client(url) as (plain, prefix):
        for key in (".batchkeeper/write-ids", "zookeeper", "own", "deep/zookeeper", "/empty"):
            plain.put(f"{prefix}/{key}", b"")
        answers = backend.read([GetChildren("/"), GetChildren("/deep")], soon())
        assert answers == [["deep", "own"], ["zookeeper"]]


def test_several_threads_share_a_connection(backend: EtcdBackend) -> None:
    """Requests from threads run side by side, and each gets its own answers."""

    def work(worker: int) -> list[tuple[str, int]]:
        seen = []
        for version in range(20):
            writes = [Put(f"/{worker}/{n}", b"%d" % version, version - 1) for n in range(10)]
            stats = backend.write(writes, soon())
            reads = backend.read([Get(write.path) for write in writes], soon())
            assert [read.value for read in reads] == [b"%d" % version] * 10
            assert [read.stat for read in reads] == stats
            seen += [(stat.path, stat.version) for stat in stats]
        return seen

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(work, range(8)))
    for worker, seen in enumerate(results):
        assert seen == [(f"/{worker}/{n}", version) for version in range(20) for n in range(10)]


def test_a_server_that_takes_fewer_operations_is_asked_for_fewer(
    own_etcd: Callable[..., EtcdServer],
) -> None:
    """The limits follow --max-txn-ops, nested and flat, and hold."""
    server = own_etcd("--max-txn-ops", "16")
    for flat_only, expected in ((False, 36), (True, 15)):
        with opened(f"{server.url}/{flat_only}", flat_only=flat_only) as backend:
            assert (backend.limits.write_ops, backend.limits.read_ops) == (expected, 16)
            test_limits_are_those_that_hold(backend)


@pytest.mark.server
def test_a_full_etcd_still_answers_reads(tmp_path: Path) -> None:
    """Beyond its quota etcd refuses all transactions: reads go one by one, writes say so."""
    directory = tmp_path / "etcd"
    with EtcdServer(directory) as server, opened(server.url) as backend:
        stat, *_ = backend.write([Put("/kept", b"value"), Put("/kept/below", b"")], soon())
    full = EtcdServer(directory, flags=("--quota-backend-bytes", "1"))
    with full as server, opened(server.url) as backend:
        for _ in range(2):  # The first refusal is not taken for one of permission.
            with pytest.raises(RequestRefusedError, match="space exceeded"):
                backend.write([Put("/a", b""), Put("/b", b"")], soon())
        # Two that must not be sent together, and nothing beside them.
        crossing = [
            Transaction([Delete(f"/{one}"), Put(f"/{other}/x", b"")]) for one, other in ("ab", "ba")
        ]
        refused = backend.write(crossing, soon())
        assert ["space exceeded" in str(error) for error in refused] == [True, True]
        assert {error.outcome for error in refused} == {"not_applied"}  # type: ignore[union-attr]
        reads = [Get("/kept"), Get("/no"), Exists("/kept"), Exists("/no"), GetChildren("/kept")]
        answers = backend.read(reads, soon())
        assert answers == [GetResult(b"value", stat), None, True, False, ["below"]]


def test_a_deadline_that_has_passed_sends_nothing(nesting: EtcdBackend) -> None:
    """Such a request was never sent, and says so."""
    for call, operation in ((nesting.write, Put("/a", b"")), (nesting.read, Get("/a"))):
        with pytest.raises(OperationTimeoutError) as caught:
            call([operation], time.monotonic() - 1)
        assert caught.value.outcome == "not_applied"
    assert nesting.read([Exists("/a")], soon()) == [False]


@pytest.mark.server
def test_a_closed_back_end_says_so(fresh_url: Callable[[str], str]) -> None:
    """After close every call raises, and closing again is harmless."""
    with opened(fresh_url("etcd")) as backend:
        pass
    backend.close()
    for call, operation in ((backend.write, Put("/a", b"")), (backend.read, Get("/a"))):
        with pytest.raises(StoreClosedError):
            call([operation], soon())


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("etcd://127.0.0.1:1?ca=/x", "no option 'ca'"),
        ("etcds://127.0.0.1:1?color=red", "known: ca, cert, key"),
        ("etcds://127.0.0.1:1?cert=/x", "both options"),
        ("etcds://127.0.0.1:1?ca=/no/such/file", "/no/such/file"),
        ("etcd://", "at least one host"),
        ("etcd://127.0.0.1:x", "not a host and port"),
        ("etcd://127.0.0.1:1/a//b", "not have an empty part"),
    ],
)
def test_urls_that_cannot_be_used_are_refused(url: str, says: str) -> None:
    """The message says what is wrong with the URL."""
    with pytest.raises(ValueError, match=says):
        connect(url, ConnectOptions())


def test_half_a_login_is_refused() -> None:
    """A username without a password is a mistake, not an anonymous client."""
    with pytest.raises(InvalidSettingError, match="both a username and a password"):
        connect("etcd://127.0.0.1:1", ConnectOptions(username="someone"))
