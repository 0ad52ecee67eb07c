"""ZooKeeper's ceilings: kazoo's own multi of 1,000, and its ``get_async``, both pipelined.

The multis are filled beforehand, but kazoo can encode them only when it sends them. 4 multis, or
1,024 gets, are in flight.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from kazoo.client import KazooClient

from batchkeeper.bench.load.peers.clients import kazoo_client
from batchkeeper.bench.target import Target
from batchkeeper.bench.workload import WrongAnswerError
from batchkeeper.ops.operations import ABSENT

from ..work import Step

_MULTIS: Final = 4
_GETS: Final = 1024

_TIMEOUT: Final = 60.0


class _ZooKeeper:
    read_size = 1

    def __init__(self, client: KazooClient, prefix: str) -> None:
        self._client = client
        self._prefix = prefix

    def write_size(self, _expected: int | None) -> int:
        return 1000

    def write(self, found: Sequence[Step], expected: int | None) -> tuple[Any, Any, int]:
        multi = self._client.transaction()
        if expected in (None, ABSENT):
            paths = [self._prefix + step.path for step in found]
            for path, step in zip(paths, found, strict=True):
                multi.create(path, step.value)
            return multi.commit_async, lambda answers: answers == paths, _MULTIS
        for step in found:
            multi.set_data(self._prefix + step.path, step.value, expected)
        version = expected + 1

        def fine(stats: Sequence[Any]) -> bool:
            return all(stat.version == version for stat in stats)

        return multi.commit_async, fine, _MULTIS

    def read(self, found: Sequence[Step]) -> tuple[Any, Any, int]:
        ((path, value, _, _),) = found
        path, get = self._prefix + path, self._client.get_async
        return (
            lambda: get(path),
            lambda answer: answer[0] == value and answer[1].version == 0,
            _GETS,
        )

    def replay(self, requests: Sequence[tuple[Any, Any, int]]) -> None:
        under_way: deque[tuple[Any, Callable[[Any], bool]]] = deque()

        def check_oldest() -> None:
            result, fine = under_way.popleft()
            if not fine(found := result.get(timeout=_TIMEOUT)):
                raise WrongAnswerError(f"a request of a ceiling returned {found!r:.200}")

        for send, fine, in_flight in requests:
            under_way.append((send(), fine))
            if len(under_way) == in_flight:
                check_oldest()
        while under_way:
            check_oldest()


@contextmanager
def opened(there: Target) -> Iterator[_ZooKeeper]:
    """Yield a ceiling with a client of its own."""
    prefix = there.url.prefix()
    with kazoo_client(there.url) as client:
        client.ensure_path(prefix + there.root)
        yield _ZooKeeper(client, prefix)
