"""One event is one error on every store: servers are killed, silent, or left.

Each test provokes the same on etcd and on ZooKeeper, and holds what every operation ends with
against the rule in ``ops.errors``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import pytest

import batchkeeper as bk
from batchkeeper.batching.engine import Engine
from batchkeeper.testing.servers import LocalServer

from ..waiting import PATIENCE, until

# Seconds that an operation has where it is to end at its deadline.
SHORT: Final = 0.4

Operation = Callable[[bk.MetadataStore, float], Any]

# Each on a path of its own, so that none waits for another.
READS: Final[Mapping[str, Operation]] = {
    "get": lambda store, timeout: store.get("/get", timeout=timeout).result(),
    "exists": lambda store, timeout: store.exists("/exists", timeout=timeout).result(),
    "get_children": lambda store, timeout: store.get_children("/", timeout=timeout).result(),
    "scan": lambda store, timeout: list(store.scan("/", timeout=timeout)),
    "scan without values": lambda store, timeout: list(
        store.scan_pages("/", values=False, timeout=timeout)
    ),
    "revision": lambda store, timeout: store.revision(timeout=timeout),
}
WRITES: Final[Mapping[str, Operation]] = {
    "put": lambda store, timeout: store.put("/put", b"1", timeout=timeout).result(),
    # Not at version 0, for which ZooKeeper's client looks first: that put is never sent then.
    "put if at version 1": lambda store, timeout: store.put(
        "/put-if", b"1", 1, timeout=timeout
    ).result(),
    "put if absent": lambda store, timeout: store.put(
        "/absent", b"1", bk.ABSENT, timeout=timeout
    ).result(),
    "delete": lambda store, timeout: store.delete("/delete", timeout=timeout).result(),
}
ALL: Final = {**READS, **WRITES}
THERE: Final = ("/get", "/exists", "/put", "/put-if", "/delete")

# Class, outcome and retriable: what callers decide by.
LATE: Final = (bk.OperationTimeoutError, "not_applied", True)
AWAY: Final = (bk.StoreUnavailableError, "not_applied", True)
UNKNOWN: Final = (bk.IndeterminateError, "unknown", False)
CLOSED: Final = (bk.StoreClosedError, "not_applied", False)


@pytest.fixture(params=["etcd", "zookeeper"])
def server(request: pytest.FixtureRequest) -> LocalServer:
    """A server of each kind, of this test alone."""
    started: LocalServer = request.getfixturevalue(f"own_{request.param}")()
    return started


@pytest.fixture
def store(server: LocalServer) -> Any:
    """A store on the server that has written before, so that it is prepared for writes."""
    with bk.open_store(server.url) as opened:
        for path in THERE * 2:
            opened.put(path, b"0").result(PATIENCE)
        yield opened
        server.kill()
        opened.close(0)


def ending(operation: Operation, store: bk.MetadataStore, timeout: float = SHORT) -> Any:
    """Return the properties of an operation's error by which callers decide."""
    try:
        result = operation(store, timeout)
    except bk.MetadataStoreError as error:
        return type(error), error.outcome, error.retriable
    return result


def endings(store: bk.MetadataStore, operations: Mapping[str, Operation]) -> dict[str, Any]:
    return {name: ending(operation, store) for name, operation in operations.items()}


def all_of(operations: Mapping[str, Operation], expected: Any) -> dict[str, Any]:
    return dict.fromkeys(operations, expected)


def submitted(store: bk.MetadataStore, timeout: float) -> tuple[list[Any], list[Any]]:
    """Return running reads and writes, as futures."""
    reads = [
        store.get("/get", timeout=timeout),
        store.exists("/exists", timeout=timeout),
        store.get_children("/", timeout=timeout),
    ]
    writes = [store.put("/put", b"1", timeout=timeout)]
    return reads, writes


def on_the_line(futures: list[Any]) -> None:
    """Wait until operations are at the back end, and then until it has sent them."""
    until(lambda: all(future.running() for future in futures))
    with pytest.raises(TimeoutError):
        futures[-1].result(1.0)


def how(future: Any) -> Any:
    error = future.exception(PATIENCE)
    return type(error), error.outcome, error.retriable


def no_haste(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the back ends report the end of a call, even on a slow machine."""
    monkeypatch.setattr(Engine, "grace", PATIENCE)


def notices(store: bk.MetadataStore) -> None:
    """Let the client notice the kill of its server, so that later operations are not sent."""
    until(lambda: ending(READS["get"], store) == AWAY, "the client does not notice")


def syncs(server: LocalServer, otherwise: Any) -> Any:
    """Return the end of a sync: on etcd it needs no server, and so it never fails."""
    return None if server.name == "etcd" else otherwise


def test_a_killed_server_is_away(
    server: LocalServer, store: bk.MetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a server a read, and a write that is never sent, end as unavailable each time."""
    no_haste(monkeypatch)
    server.kill()
    notices(store)
    for _ in range(2):
        assert endings(store, ALL) == all_of(ALL, AWAY)
    assert ending(lambda store, timeout: store.sync(timeout), store) == syncs(server, AWAY)


def test_what_is_retriable_succeeds_when_the_server_is_back(
    server: LocalServer, store: bk.MetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same operations, submitted again, are executed, and the first ones never were."""
    no_haste(monkeypatch)
    server.stop()  # To the end: a kill may take what an old etcd has acknowledged.
    notices(store)
    for _, _, retriable in endings(store, WRITES).values():
        assert retriable
    server.start()
    versions = {
        name: getattr(operation(store, PATIENCE), "version", None)
        for name, operation in WRITES.items()
    }
    assert versions == {"put": 2, "put if at version 1": 2, "put if absent": 0, "delete": None}


def test_what_was_never_sent_ends_at_its_own_deadline_and_is_not_unknown(
    server: LocalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch cannot be sent: one operation ends as unavailable, and its neighbour goes on."""
    # Were the engine to end the first one, it could not say whether that was sent.
    monkeypatch.setattr(Engine, "grace", 5.0)
    with bk.open_store(server.url, batching=bk.BatchingConfig(max_in_flight=1)) as store:
        store.put("/get", b"0").result(PATIENCE)
        server.stop()
        notices(store)
        with_the_sender = store.put("/0", b"", timeout=SHORT)
        batch = [store.put(f"/{2 * SHORT}", b"", timeout=2 * SHORT), store.put("/later", b"")]
        assert [how(future) for future in (with_the_sender, batch[0])] == [AWAY, AWAY]
        assert not batch[1].done()
        server.start()
        assert batch[1].result(PATIENCE).version == 0
        assert not store.exists("/0").result(PATIENCE)
        assert not store.exists(f"/{2 * SHORT}").result(PATIENCE)


def test_what_waits_in_a_queue_while_the_server_is_away_is_away_too(server: LocalServer) -> None:
    """It was not sent for the same reason as what a sender has."""
    with bk.open_store(server.url, batching=bk.BatchingConfig(max_in_flight=1)) as store:
        store.put("/get", b"0").result(PATIENCE)
        server.kill()
        notices(store)
        store.put("/0", b"")
        queued = store.put("/1", b"", timeout=SHORT)
        assert how(queued) == AWAY
        store.close(0)


def test_a_silent_server_is_late(server: LocalServer, store: bk.MetadataStore) -> None:
    """With a connection to it, a read times out, each time, and what a write did is unknown."""
    server.pause()
    for _ in range(2):
        assert endings(store, READS) == all_of(READS, LATE)
    assert ending(lambda store, timeout: store.sync(timeout), store) == syncs(server, LATE)
    assert ending(WRITES["put"], store) == UNKNOWN
    # The next one of the path waits for its turn, and is never sent.
    assert ending(WRITES["put"], store) == LATE


def test_a_write_to_a_silent_server_is_unknown_once_it_was_sent(
    server: LocalServer, store: bk.MetadataStore
) -> None:
    """Each kind of write, sent alone, so that no other request precedes it."""
    found = {}
    for name, operation in WRITES.items():
        server.pause()
        found[name] = ending(operation, store)
        server.resume()
        store.put("/between", b"").result(PATIENCE)  # The one before is settled by now.
        store.flush()
    assert found == all_of(WRITES, UNKNOWN)


def test_a_kill_under_a_read_and_a_write(server: LocalServer, store: bk.MetadataStore) -> None:
    """Operations sent before the kill: reads are unavailable, writes are unknown."""
    server.pause()
    reads, writes = submitted(store, 3.0)
    on_the_line(reads + writes)
    server.kill()
    assert [how(read) for read in reads] == [AWAY] * len(reads)
    assert [how(write) for write in writes] == [UNKNOWN]


def test_a_silent_server_that_is_given_up_is_away(
    own_zookeeper: Callable[..., LocalServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """ZooKeeper's client gives the connection up after two thirds of the session's timeout."""
    no_haste(monkeypatch)
    server = own_zookeeper()
    with bk.open_store(server.url, session_timeout=1.5) as store:
        store.put("/get", b"").result(PATIENCE)
        server.pause()
        assert ending(READS["get"], store, 0.1) == LATE
        assert ending(READS["get"], store, 4.0) == AWAY
        server.resume()


def test_a_closed_store_says_so(server: LocalServer) -> None:
    """After close, calls are refused; operations under way end as closed, writes as unknown."""
    store = bk.open_store(server.url)
    for path in THERE:
        store.put(path, b"0").result(PATIENCE)
    server.pause()
    reads, writes = submitted(store, PATIENCE)
    on_the_line(reads + writes)
    store.close(0)
    server.resume()
    assert [how(read) for read in reads] == [CLOSED] * len(reads)
    assert [how(write) for write in writes] == [UNKNOWN]
    assert endings(store, ALL) == all_of(ALL, CLOSED)
    assert ending(lambda store, timeout: store.sync(timeout), store) == CLOSED


def test_a_store_that_is_closed_while_its_server_is_away(
    server: LocalServer, store: bk.MetadataStore
) -> None:
    """Operations that waited for the server end as closed, also writes: they were never sent."""
    server.kill()
    notices(store)
    reads, writes = submitted(store, PATIENCE)
    store.close(0)
    assert [how(future) for future in (*reads, *writes)] == [CLOSED] * (len(reads) + 1)


@pytest.mark.parametrize("event", ["kill", "pause"])
def test_a_store_that_cannot_be_opened_is_away(server: LocalServer, event: str) -> None:
    """A port without a server, or a silent server: the store is unavailable, with its address."""
    getattr(server, event)()
    with pytest.raises(bk.StoreUnavailableError, match=server.address) as caught:
        bk.open_store(server.url, connect_timeout=1.0)
    error = caught.value
    assert (type(error), error.outcome, error.retriable) == AWAY
