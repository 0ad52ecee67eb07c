"""Transactions: which ops of a multi they become, and which of their parts does not hold.

The parts of a transaction stand in one multi, one after the other, in the transaction's order. No
other request of the multi changes their paths, so only parents and children matter. Where these
would disturb a transaction, it waits for the next round:

- It deletes a path below which another request puts or deletes.
- It puts a path that another request needs as a parent, and so creates without a value.
- It puts below a path that another transaction deletes, or that becomes ephemeral.

A multi is all or nothing, so nobody sees a state within it. Two things make use of that:

- A check for ABSENT creates a node and deletes it again. If parents are missing, too, it is enough
  to do that with the topmost missing one. Below an ephemeral node, that node is checked instead.
- If a transaction puts a path and, before that, a path below it, it creates both with their values
  at once. On its own, the first would need the other as a parent, and the other would then begin at
  version 1.
"""

from __future__ import annotations

from collections import ChainMap, Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias, assert_never, cast

from ....ops.errors import MetadataStoreError
from ....ops.steps import PutNext, PutValue, Step
from ..wire.errors import NO_CHILDREN, refused
from ..wire.jute import (
    CHECK,
    CREATE,
    DELETE,
    EPHEMERAL,
    PROBE,
    REPLACE,
    SET_DATA,
    Op,
    ZNode,
    header_and_length,
    length,
    version_field,
)
from ..wire.nodes import NULL, VALUE_MARK
from .batches import UNDECIDED, Batch, parent_of
from .forms import ANY_VERSION, Form, is_unproven, refusal
from .groups import CREATE_OVERHEAD, DELETE_OVERHEAD, Changes, Group

__all__ = [
    "NodeOrError",
    "TransactionPlanner",
    "below_ephemeral",
    "note_shelters",
    "refuse_part",
]

#: The state of a path: a node, ``None`` for none, or the error of one that cannot be read.
NodeOrError: TypeAlias = ZNode | MetadataStoreError | None


_CREATIONS: Final = (CREATE, EPHEMERAL, REPLACE)
_CHANGES: Final = (SET_DATA, DELETE, CHECK)

# Nodes that a transaction would have created: a parent, a value, an ephemeral value.
_PLANTED: Final = ZNode(None, NULL, 0, 0, 0, 0, 0, 0, 0)
_PUT: Final = _PLANTED._replace(size=0)
_FLEETING: Final = _PUT._replace(owner=-1)


class _Draft(Group):
    """The ops of one transaction."""

    __slots__ = ("changes", "creations", "deletes", "forms", "pending", "there", "touched")

    def __init__(self, forms: dict[int, Form], paths: Sequence[str]) -> None:
        super().__init__()
        #: What it does to the tree.
        self.changes = Changes(set())
        #: The paths that it puts or deletes.
        self.touched: list[str] = []
        #: How to send its parts.
        self.forms = forms
        #: Parts that have no ops yet.
        self.pending = set(forms)
        #: The parts that create their paths, and the paths that other parts expect to exist.
        self.creations = {paths[k]: k for k, (opcode, *_) in forms.items() if opcode in _CREATIONS}
        self.there = {paths[k] for k, (opcode, *_) in forms.items() if opcode in _CHANGES}
        self.deletes = {paths[k] for k, (opcode, *_) in forms.items() if opcode == DELETE}


#: Returns the multi with room for a size and a request, or ``None`` if the request is too large.
Fit: TypeAlias = Callable[[int, int], Group | None]


class TransactionPlanner:
    """Turns transactions into ops, for one round.

    ``others`` are the other requests in it. ``mark_last`` marks the last value of the multi if the
    transaction, which it takes by its place, creates something directly below it next.
    """

    def __init__(
        self,
        batch: Batch,
        acl: bytes,
        changes: Changes,
        others: Sequence[int],
        mark_last: Callable[[str, int], None],
    ) -> None:
        self._batch = batch
        self._acl = acl
        self._changes = changes
        self._mark_last = mark_last
        # The paths that requests in the plan put or delete. All paths above those that have been
        # taken from the list are in the set; most plans need none.
        self._touched = [batch.paths[i] for i in others]
        self._above: set[str] = set()
        # The parent of the last creation. It stays, and the next creation below it needs no mark.
        self._last_parent = ""

    def add_all(self, fit: Fit) -> None:
        """Add the transactions that need not wait."""
        batch = self._batch
        for whole in batch.pending:
            if whole in batch.parts:
                group = self._add_flat(whole, fit) or self._add_draft(whole, fit)
                if group is not None:
                    group.transactions.append(whole)
                    if whole in batch.ephemerals:
                        group.session = batch.session

    def _add_flat(  # noqa: C901 - in one piece: every transaction pays for each call
        self, whole: int, fit: Fit
    ) -> Group | None:
        """Add a transaction that touches neither parents nor children of its paths.

        Most transactions are like that, and this costs a third of a draft. Returns its multi, or
        ``None`` if it is another one, or fits in none.
        """
        batch = self._batch
        paths, fixed = batch.paths, batch.fixed
        size, created, new_parent, last_parent = 0, None, None, self._last_parent
        pieces: list[bytes] = []
        made: list[Op] = []
        touched: list[str] = []
        checks: list[tuple[int, str, bytes, int]] = []
        for k in batch.parts[whole]:
            path = paths[k]
            opcode, version, value = fixed.get(k) or batch.form(k)
            raw = path.encode()
            path_bytes = len(raw)
            if opcode == CHECK:
                checks.append((k, path, raw, version))
                size += DELETE_OVERHEAD + path_bytes
                continue
            if opcode == CREATE:
                parent = path[: path.rindex("/")]
                if (parent != last_parent or self._changes.planted) and not self._is_leaf(path):
                    return None
                tail = self._acl
                if created is None and parent != last_parent:
                    new_parent = parent
                created, last_parent = created or path, parent
            elif opcode == SET_DATA:
                tail = version_field(version)
            else:
                return None
            pieces += (header_and_length(opcode, path_bytes), raw, length(len(value)), value, tail)
            size += CREATE_OVERHEAD + path_bytes + len(value) + len(tail)
            made.append((opcode, k, path_bytes))
            touched.append(path)
        if new_parent is not None:
            self._mark_last(new_parent, whole)
        group = fit(size, whole)
        if group is None:
            return None
        group.size += size
        checked = group.checked
        for k, path, raw, version in checks:
            if k not in fixed and is_unproven(batch.step(k).condition):
                group.unproven.append(k)
            # Many writes may check one owner's record.
            if made and checked.get(path) == version:
                continue
            checked[path] = version
            group.ops.append((CHECK, k, len(raw)))
            group.parts += (header_and_length(CHECK, len(raw)), raw, version_field(version))
        group.parts += pieces
        group.ops += made
        group.operations += 1
        group.created = group.created or created
        self._changes.made.update(touched)
        self._touched += touched
        self._last_parent = last_parent
        return group

    def _is_leaf(self, path: str) -> bool:
        """Say whether a path can be created as it is, below a parent that is there and stays."""
        changes = self._changes
        parent = parent_of(path)
        if path in changes.planted:
            return False
        if not parent:
            return True
        known = parent in changes.made or self._batch.nodes.size(parent) is not None
        return known and not changes.concern(parent)

    def _add_draft(self, whole: int, fit: Fit) -> Group | None:
        """Add any transaction; return its multi, or ``None`` if it has to wait or fits in none."""
        batch = self._batch
        if batch.answers[whole] is not UNDECIDED:
            return None  # It is too large for any multi.
        draft = _Draft({k: batch.form(k) for k in batch.parts[whole]}, batch.paths)
        for k in draft.forms:
            if k in draft.pending and not self._add(draft, k):
                return None
        if draft.created is not None:
            self._mark_last(parent_of(draft.created), whole)
        group = fit(draft.size, whole)
        if group is not None:
            group.merge(draft)
            self._changes.merge(draft.changes)
            self._touched += draft.touched
            self._last_parent = ""
        return group

    def _is_above(self, path: str) -> bool:
        """Say whether a path lies above one that another request of the plan puts or deletes."""
        while self._touched:
            parent = parent_of(self._touched.pop())
            while parent and parent not in self._above:
                self._above.add(parent)
                parent = parent_of(parent)
        return path in self._above

    def _add(self, draft: _Draft, k: int) -> bool:
        """Add the ops of a part; say whether the transaction can be in this round."""
        batch, own = self._batch, draft.changes
        opcode, version, _ = form = draft.forms[k]
        path = batch.paths[k]
        draft.pending.discard(k)
        if opcode in _CREATIONS:
            return self._create(draft, k)
        if opcode == SET_DATA:
            draft.add_put(k, path, form, self._acl)
            draft.touched.append(path)
        elif opcode == DELETE:
            if self._is_above(path):
                return False
            draft.add_delete(k, path, version)
            own.removed.add(path)
            own.made.discard(path)
            draft.touched.append(path)
        elif opcode == CHECK:
            draft.add_check(k, path, version)
            if is_unproven(batch.step(k).condition):
                draft.unproven.append(k)
        else:
            assert opcode == PROBE
            return self._probe(draft, k)
        return True

    def _create(self, draft: _Draft, k: int) -> bool:
        """Create the path of a part."""
        opcode, _, _ = form = draft.forms[k]
        path, own = self._batch.paths[k], draft.changes
        if path in self._changes.planted or not self._need(draft, k):
            return False
        self._mark(draft, k, path)
        draft.add_put(k, path, form, self._acl)
        if opcode != CREATE:
            own.fleeting.add(path)
        own.made.add(path)
        draft.touched.append(path)
        return True

    def _mark(self, draft: _Draft, k: int, path: str) -> None:
        """Mark a value if the next op creates something below it.

        In the events of the multi, the value would look like a parent otherwise (see ``events``).
        """
        above = draft.last_value(self._batch.paths)
        if above is not None and path.startswith(above + "/"):
            draft.add_probe(k, above + VALUE_MARK, self._acl)

    def _probe(self, draft: _Draft, k: int) -> bool:
        """Check that there is no value at a path."""
        path = self._batch.paths[k]
        if path in draft.changes.planted:
            return True  # This transaction has created it, as a parent without a value.
        if path in self._changes.planted:
            return False
        top, parent = path, parent_of(path)
        while parent and not self._is_there(draft, parent):
            top, parent = parent, parent_of(parent)
        if parent in draft.changes.fleeting:
            return True  # It has created an ephemeral node, below which there is nothing.
        if not self._is_firm(parent):
            return False
        shelter, _ = self._batch.shelters.get(k, ("", 0))
        if not shelter or parent != shelter:
            draft.add_absence(k, top, self._acl)
        elif shelter in self._changes.deleted:
            return False
        elif shelter not in draft.deletes:
            # Without a node that it deletes itself: that has nothing below it either.
            draft.add_check(k, shelter, ANY_VERSION)
            draft.unproven.append(k)
        return True

    def _need(self, draft: _Draft, k: int) -> bool:
        """Create the parents of a part that are not known to exist; say whether it may follow."""
        own, missing = draft.changes, []
        parent = parent_of(self._batch.paths[k])
        while parent and not self._is_there(draft, parent):
            missing.append(parent)
            parent = parent_of(parent)
        if not self._is_firm(parent):
            return False
        own.kept |= self._changes.deleted.intersection((parent, *missing))
        for path in reversed(missing):
            later = draft.creations.get(path)
            if later in draft.pending:
                if not self._add(draft, later):
                    return False
            else:
                self._mark(draft, k, path)
                draft.add_parent(k, path, self._acl)
                own.made.add(path)
                own.planted.add(path)
        return True

    def _is_there(self, draft: _Draft, path: str) -> bool:
        """Say whether a node is assumed to exist when the next op of a draft is executed."""
        own = draft.changes
        if path in own.made:
            return True
        if path in own.removed:
            return False
        return (
            path in draft.there
            or path in self._changes.made
            or self._batch.nodes.size(path) is not None
        )

    def _is_firm(self, parent: str) -> bool:
        """Say whether no other request of the plan removes a path, or makes it ephemeral."""
        return parent not in self._changes.removed and parent not in self._changes.fleeting


def refuse_part(batch: Batch, whole: int, nodes: Mapping[str, NodeOrError]) -> None:
    """Refuse a transaction if one of its parts does not hold, by the nodes that were found.

    Args:
        batch: the call.
        whole: the transaction.
        nodes: what was found at the paths of its parts and above them.
    """
    # Over what was found, what earlier parts have made of paths.
    tree = ChainMap({}, cast("dict[str, NodeOrError]", nodes))
    children: Counter[str] = Counter()  # what earlier parts add to the numbers of children
    for k in batch.parts[whole]:
        step, path = batch.step(k), batch.paths[k]
        node = tree.get(path)
        if isinstance(node, MetadataStoreError):
            batch.refuse(k, node.for_path(step.path))
            return
        if node is not None and children[path]:
            node = node._replace(children=node.children + children[path])
        error = refusal(step, node) or _apply(step, path, node, tree, children)
        if error is not None:
            batch.refuse(k, error)
            return


def _apply(
    step: Step,
    path: str,
    node: ZNode | None,
    tree: ChainMap[str, NodeOrError],
    children: Counter[str],
) -> MetadataStoreError | None:
    """Change a tree as a step does; return an error if the tree does not allow it."""
    effect = step.effect
    match effect:
        case PutValue(_, ephemeral):
            allowed = node is not None or _grow(tree, children, path)
            if node is None or (ephemeral and node.size == NULL):
                tree[path] = _FLEETING if ephemeral else _PUT
            return None if allowed else refused(NO_CHILDREN, step.path)
        case "delete":
            tree[path] = None
            children[parent_of(path)] -= 1
        case "nothing":
            pass
        case PutNext():
            raise AssertionError("a sequential put in a transaction")
        case _:
            assert_never(effect)
    return None


def _grow(tree: ChainMap[str, NodeOrError], children: Counter[str], path: str) -> bool:
    """Create a path and its parents in a tree; say whether the tree allows it."""
    parent = parent_of(path)
    children[parent] += 1
    while parent and tree.get(parent) is None:
        tree[parent] = _PLANTED
        parent = parent_of(parent)
        children[parent] += 1
    return not _is_ephemeral(tree.get(parent))


def note_shelters(batch: Batch, whole: int, nodes: Mapping[str, NodeOrError]) -> None:
    """Note the checks for ABSENT of a transaction that cannot create a node to show it.

    ZooKeeper creates nothing below an ephemeral node. As long as that is there, the check holds.
    """
    for k in batch.parts[whole]:
        step = batch.step(k)
        batch.shelters.pop(k, None)
        if step.effect == "nothing" and step.condition == "absent":
            path = _nearest(batch.paths[k], nodes)
            node = nodes.get(path)
            if isinstance(node, ZNode) and node.owner != 0:
                batch.shelters[k] = path, node.created_zxid


def below_ephemeral(path: str, nodes: Mapping[str, NodeOrError]) -> bool:
    """Say whether a path without a node lies below an ephemeral one."""
    return _is_ephemeral(nodes.get(_nearest(path, nodes)))


def _nearest(path: str, nodes: Mapping[str, NodeOrError]) -> str:
    """Return the path of the nearest node above a path; ``""`` if there is none."""
    parent = parent_of(path)
    while parent and nodes.get(parent) is None:
        parent = parent_of(parent)
    return parent


def _is_ephemeral(node: NodeOrError) -> bool:
    return isinstance(node, ZNode) and node.owner != 0
