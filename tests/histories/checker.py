"""Checks whether an order of a history's operations explains all answers of the stores.

Paths are independent unless a transaction joins them. So each is checked separately, or together
with those that transactions join to it. The order must meet these rules:

- Operations of one store on one path are in the order of their submission. Reads between two writes
  may change places with each other, because a read waits only for the earlier writes of its path.
- An operation precedes every operation that was called after its end (real time).
- Every result and every refusal follows from the operations before it: values, versions (0 after a
  creation, one more with every put), and revisions, which grow.
- Operations that were not applied have no place. Operations with an unknown outcome may have a
  place or none.
- A transaction has one place in the lines of all its paths; it is a read of those that it only
  checks. Its parts take effect there one after the other, or none does.

If there is no such order, the checker reports the first operations that have no place in the
longest order found. The search is exact: it covers all different orders. There are few of them,
because the operations of a store on a path form one line. A state of the search consists of a
place in each line, and the states of the paths.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

from .history import Op, Outcome

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

#: The states of the paths searched together.
_States: TypeAlias = tuple[_State, ...]


class _Node(NamedTuple):
    """The place of the search in each line, and the states of the paths there."""

    places: tuple[_Place, ...]
    states: _States


def check(history: Iterable[Op]) -> list[Violation]:
    """Return the violations in a history; none if an order explains it."""
    joined = _joined(history)
    return [violation for paths, ops in joined for violation in _check_paths(paths, ops)]


def explain(violations: Sequence[Violation]) -> str:
    """Return violations as text."""
    return "\n".join([f"{len(violations)} violations", *map(str, violations[:20])])


def _joined(history: Iterable[Op]) -> list[tuple[list[str], list[Op]]]:
    """Return the paths that transactions join, each group with its operations."""
    group_of: dict[str, list[str]] = {}
    ops = list(history)
    for op in ops:
        first = group_of.setdefault(op.paths[0], [op.paths[0]])
        for path in op.paths[1:]:
            other = group_of.setdefault(path, [path])
            if other is not first:
                first += other
                for moved in other:
                    group_of[moved] = first
    groups = {id(group): (sorted(group), list[Op]()) for group in group_of.values()}
    for op in ops:
        groups[id(group_of[op.path])][1].append(op)
    return sorted(groups.values(), key=lambda group: group[0])


def _check_paths(paths: Sequence[str], ops: Sequence[Op]) -> list[Violation]:
    single = [part for op in ops for part in (op.parts or [op])]
    plain = [
        violation
        for path in paths
        for violation in _plainly_wrong(path, [op for op in single if op.path == path])
    ]
    if plain:
        return plain
    _learn(ops)
    lines: defaultdict[tuple[str, str], list[list[Op]]] = defaultdict(list)
    for op in ops:
        if op.outcome == "not_applied":
            continue
        for path in op.paths:
            line = lines[op.chain, path]
            if not line or _changes(op, path) or _changes(line[-1][0], path):
                line.append([])
            line[-1].append(op)
    return _Search(paths, list(lines.values())).run()


def _changes(op: Op, path: str) -> bool:
    """Say whether an operation may change what is at one of its paths."""
    if op.parts:
        return any(part.kind != "check" and part.path == path for part in op.parts)
    return op.writes


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
    unknown = {
        part.value: (op, part)
        for op in ops
        if op.outcome == "unknown"
        for part in (op.parts or [op])
        if part.kind == "put"
    }
    for op in ops:
        if op.kind == "get" and op.found is not None and op.found in unknown:
            whole, writer = unknown[op.found]
            whole.applied = writer.applied = True
            writer.version, writer.revision = op.version, op.revision


# The search


class _Search:
    """Searches for an order of the operations on some paths.

    Args:
        paths: the paths.
        lines: a line for each store and path. A transaction is in several.
    """

    def __init__(self, paths: Sequence[str], lines: Sequence[Sequence[Sequence[Op]]]) -> None:
        self._paths = paths
        self._index = {path: index for index, path in enumerate(paths)}
        self._lines = lines
        # For each line and group, the earliest end among the operations of this and later groups.
        self._ends = [_least_from(line) for line in lines]
        # The lines of each transaction.
        self._at: defaultdict[int, list[int]] = defaultdict(list)
        for number, line in enumerate(lines):
            for group in line:
                for op in group:
                    if op.parts:
                        self._at[id(op)].append(number)

    def run(self) -> list[Violation]:
        whole = tuple((len(line), 0) for line in self._lines)
        start = _Node(tuple((0, 0) for _ in whole), tuple(_State() for _ in self._paths))
        best = self._settle(start)
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

    def _first(self, places: Sequence[_Place]) -> Iterator[tuple[int, int, Op]]:
        """Yield the first operations of the lines: line, number in the group, operation."""
        for index, (group, done) in enumerate(places):
            if group < len(self._lines[index]):
                for number, op in enumerate(self._lines[index][group]):
                    if not done >> number & 1:
                        yield index, number, op

    def _heads(self, places: Sequence[_Place]) -> Iterator[tuple[int, int, Op]]:
        """Yield the operations that come next in all of their lines, each once."""
        for index, number, op in self._first(places):
            lines = self._at[id(op)] if op.parts else [index]
            if index == lines[0] and all(self._is_next(places, line, op) for line in lines[1:]):
                yield index, number, op

    def _is_next(self, places: Sequence[_Place], line: int, op: Op) -> bool:
        group, _ = places[line]
        return group < len(self._lines[line]) and any(
            other is op for other in self._lines[line][group]
        )

    def _settle(self, node: _Node) -> _Node:
        """Give a place to all operations that can have one and change nothing.

        This never excludes an order.
        """
        places, states = node
        while True:
            for index, number, op in self._heads(places):
                changes = op.writes and op.outcome != "refused"
                if not changes and self._may(places, op) and self._after(op, states) is not None:
                    places = self._one_on(places, index, number, op)
                    break
            else:
                return _Node(places, states)

    def _nexts(self, node: _Node) -> list[_Node]:
        """Return the nodes that follow by one write, the likeliest last."""
        maybe, certain = [], []
        for index, number, op in self._heads(node.places):
            if not op.writes or op.outcome == "refused":
                continue  # It has no place here: otherwise, `_settle` had given it one.
            places = self._one_on(node.places, index, number, op)
            after = self._after(op, node.states) if self._may(node.places, op) else None
            optional = op.outcome == "unknown" and not op.applied
            if after is not None:
                (maybe if optional else certain).append(_Node(places, after))
            if optional:
                maybe.append(_Node(places, node.states))
        return [*maybe, *certain]

    def _after(self, op: Op, states: _States) -> _States | None:
        """Return the states after an operation, or ``None`` if it has no place here."""
        for number, part in enumerate(op.parts or [op]):
            index = self._index[part.path]
            if op.parts and op.outcome == "refused":
                if number == op.refused_at:
                    return states if _is_right_to_refuse(part, states[index]) else None
                # The parts before it would have held, one after the other.
                after = _after(part, states[index], outcome="done")
            else:
                after = _after(part, states[index], outcome=op.outcome)
            if after is None:
                return None
            states = (*states[:index], after, *states[index + 1 :])
        return states

    def _may(self, places: Sequence[_Place], op: Op) -> bool:
        """Say whether an operation was called before the end of all others without a place."""
        for index, (group, _) in enumerate(places):
            if group < len(self._lines[index]) and self._ends[index][group + 1] < op.invoked:
                return False
        return all(first.completed >= op.invoked for _, _, first in self._first(places))

    def _one_on(
        self, places: tuple[_Place, ...], index: int, number: int, op: Op
    ) -> tuple[_Place, ...]:
        taken = list(places)
        for line in self._at[id(op)] if op.parts else [index]:
            group, done = places[line]
            ops = self._lines[line][group]
            done |= 1 << (
                number if line == index else next(k for k, o in enumerate(ops) if o is op)
            )
            taken[line] = (group + 1, 0) if done + 1 == 1 << len(ops) else (group, done)
        return tuple(taken)

    # The report

    def _count(self, node: _Node) -> int:
        return sum(group for group, _ in node.places)

    def _stuck(self, node: _Node) -> Violation:
        # By identity, because a transaction is in several lines.
        heads = [*{id(op): op for _, _, op in self._first(node.places)}.values()]
        # The operation that ended first should have had its place first.
        heads.sort(key=lambda op: op.completed)
        before = [
            op
            for line, (at, _) in zip(self._lines, node.places, strict=True)
            for group in line[:at]
            for op in group
        ]
        before.sort(key=lambda op: op.completed if op.completed != math.inf else op.invoked)
        evidence = [
            f"after {len(before)} operations there is",
            *(
                f"{path}: {_described(state)}"
                for path, state in zip(self._paths, node.states, strict=True)
            ),
            "then cannot follow:",
            *map(str, heads),
            "the last before:",
            *map(str, before[-8:]),
        ]
        where = ", ".join(self._paths)
        return Violation(self._name(heads[0], node.states), where, "\n        ".join(evidence))

    def _name(self, op: Op, states: _States) -> str:
        if op.parts:
            if op.outcome == "refused":
                return "false refusal of a transaction"
            return "a transaction that is not atomic, or a false success"
        return _name(op, states[self._index[op.path]])


def _described(state: _State) -> str:
    if state.version == ABSENT:
        return f"no value, revision {state.revision}"
    return f"{(state.value or b'').decode()}, version {state.version}, revision {state.revision}"


def _least_from(line: Sequence[Sequence[Op]]) -> list[float]:
    least = math.inf
    backwards = [least]
    for group in reversed(line):
        least = min(least, *[op.completed for op in group])
        backwards.append(least)
    return backwards[::-1]


def _after(op: Op, state: _State, outcome: Outcome) -> _State | None:
    """Return the state of the path after an operation, or ``None`` if it has no place here."""
    if outcome == "refused":
        return state if _is_right_to_refuse(op, state) else None
    if op.kind == "check":
        return state if op.expected == state.version else None
    if op.kind == "get":
        if op.found is None:
            return state if state.version == ABSENT else None
        fits = (state.value, state.version) == (op.found, op.version)
        return state if fits and state.revision == op.revision else None
    if op.kind == "exists":
        return state if op.there == (state.version != ABSENT) else None
    # A write that is known as applied, but has no result, may have been applied despite its
    # condition.
    against = outcome == "unknown" and op.applied
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
