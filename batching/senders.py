"""Starts the threads that send an engine's batches, outside its lock, and makes up for lost ones.

A sender is added to its lane under the lock, when a batch is due and nobody is free to take it. Its
start may block, be interrupted by Ctrl-C, or fail.
"""

from __future__ import annotations

from threading import RLock

from ..ops.log import get_logger
from .lane import Sender
from .queues import Queues
from .reentry import owned

__all__ = ["Senders"]

log = get_logger("batchkeeper.engine")


class Senders:
    """Starts the senders that the queues have added.

    Args:
        lock: the engine's lock. It may be taken while senders are started, never the reverse.
        queues: what the senders serve; ``queues.unstarted`` has those that have not begun.
        store: the store's URL, for messages.
    """

    def __init__(self, lock: RLock, queues: Queues, store: str) -> None:
        self._lock = lock
        self._queues = queues
        self._unstarted = queues.unstarted
        self._store = store
        self._starting = RLock()  # held by the thread that starts senders
        self._begun: Sender | None = None  # last to be started; without an ident, Ctrl-C came

    def held(self) -> bool:
        """Say whether this thread is in the middle of starting senders."""
        return owned(self._starting)

    def abandon(self, lock: RLock) -> None:
        """In a forked child, start nothing, and let go of locks that the parent may have held.

        Args:
            lock: the engine's lock from now on.
        """
        self._lock = lock
        self._starting = RLock()
        self._unstarted.clear()

    def may_send(self, sender: Sender) -> bool:
        """Say whether a sender that begins still has its place, and note that it runs."""
        with self._lock:
            if sender not in sender.lane.senders:
                return False  # Another one took its place.
            sender.lane.signalled = False
            # Not before, or nobody would start it if Ctrl-C had come in between.
            if sender in self._unstarted:
                self._unstarted.remove(sender)
            return True

    def start(self) -> None:
        """Start the senders that were added. The caller does not hold the engine's lock."""
        if owned(self._starting):
            return  # The code that a signal handler has interrupted does it afterwards.
        with self._starting:
            while new := [sender for sender in self._unstarted.copy() if sender.ident is None]:
                for sender in new:
                    if sender is self._begun:
                        self._replace(sender)
                        continue
                    self._begun = sender
                    try:
                        sender.start()
                    except RuntimeError:
                        # The system has no thread left, or the interpreter is ending.
                        self._do_without(sender)

    def _replace(self, sender: Sender) -> None:
        """Put a new sender in the place of one whose start was interrupted, unless it runs.

        The system may still run that thread, which nobody can tell. Started again, it would run
        twice.
        """
        with self._lock:
            if sender in self._unstarted:
                self._take_out(sender)
                self._unstarted.append(self._queues.add_sender(sender.lane))

    def _do_without(self, sender: Sender) -> None:
        """Let the senders that run do the work of one that cannot be started."""
        log.warning("a sender could not be started", store=self._store, sender=sender.name)
        lane = sender.lane
        with self._lock:
            self._take_out(sender)
            lane.signalled = False
            lane.allowance = 0
            self._queues.take_in()
            lane.wakeup.notify()

    def _take_out(self, sender: Sender) -> None:
        # In this order, or Ctrl-C in between would leave one to start that has no lane.
        self._unstarted.remove(sender)
        sender.lane.senders.remove(sender)
