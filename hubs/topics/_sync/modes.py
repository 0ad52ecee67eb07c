# Made from async_modes.py by `python tools/faces.py`: change that file, and run this command.
"""The mode in which a region stores the owners of its topics, and its record.

The record at ``REGION/ownership`` is a JSON object (see ``hubs.formats``)::

    {"v": 1, "mode": "ephemeral"}
"""

from __future__ import annotations

from typing import Final, get_args

from ....batching import MetadataStore
from ....coordination._sync.conflicts import Conflicts
from ....coordination._sync.kinds import check_face, check_store
from ....ops.errors import BadVersionError
from ....ops.operations import ABSENT
from ...errors import LayoutError
from ...formats import dumped, loaded
from ...managers._sync.factory import MetadataManagers
from ..region import OwnershipMode
from .hosts import Hosts
from .ownership import ComparedOwnership, EphemeralOwnership, Ownership

__all__ = ["open_ownership"]

_MODES: Final[tuple[OwnershipMode, ...]] = get_args(OwnershipMode)


def open_ownership(
    store: MetadataStore,
    managers: MetadataManagers,
    hosts: Hosts,
    mode: OwnershipMode | None = None,
) -> Ownership:
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
    check_store(store, "the ownership of topics")
    check_face(managers, "close", "the ownership needs managers")
    check_face(hosts, "is_alive", "the ownership needs hosts")
    region = managers.path
    found = _mode(store, f"{region}/ownership", mode)
    if found == "compared":
        return ComparedOwnership(store, region, managers.ownership, hosts)
    return EphemeralOwnership(store, region)


def _mode(store: MetadataStore, path: str, wanted: OwnershipMode | None) -> OwnershipMode:
    conflicts = Conflicts(store.operation_timeout, path)
    while (found := store.get(path).result()) is None:
        if wanted is None:
            return "ephemeral"
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
                    f"the owners of the topics below {path.rpartition('/')[0]} are kept in the "
                    f"mode {known!r}, not {wanted!r}: all hubs of a region must have the same",
                    path=path,
                )
            return known
    raise LayoutError(
        f"{path} has a mode of ownership that this program does not know: {mode!r:.80}", path=path
    )
