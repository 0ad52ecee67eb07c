"""Caches: hits in one thread, and updates from eight, beside the puts that they stand on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from ...batching import MetadataStore
from ...coordination import MetadataCache
from ..target import Target
from ..workload import WrongAnswerError
from .ours import check_count, check_stat, result_of, seed
from .work import Figures, Stopwatch, items, parts

__all__ = ["THREADS", "cache_hits", "puts_of_few_threads", "updates"]

_T = TypeVar("_T")

#: The number of threads, each of which waits for its own writes.
THREADS: Final = 8

_PATHS: Final = 1000
_FIRST: Final = b"0"


def cache_hits(there: Target, count: int) -> Figures:
    """Measure gets of cached paths in one thread, and compare the values."""
    seeded = items(there.root, _PATHS)
    asked = [path for path, _ in seeded] * (count // _PATHS + 1)
    values = [value for _, value in seeded] * (count // _PATHS + 1)
    with there.open() as store:
        seed(store, seeded)
        with MetadataCache(store, there.root) as cache:
            get = cache.get
            while not all(isinstance(cache.get_if_cached(path), bytes) for path, _ in seeded):
                found = [get(path) for path, _ in seeded]
            before = store.metrics().operations
            with Stopwatch(there) as watch:
                found = [get(path) for path in asked]
            if store.metrics().operations != before:
                raise WrongAnswerError("reads of cached paths have reached the store")
    if found != values:
        raise WrongAnswerError("a cached value is not the one that was put")
    return watch.figures(len(asked))


def updates(there: Target, count: int) -> Figures:
    """Measure ``read_modify_update`` of 1,000 paths from eight threads. Each adds 1 to a value."""
    with there.open() as store, MetadataCache(store, there.root) as cache:
        paths = _seeded_paths(store, there.root)
        for path in paths:
            cache.get(path)

        def update(turns: Sequence[int]) -> None:
            for turn in turns:
                cache.read_modify_update(paths[turn % _PATHS], _add_one)

        with Stopwatch(there) as watch:
            _of_threads(update, parts(range(count), -(-count // THREADS)))
        found = [store.get(path).result() for path in paths]
    check_count(sum(int(result.value) for result in found if result is not None), count)
    return watch.figures(count)


def puts_of_few_threads(there: Target, count: int) -> Figures:
    """Measure the conditional puts that those updates make, from eight threads, without a cache."""
    with there.open() as store:
        paths = _seeded_paths(store, there.root)

        def put(own: Sequence[str]) -> None:
            for version in range(rounds):
                for path in own:
                    value = b"%d" % (version + 1)
                    stat = result_of(path, store.put(path, value, expected_version=version))
                    check_stat(path, version + 1, stat)

        rounds = max(1, count // _PATHS)
        with Stopwatch(there) as watch:
            _of_threads(put, parts(paths, _PATHS // THREADS))
    return watch.figures(rounds * _PATHS)


def _seeded_paths(store: MetadataStore, root: str) -> list[str]:
    paths = [path for path, _ in items(root, _PATHS)]
    seed(store, [(path, _FIRST) for path in paths])
    return paths


def _add_one(value: bytes) -> bytes:
    return b"%d" % (int(value) + 1)


def _of_threads(call: Callable[[Sequence[_T]], None], shares: Sequence[Sequence[_T]]) -> None:
    with ThreadPoolExecutor(THREADS) as pool:
        callers = [pool.submit(call, share) for share in shares]
    for ended in callers:
        ended.result()
