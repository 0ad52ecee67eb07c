"""Faults that a user arms to test a program: what each does, whom it hits, and what is recorded."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import batchkeeper as bk
from batchkeeper.stores import ConnectOptions, connect
from batchkeeper.testing import FaultInjector, Hit

from ..waiting import PATIENCE, error, result, soon, until

SINGLY = bk.BatchingConfig(enabled=False)


@pytest.fixture
def faults() -> FaultInjector:
    return FaultInjector()


@pytest.fixture
def url() -> str:
    return f"memory://{uuid.uuid4().hex}"


@pytest.fixture
def store(url: str, faults: FaultInjector) -> Iterator[bk.MetadataStore]:
    """A store in memory with an injector around it."""
    with bk.open_store(url, wrap=faults) as opened:
        yield opened


@pytest.fixture
def other(url: str, store: bk.MetadataStore) -> Iterator[bk.MetadataStore]:
    """A second client of the same store, without faults."""
    with bk.open_store(url) as opened:
        yield opened


# --- whom a fault hits


def test_a_fault_hits_the_next_operation_that_it_is_meant_for(
    store: bk.MetadataStore, faults: FaultInjector
) -> None:
    """Kind and path must both hold; it hits once, and is recorded with the number of its call."""
    injection = faults.fail("put", "/a")
    result(store.put("/b", b""))
    result(store.exists("/a"))
    assert faults.armed == (injection,)
    assert isinstance(error(store.put("/a", b"1")), bk.StoreUnavailableError)
    assert not injection.armed
    result(store.put("/a", b"2"))
    assert faults.hits == (Hit("fail", "put", "/a", 2),)
    assert injection.hits == [*faults.hits]


def test_a_predicate_sees_the_operation(store: bk.MetadataStore, faults: FaultInjector) -> None:
    """It can decide by value, expected version and options, as well as by kind and path."""
    faults.fail(where=lambda op: op.value == b"bad" and op.expected_version == bk.ABSENT)
    result(store.put("/a", b"bad"))
    result(store.put("/b", b"good", bk.ABSENT))
    assert isinstance(error(store.put("/c", b"bad", bk.ABSENT)), bk.StoreUnavailableError)


def test_skip_and_times(store: bk.MetadataStore, faults: FaultInjector) -> None:
    """The first of them pass, the next ones are hit, and then it is over; None is for ever."""
    faults.fail("get", skip=2, times=2)
    ended = [store.get("/a").exception(PATIENCE) is None for _ in range(6)]
    assert ended == [True, True, False, False, True, True]
    always = faults.fail("get", times=None)
    assert all(store.get("/a").exception(PATIENCE) for _ in range(5))
    always.remove()
    assert result(store.get("/a")) is None
    assert len(always.hits) == 5


def test_a_transaction_is_hit_by_any_of_its_paths(
    store: bk.MetadataStore, faults: FaultInjector
) -> None:
    """It is one operation of the kind "transaction", with the paths of all its parts."""
    faults.fail("transaction", "/b")
    refused = error(store.transaction([bk.Put("/a", b""), bk.Put("/b", b"")]))
    assert isinstance(refused, bk.StoreUnavailableError)
    assert result(store.exists("/a")) is False


@pytest.mark.parametrize(
    ("kind", "call"),
    [
        ("scan", lambda store: list(store.scan("/a"))),
        ("scan_stats", lambda store: list(store.scan_pages("/a", values=False))),
        ("split", lambda store: store.split("/a", 2)),
        ("delete_recursive", lambda store: store.delete_recursive("/a").result()),
        ("revision", lambda store: store.revision()),
        ("sync", lambda store: store.sync()),
    ],
)
def test_calls_beside_operations_fail_too(
    store: bk.MetadataStore, faults: FaultInjector, kind: str, call: Callable[[Any], object]
) -> None:
    """Scans, splits and the like are hit by the names of their methods."""
    injection = faults.fail(kind)
    with pytest.raises(bk.StoreUnavailableError, match="injected"):
        call(store)
    assert [hit.kind for hit in injection.wait()] == [kind]


# --- what a fault does


def test_a_refused_operation_leaves_its_neighbours_alone(url: str, faults: FaultInjector) -> None:
    """Of a batch, only the operation that is hit ends with the error, and is not applied."""
    batching = bk.BatchingConfig(linger="fixed", max_delay=PATIENCE, max_ops=10)
    with bk.open_store(url, batching, wrap=faults) as store:
        faults.refuse(bk.AuthenticationError("not yours"), "put", "/4")
        futures = [store.put(f"/{n}", b"") for n in range(10)]
        ended = [future.exception(PATIENCE) for future in futures]
        assert [n for n, found in enumerate(ended) if found is not None] == [4]
        assert isinstance(ended[4], bk.AuthenticationError)
        assert ended[4].path == "/4"
        with bk.open_store(url) as other:
            assert result(other.get_children("/")) == [str(n) for n in range(10) if n != 4]
        assert len([call for call in faults.calls if call.method == "write"]) == 1


def test_a_failed_request_fails_all_its_operations(url: str, faults: FaultInjector) -> None:
    """As with a server that is gone: nothing of the batch is applied."""
    batching = bk.BatchingConfig(linger="fixed", max_delay=PATIENCE, max_ops=10)
    with bk.open_store(url, batching, wrap=faults) as store:
        faults.fail("put", "/4", error=bk.QueueFullError("too busy"))
        futures = [store.put(f"/{n}", b"") for n in range(10)]
        assert all(isinstance(f.exception(PATIENCE), bk.QueueFullError) for f in futures)
        assert [f.exception().path for f in futures] == [f"/{n}" for n in range(10)]  # type: ignore[union-attr]


@pytest.mark.parametrize("applied", [True, False])
def test_a_lost_answer_leaves_a_write_unknown(
    store: bk.MetadataStore, other: bk.MetadataStore, faults: FaultInjector, applied: bool
) -> None:
    """It ends with IndeterminateError, applied or not, as the test chooses."""
    faults.lose_answer("put", applied=applied)
    assert isinstance(error(store.put("/a", b"")), bk.IndeterminateError)
    assert result(other.exists("/a")) is applied
    faults.lose_answer("get")
    assert isinstance(error(store.get("/a")), bk.StoreUnavailableError)


@pytest.mark.parametrize("applied", [True, False])
def test_a_delayed_request_waits_for_its_release(
    store: bk.MetadataStore, other: bk.MetadataStore, faults: FaultInjector, applied: bool
) -> None:
    """Before it is applied, or with only its answer held back; nothing needs a sleep."""
    held = faults.delay("put", "/a", applied=applied)
    future = store.put("/a", b"")
    held.wait()
    if applied:
        until(lambda: result(other.exists("/a")))
    else:
        assert result(other.exists("/a")) is False
    assert not future.done()
    held.release()
    assert result(future).version == 0


def test_a_delay_can_end_by_itself(store: bk.MetadataStore, faults: FaultInjector) -> None:
    """With a number of seconds, a held request goes on after that time."""
    faults.delay("put", seconds=0.01)
    assert result(store.put("/a", b"")).version == 0


@pytest.mark.parametrize(
    ("applied", "ends"), [(False, bk.StoreClosedError), (True, bk.IndeterminateError)]
)
def test_what_is_held_back_ends_with_the_store(
    url: str, faults: FaultInjector, applied: bool, ends: type[bk.MetadataStoreError]
) -> None:
    """Closing the store does not wait for a release that never comes."""
    store = bk.open_store(url, wrap=faults)
    held = faults.delay("put", applied=applied)
    future = store.put("/a", b"")
    held.wait()
    if applied:
        with bk.open_store(url) as other:
            until(lambda: result(other.exists("/a")))
    store.close(timeout=0)
    assert type(error(future)) is ends


def test_a_cut_holds_everything_until_it_is_restored(
    store: bk.MetadataStore, faults: FaultInjector
) -> None:
    """Requests wait; those with too little time end as on a server that is gone."""
    faults.cut()
    waits = store.put("/a", b"1")
    late = error(store.get("/b", timeout=0.05))
    assert isinstance(late, bk.StoreUnavailableError)
    assert not waits.done()
    faults.restore()
    assert result(waits).version == 0


@pytest.mark.parametrize("applied", [True, False])
def test_a_cut_at_an_operation(
    store: bk.MetadataStore, other: bk.MetadataStore, faults: FaultInjector, applied: bool
) -> None:
    """The write that meets the cut is sent before it or not, and ends with its result after it."""
    injection = faults.cut("put", "/a", applied=applied)
    assert injection is not None
    future = store.put("/a", b"1")
    injection.wait()
    until(lambda: store.session.state == "suspended")  # The connection is cut by now.
    assert result(other.exists("/a")) is applied
    assert not future.done()
    faults.restore()
    assert result(future).version == 0


@pytest.mark.slow
def test_a_write_that_was_applied_before_a_cut_can_end_unknown(
    store: bk.MetadataStore, faults: FaultInjector
) -> None:
    """At its deadline, nobody can say what has become of it."""
    faults.cut("put", applied=True)
    assert isinstance(error(store.put("/a", b"1", timeout=1.0)), bk.IndeterminateError)
    faults.restore()
    until(lambda: result(store.exists("/a")))


def test_clear_ends_all_faults(store: bk.MetadataStore, faults: FaultInjector) -> None:
    """Armed faults are disarmed, held requests go on, and the connection is back."""
    faults.fail("get", times=None)
    held = faults.delay("put")
    future = store.put("/a", b"")
    held.wait()
    faults.cut()
    faults.clear()
    assert faults.armed == ()
    assert result(future).version == 0
    assert result(store.get("/a")) is not None


# --- the session


def test_a_lost_session_takes_its_ephemeral_values_along(
    store: bk.MetadataStore, other: bk.MetadataStore, faults: FaultInjector
) -> None:
    """The values of this client's session are gone, those of others stay; new ones can be put."""
    result(store.put("/mine", b"", ephemeral=True))
    result(store.put("/mine/below", b"", ephemeral=True))
    result(store.put("/plain", b""))
    result(other.put("/theirs", b"", ephemeral=True))
    faults.lose_session()
    assert result(other.get_children("/")) == ["plain", "theirs"]
    assert result(store.put("/mine", b"", ephemeral=True)).ephemeral
    faults.lose_session(end_ephemerals=False)
    assert result(other.exists("/mine")) is True


def test_an_ephemeral_put_of_a_lost_session_is_refused(
    store: bk.MetadataStore, faults: FaultInjector
) -> None:
    """It was submitted before the loss, and never lands in the next session."""
    held = faults.delay("put", "/a")
    future = store.put("/a", b"", ephemeral=True)
    held.wait()
    faults.lose_session()
    held.release()
    assert isinstance(error(future), bk.SessionLostError)
    assert result(store.exists("/a")) is False
    assert result(store.put("/a", b"", ephemeral=True)).version == 0


def events_of(faults: FaultInjector, url: str) -> tuple[list[str], list[str], Any]:
    """Put an injector around a back end; return its events, the states at them, and its session."""
    backend = faults(connect(url, ConnectOptions()))
    session = backend.session
    assert session is not None
    events: list[str] = []
    states: list[str] = []

    def listen(event: str) -> None:
        events.append(event)
        states.append(session.state)

    session.listen(listen)
    return events, states, session


def test_the_events_of_a_short_outage(faults: FaultInjector, url: str) -> None:
    """A cut and its end: two events, and the session is the same."""
    events, states, session = events_of(faults, url)
    before = (session.id, session.number)
    faults.cut()
    assert session.state == "suspended"
    faults.restore()
    assert (events, states) == (["connection_lost", "reconnected"], ["suspended", "connected"])
    assert (session.id, session.number) == before


def test_the_events_of_a_long_outage(faults: FaultInjector, url: str) -> None:
    """A session that ends during a cut is known to be lost only after it: four events in order."""
    events, states, session = events_of(faults, url)
    before = session.id
    faults.cut()
    faults.lose_session()
    faults.lose_session()
    assert events == ["connection_lost"]
    assert session.valid_until() == float("-inf")
    faults.restore()
    assert events == ["connection_lost", "reconnected", "session_lost", "session_reestablished"]
    assert states == ["suspended", "suspended", "lost", "connected"]
    assert session.number == 2
    assert session.id != before
    assert session.valid_until() == float("inf")


def test_the_events_of_a_session_that_ends_while_connected(faults: FaultInjector, url: str) -> None:
    """As when somebody revokes its lease: only the last two events."""
    events, _, session = events_of(faults, url)
    faults.lose_session()
    assert events == ["session_lost", "session_reestablished"]
    assert session.state == "connected"


# --- watches


def watched(faults: FaultInjector, url: str) -> tuple[Any, list[Any], list[Any], Any]:
    """Watch /a behind an injector; return the back end, the events, the errors and the handle."""
    backend = faults(connect(url, ConnectOptions()))
    assert backend.watches is not None
    events: list[Any] = []
    errors: list[Any] = []
    handle = backend.watches.watch("/a", None, events.extend, errors.append, soon())
    return backend, events, errors, handle


def test_a_gap_reaches_the_open_watches(faults: FaultInjector, url: str) -> None:
    """Those of the prefix, or all; a closed watch gets none."""
    _, events, _, handle = watched(faults, url)
    assert faults.gap("/b") == 0
    assert faults.gap("/a") == faults.gap() == 1
    assert [tuple(event) for event in events] == [("gap", "/a", None, None)] * 2
    handle.close()
    assert faults.gap() == 0
    assert len(events) == 2


@pytest.mark.parametrize("gap", [False, True])
def test_a_watch_gets_nothing_during_a_cut(
    faults: FaultInjector, url: str, store: bk.MetadataStore, gap: bool
) -> None:
    """Afterwards it gets what it has missed, or a gap in its place, and then goes on."""
    own = FaultInjector()
    _, events, _, handle = watched(own, url)
    own.cut()
    for value in (b"1", b"2"):
        result(store.put("/a/b", value))
    # A watch without faults shows when the events have been published.
    seen = watched(FaultInjector(), url)[1]
    result(store.put("/a/c", b""))
    until(lambda: [event.path for event in seen] == ["/a/c"])
    assert events == []
    own.restore(gap=gap)
    kinds = [event.kind for event in events]
    assert kinds == (["gap"] if gap else ["created", "modified", "created"])
    result(store.delete("/a/c"))
    until(lambda: events[-1].kind == "deleted")
    handle.close()


def test_a_watch_can_be_ended(faults: FaultInjector, url: str, store: bk.MetadataStore) -> None:
    """It gets the error once, and no event after it."""
    own = FaultInjector()
    backend, events, errors, _ = watched(own, url)
    assert own.end_watches(bk.AuthenticationError("no more"), "/a") == 1
    assert own.end_watches(bk.AuthenticationError("no more")) == 0
    assert [str(found) for found in errors] == ["no more"]
    seen: list[Any] = []
    backend.watches.watch("/a", None, seen.extend, errors.append, soon())
    result(store.put("/a", b""))
    until(lambda: len(seen) == 1)
    assert events == []


def test_opening_a_watch_can_fail(faults: FaultInjector, url: str) -> None:
    """The call that opens a watch is hit like any other."""
    faults.fail("watch", "/a")
    with pytest.raises(bk.StoreUnavailableError):
        watched(faults, url)


# --- use


def test_asyncio_has_the_same(url: str) -> None:
    """The injector is a wrapper for both faces."""

    async def main() -> None:
        faults = FaultInjector()
        async with bk.open_async_store(url, wrap=faults) as store:
            faults.refuse(bk.BadVersionError("no"), "put")
            with pytest.raises(bk.BadVersionError):
                await store.put("/a", b"")
            held = faults.delay("get")
            task = asyncio.ensure_future(store.get("/a"))
            await asyncio.to_thread(held.wait)
            held.release()
            assert await task is None

    asyncio.run(main())


def test_it_wraps_every_store(store_url: str) -> None:
    """The faults are the same on all stores, servers or not."""
    faults = FaultInjector()
    with bk.open_store(store_url, wrap=faults) as store:
        faults.lose_answer("put", "/a")
        faults.refuse(bk.BadVersionError("no"), "put", "/b")
        assert isinstance(error(store.put("/a", b"")), bk.IndeterminateError)
        assert isinstance(error(store.put("/b", b"")), bk.BadVersionError)
        assert [found.path for found in store.scan("/")] == ["/a"]
        if "ephemerals" in store.capabilities:
            result(store.put("/c", b"", ephemeral=True))
            faults.lose_session()
            assert result(store.exists("/c")) is False
            assert result(store.put("/c", b"", ephemeral=True)).owned
        else:
            with pytest.raises(bk.UnsupportedError, match="'ephemerals'"):
                faults.lose_session()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kind": "putt"}, "no kind of operation: 'putt'"),
        ({"times": 0}, "times must be an int from 1"),
        ({"times": True}, "times must be an int"),
        ({"skip": -1}, "skip must be an int from 0"),
        ({"where": "/a"}, "where must be a predicate"),
        ({"error": ValueError("x")}, "must be a MetadataStoreError"),
    ],
)
def test_a_mistaken_fault_is_refused_by_the_call(
    faults: FaultInjector, arguments: dict[str, Any], message: str
) -> None:
    """A misspelt kind would never be hit, and the test would prove nothing."""
    with pytest.raises(bk.InvalidSettingError, match=message):
        faults.fail(**arguments)
    assert faults.armed == ()


def test_an_injector_serves_one_store(store: bk.MetadataStore, faults: FaultInjector) -> None:
    """A second store is refused, and one without a store says how to give it one."""
    with pytest.raises(bk.InvalidSettingError, match="serves one store"):
        bk.open_store("memory://second", wrap=faults)
    with pytest.raises(bk.InvalidSettingError, match="pass it to open_store"):
        FaultInjector().cut()


def test_waiting_for_a_hit_that_does_not_come_ends(
    store: bk.MetadataStore, faults: FaultInjector
) -> None:
    """The error says how many there were."""
    with pytest.raises(TimeoutError, match="0 hits instead of 1"):
        faults.fail("put").wait(timeout=0)
    with pytest.raises(TimeoutError, match="0 hits instead of 2"):
        faults.wait_for_hits(2, timeout=0)


def test_a_plan_decides_where_no_fault_is_armed(url: str) -> None:
    """The plan of the constructor sees every call that no armed fault hits."""
    seen: list[str] = []

    def plan(call: Any) -> None:
        seen.append(call.kinds[0])

    faults = FaultInjector(plan)
    with bk.open_store(url, SINGLY, wrap=faults) as store:
        faults.fail("get")
        error(store.get("/a"))
        result(store.put("/a", b""))
    assert seen == ["put"]
