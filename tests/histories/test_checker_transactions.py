"""The checker finds transactions that were done half, or refused without a reason."""

from __future__ import annotations

import math
from typing import Any

import pytest

from .checker import check, explain
from .history import Op

Times = tuple[float, float]


def part(path: str, kind: Any = "put", value: bytes | None = None, **fields: Any) -> Op:
    return Op("", kind, path, value=value, **fields)


def transaction(times: Times, *parts: Op, outcome: Any = "done", **fields: Any) -> Op:
    made = Op("t", "transaction", parts[0].path, parts=list(parts), **fields)
    for op in (made, *parts):
        op.chain, op.invoked = "t", times[0]
    made.end(outcome, times[1])
    return made


def put(path: str, times: Times, value: bytes, version: int, chain: str = "a") -> Op:
    return Op(
        chain,
        "put",
        path,
        value=value,
        version=version,
        revision=version,
        invoked=times[0],
        completed=times[1],
        outcome="done",
    )


def get(path: str, times: Times, found: bytes | None, version: int | None = None) -> Op:
    return Op(
        "b",
        "get",
        path,
        found=found,
        version=version,
        revision=version,
        invoked=times[0],
        completed=times[1],
        outcome="done",
    )


def checking(times: Times, held: bool, path: str, expected: int = 0, **fields: Any) -> Op:
    """Return a transaction that checks the version of ``/p``, and puts another path."""
    parts = part("/p", "check", expected=expected), part(path, value=path.encode(), **fields)
    return transaction(times, *parts) if held else refused(times, *parts, at=0)


def both(times: Times, values: tuple[bytes, bytes], version: int, **fields: Any) -> Op:
    p, q = (
        part(path, value=value, version=version, revision=version)
        for path, value in zip(("/p", "/q"), values, strict=True)
    )
    return transaction(times, p, q, **fields)


def refused(times: Times, *parts: Op, at: int, error: str = "BadVersionError") -> Op:
    parts[at].error = error
    return transaction(times, *parts, outcome="refused", refused_at=at)


def unknown(*parts: Op, **fields: Any) -> Op:
    return transaction((0, math.inf), *parts, outcome="unknown", **fields)


GOOD = {
    "both parts are there": [
        both((0, 1), (b"p", b"q"), 0),
        get("/p", (2, 3), b"p", 0),
        get("/q", (2, 3), b"q", 0),
    ],
    "a read beside it sees it before another does not": [
        both((0, 9), (b"p", b"q"), 0),
        get("/p", (3, 5), b"p", 0),
        get("/q", (2, 4), None),
    ],
    "an unknown one that happened": [
        unknown(part("/p", value=b"p"), part("/q", value=b"q")),
        get("/p", (2, 3), b"p", 0),
        get("/q", (2, 3), b"q", 0),
    ],
    "an unknown one that did not happen": [
        unknown(part("/p", value=b"p"), part("/q", value=b"q")),
        get("/p", (2, 3), None),
        get("/q", (2, 3), None),
    ],
    "a check that holds": [
        put("/p", (0, 1), b"p", 0),
        transaction(
            (2, 3),
            part("/p", "check", expected=0),
            part("/q", value=b"q", version=0, revision=0),
        ),
        get("/q", (4, 5), b"q", 0),
    ],
    "a check that does not hold": [
        put("/p", (0, 1), b"p", 0),
        refused((2, 3), part("/q", value=b"q"), part("/p", "check", expected=4), at=1),
        get("/q", (4, 5), None),
    ],
    "checks of one path change places like reads": [
        put("/p", (0, 1), b"p", 0),
        checking((2.0, 9), False, "/q"),
        checking((2.1, 9), True, "/r", version=0, revision=0),
        put("/p", (3, 4), b"other", 1),
    ],
    "the order of a store holds for each path of its transaction": [
        both((0.0, 9), (b"p", b"q"), 0),
        get("/q", (0.1, 9), b"q", 0),
    ],
}


@pytest.mark.parametrize("name", GOOD)
def test_a_history_in_order_is_accepted(name: str) -> None:
    """A history of atomic transactions has no violations."""
    assert check(GOOD[name]) == [], explain(check(GOOD[name]))


BAD = {
    "one that was done half": (
        "lost write, or a stale read",
        [both((0, 1), (b"p", b"q"), 0), get("/p", (2, 3), b"p", 0), get("/q", (2, 3), None)],
    ),
    "an unknown one that was done half": (
        "lost write, or a stale read",
        [
            unknown(part("/p", value=b"p"), part("/q", value=b"q")),
            get("/p", (2, 3), b"p", 0),
            get("/q", (4, 5), None),
        ],
    ),
    "one half of it seen before the other": (
        "lost write, or a stale read",
        [both((0, 9), (b"p", b"q"), 0), get("/p", (2, 3), b"p", 0), get("/q", (4, 5), None)],
    ),
    "one half of a refused one": (
        "false failure: it took effect",
        [
            refused((0, 1), part("/q", value=b"q"), part("/p", "check", expected=4), at=1),
            get("/q", (2, 3), b"q", 0),
        ],
    ),
    "a success although its check did not hold": (
        "a transaction that is not atomic, or a false success",
        [
            put("/p", (0, 1), b"p", 0),
            transaction(
                (2, 3),
                part("/p", "check", expected=1),
                part("/q", value=b"q", version=0, revision=0),
            ),
        ],
    ),
    "a refusal although everything held": (
        "false refusal of a transaction",
        [
            put("/p", (0, 1), b"p", 0),
            refused((2, 3), part("/q", value=b"q"), part("/p", "check", expected=0), at=1),
        ],
    ),
    "a refusal because of the wrong part": (
        "false refusal of a transaction",
        [
            put("/p", (0, 1), b"p", 0),
            refused(
                (2, 3),
                part("/p", value=b"x", expected=0),
                part("/q", "check", expected=4),
                at=0,
            ),
        ],
    ),
    "a refusal behind a part that did not hold either": (
        "false refusal of a transaction",
        [
            refused(
                (2, 3),
                part("/p", value=b"x", expected=7),
                part("/q", "check", expected=4),
                at=1,
            ),
        ],
    ),
    "a check that was overtaken by a later put of its store": (
        "a transaction that is not atomic, or a false success",
        [
            put("/p", (0, 1), b"p", 0),
            checking((2.0, 9), True, "/q", expected=1, version=0, revision=2),
            put("/p", (2.1, 9), b"later", 1, chain="t"),
        ],
    ),
    "a put that was overtaken by a later read of its store": (
        "lost write, or a stale read",
        [
            both((0.0, 9), (b"p", b"q"), 0),
            Op("t", "get", "/q", invoked=0.1, completed=9, outcome="done"),
        ],
    ),
    "one that was overtaken on one of its paths": (
        "a transaction that is not atomic, or a false success",
        [
            transaction(
                (0.0, 9),
                part("/p", value=b"p", version=0, revision=1),
                part("/q", value=b"q", version=1, revision=1),
            ),
            put("/q", (0.1, 9), b"later", 0, chain="t"),
        ],
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_history_that_cannot_be_is_rejected(name: str) -> None:
    """A transaction that is not atomic is found and named."""
    rule, ops = BAD[name]
    assert rule in [violation.rule for violation in check(ops)], explain(check(ops))
