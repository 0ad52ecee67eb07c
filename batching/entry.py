"""An operation in the engine, and its states.

The states of an entry, and its moves between them, always under the engine's lock::

    QUEUED ──(a sender takes it)──> SENT ──(its batch has ended)──────────────────> ENDED
       │                              └──(its deadline, the store closed under it)──┘
       ├─────(its deadline, the store closed)───────────────────────────────────────┘
       └─────(its caller gives it up)──> CANCELLED

A QUEUED entry stands in its path's line. It may wait for two things: for its turn on the path, and
for room in its queue. When it waits for neither, it is in the queue from which senders take. To end
an entry, the engine sets its ``answer`` and then its state; the entry's sink informs the caller,
outside the lock. An entry that was SENT keeps its place in its path's line until its batch has
ended, even if it ended earlier at its deadline.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, Protocol

from ..ops.acceleration import accelerated, bind
from ..ops.errors import MetadataStoreError
from ..ops.operations import Kind, Operation, Options, OrderKey, TransactionOptions
from ..stores.backend import Answer

if TYPE_CHECKING:
    from .lane import Lane

__all__ = [
    "CANCELLED",
    "ENDED",
    "QUEUED",
    "ROOM",
    "SENT",
    "TURN",
    "Entry",
    "Epoch",
    "Sink",
    "assign_epoch",
    "common",
    "deadlines",
    "ended_at_once",
    "entry_of",
    "move",
    "total_weight",
]

# In this order, so that ``state >= ENDED`` says that nothing will happen to it any more.
QUEUED: Final = 0
SENT: Final = 1
ENDED: Final = 2
CANCELLED: Final = 3

#: For each state, the states from which an entry may enter it. ENDED and CANCELLED are final.
MOVES: Final[Mapping[int, frozenset[int]]] = {
    SENT: frozenset({QUEUED}),
    ENDED: frozenset({QUEUED, SENT}),
    CANCELLED: frozenset({QUEUED}),
}

#: The reasons why a QUEUED entry waits, as bits of ``Entry.waits_for``.
TURN: Final = 1
ROOM: Final = 2


class Sink(Protocol):
    """Delivers the outcomes of operations to their callers.

    ``deliver`` is called once for all entries of a batch that name this sink, in the thread of a
    sender or of the timekeeper. A sink only receives entries that were created for it.
    """

    def deliver(self, entries: Sequence[Any]) -> None: ...


class Epoch:
    """The operations submitted between two flushes: ``flush`` waits until ``pending`` is 0."""

    __slots__ = ("pending",)

    def __init__(self) -> None:
        self.pending = 0  # guarded by the engine's lock


@accelerated
class Entry:
    """An operation in the engine; a back end sees it as a ``Request``.

    The attributes of the operation are set once. ``caller`` and ``future_state`` belong to the
    sink. The engine's lock guards all others until the entry has ENDED.

    Args:
        kind: with ``path``, ``value``, ``expected_version`` and ``options``: the operation.
        lanes: the engine's lanes, by kind.
        sink: delivers the outcome to the caller.
        now: ``time.monotonic()`` of the call.
        timeout: seconds from ``now`` to the deadline.
        caller: any object that the sink needs.
    """

    # Every operation pays for each of these, so there is one class with one __init__ for all sinks.
    __slots__ = (
        "answer",  # how it ended: its result, or its error
        "caller",  # the sink's: leads to the waiter
        "deadline",  # time.monotonic() by which it ends
        "epoch",
        "expected_version",
        "future_state",  # the sink's: the future's final state; None until the end
        "key",  # with options, its order key (see Lines); without, that is the path
        "kind",
        "lane",
        "options",
        "path",
        "session",  # the number of the session of an ephemeral write; others have none
        "sink",
        "state",
        "submitted",  # time.monotonic() of the call
        "value",
        "waits_for",
        "weight",  # its bytes, as its queue and its batch count them
        "writes",  # whether it is a write
    )

    answer: Answer
    caller: Any
    epoch: Epoch
    future_state: Any
    key: OrderKey
    session: int

    def __init__(
        self,
        kind: Kind,
        path: str,
        value: bytes | None,
        expected_version: int | None,
        options: Options | None,
        lanes: Mapping[Kind, Lane],
        sink: Sink,
        now: float,
        timeout: float,
        caller: Any = None,
    ) -> None:
        self.kind = kind
        self.path = path
        self.value = value
        self.expected_version = expected_version
        self.options = options
        self.lane = lane = lanes[kind]
        self.writes = lane.writes
        self.sink = sink
        self.submitted = now
        self.deadline = now + timeout
        self.caller = caller
        self.future_state = None
        self.answer = None
        self.state = QUEUED
        self.waits_for = 0
        weight = lane.op_bytes + (len(path) if path.isascii() else len(path.encode()))
        self.weight = weight if value is None else weight + len(value)
        if options is not None:
            read_options(self)


def read_options(entry: Entry) -> None:
    """Set what the options of a new entry decide: its order key, its weight, its session."""
    options, lane = entry.options, entry.lane
    assert options is not None
    entry.key = options.order_key(entry.path)
    if isinstance(options, TransactionOptions):
        entry.weight = lane.op_bytes * len(options.parts) + options.size
    if options.ephemeral and lane.session is not None:
        entry.session = lane.session.number


bind(read_options=read_options)


def entry_of(
    op: Operation,
    lanes: Mapping[Kind, Lane],
    sink: Sink,
    now: float,
    timeout: float,
    caller: Any = None,
) -> Entry:
    """Return the entry of an operation object."""
    return Entry(
        op.kind,
        op.path,
        op.value,
        op.expected_version,
        op.options,
        lanes,
        sink,
        now,
        timeout,
        caller,
    )


@accelerated
def move(entries: Sequence[Entry], state: int) -> None:
    """Move entries to a state. Before they end, their answers must be set.

    Python code changes a state only here. Two others set one: the creation of an entry (QUEUED, or
    ENDED by ``ended_at_once``), and the compiled twins of loops that call this for each entry.

    Call it under the engine's lock, or from the only thread that knows the entries.
    """
    allowed = MOVES[state]
    for entry in entries:
        assert entry.state in allowed, (state, entry.state)
        entry.state = state


@accelerated
def common(entries: Sequence[Entry], name: str) -> Any:
    """Return the value of an attribute that all entries share; ``None`` if there is none."""
    values = [*map(attrgetter(name), entries)]
    return values[0] if values and values.count(values[0]) == len(values) else None


@accelerated
def total_weight(entries: Sequence[Entry]) -> int:
    """Return the bytes of entries."""
    return sum([entry.weight for entry in entries])


@accelerated
def deadlines(entries: Sequence[Entry]) -> tuple[float, float]:
    """Return the earliest and the latest deadline of entries."""
    ends = [entry.deadline for entry in entries]
    return min(ends, default=math.inf), max(ends, default=-math.inf)


@accelerated
def assign_epoch(entries: Sequence[Entry], epoch: Epoch) -> None:
    """Assign entries to an epoch."""
    for entry in entries:
        entry.epoch = epoch


def ended_at_once(caller: Any, error: MetadataStoreError) -> Entry:
    """Return an ended entry for an operation that was refused."""
    entry = Entry.__new__(Entry)
    entry.caller = caller
    entry.answer = error
    entry.state = ENDED
    entry.weight = 0
    return entry
