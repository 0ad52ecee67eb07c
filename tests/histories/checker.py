"""Checks whether an order of a history's operations explains all answers of the stores.

Paths are independent, so each is checked separately. The order on a path must meet these rules:

- Operations of one store are in the order of their submission. Reads between two writes may change
  places with each other, because a read waits only for the earlier writes of its path.
- An operation precedes every operation that was called after its end (real time).
- Every result and every refusal follows from the operations before it: values, versions (0 after a
  creation, one more with every put), and revisions, which grow.
- Operations that were not applied have no place. Operations with an unknown outcome may have a
  place or none.

If there is no such order, the checker reports the first operations that have no place in the
longest order found. The search is exact: it covers all different orders. There are few of them,
because the operations of a store on a path form one line. A state of the search consists of a
place in each store's line, and the state of the path.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

from .history import Op

__all__ = ["Violation", "check", "explain"]

ABSENT = -1


class Violation(NamedTuple):
    """A violation of the rules: the rule in a few words, and the evidence."""

    rule: str
    path: str
    evidence: str

    def __str__(self) -> str:
        return f"{self.path}: {self.rule}\n    {self.evidence}"


class _State(NamedTuple):
    """The state of a path. ``revision`` is the last known revision."""

    version: int = ABSENT
    value: bytes | None = None
    revision: int = -1


#: The place of the search in a line: the number of a group, and the operations of the group that
#: have their place, as bits. A group is one write, or all reads between two writes.
_Place: TypeAlias = tuple[int, int]


class _Node(NamedTuple):
    """The place of the search in each line, and the state of the path there."""

    places: tuple[_Place, ...]
    state: _State


def check(history: Iterable[Op]) -> list[Violation]:
    """Return the violations in a history; none if an order explains it."""
    paths: defaultdict[str, list[Op]] = defaultdict(list)
    for op in history:
        paths[op.path].append(op)
    return [violation for path in sorted(paths) for violation in _check_path(path, paths[path])]


def explain(violations: Sequence[Violation]) -> str:
    """Return violations as text."""
    return "\n".join([f"{len(violations)} violations", *map(str, violations[:20])])


def _check_path(path: str, ops: Sequence[Op]) -> list[Violation]:
    plain = list(_plainly_wrong(path, ops))
    if plain:
        return plain
    _learn(ops)
    lines: defaultdict[str, list[list[Op]]] = defaultdict(list)
    for op in ops:
        if op.outcome == "not_applied":
            continue
        line = lines[op.chain]
        if op.writes or not line or line[-1][0].writes:
            line.append([])
        line[-1].append(op)
    return _Search(path, list(lines.values())).run()


# Violations that need no search


def _plainly_wrong(path: str, ops: Sequence[Op]) -> Iterator[Violation]:
    puts = {op.value: op for op in ops if op.kind == "put"}
    seen: dict[bytes, Op] = {}  # by value: the first operation that reported its version
    revisions: dict[int, bytes] = {}
    for op in ops:
        if op.outcome == "pending":
            yield Violation("never ended", path, str(op))
        if op.outcome != "done" or op.kind not in {"put", "get"}:
            continue
        value = op.value if op.kind == "put" else op.found
        if value is None:
            continue
        writer = puts.get(value)
        if writer is None:
            yield Violation("invented value", path, str(op))
            continue
        if writer.outcome in {"refused", "not_applied"}:
            yield Violation("false failure: it took effect", path, f"{writer}; {op}")
        first = seen.setdefault(value, op)
        if (first.version, first.revision) != (op.version, op.revision):
            yield Violation("one write with two versions", path, f"{first}; {op}")
        if op.revision is not None:
            other = revisions.setdefault(op.revision, value)
            if other != value:
                yield Violation("one revision for two writes", path, f"{seen[other]}; {op}")


def _learn(ops: Sequence[Op]) -> None:
    """Mark writes with an unknown outcome as applied if a read has returned their value."""
    unknown = {op.value: op for op in ops if op.kind == "put" and op.outcome == "unknown"}
    for op in ops:
        if op.kind == "get" and op.found is not None and (writer := unknown.get(op.found)):
            writer.applied = True
            writer.version, writer.revision = op.version, op.revision


# The search


class _Search:
    """Searches for an order of the operations on one path, given as a line for each store."""

    def __init__(self, path: str, lines: Sequence[Sequence[Sequence[Op]]]) -> None:
        self._path = path
        self._lines = lines
        # For each line and group, the earliest end among the operations of this and later groups.
        self._ends = [_least_from(line) for line in lines]

    def run(self) -> list[Violation]:
        whole = tuple((len(line), 0) for line in self._lines)
        best = self._settle(_Node(tuple((0, 0) for _ in whole), _State()))
        known = {best}
        stack = [best]
        while stack:
            node = stack.pop()
            if node.places == whole:
                return []
            if self._count(node) > self._count(best):
                best = node
            for following in map(self._settle, self._nexts(node)):
                if following not in known:
                    known.add(following)
                    stack.append(following)
        return [self._stuck(best)]

    def _heads(self, places: Sequence[_Place]) -> Iterator[tuple[int, int, Op]]:
        """Yield the next operations of the lines: line, number in the group, operation."""
        for index, (group, done) in enumerate(places):
            if group < len(self._lines[index]):
                for number, op in enumerate(self._lines[index][group]):
                    if not done >> number & 1:
                        yield index, number, op

    def _settle(self, node: _Node) -> _Node:
        """Give a place to all operations that can have one and change nothing.

        This never excludes an order.
        """
        places, state = node
        while True:
            for index, number, op in self._heads(places):
                changes = op.writes and op.outcome != "refused"
                if not changes and self._may(places, op) and _after(op, state) is not None:
                    places = self._one_on(places, index, number)
                    break
            else:
                return _Node(places, state)

    def _nexts(self, node: _Node) -> list[_Node]:
        """Return the nodes that follow by one write, the likeliest last."""
        maybe, certain = [], []
        for index, number, op in self._heads(node.places):
            if not op.writes or op.outcome == "refused":
                continue  # It has no place here: otherwise, `_settle` had given it one.
            places = self._one_on(node.places, index, number)
            after = _after(op, node.state) if self._may(node.places, op) else None
            optional = op.outcome == "unknown" and not op.applied
            if after is not None:
                (maybe if optional else certain).append(_Node(places, after))
            if optional:
                maybe.append(_Node(places, node.state))
        return [*maybe, *certain]

    def _may(self, places: Sequence[_Place], op: Op) -> bool:
        """Say whether an operation was called before the end of all others without a place."""
        for index, (group, _) in enumerate(places):
            if group < len(self._lines[index]) and self._ends[index][group + 1] < op.invoked:
                return False
        return all(head.completed >= op.invoked for _, _, head in self._heads(places))

    def _one_on(self, places: tuple[_Place, ...], index: int, number: int) -> tuple[_Place, ...]:
        group, done = places[index]
        done |= 1 << number
        if done + 1 == 1 << len(self._lines[index][group]):
            group, done = group + 1, 0
        return (*places[:index], (group, done), *places[index + 1 :])

    # The report

    def _count(self, node: _Node) -> int:
        return sum(group for group, _ in node.places)

    def _stuck(self, node: _Node) -> Violation:
        state = node.state
        heads = [op for _, _, op in self._heads(node.places)]
        # The operation that ended first should have had its place first.
        heads.sort(key=lambda op: op.completed)
        before = [
            op
            for line, (at, _) in zip(self._lines, node.places, strict=True)
            for group in line[:at]
            for op in group
        ]
        before.sort(key=lambda op: op.completed if op.completed != math.inf else op.invoked)
        there = (
            "no value"
            if state.version == ABSENT
            else f"{(state.value or b'').decode()}, version {state.version}"
        )
        evidence = [
            f"after {len(before)} operations there is {there}, revision {state.revision};",
            "then cannot follow:",
            *map(str, heads),
            "the last before:",
            *map(str, before[-8:]),
        ]
        return Violation(_name(heads[0], state), self._path, "\n        ".join(evidence))


def _least_from(line: Sequence[Sequence[Op]]) -> list[float]:
    least = math.inf
    backwards = [least]
    for group in reversed(line):
        least = min(least, *[op.completed for op in group])
        backwards.append(least)
    return backwards[::-1]


def _after(op: Op, state: _State) -> _State | None:
    """Return the state of the path after an operation, or ``None`` if it has no place here."""
    if op.outcome == "refused":
        return state if _is_right_to_refuse(op, state) else None
    if op.kind == "get":
        if op.found is None:
            return state if state.version == ABSENT else None
        fits = (state.value, state.version) == (op.found, op.version)
        return state if fits and state.revision == op.revision else None
    if op.kind == "exists":
        return state if op.there == (state.version != ABSENT) else None
    # A write that is known as applied, but has no result, may have been applied despite its
    # condition.
    against = op.outcome == "unknown" and op.applied
    if op.expected is not None and op.expected != state.version and not against:
        return None
    if op.kind == "delete":
        return None if state.version == ABSENT else _State(ABSENT, None, state.revision)
    version = state.version + 1
    if op.version is not None and op.version != version:
        return None
    if op.revision is None:
        return _State(version, op.value, state.revision)
    return _State(version, op.value, op.revision) if op.revision > state.revision else None


def _is_right_to_refuse(op: Op, state: _State) -> bool:
    if op.error == "NotFoundError":
        return state.version == ABSENT
    if op.error != "BadVersionError" or op.expected is None or op.expected == state.version:
        return False
    return op.actual is None or op.actual == state.version


def _name(op: Op, state: _State) -> str:
    """Name the violation of an operation that has no place after a state."""
    if op.outcome == "refused":
        if op.error == "BadVersionError" and op.expected == state.version:
            return "false conflict"
        return "false refusal"
    if op.kind == "get" and op.revision is not None:
        return "misordered" if op.revision > state.revision else "lost write, or a stale read"
    if op.kind in {"get", "exists"}:
        return "lost write, or a stale read"
    if op.expected is not None and op.expected != state.version:
        return "false success"
    if op.version is not None and op.version <= state.version:
        return "lost write, or a version used twice"
    return "misordered"
