"""The operations that a caller can submit: small immutable values, checked when created."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, ClassVar, Final, Literal, NamedTuple, TypeAlias

from .acceleration import accelerated, bind
from .errors import InvalidSettingError, shape
from .paths import check_parent, check_path, check_stem

__all__ = [
    "ABSENT",
    "Check",
    "ConditionOptions",
    "Delete",
    "Exists",
    "Get",
    "GetChildren",
    "Kind",
    "Operation",
    "Options",
    "OrderKey",
    "Part",
    "PartKind",
    "Put",
    "PutOptions",
    "ReadKind",
    "Transaction",
    "TransactionOptions",
    "WriteKind",
    "check_expected",
    "check_expected_revision",
    "check_value",
]

#: As ``expected_version`` of a put: the path must not hold a value yet.
ABSENT: Final = -1

#: The kinds of operations. The table in ``ops.kinds`` defines the properties of each.
ReadKind: TypeAlias = Literal["get", "get_children", "exists"]
WriteKind: TypeAlias = Literal["put", "delete", "transaction"]
Kind: TypeAlias = ReadKind | WriteKind

#: The kinds of the parts of a transaction.
PartKind: TypeAlias = Literal["check", "put", "delete"]

#: The paths that order an operation, each once: operations that share one of them take effect in
#: the order of their submission. ``None`` means no order.
OrderKey: TypeAlias = str | tuple[str, ...] | None

_new = tuple.__new__

# ZooKeeper's versions are signed 32-bit integers, so all stores have that limit.
_MAX_VERSION: Final = 2**31 - 1
# etcd's revisions are signed 64-bit integers.
_MAX_REVISION: Final = 2**63 - 1


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
    raise InvalidSettingError(f"a value must be bytes, not {shape(value)}")


def check_expected(expected_version: int | None, lowest: int) -> int | None:
    """Return ``expected_version`` if it is ``None`` or from ``lowest`` (-1 or 0) to 2**31 - 1.

    Raises:
        InvalidSettingError: the version is invalid. The message names it and the rule.
    """
    if expected_version is None:
        return None
    # No other type first: this is quick, and nearly all are plain ints.
    if type(expected_version) is int and lowest <= expected_version <= _MAX_VERSION:
        return expected_version
    if (
        isinstance(expected_version, int)
        and not isinstance(expected_version, bool)
        and lowest <= expected_version <= _MAX_VERSION
    ):
        return expected_version
    if isinstance(expected_version, int) and expected_version == ABSENT:
        raise InvalidSettingError(
            "a delete cannot expect ABSENT (-1), and neither can set_acl: the path must exist"
        )
    allowed = "None, ABSENT (-1) or" if lowest == ABSENT else "None or"
    raise InvalidSettingError(
        f"expected_version must be {allowed} an int from 0 to {_MAX_VERSION}, "
        f"not {expected_version!r}"
    )


def check_expected_revision(expected_revision: int | None) -> int | None:
    """Return ``expected_revision`` if it is ``None`` or from 1 to 2**63 - 1.

    Raises:
        InvalidSettingError: the revision is invalid. The message names it and the rule.
    """
    if expected_revision is None:
        return None
    if (
        isinstance(expected_revision, int)
        and not isinstance(expected_revision, bool)
        and 1 <= expected_revision <= _MAX_REVISION
    ):
        return expected_revision
    hint = "; for a path without a value, pass expected_version=ABSENT"
    raise InvalidSettingError(
        f"expected_revision must be None or an int from 1 to {_MAX_REVISION}, "
        f"not {expected_revision!r:.80}{hint if expected_revision in (0, ABSENT) else ''}"
    )


def check_revision(name: str, revision: int) -> None:
    """Refuse what is no revision of a store, nor 0.

    Raises:
        InvalidSettingError: the revision is invalid. The message names it and the rule.
    """
    if type(revision) is not int or not 0 <= revision <= _MAX_REVISION:
        raise InvalidSettingError(
            f"{name} must be an int from 0 to {_MAX_REVISION}, not {revision!r:.80}"
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
        expected_revision: the revision that the path must have, or ``None``.
    """

    __reduce__ = _make_again
    parts: ClassVar[tuple[Part, ...]] = ()
    checked: ClassVar[Collection[str]] = ()
    ephemeral: bool = False
    sequential: bool = False
    expected_revision: int | None = None

    def __post_init__(self) -> None:
        for name in ("ephemeral", "sequential"):
            if type(chosen := getattr(self, name)) is not bool:
                raise InvalidSettingError(f"{name} must be a bool, not {chosen!r:.80}")
        check_expected_revision(self.expected_revision)
        if self.sequential and self.expected_revision is not None:
            raise InvalidSettingError(
                "a sequential put creates its path, so it cannot have an expected_revision"
            )

    def order_key(self, path: str) -> OrderKey:
        """Return the order key of a put of ``path``."""
        # The store chooses the path of a sequential put, so no operation has to wait for it.
        return None if self.sequential else path

    @classmethod
    def of(
        cls, ephemeral: bool, sequential: bool, expected_revision: int | None = None
    ) -> PutOptions | None:
        """Return the options of a put, or ``None`` if it has none."""
        if expected_revision is None and type(ephemeral) is type(sequential) is bool:
            return _OF_FLAGS[ephemeral, sequential]
        return cls(ephemeral, sequential, expected_revision).if_any()

    def if_any(self) -> PutOptions | None:
        """Return these options, or ``None`` if they are those of a put without options."""
        return None if self == _NO_OPTIONS else self

    def check(self, expected_version: int | None) -> None:
        """Refuse options that cannot go with the expected version.

        Raises:
            InvalidSettingError: a sequential put expects its path to exist, or a put that expects
                no value also expects a revision.
        """
        if self.sequential and expected_version not in (None, ABSENT):
            raise InvalidSettingError(
                "a sequential put creates its path; its expected_version can only be None or "
                f"ABSENT (-1), not {expected_version}"
            )
        if self.expected_revision is not None and expected_version == ABSENT:
            raise InvalidSettingError("a path without a value (ABSENT) has no revision to expect")


_NO_OPTIONS: Final = PutOptions()
_OF_FLAGS: Final[Mapping[tuple[bool, bool], PutOptions | None]] = {
    (False, False): None,
    (True, False): PutOptions(ephemeral=True),
    (False, True): PutOptions(sequential=True),
    (True, True): PutOptions(ephemeral=True, sequential=True),
}


@dataclass(frozen=True, slots=True)
class ConditionOptions:
    """Options that few deletes and checks need. Without options, they have ``None`` instead.

    Attributes:
        expected_revision: the revision that the path must have.
    """

    __reduce__ = _make_again
    ephemeral: ClassVar[bool] = False
    sequential: ClassVar[bool] = False
    parts: ClassVar[tuple[Part, ...]] = ()
    checked: ClassVar[Collection[str]] = ()
    expected_revision: int

    def __post_init__(self) -> None:
        check_expected_revision(self.expected_revision)

    def order_key(self, path: str) -> OrderKey:
        """Return the order key of an operation on ``path``."""
        return path


class _Transaction(NamedTuple):
    parts: tuple[Part, ...]
    paths: tuple[str, ...]
    checked: Collection[str]
    ephemeral: bool
    by_version: bool
    size: int
    largest: int


class TransactionOptions(_Transaction):
    """The parts of a transaction.

    Attributes:
        parts: the operations that take effect together: checks, puts and deletes, in order.
        paths: their paths, which are different.
        checked: those of them that it only checks.
        ephemeral: whether a part is an ephemeral put.
        by_version: whether all parts are checks and puts that expect a version, without options.
            Most transactions are like that, and stores have a short way for them.
        size: the bytes of all paths and values.
        largest: the bytes of the largest value.
    """

    __slots__ = ()
    sequential: ClassVar[bool] = False
    expected_revision: ClassVar[int | None] = None

    @classmethod
    def of(cls, ops: Iterable[Part]) -> TransactionOptions:
        """Join operations to a transaction.

        Raises:
            InvalidSettingError: they cannot be one; see :class:`Transaction`.
        """
        try:
            parts = tuple(ops)
        except TypeError:
            raise InvalidSettingError(
                f"a transaction takes a list of operations, not {shape(ops)}"
            ) from None
        return _new(cls, join_parts(parts))

    def order_key(self, path: str) -> OrderKey:
        """Return the paths of all parts."""
        return self.paths


@accelerated
def join_parts(parts: tuple[Part, ...]) -> tuple[Any, ...]:
    """Return the fields of a :class:`TransactionOptions`.

    Raises:
        InvalidSettingError: the parts cannot be a transaction.
    """
    if not parts:
        raise InvalidSettingError("a transaction needs at least one operation")
    paths: list[str] = []
    checked: list[str] = []
    ephemeral, by_version = False, True
    size = largest = 0
    for part in parts:
        if not isinstance(part, _PARTS):
            raise InvalidSettingError(
                f"a transaction may contain Check, Put and Delete; operation {len(paths)} is "
                f"{shape(part)}"
            )
        path, kind, value, options = part.path, part.kind, part.value, part.options
        paths.append(path)
        size += len(path) if path.isascii() else len(path.encode())
        if value is not None:
            size += len(value)
            largest = max(largest, len(value))
        if kind == "check":
            checked.append(path)
        elif kind != "put" or part.expected_version is None:
            by_version = False
        if options is not None:
            by_version = False
            ephemeral = ephemeral or options.ephemeral
            if options.sequential:
                raise InvalidSettingError(
                    "a transaction cannot contain a sequential put; operation "
                    f"{len(paths) - 1} is {part!r:.80}"
                )
    if len(set(paths)) < len(paths):
        index = next(k for k, path in enumerate(paths) if path in paths[:k])
        raise InvalidSettingError(
            f"a path may occur once in a transaction; operation {index} is the second one on "
            f"{paths[index]!r}"
        )
    # Most check a path or two; to make a set would take longer than ever to look into it.
    found = tuple(checked) if len(checked) < _FEW else frozenset(checked)
    return parts, tuple(paths), found, ephemeral, by_version, size, largest


#: What few operations need beside path, value and expected version. All classes of options have
#: the attributes ``ephemeral``, ``sequential``, ``expected_revision``, ``parts`` and ``checked``.
Options: TypeAlias = PutOptions | ConditionOptions | TransactionOptions


class _ReadOperation:
    """The attributes that only writes use, so that all operations have the same ones."""

    __slots__ = ()
    value: ClassVar[None] = None
    expected_version: ClassVar[None] = None
    options: ClassVar[None] = None


class _Write:
    """What writes of one path, and checks, have in common."""

    __slots__ = ()
    options: PutOptions | ConditionOptions | None

    @property
    def expected_revision(self) -> int | None:
        """The revision that the path must have, or ``None``."""
        return None if self.options is None else self.options.expected_revision


class _Condition(_Write):
    """What deletes and checks have in common."""

    __slots__ = ()
    path: str
    expected_version: int | None

    def __reduce__(self) -> tuple[Any, ...]:
        make: Callable[..., Any] = type(self)
        if self.options is not None:
            make = partial(make, expected_revision=self.options.expected_revision)
        return make, (self.path, self.expected_version)


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
class Put(_Write):
    """Set the value of a path. A missing path is created. Result: a ``Stat``.

    ``expected_version`` is ``None`` (any version), ``ABSENT`` (the path must hold no value) or the
    version that the path must have. ``options`` holds ``ephemeral``, ``sequential`` and
    ``expected_revision``; it is ``None`` if none of them is set, also if empty ``PutOptions()``
    were passed.
    """

    kind: ClassVar[Literal["put"]] = "put"
    session: ClassVar[None] = None
    path: str
    value: bytes
    expected_version: int | None
    options: PutOptions | None

    def __init__(
        self,
        path: str,
        value: bytes | bytearray | memoryview,
        expected_version: int | None = None,
        *,
        ephemeral: bool = False,
        sequential: bool = False,
        expected_revision: int | None = None,
        options: PutOptions | None = None,
    ) -> None:
        if sequential is True or getattr(options, "sequential", False):
            check_stem(path)
        else:
            check_path(path)
        if expected_version is not None:
            check_expected(expected_version, ABSENT)
        if ephemeral is not False or sequential is not False or expected_revision is not None:
            if options is not None:
                raise InvalidSettingError("a put takes either flags or options, not both")
            options = PutOptions.of(ephemeral, sequential, expected_revision)
        elif options is not None:
            if not isinstance(options, PutOptions):
                raise InvalidSettingError(f"options must be PutOptions, not {options!r:.80}")
            options = options.if_any()
        if options is not None:
            options.check(expected_version)
        _set(self, "path", path)
        _set(self, "value", value if type(value) is bytes else check_value(value))
        _set(self, "expected_version", expected_version)
        _set(self, "options", options)

    def __repr__(self) -> str:
        shown = f"path={self.path!r}, value=<{shape(self.value)}>"
        return f"Put({shown}, expected_version={self.expected_version}, options={self.options})"

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


@dataclass(frozen=True, slots=True, init=False)
class Delete(_Condition):
    """Remove the value of a path. Result: ``None``.

    ``expected_version`` is ``None`` (any version) or the version that the path must have.
    ``options`` holds ``expected_revision``; it is ``None`` without one.
    """

    kind: ClassVar[Literal["delete"]] = "delete"
    session: ClassVar[None] = None
    value: ClassVar[None] = None
    path: str
    expected_version: int | None
    options: ConditionOptions | None

    def __init__(
        self,
        path: str,
        expected_version: int | None = None,
        *,
        expected_revision: int | None = None,
    ) -> None:
        _set(self, "path", check_path(path))
        _set(self, "expected_version", check_expected(expected_version, 0))
        options = None if expected_revision is None else ConditionOptions(expected_revision)
        _set(self, "options", options)


@dataclass(frozen=True, slots=True, init=False)
class Check(_Condition):
    """A condition of a transaction: its path must be as expected. Result: ``None``.

    At least one of ``expected_version`` (a version, or ``ABSENT``) and ``expected_revision`` is
    given. Only a transaction may contain it.
    """

    kind: ClassVar[Literal["check"]] = "check"
    value: ClassVar[None] = None
    path: str
    expected_version: int | None
    options: ConditionOptions | None

    def __init__(
        self,
        path: str,
        expected_version: int | None = None,
        *,
        expected_revision: int | None = None,
    ) -> None:
        if expected_version is None and expected_revision is None:
            raise InvalidSettingError(
                f"a Check of {path!r:.80} needs an expected_version or an expected_revision"
            )
        _set(self, "path", check_path(path))
        _set(self, "expected_version", check_expected(expected_version, ABSENT))
        options = None
        if expected_revision is not None:
            options = ConditionOptions(expected_revision)
            if expected_version == ABSENT:
                raise InvalidSettingError(
                    "a path without a value (ABSENT) has no revision to expect"
                )
        _set(self, "options", options)


#: A part of a transaction.
Part: TypeAlias = Check | Put | Delete
_PARTS: Final = (Check, Put, Delete)
bind(Check=Check, Put=Put)
_FEW: Final = 8


@dataclass(frozen=True, slots=True, init=False)
class Transaction:
    """Operations that take effect together, or not at all. Result: a list with one for each.

    The operations are checks, puts and deletes of different paths. The store decides and applies
    them in order. The result has a ``Stat`` for a put, and ``None`` for a check or a delete. If one
    does not hold, the transaction ends with ``TransactionRefusedError``.

    Raises:
        InvalidSettingError: there is no operation, one of another kind, a sequential put, or a path
            occurs twice.
    """

    kind: ClassVar[Literal["transaction"]] = "transaction"
    session: ClassVar[None] = None
    value: ClassVar[None] = None
    expected_version: ClassVar[None] = None
    path: str
    options: TransactionOptions

    def __init__(self, ops: Iterable[Part]) -> None:
        options = TransactionOptions.of(ops)
        _set(self, "path", options.paths[0])
        _set(self, "options", options)

    @property
    def ops(self) -> tuple[Part, ...]:
        """The operations, in order."""
        return self.options.parts

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.options.parts,)


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


Operation: TypeAlias = Get | Put | Delete | GetChildren | Exists | Transaction
