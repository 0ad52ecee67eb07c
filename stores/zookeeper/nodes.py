"""The last known state of the nodes with which the client works."""

from __future__ import annotations

from typing import Final

from ...ops.paths import OWN

__all__ = ["ABSENCE_MARK", "MARKS", "NULL", "SKIPPED", "VALUE_MARK", "Nodes"]

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


class Nodes:
    """A bounded memory of the nodes that existed when last seen, with the sizes of their values.

    It only serves guesses: whether a put creates or sets, whether a parent is missing, how many
    values fit in an answer. Other clients change nodes at any time.

    It forgets in generations: nodes that were not looked up while a whole generation arrived are
    dropped, which costs less than moving an entry at every lookup. Several threads use it without a
    lock: each step is one operation on one dict, and a race loses only a guess.
    """

    def __init__(self) -> None:
        self._young: dict[str, int] = {}
        self._old: dict[str, int] = {}

    def size(self, path: str) -> int | None:
        """Return the size of the value in bytes, ``NULL``, or ``None`` if it is not known."""
        size = self._young.get(path)
        if size is None:
            size = self._old.get(path)
            if size is not None:
                self.note(path, size)
        return size

    def note(self, path: str, size: int) -> None:
        """Remember that ``path`` exists, with a value of ``size`` bytes or ``NULL``."""
        young = self._young
        young[path] = size
        if len(young) >= _GENERATION:
            self._old = young
            self._young = {}

    def forget(self, path: str) -> None:
        """Remember that ``path`` does not exist."""
        self._young.pop(path, None)
        self._old.pop(path, None)
