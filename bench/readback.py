"""Checks after a measurement that the store holds every acknowledged write, and nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain, islice
from typing import Final

from ..batching import MetadataStore
from ..ops.errors import MetadataStoreError, NotFoundError
from ..ops.operations import Delete, Get, GetChildren, Operation
from ..ops.results import Outcome
from .workload import Chain, check

__all__ = ["read_back", "remove_below"]

_AT_ONCE: Final = 5_000


def read_back(store: MetadataStore, chains: Iterable[Chain], root: str) -> int:
    """Compare the contents of a store with its acknowledged writes; return the number of paths.

    Pass another ``store`` than the writer's, opened afterwards, so that its answers do not come
    from the writer's memory.

    Raises:
        WrongAnswerError: a path is missing, not deleted, or wrong. The message names it.
        MetadataStoreError: a path could not be read.
    """
    # A ZooKeeper server may lag behind the one that acknowledged the writes. A write catches up.
    store.put(f"{root}/read-back", b"").result()
    count = 0
    everything = chain.from_iterable(chain.expected() for chain in chains)
    while part := list(islice(everything, _AT_ONCE)):
        for expected, outcome in zip(
            part, store.apply(Get(expected.path) for expected in part), strict=True
        ):
            check(expected, _result(outcome))
        count += len(part)
    return count


def remove_below(store: MetadataStore, root: str) -> None:
    """Delete ``root`` and everything below it.

    Raises:
        MetadataStoreError: a path could not be listed or deleted.
    """
    levels = [[root]]
    while levels[-1]:
        parents = levels[-1]
        found = store.apply(GetChildren(path) for path in parents)
        levels.append(
            [
                f"{path}/{name}"
                for path, outcome in zip(parents, found, strict=True)
                for name in _names(outcome)
            ]
        )
    for level in reversed(levels):
        deletes: Sequence[Operation] = [Delete(path) for path in level]
        for outcome in store.apply(deletes):
            if not isinstance(outcome.error, NotFoundError):
                _result(outcome)


def _names(outcome: Outcome) -> list[str]:
    names = _result(outcome)
    assert isinstance(names, list)
    return names


def _result(outcome: Outcome) -> object:
    if isinstance(outcome.error, MetadataStoreError):
        raise outcome.error
    return outcome.result
