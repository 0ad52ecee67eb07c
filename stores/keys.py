"""Separates valid paths from foreign keys, for stores whose keys other clients may write, too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol, TypeVar, runtime_checkable

from ..ops.paths import OWN, all_reachable, reachable

__all__ = ["ForeignRemoval", "Sorted", "own", "path_of", "sort_keys"]

_T = TypeVar("_T")

_OWN: Final = OWN.encode()


@runtime_checkable
class ForeignRemoval(Protocol):
    """What the scans of a back end also offer if they can remove foreign keys."""

    def delete_foreign(self, key: bytes, timeout: float, *, dry_run: bool) -> None:
        """Remove one foreign key, and no other; with ``dry_run``, only look for it.

        Raises:
            NotFoundError: it is not there.
            InvalidPathError: it is reserved, or not in the store.
        """
        ...


class Sorted(NamedTuple):
    """Keys, separated into those that callers can reach and foreign keys.

    Attributes:
        paths: the paths of the keys that callers can reach.
        places: the places of these keys among all keys; ``None`` if all keys are paths.
        foreign: the keys that are not valid paths, without this client's own.
    """

    paths: Sequence[str]
    places: Sequence[int] | None
    foreign: Sequence[bytes]

    def of(self, column: Sequence[_T]) -> Sequence[_T]:
        """Return the entries for the paths from a column with one entry for each key."""
        return column if self.places is None else [column[place] for place in self.places]


def sort_keys(keys: Sequence[bytes], *, shared: bool = True) -> Sorted:
    """Separate keys into paths and foreign keys. One pass is enough if all are paths.

    Args:
        keys: the keys, without the store's prefix.
        shared: whether this client keeps keys of its own among them.
    """
    paths: Sequence[str]
    try:
        paths = b"\n".join(keys).decode().split("\n")
    except UnicodeDecodeError:
        paths = ()
    if len(paths) == len(keys) and all_reachable(paths):
        return Sorted(paths, None, ())
    found = [path_of(key) for key in keys]
    return Sorted(
        [path for path in found if path is not None],
        [place for place, path in enumerate(found) if path is not None],
        [
            key
            for key, path in zip(keys, found, strict=True)
            if path is None and not (shared and own(key))
        ],
    )


def path_of(key: bytes) -> str | None:
    """Return the path of a key, or ``None`` if callers cannot reach it."""
    try:
        path = key.decode()
    except UnicodeDecodeError:
        return None
    return path if reachable(path) else None


def own(key: bytes) -> bool:
    """Say whether a key is one of this client's own."""
    return _OWN in key.split(b"/")
