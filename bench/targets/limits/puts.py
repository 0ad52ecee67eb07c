"""Puts and gets: callers with default settings that check every answer, and the plain clients.

A single caller submits bursts, and checks the oldest burst while the later ones are under way. So a
few thousand operations are under way at any time, as in a busy program that bounds its memory.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from functools import partial
from threading import Event
from typing import Any, Final, TypeAlias, TypeVar

from batchkeeper import open_async_store
from batchkeeper.batching import AsyncMetadataStore, MetadataStore
from batchkeeper.bench.load.peers import PEERS
from batchkeeper.bench.load.peers.clients import etcd3_client, kazoo_client
from batchkeeper.bench.target import Target
from batchkeeper.bench.workload import WrongAnswerError
from batchkeeper.ops.errors import BadVersionError, MetadataStoreError
from batchkeeper.ops.operations import ABSENT, Check, Put
from batchkeeper.ops.results import GetResult, Outcome, Stat
from batchkeeper.stores.registry import parse_url, store_kind

from ..rows import Figures
from ..work import (
    CONFLICTING,
    EXPECTATIONS,
    Step,
    items,
    measured,
    one_by_one,
    parts,
    split_warm_up,
    steps,
    stopwatch,
    timed,
)
from .variants import variant

_T = TypeVar("_T")

#: Submits a burst of operations.
_Submit: TypeAlias = Callable[[MetadataStore, Sequence[Step]], "list[Future[Any]]"]
#: Checks the result of an operation.
_Check: TypeAlias = Callable[[Step, Any], None]

#: The number of threads, each of which waits for its own puts.
THREADS: Final = 64
#: The number of paths that are read repeatedly.
SEEDED: Final = 10_000

# The operations of a burst, and the bursts under way when the next one is submitted: together half
# of the default size of the queues.
_BURST: Final = 1000
_AHEAD: Final = 4
_TASKS: Final = 1000
# The number of paths that guard the writes of the transactions.
_GUARDS: Final = 10_000
# Enough paths that none is under way twice.
_SATURATING: Final = 20_000


# One caller, with bursts of futures:


def _put(store: MetadataStore, burst: Sequence[Step]) -> list[Future[Any]]:
    put = store.put
    return [put(path, value) for path, value, _, _ in burst]


def _put_conditionally(store: MetadataStore, burst: Sequence[Step]) -> list[Future[Any]]:
    put = store.put
    return [put(path, value, expected) for path, value, expected, _ in burst]


def _create(ephemeral: bool, store: MetadataStore, burst: Sequence[Step]) -> list[Future[Any]]:
    put = store.put
    return [put(path, value, ABSENT, ephemeral=ephemeral) for path, value, _, _ in burst]


def _create_in_sequence(store: MetadataStore, burst: Sequence[Step]) -> list[Future[Any]]:
    put = store.put
    return [put(path, value, sequential=True) for path, value, _, _ in burst]


def _check_put(step: Step, stat: Any) -> None:
    assert step.version is not None
    check_stat(step.path, step.version, stat)


def _check_created(ephemeral: bool, step: Step, stat: Any) -> None:
    _check_put(step, stat)
    if (stat.ephemeral, stat.owned) != (ephemeral, ephemeral):
        raise WrongAnswerError(f"{step.path} is not as ephemeral as it should be: {stat!r}")


def _check_sequential(step: Step, stat: Any) -> None:
    if type(stat) is not Stat or stat.version != 0 or not stat.path.startswith(step.path):
        raise WrongAnswerError(f"{step.path} should be the beginning of a path, not {stat!r}")


@variant("puts", _put)
@variant("creates", partial(_create, False), partial(_check_created, False))
@variant("ephemeral creates", partial(_create, True), partial(_check_created, True))
@variant("sequential creates", _create_in_sequence, _check_sequential)
def puts(there: Target, count: int, submit: _Submit, check: _Check = _check_put) -> Figures:
    """Measure puts of fresh paths, with a future for each."""
    with there.open() as store:
        return measured(there, count, _bursts(store, submit, check))


@variant("conditional puts", False)
@variant("conflicting puts", True)
def conditional_puts(
    there: Target,
    count: int,
    conflicts: bool,
    submit: _Submit = _put_conditionally,
    check: _Check = _check_put,
) -> Figures:
    """Measure conditional puts, with an outcome for each: creations of paths, then updates.

    With ``conflicts``, one in ten conflicts.
    """
    with there.open() as store:

        def prepare(found: Sequence[Step]) -> list[Step]:
            if conflicts:
                seed(store, found[CONFLICTING])
            return steps(found, conflicts=conflicts)

        return measured(there, count, _bursts(store, submit, check), prepare, len(EXPECTATIONS))


@variant("transactions", _GUARDS)
@variant("fenced puts", 1)
def transactions(there: Target, count: int, guards: int) -> Figures:
    """Measure the puts of ``conditional_puts``, each with a check of another path beside it.

    Of fenced puts, all check one path, the record of their owner.
    """
    guarding = items(f"{there.root}/guards", min(count, guards))
    checks = itertools.cycle([Check(path, 0) for path, *_ in guarding])

    def submit(store: MetadataStore, burst: Sequence[Step]) -> list[Future[Any]]:
        return [
            store.transaction([check, Put(path, value, expected)])
            for check, (path, value, expected, _) in zip(checks, burst, strict=False)
        ]

    def check(step: Step, result: Any) -> None:
        checked, stat = result
        if checked is not None:
            raise WrongAnswerError(f"a check gave {checked!r}")
        _check_put(step, stat)

    with there.open() as store:
        seed(store, guarding)
    return conditional_puts(there, count, False, submit, check)


@variant("gets", grows=False)
def gets(there: Target, count: int) -> Figures:
    """Measure gets of existing paths, with a future for each, and compare the values."""

    def check(step: Step, found: Any) -> None:
        path, value, _, _ = step
        if type(found) is not GetResult or found.value != value:
            raise WrongAnswerError(f"{path} should have the value {value!r:.60}, not {found!r}")
        _check_put(step, found.stat)

    seeded = items(there.root, min(count, SEEDED))
    with there.open() as store:
        seed(store, seeded)
    with there.open() as store:
        get = store.get
        run = _bursts(store, lambda _, burst: [get(path) for path, *_ in burst], check)
        return timed(there, run, seeded, cycle(seeded, count), count)


@variant("applied puts")
def applied_puts(there: Target, count: int) -> Figures:
    """Measure unconditional puts through ``apply``, which returns outcomes without futures.

    The operations are created before the clock starts, as the paths and values are for puts with
    futures.
    """
    with there.open() as store:
        return measured(
            there,
            count,
            lambda ready: check_outcomes(store.apply(ready), len(ready)),
            lambda found: [Put(path, value) for path, value, _, _ in found],
        )


# Many callers, each with one operation:


@variant("puts of threads")
def puts_of_threads(there: Target, count: int) -> Figures:
    """Measure puts of 64 threads. Each thread waits for its put before the next one."""
    with there.open() as store:
        return measured(there, count, partial(call_in_threads, _waiting(store)))


@variant("lone puts")
def lone_puts(there: Target, count: int) -> Figures:
    """Measure puts of one caller on an idle store. The caller waits for each put."""
    with there.open() as store:
        return one_by_one(there, count, _waiting(store))


def _waiting(store: MetadataStore) -> Callable[[Step], None]:
    put = store.put

    def call(step: Step) -> None:
        _check_put(step, result_of(step.path, put(step.path, step.value)))

    return call


def call_in_threads(call: Callable[[_T], object], found: Iterable[_T]) -> None:
    """Call a function with each of the elements, in 64 threads."""

    def caller(shared: Iterator[_T]) -> None:
        for one in shared:
            call(one)

    in_threads(THREADS, caller, found)


def in_threads(threads: int, caller: Callable[[Iterator[_T]], object], found: Iterable[_T]) -> None:
    """Let threads share an iterator, whose ``next`` is atomic."""
    shared = iter(found)
    with ThreadPoolExecutor(threads) as pool:
        callers = [pool.submit(caller, shared) for _ in range(threads)]
    for ended in callers:
        ended.result()


@variant("puts of tasks")
def puts_of_tasks(there: Target, count: int) -> Figures:
    """Measure puts of 1,000 asyncio tasks. Each task awaits its put before the next one."""

    @asynccontextmanager
    async def calling(
        store: AsyncMetadataStore,
    ) -> AsyncIterator[Callable[[Step], Awaitable[None]]]:
        async def call(step: Step) -> None:
            try:
                stat = await store.put(step.path, step.value)
            except MetadataStoreError as error:
                raise _failed(step.path, error) from error
            _check_put(step, stat)

        yield call

    return asyncio.run(in_tasks(there, count, calling, lambda n: items(there.root, n)))


async def in_tasks(
    there: Target,
    count: int,
    calling: Callable[
        [AsyncMetadataStore], AbstractAsyncContextManager[Callable[[Any], Awaitable[None]]]
    ],
    make: Callable[[int], Sequence[Any]],
) -> Figures:
    """Measure calls of 1,000 tasks, each of which awaits its call before the next one.

    Args:
        there: the place.
        count: the number of calls.
        calling: opens what is to be called, on a store.
        make: makes the arguments of the calls.
    """
    warm_up, ready = split_warm_up(make, count)
    async with (
        open_async_store(there.url.text, connect_timeout=there.connect_timeout) as store,
        calling(store) as call,
    ):
        await _all_tasks(call, warm_up)
        with stopwatch(there) as watch:
            await _all_tasks(call, ready)
        return watch.figures(count)


async def _all_tasks(call: Callable[[_T], Awaitable[None]], found: Sequence[_T]) -> None:
    shared = iter(found)

    async def task() -> None:
        for one in shared:
            await call(one)

    await asyncio.gather(*(task() for _ in range(_TASKS)))


# What they share, also with other variants:


def saturate(store: MetadataStore, root: str, until: Event) -> None:
    """Put to the same paths again and again, as fast as one caller can, until the event is set."""
    paths = parts(items(root, _SATURATING), _BURST)

    def bursts() -> Iterator[Sequence[Step]]:
        for version in itertools.count():
            for burst in paths:
                if until.is_set():
                    return
                yield [Step(path, value, None, version) for path, value, _, _ in burst]

    _in_bursts(store, bursts(), _put_conditionally, _check_put)


def seed(store: MetadataStore, found: Sequence[tuple[Any, ...]]) -> None:
    """Put values (of tuples that begin with a path and a value) in bulk; check each outcome."""
    check_outcomes(store.apply([Put(path, value) for path, value, *_ in found]), len(found))


def cycle(found: Sequence[_T], count: int) -> list[_T]:
    """Return ``count`` elements, again and again from the start."""
    return list(itertools.islice(itertools.cycle(found), count))


def _bursts(
    store: MetadataStore, submit: _Submit, check: _Check
) -> Callable[[Sequence[Step]], None]:
    return lambda found: _in_bursts(store, parts(found, _BURST), submit, check)


def _in_bursts(
    store: MetadataStore, bursts: Iterable[Sequence[Step]], submit: _Submit, check: _Check
) -> None:
    """Submit bursts, and check each one while later ones are under way."""
    under_way: deque[tuple[Sequence[Step], list[Future[Any]]]] = deque()
    for burst in bursts:
        under_way.append((burst, submit(store, burst)))
        if len(under_way) > _AHEAD:
            _check_burst(check, *under_way.popleft())
    for burst, futures in under_way:
        _check_burst(check, burst, futures)


# The checks cover what a caller relies on: each answer exists, and has the right type, path and
# version.


def _check_burst(check: _Check, burst: Sequence[Step], futures: list[Future[Any]]) -> None:
    for step, future in zip(burst, futures, strict=True):
        if step.version is not None:
            check(step, result_of(step.path, future))
            continue
        error = future.exception()
        if not isinstance(error, BadVersionError) or error.path != step.path:
            raise WrongAnswerError(
                f"a put that expected version {step.expected} of {step.path} did not conflict: "
                f"{error or future.result()!r}"
            )


def check_outcomes(outcomes: Sequence[Outcome], count: int) -> None:
    """Check that ``count`` puts of fresh paths succeeded."""
    for outcome in outcomes:
        if outcome.error is not None:
            raise WrongAnswerError(f"{outcome.op!r:.80} failed: {outcome.error}")
        check_stat(outcome.op.path, 0, outcome.result)
    check_count(len(outcomes), count)


def result_of(path: str, future: Future[Any]) -> Any:
    """Return a future's result; raise ``WrongAnswerError`` if the operation failed."""
    try:
        return future.result()
    except MetadataStoreError as error:
        raise _failed(path, error) from error


def _failed(path: str, error: MetadataStoreError) -> WrongAnswerError:
    return WrongAnswerError(f"an operation on {path} failed: {error}")


def check_stat(path: str, version: int, found: object) -> None:
    """Check the stat of a put: its type, its path and its version."""
    if type(found) is not Stat or found.path != path or found.version != version:
        raise WrongAnswerError(f"{path} should be at version {version}, not {found!r}")


def check_count(found: int, expected: int) -> None:
    """Check that there are as many answers as operations."""
    if found != expected:
        raise WrongAnswerError(f"{found} answers to {expected} operations")


# The plain clients: the peers of the benchmark, and their recipes of locks.

#: The plain client of each kind of store: a peer that does one thing after the other.
PLAIN: Final = {"etcd": "etcd3", "zookeeper": "kazoo", "rocksdb": "rocksdict"}


@contextmanager
def plain_put(url: str, root: str) -> Iterator[Callable[[str, bytes], Any]]:
    """Open the plain client of a store; yield a function that creates a path and waits for it."""
    with PEERS[PLAIN[store_kind(parse_url(url)).scheme]].open(url, root) as peer:
        put = getattr(peer, "put_new", peer.put)
        # It makes the folder for all, before several threads share the client.
        put(f"{root}/first", b"").result()
        yield lambda path, value: put(path, value).result()


@variant("plain puts")
def plain_puts(there: Target, count: int) -> Figures:
    """Measure puts in a loop, and the median of their latencies."""
    with plain_put(there.url.text, there.root) as put:
        return one_by_one(there, count, lambda step: put(step.path, step.value))


@variant("plain puts of threads")
def plain_puts_of_threads(there: Target, count: int) -> Figures:
    """Measure puts of 64 threads on one client. All three clients can be shared by threads."""
    with plain_put(there.url.text, there.root) as put:
        call = partial(call_in_threads, lambda step: put(step.path, step.value))
        return measured(there, count, call)


@contextmanager
def plain_locks(there: Target) -> Iterator[Callable[[], Any]]:
    """Open the plain client of a target, and yield a function that makes a lock of it.

    All locks are for the same path. They have ``acquire(timeout=...)`` and ``release()``.
    """
    path = f"{there.url.prefix()}{there.root}/lock"
    if there.kind.scheme == "zookeeper":
        with kazoo_client(there.url) as client:
            yield lambda: client.Lock(path)
    else:
        with etcd3_client(there.url) as client:
            yield lambda: client.lock(path)
