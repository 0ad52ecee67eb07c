# async:
# `_sync/subscribers.py` is generated from this file: after a change, run `python tools/faces.py`.
# end
"""The subscriptions of topics."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, TypeVar

from ...ops.errors import BadVersionError, MetadataStoreError, ValueDecodeError, shape
from ...ops.operations import Part
from ..errors import (
    IllegalOperationError,
    KeyExistsError,
    NoKeyError,
    NoSubscriptionStateError,
    SubscriptionStateExistsError,
)
from ..names import name_text
from ..tables import AsyncTable, DamagedRecordError, Version, VersionedValue
from ..tables.async_shelves import AsyncShelf, Change
from ..tables.rows import Row
from ..tables.versions import check_version
from .data import (
    Data,
    MessageSeqId,
    SubscriptionData,
    SubscriptionPreferences,
    SubscriptionState,
    Versioned,
)

__all__ = ["AsyncSubscriptionDataManager"]

_PREFERENCES: Final = "preferences"
_STATE: Final = "state"

D = TypeVar("D", bound=Data)


class AsyncSubscriptionDataManager:
    """Stores the subscriptions of topics: the preferences and the position of each subscriber.

    Args:
        table_of: returns the table of a topic's subscriptions. Its keys are subscribers.
    """

    def __init__(self, table_of: Callable[[str | bytes], Awaitable[AsyncTable]]) -> None:
        self._table_of = table_of

    def is_partial_update_supported(self) -> bool:
        """Whether an update can change one part and leave the other: always."""
        return True

    async def create_subscription_data(
        self,
        topic: str | bytes,
        subscriber: str | bytes,
        data: SubscriptionData,
        *,
        beside: Sequence[Part] = (),
    ) -> Version:
        """Create a subscription, and return its first version.

        Args:
            topic: the topic.
            subscriber: the subscriber.
            data: its parts.
            beside: further operations of the same transaction, such as the check of a lock.

        Raises:
            SubscriptionStateExistsError: the subscription already exists.
            TransactionRefusedError: an operation in ``beside`` was refused.
            IllegalOperationError: a name or the data is invalid.
        """
        row, shelf, parts = *await self._row(topic, subscriber, beside), _parts(data)
        try:
            return await shelf.put(row, parts, Version.NEW)
        except KeyExistsError as error:
            raise SubscriptionStateExistsError(
                f"topic {topic!r} has the subscriber {subscriber!r}", path=error.path
            ) from error

    async def update_subscription_data(
        self,
        topic: str | bytes,
        subscriber: str | bytes,
        data: SubscriptionData,
        version: Version,
        *,
        beside: Sequence[Part] = (),
    ) -> Version:
        """Change the given parts of a subscription, and return its new version.

        A part that is ``None`` stays unchanged. Concurrent updates of different parts with
        ``Version.ANY`` all take effect.

        Args:
            topic: the topic.
            subscriber: the subscriber.
            data: the new parts.
            version: ``Version.ANY``, or the version that the subscription must have.
            beside: further operations of the same transaction, such as the check of a lock.

        Raises:
            NoSubscriptionStateError: there is no such subscription.
            TransactionRefusedError: an operation in ``beside`` was refused.
            BadVersionError: it has another version. ``Version.NEW`` never matches.
            DamagedRecordError: it cannot be read, and the version is not the one in this error.
            IllegalOperationError: a name, the data or the version is invalid.
        """
        changes = {name: part for name, part in _parts(data).items() if part is not None}
        return await self._put(topic, subscriber, changes, version, beside)

    async def replace_subscription_data(
        self,
        topic: str | bytes,
        subscriber: str | bytes,
        data: SubscriptionData,
        version: Version,
        *,
        beside: Sequence[Part] = (),
    ) -> Version:
        """Replace a subscription as a whole, and return its new version.

        A part given as ``None`` is removed. Arguments and errors are those of
        :meth:`update_subscription_data`.
        """
        return await self._put(topic, subscriber, _parts(data), version, beside)

    async def advance_marks(
        self,
        marks: Iterable[tuple[str | bytes, str | bytes, MessageSeqId]],
        beside: Callable[[str | bytes], Sequence[Part]] | None = None,
    ) -> list[Version | MetadataStoreError | None]:
        """Move the consume marks of many subscribers forward, in batches.

        Marks never move back: a mark that is not greater than the stored one is ignored. A
            subscription without a state gets one.

        Args:
            marks: topics, subscribers and their marks.
            beside: returns, for a topic, operations to add to the transaction of each change of its
                subscriptions, such as the check of a lock.

        Returns:
            In the order given, the new version of the subscription, ``None`` if the mark was
            ignored, or the error: ``NoSubscriptionStateError`` if there is no such subscription,
            ``DamagedRecordError`` if its state cannot be read, ``TransactionRefusedError`` if an
            operation in ``beside`` was refused.

        Raises:
            IllegalOperationError: a name or a mark is invalid, or a subscription occurs twice.
                Nothing was sent.
        """
        marks = [*marks]
        if not marks:
            return []
        tables = {topic: await self._table_of(topic) for topic, _, _ in marks}
        shelf = next(iter(tables.values())).shelf  # All tables of subscriptions share it.
        ended = await shelf.change_all(
            [
                (
                    tables[topic].row(
                        name_text(subscriber), () if beside is None else tuple(beside(topic))
                    ),
                    _advance(topic, subscriber, mark),
                )
                for topic, subscriber, mark in marks
            ]
        )
        return [
            _missing(topic, subscriber, one) if isinstance(one, NoKeyError) else one
            for one, (topic, subscriber, _) in zip(ended, marks, strict=True)
        ]

    async def read_subscription_data(
        self, topic: str | bytes, subscriber: str | bytes
    ) -> Versioned[SubscriptionData] | None:
        """Return a subscription with its version; ``None`` if there is none.

        Raises:
            DamagedRecordError: it cannot be read.
        """
        try:
            found = await (await self._table_of(topic)).get(name_text(subscriber))
        except NoKeyError:
            return None
        return _read(topic, subscriber, found)

    async def read_subscriptions(
        self, topic: str | bytes
    ) -> dict[str, Versioned[SubscriptionData]]:
        """Return all subscriptions of a topic, with their versions, by subscriber.

        Subscribers are texts. A name whose bytes are not UTF-8 is decoded like ``os.fsdecode`` on
        Linux.

        Raises:
            DamagedRecordError: a subscription cannot be read.
        """
        cursor = await (await self._table_of(topic)).open_cursor()
        return {
            entry.key: _read(topic, entry.key, VersionedValue(entry.value, entry.version))
            async for entry in cursor
        }

    async def delete_subscription_data(
        self,
        topic: str | bytes,
        subscriber: str | bytes,
        version: Version,
        *,
        beside: Sequence[Part] = (),
    ) -> None:
        """Remove a subscription.

        Args:
            topic: the topic.
            subscriber: the subscriber.
            version: ``Version.ANY``, or the version that the subscription must have.
            beside: further operations of the same transaction, such as the check of a lock.

        Raises:
            NoSubscriptionStateError: there is no such subscription.
            TransactionRefusedError: an operation in ``beside`` was refused.
            BadVersionError: it has another version.
        """
        row, shelf = await self._row(topic, subscriber, beside)
        try:
            await shelf.remove(row, check_version(version))
        except NoKeyError as error:
            raise _missing(topic, subscriber, error) from error

    async def _row(
        self, topic: str | bytes, subscriber: str | bytes, beside: Sequence[Part]
    ) -> tuple[Row, AsyncShelf]:
        table = await self._table_of(topic)
        return table.row(name_text(subscriber), tuple(beside)), table.shelf

    async def _put(
        self,
        topic: str | bytes,
        subscriber: str | bytes,
        parts: Mapping[str, bytes | None],
        version: Version,
        beside: Sequence[Part],
    ) -> Version:
        row, shelf = await self._row(topic, subscriber, beside)
        try:
            if check_version(version) == Version.NEW:  # A put would create it.
                found = shelf.shown(await shelf.get(row))
                raise BadVersionError(
                    f"the subscription of {subscriber!r} to topic {topic!r} is at "
                    f"{found.version!r}, not {version!r}"
                )
            return await shelf.put(row, parts, version)
        except NoKeyError as error:
            raise _missing(topic, subscriber, error) from error


def _parts(data: SubscriptionData) -> dict[str, bytes | None]:
    """Return the fields of a subscription.

    Raises:
        IllegalOperationError: the data is invalid.
    """
    match data:
        case SubscriptionData(
            (SubscriptionPreferences() | None) as preferences, (SubscriptionState() | None) as state
        ):
            return {
                _PREFERENCES: None if preferences is None else preferences.encoded(),
                _STATE: None if state is None else state.encoded(),
            }
    raise IllegalOperationError(
        "the data of a subscription must be SubscriptionData of SubscriptionPreferences and "
        f"SubscriptionState, not {shape(data)}"
    )


def _read(
    topic: str | bytes, subscriber: str | bytes, found: VersionedValue
) -> Versioned[SubscriptionData]:
    where = f"a part of the subscription of {subscriber!r} to topic {topic!r}"
    data = SubscriptionData(
        _part(SubscriptionPreferences, found, _PREFERENCES, where),
        _part(SubscriptionState, found, _STATE, where),
    )
    return Versioned(data, found.version)


def _part(kind: type[D], found: VersionedValue, name: str, where: str) -> D | None:
    raw = found.value.get(name)
    try:
        return None if raw is None else kind.decoded(raw, where)
    except ValueDecodeError as error:
        raise DamagedRecordError(str(error), at=found.version) from error


def _advance(topic: str | bytes, subscriber: str | bytes, mark: MessageSeqId) -> Change:
    if not isinstance(mark, MessageSeqId):
        raise IllegalOperationError(f"a mark must be a MessageSeqId, not {mark!r:.80}")

    where = f"the state of the subscription of {subscriber!r} to topic {topic!r}"

    def change(found: VersionedValue) -> dict[str, bytes | None] | None:
        state = _part(SubscriptionState, found, _STATE, where)
        if state is None:
            state = SubscriptionState(mark)
        elif mark.local > state.mark.local:
            state = replace(state, mark=mark)
        else:
            return None
        return {_STATE: state.encoded()}

    return change


def _missing(
    topic: str | bytes, subscriber: str | bytes, error: NoKeyError
) -> NoSubscriptionStateError:
    return NoSubscriptionStateError(
        f"topic {topic!r} has no subscriber {subscriber!r}", path=error.path
    )
