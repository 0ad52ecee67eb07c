"""Hubs and access rules in outages and after lost sessions, on real servers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

import batchkeeper as bk
from batchkeeper.hubs import AccessDeniedError, AccessRules, Hosts, Hub, HubLoad, Rule
from batchkeeper.testing.servers import LocalServer

from ...proxy import Proxy
from ...waiting import PATIENCE, until

R = "/hedwig/eu"
BUSY = HubLoad(topics=7)


@contextmanager
def behind(server: LocalServer, line: Proxy, session_timeout: float) -> Iterator[bk.MetadataStore]:
    """Open a store through a proxy, and close it without patience."""
    store = bk.open_store(
        server.url.replace(server.address, line.address),
        session_timeout=session_timeout,
        operation_timeout=2.0,
    )
    try:
        yield store
    finally:
        store.close(0)


def shown(hosts: Hosts) -> dict[str, Hub]:
    return {address: hub._replace(report=0) for address, hub in hosts.hubs().items()}


def test_a_lost_session(server: LocalServer, proxy: Callable[[str], Proxy]) -> None:
    """The hub is gone for others only after its time, and returns as a later incarnation.

    Its membership is as it was, and its view has what it has missed.
    """
    line = proxy(server.address)
    with (
        bk.open_store(server.url, session_timeout=30.0) as steady,
        Hosts(steady, R) as others,
        behind(server, line, 2.0) as store,
        Hosts(store, R) as hosts,
    ):
        hub = hosts.register("hub-1", BUSY, PATIENCE)
        first, lost = hub.info, hub.lost
        until(lambda: "hub-1" in others.hubs())
        line.drops = line.swallows = True
        until(lambda: "hub-1" not in others.hubs())
        assert hub.held_until() < time.monotonic()
        assert not others.is_alive(first)
        others.set_draining("hub-1", True)
        two = others.register("hub-2", timeout=PATIENCE)
        line.restore()
        assert lost.wait(PATIENCE)
        until(lambda: hub.info != first)
        assert hub.info.incarnation > first.incarnation
        until(lambda: others.is_alive(hub.info))
        assert not others.is_alive(first)
        expected = {"hub-1": Hub(hub.info, BUSY, draining=True), "hub-2": Hub(two.info, HubLoad())}
        for each in (hosts, others):
            until(lambda each=each: shown(each) == expected)
        assert (hub.eligible, hub.draining) == (True, True)


def test_an_outage(server: LocalServer, proxy: Callable[[str], Proxy]) -> None:
    """While no server answers, views and rules are those of before; then they catch up."""
    line = proxy(server.address)
    with (
        bk.open_store(server.url, session_timeout=30.0) as steady,
        Hosts(steady, R) as others,
        AccessRules(steady, R) as rules,
        behind(server, line, 60.0) as store,
        Hosts(store, R) as hosts,
        AccessRules(store, R) as access,
    ):
        rules.set_rule("a", Rule(create=("alice",)))
        two = others.register("hub-2", timeout=PATIENCE)
        hub = hosts.register("hub-1", BUSY, PATIENCE)
        before = hub.info
        until(lambda: set(hosts.hubs()) == {"hub-1", "hub-2"})
        access.check("create", "alice", "a")
        line.drops = line.swallows = True
        line.cut()
        with pytest.raises((bk.OperationTimeoutError, bk.StoreUnavailableError)):
            hosts.is_alive(two.info)
        two.leave()
        rules.set_rule("a", Rule(create=("bob",)))
        others.set_eligible("hub-1", False)
        assert set(hosts.hubs()) == {"hub-1", "hub-2"}
        assert hub.eligible
        access.check("create", "alice", "a")
        line.restore()
        until(lambda: shown(hosts) == {"hub-1": Hub(before, BUSY, eligible=False)})
        assert not hub.eligible

        def denied() -> bool:
            try:
                access.check("create", "alice", "a")
            except AccessDeniedError:
                return True
            return False

        until(denied)
        access.check("create", "bob", "a")
        assert hub.info == before
        until(lambda: hosts.is_alive(before))


def test_a_first_look_in_an_outage(server: LocalServer, proxy: Callable[[str], Proxy]) -> None:
    """Without a view, calls end with an error in their time; afterwards they have all hubs."""
    line = proxy(server.address)
    with (
        bk.open_store(server.url, session_timeout=30.0) as steady,
        Hosts(steady, R) as others,
        behind(server, line, 60.0) as store,
        Hosts(store, R) as hosts,
        AccessRules(store, R) as access,
    ):
        others.register("hub-2", timeout=PATIENCE)
        store.sync()
        line.drops = line.swallows = True
        line.cut()
        with pytest.raises(bk.MetadataStoreError):
            hosts.hubs(timeout=0.5)
        with pytest.raises(bk.MetadataStoreError):
            access.check("create", "alice", "a", timeout=0.5)
        with pytest.raises(bk.MetadataStoreError):
            hosts.register("hub-1", timeout=0.5)
        line.restore()

        def there() -> bool:
            try:
                return set(hosts.hubs(timeout=1.0)) == {"hub-2"}
            except bk.MetadataStoreError:
                return False

        until(there)
        hosts.register("hub-1", timeout=PATIENCE)
        until(lambda: set(others.hubs()) == {"hub-1", "hub-2"})
