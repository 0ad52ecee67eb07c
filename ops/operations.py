"""The operations that a caller can submit: small immutable values, checked when created."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, ClassVar, Final, Literal, TypeAlias

from .errors import InvalidSettingError
from .paths import check_parent, check_path

__all__ = [
    "ABSENT",
    "Delete",
    "Exists",
    "Get",
    "GetChildren",
    "Kind",
    "Operation",
    "OrderKey",
    "Put",
    "PutOptions",
    "ReadKind",
    "WriteKind",
    "check_expected",
    "check_value",
]

#: As ``expected_version`` of a put: the path must not hold a value yet.
ABSENT: Final = -1

#: The kinds of operations. The table in ``ops.kinds`` defines the properties of each.
ReadKind: TypeAlias = Literal["get", "get_children", "exists"]
WriteKind: TypeAlias = Literal["put", "delete"]
Kind: TypeAlias = ReadKind | WriteKind

#: The paths that order an operation: operations that share a path here take effect in the order of
#: their submission. ``None`` means no order.
OrderKey: TypeAlias = str | tuple[str, ...] | None

# ZooKeeper's versions are signed 32-bit integers, so all stores have that limit.
_MAX_VERSION: Final = 2**31 - 1


def check_value(value: bytes | bytearray | memoryview) -> bytes:
    """Return ``value`` as immutable ``bytes``.

    Raises:
        InvalidSettingError: the value is not bytes-like. A ``str`` is refused, because the caller
            has to choose its encoding.
    """
    if type(value) is bytes:
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise InvalidSettingError(f"a value must be bytes, not {type(value).__name__}: {value!r:.80}")


def check_expected(expected_version: int | None, lowest: int) -> int | None:
    """Return ``expected_version`` if it is ``None`` or from ``lowest`` (-1 or 0) to 2**31 - 1.

    Raises:
        InvalidSettingError: the version is invalid. The message names it and the rule.
    """
    if expected_version is None:
        return None
    if (
        isinstance(expected_version, int)
        and not isinstance(expected_version, bool)
        and lowest <= expected_version <= _MAX_VERSION
    ):
        return expected_version
    if isinstance(expected_version, int) and expected_version == ABSENT:
        raise InvalidSettingError("a delete cannot expect ABSENT (-1): there is nothing to delete")
    allowed = "None, ABSENT (-1) or" if lowest == ABSENT else "None or"
    raise InvalidSettingError(
        f"expected_version must be {allowed} an int from 0 to {_MAX_VERSION}, "
        f"not {expected_version!r}"
    )


def _make_again(self: Any) -> tuple[Any, ...]:
    """Make unpickling check the operation again, because stores rely on that check."""
    return type(self), tuple(getattr(self, field.name) for field in fields(self))


@dataclass(frozen=True, slots=True)
class PutOptions:
    """Options that few puts need. A put without options has ``None`` instead.

    Attributes:
        ephemeral: the value ends with the session of the store that creates it.
        sequential: the store appends a growing number to the path.
    """

    __reduce__ = _make_again
    ephemeral: bool = False
    sequential: bool = False

    def __post_init__(self) -> None:
        for name in ("ephemeral", "sequential"):
            if type(chosen := getattr(self, name)) is not bool:
                raise InvalidSettingError(f"{name} must be a bool, not {chosen!r:.80}")

    def order_key(self, path: str) -> OrderKey:
        """Return the order key of a put of ``path``."""
        # The store chooses the path of a sequential put, so no operation has to wait for it.
        return None if self.sequential else path

    @classmethod
    def of(cls, ephemeral: bool, sequential: bool) -> PutOptions | None:
        """Return the options of a put, or ``None`` if it has none."""
        return cls(ephemeral, sequential).if_any()

    def if_any(self) -> PutOptions | None:
        """Return these options, or ``None`` if they are those of a put without options."""
        return None if self == _NO_OPTIONS else self


_NO_OPTIONS: Final = PutOptions()


class _ReadOperation:
    """The attributes that only writes use, so that all operations have the same ones."""

    __slots__ = ()
    value: ClassVar[None] = None
    expected_version: ClassVar[None] = None
    options: ClassVar[None] = None


# Bulk calls create gets and puts by the million. The __init__ that a frozen dataclass generates,
# with a __post_init__ after it, takes a quarter longer than these.
_set = object.__setattr__


@dataclass(frozen=True, slots=True, init=False)
class Get(_ReadOperation):
    """Read the value and the stat of a path. Result: a ``GetResult``, or ``None``."""

    kind: ClassVar[Literal["get"]] = "get"
    __reduce__ = _make_again
    path: str

    def __init__(self, path: str) -> None:
        _set(self, "path", check_path(path))


@dataclass(frozen=True, slots=True, init=False)
class Put:
    """Set the value of a path. A missing path is created. Result: a ``Stat``.

    ``expected_version`` is ``None`` (any version), ``ABSENT`` (the path must hold no value) or the
    version that the path must have. ``options`` holds the flags ``ephemeral`` and ``sequential``;
    it is ``None`` if neither is set, also if empty ``PutOptions()`` were passed.
    """

    kind: ClassVar[Literal["put"]] = "put"
    path: str
    value: bytes
    expected_version: int | None
    options: PutOptions | None

    def __init__(
        self,
        path: str,
        value: bytes | bytearray | memoryview,
        expected_version: int | None = None,
        ephemeral: bool = False,
        sequential: bool = False,
        *,
        options: PutOptions | None = None,
    ) -> None:
        check_path(path)
        if expected_version is not None:
            check_expected(expected_version, ABSENT)
        if ephemeral is not False or sequential is not False:
            if options is not None:
                raise InvalidSettingError("a put takes either flags or options, not both")
            options = PutOptions.of(ephemeral, sequential)
        elif options is not None:
            if not isinstance(options, PutOptions):
                raise InvalidSettingError(f"options must be PutOptions, not {options!r:.80}")
            options = options.if_any()
        _set(self, "path", path)
        _set(self, "value", value if type(value) is bytes else check_value(value))
        _set(self, "expected_version", expected_version)
        _set(self, "options", options)

    @property
    def ephemeral(self) -> bool:
        """Whether the value ends with the session of the store that creates it."""
        return self.options is not None and self.options.ephemeral

    @property
    def sequential(self) -> bool:
        """Whether the store appends a growing number to the path."""
        return self.options is not None and self.options.sequential

    def __reduce__(self) -> tuple[Any, ...]:
        make: Callable[..., Put] = type(self)
        if self.options is not None:
            make = partial(make, options=self.options)
        return make, (self.path, self.value, self.expected_version)


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove the value of a path. Result: ``None``.

    ``expected_version`` is ``None`` (any version) or the version that the path must have.
    """

    kind: ClassVar[Literal["delete"]] = "delete"
    value: ClassVar[None] = None
    options: ClassVar[None] = None
    __reduce__ = _make_again
    path: str
    expected_version: int | None = None

    def __post_init__(self) -> None:
        check_path(self.path)
        check_expected(self.expected_version, 0)


@dataclass(frozen=True, slots=True)
class GetChildren(_ReadOperation):
    """List the names below a path. Result: a sorted ``list[str]``, empty for a missing path."""

    kind: ClassVar[Literal["get_children"]] = "get_children"
    __reduce__ = _make_again
    path: str

    def __post_init__(self) -> None:
        check_parent(self.path)


@dataclass(frozen=True, slots=True)
class Exists(_ReadOperation):
    """Check whether a path holds a value. Result: a ``bool``."""

    kind: ClassVar[Literal["exists"]] = "exists"
    __reduce__ = _make_again
    path: str

    def __post_init__(self) -> None:
        check_path(self.path)


Operation: TypeAlias = Get | Put | Delete | GetChildren | Exists
