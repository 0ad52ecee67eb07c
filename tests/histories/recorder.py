"""Clients that submit random operations on shared paths, and record the outcomes with times."""

from __future__ import annotations

import asyncio
import math
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import ExitStack
from typing import Any

import batchkeeper as bk

from .history import Op

__all__ = ["PACE", "Client", "Workers", "work", "work_async"]

# Much longer than every deadline: an operation that has not ended by then never will.
PATIENCE = 90.0
# A worker reads all its paths together after so many operations.
_LOOK_AFTER = 20
# Seconds between the operations of a worker. Without them, most of a history would lie between its
# faults, where nothing happens, and take the CPU from all other tests.
PACE = 0.01


class Client:
    """Submits operations to one store, and records them.

    Operations on one path are submitted one at a time, so that their order is known.

    Args:
        store: the store; the client does not close it.
        chain: the store's name in the history.
        history: receives the operations, those of each path in the order of submission.
    """

    def __init__(self, store: Any, chain: str, history: list[Op]) -> None:
        self.store = store
        self.chain = chain
        self.transactions = "transactions" in store.capabilities
        self._history = history
        self._lock = threading.Lock()  # guards _locks
        self._locks: dict[str, threading.Lock] = {}

    def submit(self, op: bk.Operation, timeout: float | None = None) -> tuple[Op, Any]:
        """Submit an operation; return its record and its future, or ``None`` if it was refused."""
        made = _record(self.chain, op)
        with self._lock:
            # In one order for all, or two transactions could wait for each other.
            locks = [self._locks.setdefault(path, threading.Lock()) for path in sorted(made.paths)]
        with ExitStack() as stack:
            for lock in locks:
                stack.enter_context(lock)
            for one in (made, *made.parts):
                one.invoked = time.monotonic()
            self._history.append(made)
            try:
                return made, self.store.submit(op, timeout=timeout)
            except bk.MetadataStoreError as error:
                _note(made, error)
                return made, None

    def wait(self, made: Op, future: Future[Any] | None) -> None:
        """Wait for the end of an operation, and record it."""
        if future is not None:
            try:
                _note(made, future.result(PATIENCE))
            except BaseException as error:
                _note(made, error)

    def ask(self, op: bk.Operation) -> Op:
        """Submit an operation, and wait for its end."""
        made, future = self.submit(op)
        self.wait(made, future)
        return made

    def look(self, chain: str, paths: Sequence[str]) -> None:
        """Read paths with one bulk call, and record a get of each, in a chain of its own."""
        made = [_record(chain, bk.Get(path)) for path in paths]
        for one in made:
            one.invoked = time.monotonic()
        self._history.extend(made)
        ended: Sequence[object]
        try:
            ended = self.store.get_many(paths)
        except bk.MetadataStoreError as error:
            ended = [error] * len(paths)
        for one, found in zip(made, ended, strict=True):
            _note(one, found)

    async def wait_async(self, made: Op, future: asyncio.Future[Any] | None) -> None:
        """Wait for the end of an operation of an asynchronous store, and record it."""
        if future is not None:
            try:
                _note(made, await asyncio.wait_for(future, PATIENCE))
            except BaseException as error:
                _note(made, error)


def _record(chain: str, op: bk.Operation | bk.Check) -> Op:
    made = Op(chain, op.kind, op.path)  # type: ignore[arg-type]
    if isinstance(op, bk.Transaction):
        made.parts = [_record(chain, part) for part in op.ops]
    elif isinstance(op, bk.Put):
        made.value, made.expected = op.value, op.expected_version
    elif isinstance(op, bk.Delete | bk.Check):
        made.expected = op.expected_version
    return made


def _note(made: Op, ended: object) -> None:
    """Record the end of an operation."""
    now = time.monotonic()
    if not isinstance(ended, BaseException):
        made.end("done", now)
        if made.parts:
            assert isinstance(ended, list)
            for part, result in zip(made.parts, ended, strict=True):
                _note(part, result)
        elif isinstance(ended, bk.GetResult):
            made.found = ended.value
            made.version, made.revision = ended.stat.version, ended.stat.revision
        elif isinstance(ended, bk.Stat):
            made.version, made.revision = ended.version, ended.revision
        elif made.kind == "exists":
            made.there = bool(ended)
        return
    _note_error(made, ended, now)


def _note_error(made: Op, ended: BaseException, now: float) -> None:
    made.error = type(ended).__name__
    if isinstance(ended, CancelledError | asyncio.CancelledError):
        made.end("not_applied", now)
    elif isinstance(ended, bk.TransactionRefusedError):
        made.end("refused", now)
        made.refused_at = ended.index
        part, error = made.parts[ended.index], ended.error
        part.error, part.actual = type(error).__name__, getattr(error, "actual", None)
    elif isinstance(ended, bk.BadVersionError | bk.NotFoundError | bk.NotEmptyError):
        made.end("refused", now)
        made.actual = getattr(ended, "actual", None)
    elif isinstance(ended, bk.MetadataStoreError) and made.writes and ended.outcome == "unknown":
        # It may still be applied.
        made.end("unknown")
        made.applied = getattr(ended, "applied", False)
        for part in made.parts:
            part.applied = made.applied
    elif isinstance(ended, bk.MetadataStoreError):
        made.end("not_applied", now)
    else:
        made.error = f"{made.error}: {ended}"  # It stays pending: no operation may end this way.


class _Chooser:
    """Chooses the next operation, and remembers the versions that it has seen.

    Transactions join each path with one other only, because the checker's search over all joined
    paths takes longer with each.
    """

    def __init__(
        self, name: str, paths: Sequence[str], seed: object, *, transactions: bool = False
    ) -> None:
        self._name = name
        self._paths = paths
        self._transactions = transactions
        self._dice = random.Random(str(seed))
        self._seen: dict[str, int] = {}
        self._puts = 0

    def choose(self) -> bk.Operation:
        dice = self._dice
        if self._transactions and dice.random() < 0.15:
            return self._choose_transaction()
        path = dice.choice(self._paths)
        seen = self._seen.get(path)
        what = dice.random()
        if what < 0.30:
            return bk.Get(path) if what < 0.22 else bk.Exists(path)
        if what < 0.40:
            known = seen is not None and seen >= 0 and dice.random() < 0.5
            return bk.Delete(path, seen if known else None)
        self._puts += 1
        value = f"{self._name}-{self._puts}".encode()
        if what < 0.70 and seen is not None:
            return bk.Put(path, value, seen)
        return bk.Put(path, value, bk.ABSENT if what < 0.78 else None)

    def _choose_transaction(self) -> bk.Operation:
        dice = self._dice
        pair = 2 * dice.randrange(len(self._paths) // 2)
        parts: list[bk.Check | bk.Put | bk.Delete] = []
        for path in dice.sample(self._paths[pair : pair + 2], 2):
            seen = self._seen.get(path)
            what = dice.random()
            self._puts += 1
            value = f"{self._name}-{self._puts}".encode()
            if what < 0.3 and seen is not None:
                parts.append(bk.Check(path, seen))
            elif what < 0.4:
                parts.append(bk.Delete(path))
            else:
                parts.append(bk.Put(path, value, seen if what < 0.7 else None))
        return bk.Transaction(parts)

    def learn(self, made: Op) -> None:
        for part in made.parts:
            self.learn(part)
        if made.version is not None:
            self._seen[made.path] = made.version
        elif made.actual is not None:
            self._seen[made.path] = made.actual
        elif made.outcome == "done" and made.kind in {"delete", "get"}:
            self._seen[made.path] = bk.ABSENT


def work(
    client: Client,
    name: str,
    paths: Sequence[str],
    depth: int,
    stop: Callable[[], bool],
    timeout: Callable[[], float | None] = lambda: None,
) -> None:
    """Submit operations until ``stop`` is true, with up to ``depth`` under way at a time.

    ``timeout`` returns the timeout of the next operation; ``None`` stands for the store's default.
    """
    chooser = _Chooser(name, paths, name, transactions=client.transactions)
    under_way: deque[tuple[Op, Any]] = deque()
    turns = 0
    while not stop():
        turns += 1
        if turns % _LOOK_AFTER == 0:
            client.look(f"{name}.many", paths)
        under_way.append(client.submit(chooser.choose(), timeout()))
        if len(under_way) >= depth:
            made, future = under_way.popleft()
            client.wait(made, future)
            chooser.learn(made)
    for made, future in under_way:
        client.wait(made, future)


async def work_async(
    client: Client,
    name: str,
    paths: Sequence[str],
    depth: int,
    stop: Callable[[], bool],
    timeout: Callable[[], float | None] = lambda: None,
    pace: float = 0.0,
) -> None:
    """Do the same as :func:`work`, in a task, which rests between two operations."""
    chooser = _Chooser(name, paths, name, transactions=client.transactions)
    under_way: deque[tuple[Op, Any]] = deque()
    while not stop():
        under_way.append(client.submit(chooser.choose(), timeout()))
        if len(under_way) >= depth:
            made, future = under_way.popleft()
            await client.wait_async(made, future)
            chooser.learn(made)
        await asyncio.sleep(pace)
    for made, future in under_way:
        await client.wait_async(made, future)


class Workers:
    """Threads, or tasks on separate loops, that submit operations until they are stopped.

    Args:
        history: receives the operations.
        pace: the seconds that each rests after it has submitted one.
    """

    def __init__(self, history: list[Op], pace: float = PACE) -> None:
        self.history = history
        self._pace = pace
        self._timeout: float | None = None
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self._failures: list[BaseException] = []

    def start(
        self, client: Client, paths: Sequence[str], *, threads: int = 1, depth: int = 1
    ) -> None:
        """Start threads that submit operations to a store."""
        for _ in range(threads):
            name = f"{client.chain}.{len(self._threads)}"
            self._run(work, client, name, paths, depth, self._rest, lambda: self._timeout)

    def start_tasks(
        self, open_store: Callable[[], Any], chain: str, paths: Sequence[str], tasks: int
    ) -> None:
        """Start tasks that use an asynchronous store, on an event loop in a new thread."""

        async def run() -> None:
            async with open_store() as store:
                client = Client(store, chain, self.history)
                async with asyncio.TaskGroup() as group:
                    for number in range(tasks):
                        name = f"{chain}.{number}"
                        stop, timeout = self._stop.is_set, lambda: self._timeout
                        work = work_async(client, name, paths, 2, stop, timeout, self._pace)
                        group.create_task(work)

        self._run(asyncio.run, run())

    def _rest(self) -> bool:
        return self._stop.wait(self._pace)

    def _run(self, target: Callable[..., object], *args: Any) -> None:
        def guarded() -> None:
            try:
                target(*args)
            except BaseException as error:  # reported when the workers are stopped
                self._failures.append(error)

        self._threads.append(threading.Thread(target=guarded, daemon=True))
        self._threads[-1].start()

    def hurry(self, timeout: float | None) -> None:
        """Set the timeout of the operations, and wait until all under way have it.

        ``None`` stands for the store's default. Then the call does not wait.
        """
        since = time.monotonic()
        self._timeout = timeout
        if timeout is not None:
            self.until(
                lambda: all(op.invoked >= since for op in self.history if op.outcome == "pending"),
                "operations submitted earlier are still under way",
            )

    def slowest(self) -> float:
        """Return the longest time that a recent operation has taken: the machine may be slow."""
        times = [op.completed - op.invoked for op in self.history[-500:]]
        return max(time for time in times if time < math.inf)

    def until(self, holds: Callable[[], bool], otherwise: str) -> None:
        """Wait until ``holds`` is true."""
        give_up = time.monotonic() + PATIENCE
        while not holds():
            assert not self._failures, self._failures
            assert time.monotonic() < give_up, otherwise
            time.sleep(0.01)

    def progress(self, operations: int, since: float | None = None) -> None:
        """Wait until ``operations`` writes called after ``since`` (default: now) succeeded."""
        since = time.monotonic() if since is None else since
        give_up = time.monotonic() + PATIENCE
        seen = len(self.history)
        count = 0
        pending: list[Op] = []
        while count < operations:
            assert not self._failures, self._failures
            assert time.monotonic() < give_up, f"{count} of {operations} writes in {PATIENCE} s"
            time.sleep(0.002)
            pending += self.history[seen:]
            seen += len(self.history[seen:])
            ended = [op for op in pending if op.outcome != "pending"]
            count += sum(op.writes and op.outcome == "done" and op.invoked >= since for op in ended)
            pending = [op for op in pending if op.outcome == "pending"]

    def stop(self) -> None:
        """Stop all workers, and wait until their operations under way have ended."""
        self._stop.set()
        for thread in self._threads:
            thread.join(2 * PATIENCE)
            assert not thread.is_alive(), "a worker hangs"
        assert not self._failures, self._failures
