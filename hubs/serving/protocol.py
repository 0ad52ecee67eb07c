"""The protocol between hubs and clients over TCP. Pure functions.

A frame consists of a four-byte length and a JSON object of at most 16 MiB. Each request has an
``id``, which its answer repeats, so many requests can run at a time::

    {"id": 1, "call": "publish", "who": "p", "topic": "t", "redirected": false, "body": BASE64}
    {"id": 1, "number": 7, "hub": ["hub-1:4080", 3]}
    {"id": 1, "redirect": ["hub-2:4080", 9]}
    {"id": 1, "error": "AccessDeniedError", "message": "...", "retriable": false, "outcome": "..."}

    {"id": 2, "call": "subscribe", "who": "s", "topic": "t", "redirected": true, "mode": "attach",
     "preferences": null, "attempt": ["a73f", 3]}
    {"id": 2, "subscription": 2}
    {"id": 3, "call": "take", "subscription": 2, "most": 100, "timeout": 5.0}
    {"id": 3, "messages": [[8, BASE64]]}

The other calls are ``consumed``, ``close`` and ``unsubscribe``. The number of a subscription is the
``id`` of the request that created it, so a client can close it before the answer arrives.

There is no encryption and no authentication: anyone who can reach the port can use any name. Use it
on loopback, or behind a proxy that provides both.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Sequence
from typing import Any, Final, Literal, NamedTuple, cast

from ...ops.errors import MetadataStoreError, ValueTooLargeError, error_class
from .. import errors
from ..errors import IllegalOperationError
from ..managers.data import HubInfo, SubscriptionPreferences
from ..names import escaped
from ..tables import DamagedRecordError
from .messages import Attempt, Message, Published, Redirect, SubscribeMode

__all__ = [
    "HEAD",
    "Frame",
    "decoded",
    "encoded",
    "error_in",
    "error_members",
    "fitting",
    "hub_members",
    "length_in",
    "message_members",
    "redirect_members",
]

#: The bytes of the length before each frame.
HEAD: Final = 4
_LONGEST: Final = 16 * 1024 * 1024
# The limit of message bytes per answer, unless a single message has more. So an answer is quick to
# send, and always fits into a frame.
_MESSAGES: Final = 1024 * 1024
_MOST_NUMBER: Final = 2**63

_ERRORS: Final[dict[str, type[MetadataStoreError]]] = {
    **{name: getattr(errors, name) for name in errors.__all__},
    DamagedRecordError.__name__: DamagedRecordError,
}


def encoded(members: dict[str, Any]) -> bytes:
    """Return a frame, with its length.

    Raises:
        ValueTooLargeError: it exceeds the size limit of a frame.
        IllegalOperationError: JSON cannot represent a member.
    """
    try:
        raw = json.dumps(members, separators=(",", ":"), allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise IllegalOperationError(f"an argument cannot be sent: {error}") from error
    if len(raw) > _LONGEST:
        raise ValueTooLargeError(
            f"a message needs {len(raw)} bytes in a frame, which has at most {_LONGEST}"
        )
    return len(raw).to_bytes(HEAD) + raw


def length_in(head: bytes) -> int:
    """Return the length of the frame that follows.

    Raises:
        ConnectionAbortedError: it exceeds the size limit of a frame.
    """
    length = int.from_bytes(head)
    if length > _LONGEST:
        raise ConnectionAbortedError(f"a frame of {length} bytes")
    return length


def decoded(raw: bytes) -> Frame:
    """Return the content of a frame.

    Raises:
        ConnectionAbortedError: it is not an object with an ``id``, so it cannot be answered.
    """
    try:
        members = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise ConnectionAbortedError("a frame that is no JSON") from error
    if not isinstance(members, dict):
        raise ConnectionAbortedError("a frame that is no object")
    number = members.pop("id", None)
    if not (type(number) is int and 0 <= number < _MOST_NUMBER):
        raise ConnectionAbortedError("a frame without an id")
    return Frame(number, members)


class Frame(NamedTuple):
    """A request or an answer. Its methods check what they return.

    Raises:
        IllegalOperationError: a member is missing, or has the wrong type.
    """

    id: int
    members: dict[str, Any]

    def text(self, name: str) -> str:
        """Return a text."""
        value = self.members.get(name)
        if not isinstance(value, str):
            raise self._wrong(name, "a text")
        return value

    def name(self, name: str) -> str:
        """Return the name of a topic or a subscriber."""
        text = self.text(name)
        escaped(text)  # It checks the name.
        return text

    def number(self, name: str, least: int = 0) -> int:
        """Return an integer."""
        value = self.members.get(name)
        if not (type(value) is int and least <= value < _MOST_NUMBER):
            raise self._wrong(name, f"an int from {least} on")
        return value

    def seconds(self, name: str) -> float:
        """Return a number of seconds."""
        value: Any = self.members.get(name)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not (number and 0 <= value < _MOST_NUMBER):
            raise self._wrong(name, "a number of seconds")
        return float(value)

    def flag(self, name: str) -> bool:
        """Return a truth value."""
        value = self.members.get(name)
        if not isinstance(value, bool):
            raise self._wrong(name, "true or false")
        return value

    def body(self, name: str) -> bytes:
        """Return bytes."""
        return _bytes(self.text(name))

    @property
    def mode(self) -> SubscribeMode:
        """The subscription mode. The hub checks that it is a valid mode."""
        return cast("SubscribeMode", self.text("mode"))

    @property
    def preferences(self) -> SubscriptionPreferences | None:
        """The preferences of a subscriber, if the frame has any."""
        members = self.members.get("preferences")
        try:
            return None if members is None else SubscriptionPreferences.of(members)
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            raise IllegalOperationError(f"these are no preferences: {error}") from error

    @property
    def attempt(self) -> Attempt | None:
        """The attempt of a reader, if the frame has one."""
        match self.members.get("attempt"):
            case None:
                return None
            case [str(reader), int(number)]:
                return Attempt(reader, number)
        raise self._wrong("attempt", "a text and an int")

    @property
    def redirect(self) -> Redirect | None:
        """The hub to ask, if the answer is a redirect."""
        return Redirect(self._hub("redirect")) if "redirect" in self.members else None

    @property
    def published(self) -> Published:
        """The position of a message."""
        return Published(self.number("number"), self._hub("hub"))

    @property
    def messages(self) -> list[Message]:
        """The delivered messages."""
        match self.members.get("messages"):
            case list(pairs):
                return [self._message(pair) for pair in pairs]
        raise self._wrong("messages", "a list")

    def _hub(self, name: str) -> HubInfo:
        match self.members.get(name):
            case [address, incarnation]:
                return HubInfo(address, incarnation)
        raise self._wrong(name, "a hub")

    def _message(self, pair: object) -> Message:
        match pair:
            case [int(number), str(body)]:
                return Message(number, _bytes(body))
        raise self._wrong("messages", "a list of messages")

    def _wrong(self, name: str, what: str) -> IllegalOperationError:
        value = self.members.get(name)
        return IllegalOperationError(f"{name} must be {what}, not {value!r:.80}")


def hub_members(info: HubInfo) -> list[Any]:
    """Return a hub as a member of a frame."""
    return [info.address, info.incarnation]


def redirect_members(redirect: Redirect) -> dict[str, Any]:
    """Return the answer that redirects a client to another hub."""
    return {"redirect": hub_members(redirect.hub)}


def message_members(messages: Sequence[Message]) -> dict[str, Any]:
    """Return the answer that has messages."""
    return {"messages": [[one.number, b64encode(one.body).decode()] for one in messages]}


def fitting(messages: Sequence[Message]) -> int:
    """Return how many of the first messages fit into one answer: at least one, if there is one."""
    size = 0
    for count, message in enumerate(messages):
        size += len(message.body)
        if count and size > _MESSAGES:
            return count
    return len(messages)


def error_members(error: Exception) -> dict[str, Any]:
    """Return the answer that has an error."""
    kind = type(error).__name__
    if not isinstance(error, MetadataStoreError):
        return {"error": kind, "message": str(error)}
    # An error class of another package is sent as the class that it derives from.
    known = [one.__name__ for one in type(error).__mro__ if _class(one.__name__) is one]
    return {
        "error": known[0],
        "message": str(error),
        "retriable": error.retriable,
        "outcome": error.outcome,
    }


def error_in(answer: Frame) -> Exception | None:
    """Return the error of the answer, if any, as the class that the hub has raised.

    Errors other than ``MetadataStoreError`` come from the hub's machine, such as a full disk, or
    from a listener. For the client, the hub has failed: it gets a ``ConnectionAbortedError``, and
    asks another hub.
    """
    if "error" not in answer.members:
        return None
    name, message = answer.text("error"), answer.text("message")
    kind = _class(name)
    if kind is None:
        return ConnectionAbortedError(f"the hub has failed: {name}: {message}")
    error = kind(message)
    # The attributes of an error can differ from the defaults of its class.
    retriable, outcome = answer.members.get("retriable"), answer.members.get("outcome")
    if isinstance(retriable, bool) and retriable != error.retriable:
        error.retriable = retriable
    if outcome in {"not_applied", "unknown"} and outcome != error.outcome:
        error.outcome = cast('Literal["not_applied", "unknown"]', outcome)
    return error


def _class(name: str) -> type[MetadataStoreError] | None:
    return _ERRORS.get(name) or error_class(name)


def _bytes(text: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except ValueError as error:
        raise IllegalOperationError(f"{text!r:.40} is no base64") from error
