"""The messages of etcd's watch streams, with the fields that etcd3's message classes lack.

Source: etcd's ``rpc.proto``. etcd3's classes are from etcd 3.3.
"""

from __future__ import annotations

from typing import Any, Final

from google.protobuf.unknown_fields import UnknownFieldSet

from ..wire.fields import VARINT, field
from ..wire.protos import messages

__all__ = ["ALL_KEYS", "ASK_PROGRESS", "PUT", "cancel_request", "create_request", "is_fragment"]

_CREATE: Final = b"\x0a"  # WatchRequest.create_request
_CANCEL: Final = b"\x12"  # WatchRequest.cancel_request
_WATCH_ID: Final = b"\x38"  # WatchCreateRequest.watch_id
_FRAGMENT: Final = b"\x40\x01"  # WatchCreateRequest.fragment: allows large answers in pieces
_IS_FRAGMENT: Final = 7  # WatchResponse.fragment

#: The request for a statement up to which revision everything was sent.
ASK_PROGRESS: Final = b"\x1a\x00"  # WatchRequest.progress_request

PUT: Final = 0  # Event.type

#: As first key and as end: all keys.
ALL_KEYS: Final = b"\0"


def create_request(
    first: bytes,
    stop: bytes,
    start: int,
    *,
    watch: int = 0,
    progress_notify: bool = False,
    fragment: bool = False,
) -> bytes:
    """Return the request for a watch.

    Args:
        first: the first key.
        stop: the end of the range of keys.
        start: the first revision; 0 for the next one.
        watch: the id of the watch in its stream, from 1; 0 if etcd is to choose one.
        progress_notify: whether etcd reports the progress of the watch every ten minutes.
        fragment: whether etcd divides large answers. It measures the whole fragment again for each
            of its events, so 100,000 small changes of the past take it half a minute instead of a
            second.
    """
    create = messages.WatchCreateRequest(
        key=first, range_end=stop, start_revision=start, progress_notify=progress_notify
    )
    named = _WATCH_ID + VARINT[watch] if watch else b""
    divided = _FRAGMENT if fragment else b""
    return field(_CREATE, create.SerializeToString() + named + divided)


def cancel_request(watch: int) -> bytes:
    """Return the request that ends a watch."""
    request = messages.WatchCancelRequest(watch_id=watch)
    return field(_CANCEL, request.SerializeToString())


def is_fragment(response: Any) -> bool:
    """Say whether the next response continues this one."""
    unknown: Any = UnknownFieldSet(response)  # its type stubs do not show that it is iterable
    return any(one.field_number == _IS_FRAGMENT and bool(one.data) for one in unknown)
