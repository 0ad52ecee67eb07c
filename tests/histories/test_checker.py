"""The checker finds violations, and reports none in correct histories."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from .checker import check, explain
from .history import Op

Times = tuple[float, float]


def op(chain: str, kind: Any, times: Times, **fields: Any) -> Op:
    fields.setdefault("outcome", "done")
    return Op(chain, kind, "/p", invoked=times[0], completed=times[1], **fields)


def put(chain: str, times: Times, value: bytes, version: int, **fields: Any) -> Op:
    fields.setdefault("revision", version + 10)
    return op(chain, "put", times, value=value, version=version, **fields)


def get(chain: str, times: Times, found: bytes | None, version: int | None = None) -> Op:
    revision = None if version is None else version + 10
    return op(chain, "get", times, found=found, version=version, revision=revision)


def refused(chain: str, times: Times, expected: int, actual: int | None = None) -> Op:
    return op(
        chain,
        "put",
        times,
        value=b"refused%f" % times[0],
        expected=expected,
        actual=actual,
        outcome="refused",
        error="BadVersionError",
    )


def unknown(chain: str, invoked: float, value: bytes, **fields: Any) -> Op:
    return op(chain, "put", (invoked, math.inf), value=value, outcome="unknown", **fields)


def delete(chain: str, times: Times, **fields: Any) -> Op:
    return op(chain, "delete", times, **fields)


def rules(*ops: Op) -> list[str]:
    return [violation.rule for violation in check(ops)]


# --- valid histories

GOOD = {
    "nothing": [],
    "one after the other": [
        put("a", (0, 1), b"x", 0),
        get("a", (2, 3), b"x", 0),
        put("a", (4, 5), b"y", 1, expected=0),
        refused("a", (6, 7), expected=0, actual=1),
        op("a", "exists", (8, 9), there=True),
        delete("a", (10, 11), expected=1),
        op("a", "delete", (12, 13), outcome="refused", error="NotFoundError"),
        get("a", (14, 15), None),
    ],
    "a read beside a write sees it, or does not": [
        put("a", (0, 9), b"x", 0),
        get("b", (1, 2), None),
        get("c", (3, 4), b"x", 0),
    ],
    "a read that was called first may see the later write": [
        put("a", (0, 1), b"x", 0),
        get("b", (2, 9), b"y", 1),
        put("a", (3, 4), b"y", 1),
    ],
    "two reads of one store at the same time, the later one answered first": [
        put("a", (0, 1), b"x", 0),
        put("a", (2, 9), b"y", 1),
        get("b", (3.0, 9), b"y", 1),
        get("b", (3.1, 8), b"x", 0),
    ],
    "versions begin again after a delete": [
        put("a", (0, 1), b"x", 0),
        delete("b", (2, 3)),
        put("a", (4, 5), b"y", 0, revision=12),
    ],
    "pipelined through one store": [
        put("a", (0.0, 9), b"x", 0),
        put("a", (0.1, 9), b"y", 1, expected=0),
        refused("a", (0.2, 9), expected=0, actual=1),
        delete("a", (0.3, 9), expected=1),
        put("a", (0.4, 9), b"z", 0, revision=20, expected=-1),
    ],
    "an unknown write that did not happen": [
        put("a", (0, 1), b"x", 0),
        unknown("a", 2, b"lost"),
        get("b", (3, 4), b"x", 0),
        put("a", (5, 6), b"y", 1, expected=0),
    ],
    "an unknown write that happened and was not seen": [
        put("a", (0, 1), b"x", 0),
        unknown("a", 2, b"unseen"),
        put("b", (3, 4), b"y", 2),
    ],
    "an unknown write that was seen, and later than a read without it": [
        put("a", (0, 1), b"x", 0),
        unknown("a", 2, b"late"),
        get("b", (3, 4), b"x", 0),
        get("b", (5, 6), b"late", 1),
        refused("b", (7, 8), expected=0, actual=1),
    ],
    "an unknown delete that happened": [
        put("a", (0, 1), b"x", 0),
        op("a", "delete", (2, math.inf), outcome="unknown"),
        put("b", (3, 4), b"y", 0, revision=12, expected=-1),
    ],
    "an unknown write that happened, perhaps against its condition": [
        put("a", (0, 1), b"x", 0),
        unknown("a", 2, b"against", expected=5, applied=True),
        put("b", (3, 4), b"y", 2),
    ],
    "an unknown write with a condition that did not hold": [
        put("a", (0, 1), b"x", 0),
        unknown("a", 2, b"void", expected=5),
        put("b", (3, 4), b"y", 1),
    ],
    "what was not applied has no place": [
        put("a", (0, 1), b"x", 0),
        op("a", "put", (2, 3), value=b"late", outcome="not_applied"),
        put("a", (4, 5), b"y", 1),
    ],
}


@pytest.mark.parametrize("name", GOOD)
def test_a_history_in_order_is_accepted(name: str) -> None:
    """A history that an order explains has no violations."""
    assert check(GOOD[name]) == [], explain(check(GOOD[name]))


# --- invalid histories

BAD = {
    "an acknowledged write that nobody sees any more": (
        "lost write, or a stale read",
        [put("a", (0, 1), b"x", 0), put("a", (2, 3), b"y", 1), get("b", (4, 5), b"x", 0)],
    ),
    "an acknowledged creation that is gone": (
        "lost write, or a stale read",
        [put("a", (0, 1), b"x", 0), get("b", (2, 3), None)],
    ),
    "an acknowledged creation that does not exist": (
        "lost write, or a stale read",
        [put("a", (0, 1), b"x", 0), op("b", "exists", (2, 3), there=False)],
    ),
    "an acknowledged delete that was lost": (
        "lost write, or a stale read",
        [put("a", (0, 1), b"x", 0), delete("a", (2, 3)), get("a", (4, 5), b"x", 0)],
    ),
    "an acknowledged write that was lost and overwritten": (
        "lost write, or a version used twice",
        [
            put("a", (0, 1), b"x", 0),
            put("a", (2, 3), b"y", 1),
            put("b", (4, 5), b"z", 1, revision=12),
        ],
    ),
    "a value that nobody put": (
        "invented value",
        [put("a", (0, 1), b"x", 0), get("a", (2, 3), b"?", 1)],
    ),
    "a value of a write that was refused": (
        "false failure: it took effect",
        [
            op(
                "a",
                "put",
                (0, 1),
                value=b"x",
                expected=-1,
                outcome="refused",
                error="BadVersionError",
            ),
            get("a", (2, 3), b"x", 0),
        ],
    ),
    "a value of a write that ended as not applied": (
        "false failure: it took effect",
        [op("a", "put", (0, 1), value=b"x", outcome="not_applied"), get("a", (2, 3), b"x", 0)],
    ),
    "a write that ended as not applied and moved the version on": (
        "misordered",
        [
            put("a", (0, 1), b"x", 0),
            op("a", "put", (2, 3), value=b"y", outcome="not_applied"),
            put("a", (4, 5), b"z", 2),
        ],
    ),
    "a conflict although the version held throughout": (
        "false conflict",
        [put("a", (0, 1), b"x", 0), refused("b", (2, 3), expected=0)],
    ),
    "a conflict with a write's own first attempt": (
        "false conflict",
        [refused("a", (0, 1), expected=-1, actual=0), op("b", "exists", (2, 3), there=True)],
    ),
    "a conflict that names another version than was there": (
        "false refusal",
        [
            put("a", (0, 1), b"x", 0),
            put("a", (2, 3), b"y", 1),
            refused("b", (4, 5), expected=5, actual=0),
        ],
    ),
    "a refusal of a delete although there was something": (
        "false refusal",
        [
            put("a", (0, 1), b"x", 0),
            op("b", "delete", (2, 3), outcome="refused", error="NotFoundError"),
        ],
    ),
    "a refusal because of values below, where there are none": (
        "false refusal",
        [
            put("a", (0, 1), b"x", 0),
            op("b", "delete", (2, 3), outcome="refused", error="NotEmptyError"),
        ],
    ),
    "a success although the version did not hold": (
        "false success",
        [put("a", (0, 1), b"x", 0), put("b", (2, 3), b"y", 1, expected=5)],
    ),
    "two creations of one path": (
        "false success",
        [
            put("a", (0, 1), b"x", 0, expected=-1),
            put("b", (2, 3), b"y", 0, revision=11, expected=-1),
        ],
    ),
    "a write that was applied twice": (
        "misordered",
        [put("a", (0, 1), b"x", 0), put("a", (2, 3), b"y", 2)],
    ),
    "two writes with one version": (
        "lost write, or a version used twice",
        [put("a", (0, 9), b"x", 0), put("b", (0, 9), b"y", 0, revision=11)],
    ),
    "two writes with one revision": (
        "one revision for two writes",
        [put("a", (0, 1), b"x", 0), put("a", (2, 3), b"y", 1, revision=10)],
    ),
    "a revision that goes back": (
        "misordered",
        [put("a", (0, 1), b"x", 0), put("a", (2, 3), b"y", 1, revision=9)],
    ),
    "two answers changed for each other": (
        "one write with two versions",
        [
            put("a", (0.0, 1), b"x", 1),
            put("a", (0.1, 1), b"y", 0),
            get("a", (2, 3), b"y", 1),
        ],
    ),
    "two writes of one store in the wrong order": (
        "misordered",
        [put("a", (0.0, 9), b"x", 1), put("a", (0.1, 9), b"y", 0)],
    ),
    "a read that overtook the write before it": (
        "lost write, or a stale read",
        [put("a", (0.0, 9), b"x", 0), get("a", (0.1, 9), None)],
    ),
    "a read that was overtaken by the write after it": (
        "misordered",
        [
            put("a", (0.0, 1), b"x", 0),
            get("a", (2.0, 9), b"y", 1),
            put("a", (2.1, 9), b"y", 1),
        ],
    ),
    "a read of the future": (
        "misordered",
        [get("a", (0, 1), b"x", 0), put("b", (2, 3), b"x", 0)],
    ),
    "reads that go back in time": (
        "lost write, or a stale read",
        [
            put("a", (0, 1), b"x", 0),
            put("a", (2, 9), b"y", 1),
            get("b", (3, 4), b"y", 1),
            get("c", (5, 6), b"x", 0),
        ],
    ),
    "reads of one store, one after the other, that go back in time": (
        "lost write, or a stale read",
        [
            put("a", (0, 1), b"x", 0),
            put("a", (2, 9), b"y", 1),
            get("b", (3, 4), b"y", 1),
            get("b", (5, 6), b"x", 0),
        ],
    ),
    "two reads of one store at the same time, on the wrong sides of its write": (
        "misordered",
        [
            put("a", (0, 1), b"x", 0),
            get("b", (3.0, 9), b"y", 1),
            put("b", (3.1, 9), b"y", 1),
            get("b", (3.2, 9), b"x", 0),
        ],
    ),
    "an unknown write that takes effect behind the next one of its store": (
        "misordered",
        [
            unknown("a", 0, b"late"),
            put("a", (1, 2), b"x", 0),
            get("b", (3, 4), b"late", 1),
        ],
    ),
    "an unknown write that happened twice": (
        "one write with two versions",
        [
            unknown("a", 0, b"twice"),
            get("b", (1, 2), b"twice", 0),
            get("b", (3, 4), b"twice", 1),
        ],
    ),
    "an unknown write of a process that was dead before": (
        "lost write, or a stale read",
        [
            op("a", "put", (0, 1), value=b"x", outcome="unknown"),
            get("b", (2, 3), None),
            get("b", (4, 5), b"x", 0),
        ],
    ),
    "an operation that has not ended": (
        "never ended",
        [op("a", "put", (0, math.inf), value=b"x", outcome="pending")],
    ),
    "a success that is claimed of an unknown write, and nobody sees it": (
        "lost write, or a stale read",
        [unknown("a", 0, b"x", applied=True), get("a", (1, 2), None)],
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_history_that_cannot_be_is_rejected(name: str) -> None:
    """Each broken guarantee is found and named."""
    rule, ops = BAD[name]
    assert rule in rules(*ops), explain(check(ops))


def test_paths_are_judged_by_themselves() -> None:
    """A violation is reported for its path, and for no other."""
    fine = put("a", (0, 1), b"x", 0)
    wrong = Op("a", "get", "/q", outcome="done", found=b"?", version=0, completed=1)
    assert [violation.path for violation in check([fine, wrong])] == ["/q"]


# --- histories of a correct store, and the same with one thing broken


class Model:
    """A correct store with one path, and a client for each chain; time is a counter."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.now = 0.0
        self.version, self.value, self.revision, self.changed = -1, b"", 0, 0
        self.history: list[Op] = []
        self.under_way: list[Op] = []

    def tick(self) -> float:
        self.now += 1
        return self.now

    def call(self, chain: str) -> None:
        kind = self.dice.choice(["put", "put", "put", "delete", "get", "exists"])
        made = Op(chain, kind, "/p", invoked=self.tick())
        if kind == "put":
            made.value = b"%d" % len(self.history)
        if made.writes:
            made.expected = self.dice.choice([None, self.version, 0])
            if kind == "delete" and made.expected == -1:
                made.expected = None
        self.history.append(made)
        self.under_way.append(made)

    def carry_out(self, op: Op) -> None:
        """Do to the path what the operation asks for, and note the answer in it."""
        op.outcome = "done"
        if op.kind == "get" and self.version >= 0:
            op.found, op.version, op.revision = self.value, self.version, self.changed
        elif op.kind == "exists":
            op.there = self.version >= 0
        elif op.kind == "delete" and self.version < 0:
            op.outcome, op.error = "refused", "NotFoundError"
        elif op.writes and op.expected not in {None, self.version}:
            op.outcome, op.error, op.actual = "refused", "BadVersionError", self.version
        elif op.writes:
            self.revision += 1
            self.version = self.version + 1 if op.kind == "put" else -1
            if op.kind == "put":
                assert op.value is not None
                self.value, self.changed = op.value, self.revision
                op.version, op.revision = self.version, self.revision

    def forget(self, op: Op) -> None:
        """Lose the answer of a write that was carried out, or perhaps not."""
        op.outcome, op.error = "unknown", "IndeterminateError"
        op.version = op.revision = op.actual = None

    def run(self, chains: int, length: int, forgetful: float, depth: int = 1) -> list[Op]:
        """Let clients ask; each one's operations are carried out in order, beside the others'.

        Args:
            chains: clients.
            length: steps, each of which begins or ends an operation.
            forgetful: the share of the writes whose answers are lost.
            depth: how many operations a client has under way at a time.
        """
        names = [f"c{number}" for number in range(chains)] * depth
        for _ in range(length):
            busy = [op.chain for op in self.under_way]
            idle = [name for name in set(names) if busy.count(name) < depth]
            if idle and (not busy or self.dice.random() < 0.5):
                self.call(self.dice.choice(sorted(idle)))
                continue
            chosen = self.dice.choice(busy)
            op = next(op for op in self.under_way if op.chain == chosen)
            loses = op.writes and self.dice.random() < forgetful
            if not loses or self.dice.random() < 0.5:
                self.carry_out(op)
            if loses:
                self.forget(op)
            else:
                op.completed = self.tick()
            self.under_way.remove(op)
        for op in self.under_way:
            self.carry_out(op)
            op.completed = self.tick()
        self.under_way.clear()
        return self.history


@settings(max_examples=2 * settings.default.max_examples)
@given(
    seed=st.integers(0, 2**32),
    chains=st.integers(1, 5),
    length=st.integers(0, 150),
    forgetful=st.sampled_from([0.0, 0.1, 0.5]),
    depth=st.integers(1, 4),
)
def test_what_a_correct_store_says_is_accepted(
    seed: int, chains: int, length: int, forgetful: float, depth: int
) -> None:
    """Histories of a correct store have no violations, with many clients and lost answers."""
    violations = check(Model(seed).run(chains, length, forgetful, depth))
    assert not violations, explain(violations)


class Broken(Model):
    """A store that makes one mistake."""

    def __init__(self, seed: int, fault: str) -> None:
        super().__init__(seed)
        self.fault = fault
        self.broken = False

    def carry_out(self, op: Op) -> None:
        before = (self.version, self.value, self.revision, self.changed)
        super().carry_out(op)
        kind = "get" if self.fault == "stale" else "put"
        if self.broken or len(self.history) <= 20 or op.outcome != "done" or op.kind != kind:
            return
        if not op.version:
            return  # Nothing found, or nothing before it.
        self.broken = True
        match self.fault:
            case "stale":
                op.found, op.version, op.revision = None, None, None
            case "lose":  # acknowledged, and not there
                self.version, self.value, self.revision, self.changed = before
            case "twice":  # sent again blindly
                self.expect_nothing_of(op)
            case "swap":  # another one's answer
                op.version += 1
            case "reuse":
                self.version -= 1
            case "resend":  # the second attempt meets what the first has made
                op.outcome, op.error, op.actual = "refused", "BadVersionError", op.version
                op.expected, op.version, op.revision = op.version - 1, None, None
            case "deny":  # it happened, and is said not to have
                op.outcome, op.version, op.revision = "not_applied", None, None

    def expect_nothing_of(self, op: Op) -> None:
        """Carry out a put once more, whatever it expects."""
        self.revision += 1
        self.version += 1
        self.changed = self.revision


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["lose", "twice", "swap", "reuse", "resend", "stale", "deny"])
def test_a_store_with_one_fault_is_found_out(fault: str) -> None:
    """Each kind of mistake is found, in a history of one client and of several."""
    found = {1: 0, 4: 0}
    for chains in found:
        for seed in range(40):
            model = Broken(seed, fault)
            history = model.run(chains, 200, 0.0)
            assert model.broken
            found[chains] += bool(check(history))
    # One put among several at the same time may be explained away: as the last before a delete.
    assert found[1] >= 36, found
    assert found[4] >= 28, found
