# async:
# `_sync/ownership.py` is generated from this file: after a change, run `python tools/faces.py`.
# end
"""The owner of a topic: one hub at a time, each with its own epoch.

One transaction writes a claim and the next epoch of the topic. An epoch is the version of a path
that is never removed, so it only grows. A hub makes every write about its topic conditional on its
epoch: once another hub has claimed the topic, such writes no longer take effect.

There are two modes. In the mode ``"ephemeral"``, the owner is an ephemeral value, which ends with
the session of its hub. In the mode ``"compared"``, the manager of topic ownership stores the owner,
which is valid as long as the incarnation that it names is alive.

A region has one mode. Both classes refuse a region that has the other one: each would claim topics
that a hub owns in the other mode.
"""

from __future__ import annotations

from typing import Protocol

from ...batching import AsyncMetadataStore
from ...coordination.async_conflicts import AsyncConflicts
from ...coordination.async_kinds import async_check_face, async_check_store
from ...ops.errors import (
    BadVersionError,
    IndeterminateError,
    MetadataStoreError,
    TransactionRefusedError,
    ValueDecodeError,
    check_conflict,
)
from ...ops.operations import ABSENT, Check, Delete, Put
from ...ops.paths import check_path
from ...ops.results import GetResult
from ..errors import NoTopicOwnerInfoError, TopicOwnerInfoExistsError
from ..managers.async_factory import AsyncMetadataManagers
from ..managers.async_topics import AsyncTopicOwnershipManager
from ..managers.data import HubInfo
from ..names import escaped, name_text
from ..tables import DamagedRecordError, Version
from .async_hosts import AsyncHosts
from .async_modes import async_mode_of
from .region import Claim, OwnershipMode, Vacancy

__all__ = [
    "AsyncComparedOwnership",
    "AsyncEphemeralOwnership",
    "AsyncOwnership",
    "async_open_ownership",
]


class AsyncOwnership(Protocol):
    """The interface of both modes."""

    async def owner(self, topic: str | bytes) -> HubInfo | None:
        """Return the hub that owns a topic; ``None`` if it has no owner.

        Raises:
            IllegalOperationError: the topic is invalid.
            MetadataStoreError: a read has failed.
        """

    async def look(self, topic: str | bytes) -> HubInfo | Vacancy:
        """Return the hub that owns a topic, or the vacancy from which a claim starts.

        On ZooKeeper, the result may miss very recent writes of others.

        Raises:
            IllegalOperationError: the topic is invalid.
            MetadataStoreError: a read has failed.
        """

    async def claim(
        self, topic: str | bytes, me: HubInfo, seen: Vacancy | None = None
    ) -> Claim | HubInfo:
        """Claim a topic for a live hub; return the claim, or the hub that owns the topic.

        Args:
            topic: the topic.
            me: the hub.
            seen: the result of ``look``, which saves reads. If it is outdated, the claim reads
                again.

        Raises:
            IllegalOperationError: the topic is invalid.
            SessionLostError: the session of the store has ended.
            MetadataStoreError: a request has failed permanently.
        """

    async def release(self, claim: Claim) -> bool:
        """Release a topic, so that others can claim it; return whether it was still owned.

        Raises:
            MetadataStoreError: the request has failed; see its ``outcome``.
        """


class _Epochs:
    """The epochs of the topics of a region. The value of an epoch is the hub that began it.

    It also makes sure that the region has the mode of its user.
    """

    def __init__(self, store: AsyncMetadataStore, region: str, mode: OwnershipMode) -> None:
        async_check_store(store, "the ownership of topics", "transactions")
        self.store = store
        self._region = check_path(region)
        self._topics = f"{region}/topics"
        self._lags = "linearizable_reads" not in store.capabilities
        self._mode = mode
        self._agreed = False  # Whether the region has this mode. Any task or thread may set it.
        # sync:
        # | self.check_mode(claims=False)
        # end

    async def check_mode(self, *, claims: bool) -> None:
        """Check that the region has this mode; before a claim, give it the mode if it has none.

        Raises:
            LayoutError: the region has another mode.
        """
        if not self._agreed:
            found = await async_mode_of(self.store, self._region, self._mode, write=claims)
            self._agreed = found is not None

    def path(self, topic: str | bytes) -> str:
        return f"{self._topics}/{escaped(topic)}/epoch"

    async def read(self, topic: str | bytes) -> GetResult | None:
        return await self.store.get(self.path(topic))

    def check(self, topic: str | bytes, found: GetResult | None) -> Check:
        """Return the condition that the epoch that was read is still the current one."""
        return Check(self.path(topic), ABSENT if found is None else found.stat.version)

    def next(self, topic: str | bytes, me: HubInfo, found: GetResult | None) -> tuple[Put, Claim]:
        """Return the put that begins the next epoch, and the resulting claim."""
        before = ABSENT if found is None else found.stat.version
        put = Put(self.path(topic), me.encoded(), before)
        return put, _claim(topic, me, put.path, before + 1)

    async def present(
        self, topic: str | bytes, me: HubInfo, found: GetResult | None
    ) -> Claim | None:
        """Return the claim of a hub, if the epoch that was read shows that it owns the topic.

        That is so if this hub began the epoch, and the epoch is still the current one. The hub does
        not know of its claim because the answer was lost.
        """
        again = await self.read(topic)
        if found is None or again is None or _info_of(found) != me:
            return None
        if again.stat.version != found.stat.version:
            return None
        return _claim(topic, me, found.stat.path, found.stat.version)

    def conflicts(self, topic: str | bytes) -> AsyncConflicts:
        """Return the pauses of a claim."""
        return AsyncConflicts(self.store.operation_timeout, self.path(topic))

    async def pause(
        self, conflicts: AsyncConflicts, error: MetadataStoreError | None = None
    ) -> None:
        """Wait before the next attempt, which then sees the writes of others."""
        await conflicts.pause(error)
        if self._lags:
            await self.store.sync()


class AsyncEphemeralOwnership:
    """The owner of a topic is an ephemeral value at ``REGION/topics/TOPIC/hub``.

    Args:
        store: the store of the hub.
        region: the path of the region. If it has no mode yet, the first claim gives it this one.

    Raises:
        LayoutError: the region has the other mode. In asyncio, the first call raises this error.
        UnsupportedError: the store has no transactions.
    """

    def __init__(self, store: AsyncMetadataStore, region: str) -> None:
        self._store = store
        self._epochs = _Epochs(store, region, "ephemeral")
        self._topics = f"{region}/topics"

    async def owner(self, topic: str | bytes) -> HubInfo | None:
        """Return the hub that owns a topic; ``None`` if it has no owner.

        Raises:
            IllegalOperationError: the topic is invalid.
            MetadataStoreError: a read has failed.
        """
        path = self._path(topic)
        await self._epochs.check_mode(claims=False)
        found = await self._store.get(path)
        return None if found is None else _info_of(found)

    async def look(self, topic: str | bytes) -> HubInfo | Vacancy:
        """Return the hub that owns a topic, or the vacancy from which a claim starts.

        On ZooKeeper, the result may miss very recent writes of others.

        Raises:
            IllegalOperationError: the topic is invalid.
            MetadataStoreError: a read has failed.
        """
        # async:
        owner = await self.owner(topic)
        return Vacancy(await self._epochs.read(topic)) if owner is None else owner
        # sync:
        # | epoch = self._epochs.store.get(self._epochs.path(topic))
        # | owner = self.owner(topic)  # A thread waits once, for both reads.
        # | return Vacancy(epoch.result()) if owner is None else owner
        # end

    async def claim(
        self, topic: str | bytes, me: HubInfo, seen: Vacancy | None = None
    ) -> Claim | HubInfo:
        """Claim a topic for a live hub; return the claim, or the hub that owns the topic.

        Args:
            topic: the topic.
            me: the hub.
            seen: the result of ``look``, which saves reads. If it is outdated, the claim reads
                again.

        Raises:
            IllegalOperationError: the topic is invalid.
            SessionLostError: the session of the store has ended.
            MetadataStoreError: a request has failed permanently.
        """
        path = self._path(topic)
        await self._epochs.check_mode(claims=True)
        conflicts = self._epochs.conflicts(topic)
        while True:
            # In this order: a hub that becomes the owner after the first read begins another epoch.
            epoch = await self._epochs.read(topic) if seen is None else seen.epoch
            if epoch is None and conflicts.attempts == 0:
                seen = Vacancy(None)  # A topic that was never claimed has no owner.
            found = await self._store.get(path) if seen is None else None
            owner, seen = None if found is None else _info_of(found), None
            if owner == me and (mine := await self._epochs.present(topic, me, epoch)):
                return mine
            try:
                if found is None:
                    put, claim = self._epochs.next(topic, me, epoch)
                    hub = Put(path, put.value, ABSENT, ephemeral=True)
                    await self._store.transaction([put, hub])
                    return claim
                if owner is not None and not (owner.address == me.address and found.stat.owned):
                    return owner
                # It is damaged, or belongs to an earlier incarnation of this session.
                check = self._epochs.check(topic, epoch)
                await self._store.transaction([check, Delete(path, found.stat.version)])
            except (TransactionRefusedError, IndeterminateError) as error:
                # Another hub was faster, or the next read decides.
                await self._epochs.pause(conflicts, error)

    async def release(self, claim: Claim) -> bool:
        """Release a topic, so that others can claim it; return whether it was still owned.

        Raises:
            MetadataStoreError: the request has failed; see its ``outcome``.
        """
        try:
            await self._store.transaction([claim.check, Delete(self._path(claim.topic))])
        except TransactionRefusedError as refused:
            check_conflict(refused)
            return False
        return True

    def _path(self, topic: str | bytes) -> str:
        return f"{self._topics}/{escaped(topic)}/hub"


class AsyncComparedOwnership:
    """The manager of topic ownership stores the owner, which counts while it is alive.

    Args:
        store: the store of the hub.
        region: the path of the region. If it has no mode yet, the first claim gives it this one.
        manager: the manager of topic ownership of the region.
        hosts: the hubs of the region.

    Raises:
        LayoutError: the region has the other mode. In asyncio, the first call raises this error.
        UnsupportedError: the store has no transactions.
    """

    def __init__(
        self,
        store: AsyncMetadataStore,
        region: str,
        manager: AsyncTopicOwnershipManager,
        hosts: AsyncHosts,
    ) -> None:
        async_check_face(manager, "read_owner_info", "the ownership needs a manager of ownership")
        async_check_face(hosts, "is_alive", "the ownership needs hosts")
        self._epochs = _Epochs(store, region, "compared")
        self._manager = manager
        self._hosts = hosts

    async def owner(self, topic: str | bytes) -> HubInfo | None:
        """Return the hub that owns a topic; ``None`` if it has no owner.

        Raises:
            IllegalOperationError: the topic is invalid.
            MetadataStoreError: a read has failed.
        """
        await self._epochs.check_mode(claims=False)
        found = await self._manager.read_owner_info(topic)
        if found is None or found.value is None or not await self._is_alive(found.value, None):
            return None
        return found.value

    async def look(self, topic: str | bytes) -> HubInfo | Vacancy:
        """Return the hub that owns a topic, or the vacancy from which a claim starts.

        On ZooKeeper, the result may miss very recent writes of others.

        Raises:
            IllegalOperationError: the topic is invalid.
            MetadataStoreError: a read has failed.
        """
        await self._epochs.check_mode(claims=False)
        # In any order: the transaction of a claim has conditions on both.
        # sync:
        # | reading = self._epochs.store.get(self._epochs.path(topic))
        # end
        owner, version = await self._read(topic)
        if owner is not None and await self._is_alive(owner, None):
            return owner
        # async:
        epoch = await self._epochs.read(topic)
        # sync:
        # | epoch = reading.result()  # A thread waits once, for both reads.
        # end
        return Vacancy(epoch, version)

    async def claim(
        self, topic: str | bytes, me: HubInfo, seen: Vacancy | None = None
    ) -> Claim | HubInfo:
        """Claim a topic for a live hub; return the claim, or the hub that owns the topic.

        Args:
            topic: the topic.
            me: the hub.
            seen: the result of ``look``, which saves reads. If it is outdated, the claim reads
                again.

        Raises:
            IllegalOperationError: the topic is invalid.
            SessionLostError: the session of the store has ended.
            MetadataStoreError: a request has failed permanently.
        """
        await self._epochs.check_mode(claims=True)
        conflicts = self._epochs.conflicts(topic)
        while True:
            # In this order: a hub that becomes the owner after the first read begins another epoch.
            epoch = await self._epochs.read(topic) if seen is None else seen.epoch
            if epoch is None and conflicts.attempts == 0:
                seen = seen or Vacancy(None)  # A topic that was never claimed has no owner.
            owner, version = await self._read(topic) if seen is None else (None, seen.version)
            seen = None
            if owner == me and (mine := await self._epochs.present(topic, me, epoch)):
                return mine
            if owner is not None and owner != me and await self._is_alive(owner, me):
                return owner
            put, claim = self._epochs.next(topic, me, epoch)
            try:
                await self._manager.write_owner_info(topic, me, version, beside=(put,))
            except (
                DamagedRecordError,
                NoTopicOwnerInfoError,
                TopicOwnerInfoExistsError,
            ):
                await self._epochs.pause(conflicts)
            except (BadVersionError, IndeterminateError, TransactionRefusedError) as error:
                # Another hub was faster, or the next read decides.
                await self._epochs.pause(conflicts, error)
            else:
                return claim

    async def release(self, claim: Claim) -> bool:
        """Release a topic, so that others can claim it; return whether it was still owned.

        Raises:
            MetadataStoreError: the request has failed; see its ``outcome``.
        """
        try:
            await self._manager.delete_owner_info(claim.topic, Version.ANY, beside=(claim.check,))
        except NoTopicOwnerInfoError:
            return False
        except TransactionRefusedError as refused:
            check_conflict(refused)
            return False
        return True

    async def _read(self, topic: str | bytes) -> tuple[HubInfo | None, Version]:
        """Return the owner of a topic, alive or not, and the version to replace."""
        found = await self._manager.read_owner_info(topic, certain=False)
        return (None, Version.NEW) if found is None else found

    async def _is_alive(self, owner: HubInfo, me: HubInfo | None) -> bool:
        hub = (await self._hosts.hubs()).get(owner.address)
        if hub is not None and hub.info == owner:
            # The view may still show an earlier incarnation of the calling hub.
            return me is None or owner.address != me.address or await self._hosts.is_alive(owner)
        # A hub that the view does not know yet may have claimed the topic already.
        return await self._hosts.is_alive(owner)


async def async_open_ownership(
    store: AsyncMetadataStore,
    managers: AsyncMetadataManagers,
    hosts: AsyncHosts,
    mode: OwnershipMode | None = None,
) -> AsyncOwnership:
    """Return the ownership of a region's topics, in the mode of the region.

    The first hub of a region writes the mode to ``REGION/ownership``. All others must use the same
    mode. Otherwise, a topic would have an owner in each mode.

    Args:
        store: the store.
        managers: the managers of the region.
        hosts: the hubs of the region.
        mode: the mode; ``None`` for the mode of the region, or ``"ephemeral"`` if it has none yet,
            in which case the first claim writes it.

    Raises:
        LayoutError: the region has the other mode, or a mode that this program does not know.
        UnsupportedError: the store has no transactions.
        MetadataStoreError: a request has failed.
    """
    async_check_store(store, "the ownership of topics", "transactions")
    async_check_face(managers, "close", "the ownership needs managers")
    async_check_face(hosts, "is_alive", "the ownership needs hosts")
    region = managers.path
    if await async_mode_of(store, region, mode) == "compared":
        return AsyncComparedOwnership(store, region, managers.ownership, hosts)
    return AsyncEphemeralOwnership(store, region)


def _claim(topic: str | bytes, me: HubInfo, path: str, version: int) -> Claim:
    return Claim(name_text(topic), me, version + 1, Check(path, version))


def _info_of(found: GetResult) -> HubInfo | None:
    try:
        return HubInfo.decoded(found.value, found.stat.path)
    except ValueDecodeError:
        return None
