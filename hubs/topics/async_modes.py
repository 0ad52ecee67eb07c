# async:
# `_sync/modes.py` is generated from this file: after a change, run `python tools/faces.py`.
# end
"""The mode in which a region stores the owners of its topics, and its record.

The record at ``REGION/ownership`` is a JSON object (see ``hubs.formats``)::

    {"v": 1, "mode": "ephemeral"}
"""

from __future__ import annotations

from typing import Final, get_args

from ...batching import AsyncMetadataStore
from ...coordination.async_conflicts import AsyncConflicts
from ...ops.errors import BadVersionError
from ...ops.operations import ABSENT
from ..errors import LayoutError
from ..formats import dumped, loaded
from .region import OwnershipMode

__all__ = ["async_mode_of"]

_MODES: Final[tuple[OwnershipMode, ...]] = get_args(OwnershipMode)


async def async_mode_of(
    store: AsyncMetadataStore,
    region: str,
    wanted: OwnershipMode | None = None,
    *,
    write: bool = True,
) -> OwnershipMode | None:
    """Return the mode of a region; ``None`` if it has none yet.

    Args:
        store: the store.
        region: the path of the region.
        wanted: the mode that the region must have.
        write: whether a region without a mode gets the wanted one.

    Raises:
        LayoutError: the region has the other mode, or a mode that this program does not know.
        MetadataStoreError: a request has failed.
    """
    path = f"{region}/ownership"
    conflicts = AsyncConflicts(store.operation_timeout, path)
    while (found := await store.get(path)) is None:
        if wanted is None or not write:
            return None
        try:
            await store.put(path, dumped({"mode": wanted}), ABSENT)
        except BadVersionError as refused:
            await conflicts.pause(refused)
            await store.sync()
        else:
            return wanted
    try:
        mode = loaded(found.value).get("mode")
    except (ValueError, RecursionError) as error:
        raise LayoutError(f"{path} holds no mode of ownership: {error}", path=path) from error
    for known in _MODES:
        if mode == known:
            if wanted not in (None, known):
                raise LayoutError(
                    f"the owners of the topics below {region} are kept in the mode {known!r}, not "
                    f"{wanted!r}: all hubs of a region must have the same; open_ownership uses it",
                    path=path,
                )
            return known
    raise LayoutError(
        f"{path} has a mode of ownership that this program does not know: {mode!r:.80}", path=path
    )
