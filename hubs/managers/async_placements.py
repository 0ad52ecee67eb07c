# async:
# `_sync/placements.py` is generated from this file: after a change, run `python tools/faces.py`.
# end
"""Where the metadata of topics is stored: at the paths of a topic, or in tables."""

from __future__ import annotations

from typing import Protocol

from ...batching import AsyncMetadataStore
from ..names import escaped, name_text
from ..tables import AsyncMetaStore, AsyncTable
from ..tables.async_shelves import AsyncShelf

__all__ = ["AsyncPlacement", "AsyncPaths", "AsyncTables"]


class AsyncPlacement(Protocol):
    """Provides the tables of owners and of persistence info, and one subscription table per topic.

    The keys of the first two tables are topics; the keys of subscription tables are subscribers.
    """

    async def owners(self) -> AsyncTable: ...
    async def persistence(self) -> AsyncTable: ...
    async def subscriptions(self, topic: str | bytes) -> AsyncTable: ...
    async def close(self) -> None: ...


class AsyncPaths:
    """All metadata of a topic is below the path of the topic.

    ::

        PATH/topics/TOPIC/hub                       the owner
        PATH/topics/TOPIC/ledgers                   the persistence info
        PATH/topics/TOPIC/subscribers/SUBSCRIBER    a subscription
        PATH/removals/...                           on ZooKeeper; see ``hubs.tables``

    Args:
        store: the store.
        path: the path below which the metadata is stored.
    """

    def __init__(self, store: AsyncMetadataStore, path: str) -> None:
        self._topics = f"{path}/topics"
        self._shelf = AsyncShelf(store, f"{path}/removals")

    async def owners(self) -> AsyncTable:
        return self._table("owners", self._topics, "/hub")

    async def persistence(self) -> AsyncTable:
        return self._table("persistence", self._topics, "/ledgers")

    async def subscriptions(self, topic: str | bytes) -> AsyncTable:
        place = f"{self._topics}/{escaped(topic)}/subscribers"
        return self._table(f"subscriptions:{name_text(topic)}", place)

    async def close(self) -> None:
        self._shelf.close()

    def _table(self, name: str, place: str, leaf: str = "") -> AsyncTable:
        return AsyncTable(self._shelf, name, place, leaf)


class AsyncTables:
    """The tables ``owners``, ``persistence`` and, for each topic, ``subscriptions:TOPIC``.

    Args:
        tables: the store of tables.
    """

    def __init__(self, tables: AsyncMetaStore) -> None:
        self._tables = tables

    async def owners(self) -> AsyncTable:
        return await self._tables.create_table("owners")

    async def persistence(self) -> AsyncTable:
        return await self._tables.create_table("persistence")

    async def subscriptions(self, topic: str | bytes) -> AsyncTable:
        escaped(topic)  # Otherwise, an empty name would be accepted here.
        return await self._tables.create_scannable_table(f"subscriptions:{name_text(topic)}")

    async def close(self) -> None:
        await self._tables.close()
