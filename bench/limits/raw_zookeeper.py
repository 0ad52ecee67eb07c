"""ZooKeeper's ceilings: kazoo's own multi of 1,000, and its ``get_async``, both pipelined.

The multis are filled beforehand, but kazoo can encode them only when it sends them. Several numbers
in flight are tried.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import cycle, islice
from typing import Any, Final

from kazoo.client import KazooClient

from ...ops.operations import ABSENT
from ..target import Target
from ..workload import WrongAnswerError
from .ceilings import Ceiling
from .work import EXPECTATIONS, Figures, Item, Stopwatch, items, parts, work

__all__ = ["CEILINGS"]

_MULTI: Final = 1000
_SEEDED: Final = 10_000
_TIMEOUT: Final = 60.0


def _puts(in_flight: int, there: Target, count: int) -> Figures:
    """Measure creates of fresh nodes."""
    made = work(there.root, count)
    with _client(there) as client:
        warm_up, timed = (
            _Multis(client, there, found, ABSENT) for found in (made.warm_up, made.timed)
        )
        warm_up.commit(in_flight)
        with Stopwatch(there) as watch:
            timed.commit(in_flight)
        return watch.figures(count)


def _conditional_puts(in_flight: int, there: Target, count: int) -> Figures:
    """Measure creates of fresh nodes, then sets of the same nodes at their next versions."""
    made = work(there.root, max(1, count // 3))
    with _client(there) as client:
        warm_up, timed = (
            [_Multis(client, there, found, expected) for expected in EXPECTATIONS]
            for found in (made.warm_up, made.timed)
        )

        def commit(stages: Sequence[_Multis]) -> None:
            for multis in stages:
                multis.commit(in_flight)

        commit(warm_up)
        with Stopwatch(there) as watch:
            commit(timed)
        return watch.figures(len(made.timed) * len(timed))


def _gets(in_flight: int, there: Target, count: int) -> Figures:
    """Measure gets of existing nodes."""
    seeded = items(there.root, min(count, _SEEDED))
    asked = [(_path(there, path), value) for path, value in islice(cycle(seeded), count)]
    with _client(there) as client:
        _Multis(client, there, seeded, ABSENT).commit(1)

        def get(found: Sequence[Item]) -> None:
            under_way: deque[tuple[bytes, Any]] = deque()
            for path, value in found:
                under_way.append((value, client.get_async(path)))
                if len(under_way) == in_flight:
                    _check_get(*under_way.popleft())
            for value, result in under_way:
                _check_get(value, result)

        get(asked[: max(1, count // 8)])
        with Stopwatch(there) as watch:
            get(asked)
        return watch.figures(count)


class _Multis:
    """Filled multis, each with the answer that it must return."""

    def __init__(
        self, client: KazooClient, there: Target, found: Sequence[Item], expected: int
    ) -> None:
        self._ready: list[tuple[Any, list[str] | int]] = []
        for part in parts(found, _MULTI):
            multi = client.transaction()
            if expected == ABSENT:
                paths = [_path(there, path) for path, _ in part]
                for path, (_, value) in zip(paths, part, strict=True):
                    multi.create(path, value)
                self._ready.append((multi, paths))
            else:
                for path, value in part:
                    multi.set_data(_path(there, path), value, expected)
                self._ready.append((multi, expected + 1))

    def commit(self, in_flight: int) -> None:
        under_way: deque[tuple[Any, list[str] | int]] = deque()
        for multi, answer in self._ready:
            under_way.append((multi.commit_async(), answer))
            if len(under_way) == in_flight:
                _check_multi(*under_way.popleft())
        for result, answer in under_way:
            _check_multi(result, answer)


def _check_multi(result: Any, answer: list[str] | int) -> None:
    found = result.get(timeout=_TIMEOUT)
    fine = (
        all(stat.version == answer for stat in found)
        if isinstance(answer, int)
        else found == answer
    )
    if not fine:
        raise WrongAnswerError(f"a multi of a ceiling returned {found!r:.200}")


def _check_get(value: bytes, result: Any) -> None:
    found, stat = result.get(timeout=_TIMEOUT)
    if found != value or stat.version != 0:
        raise WrongAnswerError(f"a get of a ceiling returned {found!r:.60} at {stat}")


def _path(there: Target, path: str) -> str:
    return there.url.prefix() + path


@contextmanager
def _client(there: Target) -> Iterator[KazooClient]:
    client = KazooClient(hosts=",".join(there.url.addresses(2181)), timeout=_TIMEOUT)
    client.start(there.connect_timeout)
    try:
        client.ensure_path(_path(there, there.root))
        yield client
    finally:
        client.stop()
        client.close()


def _ways(measure: Callable[[int, Target, int], Figures], *in_flight: int) -> Ceiling:
    return {f"{number} in flight": partial(measure, number) for number in in_flight}


#: See :func:`.ceilings.ceilings`.
CEILINGS: Final[Mapping[str, Ceiling]] = {
    "puts": _ways(_puts, 1, 2, 3, 4, 8),
    "conditional puts": _ways(_conditional_puts, 1, 2, 3, 4, 8),
    "gets": _ways(_gets, 16, 64, 256, 1024, 4096),
}
