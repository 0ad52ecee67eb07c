"""Writes: each once, with its own outcome; see ``layout`` for how.

A write reads the state of its row, or has it from an earlier call, decides, and replaces that
state. A put that expects no value is sent at once, as if there were no row, and so are others while
most paths turn out to be new. If another client was faster, it reads again. If its answer is lost,
the marks of the row tell whether it was applied. If the old state is there, it may still be: it is
sent again as it is.
"""

from __future__ import annotations

import itertools
import os
import struct
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any, Final, Protocol, assert_never
from weakref import WeakValueDictionary

from ...ops.errors import (
    BadVersionError,
    IndeterminateError,
    MetadataStoreError,
    NotFoundError,
    OperationTimeoutError,
    StoreUnavailableError,
    UnsupportedError,
    ValueTooLargeError,
    passes,
)
from ...ops.operations import ABSENT
from ...ops.paths import parent
from ...ops.steps import At, Condition, PutNext, PutValue, Step, lower
from ..backend import Answer, WriteRequest, send_by
from ..refusals import State, decide, not_ours, session_lost
from .cluster import Cluster, held
from .forms import STATES, STATES_AND_VALUES, put, remove
from .layout import FOREIGN, NO_ROW, Row
from .requests import Requests, Written
from .scans import Walk
from .sequences import MOST_BYTES, MOST_ENTRIES, Entry, Taken, counter_path, pack, unpack
from .wire.connection import LostError, RemoteError
from .wire.errors import error_of, meaning_of

__all__ = ["Writer"]

# Seconds after the deadline for which the outcome of a write is looked for.
_PATIENCE: Final = 120.0
# The states to keep, of about 300 bytes each, and the counters.
_KEPT: Final = 20_000
_COUNTERS: Final = 1_000
# Puts are sent without a read if more than this share of unknown paths had no row lately.
_MOSTLY: Final = 0.75
_WEIGHT: Final = 0.25
# The scans under way that look below deletes (a server takes some hundred calls), and the rows that
# each asks for.
_LOOKS: Final = 64
_LOOKED_AT: Final = 100


@dataclass(slots=True, eq=False)
class _Write:
    """A write under way.

    Attributes:
        step: what it does.
        key: the key of its row.
        before: the state that it expects; ``None`` if that has to be read.
        fresh: whether that state was read in this call.
        after: the state that it makes, once it was sent.
        perhaps: whether it may have been applied.
        lost: whether an answer to it was lost.
        shared: whether other clients may make the same change, with the same mark.
        owner: the session that a value which this creates ends with, or 0.
        number: the number of that session.
        guessed: whether its first state is a guess: that there is no row.
        foreign: whether it also removes a value that another program wrote.
        answer: its answer, once it is ``done``.
    """

    step: Step
    key: bytes
    before: Row | None = None
    fresh: bool = False
    after: Row | None = None
    perhaps: bool = False
    lost: bool = False
    shared: bool = False
    owner: int = 0
    number: int = 0
    guessed: bool = False
    foreign: bool = False
    answer: Answer = None
    done: bool = False

    @property
    def open(self) -> bool:
        """Whether it may have been applied, or may be, whatever this client does."""
        return self.perhaps or self.shared

    @property
    def numbered(self) -> bool:
        """Whether it is a sequential put."""
        return isinstance(self.step.effect, PutNext)

    def read_again(self) -> None:
        self.before = self.after = None
        self.fresh = self.perhaps = False

    def end(self, answer: Answer) -> None:
        self.answer, self.done = answer, True


class _Session(Protocol):
    """The session of the client; it needs the writer, too."""

    @property
    def owner(self) -> int: ...
    @property
    def number(self) -> int: ...
    def enter(self, deadline: float) -> tuple[int, int]: ...
    def name(self, owner: int, paths: Sequence[tuple[str, bool]], deadline: float) -> None: ...


class _States:
    """The states of the rows that were last written: the least recently used goes first."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._states: OrderedDict[bytes, Row] = OrderedDict()

    def take(self, key: bytes) -> Row | None:
        with self._lock:
            return self._states.pop(key, None)

    def keep(self, key: bytes, row: Row) -> None:
        with self._lock:
            self._states[key] = row
            if len(self._states) > _KEPT:
                self._states.popitem(last=False)


class Writer:
    """Executes the writes of one client.

    Args:
        cluster: the servers.
        requests: sends to them.
    """

    def __init__(self, cluster: Cluster, requests: Requests) -> None:
        self._cluster = cluster
        self._requests = requests
        self._client = os.urandom(8)
        self._numbers = itertools.count(1)  # Taking one is atomic.
        self._states = _States()
        # The share of paths without a row among those that were not known lately. No lock, because
        # it is a guess.
        self._new = 0.0
        self.session: _Session
        # Counters that this client was the last to change, with the next number: all that have
        # smaller ones are there. Each step on it is atomic.
        self._counters: dict[str, tuple[Row, int]] = {}
        self._numbered_bytes = MOST_BYTES  # of the values in one of them; a server may want fewer
        # By parent, held by the call that takes numbers: others would only be refused. Weak, so
        # that a gate ends with the last of its calls.
        self._gates: WeakValueDictionary[str, Any] = WeakValueDictionary()

    def write(self, writes: Sequence[WriteRequest], deadline: float) -> list[Answer]:
        """Execute writes of different paths, and return their answers."""
        under_way = [self._begin(write) for write in writes]
        self._enter_session(writes, under_way, deadline)
        left = [write for write in under_way if not write.done]
        self._execute([write for write in left if not write.numbered], deadline)
        groups: dict[str, list[_Write]] = {}
        for write in left:
            if write.numbered:
                groups.setdefault(parent(write.step.path), []).append(write)
        for above, some in groups.items():
            self._number(above, some, deadline)
        for write, request in zip(under_way, writes, strict=True):
            if write.owner and write.number != self.session.number:
                write.end(session_lost(request))
        return [write.answer for write in under_way]

    def _enter_session(
        self, requests: Sequence[WriteRequest], writes: list[_Write], deadline: float
    ) -> None:
        """Give ephemeral puts their session, and name them below it."""
        named = [
            (request, write)
            for request, write in zip(requests, writes, strict=True)
            if not write.done and _ephemeral(write.step)
        ]
        if not named:
            return
        try:
            owner, number = self.session.enter(deadline)
            for request, write in named:
                if request.session not in {None, number}:
                    write.end(session_lost(request))
                else:
                    write.owner, write.number = owner, number
            self.session.name(
                owner,
                [(write.step.path, write.numbered) for _, write in named if not write.done],
                deadline,
            )
        except MetadataStoreError as error:
            for _, write in named:
                if not write.done:
                    write.end(error.for_path(write.step.path))

    def change(self, step: Step, before: Row | None, deadline: float) -> Row:
        """Make one change of the client's own rows; return the row after it.

        Raises:
            MetadataStoreError: it was not made, or nobody knows.
        """
        write = _Write(step, step.path.encode(), before, fresh=before is not None)
        self._execute([write], deadline, look_below=False, patience=0.0)
        _raise_but((), [write])
        assert write.after is not None
        return write.after

    def put_all(self, values: Sequence[tuple[str, bytes]], deadline: float) -> None:
        """Put the client's own rows, unless they are there.

        Raises:
            MetadataStoreError: one could not be put.
        """
        under_way = [
            _Write(Step(path, "absent", PutValue(value, ephemeral=False)), path.encode())
            for path, value in dict(values).items()
        ]
        self._execute(under_way, deadline, look_below=False, patience=0.0)
        _raise_but(BadVersionError, under_way)

    def remove_rows(self, rows: Mapping[bytes, Row], deadline: float) -> None:
        """Remove values if they are as they were read.

        Raises:
            MetadataStoreError: one could not be removed.
        """
        under_way = [
            _Write(Step(key.decode(), At(row.version, row.time), "delete"), key, row, fresh=True)
            for key, row in rows.items()
        ]
        self._execute(under_way, deadline, look_below=False, patience=0.0)
        _raise_but((BadVersionError, NotFoundError), under_way)

    def remove(self, paths: Sequence[str], deadline: float) -> int:
        """Remove the values of paths, whatever lies below them; return how many there were.

        Also those that another program wrote.

        Raises:
            MetadataStoreError: some could not be removed.
        """
        under_way = [
            _Write(
                Step(path, "exists", "delete"), path.encode(errors="surrogateescape"), foreign=True
            )
            for path in paths
        ]
        self._execute(under_way, deadline, look_below=False)
        _raise_but(NotFoundError, under_way)
        return sum(write.answer is None for write in under_way)

    def _begin(self, write: WriteRequest) -> _Write:
        lowered = lower(write)
        if isinstance(lowered, list):
            refusal = UnsupportedError("the hbase store has no transactions", path=write.path)
            return _Write(Step(write.path, "any", "nothing"), b"", answer=refusal, done=True)
        key = lowered.path.encode()
        if isinstance(lowered.effect, PutNext):
            return _Write(lowered, key)
        made = _Write(lowered, key, self._states.take(key))
        condition = lowered.condition
        if made.before is None and (
            condition == "absent" or (condition == "any" and self._new > _MOSTLY)
        ):
            made.before, made.guessed = NO_ROW, True
        return made

    def _number(self, above: str, left: list[_Write], deadline: float) -> None:
        """Execute sequential puts below a parent, in their order."""
        gate = self._gates.setdefault(above, Lock())
        late = OperationTimeoutError(f"an earlier call still takes numbers below {above!r}")
        try:
            with held(gate, send_by(deadline), late):
                while left:
                    left = self._take_numbers(above, left, deadline)
        except MetadataStoreError as error:
            for write in left:
                if not write.done:
                    write.end(_ended(write, error))

    def _take_numbers(self, above: str, left: list[_Write], deadline: float) -> list[_Write]:
        """Take numbers for sequential puts, and create their paths; return those that are left.

        Raises:
            MetadataStoreError: no number can be taken. Nothing of these puts was applied.
        """
        counter = counter_path(above)
        known: tuple[Row, int] | None = self._counters.pop(counter, None)
        row, number = known or self._read_counter(counter, deadline)
        some = _fitting(left, self._numbered_bytes)
        entries = [
            Entry(
                f"{write.step.path}{place:010}",
                NO_ROW.changed(0, self._mark(), write.owner),
                _value(write),
            )
            for place, write in enumerate(some, number)
        ]
        after = number + len(some)
        unchanged: Condition = "absent" if row.version == ABSENT else At(row.version, None)
        content = PutValue(pack(Taken(after, entries)), ephemeral=False)
        take = _Write(Step(counter, unchanged, content), counter.encode(), row, fresh=True)
        self._execute([take], deadline, look_below=False)
        if isinstance(take.answer, MetadataStoreError):
            return self._without_numbers(take.answer, left, some)
        again = []
        complete = True
        for write, answer in zip(some, self._create(entries, deadline), strict=True):
            if isinstance(answer, BadVersionError):
                again.append(write)  # Somebody has put that path before: the next number.
            else:
                write.end(answer)
                complete &= not isinstance(answer, MetadataStoreError)
        if complete and take.after is not None:
            if len(self._counters) >= _COUNTERS:
                self._counters.clear()
            self._counters[counter] = take.after, after
        return [*again, *left[len(some) :]]

    def _without_numbers(
        self, error: MetadataStoreError, left: list[_Write], some: list[_Write]
    ) -> list[_Write]:
        """Return the sequential puts that are left after ``some`` could not take their numbers."""
        if isinstance(error, BadVersionError):
            return left  # Another client was faster.
        if isinstance(error, ValueTooLargeError):
            if len(some) > 1:  # The server takes smaller cells alone.
                self._numbered_bytes //= 2
                return left
        elif error.outcome != "unknown":
            raise error
        for write in some:
            write.end(error.for_path(write.step.path))
        return left[len(some) :]

    def _read_counter(self, counter: str, deadline: float) -> tuple[Row, int]:
        """Return a counter and its next number, when all that have smaller ones are there."""
        read = self._requests.read([counter.encode()], STATES_AND_VALUES, deadline)
        row = read.get(counter.encode(), NO_ROW)
        try:
            number, entries = unpack(row.value)
        except (struct.error, ValueError):
            text = f"another program wrote {counter!r}: remove that row with HBase's deleteall"
            raise MetadataStoreError(text) from None
        for answer in self._create(entries, deadline):
            if isinstance(answer, MetadataStoreError) and passes(answer):
                cause = answer.__cause__  # Whatever became of these, this call has sent nothing.
                late = StoreUnavailableError(str(answer), path=answer.path)
                raise cause if isinstance(cause, MetadataStoreError) else late
        return row, number

    def _create(self, entries: Sequence[Entry], deadline: float) -> list[Answer]:
        """Create paths with the states that they were given; others may do the same."""
        writes = [
            _Write(
                Step(path, "absent", PutValue(value, ephemeral=False)),
                path.encode(),
                NO_ROW,
                fresh=True,
                after=row,
                shared=True,
            )
            for path, row, value in entries
        ]
        self._execute(writes, deadline, look_below=False)
        return [write.answer for write in writes]

    def _execute(
        self,
        left: list[_Write],
        deadline: float,
        *,
        look_below: bool = True,
        patience: float = _PATIENCE,
    ) -> None:
        """Send writes until each has its answer, or for ``patience`` seconds after the deadline."""
        attempts = 0
        while left:
            failed: list[LostError | RemoteError] = []
            try:
                self._round(left, failed, _until(left, deadline, patience), look_below=look_below)
                if failed:
                    self._cluster.tally.add("retry")
                    # Only the round has shown which of them may have been applied.
                    by = _until(left, deadline, patience)
                    if self._cluster.pause(attempts, by):
                        self._requests.relocate(failed, by)
                    attempts += 1
            except MetadataStoreError as error:
                for write in left:
                    if not write.done:
                        write.end(_ended(write, error))
            left = [write for write in left if not write.done]
            now = time.monotonic()
            for write in left:
                if now > (deadline + patience if write.open else send_by(deadline)):
                    write.end(_ended(write, _late(failed)))
            left = [write for write in left if not write.done]

    def _round(
        self,
        writes: list[_Write],
        failed: list[LostError | RemoteError],
        deadline: float,
        *,
        look_below: bool,
    ) -> None:
        """Send writes once, if they may go."""
        self._read(writes, deadline)
        left = [write for write in writes if not write.done]
        occupied, later = self._below(left, deadline) if look_below else (set(), set())
        sent: list[_Write] = []
        for write in left:
            before = write.before
            assert before is not None
            if write.after is not None:  # Its answer was lost, and its state is still the old one.
                sent.append(write)
                continue
            state = State(before.version, before.time, write.key in occupied)
            error = decide(write.step, state)
            if before.version == FOREIGN and not (write.foreign or write.shared):
                error = not_ours(write.step.path)
            if error is None and write.key not in later:
                owner = write.owner if before.version == ABSENT else before.owner
                version = _version_after(write.step, before)
                write.after = before.changed(
                    version, self._mark(), 0 if version == ABSENT else owner
                )
                sent.append(write)
            elif error is None or not write.fresh:
                write.read_again()
            else:
                write.end(error)
        if sent:
            self._send(sent, failed, deadline)

    def _read(self, writes: list[_Write], deadline: float) -> None:
        """Read the states that are not known, or may have changed."""
        unknown = [write for write in writes if write.before is None or write.perhaps]
        if not unknown:
            return
        rows = self._requests.read([write.key for write in unknown], STATES, deadline)
        self._learn([write.key not in rows for write in unknown if not write.guessed])
        for write in unknown:
            row = rows.get(write.key, NO_ROW)
            if write.perhaps and write.before is not None and write.after is not None:
                if row.state == write.before.state:
                    continue  # It was not applied, but may still be.
                if write.lost:
                    self._cluster.tally.add("settled")
                applied = row.has(write.after)
                if write.shared and row.version == FOREIGN:
                    applied = False  # Another program has put a path with this number: the next.
                if applied is not False:
                    self._settled(write, applied)
                    continue
                write.read_again()
            write.before, write.fresh = row, True

    def _settled(self, write: _Write, applied: bool | None) -> None:
        if applied:
            self._applied(write, keep=False)
            return
        path = write.step.path
        write.end(
            IndeterminateError(
                f"{path!r} was changed so often since that HBase does not tell whether this was "
                "applied",
                path=path,
            )
        )

    def _send(
        self,
        sent: list[_Write],
        failed: list[LostError | RemoteError],
        deadline: float,
    ) -> None:
        ended = self._requests.act(
            [write.key for write in sent],
            lambda place, region: _action(sent[place], region),
            deadline,
        )
        self._learn(
            [
                end.processed
                for write, end in zip(sent, ended, strict=True)
                if write.guessed and write.step.condition == "any" and isinstance(end, Written)
            ]
        )
        for write, end in zip(sent, ended, strict=True):
            match end:
                case Written(True):
                    self._applied(write)
                case Written():
                    if write.shared:
                        write.perhaps = True
                    elif not write.perhaps:
                        write.read_again()
                case LostError() | RemoteError():
                    meaning = meaning_of(end)
                    if meaning == "refused" and not write.perhaps:
                        write.end(_ended(write, error_of(end, write.step.path)))
                        continue
                    failed.append(end)
                    if meaning == "lost":
                        write.perhaps = write.lost = True
                    elif not write.open:
                        write.after = None

    def _learn(self, new: Sequence[bool]) -> None:
        """Note which paths had no row, of those whose states were not known."""
        if new:
            self._new += _WEIGHT * (sum(new) / len(new) - self._new)

    def _applied(self, write: _Write, *, keep: bool = True) -> None:
        after = write.after
        assert after is not None
        if keep and not after.owner:  # A session may end meanwhile.
            self._states.keep(write.key, after)
        own = self.session.owner
        write.end(None if after.version == ABSENT else after.stat(write.step.path, own))

    def _mark(self) -> bytes:
        return self._client + next(self._numbers).to_bytes(8)

    def _below(self, writes: list[_Write], deadline: float) -> tuple[set[bytes], set[bytes]]:
        """Return the keys of deletes that have values below them.

        The second keys have only such values that the same call deletes: their turn comes later.
        """
        deletes = [
            write for write in writes if write.step.effect == "delete" and write.after is None
        ]
        gone = {write.key for write in deletes}
        occupied: set[bytes] = set()
        later: set[bytes] = set()
        walk = Walk(self._requests, 0.0, STATES, min(len(gone), _LOOKED_AT))
        for start in range(0, len(deletes), _LOOKS):
            some = deletes[start : start + _LOOKS]
            # All are asked for before the first answer is awaited.
            looks = [walk.pages(write.key + b"/", write.key + b"0", deadline) for write in some]
            for write, pages in zip(some, looks, strict=True):
                for rows in pages:
                    if any(key not in gone for key, _ in rows):
                        occupied.add(write.key)
                        break
                    later.add(write.key)
        return occupied, later


def _until(writes: Sequence[_Write], deadline: float, patience: float) -> float:
    """Return until when writes are sent, or their outcomes looked for."""
    return deadline + patience if any(write.open for write in writes) else deadline


def _raise_but(
    expected: type[MetadataStoreError] | tuple[type[MetadataStoreError], ...],
    writes: Sequence[_Write],
) -> None:
    """Raise the first error of writes that is not an expected one."""
    for write in writes:
        if isinstance(write.answer, MetadataStoreError) and not isinstance(write.answer, expected):
            raise write.answer


def _fitting(writes: list[_Write], most: int) -> list[_Write]:
    """Return the first sequential puts, as many as one change of a counter can have."""
    size = count = 0
    for write in writes[:MOST_ENTRIES]:
        size += len(_value(write)) + len(write.key)
        if count and size > most:
            break
        count += 1
    return writes[:count]


def _value(write: _Write) -> bytes:
    effect = write.step.effect
    assert isinstance(effect, PutNext)
    return effect.value


def _ephemeral(step: Step) -> bool:
    return isinstance(step.effect, PutValue | PutNext) and step.effect.ephemeral


def _version_after(step: Step, before: Row) -> int:
    return before.version + 1 if isinstance(step.effect, PutValue) else ABSENT


def _action(write: _Write, region: bytes) -> bytes:
    before, after, effect = write.before, write.after, write.step.effect
    assert before is not None
    assert after is not None
    match effect:
        case PutValue():
            return put(region, write.key, before, after, effect.value)
        case "delete":
            return remove(region, write.key, before, after)
        case "nothing" | PutNext():
            raise AssertionError(f"an effect that is not sent: {effect}")
        case _:
            assert_never(effect)


def _ended(write: _Write, error: MetadataStoreError) -> MetadataStoreError:
    """Return the error of a write for which there is no time left."""
    path = write.step.path
    if not write.open:
        return error.for_path(path)
    unknown = IndeterminateError(f"HBase does not say whether it was applied: {error}", path=path)
    unknown.__cause__ = error
    return unknown


def _late(failed: Sequence[LostError | RemoteError]) -> MetadataStoreError:
    if failed and (error := error_of(failed[0])).outcome != "unknown":
        return error
    return OperationTimeoutError("HBase did not answer in time")
