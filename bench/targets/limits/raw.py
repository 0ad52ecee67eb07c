"""The raw speed of each store: a bare loop that replays prepared requests.

A ceiling knows all requests and answers in advance. It has no futures, no queue, no order to keep
and no callers. It is the code that a good engineer would write for exactly this one task. Each
store has the way that was the best of several, or as good as the best (2026-11-25, 2 cores, Linux):
calls of gRPC from threads, from one thread, on several channels; syncs by the write or after it;
single gets or many; from one multi or get in flight to thousands.

The module of each store, ``raw_NAME``, has ``opened``, which opens a :class:`Ceiling`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from importlib import import_module
from typing import Any, Final, Protocol

from batchkeeper.bench.target import Target
from batchkeeper.ops.operations import ABSENT

from ..rows import Figures
from ..work import EXPECTATIONS, Step, items, measured, parts, timed
from .puts import SEEDED, cycle
from .variants import Variant

#: The expectations of each path's puts, one after the other; ``None`` for unconditional puts, which
#: are creations where a ceiling has no other.
_STAGES: Final = {"puts": (None,), "creates": (ABSENT,), "conditional puts": EXPECTATIONS}


class Ceiling(Protocol):
    """A store's own client, and requests for it.

    Attributes:
        read_size: the most gets of one request.
    """

    read_size: int

    def write_size(self, expected: int | None) -> int:
        """Return the most puts of one request."""
        ...

    def write(self, found: Sequence[Step], expected: int | None) -> Any:
        """Return a request that puts values at paths of which all have the expected version."""
        ...

    def read(self, found: Sequence[Step]) -> Any:
        """Return a request that gets paths and compares their values."""
        ...

    def replay(self, requests: Sequence[Any]) -> None:
        """Send requests, and check the answers.

        Raises:
            WrongAnswerError: an answer was wrong.
        """
        ...


def ceiling(store: str, name: str) -> Variant:
    """Return a ceiling of a kind of store: ``raw puts``, ``raw gets`` and so on.

    It imports the store's module only now, so the packages of other stores may be missing.
    """
    module = import_module(f".raw_{store}", __package__)
    kind = name.removeprefix("raw ")
    if kind == "single puts":
        return Variant(name, partial(_puts, module, (None,), threads=1))
    if kind == "gets":
        return Variant(name, partial(_gets, module), grows=False)
    return Variant(name, partial(_puts, module, _STAGES[kind]))


def _puts(
    module: Any, stages: Sequence[int | None], there: Target, count: int, **options: int
) -> Figures:
    raw: Ceiling
    with module.opened(there, **options) as raw:

        def prepare(found: Sequence[Step]) -> list[list[Any]]:
            return [_writes(raw, found, expected) for expected in stages]

        def run(prepared: Sequence[Sequence[Any]]) -> None:
            # Requests in flight have no order, so all puts of one version end before the next.
            for stage in prepared:
                raw.replay(stage)

        return measured(there, count, run, prepare, len(stages))


def _gets(module: Any, there: Target, count: int) -> Figures:
    raw: Ceiling
    with module.opened(there) as raw:
        seeded = items(there.root, min(count, SEEDED))
        raw.replay(_writes(raw, seeded, ABSENT))
    with module.opened(there) as raw:
        warm_up, ready = (
            [raw.read(part) for part in parts(found, raw.read_size)]
            for found in (seeded, cycle(seeded, count))
        )
        return timed(there, raw.replay, warm_up, ready, count)


def _writes(raw: Ceiling, found: Sequence[Step], expected: int | None) -> list[Any]:
    return [raw.write(part, expected) for part in parts(found, raw.write_size(expected))]
