# async:
# `_sync/topics.py` is generated from this file: after a change, run `python tools/faces.py`.
# end
"""The owners of topics, and the ledgers that hold their messages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Generic, TypeVar, overload

from ...ops.errors import MetadataStoreError, ValueDecodeError, shape
from ...ops.operations import Part
from ..errors import (
    IllegalOperationError,
    KeyExistsError,
    NoKeyError,
    NoTopicOwnerInfoError,
    NoTopicPersistenceInfoError,
    TopicOwnerInfoExistsError,
    TopicPersistenceInfoExistsError,
)
from ..names import name_text
from ..tables import AsyncTable, DamagedRecordError, Version
from ..tables.versions import check_version
from .data import Data, HubInfo, LedgerRanges, Versioned

__all__ = ["AsyncTopicOwnershipManager", "AsyncTopicPersistenceManager"]

D = TypeVar("D", bound=Data)


class AsyncTopicValues(Generic[D]):
    """A value for each topic, in a field of a table.

    Args:
        table: the table. Its keys are topics.
        field: the name of the field.
        kind: the type of the values.
        missing: the error for a topic without a value.
        exists: the error for a topic that has a value, but must not.
    """

    def __init__(
        self,
        table: AsyncTable,
        field: str,
        kind: type[D],
        missing: type[NoKeyError],
        exists: type[KeyExistsError],
    ) -> None:
        self._table = table
        self._field = field
        self._kind = kind
        self._missing = missing
        self._exists = exists

    async def read(self, topic: str | bytes, *, certain: bool = True) -> Versioned[D] | None:
        """Return the value of a topic with its version; ``None`` if there is none.

        Raises:
            DamagedRecordError: it cannot be read.
        """
        shelf, row = self._table.shelf, self._table.row(name_text(topic))
        try:
            found = shelf.shown(await shelf.get(row, certain=certain))
        except NoKeyError:
            return None
        raw = found.value.get(self._field)
        if raw is None:
            raise DamagedRecordError(
                f"the record of topic {topic!r} has no {self._field}", at=found.version
            )
        try:
            value = self._kind.decoded(raw, f"the {self._field} of topic {topic!r}")
        except ValueDecodeError as error:
            raise DamagedRecordError(str(error), at=found.version) from error
        return Versioned(value, found.version)

    async def write(
        self, topic: str | bytes, value: D, version: Version, beside: Sequence[Part]
    ) -> Version:
        """Set the value of a topic, and return its new version."""
        row, fields = self._table.row(name_text(topic), tuple(beside)), self._fields(value)
        try:
            return await self._table.shelf.put(row, fields, check_version(version))
        except (NoKeyError, KeyExistsError) as error:
            raise self._named(error, topic) from error

    async def write_all(
        self, writes: Iterable[tuple[str | bytes, D, Version]]
    ) -> list[Version | MetadataStoreError]:
        """Set the values of many topics in batches, and return the version or the error of each."""
        writes = [*writes]
        values = {id(value): value for _, value, _ in writes}  # Many topics, one value.
        encoded = {at: self._fields(value) for at, value in values.items()}
        puts = [
            (self._table.row(name_text(topic)), encoded[id(value)], check_version(version))
            for topic, value, version in writes
        ]
        ended = await self._table.shelf.put_all(puts)
        return [self._named(one, topic) for one, (topic, _, _) in zip(ended, writes, strict=True)]

    async def delete(self, topic: str | bytes, version: Version, beside: Sequence[Part]) -> None:
        """Remove the value of a topic."""
        row = self._table.row(name_text(topic), tuple(beside))
        try:
            await self._table.shelf.remove(row, check_version(version))
        except NoKeyError as error:
            raise self._named(error, topic) from error

    def _fields(self, value: D) -> dict[str, bytes | None]:
        if not isinstance(value, self._kind):
            raise IllegalOperationError(
                f"the value must be a {self._kind.__name__}, not {shape(value)}"
            )
        return {self._field: value.encoded()}

    @overload
    def _named(self, ended: MetadataStoreError, topic: str | bytes) -> MetadataStoreError: ...
    @overload
    def _named(
        self, ended: Version | MetadataStoreError, topic: str | bytes
    ) -> Version | MetadataStoreError: ...
    def _named(
        self, ended: Version | MetadataStoreError, topic: str | bytes
    ) -> Version | MetadataStoreError:
        """Return the error of a missing or existing key as an error of the topic."""
        if isinstance(ended, NoKeyError):
            return self._missing(f"topic {topic!r} has no {self._field}", path=ended.path)
        if isinstance(ended, KeyExistsError):
            return self._exists(f"topic {topic!r} has its {self._field}", path=ended.path)
        return ended


class AsyncTopicOwnershipManager:
    """Stores the hub that owns each topic, by compare-and-set.

    Args:
        owners: the table of owners. Its keys are topics.
    """

    def __init__(self, owners: AsyncTable) -> None:
        self._values = AsyncTopicValues(
            owners, "owner", HubInfo, NoTopicOwnerInfoError, TopicOwnerInfoExistsError
        )

    async def read_owner_info(
        self, topic: str | bytes, *, certain: bool = True
    ) -> Versioned[HubInfo | None] | None:
        """Return the owner of a topic with its version; ``None`` if the topic has no owner info.

        The owner is ``None`` if its data is damaged. A write with that version replaces it.

        Args:
            topic: the topic.
            certain: whether ``None`` reflects all earlier writes by others. If not, a ZooKeeper
                server that lags behind may miss the newest owner. That saves two requests, and
                suffices for a write that fails if there is an owner.
        """
        try:
            found = await self._values.read(topic, certain=certain)
        except DamagedRecordError as error:
            return Versioned(None, error.at)
        return None if found is None else Versioned(found.value, found.version)

    async def write_owner_info(
        self,
        topic: str | bytes,
        owner: HubInfo,
        version: Version,
        *,
        beside: Sequence[Part] = (),
    ) -> Version:
        """Set the owner of a topic, and return the new version.

        Args:
            topic: the topic.
            owner: the owner.
            version: ``Version.NEW`` creates the owner info, ``Version.ANY`` replaces it at any
                version, and another version must be that of the owner info.
            beside: further operations of the same transaction, such as the check of a lock.

        Raises:
            TopicOwnerInfoExistsError: there is owner info, and the version is ``Version.NEW``.
            NoTopicOwnerInfoError: there is none, and the version is another.
            BadVersionError: it has another version.
            TransactionRefusedError: an operation in ``beside`` was refused.
            DamagedRecordError: its record is damaged, and the version is ``Version.ANY``.
            IllegalOperationError: the topic, the owner or the version is invalid.
        """
        return await self._values.write(topic, owner, version, beside)

    async def write_owner_infos(
        self, writes: Iterable[tuple[str | bytes, HubInfo, Version]]
    ) -> list[Version | MetadataStoreError]:
        """Set the owners of many topics, as :meth:`write_owner_info` does for one, in batches.

        Returns the new version of each, or its error, in the order given.

        Raises:
            IllegalOperationError: a topic, an owner or a version is invalid, or a topic occurs
                twice. Nothing was sent.
        """
        return await self._values.write_all(writes)

    async def delete_owner_info(
        self, topic: str | bytes, version: Version, *, beside: Sequence[Part] = ()
    ) -> None:
        """Remove the owner info of a topic.

        Args:
            topic: the topic.
            version: ``Version.ANY``, or the version that the owner info must have.
            beside: further operations of the same transaction, such as the check of a lock.

        Raises:
            NoTopicOwnerInfoError: there is none.
            BadVersionError: it has another version.
            DamagedRecordError: its record is damaged, and the version is ``Version.ANY``.
            TransactionRefusedError: an operation in ``beside`` was refused.
        """
        await self._values.delete(topic, version, beside)


class AsyncTopicPersistenceManager:
    """Stores the ledgers that hold the messages of each topic.

    Args:
        persistence: the table of persistence info. Its keys are topics.
    """

    def __init__(self, persistence: AsyncTable) -> None:
        self._values = AsyncTopicValues(
            persistence,
            "ranges",
            LedgerRanges,
            NoTopicPersistenceInfoError,
            TopicPersistenceInfoExistsError,
        )

    async def read_topic_persistence_info(
        self, topic: str | bytes
    ) -> Versioned[LedgerRanges] | None:
        """Return the ledgers of a topic with the version; ``None`` if it has no persistence info.

        Raises:
            DamagedRecordError: it cannot be read.
        """
        return await self._values.read(topic)

    async def write_topic_persistence_info(
        self,
        topic: str | bytes,
        ranges: LedgerRanges,
        version: Version,
        *,
        beside: Sequence[Part] = (),
    ) -> Version:
        """Set the ledgers of a topic, and return the new version.

        Args:
            topic: the topic.
            ranges: its ledgers.
            version: ``Version.NEW`` creates the persistence info, ``Version.ANY`` replaces it at
                any version, and another version must be that of the persistence info.
            beside: further operations of the same transaction, such as the check of a lock.

        Raises:
            TopicPersistenceInfoExistsError: there is some, and the version is ``Version.NEW``.
            NoTopicPersistenceInfoError: there is none, and the version is another.
            BadVersionError: it has another version.
            TransactionRefusedError: an operation in ``beside`` was refused.
            DamagedRecordError: its record is damaged, and the version is not the one in this error.
            IllegalOperationError: the topic, the ranges or the version is invalid.
        """
        return await self._values.write(topic, ranges, version, beside)

    async def delete_topic_persistence_info(
        self, topic: str | bytes, version: Version, *, beside: Sequence[Part] = ()
    ) -> None:
        """Remove the persistence info of a topic.

        Args:
            topic: the topic.
            version: ``Version.ANY``, or the version that the persistence info must have.
            beside: further operations of the same transaction, such as the check of a lock.

        Raises:
            NoTopicPersistenceInfoError: there is none.
            BadVersionError: it has another version.
            DamagedRecordError: its record is damaged, and the version is not the one in this error.
            TransactionRefusedError: an operation in ``beside`` was refused.
        """
        await self._values.delete(topic, version, beside)
