"""Inputs for ZooKeeper's compiled functions and their Python twins, and how to compare these."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from struct import pack
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from batchkeeper.ops import ABSENT
from batchkeeper.ops.acceleration import PAIRS, bind
from batchkeeper.ops.operations import PutOptions
from batchkeeper.stores.zookeeper.wire.jute import (
    CHECK,
    CREATE,
    DELETE,
    EPHEMERAL,
    GET_CHILDREN,
    GET_DATA,
    PARENT,
    PROBE,
    SEQUENTIAL,
    SET_DATA,
    ZNode,
)
from batchkeeper.stores.zookeeper.writes.groups import Group

MANY = settings(suppress_health_check=list(HealthCheck))

#: The arguments of one call, and what the call may change.
Call = tuple[tuple[Any, ...], tuple[object, ...]]


def outcome(function: Callable[..., Any], call: Call) -> object:
    """Return what a call does: its result and what it has changed, or its error."""
    arguments, changed = call
    try:
        result = function(*arguments)
    except Exception as error:
        return type(error), str(error)
    return result, types_of(result), [state_of(each) for each in changed]


def types_of(found: object) -> object:
    """Return the types of a result and of all in it: True equals 1, and a Stat its tuple."""
    if isinstance(found, tuple | list):
        return type(found), [types_of(each) for each in found]
    return type(found)


def state_of(changed: Any) -> object:
    if isinstance(changed, Group):
        state = {name: getattr(changed, name) for name in Group.__slots__}
        return {**state, "parts": b"".join(state["parts"])}
    if hasattr(changed, "__slots__"):
        return {name: getattr(changed, name) for name in changed.__slots__}
    return changed, types_of(changed)


def agree(name: str, make: Callable[[], Call]) -> None:
    """Check that both twins do the same. ``make`` gives equal arguments at each call."""
    python, compiled = PAIRS[name]
    assert compiled is not None
    assert outcome(compiled, make()) == outcome(python, make())


@contextmanager
def without_twin(name: str) -> Iterator[None]:
    """Let a compiled function fail if it passes its input to its twin."""

    def refuse(*arguments: object) -> None:
        raise AssertionError(f"{name} was left to Python")

    bind(**{name: refuse})
    try:
        yield
    finally:
        bind(**{name: PAIRS[name][0]})


@dataclass
class Request:
    """A write, as the engine passes it."""

    kind: str
    path: str
    value: bytes | None
    expected_version: Any
    options: Any


# Inputs.

INT32 = st.integers(-(2**31), 2**31 - 1) | st.sampled_from([-1, 0, 1])
INT64 = st.integers(-(2**63), 2**63 - 1) | st.sampled_from([-1, 0, 1, 2**32])
VALUES = st.binary(max_size=40)
# Few names, so that many paths are parents of others.
NAME = st.sampled_from(["a", "\u00e9"])
PATHS = st.lists(NAME, min_size=1, max_size=3).map(lambda names: "/" + "/".join(names))


def header(opcode: int, number: int | None = None) -> bytes:
    return pack("!i?i", opcode, False, 0) + (b"" if number is None else pack("!i", number))


@st.composite
def stats(draw: st.DrawFn) -> bytes:
    owner = draw(st.just(0) | INT64)
    longs = [draw(INT64) for _ in range(5)]
    ints = [draw(INT32) for _ in range(5)]
    return pack("!qqqqiiiqiiq", *longs[:4], *ints[:3], owner, *ints[3:], longs[4])


@st.composite
def read_entries(draw: st.DrawFn) -> tuple[tuple[int, bytes], str | None, bytes]:
    """A read, the caller's path, and its entry in the answer."""
    path = draw(PATHS)
    opcode = draw(st.sampled_from([GET_DATA, GET_DATA, GET_DATA, GET_CHILDREN]))
    asked = (opcode, path.encode())
    named = draw(st.sampled_from([path, None]))
    if draw(st.integers(0, 4)) == 0:
        return asked, named, header(-1, draw(INT32))
    if opcode == GET_CHILDREN:
        names = draw(st.lists(st.text("ab\u00e9", min_size=1, max_size=3), max_size=3, unique=True))
        raw = [name.encode() for name in names]
        body = b"".join(pack("!i", len(name)) + name for name in raw)
        return asked, named, header(opcode, len(names)) + body
    value = draw(st.none() | VALUES)
    body = header(opcode, -1 if value is None else len(value)) + (value or b"")
    return asked, named, body + draw(stats())


@st.composite
def op_results(draw: st.DrawFn) -> tuple[tuple[int, int, int], bytes]:
    """An op of a multi, and its result."""
    opcode = draw(
        st.sampled_from([CREATE, SET_DATA, DELETE, CHECK, EPHEMERAL, SEQUENTIAL, PROBE, PARENT])
    )
    raw = draw(PATHS).encode()
    wrong = draw(st.sampled_from([0] * 9 + [1]))  # The answer is to a path of another length.
    op = (opcode, draw(st.integers(0, 5)), len(raw) + wrong)
    if opcode == SET_DATA:
        return op, header(opcode) + draw(stats())
    if opcode in (DELETE, CHECK):
        return op, header(opcode)
    if opcode == SEQUENTIAL:
        suffix = draw(st.sampled_from([b"0000000012", b"-2147483648", b"-000000001"]))
        return op, header(CREATE, len(raw) + len(suffix)) + raw + suffix
    return op, header(CREATE, len(raw)) + raw


@st.composite
def damages(draw: st.DrawFn) -> Callable[[bytes], bytes]:
    """What may become of an answer on its way."""
    kind = draw(st.sampled_from(["none", "cut", "change", "number", "insert"]))
    place, byte = draw(st.integers(0, 10_000)), draw(st.binary(min_size=1, max_size=1))
    number = draw(st.sampled_from([-1, -2, 0, 1, 2**31 - 1, -(2**31), 4, 5, 13]) | INT32)

    def damage(answer: bytes) -> bytes:
        at = place % (len(answer) + 1)
        if kind == "cut":
            return answer[:at]
        if kind == "change":
            return answer[:at] + byte + answer[at + 1 :]
        if kind == "number":
            return answer[:at] + pack("!i", number) + answer[at + 4 :]
        return answer[:at] + byte + answer[at:] if kind == "insert" else answer

    return damage


def every_damage(answer: bytes) -> Iterator[bytes]:
    """Yield an answer that ends, or has another number, at each of its places in turn."""
    for at in range(len(answer)):
        yield answer[:at]
        for number in (-(2**31), -1, 0, 1, 5, len(answer) - at, len(answer), 2**31 - 1):
            yield answer[:at] + pack("!i", number) + answer[at + 4 :]


@st.composite
def requests_of_calls(draw: st.DrawFn, kinds: tuple[str, ...] = ("put",)) -> list[Request]:
    paths = draw(st.lists(PATHS, max_size=8, unique=True))
    versions = st.sampled_from([None, None, ABSENT, 0, 1, 2**31 - 1, 2**31, -(2**40), 2**70])
    options = st.sampled_from(
        [None, None, None, *(PutOptions(*flags) for flags in product([True, False], repeat=2))]
    )
    # Runs of plain ones, and of ephemeral ones, are rare otherwise.
    runs = draw(st.sampled_from(["any", "plain", "plain", "ephemeral"]))
    if runs == "plain":
        kinds, versions, options = ("put",), st.sampled_from([None, ABSENT, 0, 3]), st.none()
    elif runs == "ephemeral":
        kinds, versions = ("put",), st.sampled_from([None, ABSENT])
        options = st.sampled_from([None, *[PutOptions(ephemeral=True)] * 2, PutOptions(True, True)])
    return [
        Request(draw(st.sampled_from(kinds)), path, draw(VALUES), draw(versions), draw(options))
        for path in paths
    ]


@st.composite
def ops_of(draw: st.DrawFn, requests: list[Request]) -> list[tuple[int, int, int]]:
    """Ops of these requests, and rarely one of a request that is not there."""
    ops = draw(st.lists(op_results().map(lambda made: made[0]), max_size=8))
    if not requests or draw(st.integers(0, 9)) == 0:
        return ops
    return [(opcode, i % len(requests), path_bytes) for opcode, i, path_bytes in ops]


def znodes() -> st.SearchStrategy[ZNode]:
    return st.builds(
        ZNode, st.none() | VALUES, INT32, INT64, INT64, INT64, INT64, INT32, INT64, INT32
    )
