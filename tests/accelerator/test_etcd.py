"""Etcd's codecs: the compiled ones and those in Python agree on every input."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import batchkeeper as bk
from batchkeeper.ops import acceleration
from batchkeeper.ops.operations import (
    ABSENT,
    Check,
    Delete,
    Exists,
    Get,
    GetChildren,
    Put,
    Transaction,
)
from batchkeeper.stores.etcd.wire.protos import messages
from batchkeeper.stores.etcd.writes.hot import Response
from batchkeeper.stores.etcd.writes.pending import OtherForm

from .twins import agree, assert_keeps_no_memory

VERSIONS = (None, ABSENT, 0, 1, 126, 127, 128, 16_382, 2**31 - 1)
LENGTHS = (0, 1, 90, 126, 127, 128, 4000, 16_383, 16_384)
NUMBERS = (0, 1, 5, 127, 128, 2**31, 2**62, 2**63 - 1, -1, -(2**63))
PREFIXES = ("", "/p", "/prä", "/p" * 70)
OWNED = 7587890123456789
TWINS = [name for name in acceleration.PAIRS if name.startswith("etcd_")]

# Requests


def write(dice: Random) -> Any:
    """Return a write: most are frequent ones."""
    path = "/" + dice.choice(("a", "é", "日本", "x" * 130)) * dice.choice((1, 2, 41))
    expected = dice.choice(VERSIONS)
    kind = dice.random()
    if kind < 0.7:
        put = Put(path, b"v" * dice.choice(LENGTHS), expected)
        return OtherForm(put) if kind < 0.1 else put
    if kind < 0.85:
        return Delete(path, None if expected == ABSENT else expected)
    return Transaction([Check(path, expected or 0), Put("/b", b"", 3)])


def read(dice: Random) -> Any:
    """Return a read: most are gets."""
    path = "/" + dice.choice(("a", "é", "x" * 126)) * dice.choice((1, 2))
    return dice.choice((Get, Get, Get, Exists, GetChildren))(path)


def odd(request: Any, dice: Random) -> Any:
    """Return a request with an attribute that the engine would not pass, or without it."""
    names = ("kind", "path", "value", "expected_version", "options")
    fields = {name: getattr(request, name, None) for name in names}
    strange = (None, "", "ü", "\ud800", b"", bytearray(b"x"), 0, -2, True, 2**63, 2**70, 1.0, "put")
    name = dice.choice(names)
    if dice.random() < 0.3:
        del fields[name]
    else:
        fields[name] = dice.choice(strange)
    return SimpleNamespace(**fields)


@given(st.randoms(use_true_random=False), st.sampled_from(PREFIXES), st.integers(0, 40))
def test_both_send_the_same_bytes(dice: Random, prefix: str, count: int) -> None:
    """Requests of all kinds become the same bytes."""
    agree("etcd_writes", [write(dice) for _ in range(count)], prefix)
    puts = [put for put in (write(dice) for _ in range(count)) if put.kind == "put"]
    agree("etcd_changes", puts, prefix)
    agree("etcd_changes", puts, prefix, dice.choice((b"", b"\x18\x05", b"x" * 200)))
    expecting = [put for put in puts if put.expected_version is not None]
    checks = [Check(put.path, put.expected_version) for put in expecting if dice.random() < 0.5]
    agree("etcd_compares", [*expecting, *checks], prefix)
    agree("etcd_lease_compares", puts, prefix)
    agree("etcd_reads", tuple(read(dice) for _ in range(count)), prefix)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("twin", "make"),
    [
        ("etcd_writes", write),
        ("etcd_compares", write),
        ("etcd_lease_compares", write),
        ("etcd_changes", write),
        ("etcd_reads", read),
    ],
)
def test_both_refuse_the_same_requests(twin: str, make: Any) -> None:
    """An invalid request becomes the same bytes or the same error."""
    results = set()
    for seed in range(2000):
        dice = Random(seed)
        requests = [make(dice), odd(make(dice), dice), make(dice)]
        results.add(str(agree(twin, requests, dice.choice(PREFIXES))[0]))
    assert len(results) > 3


@pytest.mark.parametrize(
    "arguments",
    [(), (1,), ([], 1), (None, ""), ([], ""), ([], "", 1), ([None], ""), ([], "\ud800")],
    ids=repr,
)
@pytest.mark.parametrize("twin", TWINS)
def test_wrong_arguments_are_an_error(twin: str, arguments: Any) -> None:
    """A call that no caller makes raises an error or has a result, and nothing worse happens."""
    _, compiled = acceleration.PAIRS[twin]
    assert compiled is not None
    try:
        compiled(*arguments)
    except Exception as error:
        assert not isinstance(error, SystemError)  # noqa: PT017 - a result is fine, too


# Responses


def header(dice: Random) -> dict[str, int]:
    """Return a header as etcd sends it."""
    made = {"cluster_id": 2**64 - 1, "member_id": 2**63, "raft_term": 3}
    return {**made, "revision": dice.choice((*NUMBERS, 1, 77, 123_456_789, 2**40, 2**40))}


def key_value(dice: Random, lengths: Sequence[int]) -> dict[str, Any]:
    """Return a key's content."""
    return {
        "key": b"k" * dice.choice(lengths),
        "value": b"v" * dice.choice(lengths),
        "create_revision": 2**40,
        "mod_revision": dice.choice(NUMBERS),
        "version": dice.choice((*NUMBERS, *range(1, 10))),
        "lease": dice.choice((*[0] * 12, OWNED, 5, -5)),
    }


def result(dice: Random, lengths: Sequence[int], *, of: Any = None, deep: int = 0) -> Any:
    """Return a result of a transaction: with ``of`` that of a request, otherwise any."""
    which = dice.choice(("range", "put", "delete", "txn"))
    if isinstance(of, Get | Exists | GetChildren):
        which = "range"
    elif of is not None:
        put = isinstance(of, Put | OtherForm)
        # Puts that expect a version have transactions, except in joint groups.
        joint = dice.random() < 0.4
        which = "put" if put and (of.expected_version is None or joint) else "txn"
    if which == "range":
        some = [key_value(dice, lengths) for _ in range(dice.choice((0, 1, 1, 1, 2)))]
        found = {
            "header": header(dice),
            "kvs": some,
            "count": len(some),
            "more": dice.random() < 0.3,
        }
        return messages.ResponseOp(response_range=found)
    if which == "put":
        before = {"prev_kv": key_value(dice, lengths)} if dice.random() < 0.8 else {}
        return messages.ResponseOp(response_put={"header": header(dice), **before})
    if which == "delete":
        gone = {"deleted": 1, "prev_kvs": [key_value(dice, lengths)] * dice.choice((0, 1, 2))}
        return messages.ResponseOp(response_delete_range=gone)
    return messages.ResponseOp(response_txn=transaction(dice, [None] * 2, lengths, deep=deep + 1))


def transaction(
    dice: Random, requests: Sequence[Any], lengths: Sequence[int], *, deep: int = 0
) -> Any:
    """Return the response to a transaction with a result for each request."""
    results = (
        [] if deep > 9 else [result(dice, lengths, of=request, deep=deep) for request in requests]
    )
    succeeded = dice.random() < 0.9
    return messages.TxnResponse(header=header(dice), succeeded=succeeded, responses=results)


def of_groups(dice: Random, groups: Sequence[Any], lengths: Sequence[int]) -> Any:
    """Return a response to groups of writes."""
    results = []
    for writes in groups:
        if writes is None:
            results.append(result(dice, lengths))
        else:
            nested = transaction(dice, writes, lengths)
            results.append(messages.ResponseOp(response_txn=nested))
    return messages.TxnResponse(header=header(dice), succeeded=True, responses=results)


def varint(number: int, dice: Random | None = None) -> bytes:
    """Return an integer in protobuf's form; with dice, now and then longer, or a bit too large."""
    number &= 2**64 - 1
    made = bytearray()
    while number > 127:
        made.append(number & 127 | 128)
        number >>= 7
    made.append(number)
    if dice is not None and dice.random() < 0.004:
        made[-1] |= 128
        made += b"\x80" * dice.randrange(9) + dice.choice((b"\0", b"\0", b"\2"))
    return bytes(made)


def spelled(message: Any, dice: Random) -> bytes:
    """Return a message as bytes; now and then as another encoder would write them."""
    fields = []
    for field, value in message.ListFields():
        for one in value if hasattr(value, "append") else [value]:
            is_number = isinstance(one, int)
            tag = varint(field.number << 3 | (0 if is_number else 2), dice)
            twice = dice.random() < 0.004
            if is_number:
                fields += [tag + varint(dice.choice((2, one)), dice)] * twice
                fields.append(tag + varint(one, dice))
                continue
            content = one if isinstance(one, bytes) else spelled(one, dice)
            fields.append(tag + varint(len(content), dice) + content)
            # Protobuf joins a message that is there twice.
            fields += [tag + dice.choice((b"\x00", b"\x02\x18\x05", b"\x02\x20\x05"))] * twice
    if dice.random() < 0.01:
        dice.shuffle(fields)
    if dice.random() < 0.01:
        unknown = (b"\x7a\x02ab", b"\x78\x01", b"\x12\x00", b"\x18\x00", b"\x30\x00", b"\x13\x14")
        fields.append(dice.choice(unknown))
    return b"".join(fields)


def damaged(answer: bytes, dice: Random) -> bytes:
    """Return an answer that was altered on its way."""
    at = dice.randrange(len(answer) + 1)
    few = bytes(dice.choice((0, 1, 2, 8, 10, 18, 26, 34, 127, 128, 255)) for _ in range(3))
    other = bytes([(byte + dice.choice((1, 255))) % 256 for byte in answer[at : at + 1]])
    return dice.choice(
        (
            answer[:at],
            answer[:-1],
            answer[:at] + other + answer[at + 1 :],
            answer[:at] + other + answer[at + 1 :],
            answer[:at] + few[: dice.randrange(4)] + answer[at:],
            answer[:at] + few + answer[at + 3 :],
            answer + answer,
            b"",
        )
    )


def case(seed: int) -> tuple[bytes, list[Any], list[Any]]:
    """Return an answer, with the groups or the reads that it answers.

    One with an odd seed answers the groups. Most are short, so that damage meets their structure.
    """
    dice = Random(seed)
    lengths = LENGTHS if dice.random() < 0.1 else (0, 1, 2)
    groups: list[Any] = [[write(dice) for _ in range(dice.randrange(5))] for _ in range(2)]
    groups.insert(0, None)
    reads = [read(dice) for _ in range(dice.randrange(6))]
    whole = of_groups(dice, groups, lengths) if seed % 2 else transaction(dice, reads, lengths)
    answer = spelled(whole, dice) if dice.random() < 0.5 else bytes(whole.SerializeToString())
    if dice.random() < 0.1:
        groups[1] = groups[1][1:] or [write(dice)]
    if dice.random() < 0.1:
        groups.append([])
        reads.append(Get("/more"))
    return (damaged(answer, dice) if dice.random() < 0.5 else answer), groups, reads


def page(seed: int) -> tuple[bytes, bool]:
    """Return the answer to a range, and whether it is a chunk of a stream."""
    dice = Random(seed)
    whole = result(dice, (0, 1, 2, 130), of=Get("/a"))
    chunk = dice.random() < 0.5
    message = whole if chunk else whole.response_range
    answer = spelled(message, dice) if dice.random() < 0.5 else bytes(message.SerializeToString())
    return (damaged(answer, dice) if dice.random() < 0.3 else answer), chunk


def owns(lease: int) -> bool:
    return lease == OWNED


def compare(seed: int) -> set[str]:
    answer, groups, reads = case(seed)
    agree("etcd_page", *page(seed))
    if seed % 2:
        return {str(agree("etcd_response", answer, groups)[0])}
    return {str(agree("etcd_read_answers", reads, answer, owns)[0])}


@pytest.mark.slow
def test_both_read_the_same_from_an_answer() -> None:
    """Answers become the same results or errors, also if they are damaged or do not fit."""
    kinds = set()
    for seed in range(4000):
        try:
            kinds |= compare(seed)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}") from error
    assert len(kinds) >= 4  # two forms of results, and two errors


@pytest.mark.slow
def test_both_notice_every_cut_and_every_wrong_byte() -> None:
    """Wherever an answer ends too early, or has another byte, they agree on what it says."""
    for seed in range(30):
        answer, groups, reads = case(seed)
        for at in range(min(len(answer), 250)):
            for other in (answer[:at], answer[:at] + bytes([answer[at] ^ 1]) + answer[at + 1 :]):
                if seed % 2:
                    agree("etcd_response", other, groups)
                else:
                    agree("etcd_read_answers", reads, other, owns)


def part(tag: int, content: bytes) -> bytes:
    """Return a field with a short message or bytes."""
    return bytes([tag, len(content)]) + content


@pytest.mark.parametrize("second", [b"", b"\x20\x07", b"\x30\x05", b"\x20\x07\x30\x05"])
def test_a_message_that_is_there_twice_is_joined(second: bytes) -> None:
    """The second previous content of a put changes what the first says, as with protobuf."""
    put = part(0x12, part(0x12, b"\x20\x03") + part(0x12, second))
    group = part(0x1A, part(0x22, b"\x10\x01" + part(0x1A, put)))
    agree("etcd_response", b"\x0a\x02\x18\x05\x10\x01" + group, [[Put("/a", b"")]])


@pytest.mark.parametrize("levels", [1, 7, 8, 9, 40, 60, 100_000])
def test_transactions_in_transactions_cannot_exhaust_the_stack(levels: int) -> None:
    """However deep an answer is nested, both read it, or both refuse it."""
    heads: list[bytes] = []
    size = 0
    for level in range(2 * levels):
        heads.append((b"\x1a" if level % 2 else b"\x22") + varint(size))
        size += len(heads[-1])
    deep = b"\x0a\x02\x18\x05\x10\x01" + b"".join(reversed(heads))
    found = agree("etcd_response", deep, [None])
    agree("etcd_response", deep, [[]])
    agree("etcd_read_answers", [Exists("/a")], deep, owns)
    assert (found[0] is Response) is (levels < 50)


@pytest.mark.slow
def test_nothing_is_kept() -> None:
    """Neither results nor errors leave objects behind."""

    def rounds() -> None:
        for seed in range(300):
            answer, groups, reads = case(seed)
            for twin, arguments in (
                ("etcd_response", (answer, groups)),
                ("etcd_read_answers", (reads, answer, owns)),
                ("etcd_page", page(seed)),
                ("etcd_writes", ([*reads, *(groups[1] or ())], "/p")),
                ("etcd_writes", (groups[1] or (), "/p")),
                ("etcd_compares", (groups[1] or (), "/p")),
                ("etcd_lease_compares", (groups[1] or (), "/p")),
                ("etcd_changes", (groups[1] or (), "/p")),
                ("etcd_reads", (reads, "/p")),
            ):
                compiled: Any = acceleration.PAIRS[twin][1]
                with suppress(Exception):  # The other tests look at errors.
                    compiled(*arguments)

    assert_keeps_no_memory(rounds)


def test_references_to_shared_objects_stay_level() -> None:
    """The results own what they refer to, once."""
    path, value = "/some/path", b"v"
    puts = [Put(path, value), Put(path, value, 3)]
    done = messages.ResponseOp(response_txn={"succeeded": True})
    nested = {"succeeded": True, "responses": [messages.ResponseOp(response_put={}), done]}
    whole = messages.TxnResponse(
        header={"revision": 5}, succeeded=True, responses=[{"response_txn": nested}]
    )
    answer = whole.SerializeToString()
    compiled: Any = acceleration.PAIRS["etcd_response"][1]
    shared = (path, value, answer, bk.Stat, puts)
    before = [sys.getrefcount(thing) for thing in shared]
    for _ in range(100):
        compiled(answer, [puts])
    assert [sys.getrefcount(thing) for thing in shared] == before


# Speed


def test_frequent_forms_never_call_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts, deletes and gets that succeed are handled by compiled code alone."""

    def refuse(*_: object) -> None:
        raise KeyboardInterrupt  # Any other error would make the twin handle it.

    puts = [Put("/a", b"1"), Put("/b", b"2", 5), Put("/c", b"3", ABSENT), Delete("/d", 1)]
    gets = [Get("/a"), Get("/b")]
    done = messages.ResponseOp(response_txn={"succeeded": True})
    put = messages.ResponseOp(response_put={"prev_kv": {"version": 3}})
    nested = {"succeeded": True, "responses": [put, done, done, done]}
    whole = messages.TxnResponse(
        header={"revision": 5}, succeeded=True, responses=[{"response_txn": nested}]
    )
    found = messages.TxnResponse(header={"revision": 5})
    kv = {"version": 2, "mod_revision": 4, "value": b"x", "lease": OWNED}
    found.responses.add().response_range.kvs.add(**kv)
    found.responses.add().response_range.SetInParent()
    pairs = {name: compiled for name, (_, compiled) in acceleration.PAIRS.items()}
    bound = vars(acceleration)["_module"].bound
    for name in [*bound]:
        if name.startswith("etcd_") and name not in {"etcd_Response", "etcd_Page"}:
            monkeypatch.setitem(bound, name, refuse)
    pairs["etcd_writes"](puts[:3], "/p")
    pairs["etcd_reads"](gets, "/p")
    (answers,) = pairs["etcd_response"](whole.SerializeToString(), [puts]).responses
    assert answers == [bk.Stat("/a", 3, 5), bk.Stat("/b", 6, 5), bk.Stat("/c", 0, 5), None]
    results, pages = pairs["etcd_read_answers"](gets, found.SerializeToString(), owns)
    assert results == [(b"x", bk.Stat("/a", 1, 4, ephemeral=True, owned=True)), None]
    assert pages == []
    chunk = found.responses[0].SerializeToString()
    kvs = ([b""], [b"x"], [1], [4], [OWNED])
    assert pairs["etcd_page"](chunk, True) == (0, 0, *kvs, len(chunk))
