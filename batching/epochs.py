"""Counts the operations that a flush waits for: all that were submitted before it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from operator import attrgetter
from threading import Condition, RLock

from .entry import Entry, Epoch, common
from .reentry import await_change

__all__ = ["Epochs"]


_epoch = attrgetter("epoch")


class Epochs:
    """Counts pending operations by epoch: those submitted between two flushes.

    The engine's lock guards it; its condition shares that lock.
    """

    def __init__(self, lock: RLock) -> None:
        self.current = Epoch()  # the epoch of new operations
        self.open: list[Epoch] = []  # closed by a flush, with operations still pending
        self._drained = Condition(lock)  # notified when an open epoch has nothing pending

    def begin(self) -> list[Epoch]:
        """Begin a new epoch; return the earlier ones with pending operations."""
        if self.current.pending:
            self.open.append(self.current)
            self.current = Epoch()
        return list(self.open)

    def count_ended(self, ended: Sequence[Entry]) -> bool:
        """Count operations as ended; say whether this releases the last waiting flush."""
        drained = False
        # Nearly always, all are of one epoch.
        same: Epoch | None = common(ended, "epoch")
        counts = {same: len(ended)} if same else Counter(map(_epoch, ended))
        for epoch, count in counts.items():
            epoch.pending -= count
            drained |= not epoch.pending and epoch in self.open
        if drained:
            self.refresh()
        return drained and not self.open

    def release(self, entry: Entry) -> None:
        """Count one operation as ended, unless it was before.

        An interrupt leaves it either counted or not, so the call can be repeated.
        """
        epoch = getattr(entry, "epoch", None)
        if epoch is not None:
            # Without a call in between, no interrupt comes in between.
            del entry.epoch
            epoch.pending -= 1
        self.refresh()

    def refresh(self) -> None:
        """Release the flushes that have nothing to wait for."""
        if not all(epoch.pending for epoch in self.open):
            # In this order: after an interrupt in between, the next call notifies them again.
            self._drained.notify_all()
            self.open = [epoch for epoch in self.open if epoch.pending]

    def wait(self, before: Sequence[Epoch], deadline: float | None) -> bool:
        """Wait until all of these epochs have ended; return ``False`` at the deadline."""
        while not set(before).isdisjoint(self.open):
            wait = None if deadline is None else deadline - time.monotonic()
            if wait is not None and wait <= 0:
                return False
            await_change(self._drained, wait)
        return True
