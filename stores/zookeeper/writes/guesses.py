"""Guesses what is at paths that the client has not seen: a put has to create a node, or to set it.

At first, nothing is taken to be there, and puts create. If that is wrong most of the time, and puts
have met only nodes several times in a row, they set. If they have met both, nodes are read before
the first multi, until guesses are right again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Final

from ...backend import column, is_plain_put
from ..wire.nodes import Nodes
from .batches import UNDECIDED, Batch

__all__ = ["Guesses"]

# The weight of a call in the share of wrong guesses. Above the first share, the paths that are
# guessed at are noted; above the second, something changes.
_WEIGHT: Final = 0.125
_DOUBT: Final = 0.25
_WRONG: Final = 0.5
# The calls in a row that must have met only the contrary of what is guessed.
_IN_A_ROW: Final = 4

_AS_THEY_ARE: Final = nullcontext()


class Guesses:
    """The guesses of a writer. Several threads use it without a lock: a race loses only a guess.

    Args:
        nodes: the memory of nodes.
    """

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self._there = False  # whether unknown paths are taken to have nodes
        self._wrong = 0.0  # how often guesses were wrong lately, 0 to 1
        self._contrary = 0  # calls in a row whose unknown paths were all as not guessed

    @property
    def fail(self) -> bool:
        """Whether guesses are wrong so often that nodes should be read first."""
        return self._wrong > _WRONG

    def begin(self, batch: Batch) -> None:
        """Note which puts depend on a guess."""
        if not self._there and self._wrong <= _DOUBT:
            return  # Nearly always. Then nobody asks.
        unknown = self._nodes.unknown_of(batch.paths)
        if unknown and None in (versions := column(batch.writes, "expected_version")):
            batch.unknown = [
                i
                for i, write in enumerate(batch.writes)
                if versions[i] is None and batch.paths[i] in unknown and is_plain_put(write)
            ]

    def assumed(self, batch: Batch) -> AbstractContextManager[None]:
        """Count guessed nodes as known while forms are chosen, and not for longer.

        Reads rely on the sizes of known values.
        """
        undecided = [i for i in batch.unknown if batch.answers[i] is UNDECIDED]
        if not (self._there and undecided):
            return _AS_THEY_ARE
        return self._counting([batch.paths[i] for i in undecided])

    @contextmanager
    def _counting(self, guessed: Sequence[str]) -> Iterator[None]:
        self._nodes.note_all(dict.fromkeys(guessed, 0))
        try:
            yield
        finally:
            for path in guessed:
                self._nodes.forget(path)

    def learn(self, batch: Batch, *, wrong: bool) -> None:
        """Learn from a call whether its guesses were wrong, and from its reads what is right."""
        self._wrong += _WEIGHT * (wrong - self._wrong)
        found = {batch.seen[i] is not None for i in batch.unknown if i in batch.seen}
        self._contrary = self._contrary + 1 if wrong and found == {not self._there} else 0
        if self.fail and self._contrary >= _IN_A_ROW:
            self._there = not self._there
            self._contrary = 0
            self._wrong = _WRONG  # so that one more wrong call reads first again
