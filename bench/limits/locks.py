"""Locks: one that nobody else wants, and a hundred threads in line for one.

Both sides use one object for each contender again and again, as a program does. The contenders in
line share a total that only the lock protects, so a lock that two of them hold shows.
"""

from __future__ import annotations

import itertools
import time
from array import array
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from typing import Any, Final

from ...batching import MetadataStore
from ...coordination import Lock
from ..figures import histogram, percentiles
from ..target import Target
from ..workload import WrongAnswerError
from .ours import check_count
from .plain_locks import plain_locks
from .work import Figures, Stopwatch

__all__ = [
    "locks_in_line",
    "locks_in_line_of_ten",
    "lone_locks",
    "lone_plain_locks",
    "plain_locks_in_line",
    "plain_locks_in_line_of_ten",
]

_CONTENDERS: Final = 100
_CLIENTS: Final = 10
_WARM_UP: Final = 5

#: A lock with `acquire` and `release`: batchkeeper's, kazoo's or etcd3's.
_Lock = Any
#: Opens a client, and yields a function that makes a lock of it.
_Client = Callable[[], AbstractContextManager[Callable[[], _Lock]]]


def lone_locks(there: Target, count: int) -> Figures:
    """Measure acquire and release of a lock that nobody else wants, one after the other."""
    with there.open() as store:
        lock, tokens = Lock(store, f"{there.root}/lock"), array("q")
        figures = _lone(there, lock, count, lambda: tokens.append(lock.fencing_token))
    _check(tokens, _WARM_UP + count)
    return figures


def lone_plain_locks(there: Target, count: int) -> Figures:
    """Measure the same of the plain client's lock."""
    with plain_locks(there) as make:
        return _lone(there, make(), count, lambda: None)


def _lone(there: Target, lock: _Lock, count: int, held: Callable[[], None]) -> Figures:
    clock = time.perf_counter_ns
    latencies: array[int] = array("q")

    def one_by_one(count: int) -> None:
        for _ in range(count):
            begun = clock()
            _acquire(lock)
            held()
            lock.release()
            latencies.append(clock() - begun)

    one_by_one(_WARM_UP)
    del latencies[:]
    with Stopwatch(there) as watch:
        one_by_one(count)
    return {**watch.figures(count), "latency": percentiles(histogram(latencies))["p50"]}


def locks_in_line(there: Target, count: int) -> Figures:
    """Measure the hand-overs of a lock among a hundred threads that share one store.

    ``cost`` is the number of the stores' operations for each hand-over.
    """
    return _ours_in_line(there, count, 1)


def locks_in_line_of_ten(there: Target, count: int) -> Figures:
    """Measure the same with ten stores, each for ten threads."""
    return _ours_in_line(there, count, _CLIENTS)


def plain_locks_in_line(there: Target, count: int) -> Figures:
    """Measure the hand-overs of the plain client's lock among threads that share one client."""
    return _plain_in_line(there, count, 1)


def plain_locks_in_line_of_ten(there: Target, count: int) -> Figures:
    """Measure the same with ten clients, each for ten threads."""
    return _plain_in_line(there, count, _CLIENTS)


def _ours_in_line(there: Target, count: int, clients: int) -> Figures:
    tokens: array[int] = array("q")
    with ExitStack() as stack:
        stores = [stack.enter_context(there.open()) for _ in range(clients)]
        locks = [
            Lock(store, f"{there.root}/lock") for store in stores for _ in _contenders(clients)
        ]
        before = _operations(stores)
        figures = _in_line(there, locks, count, lambda lock: tokens.append(lock.fencing_token))
        operations = _operations(stores) - before
    _check(tokens, count)
    return {**figures, "cost": operations / count}


def _plain_in_line(there: Target, count: int, clients: int) -> Figures:
    with ExitStack() as stack:
        makers = [stack.enter_context(plain_locks(there)) for _ in range(clients)]
        locks = [make() for make in makers for _ in _contenders(clients)]
        return _in_line(there, locks, count, lambda _lock: None)


def _contenders(clients: int) -> range:
    return range(_CONTENDERS // clients)


def _in_line(
    there: Target, locks: Sequence[_Lock], count: int, held: Callable[[_Lock], None]
) -> Figures:
    total = 0
    turns = iter(range(count))  # shared by the threads: its `next` is atomic

    def contender(lock: _Lock) -> None:
        nonlocal total
        for _ in turns:
            _acquire(lock)
            before = total
            held(lock)
            time.sleep(0)  # lets another thread run, which would then read the same total
            total = before + 1
            lock.release()

    with Stopwatch(there) as watch:
        with ThreadPoolExecutor(len(locks)) as pool:
            contenders = [pool.submit(contender, lock) for lock in locks]
        for ended in contenders:
            ended.result()
    if total != count:
        raise WrongAnswerError(f"{count} holders of a lock added 1 each, and the sum is {total}")
    return watch.figures(count)


def _acquire(lock: _Lock) -> None:
    # Ours raises or returns nothing; the plain ones may return that it was in vain.
    if lock.acquire(timeout=None) is False:
        raise WrongAnswerError("a lock was not acquired, although nothing limits the wait")


def _operations(stores: Sequence[MetadataStore]) -> int:
    return sum(sum(store.metrics().operations.values()) for store in stores)


def _check(tokens: Sequence[int], count: int) -> None:
    check_count(len(tokens), count)
    if any(later <= token for token, later in itertools.pairwise(tokens)):
        raise WrongAnswerError("a later holder of a lock has no greater fencing token")
