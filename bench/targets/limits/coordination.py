"""Locks, caches, counters and elections.

Contenders in line for a lock use one object each, again and again, as a program does. They share a
total that only the lock protects, so a lock that two of them hold shows.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections import Counter as Counts
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, Final

from batchkeeper import Counter, Election, Lock, MetadataCache, MetadataStore, open_store
from batchkeeper.bench.children import child
from batchkeeper.bench.target import Target
from batchkeeper.bench.workload import WrongAnswerError

from ..rows import Figures
from ..work import items, one_by_one, parts, stopwatch
from .puts import check_count, check_stat, cycle, in_threads, plain_locks, result_of, seed
from .variants import variant

# Locks:

_CONTENDERS: Final = 100
_TOKENS: Final = "a later holder of a lock has no greater fencing token"

#: Opens a client of a place, and yields a function that makes a lock of it: batchkeeper's, kazoo's
#: or etcd3's.
_Client = Callable[[Target], AbstractContextManager[Callable[[], Any]]]


@contextmanager
def _locks(there: Target, spent: Counts[str] | None = None) -> Iterator[Callable[[], Lock]]:
    with there.open() as store:
        yield lambda: Lock(store, f"{there.root}/lock")
        if spent is not None:
            spent.update(store.metrics().operations)


@variant("lone locks", _locks, grows=False)
@variant("lone plain locks", plain_locks, grows=False)
def lone_locks(there: Target, count: int, client: _Client) -> Figures:
    """Measure acquire and release of a lock that nobody else wants, one after the other."""
    tokens: list[int] = []
    with client(there) as make:
        lock = make()

        def hold(_: object) -> None:
            _acquire(lock, tokens)
            lock.release()

        figures = one_by_one(there, count, hold)
    _check_growing(tokens, _TOKENS)
    return figures


# The line forms, and dissolves, within the time that counts. So it needs more rounds than one.


@variant("locks in line", _locks, 1, grows=False, times=4.0)
@variant("plain locks in line", plain_locks, 1, grows=False, times=4.0)
@variant("plain locks in line of ten", plain_locks, 10, grows=False, times=4.0)
def locks_in_line(there: Target, count: int, client: _Client, clients: int) -> Figures:
    """Measure the hand-overs of a lock among a hundred threads that share some clients."""
    total = 0
    tokens: list[int] = []

    def contend(turns: Iterator[int]) -> None:
        nonlocal total
        own = locks.pop()
        for _ in turns:
            _acquire(own, tokens)
            before = total
            time.sleep(0)  # lets another thread run, which would then read the same total
            total = before + 1
            own.release()

    with ExitStack() as stack:
        makers = [stack.enter_context(client(there)) for _ in range(clients)]
        locks = [make() for make in makers for _ in range(_CONTENDERS // clients)]
        with stopwatch(there) as watch:
            in_threads(_CONTENDERS, contend, range(count))
    if total != count:
        raise WrongAnswerError(f"{count} holders of a lock added 1 each, and the sum is {total}")
    _check_growing(tokens, _TOKENS)
    return watch.figures(count)


@variant("locks in line of ten", grows=False, times=4.0)
def locks_in_line_of_ten(there: Target, count: int) -> Figures:
    """Measure the same, and the number of the stores' operations for each hand-over: ``cost``."""
    spent: Counts[str] = Counts()
    figures = locks_in_line(there, count, partial(_locks, spent=spent), 10)
    return {**figures, "cost": spent.total() / count}


def _acquire(lock: Any, tokens: list[int]) -> None:
    # Ours raises or returns nothing; the plain ones may return that it was in vain.
    if lock.acquire(timeout=None) is False:
        raise WrongAnswerError("a lock was not acquired, although nothing limits the wait")
    # The plain ones have no tokens.
    if (token := getattr(lock, "fencing_token", None)) is not None:
        tokens.append(token)


def _check_growing(found: Sequence[int], wrong: str) -> None:
    if any(later <= earlier for earlier, later in itertools.pairwise(found)):
        raise WrongAnswerError(wrong)


# Caches:

# The number of threads, each of which waits for its own writes.
_FEW: Final = 8
_PATHS: Final = 1000


@variant("cache hits", grows=False)
def cache_hits(there: Target, count: int) -> Figures:
    """Measure gets of cached paths in one thread, and compare the values."""
    seeded = items(there.root, _PATHS)
    asked = cycle([path for path, *_ in seeded], count)
    with there.open() as store:
        seed(store, seeded)
        with MetadataCache(store, there.root) as cache:
            get = cache.get
            while not all(isinstance(cache.get_if_cached(path), bytes) for path, *_ in seeded):
                found = [get(path) for path, *_ in seeded]
            before = store.metrics().operations
            with stopwatch(there) as watch:
                found = [get(path) for path in asked]
            if store.metrics().operations != before:
                raise WrongAnswerError("reads of cached paths have reached the store")
    if found != cycle([value for _, value, *_ in seeded], count):
        raise WrongAnswerError("a cached value is not the one that was put")
    return watch.figures(count)


@variant("updates", grows=False, least=1_000)
def updates(there: Target, count: int) -> Figures:
    """Measure ``read_modify_update`` of 1,000 paths from eight threads. Each adds 1 to a value."""
    with there.open() as store, MetadataCache(store, there.root) as cache:
        paths = _counters(store, there.root)
        for path in paths:
            cache.get(path)

        def update(shares: Iterator[Sequence[int]]) -> None:
            for turn in next(shares, ()):
                cache.read_modify_update(
                    paths[turn % _PATHS], lambda value: b"%d" % (int(value) + 1)
                )

        with stopwatch(there) as watch:
            in_threads(_FEW, update, parts(range(count), -(-count // _FEW)))
        found = [store.get(path).result() for path in paths]
    check_count(sum(int(result.value) for result in found if result is not None), count)
    return watch.figures(count)


@variant("puts of few threads", grows=False, least=1_000)
def puts_of_few_threads(there: Target, count: int) -> Figures:
    """Measure the conditional puts that those updates make, from eight threads, without a cache."""
    rounds = max(1, count // _PATHS)
    with there.open() as store:
        paths = _counters(store, there.root)

        def put(shares: Iterator[Sequence[str]]) -> None:
            own = next(shares)
            for version in range(rounds):
                for path in own:
                    future = store.put(path, b"%d" % (version + 1), expected_version=version)
                    check_stat(path, version + 1, result_of(path, future))

        with stopwatch(there) as watch:
            in_threads(_FEW, put, parts(paths, _PATHS // _FEW))
    return watch.figures(rounds * _PATHS)


def _counters(store: MetadataStore, root: str) -> list[str]:
    paths = [path for path, *_ in items(root, _PATHS)]
    seed(store, [(path, b"0") for path in paths])
    return paths


# Counters:


@variant("numbers", grows=False)
def numbers(there: Target, count: int) -> Figures:
    """Measure ``next`` of a counter whose block has enough numbers."""
    with there.open() as store:
        counter = Counter(store, f"{there.root}/counter", block=count + 1)
        take = counter.next
        take()
        with stopwatch(there) as watch:
            taken = [take() for _ in range(count)]
    check_count(len(taken), count)
    _check_growing(taken, "a counter's numbers do not grow")
    return watch.figures(count)


# Elections:

# Seconds. The bench's ZooKeeper accepts no less than two of its ticks.
_SESSION: Final = 5.0
# The time within which a client shows that it lives, as a part of the session. The stores of the
# process begin spread over it, as those of different processes would.
_SPREAD: Final = _SESSION / 3
_PATIENCE: Final = 60.0
_BETWEEN_LOOKS: Final = 0.02
_ATTEMPTS: Final = 3


@variant("failovers", least=5, fixed=True)
def failovers(there: Target, count: int) -> Figures:
    """Measure the time from the kill to the next leader, beyond the session timeout: the median."""
    for attempt in range(_ATTEMPTS):
        paths = [f"{there.root}/{attempt}/{number}" for number in range(count)]
        seconds = _seconds(there, paths)
        if min(seconds) > 0:
            return {
                "rate": count / max(seconds),
                "after": max(0.001, statistics.median(seconds) - _SESSION),
            }
        # The machine has stood still for longer than the session, so that the leader lost it.
    raise WrongAnswerError("time and again, another candidate led before the leader was killed")


def _seconds(there: Target, paths: list[str]) -> list[float]:
    def lead(election: Election) -> float:
        election.campaign(timeout=_PATIENCE)
        return time.perf_counter()

    with there.open() as store, ThreadPoolExecutor(len(paths)) as pool, ExitStack() as stack:
        elections = [stack.enter_context(Election(store, path, b"next")) for path in paths]
        with child(_lead, there.url.text, paths) as leader:
            led = [pool.submit(lead, election) for election in elections]
            while not any(future.done() for future in led) and any(
                len(store.get_children(path).result()) < 2 for path in paths
            ):
                time.sleep(_BETWEEN_LOOKS)
            leader.kill()
            killed = time.perf_counter()
        return [future.result() - killed for future in led]


# In another process:


def _lead(parent: Connection, url: str, paths: list[str]) -> None:
    """Lead elections, each with a store of its own."""
    with ExitStack() as stack:
        for path in paths:
            store = stack.enter_context(open_store(url, session_timeout=_SESSION))
            stack.enter_context(Election(store, path, b"leader")).campaign(timeout=_PATIENCE)
            time.sleep(_SPREAD / len(paths))
        parent.send("ready")
        parent.recv()
