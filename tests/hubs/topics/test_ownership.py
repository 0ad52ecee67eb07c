"""Who owns a topic: the same answers in both modes, on every store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import NamedTuple

import pytest
from kazoo.security import make_acl

import batchkeeper as bk
from batchkeeper.hubs.errors import IllegalOperationError
from batchkeeper.hubs.managers import HubInfo, HubLoad, open_managers
from batchkeeper.hubs.tables import Version
from batchkeeper.hubs.topics import (
    Claim,
    ComparedOwnership,
    EphemeralOwnership,
    Hosts,
    Hub,
    Ownership,
    OwnershipMode,
    Registration,
    Vacancy,
    open_ownership,
)
from batchkeeper.testing import FaultInjector
from batchkeeper.testing.faults import Target

from ...stores.foreign import zookeeper_client
from ...waiting import PATIENCE, result, until

R = "/hedwig/eu"
IDLE = HubLoad()


class Side(NamedTuple):
    """A hub, and how it sees the ownership of topics."""

    store: bk.MetadataStore
    registration: Registration
    ownership: Ownership
    hosts: Hosts

    @property
    def me(self) -> HubInfo:
        """The hub."""
        return self.registration.info

    def claim(self, topic: str | bytes = "t") -> Claim:
        """Claim a topic, and be its owner."""
        claimed = self.ownership.claim(topic, self.me)
        assert isinstance(claimed, Claim)
        assert claimed.owner == self.me
        return claimed


@pytest.fixture(params=["ephemeral", "compared"])
def mode(request: pytest.FixtureRequest) -> OwnershipMode:
    """Each of the modes."""
    found: OwnershipMode = request.param
    return found


@pytest.fixture
def side(
    mode: OwnershipMode, another: Callable[[], bk.MetadataStore]
) -> Iterator[Callable[[str], Side]]:
    """Make a hub with a session of its own, where the store can have several."""
    with ExitStack() as stack:

        def make(address: str) -> Side:
            store = another()
            hosts = stack.enter_context(Hosts(store, R))
            managers = stack.enter_context(open_managers(store, R, "tables"))
            ownership = open_ownership(store, managers, hosts, mode)
            return Side(store, hosts.register(address), ownership, hosts)

        yield make


@pytest.fixture
def one(side: Callable[[str], Side]) -> Side:
    """A hub."""
    return side("hub-1:4080")


@pytest.fixture
def two(side: Callable[[str], Side]) -> Side:
    """Another hub."""
    return side("hub-2:4080")


def test_the_first_claim_wins(one: Side, two: Side) -> None:
    """The others learn who has the topic, as does everybody who asks."""
    assert one.ownership.owner("t") is None
    claim = one.claim()
    assert (claim.topic, claim.epoch) == ("t", 1)
    two.store.sync()
    assert two.ownership.claim("t", two.me) == one.me
    assert one.ownership.owner("t") == two.ownership.owner("t") == one.me
    assert two.claim("other").epoch == 1


def test_a_released_topic_can_be_claimed(one: Side, two: Side) -> None:
    """Each claim has a greater epoch. A release by who has lost the topic changes nothing."""
    first = one.claim()
    assert one.ownership.release(first)
    assert not one.ownership.release(first)
    two.store.sync()
    second = two.claim()
    assert second.epoch == 2
    assert not one.ownership.release(first)
    one.store.sync()
    assert one.ownership.owner("t") == two.me
    assert two.ownership.release(second)
    one.store.sync()
    assert one.claim().epoch == 3


def test_a_claim_is_not_made_twice(one: Side) -> None:
    """A hub that claims its own topic again gets the claim that it has."""
    assert one.claim() == one.claim()


def _reads(store: bk.MetadataStore) -> int:
    operations = store.metrics().operations
    return operations.get("get", 0) + operations.get("sync", 0)


def test_a_claim_need_not_read_what_its_caller_has_just_read(one: Side) -> None:
    """A look that finds no owner has all that the claim needs. A topic that is new has one read."""
    before = _reads(one.store)
    one.claim("new")
    assert _reads(one.store) == before + 1
    seen = one.ownership.look("t")
    assert seen == Vacancy(None)
    before = _reads(one.store)
    assert isinstance(one.ownership.claim("t", one.me, seen), Claim)
    assert _reads(one.store) == before


def test_a_look_shows_the_owner_or_the_epoch(one: Side, two: Side) -> None:
    """Once a topic was claimed, it has an epoch, also without an owner."""
    first = one.claim()
    two.store.sync()
    assert two.ownership.look("t") == one.me
    one.ownership.release(first)
    two.store.sync()
    seen = two.ownership.look("t")
    assert isinstance(seen, Vacancy)
    assert seen.epoch is not None
    claim = two.ownership.claim("t", two.me, seen)
    assert isinstance(claim, Claim)
    assert claim.epoch == 2


@pytest.mark.parametrize("epochs", [0, 1])
def test_an_outdated_look_takes_no_topic_away(one: Side, two: Side, epochs: int) -> None:
    """Whoever has claimed the topic since stays its owner; after a release, the epoch goes on."""
    for _ in range(epochs):
        two.ownership.release(two.claim())
    one.store.sync()
    seen = one.ownership.look("t")
    assert isinstance(seen, Vacancy)
    claim = two.claim()
    assert one.ownership.claim("t", one.me, seen) == two.me
    two.ownership.release(claim)
    again = one.ownership.claim("t", one.me, seen)
    assert isinstance(again, Claim)
    assert again.epoch == claim.epoch + 1
    assert one.ownership.owner("t") == one.me


def test_late_writes_of_a_former_owner_are_refused(one: Side, two: Side) -> None:
    """The check of its claim holds until another hub has claimed the topic, and never again."""
    first = one.claim()
    result(one.store.transaction([first.check, bk.Put("/state", b"1")]))
    one.ownership.release(first)
    result(one.store.transaction([first.check, bk.Put("/state", b"2")]))
    two.store.sync()
    second = two.claim()
    with pytest.raises(bk.TransactionRefusedError):
        result(one.store.transaction([first.check, bk.Put("/state", b"late")]))
    result(two.store.transaction([second.check, bk.Put("/state", b"3")]))
    assert two.ownership.release(second)
    one.store.sync()
    one.claim()
    for old in (first, second):
        with pytest.raises(bk.TransactionRefusedError):
            result(one.store.transaction([old.check, bk.Put("/state", b"late")]))


def test_a_race_has_one_winner(side: Callable[[str], Side]) -> None:
    """Whoever loses gets the winner, never an error, round after round."""
    sides = [side(f"hub-{number}:4080") for number in range(4)]
    with ThreadPoolExecutor(16) as pool:
        for epoch in range(1, 6):
            jobs = [pool.submit(each.ownership.claim, "t", each.me) for each in sides * 4]
            ended = [result(job) for job in jobs]
            claims = {one for one in ended if isinstance(one, Claim)}
            (claim,) = claims
            assert claim.epoch == epoch
            assert {one for one in ended if isinstance(one, HubInfo)} <= {claim.owner}
            (winner,) = [each for each in sides if each.me == claim.owner]
            assert winner.ownership.release(claim)
            for each in sides:
                each.store.sync()


def test_an_owner_that_the_view_does_not_know_yet(
    one: Side, two: Side, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was registered a moment ago. The store is asked before its topic is taken."""
    one.claim()
    two.store.sync()
    monkeypatch.setattr(two.hosts, "hubs", dict)  # The other mode does not ask.
    assert two.ownership.claim("t", two.me) == one.me
    assert two.ownership.owner("t") == one.me


def test_an_earlier_life_in_the_view_is_no_owner(
    one: Side, two: Side, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hub that has lost its session is not sent to itself, because its view lags behind."""
    if not isinstance(one.ownership, ComparedOwnership):
        return  # The other mode has no view.
    earlier = HubInfo(one.me.address, one.me.incarnation - 1)
    with open_managers(one.store, R, "tables") as managers:
        managers.ownership.write_owner_info("t", earlier, Version.NEW)
    monkeypatch.setattr(one.hosts, "hubs", lambda: {earlier.address: Hub(earlier, IDLE)})
    assert one.claim().epoch == 1


@pytest.mark.parametrize("during", ["epoch", "owner"])
def test_a_topic_that_changes_hands_within_a_claim(
    one: Side, two: Side, monkeypatch: pytest.MonkeyPatch, during: str
) -> None:
    """The former owner neither takes the epoch of the next one for its own, nor its topic away."""
    first = one.claim()
    reader, name = one.ownership._epochs, "read"  # type: ignore[attr-defined]
    if during == "owner":
        ephemeral = isinstance(one.ownership, EphemeralOwnership)
        reader = one.store if ephemeral else one.ownership._manager  # type: ignore[attr-defined]
        name = "get" if ephemeral else "read_owner_info"
    read = getattr(reader, name)

    def slow(*args: object, **options: object) -> object:
        found = read(*args, **options)
        monkeypatch.setattr(reader, name, read)
        one.ownership.release(first)
        two.store.sync()
        two.claim()
        one.store.sync()
        return found

    monkeypatch.setattr(reader, name, slow)
    assert one.ownership.claim("t", one.me) == two.me
    assert two.ownership.owner("t") == two.me
    assert two.claim().epoch == 2


def test_a_hub_that_has_left_owns_nothing(one: Side, two: Side, mode: OwnershipMode) -> None:
    """Its topics can be claimed as soon as it is not alive any more, or has released them."""
    claim = one.claim()
    two.store.sync()
    if mode == "compared":
        one.registration.leave()
    elif one.store is two.store:  # They share a session.
        one.ownership.release(claim)
    else:
        one.store.close()
    until(lambda: two.ownership.owner("t") is None)
    assert two.claim().epoch == 2


@pytest.mark.parametrize("damage", [b"", b"hub-1:4080", b'{"v":2}'])
def test_a_damaged_owner_is_replaced(
    one: Side, two: Side, mode: OwnershipMode, damage: bytes
) -> None:
    """It owns nothing, and the next claim takes its place, with a greater epoch."""
    place = {"ephemeral": f"{R}/topics/t/hub", "compared": f"{R}/tables/owners/t"}[mode]
    result(one.store.put(place, damage))
    assert one.ownership.owner("t") is None
    assert one.claim().epoch == 1
    result(one.store.put(place, damage))
    two.store.sync()
    assert two.claim().epoch == 2
    assert two.ownership.owner("t") == two.me


def test_epochs_survive_what_removes_the_owner(one: Side, two: Side, mode: OwnershipMode) -> None:
    """Somebody may remove the owner by hand; the next claim still has a greater epoch."""
    first = one.claim()
    place = {"ephemeral": f"{R}/topics/t/hub", "compared": f"{R}/tables/owners/t"}[mode]
    result(one.store.delete(place))
    two.store.sync()
    assert two.claim().epoch == 2
    with pytest.raises(bk.TransactionRefusedError):
        result(one.store.transaction([first.check, bk.Put("/state", b"late")]))


@pytest.mark.parametrize("topic", ["a/b", "a", "aa", "..", b"\xff", "epoch", "hub"])
def test_topics_of_any_name(one: Side, topic: str | bytes) -> None:
    """Each has an owner and epochs of its own."""
    assert one.claim(topic).epoch == 1
    assert one.ownership.owner(topic) == one.me
    assert one.ownership.owner("b") is None


def test_what_is_no_topic_is_refused(one: Side) -> None:
    """Nothing is sent then."""
    for topic in ("", b"", None, 5):
        with pytest.raises(IllegalOperationError):
            one.ownership.claim(topic, one.me)  # type: ignore[arg-type]
        with pytest.raises(IllegalOperationError):
            one.ownership.owner(topic)  # type: ignore[arg-type]


def test_a_lost_answer_is_no_lost_claim(
    fresh_url: Callable[[str], str], mode: OwnershipMode
) -> None:
    """If the outcome of a claim is unknown, the next read decides."""
    faults = FaultInjector()
    with ExitStack() as stack:
        store = stack.enter_context(bk.open_store(fresh_url("memory"), wrap=faults))
        hosts = stack.enter_context(Hosts(store, R))
        managers = stack.enter_context(open_managers(store, R))
        ownership = open_ownership(store, managers, hosts, mode)
        me = hosts.register("hub-1:4080").info
        faults.fail("transaction", error=bk.IndeterminateError("no answer"))
        claim = ownership.claim("t", me)
        assert isinstance(claim, Claim)
        assert claim.epoch == 1
        faults.lose_answer("transaction")
        claim = ownership.claim("u", me)
        assert isinstance(claim, Claim)
        assert claim.epoch == 1
        result(store.transaction([claim.check, bk.Put("/state", b"")]))


def test_an_earlier_session_of_a_hub_still_owns(fresh_url: Callable[[str], str]) -> None:
    """A hub that was started again waits for the end of what may still serve its topics."""
    url = fresh_url("memory")
    first, second = (HubInfo("hub-1:4080", incarnation) for incarnation in (1, 2))
    with bk.open_store(url) as old, bk.open_store(url) as new:
        ownership = EphemeralOwnership(new, R)
        assert isinstance(EphemeralOwnership(old, R).claim("t", first), Claim)
        assert ownership.claim("t", second) == first
        old.close()
        assert isinstance(ownership.claim("t", second), Claim)


@pytest.mark.server
def test_a_hub_without_permission(fresh_url: Callable[[str], str]) -> None:
    """A claim and a release end with the error of the store: no other hub was faster."""
    url = fresh_url("zookeeper")
    read_only = [make_acl("world", "anyone", read=True, admin=True)]
    unreadable = [make_acl("world", "anyone", write=True, create=True, delete=True, admin=True)]
    with (
        bk.open_store(url, session_timeout=60.0) as store,
        Hosts(store, R) as hosts,
        open_managers(store, R, "tables") as managers,
        zookeeper_client(url) as admin,
    ):
        me = hosts.register("hub-1:4080").info
        modes: list[Ownership] = [
            EphemeralOwnership(store, R),
            ComparedOwnership(store, R, managers.ownership, hosts),
        ]
        for number, ownership in enumerate(modes):
            mine = ownership.claim(f"mine-{number}", me)
            assert isinstance(mine, Claim)
            admin.ensure_path(f"{R}/topics/other-{number}")
            admin.set_acls(f"{R}/topics/other-{number}", read_only)
            with pytest.raises(bk.AuthenticationError):
                ownership.claim(f"other-{number}", me)
            for path in (f"{R}/topics/mine-{number}", mine.check.path):
                admin.set_acls(path, unreadable)
            with pytest.raises(bk.AuthenticationError):
                ownership.release(mine)
            store.delete(f"{R}/ownership").result()  # The region can have one mode only.


def _deletes(target: Target) -> bool:
    return target.options is not None and target.options.parts[-1].kind == "delete"


def test_a_damaged_owner_that_was_replaced_meanwhile_is_not_removed(
    fresh_url: Callable[[str], str],
) -> None:
    """The owner that is there instead has the same version, but another epoch."""
    url, faults = fresh_url("memory"), FaultInjector()
    one, two = HubInfo("hub-1:4080", 1), HubInfo("hub-2:4080", 1)
    with (
        bk.open_store(url, wrap=faults) as store,
        bk.open_store(url) as other,
        ThreadPoolExecutor(1) as pool,
    ):
        result(other.put(f"{R}/topics/t/hub", b"damaged"))
        held = faults.delay("transaction", where=_deletes)
        claiming = pool.submit(EphemeralOwnership(store, R).claim, "t", one)
        held.wait()
        result(other.delete(f"{R}/topics/t/hub"))
        assert isinstance(EphemeralOwnership(other, R).claim("t", two), Claim)
        held.release()
        assert claiming.result(PATIENCE) == two
