# async:
# `_sync/factory.py` is generated from this file: after a change, run `python tools/faces.py`.
# end
"""The managers of a region, and the record that names its layout."""

from __future__ import annotations

import re
from typing import Final, Self

from ...batching import AsyncMetadataStore
from ...batching.settings import check_flag
from ...coordination.async_conflicts import AsyncConflicts
from ...coordination.async_kinds import async_check_store
from ...ops.errors import BadVersionError, NotEmptyError, NotFoundError
from ...ops.operations import ABSENT, Delete, Exists
from ...ops.paths import check_path
from ..errors import HubsRegisteredError, LayoutError
from ..names import text_of
from ..tables import AsyncMetaStore
from .async_placements import AsyncPaths, AsyncPlacement, AsyncTables
from .async_subscribers import AsyncSubscriptionDataManager
from .async_topics import AsyncTopicOwnershipManager, AsyncTopicPersistenceManager
from .layouts import Layout, check_layout, layout_of, layout_record

__all__ = ["AsyncMetadataManagers", "async_format_metadata", "async_open_managers"]

_LAYOUT: Final = "layout"
# The parts of a region besides its topics, its layout and its hubs.
_PARTS: Final = ("tables", "removals", "ownership")


class AsyncMetadataManagers:
    """The managers of a region. :func:`open_managers` returns them.

    Close them, or use them as a context manager. The store stays open.

    Attributes:
        path: the path of the region.
        layout: where its metadata is stored.
        ownership: the manager of topic ownership.
        persistence: the manager of topic persistence info.
        subscriptions: the manager of subscriptions.
    """

    def __init__(
        self,
        path: str,
        layout: Layout,
        place: AsyncPlacement,
        ownership: AsyncTopicOwnershipManager,
        persistence: AsyncTopicPersistenceManager,
    ) -> None:
        self.path = path
        self.layout = layout
        self.ownership = ownership
        self.persistence = persistence
        self.subscriptions = AsyncSubscriptionDataManager(place.subscriptions)
        self._place = place

    async def close(self) -> None:
        """End the use of the managers: later calls raise ``StoreClosedError``."""
        await self._place.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.path!r}, layout {self.layout!r}>"


async def async_open_managers(
    store: AsyncMetadataStore, path: str = "/hedwig/region", layout: Layout | None = None
) -> AsyncMetadataManagers:
    """Return the managers of a region.

    The first caller writes the layout of the region to ``PATH/layout``. All others read it, so that
    two programs never keep the same metadata in two places. A region must not be inside another
    one.

    Args:
        store: the store.
        path: the path of the region.
        layout: the layout that the region must have; ``None`` for its present layout, or
            ``"paths"`` for a new region.

    Raises:
        InvalidPathError: the path is not valid.
        InvalidSettingError: there is no such layout.
        LayoutError: the region has another layout, or a layout that this program does not know.
    """
    async_check_store(store, "the metadata of a region")
    check_path(path)
    wanted = None if layout is None else check_layout(layout)
    found = await _layout(store, path, wanted or "paths")
    if wanted not in (None, found):
        raise LayoutError(
            f"the metadata below {path} has the layout {found!r}, not {wanted!r}", path=path
        )
    place: AsyncPlacement = AsyncPaths(store, path)
    if found == "tables":
        place = AsyncTables(AsyncMetaStore(store, path))
    return AsyncMetadataManagers(
        path,
        found,
        place,
        AsyncTopicOwnershipManager(await place.owners()),
        AsyncTopicPersistenceManager(await place.persistence()),
    )


async def async_format_metadata(
    store: AsyncMetadataStore, path: str = "/hedwig/region", *, force: bool = False
) -> int:
    """Remove all metadata of a region, its layout included; return the number of values removed.

    The epochs of topics stay. Logs outlive the metadata, and refuse epochs that begin again.

    Without ``force``, a path that has no region's layout is left as it is, because the values below
        it may be those of another program. Do not use earlier versions afterwards. Stop all hubs
        first: a hub that starts at the same moment is not noticed.

    Args:
        store: the store.
        path: the path of the region.
        force: whether to continue even if hubs are registered, or there is no layout.

    Raises:
        HubsRegisteredError: hubs are registered, and ``force`` is not set. Nothing is removed.
        InvalidSettingError: ``force`` is not a bool.
    """
    check_flag("force", force)
    async_check_store(store, "the metadata of a region")
    hubs = f"{check_path(path)}/hosts"
    await store.sync()  # Otherwise, a new hub may not be seen.
    names = await store.get_children(hubs)
    found = await store.apply([Exists(f"{hubs}/{name}/alive") for name in names])
    for outcome in found:
        if outcome.error is not None:
            raise outcome.error
    alive = [
        text_of(name) or name for name, outcome in zip(names, found, strict=True) if outcome.result
    ]
    if alive and not force:
        raise HubsRegisteredError(
            f"{len(alive)} hubs are registered below {hubs}, such as {alive[0]}: stop them first, "
            "or force it",
            path=hubs,
        )
    if not force and await store.get(f"{path}/{_LAYOUT}") is None:
        return 0
    removed = await _remove_topics(store, f"{path}/topics")
    for part in (*_PARTS, _LAYOUT):  # If this fails, the layout still says what is there.
        removed += await store.delete_recursive(f"{path}/{part}")
    return removed


async def _remove_topics(store: AsyncMetadataStore, topics: str) -> int:
    """Remove the values of topics, except their epochs; return the number of values removed."""
    removed = 0
    async for page in store.scan_pages(topics, values=False):
        # Epochs are at TOPICS/TOPIC/epoch. A subscriber may have that name, too.
        paths = [
            path for path in page.paths if not re.fullmatch("/[^/]+/epoch", path[len(topics) :])
        ]
        for outcome in await store.apply([Delete(path) for path in paths]):
            match outcome.error:
                case None:
                    removed += 1
                case NotEmptyError():  # Another program has put something below it.
                    removed += await store.delete_recursive(outcome.op.path)
                case error if not isinstance(error, NotFoundError):
                    raise error
    return removed


async def _layout(store: AsyncMetadataStore, path: str, wanted: Layout) -> Layout:
    """Return the layout of a region; a new region gets the requested one.

    Raises:
        LayoutError: this program does not know the layout.
    """
    at = f"{path}/{_LAYOUT}"
    conflicts = AsyncConflicts(store.operation_timeout, at)
    while (found := await store.get(at)) is None:
        try:
            await store.put(at, layout_record(wanted), ABSENT)
        except BadVersionError as refused:
            await conflicts.pause(refused)
            await store.sync()
        else:
            return wanted
    return layout_of(found.value, at)
