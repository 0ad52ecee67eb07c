"""Counts the engine's work for ``metrics``, a batch at a time. The engine's lock guards it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from operator import attrgetter

from ..ops.acceleration import accelerated
from ..ops.errors import BadVersionError, MetadataStoreError, NotEmptyError, NotFoundError
from ..ops.kinds import KINDS
from ..stores.backend import Event
from .accumulator import Cause
from .entry import Entry, common
from .metrics import BYTES, OPERATIONS, SECONDS, Counts, Distribution, LaneMetrics, Metrics

__all__ = ["CONFLICTS", "RESULTS", "LaneRecord", "Record", "all_results"]

#: The names of the errors that count as conflicts.
CONFLICTS = frozenset(kind.__name__ for kind in (BadVersionError, NotFoundError, NotEmptyError))

#: The types of all results. An answer of any other type is an error.
RESULTS = frozenset(chain.from_iterable(row.results for row in KINDS.values()))

_answer = attrgetter("answer")
_kind = attrgetter("kind")


@accelerated
def waited(entries: Sequence[Entry], now: float) -> list[float]:
    """Return how long entries have waited, in seconds."""
    return [now - entry.submitted for entry in entries]


@accelerated
def all_results(entries: Sequence[Entry], results: frozenset[type]) -> bool:
    """Say whether all answers are of these types; others are errors."""
    return results.issuperset(map(type, map(_answer, entries)))


class LaneRecord:
    """Counts the batches of one lane."""

    def __init__(self) -> None:
        self._causes: Counter[Cause] = Counter()
        self._operations = 0
        self._bytes = 0
        self._operations_per_batch = Distribution(OPERATIONS)
        self._bytes_per_batch = Distribution(BYTES)
        self._queue_seconds = Distribution(SECONDS)
        self._store_seconds = Distribution(SECONDS)

    def sent(self, batch: Sequence[Entry], size: int, cause: Cause, now: float) -> None:
        """Count a batch that is being sent."""
        self._causes[cause] += 1
        self._operations += len(batch)
        self._bytes += size
        self._operations_per_batch.add(len(batch))
        self._bytes_per_batch.add(size)
        self._queue_seconds.add_all(waited(batch, now))

    def answered(self, seconds: float) -> None:
        """Count a batch that has ended."""
        self._store_seconds.add(seconds)

    def metrics(self, queued: int, waiting: int, in_flight: int) -> LaneMetrics:
        return LaneMetrics(
            queued=queued,
            waiting=waiting,
            in_flight=in_flight,
            batches=self._causes.total(),
            operations=self._operations,
            bytes=self._bytes,
            causes=Counts(self._causes),
            operations_per_batch=self._operations_per_batch.snapshot(),
            bytes_per_batch=self._bytes_per_batch.snapshot(),
            queue_seconds=self._queue_seconds.snapshot(),
            store_seconds=self._store_seconds.snapshot(),
        )


class Record:
    """Counts the operations that have ended."""

    def __init__(self) -> None:
        self.waits = 0
        self._operations: Counter[str] = Counter()
        self._failures: Counter[str] = Counter()
        self._errors: Counter[str] = Counter()

    def ended(self, entries: Sequence[Entry]) -> None:
        """Count operations that have ended; cancelled ones do not count."""
        if not entries:
            return
        # Most batches have one kind, and counting that is the quickest.
        if kind := common(entries, "kind"):
            self._operations[kind] += len(entries)
        else:
            self._operations.update(map(_kind, entries))
        # Errors are looked for one by one only where there are some.
        if not all_results(entries, RESULTS):
            for entry in entries:
                if isinstance(entry.answer, MetadataStoreError):
                    self._failures[entry.kind] += 1
                    self._errors[type(entry.answer).__name__] += 1

    def metrics(
        self,
        reads: LaneMetrics,
        writes: LaneMetrics,
        singles: LaneMetrics,
        queued_bytes: int,
        events: Mapping[Event, int],
    ) -> Metrics:
        return Metrics(
            reads=reads,
            writes=writes,
            singles=singles,
            queued_bytes=queued_bytes,
            waits=self.waits,
            errors=Counts(self._errors),
            operations=Counts(self._operations),
            failures=Counts(self._failures),
            conflicts=sum(self._errors[name] for name in CONFLICTS),
            aborts=events["conflict"],
            splits=events["split"],
            retries=events["retry"],
            settled=events["settled"],
            reconnects=events["reconnect"],
        )
