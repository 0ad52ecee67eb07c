"""The hubs of a region: registration, the view of them, their memberships, and the end."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Any

import pytest

import batchkeeper as bk
from batchkeeper.coordination.members import decode, member_path
from batchkeeper.hubs import (
    Hosts,
    Hub,
    HubInfo,
    HubLoad,
    HubsRegisteredError,
    IllegalOperationError,
    choose,
    format_metadata,
)
from batchkeeper.hubs.topics.region import LEAF
from batchkeeper.testing import FaultInjector

from ...forks import holds_in_a_child
from ...waiting import PATIENCE, result, until

R = "/hedwig/eu"
BUSY = HubLoad(topics=7, message_rate=1.5, connections=3, capacity=2.0)

Opens = Callable[[], bk.MetadataStore]


def value(store: bk.MetadataStore, path: str) -> bytes | None:
    result_ = result(store.get(path))
    return None if result_ is None else result_.value


def without_reports(hosts: Hosts) -> dict[str, Hub]:
    return {address: hub._replace(report=0) for address, hub in hosts.hubs().items()}


# --- registration


def test_a_hub_is_there_from_register_to_leave(store: bk.MetadataStore, another: Opens) -> None:
    """Everybody sees it with its incarnation and its load; the membership outlives it."""
    with Hosts(store, R) as hosts, Hosts(another(), R) as others:
        assert others.hubs() == {}
        one = hosts.register("hub-1:4080", BUSY, PATIENCE)
        assert one.info == HubInfo("hub-1:4080", one.info.incarnation)
        assert one.eligible
        assert not one.draining
        assert one.held_until() == store.session.valid_until()
        expected = {"hub-1:4080": Hub(one.info, BUSY)}
        assert without_reports(hosts) == expected
        until(lambda: without_reports(others) == expected)
        two = others.register("hub-2:4080", timeout=PATIENCE)
        assert two.info.incarnation > one.info.incarnation
        until(lambda: set(hosts.hubs()) == {"hub-1:4080", "hub-2:4080"})
        assert hosts.hubs()["hub-2:4080"].load == HubLoad()
        one.leave()
        assert one.lost.is_set()
        assert one.held_until() == -math.inf
        until(lambda: set(others.hubs()) == set(hosts.hubs()) == {"hub-2:4080"})
        assert value(store, f"{R}/hosts/hub-1:4080") == b'{"v":1,"eligible":true,"draining":false}'
        with pytest.raises(bk.LockLostError):
            one.update(BUSY)


def test_a_load_is_seen_by_all(store: bk.MetadataStore, another: Opens) -> None:
    """A report changes the load and its number, and not the incarnation."""
    with Hosts(store, R) as hosts, Hosts(another(), R) as others:
        with hosts.register("hub-1", timeout=PATIENCE) as hub:
            until(others.hubs)
            before, info = others.hubs()["hub-1"], hub.info
            for topics in (1, 2, 2):
                hub.update(HubLoad(topics=topics))
                until(lambda old=before: others.hubs()["hub-1"].report > old.report)
                before = others.hubs()["hub-1"]
                assert (before.info, before.load) == (info, HubLoad(topics=topics))
        until(lambda: not others.hubs())


def test_an_address_belongs_to_one_hub(store: bk.MetadataStore, another: Opens) -> None:
    """A second hub waits for it, and gets a greater incarnation; the first life is over then."""
    with Hosts(store, R) as hosts, Hosts(another(), R) as others:
        first = hosts.register("hub-1", BUSY, PATIENCE)
        with pytest.raises(bk.LockBusyError):
            others.register("hub-1", timeout=0.1)
        assert others.is_alive(first.info)
        first.leave()
        second = others.register("hub-1", timeout=PATIENCE)
        assert second.info.incarnation > first.info.incarnation
        assert hosts.is_alive(second.info)
        assert not hosts.is_alive(first.info)
        second.leave()
        assert not hosts.is_alive(second.info)
        assert not hosts.is_alive(HubInfo("hub-2", 0))


def test_the_end_of_an_incarnation_is_read_once(
    store: bk.MetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An end is final, and the hub may have had thousands of topics. A new life is read again."""
    read: list[str] = []
    get, here = store.get, threading.get_ident()

    def noting(path: str, **options: Any) -> Any:
        if threading.get_ident() == here:  # The view reads, too, at its own time.
            read.append(path)
        return get(path, **options)

    with Hosts(store, R) as hosts:
        first = hosts.register("hub-1", timeout=PATIENCE)
        first.leave()
        monkeypatch.setattr(store, "get", noting)
        assert not hosts.is_alive(first.info)
        assert len(read) == 1
        assert not hosts.is_alive(first.info)
        assert len(read) == 1
        second = hosts.register("hub-1", timeout=PATIENCE)
        assert hosts.is_alive(second.info)
        assert not hosts.is_alive(first.info)


def test_addresses_are_any_text(store: bk.MetadataStore) -> None:
    """Dots, slashes and other characters give no two hubs one path."""
    addresses = [
        "a.b:1",
        "a/b:1",
        ".a",
        "/run/hub.sock",
        "a.1b:1",
        "[::1]:4080",
        "é",
        "..",
        "alive",
    ]
    with Hosts(store, R) as hosts:
        registered = {each: hosts.register(each, timeout=PATIENCE) for each in addresses}
        assert {each: hub.info for each, hub in hosts.hubs().items()} == {
            each: hub.info for each, hub in registered.items()
        }
        for each in addresses:
            assert hosts.is_alive(registered[each].info)
            hosts.set_draining(each, True)
        until(lambda: all(hub.draining for hub in hosts.hubs().values()))
        for bad in ("", "\ud800", None, b"a"):
            with pytest.raises(IllegalOperationError):
                hosts.register(bad)  # type: ignore[arg-type]
        with pytest.raises(IllegalOperationError):
            hosts.register("b", {"topics": 1})  # type: ignore[arg-type]
        with pytest.raises(IllegalOperationError):
            registered["é"].update(None)  # type: ignore[arg-type]


def test_the_metadata_is_not_formatted_under_a_hub(store: bk.MetadataStore) -> None:
    """``format_metadata`` recognizes the hubs that ``register`` creates."""
    with Hosts(store, R) as hosts:
        hub = hosts.register("hub.1", timeout=PATIENCE)
        with pytest.raises(HubsRegisteredError, match=r"hub\.1"):
            format_metadata(store, R)
        hub.leave()
        format_metadata(store, R)


# --- memberships


def test_memberships_outlive_hubs(store: bk.MetadataStore, another: Opens) -> None:
    """An operator's settings apply to later lives of a hub, and the hub knows them."""
    second = another()
    with Hosts(store, R) as hosts, Hosts(second, R) as others:
        hub = hosts.register("hub-1", timeout=PATIENCE)
        second.sync()
        others.set_draining("hub-1", True)
        assert [each.draining for each in others.hubs().values()] == [True]
        until(lambda: hub.draining)
        others.set_eligible("hub-1", False)
        until(lambda: not hub.eligible)
        hub.leave()
        again = hosts.register("hub-1", timeout=PATIENCE)
        assert (again.eligible, again.draining) == (False, True)
        assert without_reports(hosts) == {"hub-1": Hub(again.info, HubLoad(), False, True)}
        hosts.set_eligible("hub-1", True)
        assert (again.eligible, again.draining) == (True, True)
        hosts.set_draining("hub-1", False)
        until(lambda: choose(hosts.hubs()) == again.info)


def test_changes_of_a_membership_keep_all_else(store: bk.MetadataStore) -> None:
    """Members that this program does not know stay, and concurrent changes are not lost."""
    path = f"{R}/hosts/hub-1"
    result(store.put(path, b'{"v":1,"rack":"r7","eligible":true}'))
    with Hosts(store, R) as hosts:
        hosts.set_draining("hub-1", True)
        assert value(store, path) == b'{"v":1,"rack":"r7","eligible":true,"draining":true}'
        threads = [
            threading.Thread(target=call, args=("hub-1", False))
            for call in (hosts.set_draining, hosts.set_eligible)
            for _ in range(5)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
        assert value(store, path) == b'{"v":1,"rack":"r7","eligible":false,"draining":false}'


def test_a_quicker_change_is_kept(fresh_url: Callable[[str], str]) -> None:
    """A flag that another client sets between the read and the write of a change stays set."""
    url, faults = fresh_url("memory"), FaultInjector()
    with (
        bk.open_store(url) as other,
        bk.open_store(url, wrap=faults) as store,
        Hosts(store, R) as hosts,
        Hosts(other, R) as others,
    ):
        result(other.put(f"{R}/hosts/hub-1", b'{"v":1}'))
        held = faults.delay("put", f"{R}/hosts/hub-1")
        thread = threading.Thread(target=hosts.set_draining, args=("hub-1", True))
        thread.start()
        faults.wait_for_hits(1, PATIENCE)
        others.set_eligible("hub-1", False)
        held.release()
        thread.join(PATIENCE)
        found = value(other, f"{R}/hosts/hub-1")
        assert found == b'{"v":1,"eligible":false,"draining":true}'


def test_what_is_missing_or_damaged_is_not_eligible(store: bk.MetadataStore) -> None:
    """A hub without a readable membership gets no topics, and no change guesses what it was."""
    path = f"{R}/hosts/hub-1"
    with Hosts(store, R) as hosts:
        for call in (hosts.set_draining, hosts.set_eligible):
            with pytest.raises(bk.NotFoundError, match="hub-1"):
                call("hub-1", True)
        for raw in (
            b"",
            b"\xff",
            b"[]",
            b'{"v":2}',
            b'{"v":1,"eligible":1}',
            b'{"v":1,"draining":0}',
        ):
            result(store.put(path, raw))
            with hosts.register("hub-1", BUSY, PATIENCE) as hub:
                assert not hub.eligible
                assert without_reports(hosts) == {"hub-1": Hub(hub.info, BUSY, False, False)}
                for call in (hosts.set_draining, hosts.set_eligible):
                    with pytest.raises(bk.ValueDecodeError, match=path):
                        call("hub-1", True)
            assert value(store, path) == raw
        hosts.forget("hub-1")
        with hosts.register("hub-1", BUSY, PATIENCE) as hub:
            assert hub.eligible
            result(store.put(path, b'{"v":1,"new":true}'))
            until(lambda: without_reports(hosts)["hub-1"] == Hub(hub.info, BUSY))


def test_a_damaged_load_is_that_of_an_idle_hub(store: bk.MetadataStore) -> None:
    """The hub stays alive, with its incarnation, whatever its value says about its load."""
    path = f"{R}/hosts/hub-1/alive"
    with Hosts(store, R) as hosts:
        hub = hosts.register("hub-1", BUSY, PATIENCE)
        found = result(store.get(path))
        assert found is not None
        line = found.value.partition(b"\n")[0] + b"\n"
        for load in (b"", b"\xff", b'{"v":2}', b'{"v":1,"topics":-1}', b'{"v":1,"capacity":NaN}'):
            stat = result(store.put(path, line + load))
            until(lambda r=stat.revision: hosts.hubs()["hub-1"].report == r)
            # A line without the incarnation of its own names that of the put.
            now = decode("hub-1", line + load, stat).member.incarnation
            assert without_reports(hosts) == {"hub-1": Hub(HubInfo("hub-1", now), HubLoad())}
        hub.leave()


def test_only_hubs_that_are_not_alive_are_forgotten(store: bk.MetadataStore) -> None:
    """A hub that is alive is refused, and so are strangers; nothing else is removed."""
    with Hosts(store, R) as hosts:
        hub = hosts.register("hub-1", timeout=PATIENCE)
        hosts.register("hub-2", timeout=PATIENCE)
        with pytest.raises(HubsRegisteredError, match="hub-1"):
            hosts.forget("hub-1")
        assert hub.eligible
        hub.leave()
        hosts.forget("hub-1")
        assert value(store, f"{R}/hosts/hub-1") is None
        with pytest.raises(bk.NotFoundError, match="hub-1"):
            hosts.forget("hub-1")
        with pytest.raises(bk.NotFoundError, match="hub-3"):
            hosts.forget("hub-3")
        until(lambda: set(hosts.hubs()) == {"hub-2"})  # A watch tells the view.
        assert hosts.hubs()["hub-2"].eligible


def test_a_hub_without_a_membership_is_not_eligible(store: bk.MetadataStore) -> None:
    """A hub that was forgotten while it was away is alive again, but gets no topics."""
    result(store.put(f"{R}/hosts/hub-1/alive", b"", ephemeral=True))
    with Hosts(store, R) as hosts:
        (hub,) = hosts.hubs().values()
        assert (hub.info.address, hub.eligible, hub.load) == ("hub-1", False, HubLoad())


def test_foreign_values_are_no_hubs(store: bk.MetadataStore) -> None:
    """Other values below the hosts, neither membership nor alive, are ignored."""
    for path in ("", "/!zz", "/!zz/alive", "/hub-1/other", "/hub-1/alive/x", "/.x", "/!ff/alive"):
        result(store.put(f"{R}/hosts{path}", b"x"))
    # A name that no text of UTF-8 stands for.
    result(store.put(f"{R}/hosts/~ff/alive", b"x"))
    with Hosts(store, R) as hosts:
        assert hosts.hubs() == {}


# --- the view


def test_hubs_make_no_request(fresh_url: Callable[[str], str]) -> None:
    """Once the view is there, neither it nor what a hub knows of itself needs the store."""
    faults = FaultInjector()
    with bk.open_store(fresh_url("memory"), wrap=faults) as store, Hosts(store, R) as hosts:
        hub = hosts.register("hub-1", BUSY, PATIENCE)
        before = len(faults.calls)
        for _ in range(100):
            assert hosts.hubs()["hub-1"].load == BUSY
            assert hub.eligible
        assert not [call for call in faults.calls[before:] if call.kinds or call.method == "scan"]


def test_the_result_is_the_callers(fresh_url: Callable[[str], str]) -> None:
    """Whoever changes what ``hubs`` has returned changes nothing for others."""
    with bk.open_store(fresh_url("memory")) as store, Hosts(store, R) as hosts:
        hosts.register("hub-1", timeout=PATIENCE)
        hosts.hubs().clear()
        assert set(hosts.hubs()) == {"hub-1"}


def test_the_first_call_waits_for_the_view(fresh_url: Callable[[str], str]) -> None:
    """It never returns too few hubs: it waits, at most for its time, and then it is an error."""
    url, faults = fresh_url("memory"), FaultInjector()
    with (
        bk.open_store(url) as other,
        Hosts(other, R) as others,
        bk.open_store(url, wrap=faults, operation_timeout=PATIENCE) as store,
        Hosts(store, R) as hosts,
    ):
        others.register("hub-1", timeout=PATIENCE)
        held = faults.delay("scan")
        with pytest.raises(bk.OperationTimeoutError, match="hosts"):
            hosts.hubs(timeout=0.1)
        held.release()
        assert set(hosts.hubs()) == {"hub-1"}


def test_a_refused_view_is_an_error_until_it_is_not(fresh_url: Callable[[str], str]) -> None:
    """If the store refuses the read for good, each call says so; the next one tries again."""
    faults = FaultInjector()
    with (
        bk.open_store(fresh_url("memory"), wrap=faults) as store,
        Hosts(store, R) as hosts,
    ):
        faults.fail("scan", error=bk.AuthenticationError("no permission"))
        with pytest.raises(bk.AuthenticationError, match="no permission"):
            hosts.hubs()
        assert hosts.hubs() == {}


def test_a_registration_that_fails_leaves_nothing(fresh_url: Callable[[str], str]) -> None:
    """If the membership cannot be written, the hub is not alive afterwards."""
    url, faults = fresh_url("memory"), FaultInjector()
    with (
        bk.open_store(url) as other,
        bk.open_store(url, wrap=faults) as store,
        Hosts(store, R) as hosts,
    ):
        faults.fail("put", f"{R}/hosts/hub-1", error=bk.AuthenticationError("no permission"))
        with pytest.raises(bk.AuthenticationError):
            hosts.register("hub-1", timeout=PATIENCE)
        until(lambda: not [path for path, _, _ in other.scan(R)])
        with hosts.register("hub-1", timeout=PATIENCE) as hub:
            assert hub.eligible


def test_a_registration_waits_out_an_outage(fresh_url: Callable[[str], str]) -> None:
    """Also one that is longer than the time after which it warns of a living hub."""
    faults, path = FaultInjector(), member_path(f"{R}/hosts", "hub-1", LEAF)
    with (
        bk.open_store(fresh_url("memory"), wrap=faults) as store,
        Hosts(store, R) as hosts,
    ):
        held = faults.delay("transaction", path)  # until the end of the first attempt
        lost = faults.lose_answer("put", f"{R}/hosts/hub-1")
        with hosts.register("hub-1", timeout=PATIENCE) as hub:
            assert held.hits
            assert lost.hits
            assert hosts.is_alive(hub.info)


# --- the end


def test_a_close_ends_everything(store: bk.MetadataStore, another: Opens) -> None:
    """Hubs that were registered here leave, the watch ends, and later calls are refused."""
    hosts, info = Hosts(store, R), HubInfo("hub-1", 1)
    with Hosts(another(), R) as others:
        hub = hosts.register("hub-1", timeout=PATIENCE)
        until(lambda: set(others.hubs()) == {"hub-1"})
        hosts.close()
        hosts.close()
        assert hub.lost.is_set()
        until(lambda: others.hubs() == {})
    until(lambda: store.metrics().watches == 0)
    later = Hosts(store, R)
    assert later.hubs() == {}
    ended = [hosts]
    for _ in range(2):
        for each in ended:
            for call in (
                lambda each=each: each.hubs(),
                lambda each=each: each.register("hub-1"),
                lambda each=each: each.is_alive(info),
                lambda each=each: each.set_draining("hub-1", True),
                lambda each=each: each.set_eligible("hub-1", True),
                lambda each=each: each.forget("hub-1"),
            ):
                with pytest.raises(bk.StoreClosedError):
                    call()
        store.close()
        ended = [later]
    hub.leave()
    later.close()
    assert "hosts" in repr(hosts)
    assert "hub-1" in repr(hub)


def test_no_hub_stays_because_another_cannot_leave(fresh_url: Callable[[str], str]) -> None:
    """Each leaves, and the close says what failed."""
    faults = FaultInjector()
    with bk.open_store(fresh_url("memory"), wrap=faults) as store, Hosts(store, R) as others:
        hosts = Hosts(store, R)
        hubs = [hosts.register(f"hub-{number}", timeout=PATIENCE) for number in range(3)]
        fault = bk.AuthenticationError("no permission")
        faults.fail("transaction", member_path(f"{R}/hosts", "hub-1", LEAF), error=fault)
        with pytest.raises(bk.AuthenticationError):
            hosts.close()
        assert not any(others.is_alive(hubs[number].info) for number in (0, 2))


def test_a_close_of_the_store_ends_hubs(store: bk.MetadataStore) -> None:
    """Without a close of the hosts, too."""
    hosts = Hosts(store, R)
    hub = hosts.register("hub-1", timeout=PATIENCE)
    store.close()
    assert hub.lost.wait(PATIENCE)
    assert hub.held_until() == -math.inf
    hub.leave()
    hosts.close()


def test_a_forked_process_has_no_hubs(fresh_url: Callable[[str], str]) -> None:
    """There, all calls are refused, and none waits for ever."""
    with bk.open_store(fresh_url("memory")) as store, Hosts(store, R) as hosts:
        hub = hosts.register("hub-1", timeout=PATIENCE)

        def refused() -> bool:
            for call in (hosts.hubs, lambda: hosts.is_alive(hub.info), lambda: hub.update(BUSY)):
                try:
                    call()
                except bk.StoreClosedError:
                    continue
                return False
            return hub.held_until() == -math.inf

        assert holds_in_a_child(refused)
