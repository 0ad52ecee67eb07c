"""Operations that take effect together with a write of a manager."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import batchkeeper as bk
from batchkeeper.hubs.managers import (
    ConsumeMarks,
    HubInfo,
    LedgerRanges,
    MessageSeqId,
    MetadataManagers,
    SubscriptionData,
    SubscriptionPreferences,
    open_managers,
)
from batchkeeper.hubs.tables import Version

from ...waiting import result

NEW, ANY = Version.NEW, Version.ANY
HUB = HubInfo("hub-1:4080", 7)


@pytest.fixture(params=["paths", "tables"])
def managers(store: bk.MetadataStore, request: pytest.FixtureRequest) -> Iterator[MetadataManagers]:
    """The managers of a new region, in each layout."""
    with open_managers(store, "/region", request.param) as made:
        yield made


def writes(managers: MetadataManagers, **how: Any) -> dict[str, Callable[[], object]]:
    """Return each kind of write, on an existing topic and subscription."""
    owners, persistence = managers.ownership, managers.persistence
    subscriptions, data = managers.subscriptions, SubscriptionData(SubscriptionPreferences())
    return {
        "claim": lambda: owners.write_owner_info("new", HUB, NEW, **how),
        "owner": lambda: owners.write_owner_info("t", HUB, ANY, **how),
        "ranges": lambda: persistence.write_topic_persistence_info("t", LedgerRanges(), ANY, **how),
        "create": lambda: subscriptions.create_subscription_data("t", "new", data, **how),
        "update": lambda: subscriptions.update_subscription_data("t", "s", data, ANY, **how),
        "replace": lambda: subscriptions.replace_subscription_data("t", "s", data, ANY, **how),
        "unsubscribe": lambda: subscriptions.delete_subscription_data("t", "s", ANY, **how),
        "no ranges": lambda: persistence.delete_topic_persistence_info("t", ANY, **how),
        "no owner": lambda: owners.delete_owner_info("t", ANY, **how),
    }


def prepare(managers: MetadataManagers) -> None:
    managers.ownership.write_owner_info("t", HUB, NEW)
    managers.persistence.write_topic_persistence_info("t", LedgerRanges(), NEW)
    managers.subscriptions.create_subscription_data("t", "s", SubscriptionData())


def contents(store: bk.MetadataStore) -> dict[str, tuple[bytes, int]]:
    """Return all values of the region. Generations are no part of what it keeps."""
    return {
        found.path: (found.value, found.stat.version)
        for found in store.scan("/region")
        if "/removals/" not in found.path
    }


def test_a_write_of_a_former_holder_changes_nothing(
    store: bk.MetadataStore, managers: MetadataManagers
) -> None:
    """With the check of a lock beside it, each kind of write takes effect only under the lock."""
    prepare(managers)
    with bk.Lock(store, "/lock") as lock:
        check = lock.check()
        before = contents(store)
    for write in writes(managers, beside=[check]).values():
        with pytest.raises(bk.TransactionRefusedError) as raised:
            write()
        assert raised.value.index == 0
    (ended,) = managers.subscriptions.advance_marks(
        [("t", "s", MessageSeqId(1))], lambda _: (check,)
    )
    assert isinstance(ended, bk.TransactionRefusedError)
    assert contents(store) == before


def test_a_write_and_what_is_beside_it_are_one(
    store: bk.MetadataStore, managers: MetadataManagers
) -> None:
    """Each write moves the value beside it on by one; a refused one does not."""
    prepare(managers)
    result(store.put("/count", b""))
    for count, name in enumerate(writes(managers)):
        writes(managers, beside=(bk.Put("/count", b"", count),))[name]()
        stat = result(store.get("/count")).stat  # type: ignore[union-attr]
        assert stat.version == count + 1
    with pytest.raises(bk.BadVersionError):
        managers.ownership.write_owner_info(
            "new", HUB, Version(0, 0), beside=(bk.Put("/count", b""),)
        )
    assert result(store.get("/count")).stat.version == stat.version  # type: ignore[union-attr]


def test_writes_that_outrun_each_other_keep_what_is_beside_them(
    store: bk.MetadataStore, managers: MetadataManagers
) -> None:
    """Each of them is tried again together with its own operation, and takes effect once."""
    prepare(managers)

    def write(number: int) -> Version:
        beside = (bk.Put(f"/beside/{number}", b"", bk.ABSENT),)
        return managers.ownership.write_owner_info("t", HUB, ANY, beside=beside)

    with ThreadPoolExecutor(8) as pool:
        versions = [*pool.map(write, range(40))]
    assert len({*versions}) == 40
    assert len(result(store.get_children("/beside"))) == 40


def test_marks_of_a_lost_topic_are_refused(
    store: bk.MetadataStore, managers: MetadataManagers
) -> None:
    """Those of other topics are written, in the same batch."""
    for topic in ("mine", "lost"):
        managers.subscriptions.create_subscription_data(topic, "s", SubscriptionData())
        result(store.put(f"/epochs/{topic}", b""))
    result(store.put("/epochs/lost", b""))
    marks = ConsumeMarks(
        managers.subscriptions, beside=lambda topic: (bk.Check(f"/epochs/{topic!s}", 0),)
    )
    for topic in ("lost", "mine"):
        marks.consumed(topic, "s", MessageSeqId(3))
    with pytest.raises(bk.TransactionRefusedError):
        marks.flush()
    for topic, written in (("lost", False), ("mine", True)):
        found = managers.subscriptions.read_subscription_data(topic, "s")
        assert found is not None
        assert (found.value.state is not None) is written
    with pytest.raises(bk.TransactionRefusedError):
        marks.release("lost")
    marks.close()
