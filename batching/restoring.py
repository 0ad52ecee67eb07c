"""Makes an engine consistent again after Ctrl-C has interrupted one of its decisions."""

from __future__ import annotations

import time
from collections.abc import Sequence

from .entry import CANCELLED, QUEUED, ROOM, Entry, move
from .queues import Queues

__all__ = ["restore"]


def restore(queues: Queues, lost: Sequence[Entry] = ()) -> None:
    """Make everything consistent after Ctrl-C has interrupted a change at any point.

    The lock must have been held since then, and afterwards, the unstarted senders are to be
    started. The states of operations and the intake are true, and the rest follows from them.

    Args:
        queues: what the change may have left half done.
        lost: the operations whose submission or cancellation was interrupted. QUEUED ones become
            CANCELLED, and lose their places. What a sender has taken meanwhile goes on.
    """
    lost = [entry for entry in lost if entry.state in (QUEUED, CANCELLED)]
    move([entry for entry in lost if entry.state == QUEUED], CANCELLED)
    for entry in lost:
        entry.lane.waiting.pop(entry, None)
        if entry in queues.intake:
            queues.intake.remove(entry)
        else:
            queues.epochs.release(entry)
    # Entries in the intake have no place yet, although it may have entered its line.
    arrived = list(queues.intake)
    for entry in arrived:
        entry.waits_for = 0
        entry.lane.waiting.pop(entry, None)
    queues.lines.restore([*lost, *arrived])
    for lane in queues.all_lanes:
        for entry, gate in list(lane.waiting.items()):
            if not entry.waits_for & ROOM:  # It has been admitted.
                if gate is not None and gate.locked():
                    gate.release()
                del lane.waiting[entry]
        lane.recount(queues.lines.entries())
        known = {*queues.unstarted}
        queues.unstarted += [s for s in lane.senders if s.ident is None and s not in known]
        # `signalled` may be set although the interrupt came before the wake-up.
        lane.signalled = False
        lane.allowance = 0
        lane.wakeup.notify_all()
    queues.admit()
    for lane in queues.all_lanes:
        if lane.batches.ready:
            queues.wake(lane, time.monotonic())
    queues.epochs.refresh()
    queues.calm()
    queues.deadline_moved.notify_all()
