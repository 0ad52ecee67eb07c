"""Bulk work on every store: outcomes in order, and no exception for one operation."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import batchkeeper as bk

from ..waiting import result


def test_apply_gives_outcomes_in_order(store: bk.MetadataStore) -> None:
    """apply raises for no operation: each outcome has its own operation, result or error."""
    ops = [
        bk.Put("/a", b"1", bk.ABSENT),
        bk.Put("/a", b"2", bk.ABSENT),
        bk.Get("/a"),
        bk.Get("/missing"),
        bk.Exists("/a"),
        bk.Delete("/missing"),
        bk.Delete("/a", 0),
        bk.Get("/a"),
    ]
    outcomes = store.apply(ops)
    assert [outcome.op for outcome in outcomes] == ops
    assert all(outcome.op is op for outcome, op in zip(outcomes, ops, strict=True))
    assert [outcome.ok for outcome in outcomes] == [
        True, False, True, True, True, False, True, True,
    ]  # fmt: skip
    assert outcomes[0].result.version == 0
    assert isinstance(outcomes[1].error, bk.BadVersionError)
    assert outcomes[2].result.value == b"1"
    assert isinstance(outcomes[5].error, bk.NotFoundError)
    assert [outcome.result for outcome in outcomes[3:]] == [None, True, None, None, None]
    assert store.apply([]) == []


def test_apply_stream_starts_when_asked_and_keeps_order(store: bk.MetadataStore) -> None:
    """The stream takes nothing before its first next, and yields outcomes in the order given."""
    taken = 0

    def source() -> Iterator[bk.Operation]:
        nonlocal taken
        for number in range(2500):
            taken += 1
            yield bk.Put(f"/s/{number % 2000}", b"%d" % number)

    stream = store.apply_stream(source())
    assert taken == 0
    paths, versions = zip(
        *((outcome.op.path, outcome.result.version) for outcome in stream), strict=True
    )
    assert list(paths) == [f"/s/{number % 2000}" for number in range(2500)]
    assert list(versions) == [0] * 2000 + [1] * 500


def test_apply_stream_passes_on_its_sources_exception_last(store: bk.MetadataStore) -> None:
    """If the source fails, earlier operations end and are yielded, and then its error is raised."""

    def source() -> Iterator[bk.Operation]:
        for number in range(10):
            yield bk.Put(f"/{number}", b"")
        raise RuntimeError("the source is broken")

    outcomes = []
    with pytest.raises(RuntimeError, match="the source is broken"):
        outcomes.extend(store.apply_stream(source()))
    # list.extend keeps what it got before the exception.
    assert [outcome.ok for outcome in outcomes] == [True] * 10
    assert len(result(store.get_children("/"))) == 10


def test_apply_stream_can_be_closed_early(store: bk.MetadataStore) -> None:
    """After an early close, nothing more is taken, and yielded operations are in the store."""
    taken = []

    def source() -> Iterator[bk.Operation]:
        for number in range(1_000_000):
            taken.append(number)
            yield bk.Put(f"/{number}", b"")

    stream = store.apply_stream(source())
    yielded = [next(stream).op.path for _ in range(5)]
    stream.close()
    assert len(taken) < 1_000_000
    assert yielded == ["/0", "/1", "/2", "/3", "/4"]
    assert all(result(store.exists(path)) for path in yielded)
