"""Calls with parents, children and transactions: some order of the requests explains the outcomes.

The model is a tree of nodes as ZooKeeper has it: parents are nodes without a value, which stay when
their children go.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count, permutations
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from batchkeeper.ops import (
    ABSENT,
    BadVersionError,
    Check,
    Delete,
    Exists,
    NotEmptyError,
    NotFoundError,
    Put,
    Transaction,
    TransactionRefusedError,
    UnsupportedError,
)
from batchkeeper.stores.zookeeper.backend import ZooKeeperBackend

from ..calls import read, write
from .opening import in_session

PATHS = ("/a", "/a/b", "/a/b/c", "/d", "/d/e")


class Node(NamedTuple):
    version: int = 0
    holds: bool = True
    ephemeral: bool = False


Tree = dict[str, Node]


def above(path: str) -> list[str]:
    """Return the paths above a path, the nearest first."""
    parts = path.split("/")
    return ["/".join(parts[:n]) for n in range(len(parts) - 1, 1, -1)]


def execute(tree: Tree, op: Any) -> tuple[Tree, Any]:
    """Return the tree after an operation, and what it says."""
    if op.kind == "transaction":
        after, said = tree, []
        for index, part in enumerate(op.options.parts):
            before, (after, answer) = after, execute(after, part)
            if isinstance(answer, type):
                return tree, (index, answer)
            if answer == 1 and part.path not in tree and not before[part.path].holds:
                # A parent that the transaction itself has made gets its value with its creation.
                after, answer = {**after, part.path: Node()}, 0
            said.append(answer)
        return after, said
    node = tree.get(op.path)
    children = any(path.startswith(op.path + "/") for path in tree)
    actual = node.version if node and node.holds else ABSENT
    holds = op.expected_version in (None, actual)
    if op.kind == "check":
        return tree, None if holds else BadVersionError
    if op.kind == "delete":
        if actual != ABSENT and not holds:
            return tree, BadVersionError
        if children:
            return tree, NotEmptyError
        if node is None or (actual == ABSENT and op.expected_version not in (None, node.version)):
            return tree, NotFoundError
        return {path: node for path, node in tree.items() if path != op.path}, None
    return put(tree, op, holds, children)


def put(tree: Tree, op: Any, holds: bool, children: bool) -> tuple[Tree, Any]:
    if not holds:
        return tree, BadVersionError
    node, ephemeral = tree.get(op.path), op.options is not None and op.options.ephemeral
    if node is None:
        if any(tree[path].ephemeral for path in above(op.path) if path in tree):
            return tree, UnsupportedError
        made = Node(ephemeral=ephemeral)
        parents = {path: Node(holds=False) for path in above(op.path) if path not in tree}
        return {**tree, **parents, op.path: made}, 0
    if ephemeral and not node.holds:
        if children:
            return tree, UnsupportedError
        return {**tree, op.path: Node(ephemeral=True)}, 0
    set_ = Node(node.version + 1, True, node.ephemeral)
    return {**tree, op.path: set_}, set_.version


def plain(answer: Any) -> Any:
    """Return an answer as the model says it."""
    if isinstance(answer, TransactionRefusedError):
        return answer.index, type(answer.error)
    if isinstance(answer, Exception):
        return type(answer)
    if isinstance(answer, list):
        return [plain(part) for part in answer]
    return None if answer is None else answer.version


def explained(tree: Tree, ops: Sequence[Any], answers: Sequence[Any]) -> list[Tree]:
    """Return the trees that an order of the operations leaves which gives these answers."""
    trees = []
    for order in permutations(range(len(ops))):
        after = tree
        for i in order:
            after, said = execute(after, ops[i])
            if said != answers[i]:
                break
        else:
            trees.append(after)
    return trees


def _parts(path: str) -> st.SearchStrategy[Any]:
    expected = st.sampled_from([None, None, ABSENT, 0, 1])
    return st.one_of(
        st.builds(Put, st.just(path), st.just(b"v"), expected, ephemeral=st.booleans()),
        st.builds(Delete, st.just(path), st.sampled_from([None, None, 0])),
        _check(path),
    )


def _check(path: str) -> st.SearchStrategy[Any]:
    return st.builds(Check, st.just(path), st.sampled_from([ABSENT, 0, 1]))


@st.composite
def calls(draw: st.DrawFn) -> list[Any]:
    """Draw the requests of a call: each path occurs once, or is checked any number of times."""
    paths = draw(st.permutations(PATHS))
    checked = draw(st.sampled_from([0, 0, 1, 2]))
    paths, shared = paths[checked:], paths[:checked]
    ops: list[Any] = []
    while paths:
        size = draw(st.integers(1, len(paths)))
        checks = [draw(_check(path)) for path in shared if draw(st.booleans())]
        parts = draw(st.permutations([*[draw(_parts(path)) for path in paths[:size]], *checks]))
        paths = paths[size:]
        if len(parts) == 1 and not isinstance(parts[0], Check):
            ops += parts
        else:
            ops.append(Transaction(parts))
    return ops


_roots = count()


def _below(root: str, op: Any) -> Any:
    """Return an operation with its paths moved below a root."""
    if op.kind == "transaction":
        return Transaction([_below(root, part) for part in op.options.parts])
    if op.kind == "put":
        return Put(root + op.path, op.value, op.expected_version, options=op.options)
    return type(op)(root + op.path, op.expected_version)


# kazoo's thread draws random numbers, which Hypothesis takes for those of a strategy.
@pytest.mark.filterwarnings("ignore:Do not use the `random` module")
@settings(
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(history=st.lists(calls(), min_size=1, max_size=3))
def test_some_order_explains_every_call(backend: ZooKeeperBackend, history: list[Any]) -> None:
    """Each call ends as if its requests had been executed one after the other, in some order."""
    root = f"/r{next(_roots)}"
    write(backend, Put(root, b""))
    trees: list[Tree] = [{}]
    for ops in history:
        said = write(backend, *[in_session(backend, _below(root, op)) for op in ops])
        answers = [plain(answer) for answer in said]
        trees = [after for tree in trees for after in explained(tree, ops, answers)]
        assert trees, (history, ops, said)

    exists = read(backend, *[Exists(root + path) for path in PATHS])
    held = [[path in tree and tree[path].holds for path in PATHS] for tree in trees]
    assert exists in held
