# Made from async_modes.py by `python tools/faces.py`: change that file, and run this command.
"""The mode in which a region stores the owners of its topics, and its record.

The record at ``REGION/ownership`` is a JSON object (see ``hubs.formats``)::

    {"v": 1, "mode": "ephemeral"}
"""

from __future__ import annotations

from typing import Final, get_args

from ....batching import MetadataStore
from ....coordination._sync.conflicts import Conflicts
from ....ops.errors import BadVersionError
from ....ops.operations import ABSENT
from ...errors import LayoutError
from ...formats import dumped, loaded
from ..region import OwnershipMode

__all__ = ["mode_of"]

_MODES: Final[tuple[OwnershipMode, ...]] = get_args(OwnershipMode)


def mode_of(
    store: MetadataStore,
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
    conflicts = Conflicts(store.operation_timeout, path)
    while (found := store.get(path).result()) is None:
        if wanted is None or not write:
            return None
        try:
            store.put(path, dumped({"mode": wanted}), ABSENT).result()
        except BadVersionError as refused:
            conflicts.pause(refused)
            store.sync()
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
