"""Removes a tree: nodes without children first, in multis of bounded size."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from typing import Final, Literal, NamedTuple, Protocol

from ....ops.errors import IndeterminateError, MetadataStoreError, NotEmptyError, NotFoundError
from ...backend import Answer, WriteRequest
from ...refusals import partly_removed
from ..wire.nodes import NULL
from .walk import TreeWalk

__all__ = ["Doomed", "Removal"]

# The deletes in one call of the writer, which sends them as several multis, one after the other.
_CALL: Final = 4000
# The limit of walks over the tree, if paths appear below the removed ones.
_WALKS: Final = 5


class _Writer(Protocol):
    def write(self, requests: Sequence[WriteRequest], deadline: float) -> Sequence[Answer]: ...


class Doomed(NamedTuple):
    """A node to remove: the request that removes it, and whether the node holds a value."""

    path: str
    held: bool
    kind: Literal["delete"] = "delete"
    value: None = None
    expected_version: None = None
    options: None = None
    session: None = None


class Removal:
    """Removes the nodes of a walk. For one thread, and for one tree.

    Args:
        writer: executes the deletes.
        walk: begins a walk over the tree.
        pause: waits, longer after more attempts, until a deadline at most.
        timeout: seconds for each call of the writer.
    """

    def __init__(
        self,
        writer: _Writer,
        walk: Callable[[], TreeWalk],
        pause: Callable[[int, float], None],
        timeout: float,
    ) -> None:
        self._writer = writer
        self._walk = walk
        self._pause = pause
        self._timeout = timeout
        self._removed = 0
        self._touched = False  # whether something was removed, or may have been
        # Paths with values whose delete got no answer. A path that is not met again was removed.
        self._unknown: set[str] = set()
        self._unsure: IndeterminateError | None = None

    def run(self, path: str) -> int:
        """Remove the tree at ``path``, and return the number of values removed.

        Raises:
            MetadataStoreError: a request failed, or a node may not be read or removed. If something
                was removed, or may have been, it is an IndeterminateError.
        """
        try:
            return self._run()
        except MetadataStoreError as error:
            raise partly_removed(self._removed, path, error, perhaps=self._touched) from error

    def _run(self) -> int:
        for attempt in range(_WALKS):
            if attempt:
                self._pause(attempt, math.inf)
            if self._pass():
                return self._removed
        if self._unsure is not None:
            raise self._unsure
        return self._removed

    def _pass(self) -> bool:
        """Walk over the tree and remove it; say whether no further walk is needed."""
        open_before, self._unknown = self._unknown, set()
        self._unsure = None
        done = True
        walk = self._walk()
        # A directory's turn comes after everything below it. Then the walk has reached a path that
        # is at least the directory's path and "0", which follows "/".
        parents: list[tuple[str, Doomed]] = []
        ready: list[Doomed] = []
        for page in walk.pages():
            for path, znode in page:
                open_before.discard(path)
                while parents and parents[0][0] <= path:
                    self._add(ready, heappop(parents)[1], walk)
                if path == "/":
                    continue
                node = Doomed(path, znode.size != NULL)
                if znode.children:
                    heappush(parents, (path + "0", node))
                else:
                    self._add(ready, node, walk)
            while len(ready) >= _CALL:
                done = self._remove(ready[:_CALL]) and done
                del ready[:_CALL]
        while parents:
            self._add(ready, heappop(parents)[1], walk)
        for start in range(0, len(ready), _CALL):
            done = self._remove(ready[start : start + _CALL]) and done
        self._removed += len(open_before)
        return done

    def _add(self, ready: list[Doomed], node: Doomed, walk: TreeWalk) -> None:
        if node.path not in walk.kept:
            ready.append(node)

    def _remove(self, nodes: Sequence[Doomed]) -> bool:
        """Remove nodes; say whether no further walk is needed."""
        answers: Sequence[Answer]
        try:
            answers = self._writer.write(nodes, time.monotonic() + self._timeout)
        except IndeterminateError as error:
            answers = [error] * len(nodes)
        done = True
        failure: MetadataStoreError | None = None
        for node, answer in zip(nodes, answers, strict=True):
            if answer is None:
                self._touched = True
                self._removed += node.held
            elif isinstance(answer, IndeterminateError):
                # The delete is no longer under way, so another walk shows its outcome.
                self._touched = True
                self._unsure = answer
                done = False
                if node.held:
                    self._unknown.add(node.path)
            elif isinstance(answer, NotEmptyError):
                done = False
            elif isinstance(answer, MetadataStoreError) and not isinstance(answer, NotFoundError):
                failure = failure or answer
        if failure is not None:
            raise failure
        return done
