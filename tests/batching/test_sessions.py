"""Session listeners over a session that a test plays."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator
from typing import Final

import pytest

from batchkeeper.batching import AsyncMetadataStore, BatchingConfig, MetadataStore, SessionListener
from batchkeeper.batching.engine import engine_of
from batchkeeper.ops import SessionEvent, StoreUnavailableError, UnsupportedError

from .live import STATED, PlayedBackend, PlayedSession
from .waiting import LEFT_OPEN, PATIENCE, until

OUTAGE: Final[tuple[SessionEvent, ...]] = (
    "connection_lost",
    "reconnected",
    "session_lost",
    "session_reestablished",
)


@pytest.fixture
def backend() -> PlayedBackend:
    """A back end whose session the test plays."""
    return PlayedBackend()


@pytest.fixture
def session(backend: PlayedBackend) -> PlayedSession:
    """The session of that back end."""
    return backend.own_session


@pytest.fixture
def store(backend: PlayedBackend) -> Iterator[MetadataStore]:
    """A store on it."""
    opened = MetadataStore(backend, BatchingConfig(), 60.0, "memory://played", STATED)
    yield opened
    opened.close(0)


def test_events_come_once_each_and_in_order(session: PlayedSession, store: MetadataStore) -> None:
    """Every listener gets every event, in order, on the thread of the callbacks."""
    heard: list[list[SessionEvent]] = [[], []]
    threads: set[int] = set()
    store.add_session_listener(heard[0].append)
    store.add_session_listener(
        lambda event: (threads.add(threading.get_ident()), heard[1].append(event))
    )
    store.put("/a", b"").add_done_callback(lambda _: threads.add(threading.get_ident()))
    for _ in range(50):
        session.happen(*OUTAGE)
    until(lambda: len(heard[0]) == len(heard[1]) == 200, "not all came")
    assert heard[0] == heard[1] == list(OUTAGE) * 50
    assert len(threads - {threading.get_ident()}) == 1


def test_the_back_end_is_asked_once(session: PlayedSession, store: MetadataStore) -> None:
    """A session that nobody listens to is left alone; the first listener alone begins it."""
    assert session.listens == []
    for _ in range(3):
        store.add_session_listener(print).close()
    assert len(session.listens) == 1


def test_a_session_that_cannot_begin(session: PlayedSession, store: MetadataStore) -> None:
    """An error of the back end raises from the call, and the next call tries again."""
    heard: list[SessionEvent] = []
    session.error = StoreUnavailableError("no server")
    with pytest.raises(StoreUnavailableError):
        store.add_session_listener(heard.append)
    session.error = None
    store.add_session_listener(heard.append)
    session.happen("session_lost")
    store.close()  # after all callbacks
    assert heard == ["session_lost"]


def test_a_listener_that_raises(
    session: PlayedSession, store: MetadataStore, caplog: pytest.LogCaptureFixture
) -> None:
    """An exception is logged; the listener and all others get the next events."""
    heard: list[SessionEvent] = []
    after: list[SessionEvent] = []

    def failing(event: SessionEvent) -> None:
        heard.append(event)
        raise SystemExit if event == "reconnected" else ValueError(event)

    store.add_session_listener(failing)
    store.add_session_listener(after.append)
    with caplog.at_level(logging.ERROR, "batchkeeper"):
        session.happen(*OUTAGE)
        until(lambda: len(after) == 4, "not all came")
    assert heard == after == list(OUTAGE)
    assert sum("a session listener failed" in record.message for record in caplog.records) == 4


def test_a_listener_that_calls_the_store(session: PlayedSession, store: MetadataStore) -> None:
    """A listener may wait for operations of the store."""
    versions: list[int] = []
    store.add_session_listener(
        lambda event: versions.append(store.put("/a", b"").result(PATIENCE).version)
    )
    session.happen(*OUTAGE)
    until(lambda: versions == [0, 1, 2, 3], "it waits for ever")


def test_a_listener_closed_in_its_own_callback(
    session: PlayedSession, store: MetadataStore, caplog: pytest.LogCaptureFixture
) -> None:
    """After its close, a listener gets nothing, although more events wait for the dispatcher."""
    go = threading.Event()
    heard: list[SessionEvent] = []
    other: list[SessionEvent] = []
    listener: SessionListener

    def once(event: SessionEvent) -> None:
        assert go.wait(PATIENCE)
        heard.append(event)
        listener.close()

    listener = store.add_session_listener(once)
    store.add_session_listener(other.append)
    session.happen(*OUTAGE)
    go.set()
    store.close()  # after all callbacks
    assert heard == ["connection_lost"]
    assert other == list(OUTAGE)
    assert not caplog.records


def test_a_listener_added_in_a_callback(session: PlayedSession, store: MetadataStore) -> None:
    """It gets the events that happen after it was added."""
    heard: list[SessionEvent] = []
    added = threading.Event()

    def first(event: SessionEvent) -> None:
        if event == "connection_lost":
            store.add_session_listener(heard.append)
            added.set()

    store.add_session_listener(first)
    session.happen("connection_lost")
    assert added.wait(PATIENCE)
    session.happen("reconnected")
    until(lambda: heard == ["reconnected"], "it did not come")


def test_what_happened_before_the_close_is_heard(
    session: PlayedSession, store: MetadataStore
) -> None:
    """Closing the store waits for the listeners of events before it."""
    heard: list[SessionEvent] = []
    store.add_session_listener(heard.append)
    session.happen(*OUTAGE)
    store.close()
    assert heard == list(OUTAGE)


def test_the_session_is_that_of_the_back_end(session: PlayedSession, store: MetadataStore) -> None:
    """The public object shows the back end's session, as it is now."""
    shown = store.session
    assert (shown.id, shown.timeout, shown.state) == ("0xabc", 30.0, "connected")
    session.id, session.state = None, "lost"
    assert (shown.id, shown.state) == (None, "lost")
    assert repr(shown) == "<Session without id lost timeout=30>"
    session.number = 4
    assert store.metrics().session_losses == 3


def test_a_store_opened_without_a_session(
    backend: PlayedBackend, store: MetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kind may have sessions while this opening of it has none (a reader): UnsupportedError."""
    monkeypatch.setattr(PlayedBackend, "session", None)
    with pytest.raises(UnsupportedError, match="'ephemerals'"):
        _ = store.session
    with pytest.raises(UnsupportedError, match="'ephemerals'"):
        store.add_session_listener(print)
    assert store.metrics().session_losses == 0


def test_tasks_hear_on_their_loop(backend: PlayedBackend, session: PlayedSession) -> None:
    """A listener runs on the loop, in order, whichever thread the event comes from."""
    heard: list[tuple[SessionEvent, int]] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        store = AsyncMetadataStore(backend, BatchingConfig(), 60.0, "memory://played", loop, STATED)
        store.add_session_listener(lambda event: heard.append((event, threading.get_ident())))
        await asyncio.to_thread(session.happen, *OUTAGE)
        async with asyncio.timeout(PATIENCE):
            while len(heard) < 4:  # noqa: ASYNC110 - another thread makes it true
                await asyncio.sleep(0)
        await store.close()

    asyncio.run(main())
    assert heard == [(event, threading.get_ident()) for event in OUTAGE]


@LEFT_OPEN
def test_a_closed_loop_hears_nothing(
    backend: PlayedBackend, session: PlayedSession, caplog: pytest.LogCaptureFixture
) -> None:
    """Events for a loop that was closed are dropped without an error or a log."""
    heard: list[SessionEvent] = []
    loop = asyncio.new_event_loop()

    async def begin() -> AsyncMetadataStore:
        store = AsyncMetadataStore(backend, BatchingConfig(), 60.0, "memory://played", loop, STATED)
        store.add_session_listener(heard.append)
        return store

    store = loop.run_until_complete(begin())
    loop.close()
    with caplog.at_level(logging.WARNING):
        session.happen(*OUTAGE * 10)
    engine_of(store).close(0)
    assert heard == []
    assert not caplog.records
