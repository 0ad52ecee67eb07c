"""The stores of one exporter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from ..batching import AsyncMetadataStore, MetadataStore
from ..ops.errors import InvalidSettingError, StoreClosedError
from .measures import Look

__all__ = ["AnyStore", "Observed", "check_store", "look_at", "name_of"]

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
        return store._engine.name.partition("?")[0]
    if not isinstance(name, str) or not name:
        raise InvalidSettingError(f"the name of a store must be a text, not {name!r:.80}")
    return name


def look_at(store: AnyStore) -> Look:
    """Return what is exported of a store. Any thread may call it."""
    connected = None
    if "ephemerals" in store.capabilities:
        try:
            state = store.session.state
        except StoreClosedError:  # A moment ago.
            state = "closed"
        connected = {"connected": True, "suspended": False, "lost": False}.get(state)
    return Look(store.metrics(), connected)


class _Member:
    """A store of one exporter. When the store is closed, it leaves, and in a forked child."""

    def __init__(self, store: AnyStore, leave: Callable[[_Member], None]) -> None:
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
        self._members: dict[str, _Member] = {}

    def add(self, store: AnyStore, name: str | None) -> None:
        """Add a store until it is closed.

        Raises:
            InvalidSettingError: it is no store, or another one has the name.
            StoreClosedError: the store is closed.
        """
        check_store(store)
        shown = name_of(store, name)

        def leave(member: _Member) -> None:
            if self._members.get(shown) is member:
                self._members.pop(shown, None)

        member = _Member(store, leave)
        if self._members.setdefault(shown, member) is not member:
            raise InvalidSettingError(f"another store has the name {shown!r} here; pass name=...")
        try:
            store._engine.attachments.add(member)
        except BaseException:
            leave(member)
            raise

    def looks(self) -> Sequence[tuple[str, AnyStore, Look]]:
        """Return the name of each store, the store, and a look at it."""
        members = list(self._members.items())
        return [(name, member.store, look_at(member.store)) for name, member in members]
