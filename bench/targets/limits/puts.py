"""batchkeeper's side of the ratios: callers with default settings that check every answer.

A single caller submits bursts, and checks the oldest burst while the later ones are under way. So a
few thousand operations are under way at any time, as in a busy program that bounds its memory.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from threading import Event
from typing import Any, Final, TypeAlias, TypeVar

from batchkeeper import open_async_store, open_store
from batchkeeper.batching import AsyncMetadataStore, MetadataStore
from batchkeeper.bench.target import Target
from batchkeeper.bench.workload import WrongAnswerError
from batchkeeper.ops.errors import BadVersionError, MetadataStoreError
from batchkeeper.ops.operations import ABSENT, Check, Put
from batchkeeper.ops.results import GetResult, Outcome, Stat

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
from .delays import Delayed, Timed
from .variants import variant

_T = TypeVar("_T")

#: Submits a burst of operations.
_Submit: TypeAlias = Callable[[Sequence[Step]], "list[Future[Any]]"]
#: Checks the answers to a burst.
_Check: TypeAlias = Callable[[Sequence[Step], "list[Future[Any]]"], None]

#: The number of threads, each of which waits for its own puts.
THREADS: Final = 64
#: The number of paths that are got again and again.
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


@variant("puts")
def puts(there: Target, count: int) -> Figures:
    """Measure unconditional puts of fresh paths, with a future for each."""
    with there.open() as store:
        put = store.put
        return measured(
            there,
            count,
            _bursts(lambda burst: [put(path, value) for path, value, _, _ in burst], _check_puts),
        )


@variant("conditional puts", False)
@variant("conflicting puts", True)
def conditional_puts(there: Target, count: int, conflicts: bool) -> Figures:
    """Measure conditional puts, with an outcome for each: creations of paths, then updates.

    With ``conflicts``, one in ten conflicts.
    """
    with there.open() as store:

        def prepare(found: Sequence[Step]) -> list[Step]:
            if conflicts:
                seed(store, found[CONFLICTING])
            return steps(found, conflicts=conflicts)

        run = _bursts(_put_step(store), _check_puts)
        return measured(there, count, run, prepare, len(EXPECTATIONS))


@variant("creates", False)
@variant("ephemeral creates", True)
def creates(there: Target, count: int, ephemeral: bool) -> Figures:
    """Measure creations of fresh paths, with a future for each."""

    def check(burst: Sequence[Step], futures: list[Future[Any]]) -> None:
        for step, future in zip(burst, futures, strict=True):
            stat = result_of(step.path, future)
            check_stat(step.path, 0, stat)
            if (stat.ephemeral, stat.owned) != (ephemeral, ephemeral):
                raise WrongAnswerError(f"{step.path} is not as ephemeral as it should be: {stat!r}")

    with there.open() as store:
        put = store.put
        run = _bursts(
            lambda burst: [put(s.path, s.value, ABSENT, ephemeral=ephemeral) for s in burst], check
        )
        return measured(there, count, run)


@variant("sequential creates")
def sequential_creates(there: Target, count: int) -> Figures:
    """Measure creations below one parent, to whose paths the store appends numbers."""

    def check(burst: Sequence[Step], futures: list[Future[Any]]) -> None:
        for (path, *_), future in zip(burst, futures, strict=True):
            stat = result_of(path, future)
            if type(stat) is not Stat or stat.version != 0 or not stat.path.startswith(path):
                raise WrongAnswerError(f"{path} should be the beginning of a path, not {stat!r}")

    with there.open() as store:
        put = store.put
        run = _bursts(lambda burst: [put(s.path, s.value, sequential=True) for s in burst], check)
        return measured(there, count, run)


@variant("transactions", _GUARDS)
@variant("fenced puts", 1)
def transactions(there: Target, count: int, guards: int) -> Figures:
    """Measure the puts of ``conditional_puts``, each with a check of another path beside it.

    Of fenced puts, all check one path, the record of their owner.
    """

    def check(burst: Sequence[Step], futures: list[Future[Any]]) -> None:
        for step, future in zip(burst, futures, strict=True):
            checked, stat = result_of(step.path, future)
            if checked is not None:
                raise WrongAnswerError(f"a check gave {checked!r}")
            assert step.version is not None  # No step conflicts.
            check_stat(step.path, step.version, stat)

    guarding = items(f"{there.root}/guards", min(count, guards))
    checks = itertools.cycle([Check(path, 0) for path, *_ in guarding])
    with there.open() as store:
        seed(store, guarding)

        def submit(burst: Sequence[Step]) -> list[Future[Any]]:
            return [
                store.transaction([check, Put(path, value, expected)])
                for check, (path, value, expected, _) in zip(checks, burst, strict=False)
            ]

        def prepare(found: Sequence[Step]) -> list[Step]:
            return steps(found, conflicts=False)

        return measured(there, count, _bursts(submit, check), prepare, len(EXPECTATIONS))


@variant("gets", grows=False)
def gets(there: Target, count: int) -> Figures:
    """Measure gets of existing paths, with a future for each, and compare the values."""

    def check(burst: Sequence[Step], futures: list[Future[Any]]) -> None:
        for (path, value, _, _), future in zip(burst, futures, strict=True):
            found = result_of(path, future)
            if type(found) is not GetResult or found.value != value:
                raise WrongAnswerError(f"{path} should have the value {value!r:.60}, not {found!r}")
            check_stat(path, 0, found.stat)

    seeded = items(there.root, min(count, SEEDED))
    with there.open() as store:
        seed(store, seeded)
    with there.open() as store:
        get = store.get
        run = _bursts(lambda burst: [get(path) for path, *_ in burst], check)
        return timed(there, run, seeded, cycle(seeded, count), count)


@variant("applied puts")
def applied_puts(there: Target, count: int) -> Figures:
    """Measure unconditional puts through ``apply``, which returns outcomes without futures.

    For ``rate``, the operations are created before the clock starts, as the paths and values are
    for puts with futures. ``making`` includes their creation.
    """
    more = items(f"{there.root}/more", count)
    with there.open() as store:
        figures = measured(
            there,
            count,
            lambda ready: check_outcomes(store.apply(ready), len(ready)),
            lambda found: [Put(path, value) for path, value, _, _ in found],
        )
        with stopwatch() as making:
            seed(store, more)
    return {**figures, "making": making.figures(count)["rate"]}


# Many callers, each with one operation:


@variant("puts of threads")
def puts_of_threads(there: Target, count: int) -> Figures:
    """Measure puts of 64 threads. Each thread waits for its put before the next one.

    ``bound`` is the rate of the same threads on a store that only waits, for the median time of the
    real store's requests (``request``). The loss that remains there is Python's, between callers
    and senders.
    """
    wrapped: list[Timed] = []

    def watch(backend: Any) -> Timed:
        wrapped.append(Timed(backend))
        return wrapped[0]

    with open_store(there.url.text, connect_timeout=there.connect_timeout, wrap=watch) as store:
        figures = measured(there, count, _of_threads(store))
        (backend,) = wrapped
        request, limits = backend.median(), backend.limits
    only_waiting = open_store(
        "memory://delayed", wrap=lambda backend: Delayed(backend, request, limits)
    )
    with only_waiting as store:
        bound = measured(there, count, _of_threads(store))["rate"]
    return {**figures, "bound": bound, "request": request}


def _of_threads(store: MetadataStore) -> Callable[[Sequence[Step]], None]:
    def caller(shared: Iterator[Step]) -> int:
        ended = 0
        for path, value, _, _ in shared:
            check_stat(path, 0, result_of(path, store.put(path, value)))
            ended += 1
        return ended

    return lambda found: check_count(sum(in_threads(THREADS, caller, found)), len(found))


def in_threads(
    threads: int, caller: Callable[[Iterator[_T]], object], found: Iterable[_T]
) -> list[Any]:
    """Let threads share an iterator, whose ``next`` is atomic; return what they return."""
    shared = iter(found)
    with ThreadPoolExecutor(threads) as pool:
        callers = [pool.submit(caller, shared) for _ in range(threads)]
    return [ended.result() for ended in callers]


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
            check_stat(step.path, 0, stat)

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

    async def task() -> int:
        ended = 0
        for one in shared:
            await call(one)
            ended += 1
        return ended

    check_count(sum(await asyncio.gather(*(task() for _ in range(_TASKS)))), len(found))


@variant("lone puts")
def lone_puts(there: Target, count: int) -> Figures:
    """Measure puts of one caller on an idle store. The caller waits for each put."""
    with there.open() as store:
        put = store.put
        return one_by_one(
            there,
            count,
            lambda step: check_stat(step.path, 0, result_of(step.path, put(step.path, step.value))),
        )


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

    _in_bursts(bursts(), _put_step(store), _check_puts)


def seed(store: MetadataStore, found: Sequence[tuple[Any, ...]]) -> None:
    """Put values (of tuples that begin with a path and a value) in bulk; check each outcome."""
    check_outcomes(store.apply([Put(path, value) for path, value, *_ in found]), len(found))


def cycle(found: Sequence[_T], count: int) -> list[_T]:
    """Return ``count`` elements, again and again from the start."""
    return list(itertools.islice(itertools.cycle(found), count))


def _put_step(store: MetadataStore) -> _Submit:
    put = store.put
    return lambda burst: [put(path, value, expected) for path, value, expected, _ in burst]


def _bursts(submit: _Submit, check: _Check) -> Callable[[Sequence[Step]], None]:
    return lambda found: check_count(_in_bursts(parts(found, _BURST), submit, check), len(found))


def _in_bursts(bursts: Iterable[Sequence[Step]], submit: _Submit, check: _Check) -> int:
    """Submit bursts while earlier ones are under way; return the number of checked operations."""
    under_way: deque[tuple[Sequence[Step], list[Future[Any]]]] = deque()
    checked = 0

    def check_oldest() -> int:
        burst, futures = under_way.popleft()
        check(burst, futures)
        return len(futures)

    for burst in bursts:
        under_way.append((burst, submit(burst)))
        if len(under_way) > _AHEAD:
            checked += check_oldest()
    while under_way:
        checked += check_oldest()
    return checked


# The checks cover what a caller relies on: each answer exists, and has the right type, path and
# version.


def _check_puts(burst: Sequence[Step], futures: list[Future[Any]]) -> None:
    for (path, _, expected, version), future in zip(burst, futures, strict=True):
        if version is not None:
            check_stat(path, version, result_of(path, future))
            continue
        error = future.exception()
        if not isinstance(error, BadVersionError) or error.path != path:
            raise WrongAnswerError(
                f"a put that expected version {expected} of {path} did not conflict: "
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
