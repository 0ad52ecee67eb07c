"""The metadata of hubs, topics and subscriptions.

Each value is stored as a JSON object in UTF-8 with the names below (see ``hubs.formats``)::

    {"v": 1, "address": "hub-1:4080", "incarnation": 7}

A member is omitted if it is ``None`` or an empty mapping. Members that this program does not know
are kept in ``unknown`` and written back with the value, so that an older program can change the
value of a newer one. Message numbers are unsigned 64-bit integers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import (
    Annotated,
    Any,
    ClassVar,
    Final,
    Generic,
    NamedTuple,
    Self,
    TypeVar,
    get_type_hints,
)

from ...ops.errors import ValueDecodeError, shape
from ..errors import IllegalOperationError
from ..formats import bytes_of, dumped, loaded, shown
from ..tables import Version

__all__ = [
    "Data",
    "HubInfo",
    "HubLoad",
    "Kind",
    "LedgerRange",
    "LedgerRanges",
    "MessageSeqId",
    "SubscriptionData",
    "SubscriptionPreferences",
    "SubscriptionState",
    "Versioned",
    "is_text",
]

T = TypeVar("T")


class Versioned(NamedTuple, Generic[T]):
    """A value, and the version at which it was read."""

    value: T
    version: Version


class Kind(NamedTuple):
    """A type of members: its valid values, and their form in JSON.

    It is the metadata of an ``Annotated`` type of a field of :class:`Data`.
    """

    name: str
    check: Callable[[Any], bool]
    show: Callable[[Any], Any] = lambda value: value
    read: Callable[[Any], Any] = lambda shown: shown


def is_text(value: object) -> bool:
    """Return whether a value is a text that UTF-8 can encode."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_number(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**64


def _is_amount(value: object) -> bool:
    return isinstance(value, int | float) and type(value) is not bool and 0 <= value < 2**64


def _each(check: Callable[[Any], bool]) -> Callable[[Any], bool]:
    def holds(value: object) -> bool:
        return isinstance(value, Mapping) and all(
            is_text(name) and check(member) for name, member in value.items()
        )

    return holds


_TEXT: Final = Kind("a text", is_text)
_NAME: Final = Kind("a text that is not empty", lambda value: is_text(value) and value != "")
_NUMBER: Final = Kind("an int from 0 to 2**64 - 1", _is_number)
_AMOUNT: Final = Kind("a number from 0 on, below 2**64", _is_amount)
_NUMBERS: Final = Kind("a mapping from texts to ints from 0 to 2**64 - 1", _each(_is_number), dict)
_BYTES: Final = Kind(
    "a mapping from texts to bytes",
    _each(lambda value: isinstance(value, bytes)),
    lambda value: {name: shown(member) for name, member in value.items()},
    lambda value: {name: bytes_of(member) for name, member in value.items()},
)


def _list(shown: object) -> list[Any]:
    if not isinstance(shown, list):
        raise ValueError(f"not a list: {shape(shown)}")  # noqa: TRY004 - as all others
    return shown


def _or_none(kind: Kind) -> Kind:
    return Kind(
        f"{kind.name} or None",
        lambda value: value is None or kind.check(value),
        lambda value: None if value is None else kind.show(value),
        kind.read,
    )


_TEXT_OR_NONE: Final = _or_none(_TEXT)
_NUMBER_OR_NONE: Final = _or_none(_NUMBER)


@dataclass(frozen=True, slots=True)
class Data:
    """A value that is stored as a JSON object.

    Attributes:
        kinds: the types of the members that this program knows.
        unknown: the members that it does not know.

    Raises:
        IllegalOperationError: an argument does not have the type of its member.
    """

    kinds: ClassVar[Mapping[str, Kind]] = {}

    unknown: Mapping[str, Any] = field(default_factory=dict, kw_only=True, hash=False, repr=False)

    def __init_subclass__(cls) -> None:
        hints = get_type_hints(cls, include_extras=True)
        cls.kinds = {
            name: hint.__metadata__[0]
            for name, hint in hints.items()
            if hasattr(hint, "__metadata__")
        }

    def __post_init__(self) -> None:
        for name, kind in self.kinds.items():
            value = getattr(self, name)
            if not kind.check(value):
                raise IllegalOperationError(
                    f"{name} of a {type(self).__name__} must be {kind.name}, not {shape(value)}"
                )
        if self.unknown:
            self._check_unknown()

    def _check_unknown(self) -> None:
        known = {"v", *self.kinds}
        try:
            if known.isdisjoint(self.unknown) and _each(lambda _: True)(self.unknown):
                dumped(self.unknown)
                return
        except (ValueError, TypeError, RecursionError):
            pass
        raise IllegalOperationError(
            f"unknown of a {type(self).__name__} must be JSON by names that it does not know "
            f"itself, not {shape(self.unknown)}"
        )

    def members(self) -> dict[str, Any]:
        """Return the members of the JSON object."""
        found = {name: kind.show(getattr(self, name)) for name, kind in self.kinds.items()}
        kept = {name: value for name, value in found.items() if value is not None and value != {}}
        return {**self.unknown, **kept}

    @classmethod
    def of(cls, members: object) -> Self:
        """Return the value with the given members.

        Raises:
            ValueError: the members belong to something else.
        """
        if not isinstance(members, dict):
            raise ValueError(f"not an object: {members!r:.80}")  # noqa: TRY004 - as all others
        known, unknown = {}, {}
        for name, member in members.items():
            if name not in cls.kinds:
                unknown[name] = member
            elif member is not None:
                known[name] = cls.kinds[name].read(member)
        return cls(**known, unknown=unknown)

    def encoded(self) -> bytes:
        """Return the value as it is stored."""
        return dumped(self.members())

    @classmethod
    def decoded(cls, raw: bytes, where: str) -> Self:
        """Return the value that is stored as ``raw`` in a given place.

        Raises:
            ValueDecodeError: ``raw`` is something else, or has a newer format.
        """
        try:
            return cls.of(loaded(raw))
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            raise ValueDecodeError(f"{where} is no {cls.__name__}: {error}") from error


def _nested(cls: type[Data]) -> Kind:
    return Kind(f"a {cls.__name__}", lambda value: isinstance(value, cls), cls.members, cls.of)


@dataclass(frozen=True, slots=True)
class HubInfo(Data):
    """A hub.

    Attributes:
        address: its network address, such as ``"hub-1:4080"``.
        incarnation: distinguishes the hub from earlier hubs with the same address.
    """

    address: Annotated[str, _NAME]
    incarnation: Annotated[int, _NUMBER]


@dataclass(frozen=True, slots=True)
class HubLoad(Data):
    """The load of a hub.

    Attributes:
        topics: the number of topics that it owns.
        message_rate: messages per second.
        connections: the number of connected clients.
        capacity: its capacity relative to other hubs.
    """

    topics: Annotated[int, _NUMBER] = 0
    message_rate: Annotated[float, _AMOUNT] = 0.0
    connections: Annotated[int, _NUMBER] = 0
    capacity: Annotated[float, _AMOUNT] = 1.0


@dataclass(frozen=True, slots=True)
class MessageSeqId(Data):
    """The position of a message in its topic.

    Attributes:
        local: its number in this region. Numbers grow within a topic.
        remote: for each other region, the newest number that precedes this message.
    """

    local: Annotated[int, _NUMBER]
    remote: Annotated[Mapping[str, int], _NUMBERS] = field(default_factory=dict, hash=False)


_SEQ_ID: Final = _nested(MessageSeqId)
_SEQ_ID_OR_NONE: Final = _or_none(_SEQ_ID)


@dataclass(frozen=True, slots=True)
class LedgerRange(Data):
    """The messages of a topic that one ledger holds.

    Attributes:
        ledger_id: the ledger.
        end: its last message; ``None`` while the ledger is open.
        start: its first message; ``None`` for the message after the previous range.
    """

    ledger_id: Annotated[int, _NUMBER]
    end: Annotated[MessageSeqId | None, _SEQ_ID_OR_NONE] = None
    start: Annotated[MessageSeqId | None, _SEQ_ID_OR_NONE] = None


_RANGES: Final = Kind(
    "a tuple of LedgerRange",
    lambda value: isinstance(value, tuple) and all(isinstance(one, LedgerRange) for one in value),
    lambda value: [one.members() for one in value],
    lambda shown: tuple(map(LedgerRange.of, _list(shown))),
)


@dataclass(frozen=True, slots=True)
class LedgerRanges(Data):
    """The ledgers of a topic, in the order of their messages."""

    ranges: Annotated[tuple[LedgerRange, ...], _RANGES] = ()


@dataclass(frozen=True, slots=True)
class SubscriptionPreferences(Data):
    """The preferences of a subscriber. They change rarely.

    Attributes:
        options: options for the filter.
        message_bound: the largest number of undelivered messages that the subscription keeps: a hub
            skips older ones; ``None`` or 0 for no bound.
        message_filter: the name of one of the hub's filters, which chooses the messages; ``None``
            for all messages.
        message_window_size: the largest number of delivered, unconsumed messages; ``None`` or 0 for
            that of the hub.
    """

    options: Annotated[Mapping[str, bytes], _BYTES] = field(default_factory=dict, hash=False)
    message_bound: Annotated[int | None, _NUMBER_OR_NONE] = None
    message_filter: Annotated[str | None, _TEXT_OR_NONE] = None
    message_window_size: Annotated[int | None, _NUMBER_OR_NONE] = None


@dataclass(frozen=True, slots=True)
class SubscriptionState(Data):
    """The position of a subscriber. It changes often.

    Attributes:
        mark: the consume mark: the last message that the subscriber has consumed.
    """

    mark: Annotated[MessageSeqId, _SEQ_ID]


class SubscriptionData(NamedTuple):
    """The two parts of a subscription. A missing or unaffected part is ``None``."""

    preferences: SubscriptionPreferences | None = None
    state: SubscriptionState | None = None
