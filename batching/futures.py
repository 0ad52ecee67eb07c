"""The futures that callers hold, and the delivery of their results.

``OperationFuture`` works like a ``concurrent.futures.Future``, also for ``wait``, ``as_completed``
and ``asyncio.wrap_future``. It has one field, the engine's entry, and the public attributes of the
standard future; its state is the entry's. The standard future creates a condition variable and two
lists, which costs more than the rest of an operation. This one creates them only when a caller
needs them. A thread that waits in ``result`` or ``exception`` takes a bare lock: with one thread
for each operation, a condition variable costs a third of the whole.

The functions of the standard library, in all versions from 3.11 to 3.14, rely on these rules. They
read ``_state``, ``_result`` and ``_exception``, and put waiters into ``_waiters``, while they hold
``_condition``. The code that ends a future also holds ``_condition``, and notifies each waiter that
it finds in ``_waiters``. Each future needs its own ``_condition``: ``wait`` holds those of many
futures at a time, in the order of their ids, and would deadlock if futures shared one.
"""

from __future__ import annotations

import math
import os
import time
from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import CancelledError, Future
from concurrent.futures._base import (
    CANCELLED_AND_NOTIFIED,
    FINISHED,
    PENDING,
    RUNNING,
)
from queue import Empty, SimpleQueue
from threading import Condition, Lock, RLock, Thread, current_thread
from typing import TYPE_CHECKING, Any, Final, Protocol

from ..ops.acceleration import accelerated, bind
from ..ops.errors import MetadataStoreError
from ..ops.log import get_logger
from ..ops.operations import Kind, Options
from .entry import CANCELLED, ENDED, QUEUED, SENT, Entry
from .reentry import add_lock, midway, nested, owned, refused
from .settings import check_seconds

if TYPE_CHECKING:
    from .engine import Engine

__all__ = ["Callbacks", "Entrance", "FutureSink", "OperationFuture", "Relay"]

log = get_logger("batchkeeper.futures")

# Guards, for all futures, the moment between "no thread waits for this future" and "one does". A
# thread holds it only when it begins to wait, or ends a future without a condition.
_births = RLock()


def _renew_births() -> None:
    # A thread of the parent may have held the lock at the moment of the fork.
    global _births  # noqa: PLW0603
    _births = RLock()


os.register_at_fork(after_in_child=_renew_births)


# The lock itself changes in a fork's child.
add_lock(lambda: owned(_births))

# Seconds after which a wait looks whether it could ever end.
_SOON: Final = 0.1
# Seconds that the end of a batch waits for conditions. Then another thread goes on to wait.
_PATIENCE: Final = 0.5
# Seconds until the code that holds a condition has ended. An exception in the middle of `wait`,
# such as Ctrl-C, may leave it locked for ever.
_ENDED: Final = 60.0
# Up to this many threads are woken together, because they gain nothing from taking turns.
_FEW: Final = 2
# Seconds in which each thread must have woken the next.
_TURN: Final = 0.00005


class Relay:
    """Wakes the threads that wait for a batch: each wakes the next, and the last the first caller.

    Woken together, they would all compete for the interpreter. With 64 threads that each wait for
    their own put, this chain makes 1.3 times as many puts for two thirds of the CPU. The thread
    that began the chain waits for its end, within bounds, so that the next batch contains the
    operations of all threads, and not only of the first.
    """

    __slots__ = ("_gates",)

    #: Seconds in which the threads must have woken each other, beside some for each. If nothing
    #: else wants the interpreter, they take a tenth of that.
    first_turn: Final = 0.001

    def __init__(self) -> None:
        self._gates: deque[Lock] = deque()

    def add(self, gates: Iterable[Lock]) -> None:
        """Add threads to wake; only before ``run``."""
        self._gates.extend(gates)

    def pass_on(self) -> None:
        """Wake the next thread. Each thread does this when it stops waiting, for any reason."""
        try:  # noqa: SIM105 - costs nothing if there is a gate, and every waiting thread does this
            self._gates.popleft().release()
        except IndexError:
            pass

    def run(self) -> None:
        """Wake the first one, and wait for the last."""
        if len(self._gates) > _FEW:
            last = Lock()
            last.acquire()
            seconds = self.first_turn + _TURN * len(self._gates)
            self._gates.append(last)
            self.pass_on()
            last.acquire(timeout=seconds)
        # Wake the remaining ones. They are few, or a thread was interrupted before it could wake
        # the next, or is waiting for a thread that computes.
        while self._gates:
            self.pass_on()


class _Waiting:
    """The waiters of an operation, created for the first of them: the entry's ``caller``.

    Once there is a condition, waiters and done-callbacks may need the future, so it is kept until
    they have received it.
    """

    __slots__ = ("callbacks", "condition", "future", "gates", "late", "relay", "waiters")

    def __init__(self) -> None:
        # Guarded by _births:
        self.gates: list[Lock] = []  # a thread in `result` holds each until the end
        self.relay: Relay | None = None  # wakes those threads; set at the end
        self.condition: Condition | None = None
        # Guarded by the condition:
        # The future has ended, and the waiters have not been notified. Set under _births.
        self.late = False
        self.future: OperationFuture | None = None
        self.waiters: list[Any] = []
        self.callbacks: list[Any] = []

    def end(self, state: str, until: float) -> bool:
        """End the future; say whether it has done-callbacks to run."""
        condition, future = self.condition, self.future
        assert condition is not None
        left = max(0.0, until - time.monotonic())
        locked = condition.acquire(blocking=False) or condition.acquire(timeout=left)
        try:
            with _births:  # Another thread may end the same one, without the condition.
                if future is None or future._entry.future_state is not None:
                    return False
                self.late = not locked
                future._entry.future_state = state
                gates = list(self.gates)
            if locked:
                self._notify(future)
        finally:
            if locked:
                condition.release()
        for gate in gates:
            gate.release()
        if not locked:
            self._notify_later(future)
        return locked and bool(self.callbacks)

    def _notify(self, future: OperationFuture) -> None:
        self.late = False
        for waiter in self.waiters:
            if future._entry.future_state is CANCELLED_AND_NOTIFIED:
                waiter.add_cancelled(future)
            elif isinstance(future._entry.answer, MetadataStoreError):
                waiter.add_exception(future)
            else:
                waiter.add_result(future)
        if not self.callbacks:
            self.future = None

    def _notify_later(self, future: OperationFuture) -> None:
        """Notify the waiters when the code that holds the condition has ended.

        It is a function of the standard library, whose thread is slow or runs a signal handler. It
        may have seen that the future has not ended, and be about to wait for it.
        """
        late = Thread(target=self._notify_late, args=[future], name="batchkeeper-late", daemon=True)
        try:
            late.start()
        except RuntimeError:  # The system has no thread left.
            self._notify_late(future, 0)

    def _notify_late(self, future: OperationFuture, seconds: float = _ENDED) -> None:
        condition = self.condition
        assert condition is not None
        locked = condition.acquire(timeout=seconds)
        try:
            self._notify(future)
        finally:
            if locked:
                condition.release()
        if self.callbacks:
            self.run_callbacks()

    def run_callbacks(self) -> None:
        """Run the done-callbacks; an exception in one is logged, and the others run."""
        future, self.future = self.future, None
        assert future is not None
        for callback in self.callbacks:
            try:
                callback(future)
            except BaseException:
                # SystemExit as well: it would end the thread that runs the callbacks of all other
                # operations.
                log.exception("a done-callback failed", path=future._entry.path)


class OperationFuture(Future[Any]):
    """The future outcome of one operation.

    The code that submits an entry creates its future and sets ``_entry``. The entry's
    ``future_state`` is ``None`` until the end, and then one of the standard library's states. Its
    ``caller`` is the ``_Waiting``, once a thread has waited.
    """

    __slots__ = ("_entry",)

    _entry: Entry

    # Future.__init__ would create the objects that this class creates on demand. An __init__ in
    # Python would cost every operation as much as the object itself.
    if not TYPE_CHECKING:
        __init__ = object.__init__

    # The private side of Future, for the standard library's functions and methods. They only read
    # these; to a type checker, they are attributes that can be written.

    @property
    def _condition(self) -> Condition:  # type: ignore[override]
        entry = self._entry
        sink = entry.sink
        assert isinstance(sink, FutureSink)
        sink.engine.check_not_forked()
        if owned(_births) or owned(sink.engine._lock):
            raise refused(entry.path)
        with _births:
            waiting = entry.caller = entry.caller or _Waiting()
            if waiting.condition is None:
                waiting.condition = Condition()
                # After the end, nothing needs the future, and the reference would leave a cycle.
                waiting.future = self if entry.future_state is None else None
            condition: Condition = waiting.condition
        return condition

    @property
    def _state(self) -> str:  # type: ignore[override]
        entry = self._entry
        waiting = entry.caller
        state = None if waiting is not None and waiting.late else entry.future_state
        return state or (RUNNING if entry.state in {SENT, ENDED} else PENDING)

    @property
    def _result(self) -> Any:  # type: ignore[override]
        answer = self._entry.answer
        return None if isinstance(answer, MetadataStoreError) else answer

    @property
    def _exception(self) -> MetadataStoreError | None:  # type: ignore[override]
        answer = self._entry.answer
        return answer if isinstance(answer, MetadataStoreError) else None

    @property
    def _waiters(self) -> list[Any]:  # type: ignore[override]
        waiting = self._entry.caller
        return waiting.waiters if waiting else []

    @property
    def _done_callbacks(self) -> list[Any]:
        waiting = self._entry.caller
        return waiting.callbacks if waiting else []

    # Methods that callers use, where the standard ones would create a condition without need

    def done(self) -> bool:
        """Say whether the operation has ended, or was cancelled."""
        return self._entry.future_state is not None

    def result(self, timeout: float | None = None) -> Any:
        """Wait up to ``timeout`` seconds for the operation's result, and return it.

        Raises:
            MetadataStoreError: the error that the operation ended with.
            CancelledError: the operation was cancelled.
            TimeoutError: it did not end within ``timeout``. The operation continues.
        """
        entry = self._entry
        if entry.future_state is None:
            _wait(entry, timeout)
        answer = entry.answer
        if isinstance(answer, MetadataStoreError):
            try:
                raise answer
            finally:
                # The error's traceback holds this frame, so these names would form a cycle.
                del answer, entry, self
        if entry.future_state is not FINISHED:
            raise CancelledError
        return answer

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return the error that the operation ended with, or ``None``; wait like ``result``.

        Raises:
            CancelledError: the operation was cancelled.
            TimeoutError: it did not end within ``timeout``. The operation continues.
        """
        if self._entry.future_state is None:
            _wait(self._entry, timeout)
        if self._entry.future_state is not FINISHED:
            raise CancelledError
        return self._exception

    @midway
    def cancel(self) -> bool:
        """Cancel the operation if it has not been sent; say whether it is cancelled.

        A cancelled operation never reaches the store. Its waiters return at once.
        """
        entry = self._entry
        sink = entry.sink
        assert isinstance(sink, FutureSink)
        try:
            sink.engine.withdraw(entry)
            return self._end_cancelled(entry, sink)
        except BaseException:  # KeyboardInterrupt
            self._end_cancelled(entry, sink)
            raise

    def _end_cancelled(self, entry: Entry, sink: FutureSink) -> bool:
        """End the future of an operation that is CANCELLED; say whether it is."""
        if entry.state != CANCELLED:
            return False
        # Threads that cancel at the same time all do this, so each finds the future done.
        for waiting in _end([entry], CANCELLED_AND_NOTIFIED):
            sink.dispatch(waiting)
        sink.engine.release([entry])
        return True


@accelerated
class Entrance:
    """Lets the operations of one sink in, and gives each its future.

    Every operation pays for each step, so all are in one function, which has a compiled twin.

    Args:
        engine: the engine.
        sink: the sink of these operations.
        timeout: seconds until the deadline of those that do not say.
    """

    __slots__ = ("_engine", "_sink", "_timeout")

    def __init__(self, engine: Engine, sink: FutureSink, timeout: float) -> None:
        self._engine = engine
        self._sink = sink
        self._timeout = timeout

    def enter(
        self,
        kind: Kind,
        path: str,
        timeout: float | None,
        value: bytes | None = None,
        expected_version: int | None = None,
        options: Options | None = None,
        /,
    ) -> OperationFuture:
        """Submit an operation that was checked. Raises what ``Engine.submit`` does."""
        engine = self._engine
        seconds = self._timeout if timeout is None else check_seconds("timeout", timeout)
        now = time.monotonic()
        entry = Entry(
            kind, path, value, expected_version, options, engine.lanes, self._sink, now, seconds
        )
        engine.submit(entry)
        future = OperationFuture()
        future._entry = entry
        return future


bind(
    MetadataStoreError=MetadataStoreError,
    OperationFuture=OperationFuture,
    check_seconds=check_seconds,
    time=time,
)


def _wait(entry: Entry, timeout: float | None) -> None:
    gate = Lock()
    gate.acquire()
    sink = entry.sink
    assert isinstance(sink, FutureSink)
    sink.engine.check_not_forked()
    if owned(_births) or owned(sink.engine._lock):
        raise _interrupted()
    with _births:
        if entry.future_state is not None:
            return
        waiting = entry.caller = entry.caller or _Waiting()
        waiting.gates.append(gate)
    seconds = math.inf if timeout is None else max(0.0, timeout)
    try:
        if entry.state == QUEUED and entry.lane.batches.leaves_beside:
            sink.engine.hasten(entry)
        if not gate.acquire(True, min(seconds, _SOON)) and seconds > _SOON:
            # Only now, because the look at the stack takes a quarter of the time of a lone put.
            if sink.interrupted():
                raise _interrupted()
            gate.acquire(True, -1 if timeout is None else timeout - _SOON)
    finally:
        # After a timeout or an interrupt, this thread no longer waits at its gate.
        if entry.future_state is None:
            with _births:
                waiting.gates.remove(gate)
        if waiting.relay is not None:
            waiting.relay.pass_on()
    if entry.future_state is None:
        raise TimeoutError


def _interrupted() -> TimeoutError:
    return TimeoutError(
        "the operation continues, but cannot end while this signal handler or finalizer waits: "
        "it has interrupted a call of the store on the same thread"
    )


@accelerated
def end_unwatched(entries: Sequence[Entry], state: str) -> list[Entry]:
    """End the futures for which nobody waits yet; return the other entries."""
    watched = []
    for entry in entries:
        if entry.caller is None:
            entry.future_state = state
        else:
            watched.append(entry)
    return watched


def _end(entries: Sequence[Entry], state: str) -> list[_Waiting]:
    """End the futures of entries; return the waiters whose done-callbacks must run."""
    relay = Relay()
    watched: list[_Waiting] = []
    with _births:
        for entry in end_unwatched(entries, state):
            waiting = entry.caller
            if waiting.condition is not None:
                watched.append(waiting)
            elif entry.future_state is None:
                relay.add(waiting.gates)
                waiting.relay = relay
                entry.future_state = state
    relay.run()
    until = time.monotonic() + _PATIENCE if watched else 0.0
    return [waiting for waiting in watched if waiting.end(state, until)]


class Callbacks(Protocol):
    """Callbacks that wait for the dispatcher."""

    def run_callbacks(self) -> None:
        """Run them. Raises nothing, because that would end the thread of all callbacks."""


class FutureSink:
    """Ends the futures of one store, and runs its callbacks on a separate thread: the dispatcher.

    The thread runs done-callbacks, and those of watches and session listeners. It is started when
    the first of them has to run.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._lock = RLock()  # guards _dispatcher
        self._dispatcher: Thread | None = None
        self._to_dispatch: SimpleQueue[Callbacks | None] = SimpleQueue()

    def deliver(self, entries: Sequence[Entry]) -> None:
        """End the futures of a batch. Runs in a sender's thread, or the timekeeper's."""
        for waiting in _end(entries, FINISHED):
            self.dispatch(waiting)

    def dispatch(self, callbacks: Callbacks) -> None:
        """Queue callbacks. They run in the order of the calls."""
        self._to_dispatch.put(callbacks)
        if self._dispatcher is None:
            with self._lock:
                if self._dispatcher is None:
                    dispatcher = Thread(target=self._run, name="batchkeeper-callbacks", daemon=True)
                    # Before the start, which Ctrl-C may interrupt after the thread has begun.
                    self._dispatcher = dispatcher
                    try:
                        dispatcher.start()
                    except RuntimeError:
                        # The system has no thread left. The next call tries again, or close() does.
                        self._dispatcher = None
                        log.exception("callbacks have to wait")
                    except BaseException:
                        if dispatcher.ident is None:
                            self._dispatcher = None
                        raise

    def interrupted(self) -> bool:
        """Say whether this thread is in the middle of code that others wait for; see `Engine`."""
        return owned(self._lock) or self.engine.interrupted()

    def close(self) -> None:
        """Run the remaining callbacks, and end their thread; wait unless called from it."""
        with self._lock:
            dispatcher = self._dispatcher
        self._to_dispatch.put(None)
        if dispatcher is None:
            self._run()
        elif dispatcher is not current_thread():
            # A callback may wait for a lock of code that this call, from a handler, interrupts.
            dispatcher.join(self.engine.last_wait if nested() else None)

    def _run(self) -> None:
        closing = False
        while True:
            try:
                callbacks = self._to_dispatch.get(block=not closing)
            except Empty:
                # For another thread that closes the store, and may wait here as well.
                self._to_dispatch.put(None)
                return
            if callbacks is None:
                # Not the end yet: the callbacks of a watch may have put their next turn behind.
                closing = True
            else:
                callbacks.run_callbacks()
