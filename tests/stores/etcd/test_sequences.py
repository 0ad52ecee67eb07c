"""Sequential puts on etcd: one counter for each parent, moved once for a batch."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import batchkeeper as bk
from batchkeeper.ops import ABSENT, Get, GetChildren, Put, Stat, UnsupportedError
from batchkeeper.stores import parse_url
from batchkeeper.stores.etcd.backend import EtcdBackend
from batchkeeper.stores.etcd.wire.connection import EtcdConnection
from batchkeeper.stores.etcd.wire.protos import messages
from batchkeeper.stores.etcd.writes import writer
from batchkeeper.testing.servers import EtcdServer

from ...waiting import soon
from ..calls import kinds, lose_the_answer, write
from .line import Line
from .opening import opened


def child(path: str = "/q/n-", **flags: Any) -> Put:
    return Put(path, b"", sequential=True, **flags)


def numbers(answers: list[Any]) -> list[int]:
    """Return the suffixes."""
    return [int(stat.path[-10:]) for stat in answers]


def test_thousands_below_one_parent_are_one_transaction(url: str) -> None:
    """They share a revision, count from 0 in the order of the batch, and move one counter."""
    with opened(url) as backend:
        ops = [child(f"/q/{'abc'[n % 3]}-", ephemeral=n % 5 == 0) for n in range(1000)]
        answers = write(backend, *ops)
        assert [stat.path for stat in answers] == [
            f"{op.path}{number:010}" for number, op in enumerate(ops)
        ]
        assert [stat.owned for stat in answers] == [op.ephemeral for op in ops]
        assert len({stat.revision for stat in answers}) == 1
        assert backend.tally.counts()["conflict"] == 0


def test_several_parents_in_one_batch_count_for_themselves(backend: EtcdBackend) -> None:
    """Each parent has its own numbers, whatever the names of the children are."""
    ops = [child(f"/p{n % 40}/{n}-") for n in range(120)]
    for turn in range(2):
        answers = write(backend, *ops)
        assert numbers(answers) == [3 * turn + n // 40 for n in range(120)]
    assert numbers(write(backend, child("/top-"), child("/p0/x-"))) == [0, 6]


def test_a_counter_that_others_have_moved_costs_only_its_own(
    backend: EtcdBackend, other: EtcdBackend, flat_only: bool
) -> None:
    """The neighbours are applied at once; the children get the numbers that follow."""
    assert numbers(write(backend, child(), child("/r/n-"))) == [0, 0]
    assert numbers(write(other, child(), child(), child())) == [1, 2, 3]
    answers = write(backend, Put("/a", b""), child(), child("/r/n-"), child())
    assert numbers(answers[1:]) == [4, 1, 5]
    assert backend.tally.counts()["conflict"] == 1
    if not flat_only:
        first, second = answers[0].revision, answers[1].revision
        assert [stat.revision for stat in answers] == [first, second, first, second]


def test_clients_that_compete_never_share_a_number(url: str, flat_only: bool) -> None:
    """Numbers are unique, and grow with the revisions, however many clients create children."""
    with ThreadPoolExecutor(6) as pool:

        def create(_: int) -> list[Stat]:
            stats: list[Stat] = []
            with opened(url, flat_only=flat_only) as backend, ThreadPoolExecutor(2) as senders:
                for some in senders.map(
                    lambda _: write(backend, *[child() for _ in range(20)]), range(12)
                ):
                    stats += some
            return stats

        stats = [stat for some in pool.map(create, range(6)) for stat in some]
    assert kinds(stats) == [Stat] * 1440
    assert len({stat.path for stat in stats}) == 1440
    in_order = sorted(stats, key=lambda stat: stat.path)
    revisions = [stat.revision for stat in in_order]
    assert revisions == sorted(revisions)


def test_a_pause_keeps_nobody_out_and_a_close_during_it_ends_only_what_waits(
    backend: EtcdBackend,
    other: EtcdBackend,
    monkeypatch: pytest.MonkeyPatch,
    connection: EtcdConnection,
    flat_only: bool,
) -> None:
    """After a pause, the number is the present one; what was applied before has its answer."""
    write(backend, child())
    pauses = []

    def pause(failures: int) -> None:
        pauses.append(failures)
        write(other, child())

    monkeypatch.setattr(writer, "_AT_ONCE", 0)
    monkeypatch.setattr(connection, "pause", pause)
    write(other, child())
    assert numbers(write(backend, child(), Put("/a", b""))[:1]) == [3]
    assert pauses == [1]

    def closed(_failures: int) -> None:
        raise bk.StoreClosedError("the store was closed")

    monkeypatch.setattr(connection, "pause", closed)
    write(other, child())
    found = kinds(write(backend, child(), Put("/b", b"")))
    assert found == [bk.StoreClosedError, bk.StoreClosedError if flat_only else Stat]
    assert (other.read([Get("/b")], soon()) == [None]) is flat_only


def test_numbers_never_come_again(backend: EtcdBackend, url: str) -> None:
    """Neither the removal of everything nor a new client sets a counter back."""
    write(backend, child(), child())
    assert backend.scans.delete_recursive("/", 5.0) == 2
    assert numbers(write(backend, child())) == [2]
    with opened(url) as new:
        assert new.read([GetChildren("/")], soon()) == [["q"]]
        assert new.scans.delete_recursive("/q", 5.0) == 1
        assert numbers(write(new, child())) == [3]
    assert numbers(write(backend, child())) == [4]


def test_what_is_there_is_never_overwritten(backend: EtcdBackend, other: EtcdBackend) -> None:
    """A path that somebody else has put is passed over, and neither parent nor child changes."""
    write(other, Put("/q", b"parent"), Put("/q/n-0000000001", b"child", ABSENT))
    answers = write(backend, child(), child(), child())
    assert kinds(answers) == [Stat] * 3
    assert 1 not in numbers(answers)
    assert len(set(numbers(answers))) == 3
    found = other.read([Get("/q"), Get("/q/n-0000000001")], soon())
    assert [result.value for result in found] == [b"parent", b"child"]


@pytest.mark.parametrize("first", ["lost", "executed"])
def test_a_lost_answer_makes_no_second_child(
    backend: EtcdBackend, monkeypatch: pytest.MonkeyPatch, first: str, connection: EtcdConnection
) -> None:
    """Whether the request or its answer was lost, each put has one child, and its own path."""
    write(backend, child())
    line = Line(connection, monkeypatch)
    line.script.append(first)
    answers = write(backend, child(), Put("/a", b""), child("/r/n-", ephemeral=True))
    line.deliver()
    assert [stat.path for stat in answers] == ["/q/n-0000000001", "/a", "/r/n-0000000000"]
    assert [stat.owned for stat in answers] == [False, False, True]
    children = backend.read([GetChildren("/q"), GetChildren("/r")], soon())
    assert children == [["n-0000000000", "n-0000000001"], ["n-0000000000"]]


def test_a_lost_request_gets_new_numbers_if_others_came_first(
    backend: EtcdBackend,
    other: EtcdBackend,
    monkeypatch: pytest.MonkeyPatch,
    connection: EtcdConnection,
) -> None:
    """The copy is refused for its counter, the late original for its write id."""
    write(backend, child())
    line = Line(connection, monkeypatch)
    line.script.extend(["lost", lambda: write(other, child()) and None])
    (stat,) = write(backend, child())
    line.deliver()
    assert stat.path == "/q/n-0000000002"
    (names,) = backend.read([GetChildren("/q")], soon())
    assert names == [f"n-{number:010}" for number in range(3)]


def test_a_broken_line_in_the_middle_of_batches(
    etcd_server: EtcdServer, url: str, proxy: Callable[[str], Any], flat_only: bool
) -> None:
    """A batch whose answer was swallowed is found again, with the suffixes that it chose."""
    line = proxy(etcd_server.address)
    through = url.replace(etcd_server.address, line.address)
    with opened(through, flat_only=flat_only) as backend:
        write(backend, child())
        answers = lose_the_answer(backend, line, [child() for _ in range(50)])
        assert numbers(answers) == [*range(1, 51)]
        (names,) = backend.read([GetChildren("/q")], soon())
        assert len(names) == 51


def test_ten_digits_are_the_limit(
    backend: EtcdBackend, url: str, connection: EtcdConnection
) -> None:
    """After the last suffix comes an error, for that parent alone."""
    write(backend, child())
    counter = f"{parse_url(url).prefix()}/.batchkeeper/sequences/q".encode()
    put = messages.PutRequest(key=counter, value=b"%012d" % (10**10 - 2))
    body = messages.TxnRequest(success=[messages.RequestOp(request_put=put)]).SerializeToString()
    connection.call("txn", body, soon(), write=False)
    assert numbers(write(backend, child())) == [10**10 - 2]
    assert numbers(write(backend, child())) == [10**10 - 1]
    for client in (backend, None):
        with opened(url) as new:
            answers = write(client or new, child(), Put("/a", b""), child("/r/n-"))
        assert kinds(answers) == [UnsupportedError, Stat, Stat]
        assert answers[0].path == "/q/n-"


def test_a_counter_that_another_program_has_written_harms_no_neighbour(
    backend: EtcdBackend, other: EtcdBackend, connection: EtcdConnection, url: str
) -> None:
    """Puts with that counter end with an error, whether the client knew it before or reads it."""
    write(backend, child("/g/n-"))
    key = f"{parse_url(url).prefix()}/.batchkeeper/sequences/g".encode()
    request = messages.TxnRequest()
    put = request.success.add().request_put
    put.key, put.value = key, b"zzz"
    connection.call("txn", request.SerializeToString(), soon(), write=False)
    for client in (backend, other):
        answers = write(client, Put(f"/x/{id(client)}", b""), child("/g/n-"), child())
        assert isinstance(answers[0], Stat)
        assert isinstance(answers[1], UnsupportedError)
        assert isinstance(answers[2], Stat)
