"""What a caller can ask of a store: small immutable values, checked when they are made."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, ClassVar, Final, Literal, TypeAlias, get_args

from .errors import InvalidSettingError
from .paths import check_parent, check_path

__all__ = [
    "ABSENT",
    "KINDS",
    "Delete",
    "Exists",
    "Get",
    "GetChildren",
    "Kind",
    "Operation",
    "Put",
    "check_expected",
    "check_value",
]

#: As ``expected_version`` of a put: the path must not hold a value yet.
ABSENT: Final = -1

Kind: TypeAlias = Literal["get", "put", "delete", "get_children", "exists"]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)

# ZooKeeper's versions are signed 32-bit integers; so are everybody's here.
_MAX_VERSION: Final = 2**31 - 1


def check_value(value: bytes | bytearray | memoryview) -> bytes:
    """Return ``value`` as immutable ``bytes``.

    Raises:
        InvalidSettingError: if it is not bytes-like. A ``str`` is refused: its encoding is the
            caller's to choose.
    """
    if type(value) is bytes:
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise InvalidSettingError(f"a value is bytes, not {type(value).__name__}: {value!r:.80}")


def check_expected(expected_version: int | None, lowest: int) -> int | None:
    """Return ``expected_version`` if it is ``None`` or from ``lowest`` (-1 or 0) to 2**31 - 1.

    Raises:
        InvalidSettingError: with the value and the rule.
    """
    if expected_version is None:
        return None
    if (
        isinstance(expected_version, int)
        and not isinstance(expected_version, bool)
        and lowest <= expected_version <= _MAX_VERSION
    ):
        return expected_version
    if expected_version == ABSENT:
        raise InvalidSettingError("a delete cannot expect ABSENT (-1): there is nothing to delete")
    allowed = "None, ABSENT (-1) or" if lowest == ABSENT else "None or"
    raise InvalidSettingError(
        f"expected_version is {allowed} an int from 0 to {_MAX_VERSION}: {expected_version!r}"
    )


def _make_again(self: Any) -> tuple[Any, ...]:
    """Let what comes out of a pickle be checked like everything else: no store checks it again."""
    return type(self), tuple(getattr(self, field.name) for field in fields(self))


# Gets and puts are made by the million for bulk calls: the __init__ that a frozen dataclass makes
# for itself, with a __post_init__ after it, takes a quarter longer than these.
_set = object.__setattr__


@dataclass(frozen=True, slots=True, init=False)
class Get:
    """Ask for the value and the stat of a path: a ``GetResult``, or ``None``."""

    kind: ClassVar[Kind] = "get"
    __reduce__ = _make_again
    path: str

    def __init__(self, path: str) -> None:
        _set(self, "path", check_path(path))


@dataclass(frozen=True, slots=True, init=False)
class Put:
    """Set the value of a path, and make the path where it is missing: a ``Stat``.

    ``expected_version`` is ``None`` (whatever is there), ``ABSENT`` (the path must hold no value)
    or the version that the path must have.
    """

    kind: ClassVar[Kind] = "put"
    __reduce__ = _make_again
    path: str
    value: bytes
    expected_version: int | None
    ephemeral: bool
    sequential: bool

    def __init__(
        self,
        path: str,
        value: bytes | bytearray | memoryview,
        expected_version: int | None = None,
        ephemeral: bool = False,
        sequential: bool = False,
    ) -> None:
        check_path(path)
        if expected_version is not None:
            check_expected(expected_version, ABSENT)
        _set(self, "path", path)
        _set(self, "value", value if type(value) is bytes else check_value(value))
        _set(self, "expected_version", expected_version)
        _set(self, "ephemeral", ephemeral)
        _set(self, "sequential", sequential)


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove the value of a path: ``None``.

    ``expected_version`` is ``None`` (whatever is there) or the version that the path must have.
    """

    kind: ClassVar[Kind] = "delete"
    __reduce__ = _make_again
    path: str
    expected_version: int | None = None

    def __post_init__(self) -> None:
        check_path(self.path)
        check_expected(self.expected_version, 0)


@dataclass(frozen=True, slots=True)
class GetChildren:
    """Ask for the names below a path: a sorted ``list[str]``, empty for a missing path."""

    kind: ClassVar[Kind] = "get_children"
    __reduce__ = _make_again
    path: str

    def __post_init__(self) -> None:
        check_parent(self.path)


@dataclass(frozen=True, slots=True)
class Exists:
    """Ask whether a path holds a value: a ``bool``."""

    kind: ClassVar[Kind] = "exists"
    __reduce__ = _make_again
    path: str

    def __post_init__(self) -> None:
        check_path(self.path)


Operation: TypeAlias = Get | Put | Delete | GetChildren | Exists
