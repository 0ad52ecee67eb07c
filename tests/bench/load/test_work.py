"""What an answer has to be, decided without a store."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest

import batchkeeper as bk
from batchkeeper.bench.load.callers import Pace
from batchkeeper.bench.load.job import Job
from batchkeeper.bench.load.mixes import KINDS, Keys, Mix
from batchkeeper.bench.load.processes import _Processes, _StoppedError
from batchkeeper.bench.load.work import Pending, Work, check
from batchkeeper.bench.workload import WrongAnswerError

MIX = Mix("one", "of one kind", {"update": 1.0}, keys=Keys(count=1))
#: A call that is drawn is never made here.
STORE = SimpleNamespace(
    **dict.fromkeys(("get", "put", "delete", "get_children", "transaction"), print)
)


def drawn(kind: str = "update", **changes: Any) -> tuple[Work, Pending]:
    """A caller with one key or more at version 0, and its next operation."""
    mix = dataclasses.replace(MIX, operations={kind: 1.0}, **changes)
    work = Work(mix, "/r", mix.keys.count, seed=1)
    list(work.first_puts())
    return work, work.draw(STORE)[0]


def stat(version: int) -> bk.Stat:
    return bk.Stat("/r/0/0", version, 7)


@pytest.mark.parametrize("version", [0, 2, -1])
def test_another_version_than_the_next_is_wrong(version: int) -> None:
    """A put moves the version by one: a repeated one shows as well as a lost one."""
    work, pending = drawn()
    with pytest.raises(WrongAnswerError, match=f"version {version} instead of 1: /r/0/0"):
        work.ended(pending, None, stat(version))


def test_the_next_version_is_right() -> None:
    """It is counted as an answer that was compared."""
    work, pending = drawn()
    work.ended(pending, None, stat(1))
    assert work.checked == 1


def test_a_value_at_another_version_is_wrong() -> None:
    """The value alone does not show that a write is lost which put the same."""
    work, pending = drawn("get")
    wanted = pending.wanted
    check(wanted, bk.GetResult(wanted.value, stat(0)))
    with pytest.raises(WrongAnswerError, match="version 3 instead of 0: /r/0/0"):
        work.ended(pending, None, bk.GetResult(wanted.value, stat(3)))


def test_a_wrong_version_that_is_accepted_is_wrong() -> None:
    """The store must refuse the share of operations that the mix asks for."""
    work, pending = drawn(conflicts=1.0)
    with pytest.raises(WrongAnswerError, match="accepted with a wrong version: /r/0/0"):
        work.ended(pending, None, stat(1))
    assert work.conflicts == 0


@pytest.mark.parametrize("kind", ["update", "delete"])
def test_a_right_version_that_is_refused_is_wrong(kind: str) -> None:
    """Nobody else writes the keys of a caller."""
    work, pending = drawn(kind)
    with pytest.raises(WrongAnswerError, match="refused although its version is right"):
        work.ended(pending, bk.NotFoundError("none"), None)


@pytest.mark.parametrize("kind", sorted(set(KINDS) - {"get", "children"}))
def test_what_was_never_sent_is_taken_back(kind: str) -> None:
    """The keys are what they were before, so the next answer can be predicted."""
    work, pending = drawn(kind, keys=Keys(count=3))
    work.undo(pending)
    assert len(pending.keys) == (3 if kind == "transaction" else 1)
    assert list(pending.before) == [(key.value, key.version) for key in pending.keys]


def test_of_a_key_with_an_unknown_write_nothing_is_expected() -> None:
    """Neither at the end of the load nor in the answers to what was drawn before."""
    work, first = drawn()
    second = work.draw(STORE)[0]
    work.ended(first, bk.IndeterminateError("lost"), None)
    work.ended(second, None, stat(7))
    assert (work.unsure, work.checked, list(work.expected())) == (1, 0, [])


def test_processes_that_are_ready_end_if_another_has_failed() -> None:
    """They do not measure, for there would be nobody to add them to."""
    sent: list[Any] = []
    ready = SimpleNamespace(send=sent.append, receive=iter([None, _StoppedError()]).__next__)
    gone = SimpleNamespace(send=print, receive=iter([ValueError("no store")]).__next__)
    crew: Any = _Processes([ready, gone])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="no store"):
        crew.measure(Job("memory://x", 1.0, "/r", None, None, MIX, Pace()))
    assert sent[1:] == [False]
