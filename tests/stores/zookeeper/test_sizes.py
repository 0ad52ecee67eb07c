"""A ZooKeeper with a lower limit of requests than assumed: it is detected, and nothing is lost."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from types import NoneType
from typing import Any

import pytest

from batchkeeper.ops import (
    ABSENT,
    BadVersionError,
    Get,
    GetResult,
    MetadataStoreError,
    Operation,
    Put,
    Stat,
    ValueTooLargeError,
)
from batchkeeper.stores.zookeeper.backend import ZooKeeperBackend
from batchkeeper.stores.zookeeper.reads import reader
from batchkeeper.stores.zookeeper.session.sizes import ENVELOPE, Sizes
from batchkeeper.stores.zookeeper.wire.errors import CONNECTION_LOSS
from batchkeeper.testing.servers import ZooKeeperServer

from ...idle import no_data_left
from ...waiting import soon
from ..calls import kinds
from .altering import Altering
from .opening import Requests, connected, recorded

_LIMIT = 50_000


@pytest.fixture(scope="module")
def small_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    """A server with a limit that is not a power of two."""
    flags = [f"-Djute.maxbuffer={_LIMIT}"]
    server = ZooKeeperServer(tmp_path_factory.mktemp("zookeeper"), jvm_flags=flags)
    with no_data_left(server):
        yield server


@pytest.fixture
def opened(small_server: ZooKeeperServer) -> Iterator[Callable[[str], ZooKeeperBackend]]:
    with ExitStack() as stack:

        def open_backend(chroot: str) -> ZooKeeperBackend:
            return stack.enter_context(closing(connected(small_server.url + chroot)))

        yield open_backend


def test_a_call_that_is_too_large_goes_in_parts(opened: Callable[[str], ZooKeeperBackend]) -> None:
    """Every operation gets its own outcome, and the detected limit is remembered."""
    backend = opened("/parts")
    before = backend.limits
    backend.write([Put("/there", b"0")], soon())
    ops: list[Operation] = [Put(f"/p/{i}", b"x" * 100, ABSENT) for i in range(1000)]
    ops[500] = Put("/there", b"1", ABSENT)

    answers = backend.write(ops, soon())

    assert kinds(answers) == [Stat] * 500 + [BadVersionError] + [Stat] * 499
    assert backend.limits == opened(f"/parts?jute_maxbuffer={_LIMIT}").limits != before
    assert backend.limits is backend.limits
    counts = backend.tally.counts()
    assert counts["split"] == 1
    found = backend.read([Get(f"/p/{i}") for i in range(1000) if i != 500], soon())
    assert {result.value for result in found} == {b"x" * 100}

    # From now on nothing is dropped any more.
    again = backend.write([Put(f"/p/{i}", b"y" * 100) for i in range(1000)], soon())
    assert set(kinds(again)) == {Stat}
    assert backend.tally.counts()["reconnect"] == counts["reconnect"]


def test_an_operation_that_is_too_large_is_refused_alone(
    opened: Callable[[str], ZooKeeperBackend],
) -> None:
    """The error names the limit; what fits is written, and the session stays the same."""
    backend = opened("/alone")
    session = backend.session.id

    answers = backend.write(
        [Put("/before", b"1"), Put("/huge", b"x" * 60_000), Put("/fits", b"x" * 45_000)], soon()
    )

    assert kinds(answers) == [Stat, ValueTooLargeError, Stat]
    assert "jute.maxbuffer" in str(answers[1])
    assert str(_LIMIT) in str(answers[1])
    assert backend.session.id == session
    assert len(backend.read([Get("/fits")], soon())[0].value) == 45_000


def test_large_and_small_from_many_threads(opened: Callable[[str], ZooKeeperBackend]) -> None:
    """While long requests break the connection, no other request is blamed."""
    backend = opened("/many")

    def put(i: int) -> Any:
        size = 60_000 if i % 4 == 0 else 40_000 if i % 4 == 1 else 100
        try:
            return backend.write([Put(f"/{i}", b"x" * size)], soon())[0]
        except MetadataStoreError as error:
            return error

    with ThreadPoolExecutor(32) as threads:
        answers = list(threads.map(put, range(64)))

    assert kinds(answers) == [ValueTooLargeError, Stat, Stat, Stat] * 16


def test_reads_with_long_paths_go_in_parts(opened: Callable[[str], ZooKeeperBackend]) -> None:
    """The limit is detected for multi-reads as for multis; their answers may be longer."""
    backend = opened("/long")
    paths = ["/" + f"{i:03}" * 300 for i in range(100)]
    for start in range(0, 100, 20):
        backend.write([Put(path, b"x" * 5000) for path in paths[start : start + 4]], soon())

    found = backend.read([Get(path) for path in paths], soon())

    assert [i for i, result in enumerate(found) if result] == [
        start + k for start in range(0, 100, 20) for k in range(4)
    ]
    assert backend.limits == opened(f"/long?jute_maxbuffer={_LIMIT}").limits


def test_reads_that_take_many_rounds(
    opened: Callable[[str], ZooKeeperBackend], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many there are, because the values are large."""
    monkeypatch.setattr(reader, "_WAVE_BYTES", 1)
    backend = opened("/rounds")
    backend.write([Put("/a", b"x")], soon())
    found = backend.read([Get("/a"), Get("/b")] * 40, soon())
    assert kinds(found) == [GetResult, NoneType] * 40


def test_a_tiny_limit(own_zookeeper: Callable[..., ZooKeeperServer]) -> None:
    """Even where a request holds a dozen operations, a large call ends with its outcomes."""
    server = own_zookeeper("-Djute.maxbuffer=2048")
    with closing(connected(server.url)) as backend:
        ops = [Put(f"/p/{i}", b"x" * 100, ABSENT) for i in range(1000)]
        answers = backend.write([*ops, Put("/p/huge", b"x" * 2048)], soon())
        found = backend.read([Get(op.path) for op in ops], soon())

    assert kinds(answers) == [Stat] * 1000 + [ValueTooLargeError]
    assert [result.stat for result in found] == answers[:1000]


def test_what_was_dropped_by_chance_is_not_taken_for_a_limit(
    small_server: ZooKeeperServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A detected limit holds only if a request beyond it is dropped once more."""
    backend, connection = recorded(small_server.url)
    with closing(backend):
        sizes = Sizes(connection, before := 1_048_575)
        exchange = connection.exchange
        probed: list[int] = []

        def unlucky(requests: Requests, *args: Any, **options: Any) -> Any:
            ((_, body),) = requests
            probed.append(len(body) + ENVELOPE)
            assert sizes.most <= before
            if probed[-1] == 40_000 and probed.count(40_000) == 1:
                return [CONNECTION_LOSS]
            return exchange(requests, *args, **options)

        monkeypatch.setattr(connection, "exchange", unlucky)

        assert not sizes.drops(40_000, soon())
        assert probed.count(40_000) == 2
        assert (sizes.usual, sizes.most) == (before, before)


def test_an_outage_is_not_taken_for_a_limit(
    own_zookeeper: Callable[..., ZooKeeperServer],
) -> None:
    """If a server dies repeatedly during a request, the request does not count as too large."""
    server = own_zookeeper()
    deaths: list[int] = []
    dying = threading.Lock()  # Connections have threads of their own.

    def die_of_it(_: int, packet: bytes) -> bytes | None:
        if len(packet) < 100_000:
            return packet
        with dying:
            if len(deaths) == 3:
                return packet
            deaths.append(1)
            server.kill()
            server.start()
        return None

    with (
        closing(Altering(server.address)) as line,
        closing(connected(f"zookeeper://{line.address}")) as backend,
    ):
        backend.write([Put("/seed", b"1")], soon())
        before = backend.limits
        line.alter_request = die_of_it
        (stat,) = backend.write([Put("/a", b"x" * 200_000, ABSENT)], soon())

        assert stat.version == 0
        assert len(deaths) == 3
        assert backend.limits is before
        assert backend.tally.counts()["split"] == 0
