"""The results of a ledger table, and their stored form.

The key of a ledger is its id in 19 digits with leading zeros, so that keys sort like ids. Its value
has one field, ``metadata``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias

from ...ops.errors import ValueDecodeError, shape
from ..errors import IllegalOperationError
from ..tables.results import VersionedValue
from ..tables.versions import Version

__all__ = [
    "FIELD",
    "LAST",
    "Ledger",
    "LedgerCallback",
    "LedgerMetadata",
    "check_metadata",
    "is_key",
    "key_of",
    "metadata_of",
]

#: The largest id.
LAST: Final = 2**63 - 1
#: The name of the field.
FIELD: Final = "metadata"

_KEY: Final = re.compile(r"[0-9]{19}")


class LedgerMetadata(NamedTuple):
    """The metadata of a ledger, and its version."""

    metadata: bytes
    version: Version


class Ledger(NamedTuple):
    """A ledger, with its metadata and its version."""

    ledger_id: int
    metadata: bytes
    version: Version


#: Receives the id of a ledger and its metadata; ``None`` if there is no such ledger. For tasks, it
#: may be a coroutine function.
LedgerCallback: TypeAlias = Callable[[int, LedgerMetadata | None], object]


def key_of(ledger_id: object) -> str:
    """Return the key of a ledger.

    Raises:
        IllegalOperationError: the id is invalid.
    """
    if type(ledger_id) is not int or not 0 <= ledger_id <= LAST:
        raise IllegalOperationError(
            f"the id of a ledger must be an int from 0 to 2**63 - 1, not {ledger_id!r:.80}"
        )
    return f"{ledger_id:019}"


def is_key(key: str) -> bool:
    """Return whether a key, not above the key of ``LAST``, belongs to a ledger."""
    return _KEY.fullmatch(key) is not None


def check_metadata(metadata: object) -> bytes:
    """Return metadata as bytes.

    Raises:
        IllegalOperationError: the metadata is invalid.
    """
    if not isinstance(metadata, bytes | bytearray | memoryview):
        raise IllegalOperationError(f"metadata must be bytes, not {shape(metadata)}")
    return bytes(metadata)


def metadata_of(ledger_id: int, value: VersionedValue) -> LedgerMetadata:
    """Return the metadata in the value of a ledger.

    Raises:
        ValueDecodeError: the value has no metadata.
    """
    fields, version = value
    if FIELD not in fields:
        raise ValueDecodeError(f"ledger {ledger_id} has no field {FIELD!r}")
    return LedgerMetadata(fields[FIELD], version)
