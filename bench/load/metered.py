"""What a store does during a measurement, in small steps."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from ...batching import Metrics
from ..results.runs import Moment
from .parts import flushes_between

__all__ = ["Meter"]

#: The steps of a measurement, if they are not shorter than the least.
_STEPS = 50
_LEAST_STEP = 0.05


class Meter:
    """A thread that looks at a store a few times while its callers work.

    Args:
        metrics: the store's metrics.
        ended: returns the number of operations that have ended.
        seconds: the length of the timed part, which begins now.
    """

    def __init__(
        self, metrics: Callable[[], Metrics], ended: Callable[[], int], seconds: float
    ) -> None:
        self._metrics = metrics
        self._ended = ended
        self._step = max(_LEAST_STEP, seconds / _STEPS)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="bench meter", daemon=True)
        self.series: list[Moment] = []
        self._thread.start()

    def stop(self) -> None:
        """End the series."""
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        begun, before, earlier = time.monotonic(), 0, self._metrics()
        while not self._stopped.wait(self._step):
            at, ended, later = time.monotonic() - begun, self._ended(), self._metrics()
            flushed = flushes_between(earlier, later)
            self.series.append(
                Moment(
                    at=at,
                    operations=ended - before,
                    batches=flushed.batches,
                    batched=flushed.batched,
                    queued=later.reads.queued + later.writes.queued,
                    in_flight=later.reads.in_flight + later.writes.in_flight,
                )
            )
            before, earlier = ended, later
