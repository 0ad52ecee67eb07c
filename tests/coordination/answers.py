"""The answers that have come from a back end, below the faults of its store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from batchkeeper.stores import Answer, Backend, PassingBackend, ReadRequest, WriteRequest

__all__ = ["Answers"]


class Answers:
    """Counts the answers; pass it as the first wrapper of a store."""

    def __init__(self) -> None:
        self._seen: Counter[tuple[str, str]] = Counter()

    def __call__(self, backend: Backend) -> Backend:
        return _Noting(backend, self._seen)

    def count(self, kind: str, path: str) -> int:
        """Return how many operations of a kind were answered for a path."""
        return self._seen[kind, path]


class _Noting(PassingBackend):
    def __init__(self, backend: Backend, seen: Counter[tuple[str, str]]) -> None:
        super().__init__(backend)
        self._seen = seen

    def read(self, requests: Sequence[ReadRequest], deadline: float) -> Sequence[Answer]:
        answers = super().read(requests, deadline)
        self._seen.update((request.kind, request.path) for request in requests)
        return answers

    def write(self, requests: Sequence[WriteRequest], deadline: float) -> Sequence[Answer]:
        answers = super().write(requests, deadline)
        self._seen.update((request.kind, request.path) for request in requests)
        return answers
