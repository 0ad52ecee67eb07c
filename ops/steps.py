"""What a write does to a store: steps, each with a path, a condition and an effect.

Callers see kinds and options. Back ends see steps, so that a new option is usually a condition or
an effect that they have already, and a new kind is lowered here. A back end decides by conditions
and effects with ``match`` and ``assert_never``: mypy then names each one that lacks a new one.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeAlias, assert_never

from .errors import InvalidSettingError
from .operations import ABSENT, ConditionOptions, Options, PartKind, Put, PutOptions, WriteKind

__all__ = [
    "At",
    "Condition",
    "Effect",
    "Lowered",
    "PartRequest",
    "PutNext",
    "PutValue",
    "Step",
    "lower",
    "step_of",
    "steps_in",
]


class At(NamedTuple):
    """The condition that a path has a value with this version, with this revision, or with both.

    Attributes:
        version: the version; ``None`` for any.
        revision: the revision; ``None`` for any.
    """

    version: int | None
    revision: int | None


class PutValue(NamedTuple):
    """The effect of a put.

    Attributes:
        value: the value.
        ephemeral: whether a value that this creates ends with the session.
    """

    value: bytes
    ephemeral: bool


class PutNext(NamedTuple):
    """The effect of a sequential put: a new path, which is the given one and a growing number.

    Attributes:
        value: the value.
        ephemeral: whether it ends with the session.
    """

    value: bytes
    ephemeral: bool


#: What must hold before the effect. ``"absent"`` and ``"exists"`` speak of the value at the path.
Condition: TypeAlias = Literal["any", "absent", "exists"] | At

#: What happens if the condition holds. A delete also needs that there are no values below the path.
Effect: TypeAlias = Literal["nothing", "delete"] | PutValue | PutNext


class Step(NamedTuple):
    """A change of one path, or a check of it."""

    path: str
    condition: Condition
    effect: Effect


#: A write of one path, or the steps of a transaction, which take effect together.
Lowered: TypeAlias = Step | list[Step]


class PartRequest(Protocol):
    """A write of one path: a put, a delete, or a check in a transaction."""

    @property
    def kind(self) -> PartKind | WriteKind: ...
    @property
    def path(self) -> str: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def expected_version(self) -> int | None: ...
    @property
    def options(self) -> Options | None: ...


# The lowering has to know every option: it would ignore another one.
_LOWERED: Final = {"ephemeral", "sequential", "expected_revision"}
if unmatched := _LOWERED ^ {
    option.name for options in (PutOptions, ConditionOptions) for option in fields(options)
}:
    raise AssertionError(f"options that are not lowered to steps, or the reverse: {unmatched}")

_new = tuple.__new__  # does the work of Step(...) in half the time


def lower(write: PartRequest) -> Lowered:
    """Return a write as a step; a transaction as the list of its steps."""
    options = write.options
    if options is not None and options.parts:
        return [step_of(part) for part in options.parts]
    return step_of(write)


def steps_in(lowered: Lowered) -> list[Step]:
    """Return the steps of a lowered write, in order."""
    return lowered if isinstance(lowered, list) else [lowered]


def step_of(write: PartRequest) -> Step:
    """Return a write of one path as a step."""
    expected, options = write.expected_version, write.options
    revision = None if options is None else options.expected_revision
    condition: Condition = "any"
    if expected == ABSENT:
        condition = "absent"
    elif expected is not None or revision is not None:
        condition = _new(At, (expected, revision))
    kind = write.kind
    match kind:
        case "put":
            value = write.value or b""
            ephemeral = options is not None and options.ephemeral
            if options is not None and options.sequential:
                assert condition in {"any", "absent"}, "a sequential put creates its path"
                return _new(Step, (write.path, "absent", _new(PutNext, (value, ephemeral))))
            return _new(Step, (write.path, condition, _new(PutValue, (value, ephemeral))))
        case "delete":
            return _new(Step, (write.path, "exists" if condition == "any" else condition, "delete"))
        case "check":
            return _new(Step, (write.path, condition, "nothing"))
        case "transaction":
            raise AssertionError("a transaction has a step for each part")
        case _:
            assert_never(kind)


def _ignored() -> list[str]:
    """Return the options of puts that change nothing, although the list above has them.

    An option that cannot go with ``sequential`` has to be refused by ``PutOptions``. Otherwise
    ``step_of`` ends the import here, and not a whole batch later.
    """
    found = []
    for option in fields(PutOptions):
        chosen: dict[str, Any] = {option.name: True if option.default is False else 1}
        for others in ({}, {"sequential": True}):
            if option.name in others:
                continue
            try:
                step = step_of(Put("/a", b"", options=PutOptions(**others, **chosen)))
            except InvalidSettingError:
                continue
            if step == step_of(Put("/a", b"", options=PutOptions(**others))):
                found.append(" and ".join([*others, option.name]))
    return found


if ignored := _ignored():
    raise AssertionError(f"options of puts that the lowering ignores: {ignored}")
