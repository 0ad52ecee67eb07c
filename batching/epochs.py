"""Counts the operations that a flush waits for: all that were submitted before it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from operator import attrgetter
from threading import Condition, Lock

from .entry import Entry, Epoch

__all__ = ["Epochs"]


_epoch = attrgetter("epoch")


class Epochs:
    """Counts the operations that have not ended, by the flushes between which they were submitted.

    Guarded by the engine's lock, which it is given.
    """

    def __init__(self, lock: Lock) -> None:
        self.current = Epoch()  # of the operations submitted now
        self.open: list[Epoch] = []  # ended by a flush, with operations still pending
        self._settled = Condition(lock)  # an open epoch has nothing pending any more

    def begin(self) -> list[Epoch]:
        """Begin a new epoch; return those in which operations are pending."""
        if self.current.pending:
            self.open.append(self.current)
            self.current = Epoch()
        return list(self.open)

    def settle(self, told: Sequence[Entry]) -> bool:
        """Count operations as ended; say whether by that no flush has to wait any more."""
        settled = False
        # Nearly always of one epoch, so they are counted and not gone through.
        epochs = [*map(_epoch, told)]
        while epochs:
            epoch = epochs[0]
            count = epochs.count(epoch)
            if count == len(epochs):
                epochs = []
            else:
                epochs = [other for other in epochs if other is not epoch]
            epoch.pending -= count
            if not epoch.pending and epoch in self.open:
                self.open.remove(epoch)
                settled = True
        if settled:
            self._settled.notify_all()
        return settled and not self.open

    def wait(self, before: Sequence[Epoch], deadline: float | None) -> bool:
        """Wait until all of these epochs have ended; say whether they have, by the deadline."""
        while any(epoch in self.open for epoch in before):
            wait = None if deadline is None else deadline - time.monotonic()
            if wait is not None and wait <= 0:
                return False
            self._settled.wait(wait)
        return True
