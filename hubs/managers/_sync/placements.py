# Made from async_placements.py by `python tools/faces.py`: change that file, and run this command.
"""Where the metadata of topics is stored: at the paths of a topic, or in tables."""

from __future__ import annotations

from typing import Protocol

from ....batching import MetadataStore
from ...names import escaped, name_text
from ...tables import MetaStore, Table
from ...tables._sync.shelves import Shelf

__all__ = ["Placement", "Paths", "Tables"]


class Placement(Protocol):
    """Provides the tables of owners and of persistence info, and one subscription table per topic.

    The keys of the first two tables are topics; the keys of subscription tables are subscribers.
    """

    def owners(self) -> Table: ...
    def persistence(self) -> Table: ...
    def subscriptions(self, topic: str | bytes) -> Table: ...
    def close(self) -> None: ...


class Paths:
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

    def __init__(self, store: MetadataStore, path: str) -> None:
        self._topics = f"{path}/topics"
        self._shelf = Shelf(store, f"{path}/removals")

    def owners(self) -> Table:
        return self._table("owners", self._topics, "/hub")

    def persistence(self) -> Table:
        return self._table("persistence", self._topics, "/ledgers")

    def subscriptions(self, topic: str | bytes) -> Table:
        place = f"{self._topics}/{escaped(topic)}/subscribers"
        return self._table(f"subscriptions:{name_text(topic)}", place)

    def close(self) -> None:
        self._shelf.close()

    def _table(self, name: str, place: str, leaf: str = "") -> Table:
        return Table(self._shelf, name, place, leaf)


class Tables:
    """The tables ``owners``, ``persistence`` and, for each topic, ``subscriptions:TOPIC``.

    Args:
        tables: the store of tables.
    """

    def __init__(self, tables: MetaStore) -> None:
        self._tables = tables

    def owners(self) -> Table:
        return self._tables.create_table("owners")

    def persistence(self) -> Table:
        return self._tables.create_table("persistence")

    def subscriptions(self, topic: str | bytes) -> Table:
        escaped(topic)  # Otherwise, an empty name would be accepted here.
        return self._tables.create_scannable_table(f"subscriptions:{name_text(topic)}")

    def close(self) -> None:
        self._tables.close()
