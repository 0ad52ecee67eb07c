"""Transactions on etcd: several compares, in order, settled like any write."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import closing
from itertools import permutations
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from batchkeeper.ops import (
    ABSENT,
    BadVersionError,
    Check,
    Delete,
    Exists,
    Get,
    InvalidSettingError,
    NotEmptyError,
    NotFoundError,
    Put,
    Stat,
    Transaction,
    TransactionRefusedError,
)
from batchkeeper.stores import ConnectOptions, connect
from batchkeeper.stores.etcd.backend import EtcdBackend
from batchkeeper.stores.etcd.wire.connection import EtcdConnection
from batchkeeper.testing.servers import EtcdServer

from ...waiting import soon
from ..calls import kinds, lose_the_answer, write
from .line import Line
from .opening import opened


def refusal(answer: Any) -> tuple[int, type]:
    """Return the place and the type of a transaction's error."""
    assert type(answer) is TransactionRefusedError
    return answer.index, type(answer.error)


def test_parents_can_go_with_their_children(backend: EtcdBackend) -> None:
    """A path whose children are deleted before it goes; otherwise the first in order is named."""
    tree = ["/a", "/a/b", "/a/b/c", "/a/b-", "/a/b0", "/a/d"]
    write(backend, *[Put(path, b"") for path in tree])
    for order in permutations(["/a", "/a/b", "/a/b/c"]):
        (answer,) = write(backend, Transaction([Delete(path) for path in order]))
        index = next(
            place
            for place, path in enumerate(order)
            if any(other.startswith(f"{path}/") and other not in order[:place] for other in tree)
        )
        assert refusal(answer) == (index, NotEmptyError)
    bottom_up = sorted(tree, reverse=True)
    (answer,) = write(backend, Transaction([Delete(path) for path in bottom_up]))
    assert answer == [None] * len(tree)
    assert backend.read([Exists(path) for path in tree], soon()) == [False] * len(tree)


def test_a_parent_does_not_go_with_a_child_that_was_just_put(backend: EtcdBackend) -> None:
    """The order of the parts decides: after its delete, a path may get a child."""
    write(backend, Put("/a", b""), Put("/a/c", b""))
    for child in ("/a/b", "/a/c"):
        delete = [Delete("/a/c")] if child == "/a/b" else []
        (answer,) = write(backend, Transaction([*delete, Put(child, b""), Delete("/a")]))
        assert refusal(answer) == (len(delete) + 1, NotEmptyError)
    # What the version forbids comes first.
    (answer,) = write(backend, Transaction([Put("/a/b", b""), Delete("/a", 7)]))
    assert refusal(answer) == (1, BadVersionError)
    write(backend, Delete("/a/c"))
    (answer,) = write(backend, Transaction([Delete("/a"), Put("/a/b", b"")]))
    assert answer[1].version == 0
    assert backend.read([Exists("/a"), Exists("/a/b")], soon()) == [False, True]


def test_a_chain_of_parents_needs_few_conditions(backend: EtcdBackend) -> None:
    """Thirty levels go in one transaction, and one value beside them keeps them all."""
    paths = ["/a" * level for level in range(1, 31)]
    write(backend, *[Put(path, b"") for path in paths], Put(f"{paths[20]}/z", b""))
    going = Transaction([Delete(path) for path in reversed(paths)])
    (answer,) = write(backend, going)
    assert refusal(answer) == (9, NotEmptyError)
    write(backend, Delete(f"{paths[20]}/z"))
    assert write(backend, going) == [[None] * 30]


def test_a_refused_transaction_costs_its_neighbours_no_more_than_a_conflict(
    backend: EtcdBackend, flat_only: bool
) -> None:
    """The others are applied with the batch; if it is flat, with one more."""
    write(backend, Put("/a", b""))
    batch = [
        Put("/b", b""),
        Transaction([Check("/a", 7), Put("/c", b"")]),
        Transaction([Check("/a", 0), Put("/d", b"")]),
        Transaction([Put("/e", b""), Delete("/missing")]),
        Put("/f", b"", ABSENT),
    ]
    answers = write(backend, *batch)
    assert refusal(answers[1]) == (0, BadVersionError)
    assert refusal(answers[3]) == (1, NotFoundError)
    assert kinds([answers[0], answers[4]]) == [Stat, Stat]
    assert [stat and stat.path for stat in answers[2]] == [None, "/d"]
    assert len({answers[0].revision, answers[2][1].revision, answers[4].revision}) == 1
    assert backend.tally.counts()["conflict"] == flat_only
    assert backend.read([Exists("/c"), Exists("/e")], soon()) == [False, False]


def test_a_hundred_parts_are_one_transaction(backend: EtcdBackend) -> None:
    """As many as the limits say, if each has one condition; with more, the error says why."""
    most = backend.limits.transaction_ops
    assert most > 100
    write(backend, Put("/guard", b""))
    puts = [Put(f"/{n}", b"", ABSENT) for n in range(most - 1)]
    (answer,) = write(backend, Transaction([Check("/guard", 0), *puts]))
    assert answer[0] is None
    assert kinds(answer[1:]) == [Stat] * (most - 1)
    (answer, other) = write(
        backend, Transaction([Delete(f"/{n}") for n in range(most - 1)]), Put("/x", b"")
    )
    assert type(answer) is InvalidSettingError
    assert "more conditions" in str(answer)
    assert type(other) is Stat


@pytest.mark.parametrize("max_txn_ops", ["3", "5", "12"])
def test_low_limits_allow_small_transactions(
    own_etcd: Callable[..., EtcdServer], max_txn_ops: str
) -> None:
    """With a low --max-txn-ops, whatever the limits allow is executed."""
    server = own_etcd("--max-txn-ops", max_txn_ops)
    with opened(server.url) as backend:
        most = backend.limits.transaction_ops
        assert most == max(1, int(max_txn_ops) - 4)
        puts = Transaction([Put(f"/{n}", b"") for n in range(most)])
        for version in range(2):
            answers = write(backend, puts, Put("/a", b""), Put("/b", b"", ephemeral=True))
            assert [stat.version for stat in answers[0]] == [version] * most
            assert [stat.version for stat in answers[1:]] == [version] * 2
        answers = write(backend, *[Put("/s/n-", b"", sequential=True) for _ in range(20)])
        assert len({stat.path for stat in answers}) == 20


def batch() -> list[Any]:
    """Return applied and refused transactions of every kind."""
    return [
        Transaction([Put("/new", b"n", ABSENT), Put("/a", b"1", 0)]),
        Transaction([Check("/b", 0), Put("/p", b"", ephemeral=True), Delete("/c")]),
        Transaction([Delete("/d/e"), Delete("/d")]),
        Transaction([Check("/f", 0)]),
        Transaction([Check("/g", ABSENT), Delete("/h", 5)]),
        Transaction([Put("/i", b""), Check("/j", 3)]),
        Transaction([Delete("/k"), Delete("/missing")]),
        Transaction([Put("/l", b""), Delete("/m")]),
    ]


PATHS = ["/a", "/b", "/c", "/d/e", "/d", "/f", "/h", "/k", "/m", "/m/n"]


def outcome(answer: Any) -> Any:
    """Return what counts of an answer."""
    if isinstance(answer, TransactionRefusedError):
        return refusal(answer)
    return [stat and (stat.path, stat.version, stat.ephemeral, stat.owned) for stat in answer]


WANTED = [
    [("/new", 0, False, False), ("/a", 1, False, False)],
    [None, ("/p", 0, True, True), None],
    [None, None],
    [None],
    (1, BadVersionError),
    (1, BadVersionError),
    (1, NotFoundError),
    (1, NotEmptyError),
]


def test_lost_answers_are_settled(
    etcd_server: EtcdServer, url: str, proxy: Callable[[str], Any], flat_only: bool
) -> None:
    """Each transaction of a batch gets the result or the refusal that it had."""
    line = proxy(etcd_server.address)
    through = url.replace(etcd_server.address, line.address)
    with opened(through, flat_only=flat_only) as backend:
        write(backend, *[Put(path, b"") for path in PATHS])
        answers = lose_the_answer(backend, line, batch())
        assert [outcome(answer) for answer in answers] == WANTED
        left = backend.read([Exists(path) for path in ("/c", "/d", "/k", "/i", "/l")], soon())
        assert left == [False, False, True, False, False]


@pytest.mark.parametrize("first", ["lost", "executed"])
def test_a_late_copy_changes_nothing(
    backend: EtcdBackend, monkeypatch: pytest.MonkeyPatch, first: str, connection: EtcdConnection
) -> None:
    """Whatever happened to the first attempt, each transaction takes effect once."""
    write(backend, *[Put(path, b"") for path in PATHS])
    backend.session.take(1, soon())
    line = Line(connection, monkeypatch)
    line.script.append(first)
    answers = backend.write(batch(), soon())
    assert [outcome(answer) for answer in answers] == WANTED
    write(backend, Put("/c", b"again"), Put("/d", b"again"))
    line.deliver()
    found = backend.read([Get(path) for path in ("/a", "/new", "/c", "/d")], soon())
    assert [result.stat.version for result in found] == [1, 0, 0, 0]


# --- against the model

names = st.sampled_from(["/a", "/a/b", "/a/b/c", "/a/b/d", "/a/b-", "/e", "/e/f"])
versions = st.sampled_from([None, ABSENT, 0, 1])
existing = st.sampled_from([None, 0, 1])
parts = st.one_of(
    st.builds(Put, names, st.just(b"v"), versions, ephemeral=st.booleans()),
    st.builds(Delete, names, existing),
    st.builds(Delete, names, existing),
    st.builds(Check, names, st.sampled_from([ABSENT, 0, 1])),
)
transactions = st.lists(parts, min_size=1, max_size=6, unique_by=lambda part: part.path).map(
    Transaction
)


def told(answer: Any) -> Any:
    """Return an answer without the parts that only one of the stores has."""
    if isinstance(answer, TransactionRefusedError):
        error = answer.error
        return answer.index, type(error), error.path, getattr(error, "actual", None)
    if isinstance(answer, list):
        return [told(part) for part in answer]
    if isinstance(answer, Stat):
        return answer.path, answer.version, answer.ephemeral, answer.owned
    return answer


@settings(
    max_examples=settings.default.max_examples // 2,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.sets(names), st.lists(transactions, min_size=1, max_size=12))
def test_transactions_answer_as_the_memory_store_does(
    etcd_server: EtcdServer, flat_only: bool, there: set[str], written: list[Transaction]
) -> None:
    """Results and refusals are those of the model, one transaction after the other."""
    name = uuid.uuid4().hex
    with (
        opened(f"{etcd_server.url}/{name}", flat_only=flat_only) as backend,
        closing(connect(f"memory://{name}", ConnectOptions())) as model,
    ):
        for store in (backend, model):
            write(store, *[Put(path, b"") for path in sorted(there)])
        for transaction in written:
            assert told(write(backend, transaction)[0]) == told(write(model, transaction)[0])


@pytest.mark.parametrize("count", [2, 3])
def test_transactions_that_cross_are_one_after_the_other(backend: EtcdBackend, count: int) -> None:
    """Of transactions that each put below a path that the next deletes, not all can hold."""
    write(backend, *[Put(f"/{number}", b"") for number in range(count)])
    ring = [
        Transaction([Delete(f"/{number}"), Put(f"/{(number + 1) % count}/x", b"")])
        for number in range(count)
    ]
    answers = write(backend, *ring, Put("/beside", b""))
    refused = [answer for answer in answers if isinstance(answer, TransactionRefusedError)]
    assert refused
    assert len(refused) < count
    assert {type(answer.error) for answer in refused} == {NotEmptyError}
    assert isinstance(answers[-1], Stat)
