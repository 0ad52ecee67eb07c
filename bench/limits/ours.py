"""batchkeeper's side of the ratios: callers with default settings that check every answer.

Each function measures one way to call a store, in a separate place. A single caller submits bursts,
and checks the oldest burst while the later ones are under way. So a few thousand operations are
under way at any time, as in a busy program that bounds its memory.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Event
from typing import Any, Final, TypeVar

from ... import open_async_store
from ...batching import AsyncMetadataStore, BatchingConfig, MetadataStore
from ...ops.errors import BadVersionError, MetadataStoreError
from ...ops.operations import Put
from ...ops.results import GetResult, Outcome, Stat
from ...stores import ConnectOptions, connect
from ..figures import histogram, percentiles
from ..target import Target
from ..workload import WrongAnswerError
from .delays import Delayed, Timed
from .work import Figures, Item, Step, Stopwatch, conflicting, items, parts, steps, work

__all__ = [
    "THREADS",
    "applied_puts",
    "check_count",
    "check_outcomes",
    "check_stat",
    "conditional_puts",
    "conflicting_puts",
    "gets",
    "in_bursts",
    "lone_puts",
    "puts",
    "puts_of_tasks",
    "puts_of_threads",
    "result_of",
    "saturate",
    "seed",
]

_T = TypeVar("_T")

#: The number of threads, each of which waits for its own puts.
THREADS: Final = 64
_TASKS: Final = 1000

# The operations of a burst, and the bursts under way when the next one is submitted: together half
# of the default size of the queues.
_BURST: Final = 1000
_AHEAD: Final = 4

_SEEDED: Final = 10_000
# Enough paths that none is under way twice.
_SATURATING: Final = 20_000
_OPERATION_TIMEOUT: Final = 30.0


def puts(there: Target, count: int) -> Figures:
    """Measure unconditional puts of fresh paths, with a future for each."""
    made = work(there.root, count)
    with there.open() as store:
        _put_in_bursts(store, made.warm_up)
        with Stopwatch(there) as watch:
            _put_in_bursts(store, made.timed)
        return watch.figures(count)


def conditional_puts(there: Target, count: int) -> Figures:
    """Measure conditional puts, with an outcome for each: creations of paths, then updates."""
    return _conditional(there, count, conflicts=False)


def conflicting_puts(there: Target, count: int) -> Figures:
    """Measure the same puts as ``conditional_puts``, but one in ten conflicts."""
    return _conditional(there, count, conflicts=True)


def _conditional(there: Target, count: int, conflicts: bool) -> Figures:
    made = work(there.root, max(1, count // 3))
    warm_up, timed = steps(made.warm_up, conflicts), steps(made.timed, conflicts)
    with there.open() as store:
        if conflicts:
            seed(store, [*_to_conflict(made.warm_up), *_to_conflict(made.timed)])
        _step(store, warm_up)
        with Stopwatch(there) as watch:
            _step(store, timed)
        return watch.figures(len(timed))


def gets(there: Target, count: int) -> Figures:
    """Measure gets of existing paths, with a future for each, and compare the values."""
    seeded = items(there.root, min(count, _SEEDED))
    asked = _cycle(seeded, count)
    with there.open() as store:
        seed(store, seeded)
    with there.open() as store:
        get = store.get

        def submit(burst: Sequence[Item]) -> list[Future[GetResult | None]]:
            return [get(path) for path, _ in burst]

        def get_in_bursts(found: Sequence[Item]) -> None:
            check_count(in_bursts(parts(found, _BURST), submit, _check_gets), len(found))

        get_in_bursts(seeded)
        with Stopwatch(there) as watch:
            get_in_bursts(asked)
        return watch.figures(count)


def applied_puts(there: Target, count: int) -> Figures:
    """Measure unconditional puts through ``apply``, which returns outcomes without futures.

    For ``rate``, the operations are created before the clock starts, as the paths and values are
    for puts with futures. ``making`` includes their creation.
    """
    made = work(there.root, count)
    ready = [Put(path, value) for path, value in made.timed]
    more = items(f"{there.root}/more", count)
    with there.open() as store:
        seed(store, made.warm_up)
        with Stopwatch(there) as watch:
            check_outcomes(store.apply(ready), count)
        with Stopwatch() as making:
            check_outcomes(store.apply([Put(path, value) for path, value in more]), count)
    return {**watch.figures(count), "making": making.figures(count)["rate"]}


def puts_of_threads(there: Target, count: int) -> Figures:
    """Measure puts of 64 threads. Each thread waits for its put before the next one.

    ``bound`` is the rate of the same threads on a store that only waits, for the median time of the
    real store's requests (``request``). The loss that remains there is Python's, between callers
    and senders.
    """
    made = work(there.root, count)
    options = ConnectOptions(connect_timeout=there.connect_timeout)
    timed = Timed(connect(there.url.text, options))
    with _store_on(timed) as store:
        _of_threads(store, made.warm_up)
        timed.times.clear()
        with Stopwatch(there) as watch:
            _of_threads(store, made.timed)
        request, limits = timed.median(), timed.limits
    with _store_on(Delayed(request, limits)) as store:
        _of_threads(store, made.warm_up)
        with Stopwatch() as bound:
            _of_threads(store, made.timed)
    return {**watch.figures(count), "bound": bound.figures(count)["rate"], "request": request}


def _of_threads(store: MetadataStore, found: Sequence[Item]) -> None:
    # The threads share an iterator: its `next` is atomic, and they all end at about the same time.
    shared = iter(found)

    def caller() -> int:
        count = 0
        for path, value in shared:
            check_stat(path, 0, result_of(path, store.put(path, value)))
            count += 1
        return count

    with ThreadPoolExecutor(THREADS) as pool:
        callers = [pool.submit(caller) for _ in range(THREADS)]
    check_count(sum(caller.result() for caller in callers), len(found))


def puts_of_tasks(there: Target, count: int) -> Figures:
    """Measure puts of 1,000 asyncio tasks. Each task awaits its put before the next one."""
    return asyncio.run(_measure_tasks(there, count))


async def _measure_tasks(there: Target, count: int) -> Figures:
    made = work(there.root, count)
    async with open_async_store(there.url.text, connect_timeout=there.connect_timeout) as store:
        await _of_tasks(store, made.warm_up)
        with Stopwatch(there) as watch:
            await _of_tasks(store, made.timed)
        return watch.figures(count)


async def _of_tasks(store: AsyncMetadataStore, found: Sequence[Item]) -> None:
    shared = iter(found)

    async def task() -> int:
        count = 0
        for path, value in shared:
            try:
                stat = await store.put(path, value)
            except MetadataStoreError as error:
                raise _failed(path, error) from error
            check_stat(path, 0, stat)
            count += 1
        return count

    check_count(sum(await asyncio.gather(*(task() for _ in range(_TASKS)))), len(found))


def lone_puts(there: Target, count: int) -> Figures:
    """Measure puts of one caller on an idle store. The caller waits for each put."""
    made = work(there.root, count)
    with there.open() as store:
        put, clock = store.put, time.perf_counter_ns

        def one_by_one(found: Sequence[Item]) -> array[int]:
            latencies: array[int] = array("q")
            for path, value in found:
                begun = clock()
                stat = result_of(path, put(path, value))
                latencies.append(clock() - begun)
                check_stat(path, 0, stat)
            return latencies

        one_by_one(made.warm_up)
        with Stopwatch(there) as watch:
            latencies = one_by_one(made.timed)
        return {**watch.figures(count), "latency": percentiles(histogram(latencies))["p50"]}


def seed(store: MetadataStore, found: Sequence[Item]) -> None:
    """Put items in bulk, and check each outcome."""
    check_outcomes(store.apply([Put(path, value) for path, value in found]), len(found))


def saturate(store: MetadataStore, root: str, until: Event) -> None:
    """Put to the same paths again and again, as fast as one caller can, until the event is set."""
    paths = parts(items(root, _SATURATING), _BURST)

    def bursts() -> Iterator[Sequence[Step]]:
        for version in itertools.count():
            for burst in paths:
                if until.is_set():
                    return
                yield [Step(path, value, None, version) for path, value in burst]

    in_bursts(bursts(), _step_submitter(store), _check_steps)


def _put_in_bursts(store: MetadataStore, found: Sequence[Item]) -> None:
    put = store.put

    def submit(burst: Sequence[Item]) -> list[Future[Stat]]:
        return [put(path, value) for path, value in burst]

    check_count(in_bursts(parts(found, _BURST), submit, _check_puts), len(found))


def _step(store: MetadataStore, found: Sequence[Step]) -> None:
    checked = in_bursts(parts(found, _BURST), _step_submitter(store), _check_steps)
    check_count(checked, len(found))


def _step_submitter(store: MetadataStore) -> Callable[[Sequence[Step]], list[Future[Any]]]:
    put = store.put
    return lambda burst: [put(path, value, expected) for path, value, expected, _ in burst]


def in_bursts(
    bursts: Iterable[Sequence[_T]],
    submit: Callable[[Sequence[_T]], list[Future[Any]]],
    check: Callable[[Sequence[_T], list[Future[Any]]], int],
) -> int:
    """Submit bursts while earlier ones are under way; return the number of checked operations."""
    under_way: deque[tuple[Sequence[_T], list[Future[Any]]]] = deque()
    checked = 0
    for burst in bursts:
        under_way.append((burst, submit(burst)))
        if len(under_way) > _AHEAD:
            checked += check(*under_way.popleft())
    while under_way:
        checked += check(*under_way.popleft())
    return checked


def _to_conflict(found: Sequence[Item]) -> Iterator[Item]:
    return (item for number, item in enumerate(found) if conflicting(number))


def _cycle(found: Sequence[Item], count: int) -> Sequence[Item]:
    return [*found] * (count // len(found)) + [*found[: count % len(found)]]


# The checks cover what a caller relies on: each answer exists, and has the right type, path and
# version.


def _check_puts(burst: Sequence[Item], futures: list[Future[Any]]) -> int:
    for (path, _), future in zip(burst, futures, strict=True):
        check_stat(path, 0, result_of(path, future))
    return len(futures)


def _check_steps(burst: Sequence[Step], futures: list[Future[Any]]) -> int:
    for (path, _, expected, version), future in zip(burst, futures, strict=True):
        if version is None:
            error = future.exception()
            if not isinstance(error, BadVersionError) or error.path != path:
                raise WrongAnswerError(
                    f"a put that expected version {expected} of {path} did not conflict: "
                    f"{error or future.result()!r}"
                )
        else:
            check_stat(path, version, result_of(path, future))
    return len(futures)


def _check_gets(burst: Sequence[Item], futures: list[Future[Any]]) -> int:
    for (path, value), future in zip(burst, futures, strict=True):
        found = result_of(path, future)
        if type(found) is not GetResult or found.value != value:
            raise WrongAnswerError(f"{path} should have the value {value!r:.60}, not {found!r}")
        check_stat(path, 0, found.stat)
    return len(futures)


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


def _store_on(backend: Any) -> MetadataStore:
    return MetadataStore(backend, BatchingConfig(), _OPERATION_TIMEOUT, "limits")
