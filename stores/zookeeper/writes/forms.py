"""The forms of writes: what each condition with each effect becomes in a multi.

``plan`` sends a step in its form: as a ``create``, ``setData``, ``delete`` or ``check``. From there
on, answers are read by the opcode.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias, assert_never

from ....ops.errors import MetadataStoreError, UnsupportedError
from ....ops.operations import ABSENT, PutOptions
from ....ops.steps import At, Condition, PartRequest, PutNext, PutValue, Step
from ...backend import is_plain_put
from ...refusals import NO_VALUE, State, decide
from ..wire.jute import (
    CHECK,
    CREATE,
    DELETE,
    EPHEMERAL,
    PROBE,
    REPLACE,
    SEQUENTIAL,
    SET_DATA,
    WriteOpcode,
    ZNode,
)
from ..wire.nodes import NULL, Nodes

__all__ = [
    "ANY_VERSION",
    "ONLY_EPHEMERAL",
    "ONLY_SEQUENTIAL",
    "UNREAD",
    "Form",
    "KnownNode",
    "fixed_form",
    "form_of",
    "is_ephemeral",
    "is_unproven",
    "may_create",
    "may_go",
    "must_read",
    "plain_form",
    "refusal",
]

#: Stands for the node at a path that the client has not read.
UNREAD: Final = "unread"
KnownNode: TypeAlias = ZNode | Literal["unread"] | None

#: How a step is sent: the opcode, the version that it compares, and the value that it sets.
Form: TypeAlias = tuple[WriteOpcode, int, bytes]

#: As the version of a form: it compares none.
ANY_VERSION: Final = -1

#: The options of puts that are nothing but ephemeral, and of those that are nothing but sequential.
ONLY_EPHEMERAL: Final = PutOptions.of(ephemeral=True, sequential=False)
ONLY_SEQUENTIAL: Final = PutOptions.of(ephemeral=False, sequential=True)


def fixed_form(write: PartRequest) -> Form | None:
    """Return how to send a write, if nothing that the client may read can change that.

    So it is for deletes, for sequential puts, and for puts and checks that expect a version above
    0. These are frequent, and this is quicker than a step and its form. ``None`` for all others.
    """
    expected, options = write.expected_version, write.options
    match write.kind:
        case "put" if options is None:
            if expected is not None and expected > 0:
                return SET_DATA, expected, write.value or b""
        case "put" if options is ONLY_SEQUENTIAL:
            return SEQUENTIAL, ANY_VERSION, write.value or b""
        case "check" if options is None and expected is not None and expected > 0:
            return CHECK, expected, b""
        case "delete" if options is None:
            return DELETE, ANY_VERSION if expected is None else expected, b""
    return None


def plain_form(put: PartRequest, seen: KnownNode, path: str, nodes: Nodes) -> Form:
    """Return how to send a put without options: what :func:`form_of` returns, without a step."""
    expected, value = put.expected_version, put.value or b""
    if expected is None:
        there = nodes.size(path) is not None if seen == UNREAD else seen is not None
        return SET_DATA if there else CREATE, ANY_VERSION, value
    if expected != ABSENT:
        return SET_DATA, expected, value
    if isinstance(seen, ZNode):
        return SET_DATA, seen.version, value
    return CREATE, ANY_VERSION, value


def form_of(  # noqa: C901 - one row for each condition and each effect
    step: Step, seen: KnownNode, path: str, nodes: Nodes
) -> Form:
    """Return how to send a step.

    Args:
        step: the step.
        seen: its node by the last read, which may leave the value out. It is ``UNREAD`` also for a
            step that ``must_read`` names: the form is then a guess, and is not sent.
        path: its path with the chroot.
        nodes: the memory of nodes, for a path that was not read.
    """
    _, condition, effect = step
    # The version that the operation of an existing node compares; ``None`` if there is no node.
    version: int | None
    match condition:
        case At():
            version, revision = condition
            assert revision is None, "ZooKeeper compares no revisions"
        case "any":
            there = nodes.size(path) is not None if seen == UNREAD else seen is not None
            version = ANY_VERSION if there else None
        case "absent":
            # If there is a node, its value is null: a put over a value has been refused already.
            version = seen.version if isinstance(seen, ZNode) else None
        case "exists":
            version = ANY_VERSION
        case _:
            assert_never(condition)
    match effect:
        case PutValue():
            value, ephemeral = effect
            if version is None:
                return EPHEMERAL if ephemeral else CREATE, ANY_VERSION, value
            if ephemeral and isinstance(seen, ZNode) and seen.size == NULL:
                return REPLACE, seen.version, value
            return SET_DATA, version, value
        case "nothing":
            return (PROBE, ANY_VERSION, b"") if version is None else (CHECK, version, b"")
        case "delete":
            return DELETE, ANY_VERSION if version is None else version, b""
        case PutNext():
            return SEQUENTIAL, ANY_VERSION, effect.value
        case _:
            assert_never(effect)


def must_read(step: Step, path: str, nodes: Nodes) -> bool:
    """Say whether the client must read the node of a step, at a full ``path``, before it."""
    _, condition, effect = step
    match effect:
        case "delete" | PutNext():
            return False
        case "nothing" | PutValue():
            if condition == "any":
                # An ephemeral value cannot go into a parent, which is persistent.
                return is_ephemeral(step) and nodes.size(path) is not None
            if condition == "absent":
                return nodes.size(path) == NULL
            return is_unproven(condition)
        case _:
            assert_never(effect)


def is_unproven(condition: Condition) -> bool:
    """Say whether the server cannot check a condition.

    No check distinguishes a value at version 0 from a parent without a value. Only the creation of
    the node, before and after the multi, shows that it was the node that the client has read.
    """
    match condition:
        case At():
            return condition.version == 0
        case "any":
            return False
        case "absent" | "exists":
            return True
        case _:
            assert_never(condition)


def may_create(step: Step) -> bool:
    """Say whether a step may create its node, and so needs its parents."""
    effect = step.effect
    match effect:
        case PutValue() | PutNext():
            return True
        case "nothing":
            # If nothing may be there, a node is created and deleted again.
            return step.condition == "absent"
        case "delete":
            return False
        case _:
            assert_never(effect)


def is_ephemeral(step: Step) -> bool:
    """Say whether a step belongs to a session."""
    effect = step.effect
    match effect:
        case PutValue() | PutNext():
            return effect.ephemeral
        case "nothing" | "delete":
            return False
        case _:
            assert_never(effect)


def may_go(write: PartRequest, node: object) -> bool:
    """Say whether a write certainly may go by its node. If not, :func:`refusal` decides."""
    expected = write.expected_version
    if node is None:
        return is_plain_put(write) and (expected is None or expected == ABSENT)
    if not isinstance(node, ZNode) or node.size == NULL:
        return False
    if is_plain_put(write):
        return expected is None or expected == node.version
    return expected is not None and expected == node.version and not node.children


def refusal(step: Step, node: ZNode | None) -> MetadataStoreError | None:
    """Return the error of a step that a node, or its absence, forbids; ``None`` if it may go."""
    path, condition, effect = step
    if node is None or isinstance(effect, PutNext):  # The server finds a path without a node.
        return decide(step, NO_VALUE)
    if node.size != NULL:
        return decide(step, State(node.version, occupied=node.children > 0))
    # A parent without a value.
    error = decide(step, State(ABSENT, occupied=node.children > 0))
    match effect:
        case "delete":
            if not node.children and condition in ("exists", At(node.version, None)):
                return None  # Nothing is below it, so its delete succeeds.
        case PutValue(_, ephemeral):
            if error is None and ephemeral and node.children:
                return UnsupportedError(
                    f"ZooKeeper allows no paths below an ephemeral one, and there are paths below "
                    f"{path!r}",
                    path=path,
                )
        case "nothing":
            pass
        case _:
            assert_never(effect)
    return error
