"""The last known state of the nodes with which the client works."""

from __future__ import annotations

from typing import Final

__all__ = ["NULL", "Nodes"]

#: The size of a node whose value is null: a parent that holds no value.
NULL: Final = -1

# Nodes a generation; two generations of paths of 50 bytes take about 10 MB.
_GENERATION: Final = 1 << 15


class Nodes:
    """A bounded memory of nodes that were there when last seen, and how large their values were.

    It serves guesses only: whether a put creates or sets, whether a parent is missing, how many
    values an answer can hold. Other clients change nodes at any time.

    It forgets in generations: what was not looked at while a whole generation came in is dropped,
    which costs less than moving an entry at every look. Used from several threads without a lock:
    each step is one operation on one dict, and what a race loses is only a guess.
    """

    def __init__(self) -> None:
        self._young: dict[str, int] = {}
        self._old: dict[str, int] = {}

    def size(self, path: str) -> int | None:
        """Return the size of the value in bytes, ``NULL``, or ``None`` if nothing is known."""
        size = self._young.get(path)
        if size is None:
            size = self._old.get(path)
            if size is not None:
                self.note(path, size)
        return size

    def note(self, path: str, size: int) -> None:
        """Remember that ``path`` is there, with a value of ``size`` bytes or ``NULL``."""
        young = self._young
        young[path] = size
        if len(young) >= _GENERATION:
            self._old = young
            self._young = {}

    def forget(self, path: str) -> None:
        """Remember that ``path`` is not there."""
        self._young.pop(path, None)
        self._old.pop(path, None)
