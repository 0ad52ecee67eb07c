"""The whole engine over a model store. Hypothesis decides when and how each held call ends.

After each step the test waits until the engine has come to rest: as many calls are inside the back
end as the engine says are in flight, and everything that may be sent is, unless the window is
full. So each step is decided on a known state, and an engine that forgets an operation is found out
at once.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Literal
from unittest.mock import patch

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from batchkeeper.batching import BatchingConfig, MetadataStore, Metrics
from batchkeeper.batching import lane as lane_module
from batchkeeper.batching.engine import engine_of
from batchkeeper.ops import (
    ABSENT,
    Delete,
    Exists,
    Get,
    GetResult,
    IndeterminateError,
    MetadataStoreError,
    NotFoundError,
    Operation,
    OperationTimeoutError,
    Put,
    QueueFullError,
    Stat,
    StoreClosedError,
    StoreUnavailableError,
    ValueTooLargeError,
)
from batchkeeper.ops.steps import step_of
from batchkeeper.stores.backend import Limits, RequestRefusedError, Tally
from batchkeeper.stores.refusals import State, decide

from .waiting import PATIENCE, until

STEPS = 40
MOST_WAITING = 20  # callers, each of which needs a thread
Method = Literal["write", "read"]

#: How a call ends: with its answers; refused whole; with an error that says that nothing was
#: applied, or that leaves it open (it was, or not); with an answer too few; with an exception that
#: no back end should raise (after applying everything, or nothing).
VERDICTS = ["answers", "refused", "not applied", "lost", "lost, applied", "miscounted", "crash"]


@dataclass(eq=False)
class Asked:
    """An operation as the test sees it."""

    op: Operation
    number: int
    future: Future[Any] | None = None  # None while its caller waits for room, or was refused
    call: Call | None = None  # the last that it went in
    batch: Call | None = None  # the first: where that was refused, its halves went again
    answer: Any = None  # of the model store
    answered: bool = False  # with `answer`, if the call's end let it through
    left: bool = False  # it has no place in its path's line any more
    told: int = 0  # times that its done-callback ran

    @property
    def writes(self) -> bool:
        return self.op.kind in {"put", "delete"}

    @property
    def weight(self) -> int:
        return len(self.op.path) + len(self.op.value or b"")


@dataclass(eq=False)
class Call:
    """A call that is held inside the back end, or was."""

    method: Method
    asked: list[Asked]
    verdict: str = ""
    end: Callable[[], Any] | None = None  # returns the answers, or raises
    go: threading.Event = field(default_factory=threading.Event)


class ModelStore:
    """A back end whose calls wait until the test ends them."""

    session = None

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.connected = True
        self.tally = Tally()
        self.values: dict[str, tuple[bytes, int]] = {}
        self.revision = 0
        self.expected: dict[int, Asked] = {}
        self.inside: list[Call] = []
        self.wrong: list[str] = []
        self._closed = False
        self._ending = threading.Lock()  # guards the ends of calls, values and revision
        self._lock = threading.Lock()  # guards inside, wrong, _closed, and the calls of the asked

    def expect(self, asked: Asked) -> None:
        """Note an operation before it is submitted, so that its arrival can be recognized.

        By its path, the object, of which each operation has one of its own: the engine passes it
        on, and equal reads cannot be told from each other otherwise.
        """
        self.expected[id(asked.op.path)] = asked

    def write(self, requests: Sequence[Any], deadline: float) -> Sequence[Any]:
        return self._hold("write", requests)

    def read(self, requests: Sequence[Any], deadline: float) -> Sequence[Any]:
        return self._hold("read", requests)

    def sync(self, deadline: float) -> None:
        """Nothing to do."""

    def close(self) -> None:
        with self._lock:
            self._closed = True
            inside = [call for call in self.inside if call.end is None]
        for call in inside:
            self.end(call, "lost, applied" if len(call.asked) % 2 else "closed")

    def end(self, call: Call, verdict: str) -> None:
        """End a call, unless it has been ended before."""
        with self._ending:
            if call.end is not None:
                return
            call.verdict = verdict
            applied = verdict in {"answers", "lost, applied", "miscounted"} or (
                verdict == "crash" and len(call.asked) % 2 == 0
            )
            if applied:
                self.revision += 1
                for asked in call.asked:
                    asked.answer = self._carry_out(asked)
            call.end = lambda: self._outcome(call, verdict)
        call.go.set()

    def _outcome(self, call: Call, verdict: str) -> list[Any]:
        answers = [asked.answer for asked in call.asked]
        match verdict:
            case "answers":
                return answers
            case "miscounted":
                return answers[1:]
            case "refused":
                raise RequestRefusedError(ValueTooLargeError("refused on purpose"))
            case "not applied":
                raise StoreUnavailableError("not applied on purpose")
            case "crash":
                raise SystemExit("on purpose")
            case "closed" if call.method == "read":
                raise StoreClosedError("closed")
            case _ if call.method == "read":
                raise OperationTimeoutError("lost on purpose")
            case _:
                raise IndeterminateError("lost on purpose")

    def _carry_out(self, asked: Asked) -> Any:
        op = asked.op
        found = self.values.get(op.path)
        version = ABSENT if found is None else found[1]
        if isinstance(op, Put | Delete):
            error = decide(step_of(op), State(version))
            if error is not None:
                return error
            if isinstance(op, Delete):
                del self.values[op.path]
                return None
            self.values[op.path] = (op.value, version + 1)
            return Stat(op.path, version + 1, self.revision)
        if isinstance(op, Exists):
            return found is not None
        return found and GetResult(found[0], Stat(op.path, found[1], self.revision))

    def _hold(self, method: Method, requests: Sequence[Any]) -> Sequence[Any]:
        with self._lock:
            if self._closed:
                raise StoreClosedError("closed")
            call = Call(method, [self.expected[id(request.path)] for request in requests])
            self._look_at(call)
            for asked in call.asked:
                asked.call = call
                asked.batch = asked.batch or call
            self.inside.append(call)
        call.go.wait()
        assert call.end is not None
        try:
            return list(call.end())
        finally:
            with self._lock:
                self.inside.remove(call)

    def _look_at(self, call: Call) -> None:
        """Note what is wrong with a call that arrives."""
        paths = [asked.op.path for asked in call.asked]
        under_way = [asked for other in self.inside for asked in other.asked]
        for asked in call.asked:
            clash = [
                other
                for other in under_way
                if other.op.path == asked.op.path and (other.writes or asked.writes)
            ]
            if clash or (asked.writes and paths.count(asked.op.path) > 1):
                self.wrong.append(f"{asked.op} beside another on its path")
            if asked.call is not None and asked.call.verdict != "refused":
                self.wrong.append(f"{asked.op} was sent twice")
            if asked.future is not None and asked.future.cancelled():
                self.wrong.append(f"{asked.op} was sent although it was cancelled")


#: Kind, name of the path, expected version, size. Some paths are asked for more often.
WISHES = st.tuples(
    st.sampled_from(["put", "put", "put", "delete", "get", "get", "exists"]),
    st.sampled_from("aaabbcdefg"),
    st.sampled_from([None, None, ABSENT, 0, 1]),
    st.sampled_from([4, 4, 10, 40]),
)


class EngineMachine(RuleBasedStateMachine):
    """An engine with small bounds."""

    @initialize(
        enabled=st.sampled_from([True, True, False]),
        on_full=st.sampled_from(["single", "block", "raise"]),
        linger=st.sampled_from(["adaptive", "fixed"]),
        max_ops=st.integers(1, 4),
        max_bytes=st.sampled_from([12, 30, 1000]),
        queue=st.integers(1, 5),
        queued_bytes=st.sampled_from([20, 10_000]),
        window=st.integers(1, 3),
        singles=st.integers(0, 2),
        drains=st.booleans(),
        alone=st.booleans(),
    )
    def open(
        self,
        enabled: bool,
        on_full: Any,
        linger: Any,
        max_ops: int,
        max_bytes: int,
        queue: int,
        queued_bytes: int,
        window: int,
        singles: int,
        drains: bool,
        alone: bool,
    ) -> None:
        # With so small queues, the engine must know that one thread submits: otherwise, nothing
        # would come in without its lock.
        self.patched = ExitStack()
        if alone:
            self.patched.enter_context(patch.object(lane_module, "_AT_ONCE", 0))
            self.patched.enter_context(patch.object(lane_module, "_LIGHT", 5))
        self.config = BatchingConfig(
            enabled=enabled,
            on_full=on_full,
            linger=linger,
            max_ops=max_ops,
            max_bytes=max_bytes,
            read_queue_size=queue,
            write_queue_size=queue,
            max_queued_bytes=queued_bytes,
            max_in_flight=window,
            max_singles=singles,
            max_delay=0.001,
        )
        self.drains = drains
        # A call never has more than the back end says that it takes.
        limits = Limits(
            write_ops=3,
            read_ops=3,
            request_bytes=1000,
            op_bytes=0,
            value_bytes=100,
            in_flight=4,
            singles=64,
        )
        self.backend = ModelStore(limits)
        self.store = MetadataStore(self.backend, self.config, 60.0, "model://")
        self.pool = ThreadPoolExecutor(MOST_WAITING + STEPS + 3)
        self.asked: list[Asked] = []  # in order of submission
        self.waiting: dict[Asked, Future[Any]] = {}  # their callers' calls
        self.flushes: list[tuple[Future[None], list[Asked]]] = []
        self.hasty: set[int] = set()  # numbers of those with a deadline at hand

    # What can happen

    @rule(wishes=st.lists(WISHES, min_size=1, max_size=8))
    def submit(self, wishes: list[tuple[str, str, int | None, int]]) -> None:
        for wish in wishes[: max(0, MOST_WAITING - len(self.waiting))]:
            self.ask(self.make(*wish), 60.0)
            self.rest()

    @rule(wish=WISHES)
    def submit_in_haste(self, wish: tuple[str, str, int | None, int]) -> None:
        asked = self.make(*wish)
        self.hasty.add(asked.number)
        self.ask(asked, 0.001)
        self.rest()

    def make(self, kind: str, name: str, expected: int | None, size: int) -> Asked:
        number = len(self.asked)
        path = f"/{name}"
        if kind == "put":
            op: Operation = Put(path, b"%d" % number + bytes(size), expected)
        elif kind == "delete":
            op = Delete(path, None if expected == ABSENT else expected)
        else:
            op = Get(path) if kind == "get" else Exists(path)
        return Asked(op, number)

    def ask(self, asked: Asked, timeout: float) -> None:
        """Submit an operation, and wait until it has its place in its path's line."""
        self.backend.expect(asked)
        self.take_note()
        known_to_wait = len(self.waiting)
        self.asked.append(asked)
        submitting = self.pool.submit(self.store.submit, asked.op, timeout=timeout)

        def taken_in() -> bool:
            now = self.look()
            waiting = now.reads.waiting + now.writes.waiting
            return submitting.done() or waiting > known_to_wait

        if timeout < 1:
            until(submitting.done, "a caller waits beyond the deadline")
        else:
            until(taken_in, "the call neither returns nor waits")
        if submitting.done():
            self.returned(asked, submitting)
        else:
            self.waiting[asked] = submitting
        if timeout < 1 and asked.future is not None:
            error = asked.future.exception(PATIENCE)
            late = type(error) is IndeterminateError
            assert late or type(error) is OperationTimeoutError
            # Where it was sent its call has come, or is about to.
            assert asked.writes or not late

    # Which calls there are depends on the threads' luck, too, and Hypothesis wants to draw the same
    # every time. So it draws numbers, whatever there is.

    @rule(which=st.integers(0, 20))
    def cancel(self, which: int) -> None:
        futures = self.open_futures()
        if not futures:
            return
        asked = futures[-1 - which % len(futures)]
        assert asked.future is not None
        cancelled = asked.future.cancel()
        assert cancelled == (asked.call is None)
        asked.left |= cancelled
        self.rest()

    @rule(
        which=st.integers(0, 20),
        verdict=st.sampled_from(["answers"] * 6 + ["refused"] * 3 + VERDICTS),
    )
    def answer(self, which: int, verdict: str) -> None:
        held = self.held()
        if held:
            self.end(held[which % len(held)], verdict)
            self.rest()

    @rule()
    def flush(self) -> None:
        pending = [a for a in self.asked if a.future is not None and not a.future.done()]
        flushing = self.pool.submit(self.store.flush)
        self.flushes.append((flushing, pending))
        self.rest()

    # What has to hold at rest

    def rest(self) -> None:
        """Wait until nothing moves any more, and look at everything."""
        try:
            until(self.is_at_rest, "the engine does not come to rest")
        except AssertionError:
            raise AssertionError(f"no rest: {self.store.metrics()}, {self.sendable()}") from None
        assert not self.backend.wrong, self.backend.wrong
        metrics = self.look()
        config = self.config
        window, room = config.max_in_flight, config.write_queue_size
        assert window is not None
        for lane, method in ((metrics.reads, "read"), (metrics.writes, "write")):
            writes = method == "write"
            assert lane.in_flight <= window
            queued = [a for a in self.queued() if a.writes == writes]
            assert len(queued) <= room
            weight = sum(asked.weight for asked in queued)
            assert weight <= config.max_queued_bytes or len(queued) == 1
            assert lane.queued + self.arrived(writes) == len(queued)
        assert metrics.singles.in_flight <= config.max_singles
        most = min(config.max_ops, 3) if config.enabled else 1
        for call in self.held():
            assert len(call.asked) <= most
            assert len(call.asked) == 1 or sum(a.weight for a in call.asked) <= config.max_bytes
            for asked in call.asked:
                self.check_order(asked)
        for asked in self.asked:
            self.check_end(asked)
        for flushing, pending in self.flushes:
            # It may have begun later than it was called, and wait for later operations.
            until(lambda f=flushing: f.done() or not all(map(ended, self.asked)), "flush hangs")
            if flushing.done():
                flushing.result()
                assert all(map(ended, pending)), "flush returned early"
        self.flushes = [(f, pending) for f, pending in self.flushes if not f.done()]

    def look(self) -> Metrics:
        """Return the metrics. Unlike the store's own, this takes nothing in."""
        queues = engine_of(self.store).queues
        with queues.deadline_moved:  # It has the engine's lock.
            return queues.metrics(self.backend.tally.counts())

    def arrived(self, writes: bool) -> int:
        """Return how many writes, or reads, lie in the intake."""
        return sum(entry.writes == writes for entry in engine_of(self.store).queues.intake.copy())

    def is_at_rest(self) -> bool:
        metrics = self.look()
        lanes = (metrics.reads, metrics.writes, metrics.singles)
        if sum(lane.in_flight for lane in lanes) != len(self.backend.inside):
            return False
        if any(call.end is not None for call in self.backend.inside):
            return False
        if metrics.singles.queued != metrics.singles.in_flight:
            return False
        self.take_note()
        for lane, writes in ((metrics.reads, False), (metrics.writes, True)):
            full = lane.in_flight == self.config.max_in_flight
            if not full and any(a.writes == writes for a in self.sendable()):
                return False
            # A sender that is not under way leaves nothing in the intake.
            if not full and self.arrived(writes):
                return False
            waiters = [asked for asked in self.waiting if asked.writes == writes]
            if lane.waiting != len(waiters):
                return False
            if waiters and self.has_room_for(waiters[0]):
                return False
        return True

    def take_note(self) -> None:
        """Record the calls that have found room, and the operations that have left the line."""
        for asked, submitting in list(self.waiting.items()):
            if submitting.done():
                del self.waiting[asked]
                self.returned(asked, submitting)
        for asked in self.asked:
            if asked.batch is not None:
                asked.left = all(map(self.is_through, asked.batch.asked))
            else:
                asked.left |= asked.future is not None and asked.future.done()

    def is_through(self, asked: Asked) -> bool:
        """Say whether the last call that an operation went in is over."""
        call = asked.call
        if call is None or call in self.backend.inside:
            return False
        return call.verdict != "refused" or len(call.asked) == 1

    def nobody_waits(self) -> bool:
        self.take_note()
        return not self.waiting

    def sendable(self) -> list[Asked]:
        """Return the operations that only the window may keep from being sent."""
        return [asked for asked in self.queued() if not self.before(asked)]

    def before(self, asked: Asked) -> list[Asked]:
        """Return the operations that must end before an operation may be sent."""
        return [
            other
            for other in self.asked[: asked.number]
            if other.op.path == asked.op.path and not other.left and (other.writes or asked.writes)
        ]

    def queued(self) -> list[Asked]:
        """Return what is in the queues, and was not sent."""
        return [
            asked
            for asked in self.asked
            if asked.call is None and not asked.left and asked not in self.waiting
        ]

    def has_room_for(self, asked: Asked) -> bool:
        held = [other for other in self.queued() if other.writes == asked.writes]
        weight = sum(other.weight for other in held)
        fits = weight + asked.weight <= self.config.max_queued_bytes or not held
        return len(held) < self.config.write_queue_size and fits

    def check_order(self, asked: Asked) -> None:
        earlier = [other for other in self.before(asked) if other.call is not asked.call]
        assert not earlier, f"{asked.op} was sent before {earlier[0].op}"

    def check_end(self, asked: Asked) -> None:
        """Check the end of an operation, if it must have ended."""
        future, call = asked.future, asked.call
        if future is None or call is None or not asked.left:
            return
        until(future.done, f"{asked.op} never ends")
        assert not future.cancelled()
        error = future.exception()
        if asked.number in self.hasty:
            # Its deadline came while it was held.
            assert type(error) is (IndeterminateError if asked.writes else OperationTimeoutError)
            return
        match call.verdict:
            case "answers":
                assert (error if error is not None else future.result()) == asked.answer
                asked.answered = True
            case "refused":
                assert type(error) is ValueTooLargeError
            case "not applied":
                assert type(error) is StoreUnavailableError
            case "closed" if not asked.writes:
                assert type(error) is StoreClosedError
            case _ if asked.writes:
                assert type(error) is IndeterminateError
            case _:
                assert isinstance(error, MetadataStoreError)
                assert error.outcome == "not_applied"

    # Helpers

    def open_futures(self) -> list[Asked]:
        return [a for a in self.asked if a.future is not None and not a.future.done()]

    def held(self) -> list[Call]:
        return [call for call in self.backend.inside if call.end is None]

    def end(self, call: Call, verdict: str) -> None:
        self.backend.end(call, verdict)

    def returned(self, asked: Asked, submitting: Future[Any]) -> None:
        """Record the result of a call of ``submit``."""
        error = submitting.exception()
        if error is not None:
            assert isinstance(error, QueueFullError | StoreClosedError), error
            asked.left = True
            return
        asked.future = submitting.result()

        def told(_: object) -> None:
            asked.told += 1

        asked.future.add_done_callback(told)

    # The end

    def teardown(self) -> None:
        if not hasattr(self, "store"):
            return
        try:
            closing = self.pool.submit(self.store.close, PATIENCE if self.drains else 0)
            while not closing.done():
                for call in self.held():
                    self.end(call, "answers")
                time.sleep(0)
            closing.result()
            until(self.nobody_waits, "a caller waits for a closed store")
            assert not self.backend.wrong, self.backend.wrong
            for asked in self.asked:
                self.check_last(asked)
            self.replay()
            for flushing, _ in self.flushes:
                flushing.result(PATIENCE)
        finally:
            self.backend.close()
            self.pool.shutdown()
            self.patched.close()

    def check_last(self, asked: Asked) -> None:
        """Check that an operation has ended once, and in accordance with the steps taken."""
        self.check_end(asked)
        future = asked.future
        if future is None:
            assert asked.call is None, f"{asked.op} was sent although its submit raised"
            return
        assert future.done(), f"{asked.op} never ends"
        until(lambda: asked.told >= 1, f"nobody is told of {asked.op}")
        assert asked.told == 1
        if asked.call is None and not future.cancelled():
            assert asked.number in self.hasty or not self.drains, f"{asked.op} was never sent"
            error = future.exception()
            assert isinstance(error, MetadataStoreError), f"{asked.op} has a result from nowhere"
            assert error.outcome == "not_applied"

    def replay(self) -> None:
        """Check that the answers are those of the operations one by one, in order."""
        values: dict[str, int] = {}
        for asked in self.asked:
            if asked.call is None or asked.call.verdict in {"refused", "not applied", "closed"}:
                continue
            op, answer = asked.op, asked.answer
            version = values.get(op.path, ABSENT)
            crashed = asked.call.verdict == "crash" and len(asked.call.asked) % 2
            if asked.call.verdict == "lost" or crashed:
                continue
            if isinstance(op, Get):
                assert (answer.stat.version if answer else ABSENT) == version
            elif isinstance(op, Exists):
                assert answer == (version != ABSENT)
            elif isinstance(answer, Stat):
                assert answer.version == version + 1
                values[op.path] = answer.version
            elif answer is None:
                assert values.pop(op.path, None) is not None
            else:
                missing = isinstance(op, Delete) and version == ABSENT
                assert isinstance(answer, NotFoundError) == missing
                assert missing or op.expected_version != version  # type: ignore[union-attr]
        assert Counter(values) == Counter({p: v for p, (_, v) in self.backend.values.items()})


def ended(asked: Asked) -> bool:
    return asked.future is None or asked.future.done()


EngineMachine.TestCase.settings = settings(
    stateful_step_count=STEPS,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestTheEngineKeepsItsPromises = EngineMachine.TestCase
TestTheEngineKeepsItsPromises.__doc__ = "Whatever is submitted, cancelled and answered, anyhow."
