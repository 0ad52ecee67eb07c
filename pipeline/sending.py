"""Sends writes until the outcome of each is known, and again if that does no harm.

A job's task may run again after a kill, or twice at the same time. So all of this must be correct
if some of the writes were done before:

- A conditional write whose effect is already there counts as done (``already_applied``). Its
  condition refuses it, and the sender then reads the path. One bulk of gets reads all such paths.
- The path of a conditional write with an unknown outcome is read, too. The write is sent again if
  its condition still holds. An unconditional write is sent again: at least once.
- A write that was refused for a temporary reason (no server, no room) is sent again a few times.
- If a write has to be sent again, the later writes of its path follow it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Final, NamedTuple, assert_never

from ..batching import MetadataStore
from ..ops.backoff import Backoff
from ..ops.errors import (
    BadVersionError,
    IndeterminateError,
    MetadataStoreError,
    NotEmptyError,
    NotFoundError,
    error_class,
    passes,
)
from ..ops.operations import ABSENT, Delete, Get, GetChildren, Operation, Put
from ..ops.results import GetResult, Outcome, Stat
from .clients import limit_of
from .row_report import DONE, RowOutcome, Status

__all__ = ["PATIENCE", "Patience", "Sender", "describe", "may_pass"]


class Patience(NamedTuple):
    """How often to resend rows that failed for a temporary reason.

    Attributes:
        times: the most attempts after the first one.
        backoff: the pauses before these attempts.
    """

    times: int = 5
    backoff: Backoff = Backoff(first=0.2, longest=5.0)


PATIENCE: Final = Patience()


class Sender:
    """Executes slices of writes, and repeats writes where that is safe, until each has its outcome.

    Args:
        store: the store to write.
        parents_count: whether the first put of a path with values below it creates version 1
            instead of 0, as on ZooKeeper.
        patience: how often to resend operations.
        sleep: a function that waits for a number of seconds.

    Attributes:
        seconds: for each operation of the last slice, the seconds from its submission to the client
            until its outcome.
        resent: the operations of the last slice that were sent again, and the requests that the
            client itself sent again meanwhile.
    """

    def __init__(
        self,
        store: MetadataStore,
        *,
        parents_count: bool = False,
        patience: Patience = PATIENCE,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._store = store
        self._parents_count = parents_count
        self._limit = limit_of(store)
        self._patience = patience
        self._sleep = sleep
        self._gave_up = False  # on the previous slice
        self.seconds: list[float] = []
        self.resent = 0
        self._begin(())

    def _begin(self, ops: Sequence[Put | Delete]) -> None:
        self._ops = ops
        self._ended: list[RowOutcome | None] = [None] * len(ops)
        self._errors: dict[int, MetadataStoreError] = {}  # the last error of each failed operation
        self._unsure: set[int] = set()  # may have been applied by an earlier request
        self._refused: list[int] = []  # deletes of paths with values below them
        self.seconds = []
        self.resent = 0

    def run(self, ops: Sequence[Put | Delete]) -> list[RowOutcome]:
        """Execute operations until all have ended, and return their outcomes in the same order."""
        self._begin(ops)
        before = self._store.metrics().retries
        places = range(len(ops))
        again = self._round(places, self.seconds)
        if again:
            self._gave_up = not self._send_again(again)
        elif ops:
            self._gave_up = False
        self._repeat_deletes()
        self.resent += self._store.metrics().retries - before
        return [self._ended[place] or self._give_up(place) for place in places]

    def _repeat_deletes(self) -> None:
        """Repeat deletes that values below refused, the deepest first: these may be gone by now.

        A delete that another operation on its path follows would undo that one, and stays refused.
        """
        last = {op.path: place for place, op in enumerate(self._ops)} if self._refused else {}
        places = [place for place in self._refused if last[self._ops[place].path] == place]
        places.sort(key=self._depth, reverse=True)
        for _, level in groupby(places, self._depth):
            if again := self._round([*level], None):
                self._send_again(again)

    def _depth(self, place: int) -> int:
        return self._ops[place].path.count("/")

    def _send_again(self, places: list[int]) -> bool:
        """Resend operations, one after the other on each path; return whether all ended."""
        lines = self._lines(places)
        # If the server is away for long, only the first slice spends all of its attempts.
        most = 0 if self._gave_up else self._patience.times
        failures = 1
        while lines:
            if failures > most:
                return False
            if failures:
                self._sleep(self._patience.backoff.pause(failures - 1))
            heads = [line.popleft() for line in lines.values()]
            for place in heads:
                self._ended[place] = None
            self.resent += len(heads)
            again = self._round(heads, None)
            failures = failures + 1 if again else 0
            for place in again:
                lines[self._ops[place].path].appendleft(place)
            lines = {path: line for path, line in lines.items() if line}
        return True

    def _lines(self, places: list[int]) -> dict[str, deque[int]]:
        """Return the operations to send, by path: those that failed, and those that follow them.

        An operation that followed a failed one must follow it again. The exception is a conditional
        operation that was applied, because its condition no longer holds. Operations that failed
        before it are not sent again either: they would come after it and undo it.
        """
        lines: dict[str, deque[int]] = {self._ops[place].path: deque() for place in places}
        failed = set(places)
        for place, op in enumerate(self._ops):
            line = lines.get(op.path)
            if line is None:
                continue
            ended = self._ended[place]
            if op.expected_version is not None and ended is not None and ended.status in DONE:
                line.clear()
            elif place in failed or line:
                line.append(place)
        return {path: line for path, line in lines.items() if line}

    def _round(self, places: Sequence[int], seconds: list[float] | None) -> list[int]:
        """Send operations once, and return the places of those to send again."""
        again: list[int] = []
        unclear: list[int] = []
        ops = [self._ops[place] for place in places]
        ended = self._ended
        # This loop runs once for every row.
        for place, (op, result, error) in zip(places, self._send(ops, seconds), strict=True):
            if error is None:
                version = result.version if isinstance(result, Stat) else None
                ended[place] = RowOutcome(op.path, "ok", version)
            else:
                self._sort(place, error, again, unclear)
        if unclear:
            again += self._read_back(unclear)
        return again

    def _sort(
        self, place: int, error: MetadataStoreError, again: list[int], unclear: list[int]
    ) -> None:
        """End a failed operation, or add it to those to send again or to look up."""
        op = self._ops[place]
        conditional = op.expected_version is not None
        self._errors[place] = error
        if error.outcome == "unknown":
            if not conditional and isinstance(error, IndeterminateError) and error.applied:
                self._end(place, "ok")
                return
            self._unsure.add(place)
            (unclear if conditional else again).append(place)
            return
        if error.retriable:
            again.append(place)
            return
        match error:
            case NotFoundError():
                gone_by_us = conditional or place in self._unsure
                self._end(place, "already_applied" if gone_by_us else "not_found")
            case BadVersionError() if isinstance(op, Put) or place in self._unsure:
                unclear.append(place)
            case BadVersionError() | NotEmptyError():
                if isinstance(error, NotEmptyError):
                    self._refused.append(place)
                self._end(place, "conflict", error)
            case _:
                self._end(place, "error", error)

    def _read_back(self, places: list[int]) -> list[int]:
        """Read the paths of conditional operations, and return the operations to send again."""
        again: list[int] = []
        try:
            self._store.sync()  # An earlier attempt may have written in another session.
        except MetadataStoreError:
            return places  # They are conditional: sending them again does no harm.
        gets = [Get(self._ops[place].path) for place in places]
        outcomes = self._send(gets, None)
        parents = self._created_parents(places, outcomes) if self._parents_count else {}
        for place, outcome in zip(places, outcomes, strict=True):
            # If a read failed, it is unknown whether the value at the path is ours.
            if outcome.error is not None or parents.get(self._ops[place].path, False) is None:
                again.append(place)
                continue
            found = outcome.result
            assert found is None or isinstance(found, GetResult)
            op, unsure = self._ops[place], place in self._unsure
            if _effect_is_there(op, found) or parents.get(op.path):
                version = None if found is None else found.stat.version
                self._ended[place] = RowOutcome(op.path, "already_applied", version)
            elif not unsure:
                self._end(place, "conflict", self._errors[place])
            elif op.expected_version == (ABSENT if found is None else found.stat.version):
                again.append(place)  # It was not applied, and its condition holds.
            else:
                # Our write may have been applied before the value that is there now.
                self._end(place, "indeterminate", self._errors[place])
        return again

    def _created_parents(self, places: list[int], gets: list[Outcome]) -> dict[str, bool | None]:
        """Say which paths are at version 1 because they were created with values below them.

        A path at version 1 without values below it was put twice: ``False``. ``None`` stands for a
        path whose children could not be read.
        """
        candidates = [
            GetChildren(op.path)
            for op, outcome in zip((self._ops[place] for place in places), gets, strict=True)
            if isinstance(op, Put)
            and op.expected_version == ABSENT
            and isinstance(outcome.result, GetResult)
            and outcome.result.stat.version == 1
            and outcome.result.value == op.value
        ]
        listed = self._send(candidates, None)
        return {
            outcome.op.path: bool(outcome.result) if outcome.error is None else None
            for outcome in listed
        }

    def _send(self, ops: Sequence[Operation], seconds: list[float] | None) -> list[Outcome]:
        """Execute operations once, return their outcomes, and record the seconds of each."""
        clock = time.monotonic
        limit = self._limit
        if limit is None:
            # The client submits a list a hundred operations at a time.
            if seconds is None:
                return self._store.apply(ops)
            begun, ended = clock(), []
            for outcome in self._store.apply_stream(ops):
                ended.append(outcome)
                seconds.append(clock() - begun)
            return ended
        times: deque[float] = deque()

        def timed() -> Iterator[Operation]:
            for op in ops:
                limit.wait()  # Before its deadline begins.
                times.append(clock())
                yield op

        ended = []
        for outcome in self._store.apply_stream(timed()):
            ended.append(outcome)
            begun = times.popleft()
            if seconds is not None:
                seconds.append(clock() - begun)
        return ended

    def _end(self, place: int, status: Status, error: MetadataStoreError | None = None) -> None:
        if place in self._unsure and status not in DONE:
            status = "indeterminate"  # It was refused now, but may have been applied earlier.
        text = None if error is None else describe(error)
        self._ended[place] = RowOutcome(self._ops[place].path, status, None, text)

    def _give_up(self, place: int) -> RowOutcome:
        """Return the outcome of an operation that has not ended in any attempt."""
        error = self._errors[place]
        # Its condition refused it, perhaps because of its own effect: the path could not be read.
        unknown = isinstance(error, BadVersionError)
        self._end(place, "indeterminate" if unknown else "error", error)
        ended = self._ended[place]
        assert ended is not None
        return ended


def _effect_is_there(op: Put | Delete, found: GetResult | None) -> bool:
    """Say whether a path is in the state that a conditional operation leaves."""
    match op:
        case Delete():
            return found is None
        case Put():
            pass
        case _:
            assert_never(op)
    assert op.expected_version is not None
    # ABSENT is -1, and a new path is at version 0.
    return (
        found is not None
        and found.stat.version == op.expected_version + 1
        and found.value == op.value
    )


def describe(error: MetadataStoreError) -> str:
    """Return the text of an error for a row's outcome."""
    return f"{type(error).__name__}: {error}"


def may_pass(described: str) -> bool:
    """Say whether the error in a text of :func:`describe` is temporary."""
    kind = error_class(described.partition(":")[0])
    return kind is not None and passes(kind)
