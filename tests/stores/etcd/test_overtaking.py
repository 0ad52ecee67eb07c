"""Requests whose answers are overdue: another member is asked, and nothing happens twice.

Two proxies before one etcd stand for two members of a cluster.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchkeeper.ops import (
    ABSENT,
    BadVersionError,
    Delete,
    Get,
    OperationTimeoutError,
    Put,
    Stat,
)
from batchkeeper.stores.etcd.backend import EtcdBackend
from batchkeeper.stores.etcd.wire.connection import EtcdConnection
from batchkeeper.stores.etcd.wire.errors import Reason, UnansweredError
from batchkeeper.stores.etcd.wire.members import Credentials
from batchkeeper.stores.etcd.wire.patience import Patience
from batchkeeper.stores.etcd.wire.protos import messages
from batchkeeper.testing.servers import EtcdServer

from ...proxy import Proxy
from ...waiting import soon
from ..calls import kinds, read, write
from .opening import opened

# Seconds. gRPC itself notices after 10 to 15 s that a member is silent, which is too late here.
BEFORE_GRPC: Final = 8.0


@pytest.fixture
def lines(etcd_server: EtcdServer, proxy: Callable[[str], Proxy]) -> tuple[Proxy, Proxy]:
    """The ways to the two members. Clients use the first one first."""
    return proxy(etcd_server.address), proxy(etcd_server.address)


@pytest.fixture(params=["nested", "flat"])
def backend(request: pytest.FixtureRequest, lines: tuple[Proxy, Proxy]) -> Iterator[EtcdBackend]:
    """A back end on both members, with its write ids in use."""
    addresses = ",".join(line.address for line in lines)
    url = f"etcd://{addresses}/{uuid.uuid4().hex}"
    with opened(url, flat_only=request.param == "flat") as made:
        write(made, Put("/there", b"0"), Put("/gone", b"0"))
        yield made


def test_a_write_that_was_applied_is_confirmed_by_another_member(
    backend: EtcdBackend, lines: tuple[Proxy, Proxy]
) -> None:
    """Its answer never comes, and the connection stays: a copy elsewhere brings its results."""
    lines[0].swallows = True
    operations = [Put("/new", b"1", ABSENT), Put("/there", b"1", 0), Delete("/gone")]
    answers = backend.write(operations, soon(BEFORE_GRPC))
    assert lines[0].swallowed.is_set()
    revision = answers[0].revision  # type: ignore[union-attr]
    assert answers == [Stat("/new", 0, revision), Stat("/there", 1, revision), None]
    assert backend.tally.counts()["settled"] == 1


def test_a_write_that_never_arrived_is_applied_by_another_member(
    backend: EtcdBackend, lines: tuple[Proxy, Proxy]
) -> None:
    """It is applied once, by the copy."""
    lines[0].drops = True
    (put,) = backend.write([Put("/there", b"1")], soon(BEFORE_GRPC))
    assert isinstance(put, Stat)
    assert put.version == 1


def test_a_refusal_is_as_certain_as_ever(backend: EtcdBackend, lines: tuple[Proxy, Proxy]) -> None:
    """A condition that did not hold does not hold for the copy: the write is refused, once."""
    lines[0].swallows = True
    answers = backend.write([Put("/there", b"1", 7)], soon(BEFORE_GRPC))
    assert kinds(answers) == [BadVersionError]
    assert kinds(read(backend, Get("/there"))) != [type(None)]


def test_a_read_is_repeated_at_another_member(
    backend: EtcdBackend, lines: tuple[Proxy, Proxy]
) -> None:
    """A silent member costs a read a part of its time, and not all of it."""
    lines[0].swallows = True
    (found,) = backend.read([Get("/there")], soon(BEFORE_GRPC))
    assert found is not None
    assert lines[0].swallowed.is_set()


def test_the_member_is_blamed_and_not_the_deadline(lines: tuple[Proxy, Proxy]) -> None:
    """A write with little time left proves nothing against a member; an overdue one does."""
    addresses = [line.address for line in lines]
    with closing(EtcdConnection(addresses, Credentials())) as connection:
        connection.open(soon())
        lines[0].swallows = True
        for seconds, attempt, reason, in_use in (
            (0.2, 0, Reason.OVERDUE, True),
            (0.3, None, Reason.OVERDUE, True),
            (60.0, 0, Reason.OVERTAKEN, False),
        ):
            with pytest.raises(UnansweredError) as caught:
                connection.call("txn", b"", soon(seconds), write=True, attempt=attempt)
            assert (caught.value.reason, connection.in_use) == (reason, in_use)
            # Whoever keeps the error keeps neither the connection nor the request.
            assert caught.value.__cause__ is not None
            assert caught.value.__cause__.__traceback__ is None
        assert connection.open(soon()).address == lines[1].address


def test_many_reads_with_little_time_blame_the_member(lines: tuple[Proxy, Proxy]) -> None:
    """One proves nothing, but after two seconds of them the next ones ask another member."""
    addresses = [line.address for line in lines]
    request = messages.RangeRequest(key=b"/x")
    with closing(EtcdConnection(addresses, Credentials())) as connection:
        connection.open(soon())
        lines[0].swallows = True
        for _ in range(12):  # They take three seconds, or more on a slow machine.
            with pytest.raises(OperationTimeoutError):
                connection.call("range", request, soon(0.25), write=False, attempt=0)
            if not connection.in_use:
                break
        assert connection.open(soon()).address == lines[1].address


def test_a_single_member_is_never_hurried(
    etcd_server: EtcdServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It knows what was sent to it, and a copy would only be more work for it."""
    monkeypatch.setattr(Patience, "limit", lambda *_: 0.0)
    with opened(f"{etcd_server.url}/{uuid.uuid4().hex}") as backend:
        assert kinds(write(backend, Put("/x", b""))) == [Stat]
        assert kinds(read(backend, Get("/x"))) != [type(None)]
        assert backend.tally.counts()["retry"] == 0


# Patience itself


def test_nothing_is_overdue_at_once() -> None:
    """Quick answers never make the limit shorter than half a second."""
    patience = Patience()
    for _ in range(100):
        patience.took(0.001)
    assert patience.limit(0) == 0.5


def test_a_slow_cluster_is_given_more_time_at_once() -> None:
    """After one slow answer, an equally slow one is no longer overdue."""
    patience = Patience()
    for _ in range(100):
        patience.took(0.010)
    patience.took(2.0)
    assert patience.limit(0) > 2.0


@given(st.floats(0.0, 100.0))
def test_steady_answers_are_never_overdue(seconds: float) -> None:
    """Whatever time answers usually take, the limit lies above it, and not far."""
    patience = Patience()
    for _ in range(100):
        patience.took(seconds)
    assert seconds <= patience.limit(0) * (1 + 1e-3)
    assert patience.limit(0) <= max(0.5, 1.1 * seconds)


@given(st.integers(0, 10_000))
def test_later_attempts_have_more_time(attempt: int) -> None:
    """The steady ones have the same limit; then it doubles, up to the most."""
    patience = Patience(steady=5, most=5.0)
    limits = [patience.limit(number) for number in range(8)]
    assert limits == [0.5, 0.5, 0.5, 0.5, 0.5, 1.0, 2.0, 4.0]
    assert patience.limit(attempt) <= 5.0
    assert Patience().limit(attempt) <= Patience().limit(attempt + 1)
