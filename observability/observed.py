"""The stores of one exporter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from ..batching import AsyncMetadataStore, MetadataStore
from ..batching.engine import engine_of
from ..ops.errors import InvalidSettingError, StoreClosedError
from .measures import Snapshot

__all__ = ["AnyStore", "Observed", "check_store", "name_of", "snapshot_of"]

AnyStore: TypeAlias = MetadataStore | AsyncMetadataStore


def check_store(store: AnyStore) -> None:
    """Refuse what is no store.

    Raises:
        InvalidSettingError: so it is.
    """
    if not isinstance(store, MetadataStore | AsyncMetadataStore):
        raise InvalidSettingError(f"not an open store: {store!r:.80}")


def name_of(store: AnyStore, name: str | None) -> str:
    """Return the name under which a store is shown: by default, its URL without options."""
    if name is None:
        return engine_of(store).name.partition("?")[0]
    if not isinstance(name, str) or not name:
        raise InvalidSettingError(f"the name of a store must be a text, not {name!r:.80}")
    return name


def snapshot_of(store: AnyStore) -> Snapshot:
    """Return what is exported of a store. Any thread may call it."""
    connected = None
    if "ephemerals" in store.capabilities:
        try:
            state = store.session.state
        except StoreClosedError:  # A moment ago.
            state = "closed"
        connected = {"connected": True, "suspended": False, "lost": False}.get(state)
    return Snapshot(store.metrics(), connected)


class _ObservedStore:
    """A store of one exporter. When the store is closed, it leaves, and in a forked child."""

    def __init__(self, store: AnyStore, leave: Callable[[_ObservedStore], None]) -> None:
        self.store = store
        self._leave = leave

    def close(self) -> None:
        self._leave(self)

    def abandon(self) -> None:
        self._leave(self)


class Observed:
    """The stores of one exporter, by name. Any thread may call the methods.

    There is no lock, which a forked child could find locked: each change is one step of a dict.
    """

    def __init__(self) -> None:
        self._stores: dict[str, _ObservedStore] = {}

    def add(self, store: AnyStore, name: str | None) -> None:
        """Add a store until it is closed.

        Raises:
            InvalidSettingError: it is not a store, or another one has the name.
            StoreClosedError: the store is closed.
        """
        check_store(store)
        shown = name_of(store, name)

        def leave(observed: _ObservedStore) -> None:
            if self._stores.get(shown) is observed:
                self._stores.pop(shown, None)

        observed = _ObservedStore(store, leave)
        if self._stores.setdefault(shown, observed) is not observed:
            raise InvalidSettingError(f"another store has the name {shown!r} here; pass name=...")
        try:
            engine_of(store).attachments.add(observed)
        except BaseException:
            leave(observed)
            raise

    def snapshots(self) -> Sequence[tuple[str, AnyStore, Snapshot]]:
        """Return the name of each store, the store, and a snapshot of it."""
        stores = list(self._stores.items())
        return [(name, observed.store, snapshot_of(observed.store)) for name, observed in stores]
