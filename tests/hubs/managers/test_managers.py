"""The managers of topics' metadata: the same answers in both layouts, on every store."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any, NamedTuple

import pytest

import batchkeeper as bk
from batchkeeper.hubs.errors import (
    HubsRegisteredError,
    IllegalOperationError,
    KeyExistsError,
    LayoutError,
    NoKeyError,
    NoSubscriptionStateError,
    NoTopicOwnerInfoError,
    NoTopicPersistenceInfoError,
    SubscriptionStateExistsError,
    TopicOwnerInfoExistsError,
    TopicPersistenceInfoExistsError,
)
from batchkeeper.hubs.formats import dumped
from batchkeeper.hubs.managers import (
    HubInfo,
    Layout,
    LedgerRange,
    LedgerRanges,
    MessageSeqId,
    MetadataManagers,
    SubscriptionData,
    SubscriptionDataManager,
    SubscriptionPreferences,
    SubscriptionState,
    TopicOwnershipManager,
    format_metadata,
    open_managers,
)
from batchkeeper.hubs.tables import DamagedRecordError, MetaStore, Version

from ...waiting import PATIENCE, result

NEW, ANY = Version.NEW, Version.ANY
REGION = "/hedwig/eu"
ONE, TWO = HubInfo("hub-1:4080", 7), HubInfo("hub-2:4080", 8)
LAYOUTS: tuple[Layout, ...] = ("paths", "tables")


@pytest.fixture(params=LAYOUTS)
def managers(store: bk.MetadataStore, request: pytest.FixtureRequest) -> Iterator[MetadataManagers]:
    """The managers of a new region, in each layout."""
    with open_managers(store, REGION, request.param) as made:
        yield made


@pytest.fixture
def owners(managers: MetadataManagers) -> TopicOwnershipManager:
    """The manager of topic ownership."""
    return managers.ownership


@pytest.fixture
def subscriptions(managers: MetadataManagers) -> SubscriptionDataManager:
    """The manager of subscriptions."""
    return managers.subscriptions


def at(number: int) -> SubscriptionData:
    """Return subscription data with a state only."""
    return SubscriptionData(state=SubscriptionState(MessageSeqId(number)))


def wants(name: str) -> SubscriptionData:
    """Return subscription data with preferences only."""
    return SubscriptionData(SubscriptionPreferences(message_filter=name))


# --- one value for each topic


class Values(NamedTuple):
    """A manager of one value for each topic, by what its methods are called."""

    read: Any
    write: Any
    delete: Any
    first: Any
    second: Any
    missing: type[NoKeyError]
    exists: type[KeyExistsError]


@pytest.fixture(params=["ownership", "persistence"])
def values(managers: MetadataManagers, request: pytest.FixtureRequest) -> Values:
    """The two managers of one value for each topic."""
    if request.param == "ownership":
        owners = managers.ownership
        return Values(
            owners.read_owner_info,
            owners.write_owner_info,
            owners.delete_owner_info,
            ONE,
            TWO,
            NoTopicOwnerInfoError,
            TopicOwnerInfoExistsError,
        )
    persistence = managers.persistence
    return Values(
        persistence.read_topic_persistence_info,
        persistence.write_topic_persistence_info,
        persistence.delete_topic_persistence_info,
        LedgerRanges((LedgerRange(5),)),
        LedgerRanges((LedgerRange(5, MessageSeqId(9), MessageSeqId(1)), LedgerRange(2**63 - 1))),
        NoTopicPersistenceInfoError,
        TopicPersistenceInfoExistsError,
    )


def test_a_value_is_created_written_and_deleted(values: Values) -> None:
    """Each write returns the version that the next one needs."""
    assert values.read("t") is None
    first = values.write("t", values.first, NEW)
    assert values.read("t") == (values.first, first)
    second = values.write("t", values.second, first)
    assert values.read("t") == (values.second, second)
    third = values.write("t", values.first, ANY)
    assert values.read("t") == (values.first, third)
    assert len({first, second, third}) == 3
    values.delete("t", third)
    assert values.read("t") is None


def test_a_missing_value_is_an_error_of_its_own(values: Values) -> None:
    """Neither ANY nor the version of another topic creates or deletes it."""
    other = values.write("other", values.first, NEW)
    for version in (ANY, other):
        with pytest.raises(values.missing, match="topic 't' has no"):
            values.write("t", values.first, version)
    for version in (ANY, other, NEW):
        with pytest.raises(values.missing):
            values.delete("t", version)
    assert values.read("t") is None


def test_another_version_is_refused(values: Values) -> None:
    """A value at another version stays as it is; NEW finds it there, and never deletes it."""
    old = values.write("t", values.first, NEW)
    now = values.write("t", values.second, old)
    with pytest.raises(values.exists, match="topic 't' has"):
        values.write("t", values.first, NEW)
    with pytest.raises(bk.BadVersionError):
        values.write("t", values.first, old)
    for version in (old, NEW):
        with pytest.raises(bk.BadVersionError):
            values.delete("t", version)
    assert values.read("t") == (values.second, now)
    values.delete("t", ANY)
    again = values.write("t", values.first, NEW)
    for version in (old, now):
        with pytest.raises(bk.BadVersionError):
            values.write("t", values.second, version)
    assert values.read("t") == (values.first, again)


def test_what_is_no_version_is_refused(values: Values) -> None:
    """It is the same error for both kinds of writes, whether the value is there or not."""
    wrong: list[Any] = [0, -1, "1", None, (0, 0)]
    for _ in range(2):
        for version in wrong:
            with pytest.raises(IllegalOperationError, match="a version must be"):
                values.write("t", values.first, version)
            with pytest.raises(IllegalOperationError, match="a version must be"):
                values.delete("t", version)
        if values.read("t") is None:
            values.write("t", values.first, NEW)


def test_what_is_no_topic_or_value_is_refused(values: Values) -> None:
    """Nothing is sent then."""
    for value in (None, b"hub", {"address": "hub"}, MessageSeqId(1)):
        with pytest.raises(IllegalOperationError, match="the value must be a"):
            values.write("t", value, NEW)
    for topic in ("", b"", None, 5, "\ud800"):
        with pytest.raises(IllegalOperationError):
            values.read(topic)
        with pytest.raises(IllegalOperationError):
            values.write(topic, values.first, NEW)
        with pytest.raises(IllegalOperationError):
            values.delete(topic, ANY)
    assert values.read("t") is None


def test_one_of_many_claims_wins(owners: TopicOwnershipManager) -> None:
    """The others learn of it: by NEW that there is an owner, by a version that it is another."""

    def claim(number: int, version: Version) -> bool:
        try:
            owners.write_owner_info("t", HubInfo("hub", number), version)
        except (bk.BadVersionError, TopicOwnerInfoExistsError):
            return False
        return True

    with ThreadPoolExecutor(16) as pool:
        for _ in range(3):
            found = owners.read_owner_info("t")
            version = found.version if found else NEW
            won = [*pool.map(lambda number: claim(number, version), range(16))]  # noqa: B023
            after = owners.read_owner_info("t")
            assert sum(won) == 1
            assert after is not None
            assert after.value == HubInfo("hub", won.index(True))


def test_many_owners_are_written_together(owners: TopicOwnershipManager) -> None:
    """Each write has the version or the error that it would have alone."""
    old = owners.write_owner_info("old", ONE, NEW)
    now = owners.write_owner_info("old", TWO, old)
    owners.write_owner_info("any", ONE, NEW)
    writes = [
        *((f"new-{number}", TWO, NEW) for number in range(3_000)),
        ("old", ONE, NEW),
        ("any", TWO, ANY),
        ("missing", TWO, ANY),
        ("new/other", TWO, now),
    ]
    ended = owners.write_owner_infos(writes)
    assert [type(one) for one in ended[3_000:]] == [
        TopicOwnerInfoExistsError,
        Version,
        NoTopicOwnerInfoError,
        NoTopicOwnerInfoError,
    ]
    for at in (0, 1_700, 2_999, 3_001):
        topic, owner, _ = writes[at]
        assert owners.read_owner_info(topic) == (owner, ended[at])
    again = owners.write_owner_infos([("old", ONE, old), ("any", ONE, ended[3_001])])  # type: ignore[list-item]
    assert isinstance(again[0], bk.BadVersionError)
    assert owners.read_owner_info("any") == (ONE, again[1])
    assert owners.read_owner_info("old") == (TWO, now)
    for bad in (("", ONE, NEW), ("t", None, NEW), ("t", ONE, 0), (b"fine", ONE, ANY)):
        with pytest.raises(IllegalOperationError):
            owners.write_owner_infos([("fine", ONE, NEW), bad])  # type: ignore[list-item]
    assert owners.read_owner_info("fine") is None
    assert owners.write_owner_infos([]) == []


def test_versions_of_other_topics_do_not_match(owners: TopicOwnershipManager) -> None:
    """Also if both topics were claimed by one call, and so by one transaction."""
    one, two = owners.write_owner_infos([("one", ONE, NEW), ("two", ONE, NEW)])
    assert isinstance(one, Version)
    assert isinstance(two, Version)
    with pytest.raises(bk.BadVersionError):
        owners.write_owner_info("two", TWO, one)
    with pytest.raises(bk.BadVersionError):
        owners.delete_owner_info("one", two)


def test_an_outage_among_many_writes_is_told_for_each(
    store: bk.MetadataStore, owners: TopicOwnershipManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Claims that came before it have their versions."""
    owners.write_owner_info("old", ONE, NEW)
    apply = store.apply

    def unavailable(ops: Any) -> list[bk.Outcome]:
        if all(isinstance(op, bk.Get) and "old" in op.path for op in ops):
            raise bk.StoreUnavailableError("no answer")
        return apply(ops)

    with monkeypatch.context() as patch:
        patch.setattr(store, "apply", unavailable)
        new, old = owners.write_owner_infos([("new", ONE, NEW), ("old", TWO, ANY)])
    assert isinstance(old, bk.StoreUnavailableError)
    assert owners.read_owner_info("new") == (ONE, new)


def test_many_owners_meet_other_writers(owners: TopicOwnershipManager) -> None:
    """Writes at any version that meet each other all take effect."""
    topics = [f"t{number}" for number in range(50)]
    owners.write_owner_infos([(topic, ONE, NEW) for topic in topics])
    with ThreadPoolExecutor(6) as pool:
        rounds = [
            *pool.map(lambda _: owners.write_owner_infos([(t, TWO, ANY) for t in topics]), range(6))
        ]
    for versions in zip(*rounds, strict=True):
        assert all(isinstance(version, Version) for version in versions)
        assert len({*versions}) == len(versions)


# --- damage


def path_of(managers: MetadataManagers, kind: str) -> str:
    """Return the path at which the metadata of topic t is, or of its subscriber s."""
    return {
        ("paths", "owner"): f"{REGION}/topics/t/hub",
        ("paths", "ranges"): f"{REGION}/topics/t/ledgers",
        ("paths", "subscription"): f"{REGION}/topics/t/subscribers/s",
        ("tables", "owner"): f"{REGION}/tables/owners/t",
        ("tables", "ranges"): f"{REGION}/tables/persistence/t",
        ("tables", "subscription"): f"{REGION}/tables/subscriptions:t/s",
    }[managers.layout, kind]


DAMAGED = (
    b"",
    b"\xff\xfe{\x00}\x00",
    b'{"v":1,"fields":{"\\ud800":"x"}}',
    b'{"v":1,"fields":{},"n":1e999}',
    b'{"v":1,"fields":{"owner":"{\\"v\\":1,\\"n\\":NaN,\\"address\\":\\"a\\",\\"incarnation\\":1}"}}',
    b'{"v":true,"fields":{}}',
    b"hub-1:4080",
    b'{"v":2,"fields":{}}',
    b'{"v":1,"fields":{}}',
    b'{"v":1,"fields":{"owner":"no JSON"}}',
    b'{"v":1,"fields":{"owner":"{\\"v\\":1,\\"address\\":5,\\"incarnation\\":1}"}}',
)


@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_owner_can_be_replaced(
    store: bk.MetadataStore, managers: MetadataManagers, damage: bytes
) -> None:
    """It reads as none, with the version that a claim needs; two claims cannot both use it."""
    owners, path = managers.ownership, path_of(managers, "owner")
    for write in (None, ONE):
        if write is not None:
            owners.delete_owner_info("t", ANY)
            owners.write_owner_info("t", write, NEW)
        result(store.put(path, damage))
        found = owners.read_owner_info("t")
        assert found is not None
        assert found.value is None
        claimed = owners.write_owner_info("t", TWO, found.version)
        with pytest.raises(bk.BadVersionError):
            owners.write_owner_info("t", ONE, found.version)
        assert owners.read_owner_info("t") == (TWO, claimed)
    result(store.put(path, damage))
    damaged = owners.read_owner_info("t")
    assert damaged is not None
    owners.delete_owner_info("t", damaged.version)
    assert owners.read_owner_info("t") is None


def test_versions_from_before_a_damage_never_match(
    store: bk.MetadataStore, managers: MetadataManagers
) -> None:
    """Neither after the damage was replaced, nor after that was deleted and created again."""
    owners, path = managers.ownership, path_of(managers, "owner")
    seen = [owners.write_owner_info("t", ONE, NEW)]
    for _ in range(3):
        seen.append(owners.write_owner_info("t", TWO, ANY))
        result(store.put(path, b"damage"))
        damaged = owners.read_owner_info("t")
        assert damaged is not None
        seen.append(owners.write_owner_info("t", ONE, damaged.version))
        owners.delete_owner_info("t", ANY)
        seen.append(owners.write_owner_info("t", TWO, NEW))
    assert len(set(seen)) == len(seen)
    for version in seen[:-1]:
        with pytest.raises(bk.BadVersionError):
            owners.write_owner_info("t", ONE, version)


def test_other_damage_is_a_clear_error(store: bk.MetadataStore, managers: MetadataManagers) -> None:
    """It names what cannot be read, and the version at which it can be removed."""
    result(store.put(path_of(managers, "ranges"), b'{"v":1,"fields":{"ranges":"[]"}}'))
    with pytest.raises(DamagedRecordError, match="topic 't' is no LedgerRanges") as raised:
        managers.persistence.read_topic_persistence_info("t")
    managers.persistence.delete_topic_persistence_info("t", raised.value.at)

    result(store.put(path_of(managers, "subscription"), b'{"v":1,"fields":{"state":"{}"}}'))
    for read in (
        lambda: managers.subscriptions.read_subscription_data("t", "s"),
        lambda: managers.subscriptions.read_subscriptions("t"),
    ):
        with pytest.raises(DamagedRecordError, match="'s' to topic 't'") as raised:
            read()
    managers.subscriptions.delete_subscription_data("t", "s", raised.value.at)
    assert managers.subscriptions.read_subscriptions("t") == {}


def test_unknown_members_survive(store: bk.MetadataStore, managers: MetadataManagers) -> None:
    """An older program that reads and writes a value keeps what a newer one has added."""
    newer = b'{"v":1,"address":"hub-1:4080","incarnation":7,"zone":{"rack":[1]}}'
    tables = MetaStore(store, REGION)
    if managers.layout == "tables":
        owners = tables.create_table("owners")
        owners.put("t", {"owner": newer, "note": b"stays"}, NEW)
    else:
        owner = dumped({"fields": {"owner": newer.decode()}})
        result(store.put(path_of(managers, "owner"), owner))
    found = managers.ownership.read_owner_info("t")
    assert found is not None
    assert found.value is not None
    assert found.value.unknown == {"zone": {"rack": [1]}}
    managers.ownership.write_owner_info("t", found.value, found.version)
    raw = result(store.get(path_of(managers, "owner")))
    assert raw is not None
    assert b"rack" in raw.value
    assert managers.layout == "paths" or b"stays" in raw.value


def test_unknown_members_of_a_record_survive(
    store: bk.MetadataStore, managers: MetadataManagers
) -> None:
    """Also those beside the fields."""
    version = managers.ownership.write_owner_info("t", ONE, NEW)
    path = path_of(managers, "owner")
    raw = result(store.get(path))
    assert raw is not None
    result(store.put(path, raw.value[:-1] + b',"newer":[1]}'))
    with pytest.raises(bk.BadVersionError):
        managers.ownership.write_owner_info("t", TWO, version)
    now = managers.ownership.write_owner_info("t", TWO, ANY)
    assert managers.ownership.read_owner_info("t") == (TWO, now)
    after = result(store.get(path))
    assert after is not None
    assert b'"newer":[1]' in after.value


# --- subscriptions


def test_a_subscription_is_created_updated_and_deleted(
    subscriptions: SubscriptionDataManager,
) -> None:
    """An update changes the parts that it has; the others stay."""
    assert subscriptions.is_partial_update_supported()
    assert subscriptions.read_subscription_data("t", "s") is None
    first = subscriptions.create_subscription_data("t", "s", at(0))
    assert subscriptions.read_subscription_data("t", "s") == (at(0), first)
    second = subscriptions.update_subscription_data("t", "s", wants("f"), first)
    both = SubscriptionData(wants("f").preferences, at(0).state)
    assert subscriptions.read_subscription_data("t", "s") == (both, second)
    third = subscriptions.update_subscription_data("t", "s", at(9), ANY)
    both = SubscriptionData(wants("f").preferences, at(9).state)
    assert subscriptions.read_subscription_data("t", "s") == (both, third)
    with pytest.raises(bk.BadVersionError):
        subscriptions.delete_subscription_data("t", "s", second)
    subscriptions.delete_subscription_data("t", "s", third)
    assert subscriptions.read_subscription_data("t", "s") is None


def test_replace_replaces(subscriptions: SubscriptionDataManager) -> None:
    """A part that is left out is gone."""
    both = SubscriptionData(wants("f").preferences, at(3).state)
    version = subscriptions.create_subscription_data("t", "s", both)
    version = subscriptions.replace_subscription_data("t", "s", at(4), version)
    assert subscriptions.read_subscription_data("t", "s") == (at(4), version)
    version = subscriptions.replace_subscription_data("t", "s", SubscriptionData(), ANY)
    assert subscriptions.read_subscription_data("t", "s") == (SubscriptionData(), version)


@pytest.mark.parametrize("method", ["update_subscription_data", "replace_subscription_data"])
def test_refused_changes_of_a_subscription(
    subscriptions: SubscriptionDataManager, method: str
) -> None:
    """Each refusal has its error, and changes nothing; NEW is never the version of one."""
    change = getattr(subscriptions, method)
    for version in (ANY, NEW):
        with pytest.raises(NoSubscriptionStateError, match="topic 't' has no subscriber 's'"):
            change("t", "s", at(1), version)
        with pytest.raises(NoSubscriptionStateError):
            subscriptions.delete_subscription_data("t", "s", version)
    old = subscriptions.create_subscription_data("t", "s", at(1))
    with pytest.raises(SubscriptionStateExistsError, match="topic 't' has the subscriber 's'"):
        subscriptions.create_subscription_data("t", "s", at(2))
    now = change("t", "s", at(3), old)
    for version in (old, NEW):
        with pytest.raises(bk.BadVersionError):
            change("t", "s", at(4), version)
        with pytest.raises(bk.BadVersionError):
            subscriptions.delete_subscription_data("t", "s", version)
    for version in (None, 0, "x"):
        with pytest.raises(IllegalOperationError):
            change("t", "s", at(4), version)
    for data in (None, at(4).state, SubscriptionData("x"), SubscriptionData(None, 5)):  # type: ignore[arg-type]
        with pytest.raises(IllegalOperationError, match="the data of a subscription"):
            change("t", "s", data, ANY)
    assert subscriptions.read_subscription_data("t", "s") == (at(3), now)


def test_updates_of_both_parts_meet(subscriptions: SubscriptionDataManager) -> None:
    """Neither update loses what the other has written."""
    subscriptions.create_subscription_data("t", "s", SubscriptionData())
    with ThreadPoolExecutor(8) as pool:
        jobs = [
            pool.submit(subscriptions.update_subscription_data, "t", "s", data, ANY)
            for number in range(20)
            for data in (at(number), wants(str(number)))
        ]
        last = {pool.submit(result, job) for job in jobs}
    assert all(job.exception() is None for job in last)
    found = subscriptions.read_subscription_data("t", "s")
    assert found is not None
    assert found.value.preferences is not None
    assert found.value.state is not None


NAMES: tuple[str | bytes, ...] = (
    *("a", "aa", "a/b", "a.", ".", "..", "a%2Fb", "a!2fb", "A", " ", "\n", "\x00", "é", "e\u0301"),
    *("subscribers", "hub", "日本", b"\xff", b"\xfe\x00", "~", "a~", "x" * 200),
)


def test_no_two_names_collide(managers: MetadataManagers) -> None:
    """Topics and subscribers of any name have their own metadata."""
    for number, topic in enumerate(NAMES):
        managers.ownership.write_owner_info(topic, HubInfo("hub", number), NEW)
        for subscriber in NAMES[: number + 1]:
            managers.subscriptions.create_subscription_data(topic, subscriber, at(number))
    for number, topic in enumerate(NAMES):
        found = managers.ownership.read_owner_info(topic)
        assert found is not None
        assert found.value == HubInfo("hub", number)
        listed = managers.subscriptions.read_subscriptions(topic)
        assert {name.encode("utf-8", "surrogateescape") for name in listed} == {
            name.encode() if isinstance(name, str) else name for name in NAMES[: number + 1]
        }
        assert {one.value for one in listed.values()} == {at(number)}
        for name in listed:
            assert managers.subscriptions.read_subscription_data(topic, name) == listed[name]


@pytest.mark.slow
def test_subscriptions_of_a_topic_are_read_together(
    store: bk.MetadataStore, managers: MetadataManagers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They take a few requests, and one that vanishes meanwhile is left out."""
    subscriptions = managers.subscriptions
    assert subscriptions.read_subscriptions("t") == {}
    with ThreadPoolExecutor(8) as pool:
        names = [f"s{number:04}" for number in range(2_000)]
        versions = [
            *pool.map(lambda name: subscriptions.create_subscription_data("t", name, at(1)), names)
        ]
    get_children, calls = store.get_children, []

    def listing(path: str) -> Any:
        listed = get_children(path)
        if not calls:
            calls.append(result(listed))
            subscriptions.delete_subscription_data("t", "s0007", ANY)
        return listed

    monkeypatch.setattr(store, "get_children", listing)
    found = subscriptions.read_subscriptions("t")
    assert "s0007" in calls[0]
    assert {name: one.version for name, one in found.items()} == {
        name: version for name, version in zip(names, versions, strict=True) if name != "s0007"
    }


# --- the layout of a region


def test_the_first_layout_stays(store: bk.MetadataStore) -> None:
    """Who wants another one is refused; who wants any gets the one that is there."""
    with open_managers(store, REGION, "tables") as first:
        assert first.layout == "tables"
    with open_managers(store, REGION) as second:
        assert second.layout == "tables"
    with pytest.raises(LayoutError, match="has the layout 'tables', not 'paths'"):
        open_managers(store, REGION, "paths")
    with open_managers(store, "/hedwig/us") as other:
        assert other.layout == "paths"


def test_a_race_of_many_ends_in_one_layout(store_url: str, store: bk.MetadataStore) -> None:
    """All who were first in their own eyes have the same layout; the others are refused."""
    with ExitStack() as stack:
        # RocksDB has one opener at a time.
        alone = store_url.startswith("rocksdb")
        stores = [store, store if alone else stack.enter_context(bk.open_store(store_url))]
        start = threading.Barrier(50)

        def opened(number: int) -> str | None:
            start.wait(PATIENCE)
            try:
                with open_managers(stores[number // 2 % 2], REGION, LAYOUTS[number % 2]) as made:
                    return made.layout
            except LayoutError:
                return None

        with ThreadPoolExecutor(50) as pool:
            layouts = [*pool.map(opened, range(50))]
    assert layouts.count(None) == 25
    assert len({*layouts}) == 2


@pytest.mark.parametrize(
    "record", [b"", b"tables", b'{"v":1,"layout":"hbase","version":1}', b'{"v":1,"layout":"paths"}']
)
def test_an_unknown_layout_is_refused(store: bk.MetadataStore, record: bytes) -> None:
    """A newer program, or somebody else, may have written it."""
    result(store.put(f"{REGION}/layout", record))
    for layout in (None, "paths"):
        with pytest.raises(LayoutError, match=r"eu/layout (holds no|has a) layout"):
            open_managers(store, REGION, layout)  # type: ignore[arg-type]


def test_bad_arguments_of_managers(store: bk.MetadataStore) -> None:
    """They are refused before anything is written."""
    with pytest.raises(bk.InvalidSettingError, match="layout must be one of"):
        open_managers(store, REGION, "flat")  # type: ignore[arg-type]
    with pytest.raises(bk.InvalidPathError):
        open_managers(store, "region")
    assert result(store.get_children("/")) == []


def test_format_removes_all(store: bk.MetadataStore, managers: MetadataManagers) -> None:
    """It refuses while a hub is registered, unless it is forced; other regions stay."""
    other = open_managers(store, "/hedwig/us", "paths")
    other.ownership.write_owner_info("t", ONE, NEW)
    managers.ownership.write_owner_info("t", ONE, NEW)
    managers.persistence.write_topic_persistence_info("t", LedgerRanges(), NEW)
    managers.subscriptions.create_subscription_data("t", "s", at(1))
    result(store.put(f"{REGION}/hosts/hub-1:4080", b""))
    result(store.put(f"{REGION}/hosts/hub-2:4080/alive", b""))
    with pytest.raises(HubsRegisteredError, match=r"1 hubs .* such as hub-2:4080"):
        format_metadata(store, REGION)
    with pytest.raises(bk.InvalidSettingError, match="force must be True or False, not 'false'"):
        format_metadata(store, REGION, force="false")  # type: ignore[arg-type]
    assert managers.ownership.read_owner_info("t") is not None
    assert format_metadata(store, REGION, force=True) >= 4
    assert managers.ownership.read_owner_info("t") is None
    assert managers.subscriptions.read_subscriptions("t") == {}
    result(store.delete(f"{REGION}/hosts/hub-2:4080/alive"))
    format_metadata(store, REGION)
    changed: Layout = "tables" if managers.layout == "paths" else "paths"
    with open_managers(store, REGION, changed) as again:
        assert again.ownership.read_owner_info("t") is None
    assert other.ownership.read_owner_info("t") is not None
    result(store.put("/app/topics/t", b"another program's"))
    assert format_metadata(store, "/app") == 0
    assert result(store.exists("/app/topics/t"))


def test_closed_managers_refuse_calls(store: bk.MetadataStore, managers: MetadataManagers) -> None:
    """The store stays open."""
    managers.close()
    for call in (
        lambda: managers.ownership.read_owner_info("t"),
        lambda: managers.persistence.delete_topic_persistence_info("t", ANY),
        lambda: managers.subscriptions.read_subscriptions("t"),
        lambda: managers.subscriptions.create_subscription_data("t", "s", at(1)),
    ):
        with pytest.raises(bk.StoreClosedError):
            call()
    result(store.get("/x"))
