"""Is there an order of a history's operations that explains all that the stores said?

Paths are independent, so each is looked at by itself. On one path an order has to be found in
which

- operations of one store stand in the order of their submission; reads between two writes may
  change places with each other, since a read waits for the earlier writes of its path only,
- an operation stands before every one that was called after it had ended (real time),
- every result and every refusal is what the operations before it make of it: values, versions
  (0 after a creation, one more with every put), and revisions, which grow,
- what ended as not applied has no place, and what ended as unknown may have one or not.

If there is none, the first operations that have no place in the longest order that was found are
reported. The search is exact: it goes through all orders that differ, and since the operations of
a store on a path stand in one line, these are few: where the search stands is a place in each
store's line, and what the path looks like.
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
    """Something that must not be: its kind in a few words, and the evidence."""

    rule: str
    path: str
    evidence: str

    def __str__(self) -> str:
        return f"{self.path}: {self.rule}\n    {self.evidence}"


class _State(NamedTuple):
    """What a path looks like; ``revision`` is the last one that is known."""

    version: int = ABSENT
    value: bytes | None = None
    revision: int = -1


#: Where the search stands in a line: at which group, and which of the group have their place, as
#: bits. A group is one write, or all the reads between two writes.
_Place: TypeAlias = tuple[int, int]


class _Node(NamedTuple):
    """Where the search stands in each line, and what the path looks like there."""

    places: tuple[_Place, ...]
    state: _State


def check(history: Iterable[Op]) -> list[Violation]:
    """Return what is wrong with a history; nothing if it can be explained."""
    paths: defaultdict[str, list[Op]] = defaultdict(list)
    for op in history:
        paths[op.path].append(op)
    return [violation for path in sorted(paths) for violation in _check_path(path, paths[path])]


def explain(violations: Sequence[Violation]) -> str:
    """Return violations as a text for people."""
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


# What needs no search


def _plainly_wrong(path: str, ops: Sequence[Op]) -> Iterator[Violation]:
    puts = {op.value: op for op in ops if op.kind == "put"}
    seen: dict[bytes, Op] = {}  # by value: the first operation that told its version
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
    """Note of writes with an unknown outcome that they happened, where their value was seen."""
    unknown = {op.value: op for op in ops if op.kind == "put" and op.outcome == "unknown"}
    for op in ops:
        if op.kind == "get" and op.found is not None and (writer := unknown.get(op.found)):
            writer.applied = True
            writer.version, writer.revision = op.version, op.revision


# The search


class _Search:
    """Looks for an order of the operations on one path, those of each store in their own line."""

    def __init__(self, path: str, lines: Sequence[Sequence[Sequence[Op]]]) -> None:
        self._path = path
        self._lines = lines
        # For each line, the earliest end among the groups from one on.
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
        """Give the operations that are next in their lines: line, number in the group, itself."""
        for index, (group, done) in enumerate(places):
            if group < len(self._lines[index]):
                for number, op in enumerate(self._lines[index][group]):
                    if not done >> number & 1:
                        yield index, number, op

    def _settle(self, node: _Node) -> _Node:
        """Give a place to all that can have one now and changes nothing: that is never wrong."""
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
        """Return where a write leads to, the likeliest last."""
        maybe, certain = [], []
        for index, number, op in self._heads(node.places):
            if not op.writes or op.outcome == "refused":
                continue  # It has no place here, or it would have it.
            places = self._one_on(node.places, index, number)
            after = _after(op, node.state) if self._may(node.places, op) else None
            optional = op.outcome == "unknown" and not op.applied
            if after is not None:
                (maybe if optional else certain).append(_Node(places, after))
            if optional:
                maybe.append(_Node(places, node.state))
        return [*maybe, *certain]

    def _may(self, places: Sequence[_Place], op: Op) -> bool:
        """Say whether an operation was called before all others that have no place had ended."""
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

    # What to tell

    def _count(self, node: _Node) -> int:
        return sum(group for group, _ in node.places)

    def _stuck(self, node: _Node) -> Violation:
        state = node.state
        heads = [op for _, _, op in self._heads(node.places)]
        # The one that ended first had to have its place first.
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
    """Return what the path looks like after an operation; ``None`` if it cannot have its place."""
    if op.outcome == "refused":
        return state if _is_right_to_refuse(op, state) else None
    if op.kind == "get":
        if op.found is None:
            return state if state.version == ABSENT else None
        fits = (state.value, state.version) == (op.found, op.version)
        return state if fits and state.revision == op.revision else None
    if op.kind == "exists":
        return state if op.there == (state.version != ABSENT) else None
    # One that is known to have happened without its result may have done so against its condition.
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
    """Name what is wrong with an operation that can have no place after a state."""
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
