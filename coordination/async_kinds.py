# async:
# `_sync/kinds.py` is generated from this file: after a change, run `python tools/faces.py`.
# end
"""Refuses objects of other kinds than a constructor needs, such as those of the other face."""

from __future__ import annotations

import inspect
from typing import Final

from ..batching import AsyncMetadataStore
from ..batching.checks import check_capability
from ..ops.capabilities import Capability
from ..ops.errors import InvalidSettingError

__all__ = ["async_check_face", "async_check_store"]

# async:
_OTHER: Final = "one for threads needs the class whose name has no Async"
# sync:
# | _OTHER: Final = "one for tasks needs the class whose name begins with Async"
# end


def async_check_store(store: AsyncMetadataStore, what: str, *needed: Capability) -> None:
    """Refuse what is no open store of this face, or lacks a capability.

    Raises:
        InvalidSettingError: it is no such store.
        UnsupportedError: it lacks a capability.
    """
    async_check_face(store, "transaction", f"{what} needs an open store")
    for capability in needed:
        check_capability(capability, what, store.capabilities, repr(store))


def async_check_face(value: object, method: str, need: str) -> None:
    """Refuse an argument that lacks a method, or has the one of the other face.

    Raises:
        InvalidSettingError: it is of another kind.
    """
    found = None if isinstance(value, type) else getattr(value, method, None)
    # async:
    fits = inspect.iscoroutinefunction(found)
    # sync:
    # | fits = callable(found) and not inspect.iscoroutinefunction(found)
    # end
    if not fits:  # Only its class: its text might show a password.
        raise InvalidSettingError(f"{need}, not of the class {type(value).__name__}; {_OTHER}")
