"""The order of contenders: who waits for whom, whatever a read of the line shows beside them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from batchkeeper.coordination.contenders import (
    EXCLUSIVE,
    SHARED,
    Contender,
    Need,
    blocking,
    differs,
    line_of,
    new_head,
    parse,
    turns,
)

NEEDS = st.sampled_from([EXCLUSIVE, EXCLUSIVE, SHARED, Need("x", 2), Need("x", 3)])


def made(number: int, need: Need = EXCLUSIVE) -> Contender:
    """Return a contender with a number."""
    found = parse(f"{new_head(need)}{number:010d}")
    assert found is not None
    return found


def test_names() -> None:
    """A contender's name has an id, a letter and a number; all other names are foreign."""
    name = "6f1c0a6e5b2d4c8e-x-0000000017"
    found = parse(name)
    assert found is not None
    assert (found.number, found.name, found.shared) == (17, name, False)
    assert found.head == "6f1c0a6e5b2d4c8e-x-"
    shared = parse("6f1c0a6e5b2d4c8e-s-12345678901")
    assert shared is not None
    assert (shared.number, shared.shared) == (12345678901, True)
    for foreign in (
        "",
        "config",
        "-x-0000000017",
        "6f1c0a6e5b2d4c8e-y-0000000017",
        "6f1c0a6e5b2d4c8e-x-17",
        "6f1c0a6e5b2d4c8e-x-00000000a7",
        "6f1c0a6e5b2d4c8e-x-\N{ARABIC-INDIC DIGIT ONE}000000017",
        "6f1c0a6e5b2d4c8e-x--2147483648",
        "6f1c0a6e5b2d4c8ea-x-0000000017",
        "_c_6f1c0a6e-lock-0000000017",
    ):
        assert parse(foreign) is None


def test_heads() -> None:
    """Each contender's is its own, and says whether it is shared."""
    assert new_head(SHARED) != new_head(SHARED)
    for need in (EXCLUSIVE, SHARED, Need("x", 3)):
        assert made(7, need).shared == (need is SHARED)


def test_a_line() -> None:
    """It is in the order of the numbers, also of those with more digits, without other names."""
    line = [made(3), made(12), made(9_999_999_999), made(10_000_000_000, SHARED)]
    names = [contender.name for contender in line]
    assert line_of(["config", *reversed(names), "0000000000"]) == line
    assert line_of([]) == []


def test_who_waits_for_whom() -> None:
    """A lock waits for all before it, a reader for writers, a semaphore if there are too many."""
    reader, writer, other, late = (
        made(number, need) for number, need in enumerate([SHARED, EXCLUSIVE, SHARED, EXCLUSIVE])
    )
    line = [reader, writer, other, late]
    assert blocking(line, late.number, EXCLUSIVE) == [reader, writer, other]
    assert blocking(line, other.number, SHARED) == [writer]
    assert blocking(line, reader.number, SHARED) == []
    assert blocking(line, late.number, Need("x", 3)) == [reader, writer, other]
    assert blocking(line, late.number, Need("x", 4)) == []
    # A name shows the limit of a semaphore; those of another limit are waited for.
    two, three = (Need("x", n, n) for n in (2, 3))
    line = [made(0, two), made(1, three), made(2, two), made(3), made(4, three)]
    assert [contender.n for contender in line] == [2, 3, 2, None, 3]
    assert blocking(line, 1, two) == []
    assert blocking(line, 2, Need("x", 9, 2)) == line[:2]
    assert blocking(line, 3, EXCLUSIVE) == line[:3]
    assert list(turns(line)) == [True, False, False, False, False]
    mixed = [line[0], line[2], made(5), made(6, SHARED)]
    assert list(turns(mixed, n=3)) == [True, True, True, False]
    huge = Need("x", 10**30, 10**30)
    assert not differs(made(7, huge), huge)
    assert differs(made(8, two), huge)


@given(needs=st.lists(NEEDS, max_size=8), data=st.data())
def test_a_turn_comes_as_in_the_model(needs: list[Need], data: st.DataObject) -> None:
    """It has come if nobody is waited for; those who have it together all allow one another."""
    line = [made(number, need) for number, need in enumerate(needs)]
    left = [one for one in line if data.draw(st.booleans())]
    for contender in left:
        need, before = needs[contender.number], [c for c in left if c < contender]
        counts = [other for other in before if need is not SHARED or not other.shared]
        turn = len(counts) < need.limit
        assert (blocking(left, contender.number, need) == []) == turn


@given(needs=st.lists(NEEDS, min_size=1, max_size=8), data=st.data())
def test_a_read_that_is_old_lets_nobody_through(needs: list[Need], data: st.DataObject) -> None:
    """It shows more of those before a contender than there are, and never fewer."""
    line = [made(number, need) for number, need in enumerate(needs)]
    contender, need = line[-1], needs[-1]
    old = [one for one in line if data.draw(st.booleans())]
    new = [one for one in old if data.draw(st.booleans())]
    assert set(blocking(new, contender.number, need)) <= set(blocking(old, contender.number, need))
    later = [made(contender.number + 1 + number) for number in range(3)]
    assert blocking([*old, *later], contender.number, need) == blocking(old, contender.number, need)


@given(needs=st.lists(NEEDS, min_size=1, max_size=8), data=st.data())
def test_whom_it_waits_for_decides(needs: list[Need], data: st.DataObject) -> None:
    """While they stay, its turn does not come; when they have left, it has, even if others stay."""
    line = [made(number, need) for number, need in enumerate(needs)]
    number, need = line[-1].number, needs[-1]
    waits = blocking(line, number, need)
    stay = [one for one in line if one in waits or data.draw(st.booleans())]
    assert blocking(stay, number, need) == waits
    assert blocking([one for one in line if one not in waits], number, need) == []
