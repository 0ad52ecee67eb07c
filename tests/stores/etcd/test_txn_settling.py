"""Writes whose answers from a real etcd were lost: each gets the right outcome."""

from __future__ import annotations

import shutil
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
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
    IndeterminateError,
    MetadataStoreError,
    NotEmptyError,
    NotFoundError,
    OperationTimeoutError,
    Put,
    Stat,
    StoreUnavailableError,
    Transaction,
    TransactionRefusedError,
)
from batchkeeper.stores.etcd.backend import EtcdBackend
from batchkeeper.stores.etcd.wire.connection import EtcdConnection, FlatOnlyError
from batchkeeper.stores.etcd.wire.errors import EtcdRefusedError, Reason
from batchkeeper.stores.etcd.wire.members import Credentials
from batchkeeper.stores.etcd.wire.protos import messages
from batchkeeper.stores.etcd.writes.write_ids import WriteIds
from batchkeeper.testing.servers import EtcdServer

from ...waiting import PATIENCE, soon
from ..calls import lose_the_answer
from .line import Line
from .live import other_client
from .opening import opened, recorded


@pytest.fixture(params=["nested", "flat"])
def flat_only(request: pytest.FixtureRequest) -> bool:
    """Whether transactions are flat, as with a login on an old etcd."""
    return bool(request.param == "flat")


@pytest.fixture
def prefix() -> str:
    return f"/{uuid.uuid4().hex}"


def seed(backend: EtcdBackend) -> None:
    """Leave the slots in use, and values to conflict with."""
    backend.write([Put("/there", b"0"), Put("/full/leaf", b"0"), Put("/full", b"0")], soon())
    backend.write([Put("/there", b"1")], soon())


def test_what_was_applied_is_recovered(
    etcd_server: EtcdServer, proxy: Callable[[str], Any], prefix: str, flat_only: bool
) -> None:
    """Every operation of a batch that was applied gets the result that it had, once."""
    line = proxy(etcd_server.address)
    ops = [
        Put("/new", b"n", ABSENT),
        Put("/there", b"2", 1),
        Put("/plain", b"p"),
        Delete("/full/leaf"),
    ]
    with opened(f"etcd://{line.address}{prefix}", flat_only=flat_only) as backend:
        seed(backend)
        answers = lose_the_answer(backend, line, ops)

        revision = answers[0].revision
        assert answers == [
            Stat("/new", 0, revision),
            Stat("/there", 2, revision),
            Stat("/plain", 0, revision),
            None,
        ]
        found = backend.read([Get(op.path) for op in ops], soon())
        assert [result and result.stat for result in found] == [*answers[:3], None]


def test_puts_of_a_refused_group_are_recovered(
    etcd_server: EtcdServer, proxy: Callable[[str], Any], prefix: str
) -> None:
    """A put that shared the conditions of a refused one was not applied, and is sent again."""
    line = proxy(etcd_server.address)
    # Groups have 32 puts at most. The first is refused, because one of its paths exists.
    ops = [Put("/there", b"x", ABSENT), *(Put(f"/n/{n}", b"n", ABSENT) for n in range(63))]
    with opened(f"etcd://{line.address}{prefix}") as backend:
        seed(backend)
        answers = lose_the_answer(backend, line, ops)
        assert isinstance(answers[0], BadVersionError)
        assert [(stat.path, stat.version) for stat in answers[1:]] == [(o.path, 0) for o in ops[1:]]
        again, first = ({stat.revision for stat in some} for some in (answers[1:32], answers[32:]))
        assert len(first) == len(again) == 1
        assert max(first) < max(again)


def test_transactions_of_a_refused_group_are_recovered(
    etcd_server: EtcdServer, proxy: Callable[[str], Any], prefix: str
) -> None:
    """The same for transactions: 16 of two parts are a group."""
    line = proxy(etcd_server.address)
    paths = ["/there", *(f"/n/{n}" for n in range(31))]
    ops = [Transaction([Check("/full", 0), Put(path, b"x", ABSENT)]) for path in paths]
    with opened(f"etcd://{line.address}{prefix}") as backend:
        seed(backend)
        answers = lose_the_answer(backend, line, ops)
        assert isinstance(answers[0], TransactionRefusedError)
        assert [(check, stat.path, stat.version) for check, stat in answers[1:]] == [
            (None, path, 0) for path in paths[1:]
        ]
        again, first = ({s.revision for _, s in some} for some in (answers[1:16], answers[16:]))
        assert len(first) == len(again) == 1
        assert max(first) < max(again)


def test_in_one_batch_each_refusal_is_recovered_too(
    etcd_server: EtcdServer, proxy: Callable[[str], Any], prefix: str
) -> None:
    """In a nested batch, refused operations are separated from applied ones, with the reason."""
    line = proxy(etcd_server.address)
    ops = [
        Put("/new", b"n", ABSENT),
        Put("/there", b"x", ABSENT),
        Put("/full/leaf", b"x", 7),
        Put("/none", b"x", 0),
        Delete("/missing"),
        Delete("/full"),
        Delete("/other", 3),
    ]
    with opened(f"etcd://{line.address}{prefix}") as backend:
        seed(backend)
        backend.write([Put("/other", b"o")], soon())
        answers = lose_the_answer(backend, line, ops)

    assert [type(answer) for answer in answers] == [
        Stat,
        BadVersionError,
        BadVersionError,
        BadVersionError,
        NotFoundError,
        NotEmptyError,
        BadVersionError,
    ]
    assert [getattr(answer, "actual", "") for answer in answers[1:4]] == [1, 0, ABSENT]


def test_a_create_is_never_told_that_it_exists_because_of_itself(
    etcd_server: EtcdServer, proxy: Callable[[str], Any], prefix: str, flat_only: bool
) -> None:
    """Creates whose answers are lost, one after the other, succeed: no false conflict."""
    line = proxy(etcd_server.address)
    with opened(f"etcd://{line.address}{prefix}", flat_only=flat_only) as backend:
        for number in range(5):
            (stat,) = lose_the_answer(backend, line, [Put(f"/{number}", b"", ABSENT)])
            assert isinstance(stat, Stat)
            assert stat.version == 0


def test_a_write_that_a_kill_catches_is_settled(
    own_etcd: Callable[..., EtcdServer], prefix: str
) -> None:
    """Writes under way when the server dies end with their true results when it is back."""
    server = own_etcd()
    outcomes: list[tuple[str, Any]] = []
    stop = threading.Event()

    with opened(f"{server.url}{prefix}") as backend:

        def create(name: str) -> None:
            number = 0
            while not stop.is_set():
                number += 1
                paths = [f"/{name}/{number}/{part}" for part in range(50)]
                answers = backend.write([Put(path, b"v", ABSENT) for path in paths], soon())
                outcomes.extend(zip(paths, answers, strict=True))

        with ThreadPoolExecutor(3) as pool:
            writers = [pool.submit(create, f"w{number}") for number in range(3)]
            for _ in range(3):
                reached = len(outcomes) + 2_000
                while len(outcomes) < reached:
                    assert not any(writer.done() for writer in writers)
                server.kill()
                server.restart()
            stop.set()
            for writer in writers:
                writer.result(PATIENCE)
        kinds = {type(answer) for _, answer in outcomes}
        assert kinds == {Stat}


def test_what_is_shut_out_after_its_deadline_never_happens(
    own_etcd: Callable[..., EtcdServer], prefix: str
) -> None:
    """A write that a standing server has not answered by its deadline ends, for good, after it."""
    server = own_etcd()
    with opened(f"{server.url}{prefix}") as backend, ThreadPoolExecutor(1) as pool:
        backend.write([Put("/there", b"0")], soon())
        server.pause()
        try:
            writing = pool.submit(backend.write, [Put("/there", b"1", 0)], soon(1.0))
            with pytest.raises(TimeoutError):
                writing.result(1.5)
        finally:
            server.resume()
        error = writing.exception(PATIENCE)
        assert error is None or type(error) is OperationTimeoutError
        (found,) = backend.read([Get("/there")], soon())
        assert found.stat.version == (1 if error is None else 0)
        # The next write stays: nothing comes late and overtakes it.
        (last,) = backend.write([Put("/there", b"2")], soon())
        assert backend.read([Get("/there")], soon())[0].stat == last


def test_a_store_closed_before_a_write_is_settled_says_so(
    own_etcd: Callable[..., EtcdServer], prefix: str
) -> None:
    """Closing ends the wait for a server that does not come back, with an honest error."""
    server = own_etcd()
    with opened(f"{server.url}{prefix}") as backend, ThreadPoolExecutor(1) as pool:
        backend.write([Put("/there", b"0")], soon())
        server.pause()
        writing = pool.submit(backend.write, [Put("/there", b"1")], soon())
        server.kill()
        backend.close()
        with pytest.raises(MetadataStoreError) as caught:
            writing.result(PATIENCE)
        assert caught.value.outcome in {"unknown", "not_applied"}


def test_write_ids_are_hidden_and_leave_with_the_client(
    etcd_server: EtcdServer, prefix: str
) -> None:
    """No listing shows the write ids, and a client that is closed leaves none behind."""
    with opened(f"{etcd_server.url}{prefix}") as backend:
        backend.write([Put("/there", b"0")], soon())
        assert backend.read([GetChildren("/"), Exists("/there")], soon()) == [["there"], True]
    with closing(EtcdConnection([etcd_server.address], Credentials())) as raw:
        everything = messages.RangeRequest(
            key=prefix.encode(), range_end=prefix.encode() + b"0", keys_only=True
        )
        keys = [kv.key for kv in raw.call("range", everything, soon(), write=False).kvs]
    assert keys == [f"{prefix}/there".encode()]


def never_send() -> None:
    raise StoreUnavailableError("there is no connection")


def refuse() -> None:
    raise EtcdRefusedError(MetadataStoreError("refused"))


def flat_from_now_on() -> None:
    raise FlatOnlyError


def version(backend: EtcdBackend, path: str) -> int:
    (found,) = backend.read([Get(path)], soon())
    return found.stat.version if found else ABSENT


def test_a_refusal_is_not_told_while_an_earlier_attempt_is_under_way(
    own_etcd: Callable[..., EtcdServer],
    monkeypatch: pytest.MonkeyPatch,
    prefix: str,
    flat_only: bool,
) -> None:
    """If the second attempt conflicts, the late first attempt is not applied."""
    with recorded(f"{own_etcd().url}{prefix}", flat_only=flat_only) as (backend, connection):
        seed(backend)
        line = Line(connection, monkeypatch)
        line.script.append("lost")
        answers = backend.write([Put("/there", b"x", 2), Put("/new", b"x")], soon())
        assert type(answers[0]) is BadVersionError
        new = Stat("/new", 0, answers[1].revision)
        assert answers[1] == new
        backend.write([Put("/there", b"2")], soon())  # now it would hold
        line.deliver()
        assert version(backend, "/there") == 2
        assert version(backend, "/new") == 0


def test_a_refusal_is_not_told_if_the_earlier_attempt_comes_first_after_all(
    own_etcd: Callable[..., EtcdServer], monkeypatch: pytest.MonkeyPatch, prefix: str
) -> None:
    """The second attempt conflicts, then the first arrives, before it could be shut out."""
    url = f"{own_etcd().url}{prefix}"
    with recorded(url, flat_only=True) as (backend, connection):
        seed(backend)
        with opened(url) as other:
            line = Line(connection, monkeypatch)

            def arrive() -> None:
                other.write([Put("/there", b"2")], soon())
                line.deliver()

            line.script.extend(["lost", "pass", arrive])
            (stat,) = backend.write([Put("/there", b"x", 2)], soon())
            assert isinstance(stat, Stat)
            assert stat.version == 3 == version(backend, "/there")


def test_what_arrives_twice_is_applied_once(
    etcd_server: EtcdServer, monkeypatch: pytest.MonkeyPatch, prefix: str, flat_only: bool
) -> None:
    """gRPC may send a request again by itself. The answer is that of the first time."""
    with recorded(f"{etcd_server.url}{prefix}", flat_only=flat_only) as (backend, connection):
        seed(backend)
        Line(connection, monkeypatch).script.append("twice")
        (stat,) = backend.write([Put("/there", b"x")], soon())
        assert stat.version == 2 == version(backend, "/there")


def test_what_was_applied_is_known_although_etcd_is_full_now(
    etcd_server: EtcdServer, monkeypatch: pytest.MonkeyPatch, prefix: str
) -> None:
    """An etcd without space takes no second attempt, but the slot shows that of the first."""

    def full() -> None:
        raise EtcdRefusedError(MetadataStoreError("no space"), Reason.NO_SPACE)

    with recorded(f"{etcd_server.url}{prefix}") as (backend, connection):
        seed(backend)
        Line(connection, monkeypatch).script.extend(["executed", *[full] * 1000])
        (stat,) = backend.write([Put("/there", b"x")], soon(1.0))
        assert stat.version == 2


@pytest.mark.parametrize("excuse", [refuse, flat_from_now_on])
@pytest.mark.parametrize("first", ["lost", "executed"])
def test_an_attempt_that_is_refused_says_nothing_of_the_one_before(
    own_etcd: Callable[..., EtcdServer],
    monkeypatch: pytest.MonkeyPatch,
    prefix: str,
    excuse: Callable[[], None],
    first: str,
) -> None:
    """It is detected whether the first attempt was applied; if not, it never will be."""
    with recorded(f"{own_etcd().url}{prefix}") as (backend, connection):
        seed(backend)
        line = Line(connection, monkeypatch)
        line.script.extend([first, excuse])
        (stat,) = backend.write([Put("/there", b"x", 1)], soon())
        assert isinstance(stat, Stat)
        line.deliver()
        assert stat.version == 2 == version(backend, "/there")


def test_what_is_refused_after_it_was_lost_is_refused_for_good(
    own_etcd: Callable[..., EtcdServer], monkeypatch: pytest.MonkeyPatch, prefix: str
) -> None:
    """A definite error is returned only for writes that can no longer apply."""
    with recorded(f"{own_etcd().url}{prefix}") as (backend, connection):
        seed(backend)
        line = Line(connection, monkeypatch)
        line.script.extend(["lost", refuse, "pass", refuse])
        (error,) = backend.write([Put("/there", b"x", 1)], soon())
        assert type(error) is MetadataStoreError
        line.deliver()
        assert version(backend, "/there") == 1


def test_past_the_deadline_it_is_shut_out(
    own_etcd: Callable[..., EtcdServer], monkeypatch: pytest.MonkeyPatch, prefix: str
) -> None:
    """The error says that the write was not applied, and its late copy does not change that."""
    with recorded(f"{own_etcd().url}{prefix}") as (backend, connection):
        seed(backend)
        line = Line(connection, monkeypatch)
        deadline = soon(0.5)

        def wait() -> None:
            while time.monotonic() < deadline:
                pass
            raise IndeterminateError

        line.script.extend(["lost", wait, "lost", "executed"])
        with pytest.raises(OperationTimeoutError) as caught:
            backend.write([Put("/there", b"x", 1)], deadline)
        assert caught.value.outcome == "not_applied"
        line.deliver()
        assert version(backend, "/there") == 1


@pytest.mark.parametrize("first", ["lost", "executed"])
def test_a_write_id_that_is_gone_takes_the_outcome_with_it(
    own_etcd: Callable[..., EtcdServer],
    monkeypatch: pytest.MonkeyPatch,
    prefix: str,
    first: str,
    flat_only: bool,
) -> None:
    """After its lease has ended, a write is not applied again, and its outcome is unknown."""
    with recorded(f"{own_etcd().url}{prefix}", flat_only=flat_only) as (backend, connection):
        seed(backend)
        line = Line(connection, monkeypatch)
        line.script.extend([first, line.revoke])
        with pytest.raises(IndeterminateError):
            backend.write([Put("/there", b"x")], soon())
        applied = first == "executed"
        assert version(backend, "/there") == 1 + applied
        line.deliver()
        assert version(backend, "/there") == 1 + applied
        # The next ones get a lease of their own.
        for number in range(3):
            (stat,) = backend.write([Put("/there", b"y")], soon())
            assert stat.version == 2 + applied + number


@pytest.mark.parametrize("writes_since", [0, 5])
@pytest.mark.parametrize("seeded", [False, True], ids=["slot-gone", "slot-there"])
def test_what_follows_a_write_that_etcd_forgot_is_not_lost(
    own_etcd: Callable[..., EtcdServer],
    monkeypatch: pytest.MonkeyPatch,
    prefix: str,
    seeded: bool,
    writes_since: int,
) -> None:
    """If a server is set back to before an acknowledged write, the next write is sent again."""
    server = own_etcd()
    data, kept = server.directory / "data", server.directory / "kept"
    with recorded(f"{server.url}{prefix}") as (backend, connection):
        if seeded:
            backend.write([Delete("/none")], soon())
        else:
            Line(connection, monkeypatch).script.append(never_send)
            with pytest.raises(StoreUnavailableError):
                backend.write([Delete("/none")], soon())
        server.stop()
        shutil.copytree(data, kept)
        server.start()
        for number in range(3):
            backend.write([Put(f"/{number}", b"")], soon())
        line = Line(connection, monkeypatch)

        def set_back() -> None:
            server.kill()
            shutil.rmtree(data)
            kept.rename(data)
            server.start()
            with opened(f"{server.url}{prefix}") as other:  # passes the lost revisions
                for _ in range(writes_since):
                    other.write([Put("/other", b"")], soon())
            raise IndeterminateError("the server was killed")

        line.script.append(set_back)
        (stat,) = backend.write([Put("/there", b"x", ABSENT)], soon())
        assert isinstance(stat, Stat)
        assert stat.version == 0 == version(backend, "/there")
        assert version(backend, "/2") == ABSENT
        assert backend.tally.counts()["settled"] == 1
        line.script.append("lost")
        (stat,) = backend.write([Put("/there", b"y", 0)], soon())
        line.deliver()
        assert stat.version == 1 == version(backend, "/there")


def test_the_first_write_id_of_a_slot_may_be_gone_too(
    own_etcd: Callable[..., EtcdServer], monkeypatch: pytest.MonkeyPatch, prefix: str
) -> None:
    """A slot that looks unused does not cause a write to be applied twice."""
    with recorded(f"{own_etcd().url}{prefix}") as (backend, connection):
        line = Line(connection, monkeypatch)
        line.script.extend(["executed", line.revoke])
        with pytest.raises(IndeterminateError):
            backend.write([Put("/there", b"x")], soon())
        assert version(backend, "/there") == 0


def test_a_large_batch_is_read_back_within_the_limits(
    own_etcd: Callable[..., EtcdServer], monkeypatch: pytest.MonkeyPatch, prefix: str
) -> None:
    """More than --max-txn-ops results are recovered, each its own."""
    server = own_etcd("--max-txn-ops", "12")
    with recorded(f"{server.url}{prefix}") as (backend, connection):
        number = backend.limits.write_ops
        assert number > 12
        backend.write([Put(f"/{n}", b"") for n in range(0, number, 2)], soon())
        line = Line(connection, monkeypatch)
        line.script.append("executed")
        answers = backend.write([Delete(f"/{n}") for n in range(number)], soon())
        kinds = [type(answer) for answer in answers]
        assert kinds == [NotFoundError if n % 2 else type(None) for n in range(number)]


@pytest.mark.server
def test_writes_that_fill_etcd_up_end_with_what_is_true(tmp_path: Path, prefix: str) -> None:
    """A write that ends for lack of space was not applied; an applied one ends with its result."""
    directory = tmp_path / "etcd"
    with (
        EtcdServer(directory, flags=("--quota-backend-bytes", str(4 * 2**20))) as server,
        opened(f"{server.url}{prefix}") as backend,
    ):

        def fill(name: int) -> list[tuple[str, Any]]:
            outcomes = []
            for number in range(100):
                path = f"/{name}/{number}"
                (answer,) = backend.write([Put(path, bytes(20_000))], soon())
                outcomes.append((path, answer))
                if not isinstance(answer, Stat):
                    break
            return outcomes

        with ThreadPoolExecutor(8) as pool:
            outcomes = [outcome for some in pool.map(fill, range(8)) for outcome in some]
        assert {type(answer) for _, answer in outcomes} == {Stat, MetadataStoreError}
        for path, answer in outcomes:
            (found,) = backend.read([Exists(path)], soon())
            assert found == isinstance(answer, Stat)


def test_every_put_of_many_threads_happens_once_however_often_the_line_breaks(
    etcd_server: EtcdServer, proxy: Callable[[str], Any], prefix: str, flat_only: bool
) -> None:
    """Threads that write their own paths again and again get consecutive versions."""
    line = proxy(etcd_server.address)
    stop = threading.Event()
    with opened(f"etcd://{line.address}{prefix}", flat_only=flat_only) as backend:

        def write(name: int) -> list[int]:
            versions = []
            while not stop.is_set():
                (answer,) = backend.write([Put(f"/{name}", b"")], soon())
                versions.append(answer.version)
            return versions

        with ThreadPoolExecutor(64) as pool:
            writers = [pool.submit(write, name) for name in range(64)]
            for _ in range(8):
                line.swallowed.clear()
                line.swallows = True
                assert line.swallowed.wait(PATIENCE)
                line.restore()
            stop.set()
            for writer in writers:
                versions = writer.result(PATIENCE)
                assert versions == list(range(len(versions)))


@pytest.mark.parametrize("first", ["lost", "executed"])
def test_the_slot_of_an_unknown_write_is_left_alone(
    own_etcd: Callable[..., EtcdServer], monkeypatch: pytest.MonkeyPatch, prefix: str, first: str
) -> None:
    """The next write has a slot with known content, so it is sent only once."""
    with recorded(f"{own_etcd().url}{prefix}") as (backend, connection):
        seed(backend)
        line = Line(connection, monkeypatch)
        deadline = soon(0.5)

        def refuse_past_the_deadline() -> None:
            while time.monotonic() < deadline:
                pass
            refuse()

        line.script.extend([first, refuse_past_the_deadline])
        with pytest.raises(IndeterminateError):
            backend.write([Put("/there", b"x")], deadline)
        reached = version(backend, "/there")
        assert reached == (1 if first == "lost" else 2)

        line.script.extend(["pass", refuse])
        (stat,) = backend.write([Put("/there", b"y")], soon())
        assert stat.version == reached + 1
        assert list(line.script) == [refuse]


def test_a_lease_is_renewed_before_it_ends(
    own_etcd: Callable[..., EtcdServer], monkeypatch: pytest.MonkeyPatch, prefix: str
) -> None:
    """One thread replaces an older lease, which stays in use if etcd grants no other."""
    server = own_etcd()
    with (
        recorded(f"{server.url}{prefix}") as (backend, connection),
        other_client(server.address) as other,
        ThreadPoolExecutor(1) as pool,
    ):
        seed(backend)
        first = other.leases()
        call = connection.call
        asked, go_on = threading.Semaphore(0), threading.Event()

        def hold_up_and_refuse(method: Any, *args: Any, **more: Any) -> Any:
            if method == "grant":
                asked.release()
                assert go_on.wait(PATIENCE)
                refuse()
            return call(method, *args, **more)

        monkeypatch.setattr(connection, "call", hold_up_and_refuse)
        monkeypatch.setattr(WriteIds, "renew", 0)
        asking = pool.submit(backend.write, [Put("/there", b"2")], soon())
        assert asked.acquire(timeout=PATIENCE)
        backend.write([Put("/there", b"3")], soon())  # Another thread is about to have a lease.
        assert not asked.acquire(blocking=False)
        go_on.set()
        asking.result(PATIENCE)
        assert other.leases() == first

        monkeypatch.setattr(connection, "call", call)
        backend.write([Put("/there", b"4")], soon())
        assert len(other.leases()) == len(first) + 1
        assert version(backend, "/there") == 4


def test_who_waits_for_anothers_lease_keeps_to_its_own_deadline(
    own_etcd: Callable[..., EtcdServer], monkeypatch: pytest.MonkeyPatch, prefix: str
) -> None:
    """The write was not sent, and the error says so."""
    asked, go_on = threading.Event(), threading.Event()
    with (
        recorded(f"{own_etcd().url}{prefix}") as (backend, connection),
        ThreadPoolExecutor(1) as pool,
    ):
        call = connection.call

        def hold_up(method: Any, *args: Any, **more: Any) -> Any:
            if method == "grant":
                asked.set()
                assert go_on.wait(PATIENCE)
            return call(method, *args, **more)

        monkeypatch.setattr(connection, "call", hold_up)
        asking = pool.submit(backend.write, [Put("/other", b"")], soon())
        assert asked.wait(PATIENCE)
        with pytest.raises(OperationTimeoutError) as caught:
            backend.write([Put("/there", b"")], soon(0.05))
        go_on.set()
        asking.result(PATIENCE)
        assert caught.value.outcome == "not_applied"
        assert version(backend, "/there") == ABSENT
