"""The last known state of the nodes with which the client works."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias

from ....ops.paths import OWN

__all__ = [
    "ABSENCE_MARK",
    "MARKS",
    "NULL",
    "SKIPPED",
    "VALUE_MARK",
    "Generations",
    "Nodes",
    "size_of",
]

#: The size of a node whose value is null: a parent that holds no value.
NULL: Final = -1

# The ends of the paths of nodes that a multi creates only to delete them at once.
#: The next suffix is then passed over.
SKIPPED: Final = f"/{OWN}-skipped"
#: The two marks are for watches (see ``events``). One shows that the node above it was created with
#: a value, the other that it was created only to show that there was none.
VALUE_MARK: Final = f"/{OWN}-value"
ABSENCE_MARK: Final = f"/{OWN}-absent"
MARKS: Final = (VALUE_MARK, ABSENCE_MARK)

# Nodes in a generation. Two generations of paths of 50 bytes take about 10 MB.
_GENERATION: Final = 1 << 15

#: The sizes of values by path, or ``NULL``: of the nodes seen lately, and of those seen earlier.
Generations: TypeAlias = tuple[dict[str, int], dict[str, int]]


class Nodes:
    """A bounded memory of the nodes that existed when last seen, with the sizes of their values.

    It only serves guesses: whether a put creates or sets, whether a parent is missing, how many
    values fit in an answer. Other clients change nodes at any time.

    It forgets in generations: nodes that were not looked up while a whole generation arrived are
    dropped, which costs less than moving an entry at every lookup. Several threads use it without a
    lock: each access is one operation on one dict, and a race loses only a guess.

    Attributes:
        generations: the young and the old generation, for functions that look up many paths.
        mean: the recent mean size of values; ``None`` before the first.
    """

    def __init__(self) -> None:
        self.generations: Generations = ({}, {})
        self.mean: float | None = None

    def size(self, path: str) -> int | None:
        """Return the size of the value in bytes, ``NULL``, or ``None`` if it is not known."""
        return size_of(self.generations, path)

    def unknown(self, paths: Iterable[str]) -> bool:
        """Say whether none of the paths is known."""
        return all(known.keys().isdisjoint(paths) for known in self.generations)

    def unknown_of(self, paths: Iterable[str]) -> set[str]:
        """Return those of the paths that are not known."""
        return set(paths).difference(*self.generations)

    def note(self, path: str, size: int) -> None:
        """Remember that ``path`` exists, with a value of ``size`` bytes or ``NULL``."""
        self.note_all({path: size})

    def note_all(self, found: Mapping[str, int]) -> None:
        """Remember many paths that exist, with their sizes."""
        young, _ = self.generations
        young.update(found)
        if len(young) >= _GENERATION:
            self.generations = ({}, young)

    def forget(self, path: str) -> None:
        """Remember that ``path`` does not exist."""
        young, old = self.generations
        young.pop(path, None)
        old.pop(path, None)

    def learn(self, values: int, total_bytes: int) -> None:
        """Note the sizes of values that were read or written."""
        if values:
            # It rises at once and falls by halves, because only too small a guess does damage.
            self.mean = max(total_bytes / values, (self.mean or 0) / 2)

    def expect(self, values: int, total_bytes: int) -> None:
        """Use these values as the estimate, as long as no other has been seen."""
        if self.mean is None:
            self.learn(values, total_bytes)


def size_of(generations: Generations, path: str) -> int | None:
    """Return what :meth:`Nodes.size` does, and move the path to the young generation."""
    young, old = generations
    size = young.get(path)
    if size is None:
        size = old.get(path)
        if size is not None:
            young[path] = size
    return size
