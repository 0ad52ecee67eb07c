"""Back ends for the engine: one measures the time of requests, the other only waits."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence

from ...ops.results import Stat
from ...stores.backend import (
    Answer,
    Backend,
    Limits,
    PassingBackend,
    ReadRequest,
    Tally,
    WriteRequest,
)

__all__ = ["Delayed", "Timed"]


class Timed(PassingBackend):
    """Passes all calls on to ``backend``, and records the seconds of each write."""

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        self.times: list[float] = []

    def write(self, requests: Sequence[WriteRequest], deadline: float) -> Sequence[Answer]:
        begun = time.perf_counter()
        answers = super().write(requests, deadline)
        self.times.append(time.perf_counter() - begun)
        return answers

    def median(self) -> float:
        """Return the median of the times so far."""
        return statistics.median(self.times)


class Delayed:
    """Waits ``delay`` seconds in each call, and answers every put as the first of its path."""

    scans = None
    history = None
    session = None
    watches = None

    def __init__(self, delay: float, limits: Limits) -> None:
        self._delay = delay
        self.limits = limits
        self.tally = Tally()

    def write(self, requests: Sequence[WriteRequest], deadline: float) -> Sequence[Answer]:
        time.sleep(self._delay)
        return [Stat(request.path, 0, 1) for request in requests]

    def read(self, requests: Sequence[ReadRequest], deadline: float) -> Sequence[Answer]:
        time.sleep(self._delay)
        return [None] * len(requests)

    def sync(self, deadline: float) -> None:
        time.sleep(self._delay)

    def close(self) -> None:
        """Do nothing: there is nothing to release."""
