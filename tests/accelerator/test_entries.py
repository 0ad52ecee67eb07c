"""Entries and the loops over them: the compiled ones and those in Python agree."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures._base import CANCELLED_AND_NOTIFIED, FINISHED
from random import Random
from types import SimpleNamespace
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

import batchkeeper as bk
from batchkeeper.batching import lines as lines_module
from batchkeeper.batching.engine import engine_of
from batchkeeper.batching.entry import CANCELLED, ENDED, QUEUED, SENT, Entry, Epoch
from batchkeeper.batching.futures import FutureSink, OperationFuture
from batchkeeper.batching.lines import Lines
from batchkeeper.ops import (
    Check,
    Delete,
    Exists,
    Get,
    GetResult,
    MetadataStoreError,
    NotFoundError,
    Operation,
    Outcome,
    Put,
    Stat,
    Transaction,
)
from batchkeeper.ops.acceleration import PAIRS

from ..waiting import PATIENCE
from .twins import agree, assert_keeps_no_memory, outcome

LANES: Final = [
    SimpleNamespace(writes=writes, op_bytes=7, session=SimpleNamespace(number=3))
    for writes in (False, True)
]
WRONG_TIMES: Final = (0.0, -1.0, float("nan"), "x")
OPTIONS: Final = [
    None,
    None,
    Put("/a", b"", sequential=True).options,
    Put("/a", b"", ephemeral=True).options,
    Delete("/a", expected_revision=3).options,
    Transaction([Check("/é", 1), Put("/b", b"12"), Delete("/c")]).options,
    Transaction([Check("/owner", 1), Put("/a1", b"12", 0)]).options,
    Transaction([Check("/owner", 1), Put("/a2", b"12", 0)]).options,
    Transaction([Put("/owner", b"", 1), Check("/a3", 0)]).options,
]
ANSWERS: Final = [
    *(None, True, Stat("/a", 0, 1), NotFoundError("none")),
    GetResult(b"value", Stat("/a", 0, 1)),
]
EPOCHS: Final = [Epoch(), Epoch()]
ATTRIBUTES: Final = PAIRS["Entry"][0].__slots__  # type: ignore[attr-defined]
#: The attributes that a compiled entry has as numbers: they are 0 until they are set.
NUMBERS: Final = {"deadline", "state", "submitted", "waits_for", "weight"}


def made(dice: Random, number: int) -> Entry:
    """Return an entry in any state."""
    lane = LANES[dice.random() < 0.8]
    path = f"/{dice.choice('aaé')}{dice.randrange(number + 2)}"
    entry: Any = Entry(
        "put" if lane.writes else dice.choice(("get", "exists")),
        path,
        dice.choice((None, b"", b"12345", bytes(300))),
        dice.choice((None, -1, 5)),
        None,
        {"put": lane, "get": lane, "exists": lane},  # type: ignore[dict-item]
        None,  # type: ignore[arg-type]
        dice.choice((0.0, 1.5, 2)),
        3.0,
        dice.choice((None, None, None, "caller")),
    )
    entry.options = dice.choice(OPTIONS)
    if entry.options is not None:
        entry.key = entry.options.order_key(entry.path)
    entry.state = dice.choice((QUEUED, QUEUED, SENT, SENT, ENDED, CANCELLED))
    entry.answer = dice.choice(ANSWERS)
    entry.epoch = dice.choice(EPOCHS)
    return entry


def batch(
    seed: int, states: Sequence[int] = (), callers: bool = True, options: Sequence[Any] = ()
) -> list[Entry]:
    """Return up to 20 entries; with the same seed, equal ones."""
    dice = Random(seed)
    entries = [made(dice, number) for number in range(dice.randrange(20))]
    for entry in entries:
        if states:
            entry.state = dice.choice(states)
        if not callers:
            entry.caller = None
        if options:
            entry.options = dice.choice(options)
            entry.key = entry.options.order_key(entry.path)
    return entries


def attributes(entry: Any) -> dict[str, Any]:
    return {name: getattr(entry, name, "unset") for name in ATTRIBUTES}


def agree_on(name: str, seed: int, call: Callable[..., Any], **changes: Any) -> Any:
    """Let both twins work on equal entries; return what they have in common.

    ``call`` calls the function that it gets with the entries, and returns what is to be equal.
    """
    found = []
    for function in PAIRS[name]:
        entries = batch(seed, **changes)
        places = {id(entry): place for place, entry in enumerate(entries)}

        def shown(value: Any, places: dict[int, int] = places) -> Any:
            if isinstance(value, list | tuple | deque):
                return [shown(part) for part in value]
            if isinstance(value, dict):
                return {key: shown(part) for key, part in value.items()}
            return places.get(id(value), value)

        result = outcome(lambda *args, f=function: shown(call(f, *args)), entries)
        found.append((result, [attributes(entry) for entry in entries]))
    assert found[0] == found[1]
    return found[0][0]


seeds = st.integers(0, 2**32)


@given(
    st.sampled_from(["get", "put", "delete"]),
    st.sampled_from(["/a", "/é/中", "/" + "x" * 300]),
    st.sampled_from([None, b"", b"1234", 7]),
    st.sampled_from(OPTIONS),
    st.sampled_from([0.0, 5, 1e9, "x"]),
    st.sampled_from([1, 0.5, None]),
    st.booleans(),
)
def test_entries_are_alike(
    kind: Any, path: Any, value: Any, options: Any, now: Any, timeout: Any, named: bool
) -> None:
    """A new entry has the same attributes, or the same error names the problem."""
    lanes = {"get": LANES[0], "put": LANES[1]}
    found = []
    for cls in PAIRS["Entry"]:
        assert cls is not None
        try:
            entry = cls(
                kind,
                path,
                value,
                None,
                options,
                lanes,
                None,
                now,
                timeout,
                **({"caller": 5} if named else {}),
            )
        except Exception as error:
            found.append(type(error))
        else:
            found.append(attributes(entry))
    assert found[0] == found[1]


def test_an_entry_without_its_arguments() -> None:
    """It can be made without them, and has no attributes but numbers; a wrong number is refused."""
    for kind in PAIRS["Entry"]:
        assert kind is not None
        entry = kind.__new__(kind)  # type: ignore[call-overload]
        assert {name for name, value in attributes(entry).items() if value != "unset"} <= NUMBERS
        with pytest.raises(TypeError):
            kind("put", "/a")
        with pytest.raises(AttributeError):
            entry.other = 1


def entered(enter: Callable[..., Any], op: Operation, timeout: Any) -> Any:
    """Let an operation in, and return what it ends with, but for what no two stores share."""

    def bare(answer: Any) -> Any:
        if isinstance(answer, GetResult):
            return answer.value, bare(answer.stat)
        if isinstance(answer, list | tuple) and not isinstance(answer, Stat):
            return [*map(bare, answer)]
        return answer[:2] if isinstance(answer, Stat) else answer

    future = enter(op.kind, op.path, timeout, op.value, op.expected_version, op.options)
    assert type(future) is OperationFuture
    return bare(future.result(PATIENCE))


def test_operations_are_let_in_alike() -> None:
    """Each gets its future, or the same error: frequent ones, large ones, all with options."""
    ops = [
        *(Put("/a", b"1"), Get("/a"), Put("/a", bytes(5000), 0), Put("/b", b"", 7)),
        *(Put("/s/x-", b"", sequential=True), Delete("/a"), Get("/a"), Exists("/b")),
        Transaction([Check("/a", -1), Put("/c", b"")]),
    ]
    found: list[list[Any]] = []
    for number, entrance in enumerate(PAIRS["Entrance"]):
        assert entrance is not None
        with bk.open_store(f"memory://entrance-{number}") as store:
            engine = engine_of(store)
            enter = entrance(engine, FutureSink(engine), 3.0).enter
            found.append([outcome(entered, enter, op, 3) for op in ops])
            wrong = [("get",), ("other", "/a", 3), *(("get", "/a", no) for no in WRONG_TIMES)]
            found[-1] += [outcome(enter, *arguments)[0] for arguments in wrong]
    assert found[0] == found[1]


PARTS: Final = [
    *(
        "",
        "a",
        ".",
        "..",
        "...",
        ".batchkeeper",
        ".batchkeeper-",
        ".batchkeeper-x",
        ".batchkeepers",
    ),
    *("zookeeper", "zookeeper2", "é", "a\x7f", "a\x00", "~", " ", "\x1f", "\ud800", "\ue000"),
]


@given(st.lists(st.sampled_from(PARTS), max_size=3), st.sampled_from(["/", "/", "/", "", "a"]))
def test_paths_are_judged_alike(parts: list[str], start: str) -> None:
    """A path is returned, or refused for the same reason."""
    agree("check_path", start + "/".join(parts))


@pytest.mark.parametrize("path", [None, b"/a", 5, ["/a"]])
def test_what_is_no_path_is_refused_alike(path: Any) -> None:
    """Other types are refused as paths."""
    agree("check_path", path)


@given(seeds, st.sampled_from([QUEUED, SENT, ENDED, CANCELLED, 4, -1]))
def test_states_move_alike(seed: int, state: int) -> None:
    """Allowed moves are made, and others are refused."""
    for states in ((QUEUED,), (SENT,), (QUEUED, SENT)):
        agree_on("move", seed, lambda f, e: f(e, state), states=states)


@given(seeds, st.integers(1, 8), st.integers(0, 100))
def test_batches_are_taken_alike(seed: int, max_ops: int, max_bytes: int) -> None:
    """The same entries are taken, and the same are left."""

    def take(function: Any, entries: list[Entry]) -> Any:
        gathered = deque(entries)
        return function(gathered, max_ops, max_bytes), gathered

    agree_on("take_entries", seed, take, states=(QUEUED, QUEUED, ENDED, CANCELLED))


@given(seeds)
def test_batches_end_alike(seed: int) -> None:
    """Those that were sent have their answers; a wrong number of answers is an error."""

    def end(function: Any, entries: list[Entry]) -> Any:
        answers = [Stat("/a", number, number) for number in range(len(entries))]
        for wrong in ([*answers, None], answers[1:]):
            if entries:
                with pytest.raises(ValueError, match="argument 2"):
                    function(batch(seed), wrong)
        return function(entries, answers)

    agree_on("end_sent", seed, end, states=(SENT, SENT, QUEUED, ENDED, CANCELLED))
    agree_on("forget_contents", seed, lambda f, e: f(e))


def inside(lines: Lines) -> tuple[dict[str, Any], dict[Entry, int]]:
    """Return the tables of lines, as they are given to the functions that exist twice."""
    given: list[Any] = []

    def keep(at: Any, several: Any, _: Any) -> int:
        given.extend((at, several))
        return 0

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines_module, "enter_alone", keep)
        lines.enter_all([])
    return given[0], given[1]


@given(seeds)
def test_lines_are_entered_and_left_alike(seed: int) -> None:
    """The first that others hold up ends the entering; on the way out, all such are returned."""

    def state(lines: Lines) -> Any:
        at, several = inside(lines)
        lists = {
            path: [line.writing, [*line.waiting], [e for e in every if e in line.going]]
            if line not in every
            else line
            for path, line in at.items()
        }
        return lists, [[entry, waits] for entry, waits in several.items()]

    def enter(function: Any, entries: list[Entry]) -> Any:
        every[:] = entries
        lines = Lines()
        here = seed % 9
        for entry in entries[:here]:
            lines.enter(entry)
        for entry in entries[1 : here : 1 + seed % 2]:  # some are cancelled
            lines.leave(entry)
        return function(*inside(lines), entries[here:]), state(lines)

    def leave(function: Any, entries: list[Entry]) -> Any:
        every[:] = entries
        lines = Lines()
        for entry in entries:
            lines.enter(entry)
        return function(*inside(lines), entries[seed % 3 :: 2]), state(lines)

    every: list[Entry] = []
    for changes in ({}, {"options": OPTIONS[-3:]}):
        agree_on("enter_alone", seed, enter, **changes)
        agree_on("leave_alone", seed, leave, **changes)


class OwnPut(Put):
    """A put of a caller's own class."""


def part(dice: Random) -> Any:
    """Return a part of a transaction: most are frequent ones."""
    path = f"/{dice.choice('aé')}{dice.randrange(30)}"
    version = dice.choice((None, -1, 0, 5, 2**31 - 1))
    kind = dice.random()
    if kind < 0.4:
        return Put(path, b"v" * dice.choice((0, 1, 300)), version)
    if kind < 0.8:
        return Check(path, version or 0)
    return dice.choice(
        (
            Delete(path),
            Put(path, b"e", ephemeral=True),
            Put(path, b"r", expected_revision=3),
            Put(path, b"s", sequential=True),
            Check(path, expected_revision=3),
            OwnPut(path, b"own", 3),
            Get(path),
            None,
            path,
        )
    )


@given(seeds, st.integers(0, 12))
def test_parts_are_joined_alike(seed: int, count: int) -> None:
    """A transaction has the same fields, or is refused for the same reason."""
    dice = Random(seed)
    agree("join_parts", tuple(part(dice) for _ in range(count)))
    agree("join_parts", tuple(Check(f"/{dice.randrange(20)}", 0) for _ in range(count)))


@given(seeds, st.booleans())
def test_the_others_agree(seed: int, callers: bool) -> None:
    """Weights, epochs, waits, types of answers, futures, common attributes."""
    agree_on("total_weight", seed, lambda f, e: f(e))
    agree_on("deadlines", seed, lambda f, e: f(e))
    for name in ("path", "value", "weight"):
        agree_on("column", seed, lambda f, e, n=name: f(e, n))
    agree_on("assign_epoch", seed, lambda f, e: f(e, EPOCHS[0]))
    agree_on("waited", seed, lambda f, e: f(e, 7.25))
    agree_on("all_results", seed, lambda f, e: f(e, frozenset((bool, Stat, type(None)))))
    for state in (FINISHED, CANCELLED_AND_NOTIFIED):
        agree_on("end_unwatched", seed, lambda f, e, s=state: f(e, s), callers=callers)
    for name in ("lane", "epoch", "kind"):
        agree_on("common", seed, lambda f, e, n=name: f(e, n), callers=callers)


VERSION: Final = 1_000_000
OPS: Final = [
    *([Put("/a", b"1"), Put("/é", bytes(50), VERSION), Put("/b", bytes(300), -1)] * 2),
    *(Get("/a"), Get("/a" * 40), Put("/s", b"", sequential=True), Delete("/a"), Put("/c", b"")),
]


def entries_of(function: Any, dice: Random, *, sink: Any = None) -> Any:
    """Make entries of operations, and show them."""
    ops = [dice.choice(OPS) for _ in range(dice.randrange(1, 12))]
    if dice.random() < 0.4:
        ops = [dice.choice(OPS[:6]) for _ in ops]
    start = dice.randrange(len(ops))
    limits = dice.choice((10, 60, 10_000)), dice.choice((30, 100, 10_000)), dice.randrange(1, 900)
    lanes = {"put": LANES[1], "get": LANES[0]}
    plain = dice.choice(((Put, Get), (Put,), (str,)))
    times = dice.choice(((1.0, 2.5), (2, 1)))
    chosen = tuple(ops) if dice.random() < 0.3 else ops
    if plain == (str,) and dice.random() < 0.8:
        chosen = [getattr(op, "path", op) for op in ops]
    made = function(
        chosen, start, len(ops), plain, lanes, sink, *times, *limits, dice.random() < 0.5
    )
    return [attributes(entry) for entry in made]


@given(seeds)
def test_bulk_calls_make_the_same_entries(seed: int) -> None:
    """As far as the operations are alike, without options, and within the limits."""
    python, compiled = PAIRS["plain_entries"]
    found = outcome(entries_of, compiled, Random(seed))
    assert found == outcome(entries_of, python, Random(seed))
    assert found[0] is list


@given(seeds)
def test_bulk_calls_take_the_same_outcomes(seed: int) -> None:
    """Of the oldest that have ended, with the result or the error; or results up to an error."""

    def take(function: Any, entries: list[Entry]) -> Any:
        waiting = deque(entries)
        outcomes, *sizes = function(waiting, Outcome, MetadataStoreError, GetResult)
        assert {*map(type, outcomes)} <= {Outcome}
        return [tuple(each) for each in outcomes], sizes, waiting

    def take_bare(function: Any, entries: list[Entry]) -> Any:
        waiting = deque(entries)
        return [function(waiting, None, MetadataStoreError, GetResult), waiting]

    for how in (take, take_bare):
        agree_on("take_outcomes", seed, how, states=(ENDED, ENDED, ENDED, CANCELLED, SENT))


@pytest.mark.slow
def test_they_keep_no_memory() -> None:
    """Nothing stays behind, errors included."""

    def rounds() -> None:
        for seed in range(30):
            entries = batch(seed)
            for name, rest in (
                ("move", (SENT,)),
                ("total_weight", ()),
                ("deadlines", ()),
                ("column", ("kind",)),
                ("waited", (2.0,)),
                ("all_results", (frozenset((bool,)),)),
                ("end_unwatched", (FINISHED,)),
                ("common", ("epoch",)),
                ("common", ("nothing",)),
                ("assign_epoch", (EPOCHS[1],)),
                ("end_sent", ([None],)),
                ("forget_contents", ()),
            ):
                outcome(PAIRS[name][1], entries, *rest)  # type: ignore[arg-type]
            entries_of(PAIRS["plain_entries"][1], Random(seed))
            ended = deque(batch(seed, states=(ENDED,)))
            outcome(
                *(PAIRS["take_outcomes"][1], ended, Outcome, MetadataStoreError, GetResult)  # type: ignore[arg-type]
            )
            sent = batch(seed, states=(SENT,))
            outcome(PAIRS["end_sent"][1], sent, [Stat("/a", n, n) for n in range(len(sent))])  # type: ignore[arg-type]
            lines = Lines()
            for entry in entries[:5]:
                lines.enter(entry)
            for name in ("enter_alone", "leave_alone"):
                outcome(PAIRS[name][1], *inside(lines), entries)  # type: ignore[arg-type]
            dice = Random(seed)
            outcome(PAIRS["join_parts"][1], tuple(part(dice) for _ in range(seed % 5)))  # type: ignore[arg-type]
            outcome(PAIRS["take_entries"][1], deque(entries), 5, 40)  # type: ignore[arg-type]
            outcome(PAIRS["move"][1], [None], SENT)  # type: ignore[arg-type]
            outcome(PAIRS["check_path"][1], "/a")  # type: ignore[arg-type]
            outcome(PAIRS["check_path"][1], "/a\ud800")  # type: ignore[arg-type]
            outcome(PAIRS["Entry"][1], "other", "/a", None, None, None, {}, None, 1, 2)  # type: ignore[arg-type]

    shared = [*EPOCHS, *LANES, *ANSWERS[2:], *OPTIONS[2:], *OPS, Outcome, VERSION]
    for _ in range(200):  # Until Python's own lists of free objects are nearly full.
        rounds()
    before = [*map(sys.getrefcount, shared)]
    assert_keeps_no_memory(rounds, least=20)
    assert [*map(sys.getrefcount, shared)] == before


def test_an_entry_that_was_never_filled_is_an_attribute_error() -> None:
    """A compiled function looks at each attribute before it uses it."""
    calls: list[tuple[str, int | None, tuple[Any, ...]]] = [
        ("take_outcomes", ENDED, (Outcome, MetadataStoreError, GetResult)),
        ("end_unwatched", None, (FINISHED,)),
        ("all_results", None, ({Stat},)),
    ]
    for name, state, others in calls:
        entry = Entry.__new__(Entry)
        if state is not None:
            entry.state = state
        with pytest.raises(AttributeError):
            PAIRS[name][1](deque([entry]), *others)  # type: ignore[misc]
    for name in ("enter_alone", "leave_alone"):
        with pytest.raises(AttributeError):
            PAIRS[name][1]({}, {}, [Entry.__new__(Entry)])  # type: ignore[misc]
