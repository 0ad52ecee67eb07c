"""Batches in parts: what an error of one part means for the operations of the others."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from batchkeeper.ops import StoreUnavailableError
from batchkeeper.stores.backend import Deadline, send_by
from batchkeeper.stores.etcd.wire.batches import errors_as_answers, in_parts


def requests(*seconds: float) -> list[Any]:
    now = time.monotonic()
    return [SimpleNamespace(path=f"/{n}", deadline=now + s) for n, s in enumerate(seconds)]


def test_one_deadline_ends_no_neighbour() -> None:
    """A write gives up at the earliest deadline of its batch: the others are sent again."""
    given = requests(-2.0, 60.0, -1.0, 60.0)
    deadline = Deadline.of([request.deadline for request in given])
    sent: list[list[str]] = []

    def call(some: Sequence[Any], until: float) -> list[str]:
        sent.append([request.path for request in some])
        if send_by(until) < time.monotonic():
            raise StoreUnavailableError("no server")
        return [f"done {request.path}" for request in some]

    late, first, later, second = errors_as_answers(call, given, deadline)
    assert [type(late), type(later)] == [StoreUnavailableError] * 2
    assert (first, second) == ("done /1", "done /3")
    assert sent == [["/0", "/1", "/2", "/3"], ["/1", "/3"]]
    # Before anything was applied, the engine ends the late ones, and each at its own time.
    with pytest.raises(StoreUnavailableError):
        in_parts(call, [given[:2], given[2:]], deadline)
