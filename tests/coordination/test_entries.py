"""What may enter a cache: each order in which answers and events can arrive, without any store."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

import batchkeeper as bk
from batchkeeper.coordination.entries import (
    ABSENT,
    UNKNOWN,
    Entries,
    Entry,
    Load,
    covers,
)

Table = Entries[bytes, object]


@pytest.fixture
def entries() -> Table:
    """An open table that is large enough for everything."""
    made: Table = Entries(100, 1 << 20, object)
    made.open()
    return made


def value(revision: int, content: bytes = b"") -> Entry[bytes]:
    """Return the entry of a value at a revision."""
    return Entry(bk.GetResult(content, bk.Stat("/a", 0, revision)))


def absence() -> Entry[bytes]:
    return Entry(None)


def ask(entries: Table, key: str) -> tuple[Load[bytes, object], bool]:
    """Return the load of a key that is under way, or a new one, and whether it is new."""
    own = entries.load(key)
    load = entries.join(own)
    return load, load is own


def begin(entries: Table) -> Load[bytes, object]:
    """Begin a new load."""
    load, mine = ask(entries, "/a")
    assert mine
    return load


def end(entries: Table, flight: Any, entry: Entry[bytes]) -> None:
    entries.end(flight, entry.mark, entry)


def marks(entries: Table) -> Any:
    found = entries.find("/a")
    return None if found is None else found.mark


@pytest.mark.parametrize(
    ("mark", "seen", "expected"),
    [
        (5, 5, True),
        (6, 5, True),
        (4, 5, False),
        (5, ABSENT, False),
        (ABSENT, 5, False),
        (ABSENT, ABSENT, True),
        (5, UNKNOWN, False),
        (ABSENT, UNKNOWN, False),
        (UNKNOWN, UNKNOWN, False),
        (("a",), ("a",), True),
        (("a",), ("a", "b"), False),
        ((), UNKNOWN, False),
    ],
)
def test_which_answers_are_not_older(mark: Any, seen: Any, expected: bool) -> None:
    """The greater revision is newer; absence and lists are only known to be equal or not."""
    assert covers(mark, seen) is expected


def test_an_answer_enters(entries: Table) -> None:
    """Without anything in between, a value, an absence and a list of names enter."""
    end(entries, begin(entries), value(5))
    assert marks(entries) == 5
    entries.clear()
    end(entries, begin(entries), absence())
    assert marks(entries) == ABSENT
    load, _ = ask(entries, "/a/")
    end(entries, load, Entry(None, ("b",)))
    assert entries.find("/a/") is not None
    assert (len(entries), entries.under_way) == (2, 0)


@pytest.mark.parametrize(
    ("revision", "enters"), [(4, True), (5, True), (6, False), (UNKNOWN, False)]
)
def test_an_event_before_the_answer(entries: Table, revision: int, enters: bool) -> None:
    """An event during a load keeps out the answers that may be older than it."""
    load = begin(entries)
    entries.learn("/a", revision)
    end(entries, load, value(5))
    assert (marks(entries) == 5) is enters
    entries.clear()
    load = begin(entries)
    entries.learn("/a", 4)
    end(entries, load, absence())
    assert marks(entries) is None  # Nothing says whether it was absent before or after.


@pytest.mark.parametrize(
    ("revision", "stays"), [(4, True), (5, True), (6, False), (UNKNOWN, False)]
)
def test_an_event_after_the_answer(entries: Table, revision: int, stays: bool) -> None:
    """An event drops an entry, unless the entry is as new as the event."""
    end(entries, begin(entries), value(5))
    entries.learn("/a", revision)
    assert (marks(entries) == 5) is stays


def test_a_whole_invalidation_keeps_out_what_began_before(entries: Table) -> None:
    """After ``clear``, ``shut`` or ``open``, no earlier flight enters."""
    for invalidate in (entries.clear, entries.open, entries.shut):
        entries.open()
        load, write = begin(entries), entries.write("/a")
        invalidate()
        end(entries, load, value(5))
        end(entries, write, value(6))
        assert marks(entries) is None


def test_nothing_enters_without_a_watch(entries: Table) -> None:
    """While the table is shut, answers do not enter, also if it opens before they arrive."""
    entries.shut()
    load = begin(entries)
    end(entries, load, value(5))
    assert marks(entries) is None
    load = begin(entries)
    entries.clear()
    end(entries, load, value(5))
    entries.clear()
    end(entries, begin(entries), value(5))
    assert marks(entries) is None


def test_reads_share_a_load(entries: Table) -> None:
    """Whoever asks while a load is under way joins it, until something is learned of its key."""
    load = begin(entries)
    assert ask(entries, "/a") == (load, False)
    assert ask(entries, "/b")[1]
    for learn in (lambda: entries.learn("/a", 4), entries.clear):
        learn()
        later, mine = ask(entries, "/a")
        assert mine
        assert later is not load
        assert ask(entries, "/a") == (later, False)


def test_a_load_that_is_given_up(entries: Table) -> None:
    """The next caller begins a new load, and a newer load that others share goes on."""
    load = begin(entries)
    entries.give_up(load)
    load = begin(entries)
    entries.learn("/a", 4)
    later = begin(entries)
    entries.give_up(load)
    assert ask(entries, "/a") == (later, False)
    entries.give_up(later)
    entries.give_up(later)
    assert entries.under_way == 0


def test_a_load_that_is_over(entries: Table) -> None:
    """Nobody joins it, although Ctrl-C has kept it from being given up, and it leaves nothing."""
    load = begin(entries)
    load.over = True
    later = begin(entries)
    end(entries, later, value(5))
    assert marks(entries) == 5
    assert entries.under_way == 0


def test_a_write_ends_joining(entries: Table) -> None:
    """A read that begins after a write does not join a load from before it, nor does that enter."""
    load = begin(entries)
    end(entries, entries.write("/a"), value(6))
    assert marks(entries) == 6
    end(entries, load, value(5))
    assert marks(entries) == 6
    entries.learn("/a", UNKNOWN)
    load = begin(entries)
    end(entries, entries.write("/a"), value(7))
    entries.learn("/a", UNKNOWN)
    end(entries, load, value(6))
    assert marks(entries) is None


def test_a_write_of_another_client_during_ones_own(entries: Table) -> None:
    """The event of a newer write may arrive before the answer of one's own, which is old then."""
    write = entries.write("/a")
    entries.learn("/a", 7)
    end(entries, write, value(6))
    assert marks(entries) is None
    write = entries.write("/a")
    entries.learn("/a", 8)
    end(entries, write, value(8))
    assert marks(entries) == 8  # That was its own event.


def test_a_write_whose_outcome_is_unknown(entries: Table) -> None:
    """It drops the entry, and keeps out the loads that have begun before its end."""
    end(entries, begin(entries), value(5))
    write, load = entries.write("/a"), ask(entries, "/a")[0]
    entries.end(write, UNKNOWN)
    assert marks(entries) is None
    end(entries, load, value(5))
    assert marks(entries) is None


def test_overtaken_loads_do_not_go_back(entries: Table) -> None:
    """Of two loads of a path, the one that shows less is dropped, whichever ends first."""
    for first, second in itertools.permutations([value(5), value(6), absence()], 2):
        entries.open()
        older = begin(entries)
        entries.learn("/a", 4)
        newer = begin(entries)
        end(entries, older, first)
        end(entries, newer, second)
        if covers(second.mark, first.mark):
            assert marks(entries) == second.mark
        else:
            assert marks(entries) == (6 if {first.mark, second.mark} == {5, 6} else None)


def test_an_older_answer_does_not_replace_an_entry(entries: Table) -> None:
    """Also an answer to a request that began after the entry had entered."""
    end(entries, begin(entries), value(6))
    end(entries, entries.write("/a"), value(5))
    assert marks(entries) == 6


def test_loads_that_agree_enter(entries: Table) -> None:
    """Loads that overlap without end do not keep each other out, if they show the same."""
    older = begin(entries)
    entries.learn("/a", 4)
    for _ in range(3):
        newer = begin(entries)
        end(entries, older, value(5))
        older = newer
    assert marks(entries) == 5


def test_the_bound_of_entries() -> None:
    """The oldest goes first, unless it was used since its last turn."""
    entries: Table = Entries(3, 1 << 20, object)
    entries.open()
    for name in "abc":
        end(entries, ask(entries, name)[0], value(5))
    used = entries.find("a")
    assert used is not None
    used.used = True
    end(entries, ask(entries, "d")[0], value(5))
    assert [name for name in "abcd" if entries.find(name)] == ["a", "c", "d"]
    for name in "acd":
        found = entries.find(name)
        assert found is not None
        found.used = True
    end(entries, ask(entries, "e")[0], value(5))
    assert len(entries) == 3


def test_the_bound_of_bytes() -> None:
    """Values and names count; what alone is too large does not enter, and drops nothing else."""
    entries: Table = Entries(100, 10_000, object)
    entries.open()
    for n in range(20):
        end(entries, ask(entries, f"{n}")[0], value(5, bytes(1000)))
    assert 4 <= len(entries) <= 9
    assert entries.bytes <= 10_000
    before = len(entries)
    end(entries, ask(entries, "large")[0], value(5, bytes(10_000)))
    assert len(entries) == before
    names = tuple(f"{n:06d}" for n in range(1000))
    end(entries, ask(entries, "names/")[0], Entry(None, names))
    assert entries.find("names/") is not None
    assert entries.bytes <= 10_000
    for name in [*"0123456789", *(f"{n}" for n in range(10, 20)), "names/"]:
        entries.learn(name, UNKNOWN)
    assert (len(entries), entries.bytes) == (0, 0)


@pytest.mark.parametrize("most", [0, -1, 1.5, "1", None, True])
def test_bad_bounds(most: Any) -> None:
    """A bound is an int of 1 or more."""
    with pytest.raises(bk.InvalidSettingError, match="max_entries"):
        Entries(most, 1, object)
    with pytest.raises(bk.InvalidSettingError, match="max_bytes"):
        Entries(1, most, object)


def test_changes_without_an_order_keep_every_answer_out(entries: Table) -> None:
    """Whether the path was deleted before or after a revision is not known, so no answer is new."""
    load = begin(entries)
    entries.learn("/a", ABSENT)
    entries.learn("/a", 7)
    end(entries, load, value(8))
    assert marks(entries) is None
