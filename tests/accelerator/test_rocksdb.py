"""RocksDB's compiled functions and their Python twins, on the same inputs."""

from __future__ import annotations

import gc
import sys
from dataclasses import dataclass
from random import Random
from struct import pack
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import batchkeeper as bk
from batchkeeper.ops import ABSENT
from batchkeeper.ops.acceleration import PAIRS, bind
from batchkeeper.stores.rocksdb.value_format import EPHEMERAL, EPHEMERAL_HEADER, HEADER, PLAIN

from .twins import agree, assert_keeps_no_memory, outcome

MANY = settings(suppress_health_check=list(HealthCheck))


@dataclass
class Request:
    kind: str
    path: Any
    value: Any = None
    expected_version: Any = None


NUMBERS = st.sampled_from([0, 1, 255, 256, 2**31, 2**32, 2**62, 2**63 - 1]) | st.integers(
    0, 2**64 - 1
)
VERSIONS = st.sampled_from([0, 1, 2, 255, 2**31 - 2, 2**31 - 1, 2**31]) | st.integers(0, 2**32 - 1)
VALUES = st.binary(max_size=20)
PLAIN_RECORDS = st.builds(
    lambda version, a, b, c, value: HEADER.pack(PLAIN, version, a, b, c) + value,
    *(VERSIONS, NUMBERS, NUMBERS, NUMBERS, VALUES),
)
EPHEMERAL_RECORDS = st.builds(
    lambda version, a, b, c, value: EPHEMERAL_HEADER.pack(EPHEMERAL, version, a, b, c, 7) + value,
    *(VERSIONS, NUMBERS, NUMBERS, NUMBERS, VALUES),
)
RECORDS = PLAIN_RECORDS | PLAIN_RECORDS | st.none() | EPHEMERAL_RECORDS | st.binary(max_size=40)
READS = st.builds(
    Request, st.sampled_from(["get", "get", "get", "exists", "get_children"]), st.text(max_size=3)
)
WRITES = st.builds(
    Request,
    st.sampled_from(["put", "put", "put", "put", "delete"]),
    st.text(max_size=3),
    st.none() | VALUES | VALUES | st.just(bytearray(b"ab")),
    st.sampled_from([None, None, None, ABSENT, 0, 1, 2**31 - 1, 2**70, -5, True, 1.0]),
)


def read(twin: int, requests: Any, records: Any, owns: bool) -> Any:
    """Call a twin, Python's or the compiled one, on an iterator; tell what it has left of it."""
    left = iter(records)
    function = PAIRS["answer_reads"][twin]
    assert function is not None
    return function(requests, left, owns), list(left)


@MANY
@given(st.lists(READS, max_size=8), st.lists(RECORDS, min_size=8, max_size=9), st.booleans())
def test_answer_reads(requests: list[Request], records: list[Any], owns: bool) -> None:
    """Records become the same answers, and as many are taken."""
    expected = outcome(read, 0, requests, records, owns)
    assert outcome(read, 1, requests, records, owns) == expected


@MANY
@given(st.data())
def test_plain_puts(data: st.DataObject) -> None:
    """Puts become the same records and answers, and the same one is left to others."""
    requests = data.draw(st.lists(WRITES, max_size=8))
    headers = []
    for request in requests:
        header = data.draw(RECORDS)
        if data.draw(st.booleans()) and isinstance(request.expected_version, int):
            version = request.expected_version
            header = HEADER.pack(PLAIN, version, 5, 6, 7) if 0 <= version < 2**31 else None
        headers.append(header)
    start = data.draw(st.just(0) | st.integers(0, len(requests)))
    revision = data.draw(st.just(9) | NUMBERS)
    agree("plain_puts", requests, headers, start, revision, 1_700_000_000_000)


@pytest.mark.parametrize("place", range(HEADER.size + 1))
def test_damaged_headers(place: int) -> None:
    """A header that ends early, or has another byte somewhere, is read alike."""
    header = HEADER.pack(PLAIN, 1, 2, 3, 4)
    get, put = Request("get", "/a"), Request("put", "/a", b"v")
    for record in (header[:place], header[:place] + b"\xff" + header[place + 1 :]):
        agree("plain_puts", [put], [record], 0, 5, 6)
        expected = outcome(read, 0, [get], [record], False)
        assert outcome(read, 1, [get], [record], False) == expected


@pytest.mark.parametrize("name", ["answer_reads", "plain_puts"])
def test_arguments_of_other_types_do_no_harm(name: str) -> None:
    """Whatever the arguments are, a compiled function returns or raises."""
    _, compiled = PAIRS[name]
    assert compiled is not None
    dice = Random(13)
    odd = [None, 0, -1, 2**70, "a", b"ab", [], [0], [None], ((0,),), {}, object(), iter([b"a"])]
    odd += [[Request("put", "/a", b"")], [Request("get", 5)], [Request("put", None, 7, "x")], 1]
    for _ in range(20_000):
        try:
            compiled(*dice.choices(odd, k=dice.choice([2, 3, 3, 5, 5])))
        except Exception:
            continue


GETS = [Request("get", f"/{number}") for number in range(20)]
PUTS = [
    Request("put", f"/{number}", b"v" * number, expected)
    for number, expected in enumerate([None, ABSENT, 1000, None] * 5)
]
FOUND = [
    None if expected == ABSENT else HEADER.pack(PLAIN, expected or 3, 5, 6, 7) + b"value"
    for expected in (put.expected_version for put in PUTS)
]


def test_frequent_forms_are_not_left_to_python() -> None:
    """Plain gets and puts never reach the Python twin."""

    def refuse(*arguments: object) -> None:
        raise AssertionError("it was left to Python")

    names = ("answer_reads", "plain_puts")
    bind(**dict.fromkeys(names, refuse))
    try:
        answers = PAIRS["answer_reads"][1](GETS, iter(FOUND), False)  # type: ignore[misc]
        stats, records = PAIRS["plain_puts"][1](PUTS, FOUND, 0, 9, 8)  # type: ignore[misc]
    finally:
        bind(**{name: PAIRS[name][0] for name in names})
    assert answers[0] == (b"value", bk.Stat("/0", 3, 5, 6, 7))
    assert [type(answers[0]), type(answers[0].stat)] == [bk.GetResult, bk.Stat]
    assert answers[1] is None
    assert stats[2] == bk.Stat("/2", 1001, 9, 6, 8)
    assert records[1] == pack(">BIQQQ", 1, 0, 9, 8, 8) + b"v"
    assert len(stats) == len(records) == len(PUTS)


def test_memory_stays_level() -> None:
    """Calls leave nothing behind: frequent forms, refusals and errors."""
    reads, puts = PAIRS["answer_reads"][1], PAIRS["plain_puts"][1]
    shared = [PUTS[2], PUTS[2].path, PUTS[2].expected_version, GETS[0], GETS[0].path, FOUND[2]]
    shared += [bk.Stat, bk.GetResult]

    def rounds() -> None:
        for _ in range(40):
            outcome(reads, GETS, iter(FOUND), False)  # type: ignore[arg-type]
            outcome(reads, GETS, iter([b"?", *FOUND]), False)  # type: ignore[arg-type]
            outcome(reads, GETS, iter(FOUND[:3]), False)  # type: ignore[arg-type]
            outcome(reads, [*GETS[:2], None], iter(FOUND), False)  # type: ignore[arg-type]
            outcome(puts, PUTS, FOUND, 0, 2**40, 2**41)  # type: ignore[arg-type]
            outcome(puts, PUTS, FOUND[::-1], 0, 2**40, 2**41)  # type: ignore[arg-type]
            outcome(puts, [*PUTS[:2], None], FOUND, 0, 2**40, 2**41)  # type: ignore[arg-type]
            outcome(puts, PUTS, FOUND[:5], 0, 2**40, 2**41)  # type: ignore[arg-type]

    rounds()
    gc.collect()  # What other tests have left refers to the classes, too.
    counts = [sys.getrefcount(each) for each in shared]
    assert_keeps_no_memory(rounds, 40)
    assert [sys.getrefcount(each) for each in shared] == counts
