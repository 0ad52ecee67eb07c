"""Removes everything below a path."""

from __future__ import annotations

from collections.abc import Sequence

from ..batching import MetadataStore
from ..ops.errors import MetadataStoreError, NotFoundError
from ..ops.operations import Delete, GetChildren, Operation
from ..ops.results import Outcome

__all__ = ["remove_below"]


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
