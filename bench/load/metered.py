"""What a store does during a measurement, in small steps."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...batching import Metrics
from ..results.runs import Moment
from .callers import Counted
from .parts import lanes

__all__ = ["Meter", "Tick"]

#: The steps of a measurement, if they are not shorter than the least.
_STEPS = 50
_LEAST_STEP = 0.05
# The latest latencies of each caller that a tick looks at.
_LATEST = 200


@dataclass(frozen=True, slots=True)
class Tick:
    """The visible state of a running measurement.

    Attributes:
        rate: operations per second since the last tick.
        latencies: some of the latest latencies in nanoseconds.
        share: how much of the measurement is over, from 0 to 1.
    """

    rate: float
    latencies: Sequence[int]
    share: float


class Meter:
    """A thread that looks at a store and its callers a few times while they work.

    Args:
        metrics: the store's metrics; ``None`` for a peer, which has none.
        counted: returns what the callers have counted so far.
        seconds: the length of the timed part.
        tell: receives a tick at each look, in this thread.
    """

    def __init__(
        self,
        metrics: Callable[[], Metrics] | None,
        counted: Callable[[], Sequence[Counted]],
        seconds: float,
        tell: Callable[[Tick], None],
    ) -> None:
        self._metrics = metrics
        self._counted = counted
        self._seconds = seconds
        self._tell = tell
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="bench meter", daemon=True)
        self.series: list[Moment] = []

    def start(self) -> None:
        """Begin; the timed part begins now."""
        self._thread.start()

    def stop(self) -> None:
        """End, if it has begun."""
        self._stopped.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        step = max(_LEAST_STEP, self._seconds / _STEPS)
        begun = before = time.monotonic()
        ended = 0
        earlier = self._metrics and self._metrics()
        while not self._stopped.wait(step):
            now = time.monotonic()
            counted = self._counted()
            total = sum(one.ended for one in counted)
            if self._metrics is not None and earlier:
                later = self._metrics()
                self.series.append(_moment(now - begun, total - ended, earlier, later))
                earlier = later
            latest = [
                time
                for one in counted
                for times in (one.reads, one.writes)
                for time in times[-_LATEST:]
            ]
            rate = (total - ended) / (now - before)
            self._tell(Tick(rate, latest, min(1.0, (now - begun) / self._seconds)))
            ended, before = total, now


def _moment(at: float, operations: int, earlier: Metrics, later: Metrics) -> Moment:
    def grown(name: str) -> int:
        after, before = (sum(getattr(lane, name) for lane in lanes(m)) for m in (later, earlier))
        return int(after - before)

    return Moment(
        at=at,
        operations=operations,
        batches=grown("batches"),
        batched=grown("operations"),
        queued=later.reads.queued + later.writes.queued,
        in_flight=later.reads.in_flight + later.writes.in_flight,
    )
