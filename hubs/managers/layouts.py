"""The record that says where the metadata of a region is stored: pure functions.

It is a JSON object (see ``hubs.formats``): ``{"v": 1, "layout": "paths", "version": 1}``.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias, get_args

from ...ops.errors import InvalidSettingError
from ..errors import LayoutError
from ..formats import dumped, loaded

__all__ = ["Layout", "check_layout", "layout_of", "layout_record"]

#: Where metadata is stored: at the paths of each topic, or in tables.
Layout: TypeAlias = Literal["paths", "tables"]

_LAYOUTS: Final[tuple[Layout, ...]] = get_args(Layout)
# The version of each layout.
_VERSION: Final = 1


def check_layout(layout: object) -> Layout:
    """Return a layout.

    Raises:
        InvalidSettingError: there is no such layout.
    """
    for known in _LAYOUTS:
        if layout == known:
            return known
    raise InvalidSettingError(f"layout must be one of {_LAYOUTS}, not {layout!r:.80}")


def layout_record(layout: Layout) -> bytes:
    """Return the record of a layout."""
    return dumped({"layout": layout, "version": _VERSION})


def layout_of(record: bytes, path: str) -> Layout:
    """Return the layout that the record at a path names.

    Raises:
        LayoutError: this program does not know the layout in the record.
    """
    try:
        members = loaded(record)
    except (ValueError, RecursionError) as error:
        raise LayoutError(f"{path} holds no layout: {error}", path=path) from error
    for layout in _LAYOUTS:
        version = members.get("version")
        if members.get("layout") == layout and type(version) is int and version == _VERSION:
            return layout
    raise LayoutError(f"{path} has a layout that this program does not know: {members}", path=path)
