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
from ...coordination.async_kinds import async_check_face, async_check_store
from ...ops.errors import BadVersionError
from ...ops.operations import ABSENT
from ..errors import LayoutError
from ..formats import dumped, loaded
from ..managers.async_factory import AsyncMetadataManagers
from .async_hosts import AsyncHosts
from .async_ownership import AsyncComparedOwnership, AsyncEphemeralOwnership, AsyncOwnership
from .region import OwnershipMode

__all__ = ["async_open_ownership"]

_MODES: Final[tuple[OwnershipMode, ...]] = get_args(OwnershipMode)


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
            in which case nothing is written.

    Raises:
        LayoutError: the region has the other mode, or a mode that this program does not know.
        MetadataStoreError: a request has failed.
    """
    async_check_store(store, "the ownership of topics")
    async_check_face(managers, "close", "the ownership needs managers")
    async_check_face(hosts, "is_alive", "the ownership needs hosts")
    region = managers.path
    found = await _mode(store, f"{region}/ownership", mode)
    if found == "compared":
        return AsyncComparedOwnership(store, region, managers.ownership, hosts)
    return AsyncEphemeralOwnership(store, region)


async def _mode(
    store: AsyncMetadataStore, path: str, wanted: OwnershipMode | None
) -> OwnershipMode:
    conflicts = AsyncConflicts(store.operation_timeout, path)
    while (found := await store.get(path)) is None:
        if wanted is None:
            return "ephemeral"
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
                    f"the owners of the topics below {path.rpartition('/')[0]} are kept in the "
                    f"mode {known!r}, not {wanted!r}: all hubs of a region must have the same",
                    path=path,
                )
            return known
    raise LayoutError(
        f"{path} has a mode of ownership that this program does not know: {mode!r:.80}", path=path
    )
