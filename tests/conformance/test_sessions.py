"""The session of a store: what it shows, and the listeners of its events."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from typing import Any

import pytest

import batchkeeper as bk

from ..programs import run_python
from ..waiting import PATIENCE, result, until

pytestmark = pytest.mark.needs("ephemerals")

Opens = Callable[[], bk.MetadataStore]


def test_a_session_that_stands(store: bk.MetadataStore) -> None:
    """With an ephemeral value, the session is connected, has an id, and is valid for a while."""
    result(store.put("/a", b"", ephemeral=True))
    session = store.session
    assert isinstance(session, bk.Session)
    assert session.state == "connected"
    assert isinstance(session.id, str)
    assert session.id
    assert session.timeout > 0
    until(lambda: session.valid_until() > time.monotonic(), "no keep-alive was confirmed")


def test_it_promises_no_more_than_its_timeout(store: bk.MetadataStore) -> None:
    """``valid_until`` is at most the timeout ahead, without an end only where nothing ends it."""
    result(store.put("/a", b"", ephemeral=True))
    session = store.session
    for _ in range(50):
        until_when, now = session.valid_until(), time.monotonic()
        assert until_when <= now + session.timeout
    assert (session.valid_until() == math.inf) == (session.timeout == math.inf)


def test_a_store_that_needs_no_session(store: bk.MetadataStore) -> None:
    """Before the first ephemeral value or listener, the session may be new, and never lost."""
    session = store.session
    assert session.state in {"new", "connected"}
    if session.state == "new":
        assert session.id is None
        assert session.valid_until() == -math.inf


def test_a_listener_begins_it(store: bk.MetadataStore) -> None:
    """The first listener is reason enough for a session; that it begins is no event."""
    events: list[bk.SessionEvent] = []
    store.add_session_listener(events.append)
    until(lambda: store.session.state == "connected", "no session was made")
    until(lambda: store.session.valid_until() > time.monotonic(), "it is not valid")
    assert result(store.put("/a", b"", ephemeral=True)).owned
    assert events == []


def test_each_store_has_its_own(store: bk.MetadataStore, another: Opens) -> None:
    """Two clients of one store have sessions with different ids, which stay the same."""
    other = another()
    for client in (store, other):
        result(client.put("/a", b"", ephemeral=True))
    first = store.session.id
    assert (first == other.session.id) == (other is store)
    result(store.put("/b", b"", ephemeral=True))
    assert store.session.id == first


def test_a_closed_store_has_no_session(store: bk.MetadataStore) -> None:
    """After close, the session is closed and valid no more, also for who held it before."""
    result(store.put("/a", b"", ephemeral=True))
    session = store.session
    store.close()
    for found in (session, store.session):
        assert found.state == "closed"
        assert found.id is None
        assert found.valid_until() == -math.inf


def test_it_is_read_only(store: bk.MetadataStore) -> None:
    """The attributes cannot be set."""
    for name in ("id", "timeout", "state"):
        with pytest.raises(AttributeError):
            setattr(store.session, name, None)
    with pytest.raises(AttributeError):
        store.session = None  # type: ignore[misc, assignment]


def test_its_repr(store: bk.MetadataStore) -> None:
    """The representation shows the state and the id."""
    result(store.put("/a", b"", ephemeral=True))
    shown = repr(store.session)
    assert "connected" in shown
    assert store.session.id is not None
    assert store.session.id in shown
    store.close()
    assert "closed" in repr(store.session)


# --- listeners


def test_a_listener_is_closed(store: bk.MetadataStore) -> None:
    """The handle ends the listener, twice as well, and at the end of a ``with`` block."""
    listener = store.add_session_listener(print)
    assert isinstance(listener, bk.SessionListener)
    listener.close()
    listener.close()
    with store.add_session_listener(print) as listener:
        assert isinstance(listener, bk.SessionListener)


def test_closing_the_store_is_no_event(store: bk.MetadataStore) -> None:
    """A listener hears of what happens to the session, and not of the caller's own close."""
    events: list[bk.SessionEvent] = []
    listener = store.add_session_listener(events.append)
    result(store.put("/a", b"", ephemeral=True))
    store.close()
    assert events == []
    listener.close()
    with pytest.raises(bk.StoreClosedError):
        store.add_session_listener(events.append)


@pytest.mark.call
@pytest.mark.parametrize("bad", [None, 15, "print", asyncio.sleep])
def test_a_listener_is_a_function(store: bk.MetadataStore, bad: Any) -> None:
    """A listener that cannot be called, or would have to be awaited, is refused by the call."""
    with pytest.raises(bk.InvalidSettingError, match="callback"):
        store.add_session_listener(bad)


FORKED = """
import os, sys, warnings
import batchkeeper as bk

warnings.simplefilter("ignore", DeprecationWarning)
with bk.open_store(sys.argv[1]) as store:
    store.put("/a", b"", ephemeral=True).result()
    session, listener = store.session, store.add_session_listener(print)
    child = os.fork()
    if child == 0:
        refused = 0
        for call in (
            lambda: session.valid_until(),
            lambda: session.state,
            lambda: session.id,
            lambda: store.session,
            lambda: store.add_session_listener(print),
        ):
            try:
                call()
            except bk.StoreClosedError as error:
                refused += "before this process was forked" in str(error)
        repr(session)
        listener.close()
        os._exit(refused)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
    assert session.state == "connected"
"""


@pytest.mark.slow
def test_a_forked_child_has_no_session(store_url: str) -> None:
    """A child that asks for the session of its parent is refused, and never sees it as valid."""
    ended = run_python("-c", FORKED, store_url, timeout=PATIENCE)
    assert ended.returncode == 0, ended.stderr


def test_the_metrics_count_lost_sessions(store: bk.MetadataStore) -> None:
    """A session that lives counts as none lost."""
    result(store.put("/a", b"", ephemeral=True))
    assert store.metrics().session_losses == 0


def test_tasks(store_url: str, batching: bk.BatchingConfig) -> None:
    """The asynchronous face has the same session and listeners, which it need not await."""

    async def main() -> None:
        async with asyncio.timeout(PATIENCE):
            async with bk.open_async_store(store_url, batching=batching) as store:
                events: list[bk.SessionEvent] = []
                listener = store.add_session_listener(events.append)
                await store.put("/a", b"", ephemeral=True)
                session = store.session
                assert (session.state, session.id is not None) == ("connected", True)
                while session.valid_until() <= time.monotonic():  # noqa: ASYNC110
                    await asyncio.sleep(0.001)
                listener.close()
                with pytest.raises(bk.InvalidSettingError):
                    store.add_session_listener(asyncio.sleep)
            assert (session.state, session.valid_until()) == ("closed", -math.inf)
            assert events == []

    asyncio.run(main())
