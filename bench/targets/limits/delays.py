"""Back ends for the engine: one measures the time of requests, the other only waits."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence

from batchkeeper.ops.results import Stat
from batchkeeper.stores.backend import Answer, Backend, Limits, PassingBackend, WriteRequest


class Timed(PassingBackend):
    """Passes all calls on to ``backend``, and records the seconds of each write."""

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        self._times: list[float] = []

    def write(self, requests: Sequence[WriteRequest], deadline: float) -> Sequence[Answer]:
        begun = time.perf_counter()
        answers = super().write(requests, deadline)
        self._times.append(time.perf_counter() - begun)
        return answers

    def median(self) -> float:
        """Return the median of the times so far."""
        return statistics.median(self._times)


class Delayed(PassingBackend):
    """Waits ``delay`` seconds in each write, and answers every put as the first of its path."""

    def __init__(self, backend: Backend, delay: float, limits: Limits) -> None:
        super().__init__(backend)
        self._delay = delay
        self._limits = limits

    @property
    def limits(self) -> Limits:
        return self._limits

    def write(self, requests: Sequence[WriteRequest], deadline: float) -> Sequence[Answer]:
        time.sleep(self._delay)
        return [Stat(request.path, 0, 1) for request in requests]
