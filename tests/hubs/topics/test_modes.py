"""The mode of ownership of a region: the first hub decides, all others must have the same."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

import batchkeeper as bk
from batchkeeper.hubs import (
    AsyncComparedOwnership,
    AsyncEphemeralOwnership,
    AsyncHosts,
    Claim,
    ComparedOwnership,
    EphemeralOwnership,
    Hosts,
    LayoutError,
    OwnershipMode,
    async_open_managers,
    async_open_ownership,
    format_metadata,
    open_managers,
    open_ownership,
)

R = "/hedwig/eu"


def open_mode(store: bk.MetadataStore, mode: OwnershipMode | None) -> type:
    with open_managers(store, R) as managers, Hosts(store, R) as hosts:
        return type(open_ownership(store, managers, hosts, mode))


def test_the_first_hub_decides(store: bk.MetadataStore) -> None:
    """Others find its mode, or are refused with an error that names both."""
    assert open_mode(store, None) is EphemeralOwnership
    assert not store.exists(f"{R}/ownership").result()
    assert open_mode(store, "compared") is ComparedOwnership
    found = store.get(f"{R}/ownership").result()
    assert found is not None
    assert json.loads(found.value) == {"v": 1, "mode": "compared"}
    assert open_mode(store, "compared") is ComparedOwnership
    assert open_mode(store, None) is ComparedOwnership
    with pytest.raises(LayoutError, match="mode 'compared', not 'ephemeral': all hubs") as refused:
        open_mode(store, "ephemeral")
    assert refused.value.path == f"{R}/ownership"


def test_a_race_ends_in_one_mode(store: bk.MetadataStore) -> None:
    """Of many hubs that start at once, those with the mode of the first one start."""

    def start(number: int) -> type | None:
        try:
            return open_mode(store, "compared" if number % 2 else "ephemeral")
        except LayoutError:
            return None

    with ThreadPoolExecutor(8) as pool:
        found = [*pool.map(start, range(16))]
    assert found.count(None) == 8
    assert len({*found}) == 2


def test_a_class_of_the_other_mode_is_refused(fresh_url: Callable[[str], str]) -> None:
    """It would claim what a hub owns in the mode of the region, or say that nobody owns it."""
    url = fresh_url("memory")
    with bk.open_store(url) as store, open_managers(store, R) as managers, Hosts(store, R) as hosts:
        early = EphemeralOwnership(store, R)  # The region has no mode yet.
        me = hosts.register("hub-1:4080").info
        compared = ComparedOwnership(store, R, managers.ownership, hosts)
        assert isinstance(compared.claim("t", me), Claim)
        for call in (
            lambda: early.claim("t", me),
            lambda: early.look("t"),
            lambda: early.owner("t"),
        ):
            with pytest.raises(LayoutError, match="mode 'compared', not 'ephemeral'"):
                call()
        with pytest.raises(LayoutError, match="mode 'compared', not 'ephemeral'"):
            EphemeralOwnership(store, R)
        store.put(f"{R}/ownership", b'{"v": 1, "mode": "ephemeral"}').result()
        with pytest.raises(LayoutError, match="mode 'ephemeral', not 'compared'"):
            ComparedOwnership(store, R, managers.ownership, hosts)

        async def claim() -> None:
            async with (
                bk.open_async_store(url) as tasks,
                await async_open_managers(tasks, R) as managers,
                AsyncHosts(tasks, R) as hosts,
            ):
                await AsyncComparedOwnership(tasks, R, managers.ownership, hosts).claim("t", me)

        with pytest.raises(LayoutError, match="mode 'ephemeral', not 'compared'"):
            asyncio.run(claim())


@pytest.mark.parametrize("record", [b"", b"[]", b'{"v": 1, "mode": "new"}', b'{"v": 2}'])
def test_a_mode_that_is_not_known(store: bk.MetadataStore, record: bytes) -> None:
    """A damaged record, or one of a later program, is refused and kept."""
    store.put(f"{R}/ownership", record).result()
    with pytest.raises(LayoutError, match=f"{R}/ownership"):
        open_mode(store, "ephemeral")
    found = store.get(f"{R}/ownership").result()
    assert found is not None
    assert found.value == record


def test_a_region_that_is_formatted_has_no_mode(store: bk.MetadataStore) -> None:
    """Its next hub decides again."""
    open_mode(store, "compared")
    format_metadata(store, R)
    assert open_mode(store, "ephemeral") is EphemeralOwnership


def test_tasks() -> None:
    """The same for tasks."""

    async def work() -> type:
        async with (
            bk.open_async_store("memory://modes") as store,
            await async_open_managers(store, R) as managers,
            AsyncHosts(store, R) as hosts,
        ):
            return type(await async_open_ownership(store, managers, hosts))

    assert asyncio.run(work()) is AsyncEphemeralOwnership
