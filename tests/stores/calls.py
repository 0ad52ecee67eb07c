"""Calls of back ends, as the engine makes them, and their answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from batchkeeper.ops import Operation
from batchkeeper.stores import Backend

from ..proxy import Proxy
from ..waiting import PATIENCE, soon


def write(backend: Backend, *operations: Operation) -> list[Any]:
    return list(backend.write(operations, soon()))


def read(backend: Backend, *operations: Operation) -> list[Any]:
    return list(backend.read(operations, soon()))


def kinds(answers: Iterable[Any]) -> list[type]:
    """Return the type of each answer."""
    return [type(answer) for answer in answers]


def lose_the_answer(
    backend: Backend,
    line: Proxy,
    operations: Sequence[Operation],
    meanwhile: Callable[[], object] = lambda: None,
    within: float = PATIENCE,
) -> Any:
    """Let a server execute a write, lose its answer, cut the connection; return the result."""
    with ThreadPoolExecutor(1) as pool:
        line.swallowed.clear()
        line.swallows = True
        writing = pool.submit(backend.write, operations, soon(within))
        assert line.swallowed.wait(PATIENCE)
        meanwhile()
        line.restore()
        return writing.result(PATIENCE)
