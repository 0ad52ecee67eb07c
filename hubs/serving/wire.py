"""What hubs and clients say to each other, as gRPC carries it; ``schema`` has the messages."""

from __future__ import annotations

import codecs
import gc
import json
import os
from collections.abc import Sequence
from typing import Any, Final, Literal, cast

import grpc
from grpc import StatusCode

from ...ops.errors import (
    AuthenticationError,
    MetadataStoreError,
    QueueFullError,
    ValueTooLargeError,
    error_class,
)
from .. import errors
from ..errors import AccessDeniedError, IllegalOperationError
from ..managers.data import HubInfo, SubscriptionPreferences
from ..names import name_text
from ..tables import DamagedRecordError
from .errors import check_message
from .messages import Attempt, Message, Redirect
from .schema import messages

__all__ = [
    "CLIENT_OPTIONS",
    "LARGEST",
    "SERVER_OPTIONS",
    "attempt_in",
    "check_size",
    "failure_in",
    "fitting",
    "hub_in",
    "hub_of",
    "message_of",
    "messages_in",
    "messages_of",
    "name_bytes",
    "preferences_in",
    "redirect_in",
    "refusal_of",
]

#: The limit of a request in bytes.
LARGEST: Final = 16 * 1024 * 1024
# Names, numbers and other fields beside a message.
_MARGIN: Final = 64 * 1024
# The limit of message bytes per reply, unless a single message has more.
_MESSAGES: Final = 1024 * 1024
# The bytes of the longest text of an error, and the characters of the plain one beside it. gRPC
# drops metadata of more than 8 KiB, and may send three bytes for each byte of a plain text.
_TEXT: Final = 4000
_PLAIN: Final = 200
_WHOLE: Final = codecs.getincrementaldecoder("utf-8")
# The key of the metadata that have an error of the hub.
_METADATA: Final = "error-bin"

# In a child, the garbage collector must not end a channel of a loop that the parent has dropped:
# gRPC (1.85) would wait for a thread that only the parent has, for ever and at full speed.
os.register_at_fork(after_in_child=gc.freeze)

# A peer whose machine or network is down is detected after 30 s.
_KEEPALIVE: Final = (
    ("grpc.keepalive_time_ms", 15_000),
    ("grpc.keepalive_timeout_ms", 15_000),
    ("grpc.max_receive_message_length", LARGEST + _MARGIN),
    ("grpc.max_send_message_length", LARGEST + _MARGIN),
)
CLIENT_OPTIONS: Final = (
    *_KEEPALIVE,
    ("grpc.enable_http_proxy", 0),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.use_local_subchannel_pool", 1),  # A new connection is not that of an earlier one.
    ("grpc.client_idle_timeout_ms", 60_000),  # Otherwise, it dials a hub that is gone for 30 min.
)
SERVER_OPTIONS: Final = (
    *_KEEPALIVE,
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.so_reuseport", 0),  # A second hub on one port is refused.
    # What strangers can keep open: half a greeting for 5 s, a connection without requests for 60.
    ("grpc.server_handshake_timeout_ms", 5_000),
    ("grpc.max_connection_idle_ms", 60_000),
    ("grpc.max_concurrent_streams", 1_100),
)

_ERRORS: Final[dict[str, type[MetadataStoreError]]] = {
    **{name: getattr(errors, name) for name in errors.__all__},
    DamagedRecordError.__name__: DamagedRecordError,
}
# For clients and tools that know gRPC only.
_CODES: Final = (
    (AccessDeniedError, StatusCode.PERMISSION_DENIED),
    (AuthenticationError, StatusCode.UNAUTHENTICATED),
    (IllegalOperationError, StatusCode.INVALID_ARGUMENT),
    (QueueFullError, StatusCode.RESOURCE_EXHAUSTED),
    (MetadataStoreError, StatusCode.FAILED_PRECONDITION),
    (OSError, StatusCode.UNAVAILABLE),
)


def name_bytes(name: str | bytes) -> bytes:
    """Return a name as messages have it.

    Raises:
        IllegalOperationError: the name has no bytes.
    """
    try:
        return name_text(name).encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise IllegalOperationError(f"a name must be text or bytes: {error}") from None


def check_size(message: bytes) -> None:
    """Refuse a message that no request can hold.

    Raises:
        ValueTooLargeError: it is too large.
        IllegalOperationError: it is not bytes.
    """
    check_message(message)
    if len(message) > LARGEST:
        raise ValueTooLargeError(f"a message has {len(message)} bytes, of at most {LARGEST}")


def message_of(name: str, **fields: Any) -> Any:
    """Return a message.

    Raises:
        IllegalOperationError: a field has a value of another type or range.
    """
    try:
        return messages[name](**fields)
    except (TypeError, ValueError) as error:
        raise IllegalOperationError(f"an argument cannot be sent: {error}") from error


def preferences_in(raw: bytes) -> SubscriptionPreferences | None:
    """Return the preferences of a subscriber, if a request has any.

    Raises:
        IllegalOperationError: they are damaged.
    """
    try:
        return SubscriptionPreferences.of(json.loads(raw)) if raw else None
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise IllegalOperationError(f"these are no preferences: {error}") from error


def attempt_in(request: Any) -> Attempt | None:
    """Return the attempt of a reader, if a request has one."""
    if not request.HasField("attempt"):
        return None
    return Attempt(request.attempt.reader, request.attempt.number)


def hub_of(info: HubInfo) -> Any:
    """Return a hub as messages have it."""
    return messages["Hub"](address=info.address, incarnation=info.incarnation)


def hub_in(hub: Any) -> HubInfo:
    """Return the hub that a message has."""
    return HubInfo(hub.address, hub.incarnation)


def redirect_in(reply: Any) -> Redirect | None:
    """Return the hub to ask, if a reply has one."""
    return Redirect(hub_in(reply.redirect)) if reply.HasField("redirect") else None


def messages_of(found: Sequence[Message]) -> Any:
    """Return the reply that has messages."""
    made = messages["Message"]
    return messages["SubscribeReply"](messages=[made(number=n, body=body) for n, body in found])


def messages_in(reply: Any) -> list[Message]:
    """Return the messages of a reply."""
    return [Message(one.number, one.body) for one in reply.messages]


def fitting(found: Sequence[Message]) -> int:
    """Return how many of the first messages fit into one reply: at least one, if there is one."""
    size = 0
    for count, message in enumerate(found):
        size += len(message.body)
        if count and size > _MESSAGES:
            return count
    return len(found)


def refusal_of(error: Exception) -> tuple[StatusCode, str, tuple[tuple[str, bytes], ...]]:
    """Return the status, the text and the trailing metadata that tell a client of an error."""
    code = next((code for kind, code in _CODES if isinstance(error, kind)), StatusCode.INTERNAL)
    encoded = str(error).encode("utf-8", "surrogatepass")[:_TEXT]
    text = _WHOLE("surrogatepass").decode(encoded)  # without the part of a character at its end
    if not isinstance(error, MetadataStoreError):
        return code, f"the hub has failed: {type(error).__name__}: {_plain(text)}", ()
    # An error class of another package is sent as the class that it derives from.
    known = next(one.__name__ for one in type(error).__mro__ if _class(one.__name__) is one)
    raw = messages["Error"](
        name=known,
        text=text.encode("utf-8", "surrogatepass"),
        retriable=error.retriable,
        outcome=error.outcome,
    )
    return code, _plain(text), ((_METADATA, raw.SerializeToString()),)


def failure_in(error: grpc.RpcError, address: str) -> Exception:
    """Return what a failed call raises: the error of the hub, or one of the connection.

    An error that is not a ``MetadataStoreError`` comes from the hub's machine, such as a full disk,
    or from a listener. For the client, the hub has failed, and it asks another one.

    Args:
        error: that of gRPC.
        address: the address of the hub.
    """
    trailing: Any = error.trailing_metadata()
    if raw := dict(trailing or ()).get(_METADATA):
        return _error_in(raw)
    code, details = error.code(), error.details()
    match code:
        case StatusCode.DEADLINE_EXCEEDED:
            return TimeoutError(f"hub {address} has not answered in time")
        case StatusCode.UNAUTHENTICATED:
            return AuthenticationError(f"hub {address} has refused the client: {details}")
        case StatusCode.RESOURCE_EXHAUSTED:
            return QueueFullError(f"hub {address} has too much to do: {details}")
        case StatusCode.CANCELLED | StatusCode.UNAVAILABLE:
            return ConnectionResetError(f"the connection to {address} was closed: {details}")
    return ConnectionAbortedError(f"{address} has failed, or is not a hub: {code.name}: {details}")


def _error_in(raw: bytes) -> Exception:
    found = messages["Error"].FromString(raw)
    error = (_class(found.name) or MetadataStoreError)(found.text.decode("utf-8", "surrogatepass"))
    # The attributes of an error can differ from the defaults of its class.
    if found.retriable != error.retriable:
        error.retriable = found.retriable
    if found.outcome in {"not_applied", "unknown"} and found.outcome != error.outcome:
        error.outcome = cast('Literal["not_applied", "unknown"]', found.outcome)
    return error


def _class(name: str) -> type[MetadataStoreError] | None:
    return _ERRORS.get(name) or error_class(name)


def _plain(text: str) -> str:
    return text[:_PLAIN].encode("utf-8", "replace").decode()
