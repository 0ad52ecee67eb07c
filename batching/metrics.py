"""What a store has done so far, as numbers with stable names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["LaneMetrics", "Metrics"]


@dataclass(frozen=True, slots=True)
class LaneMetrics:
    """One way to the store: its queue and its batches. Counts run from the opening of the store.

    Attributes:
        queued: operations held now, in the queue and in the lines of their paths; of the single
            executions, those under way too.
        waiting: operations whose callers wait now for room in the queue.
        in_flight: batches under way now.
        batches: batches sent.
        operations: operations sent in them.
        bytes: bytes sent in them: paths, values and an estimate of the encoding's overhead.
        causes: batches by what made them leave: ``ops``, ``bytes``, ``idle``, ``delay``,
            ``flush`` or ``close``.
    """

    queued: int
    waiting: int
    in_flight: int
    batches: int
    operations: int
    bytes: int
    causes: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Metrics:
    """A snapshot of a store.

    Attributes:
        reads: the queue of reads and its batches.
        writes: the queue of writes and its batches.
        singles: the single executions beside the batches, because a queue was full.
        queued_bytes: bytes held now in both queues.
        waits: calls that had to wait for room in a queue.
        errors: operations that ended with an error, by the error's class name.
    """

    reads: LaneMetrics
    writes: LaneMetrics
    singles: LaneMetrics
    queued_bytes: int
    waits: int
    errors: Mapping[str, int]
