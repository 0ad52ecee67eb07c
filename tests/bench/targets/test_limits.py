"""The script that compares the client with its limits, on real stores, with few operations."""

from __future__ import annotations

import itertools
import json
import math
import uuid
from collections.abc import Callable, Sequence

import pytest
from targets.limits import coordination
from targets.limits.measuring import STORES, needed, rows_of
from targets.limits.raw import ceiling
from targets.limits.variants import VARIANTS
from targets.rows import Goal, Name, Results, Row, verdict
from targets.work import items, steps

from batchkeeper import (
    ABSENT,
    BadVersionError,
    Counter,
    Election,
    Lock,
    MetadataCache,
    MetadataStore,
    MetadataStoreError,
    Stat,
)
from batchkeeper.bench.target import Target
from batchkeeper.bench.workload import WrongAnswerError
from batchkeeper.stores import rocksdb
from batchkeeper.stores.backend import Answer, Backend, PassingBackend, Request
from batchkeeper.stores.registry import ConnectOptions, StoreURL

# They measure the project, and not what its users get.
pytestmark = pytest.mark.full

# The throw-away servers, which these tests start by their names.
SERVED = [pytest.param(name, marks=pytest.mark.server) for name in ("etcd", "zookeeper")]


@pytest.mark.parametrize("store", ["rocksdb", *SERVED])
def test_every_row_is_measured(
    store: str, limits: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    """Each row gives figures above 0, their ratio, and a verdict, whatever the targets are."""
    assert limits(store, "-o", "json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["target"] == store
    assert report["rounds"] == 1
    assert list(report["rows"]) == [row.name for row in rows_of(store)]
    for row in rows_of(store):
        found = report["rows"][row.name]
        assert (found["ratio"] is None) == (row.base is None)
        assert found["verdict"] in {"goal", "target", "missed"}
    figures = report["figures"]
    # The server's clock counts hundredths of a second, so few operations may take none.
    measured = {name: values for name, values in figures.items() if ": server" not in name}
    assert all(0 < value < math.inf for values in measured.values() for value in values)
    assert all(operations > 0 for operations in report["operations"].values())
    for name in ("puts", "raw puts", "plain puts", "creates", "gets", "raw gets"):
        assert f"{name}: cpu" in figures
        assert (f"{name}: server" in figures) == (store != "rocksdb")


def measured(name: str, there: Target, count: int) -> None:
    """Measure a variant once."""
    assert VARIANTS[name].measure(there, count)["rate"] > 0


class Tampering(PassingBackend):
    """A back end that answers wrongly: ``tamper`` may exchange what a write ends with."""

    def __init__(self, backend: Backend, tamper: Callable[[Request, Answer], Answer]) -> None:
        super().__init__(backend)
        self._tamper = tamper

    def write(self, requests: Sequence[Request], deadline: float) -> list[Answer]:
        answers = self._backend.write(requests, deadline)
        return [self._tamper(r, a) for r, a in zip(requests, answers, strict=True)]


def _other_version(request: Request, answer: Answer) -> Answer:
    wrong = isinstance(answer, Stat) and request.path.endswith("/7")
    return answer._replace(version=3) if isinstance(answer, Stat) and wrong else answer


def _other_path(request: Request, answer: Answer) -> Answer:
    return answer._replace(path="/x") if isinstance(answer, Stat) else answer


def _refused(request: Request, answer: Answer) -> Answer:
    return MetadataStoreError("refused") if request.path.endswith("/7") else answer


def _never_refused(request: Request, answer: Answer) -> Answer:
    return Stat(request.path, 1, 1) if isinstance(answer, BadVersionError) else answer


@pytest.mark.parametrize(
    ("row", "tamper", "message"),
    [
        ("puts", _other_version, "version=3"),
        ("puts", _other_path, "path='/x'"),
        ("puts", _refused, "failed: refused"),
        ("conditional", _other_version, "version=3"),
        ("conflicts", _never_refused, "did not conflict"),
        ("apply", _refused, "failed: refused"),
        ("threads", _other_version, "version=3"),
        ("threads", _refused, "failed: refused"),
        ("tasks", _other_version, "version=3"),
        ("tasks", _refused, "failed: refused"),
        ("idle", _other_version, "version=3"),
        ("idle", _refused, "failed: refused"),
    ],
)
def test_a_wrong_answer_ends_the_run(
    row: str,
    tamper: Callable[[Request, Answer], Answer],
    message: str,
    limits: Callable[..., int],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """An answer with a wrong version, path or type ends with 1 and names the path."""
    connect = rocksdb.connect

    def tampering(url: StoreURL, options: ConnectOptions) -> Backend:
        return Tampering(connect(url, options), tamper)

    monkeypatch.setattr(rocksdb, "connect", tampering)
    assert limits("rocksdb", "--only", row) == 1
    err = capsys.readouterr().err
    assert "a wrong answer: " in err
    assert message in err


@pytest.mark.parametrize("store", [store for store in STORES if store != "hbase"])
def test_a_ceiling_checks_its_answers(store: str, place: Callable[..., Target]) -> None:
    """If a path exists already, the bare loops notice that their creates were refused."""
    measure, there = ceiling(store, "raw conditional puts").measure, place(store)
    assert measure(there, 300)["rate"] > 0
    with pytest.raises(WrongAnswerError):
        measure(there, 300)


def test_a_wrong_value_ends_the_run(
    limits: Callable[..., int],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A get is compared with the value that was put."""
    get = MetadataStore.get
    monkeypatch.setattr(
        MetadataStore, "get", lambda store, path: get(store, path.replace("/7", "/8"))
    )
    assert limits("rocksdb", "--only", "gets") == 1
    assert "should have the value" in capsys.readouterr().err


def test_a_lost_answer_ends_the_run(
    limits: Callable[..., int],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The answers are counted: a missing outcome is as wrong as a wrong one."""
    apply = MetadataStore.apply
    monkeypatch.setattr(MetadataStore, "apply", lambda store, ops: apply(store, ops)[:-1])
    assert limits("rocksdb", "--only", "apply") == 1
    assert "answers to" in capsys.readouterr().err


def test_a_lock_with_two_holders_ends_the_run(
    place: Callable[..., Target], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The contenders add to a total that only the lock protects, so a lost addition shows."""
    monkeypatch.setattr(
        coordination, "Lock", lambda store, path: Lock(store, f"{path}/{uuid.uuid4()}")
    )
    with pytest.raises(WrongAnswerError, match="the sum is"):
        measured("locks in line", place(), 300)


@pytest.mark.parametrize("name", ["lone locks", "locks in line"])
def test_fencing_tokens_that_do_not_grow_end_the_run(
    name: str,
    place: Callable[..., Target],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each holder's token is compared with the one before."""
    monkeypatch.setattr(Lock, "fencing_token", 7)
    with pytest.raises(WrongAnswerError, match="no greater fencing token"):
        measured(name, place(), 100)


def test_a_cache_that_is_wrong_ends_the_run(
    place: Callable[..., Target], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The values are compared with those in the store, and hits must not reach it."""
    get, update = MetadataCache.get, MetadataCache.read_modify_update
    with monkeypatch.context() as patched:
        patched.setattr(MetadataCache, "get", lambda cache, path: get(cache, path)[:-1])
        with pytest.raises(WrongAnswerError, match="not the one that was put"):
            coordination.cache_hits(place(), 100)
        patched.setattr(MetadataCache, "get", lambda cache, path: _missed(cache, path, get))
        with pytest.raises(WrongAnswerError, match="have reached the store"):
            coordination.cache_hits(place(), 100)
    lose = itertools.count()

    def losing(
        cache: MetadataCache[bytes], path: str, fn: Callable[[bytes], bytes]
    ) -> bytes | None:
        return update(cache, path, fn) if next(lose) else None

    monkeypatch.setattr(MetadataCache, "read_modify_update", losing)
    with pytest.raises(WrongAnswerError, match="99 answers to 100 operations"):
        coordination.updates(place(), 100)


def _missed(cache: MetadataCache[bytes], path: str, get: Callable[..., bytes]) -> bytes:
    if isinstance(cache.get_if_cached(path), bytes):
        cache.invalidate(path)
    return get(cache, path)


def test_numbers_that_come_twice_end_the_run(
    place: Callable[..., Target], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The numbers must grow."""
    monkeypatch.setattr(Counter, "next", lambda _counter: 7)
    with pytest.raises(WrongAnswerError, match="do not grow"):
        coordination.numbers(place(), 10)


@pytest.mark.parametrize("name", ["etcd"])
def test_a_second_leader_ends_the_run(
    place: Callable[..., Target], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A candidate that leads before the leader was killed is not taken for its successor."""
    monkeypatch.setattr(coordination, "_ATTEMPTS", 1)
    monkeypatch.setattr(Election, "campaign", lambda _election, timeout: None)
    with pytest.raises(WrongAnswerError, match="before the leader was killed"):
        coordination.failovers(place(name), 1)


def test_a_store_that_fails_is_one_line(
    limits: Callable[..., int],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A server that cannot be started ends with 2 and the reason."""
    monkeypatch.setenv("BATCHKEEPER_ETCD", "no-such-program")
    assert limits("etcd") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "no-such-program" in line


def test_a_row_that_a_store_has_not_is_refused(
    limits: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    """An embedded store has no row for neighbours, and the error lists the rows that it has."""
    with pytest.raises(SystemExit):
        limits("rocksdb", "--only", "neighbour")
    assert "rocksdb has no row 'neighbour', but puts, " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("value", "goal", "less", "expected"),
    [
        (1.0, Goal(0.8, 1.0), False, "goal"),
        (0.8, Goal(0.8, 1.0), False, "target"),
        (0.79, Goal(0.8, 1.0), False, "missed"),
        (9.0, Goal(0.5), False, "target"),
        (1.15, Goal(1.3, 1.15), True, "goal"),
        (1.2, Goal(1.3, 1.15), True, "target"),
        (1.31, Goal(1.3, 1.15), True, "missed"),
        (0.01, Goal(0.05), True, "target"),
    ],
)
def test_the_verdict(value: float, goal: Goal, less: bool, expected: str) -> None:
    """The verdict is the goal, otherwise the target, otherwise missed; a goal is optional."""
    assert verdict(value, goal, less=less) == expected


def test_a_row_is_judged_by_its_ratio() -> None:
    """The verdict depends on the ratio of the medians or, without a base, on the figure itself."""
    goals = {"etcd": Goal(0.8, 1.0)}
    row = Row("a", "", Name("ours", "rate"), goals, Name("raw", "rate"))
    results = Results("etcd", [row])
    results.figures = {
        Name("ours", "rate"): [1.0, 90.0, 95.0],
        Name("raw", "rate"): [100.0, 100.0, 200.0],
    }
    ratio = results.ratio(row)
    assert ratio is not None
    assert (ratio.median, ratio.low, ratio.high) == (0.9, 0.01, 0.9)
    assert results.verdict(row) == "target"
    alone = Row("b", "", Name("ours", "rate"), {"etcd": Goal(50.0)}, less=True)
    assert results.ratio(alone) is None
    assert results.verdict(alone) == "missed"


@pytest.mark.parametrize("store", STORES)
def test_every_row_is_made_of_what_can_be_measured(store: str) -> None:
    """The two sides of each row are variants, and those of a ratio are measured in turn."""
    rows = rows_of(store)
    names = [variant.name for variant in needed(store, rows)]
    assert len(set(names)) == len(names)
    for row in rows:
        assert set(row.variants) <= set(names)
    (gets,) = rows_of(store, ["gets"])
    assert [variant.name for variant in needed(store, [gets])] == ["raw gets", "gets"]


def test_one_conditional_put_in_ten_conflicts() -> None:
    """Without conflicts each path is claimed and advanced twice; with them a tenth is wrong."""
    paths = items("/r", 20)
    found = steps(paths, conflicts=False)
    assert [(s.expected, s.version) for s in found if s.path == "/r/9"] == [
        (ABSENT, 0),
        (0, 1),
        (1, 2),
    ]
    found = steps(paths, conflicts=True)
    wrong = [step for step in found if step.version is None]
    assert len(wrong) * 10 == len(found) == 60
    assert {step.path for step in wrong} == {"/r/9", "/r/19"}
    # The paths are at version 0: both a create and an expectation of another version are wrong.
    assert {step.expected for step in wrong} == {ABSENT, 7}
