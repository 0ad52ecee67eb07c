"""ZooKeeper's compiled functions and their Python twins, on the same inputs."""

from __future__ import annotations

import gc
import random
import sys
from collections.abc import Callable
from struct import pack
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import batchkeeper as bk
from batchkeeper.ops import ABSENT
from batchkeeper.ops.acceleration import PAIRS
from batchkeeper.stores.zookeeper.reads.packets import Packet
from batchkeeper.stores.zookeeper.wire.jute import (
    ANYONE,
    CHECK,
    CREATE,
    END,
    EXISTS,
    GET_CHILDREN,
    GET_DATA,
    PARENT,
    SET_DATA,
    Done,
    ZNode,
)
from batchkeeper.stores.zookeeper.wire.nodes import Nodes
from batchkeeper.stores.zookeeper.writes.batches import Batch
from batchkeeper.stores.zookeeper.writes.forms import ONLY_EPHEMERAL
from batchkeeper.stores.zookeeper.writes.groups import Changes, Group

from .zookeeper_inputs import (
    INT32,
    INT64,
    MANY,
    PATHS,
    VALUES,
    Call,
    Request,
    agree,
    damages,
    every_damage,
    header,
    op_results,
    ops_of,
    read_entries,
    requests_of_calls,
    without_twin,
    znodes,
)

NAMES = (
    "add_puts",
    "add_reads",
    "answer_ops",
    "multi_read",
    "note_ops",
    "parse_multi",
    "parse_multi_read",
    "place_values",
)

# The twins agree.


@MANY
@given(st.lists(st.tuples(INT32 | INT64, PATHS.map(str.encode)), max_size=6))
def test_multi_read(reads: list[tuple[int, bytes]]) -> None:
    """Multi-reads are encoded alike; what has no encoding raises the same error."""
    agree("multi_read", lambda: ((reads,), ()))


@MANY
@given(st.lists(read_entries(), max_size=6), damages(), st.booleans(), st.integers(0, 3))
def test_parse_multi_read(
    entries: list[tuple[tuple[int, bytes], str | None, bytes]],
    damage: Callable[[bytes], bytes],
    named: bool,
    offset: int,
) -> None:
    """Answers to multi-reads are read alike, damaged ones, too."""
    reads = [read for read, _, _ in entries]
    paths = [path for _, path, _ in entries] if named else []
    body = damage(b"".join(entry for *_, entry in entries) + END)
    agree("parse_multi_read", lambda: ((reads, paths, b"x" * offset + body, offset), ()))


@MANY
@given(st.lists(op_results(), max_size=6), damages(), st.booleans())
def test_parse_multi(
    results: list[tuple[tuple[int, int, int], bytes]],
    damage: Callable[[bytes], bytes],
    whole: bool,
) -> None:
    """Answers to multis are read alike, damaged ones, too."""
    ops = [op for op, _ in results]
    body = damage(b"".join(result for _, result in results) + END)
    agree("parse_multi", lambda: ((tuple(ops) if whole else ops, body, 0), ()))


@MANY
@given(st.lists(op_results(), max_size=6), st.lists(INT32, max_size=6), damages())
def test_refused_multis(
    results: list[tuple[tuple[int, int, int], bytes]],
    codes: list[int],
    damage: Callable[[bytes], bytes],
) -> None:
    """Refusals of multis are read alike, with a code for each step or not."""
    ops = [op for op, _ in results]
    body = damage(b"".join(header(-1, code) for code in codes) + END)
    agree("parse_multi", lambda: ((ops, body, 0), ()))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["parse_multi", "parse_multi_read"])
def test_every_damage(name: str) -> None:
    """Wherever an answer is damaged, its length fields included, both say the same."""
    (*before, answer, offset), _ = FREQUENT[name]()
    assert offset == 0
    for damaged in every_damage(answer):
        agree(name, lambda damaged=damaged: ((*before, damaged, offset), ()))


@MANY
@given(st.data())
def test_add_puts(data: st.DataObject) -> None:
    """Puts become the same ops, and leave the same to the planner."""
    requests = data.draw(requests_of_calls(("put", "put", "put", "put", "delete")))
    paths = [request.path for request in requests]
    sort = data.draw(st.booleans())
    places = sorted(range(len(paths)), key=lambda i: len(paths[i]) if sort else -i)
    parents = {path[: path.rindex("/")] for path in paths}
    some = st.sets(st.sampled_from([*parents, *paths]), max_size=3) if paths else st.just(set())
    young = data.draw(st.just(parents) | st.just(parents | {*paths}) | some)
    old, deleted, fleeting, made = (data.draw(st.just(set()) | some) for _ in range(4))
    looks = {i: data.draw(st.none() | znodes()) for i in range(len(requests)) if i % 3 == 0}
    seen = data.draw(st.sampled_from([{}, looks]))
    start = data.draw(st.just(0) | st.integers(0, len(places)))
    earlier = data.draw(st.lists(st.sampled_from([CREATE, SET_DATA, CHECK, PARENT]), max_size=2))
    room = data.draw(st.sampled_from([1 << 20, 1 << 20, 200, 0]))
    limit = data.draw(st.sampled_from([1000, 1000, 3, 0]))

    def make() -> Call:
        batch = Batch([], "", Nodes())
        batch.requests, batch.paths, batch.seen = requests, paths, dict(seen)
        batch.session = 7
        changes = Changes({*deleted})
        changes.fleeting, changes.made = {*fleeting}, {*made}
        group = Group()
        group.ops = [(opcode, 0, 2) for opcode in earlier] if requests else []
        generations = (dict.fromkeys(young, 1), dict.fromkeys(old, 2))
        arguments = (group, batch, changes, generations, places, start, ANYONE, room, limit)
        return arguments, (group, changes, generations)

    agree("add_puts", make)


@MANY
@given(st.data())
def test_answer_ops(data: st.DataObject) -> None:
    """Steps get the same answers, and the same ones are left."""
    requests = data.draw(requests_of_calls())
    ops = data.draw(ops_of(requests))
    sets = sum(opcode == SET_DATA for opcode, *_ in ops)
    owners = st.just(0) | INT64
    update = st.tuples(st.just(SET_DATA), INT64, INT64, INT64, INT64, INT32, owners)
    updates = data.draw(st.lists(update, min_size=max(0, sets - 1), max_size=sets))
    zxid, when = data.draw(st.sampled_from([(None, None), (2**40, 1_700_000_000_000)]))

    def make() -> Call:
        answers: list[object] = ["undecided"] * len(requests)
        return (ops, requests, answers, updates, zxid, when), (answers,)

    agree("answer_ops", make)


@MANY
@given(st.data())
def test_note_ops(data: st.DataObject) -> None:
    """The memory of nodes learns the same."""
    requests = data.draw(requests_of_calls())
    for request in requests:
        request.value = data.draw(st.none() | VALUES)
    paths = [request.path for request in requests]
    ops = data.draw(ops_of(requests))

    def make() -> Call:
        generations = (dict.fromkeys(paths[::2], 5), dict.fromkeys(paths[1:], 6))
        return (ops, requests, paths, generations), (generations,)

    agree("note_ops", make)


@MANY
@given(st.data())
def test_add_reads(data: st.DataObject) -> None:
    """Reads come into the same packets."""
    paths = data.draw(st.lists(PATHS, max_size=8))
    kinds = st.sampled_from([GET_DATA, GET_DATA, GET_CHILDREN, EXISTS])
    opcodes = [data.draw(kinds) for _ in paths]
    sizes = st.sampled_from([-1, 0, 100, 943, 944, 1 << 19, 1 << 20])
    known = {path: data.draw(sizes) for path in paths[::2]}
    former = {path: data.draw(sizes) for path in paths[1::3]}
    waiting = data.draw(st.permutations(range(len(paths))))
    alone = {i for i in waiting if data.draw(st.integers(0, 5)) == 0}
    start = data.draw(st.just(0) | st.integers(0, len(paths)))
    guess, longest = data.draw(st.sampled_from([(181, 1000), (2000, 1000), (181, 4)]))
    usual = data.draw(st.sampled_from([1 << 20, 60]))
    bytes_room = data.draw(st.sampled_from([4 << 20, 400, 0]))
    unknown_room = data.draw(st.sampled_from([16, 1]))
    before = data.draw(st.sampled_from([0, 0, 254, 256]))

    def make() -> Call:
        packet: Packet[int] = Packet()
        packet.reads = [0] * before
        generations = ({**known}, {**former})
        arguments = (packet, opcodes, paths, waiting, start, alone, generations)
        rooms = (guess, longest, usual, bytes_room, unknown_room)
        return (*arguments, *rooms), (packet, generations)

    agree("add_reads", make)


@MANY
@given(st.data())
def test_place_values(data: st.DataObject) -> None:
    """Results of gets come into the same places, and the same sizes are noted."""
    paths = data.draw(st.lists(PATHS, max_size=8))
    reads = data.draw(st.lists(st.integers(-2, len(paths)), max_size=8))
    stat = bk.Stat("/", 0, 0, 0, 0, ephemeral=False, owned=False)
    values = st.sampled_from([b"", b"four"]).map(lambda value: bk.GetResult(value, stat))
    entries = [data.draw(values | values | znodes() | st.just(-101)) for _ in reads]
    entries = entries[: data.draw(st.sampled_from([8, 8, 8, 1]))]

    def make() -> Call:
        endings: list[object] = [None] * len(paths)
        sizes = dict.fromkeys(paths[::2], 7)
        return (reads, entries, paths, endings, sizes), (endings, sizes)

    agree("place_values", make)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_arguments_of_other_types_do_no_harm(name: str) -> None:
    """Whatever the arguments are, a compiled function returns or raises."""
    _, compiled = PAIRS[name]
    assert compiled is not None
    chosen = random.Random(13)
    odd: list[object] = [
        None,
        0,
        -1,
        2**70,
        "a",
        b"ab",
        [],
        [0],
        [None],
        ((0,),),
        {},
        {1},
        object(),
    ]
    odd += [
        [(1, b"a")],
        [("a", 1, 2)],
        ({}, {}),
        ({"a": "b"}, {}),
        [b"a"],
        ["/a"],
        Group(),
        1 << 20,
    ]
    for _ in range(20_000):
        count = chosen.choice([1, 3, 4, 6, 9, 12])
        try:
            compiled(*chosen.choices(odd, k=count))
        except Exception:
            continue


# Frequent cases are compiled.

PUTS = [
    Request("put", f"/top/{i}", b"v" * i, expected, options)
    for i, (expected, options) in enumerate(
        [*((expected, None) for expected in (None, ABSENT, 1000, 0)), (None, ONLY_EPHEMERAL)] * 5
    )
]
STAT = pack("!qqqqiiiqiiq", 5, 6, 7, 8, 9, 0, 0, 0, 4, 0, 5)
GETS = [
    (GET_DATA, b"/top/1"),
    (GET_DATA, b"/top/2"),
    (GET_DATA, b"/top/3"),
    (GET_CHILDREN, b"/top"),
]
GOT = b"".join(
    [
        *(header(GET_DATA, 4), b"abcd", STAT),
        *(header(GET_DATA, -1), STAT),
        header(-1, -101),
        *(header(GET_CHILDREN, 2), pack("!i3s", 3, b"ab1"), pack("!i1s", 1, b"c")),
        END,
    ]
)


def plan() -> Call:
    batch = Batch([], "", Nodes())
    batch.requests, batch.paths = PUTS, [put.path for put in PUTS]
    batch.seen = {3: ZNode(None, 1, 1, 2, 3, 4, 5, 0, 0)}
    changes, group = Changes(set()), Group()
    generations = ({"/top": -1, "/top/0": 4}, {"/top/5": 4})
    places = list(range(len(PUTS)))
    arguments = (group, batch, changes, generations, places, 0, ANYONE, 1 << 20, 1000)
    return arguments, (group, changes)


def packing() -> Call:
    packet: Packet[int] = Packet()
    paths = [put.path for put in PUTS]
    opcodes, waiting = [GET_DATA] * len(paths), list(range(len(paths)))
    generations = (dict.fromkeys(paths[::2], 100), {})
    arguments = (packet, opcodes, paths, waiting, 0, set(), generations)
    return (*arguments, 181, 1000, 1 << 20, 1 << 22, 1000), (packet,)


def planned() -> tuple[list[tuple[int, int, int]], bytes]:
    """Return the ops of a plan, and the answer to them."""
    call, _ = plan()
    assert PAIRS["add_puts"][0](*call) == len(PUTS)
    ops = call[0].ops
    answer = b""
    for opcode, i, path_bytes in ops:
        path = PUTS[i].path.encode()
        made = header(SET_DATA) + STAT, header(CREATE, path_bytes) + path
        answer += made[opcode != SET_DATA]
    return ops, answer + END


def answering() -> Call:
    ops, answer = planned()
    updates = PAIRS["parse_multi"][0](ops, answer, 0).updates
    answers: list[object] = [None] * len(PUTS)
    return (ops, PUTS, answers, updates, 4, 5), (answers,)


def noting() -> Call:
    generations: tuple[dict[str, int], dict[str, int]] = ({}, {})
    ops, _ = planned()
    return (ops, PUTS, [put.path for put in PUTS], generations), (generations,)


def placing() -> Call:
    stat = bk.Stat("/1", 9, 6, 7, 8, ephemeral=False, owned=False)
    endings: list[object] = [None, None]
    sizes: dict[str, int] = {}
    values = [bk.GetResult(b"abcd", stat), bk.GetResult(b"", stat)]
    return ([1, 0], values, ["/1", "/2"], endings, sizes), (endings, sizes)


FREQUENT: dict[str, Callable[[], Call]] = {
    "add_puts": plan,
    "add_reads": packing,
    "answer_ops": answering,
    "multi_read": lambda: ((GETS,), ()),
    "note_ops": noting,
    "parse_multi": lambda: ((*planned(), 0), ()),
    "parse_multi_read": lambda: ((GETS, ["/1", "/2", "/3", "/"], GOT, 0), ()),
    "place_values": placing,
}


@pytest.mark.parametrize("name", NAMES)
def test_frequent_forms_are_not_left_to_python(name: str) -> None:
    """Plain puts and gets never reach the Python twin, and give what it gives."""
    make = FREQUENT[name]
    agree(name, make)
    with without_twin(name):
        _, compiled = PAIRS[name]
        assert compiled is not None
        compiled(*make()[0])


def test_results_have_their_types() -> None:
    """A get has a GetResult, a node of another kind a ZNode, and a multi's answer is a Done."""
    results = PAIRS["parse_multi_read"][1]
    multi = PAIRS["parse_multi"][1]
    assert results is not None and multi is not None  # noqa: PT018
    got, null, code, names = results(GETS, ["/1", "/2", "/3", "/"], GOT, 0)
    stat = bk.Stat("/1", 9, 6, 7, 8, ephemeral=False, owned=False)
    assert got == (b"abcd", stat)
    assert (type(got), type(got.stat)) == (bk.GetResult, bk.Stat)
    assert hash(got) == hash(bk.GetResult(b"abcd", stat))
    assert (type(null), null.value, code) == (ZNode, None, -101)
    assert names == ["ab1", "c"]
    assert type(multi(*planned(), 0)) is Done


# Memory.


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_memory_stays_level(name: str) -> None:
    """Calls leave nothing behind: frequent forms, refusals and damaged answers."""
    _, compiled = PAIRS[name]
    assert compiled is not None
    chosen = random.Random(7)

    def calls() -> list[tuple[Any, ...]]:
        arguments = FREQUENT[name]()[0]
        made = [arguments]
        for at, argument in enumerate(arguments):
            if isinstance(argument, bytes):
                cut = argument[: chosen.randrange(len(argument))]
                made.append((*arguments[:at], cut, *arguments[at + 1 :]))
            if isinstance(argument, list) and argument:
                made.append((*arguments[:at], argument[:-1], *arguments[at + 1 :]))
                made.append((*arguments[:at], [*argument[:-1], None], *arguments[at + 1 :]))
        return made

    def run(rounds: int) -> int:
        for _ in range(rounds):
            for arguments in calls():
                try:
                    compiled(*arguments)
                except Exception:
                    continue
        gc.collect()
        return sys.getallocatedblocks()

    put = PUTS[2]
    shared: list[object] = [put, put.path, put.value, put.expected_version, PUTS[4].options]
    shared += [GETS[0], bk.Stat, bk.GetResult, ZNode, Done]
    run(50)
    counts = [sys.getrefcount(each) for each in shared]
    before = run(1)
    after = run(300)
    assert after - before < 100
    assert [sys.getrefcount(each) for each in shared] == counts
