"""Limits the operations per second of a job.

The tasks of a job do not know of each other. Each takes an equal share of the job's rate. A job
with fewer tasks at a time than shares stays below its rate.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final, TypeVar

from ..ops.errors import InvalidSettingError
from .options import SourceOptions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Throttle", "TokenBucket", "parallelism", "rate_of"]

_T = TypeVar("_T")

# The largest burst after an idle time, in seconds of the rate.
_BURST: Final = 0.1


def rate_of(options: SourceOptions, spark: SparkSession | None = None) -> float | None:
    """Return the operations per second of one task, or ``None`` if the job has no limit.

    The job's rate is divided by ``rate_tasks`` or, without it, by the default parallelism of the
    session. An embedded store is written by one task, which gets the whole rate.

    Args:
        options: the options, with ``rate_limit`` and ``rate_tasks``.
        spark: the session, if there is one; a data source has none.

    Raises:
        InvalidSettingError: the job has a limit, but neither divisor is known.
    """
    if options.rate_limit is None:
        return None
    tasks = 1 if options.embedded else options.rate_tasks
    if tasks is None and spark is not None:
        tasks = parallelism(spark)
    if tasks is None:
        raise InvalidSettingError(
            "rate_limit applies to the whole job, but spark.default.parallelism cannot be read "
            "here: pass rate_tasks, too, the number of tasks that run at the same time"
        )
    return options.rate_limit / tasks


def parallelism(spark: SparkSession) -> int | None:
    """Return the number of tasks that Spark runs at a time by default, or ``None`` if unknown."""
    try:
        configured = spark.conf.get("spark.default.parallelism", None)
        return int(configured or spark.sparkContext.defaultParallelism)
    except Exception:  # Spark Connect has no context, and raises errors of several kinds.
        return None


class TokenBucket:
    """Computes how long the next operation has to wait. The caller passes the time and sleeps.

    The bucket is empty at first, so that a job of many short tasks also keeps its rate.
    """

    def __init__(self, rate: float, now: float) -> None:
        self._rate = rate
        self._most = max(1.0, rate * _BURST)
        self._tokens = 0.0
        self._looked = now

    def take(self, now: float) -> float:
        """Take a token, and return the seconds until it is available: 0 if it is now."""
        self._tokens = min(self._most, self._tokens + (now - self._looked) * self._rate) - 1.0
        self._looked = now
        return max(0.0, -self._tokens / self._rate)


class Throttle:
    """Lets operations through at a rate."""

    def __init__(
        self,
        rate: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._bucket = TokenBucket(rate, clock())
        self._clock = clock
        self._sleep = sleep

    def pace(self, ops: Iterable[_T]) -> Iterator[_T]:
        """Yield operations one by one, at the rate."""
        for op in ops:
            wait = self._bucket.take(self._clock())
            if wait > 0:
                self._sleep(wait)
            yield op
