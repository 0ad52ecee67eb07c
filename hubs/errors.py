"""The errors that only hubs have. All others are those of the store."""

from __future__ import annotations

from ..ops.errors import MetadataStoreError

__all__ = [
    "IllegalOperationError",
    "KeyExistsError",
    "LedgerExistsError",
    "NoKeyError",
    "NoLedgerError",
]


class IllegalOperationError(MetadataStoreError, ValueError):
    """An argument is no key, value, version or range. Nothing was sent."""


class NoKeyError(MetadataStoreError):
    """The table has no such key."""


class KeyExistsError(MetadataStoreError):
    """The table has the key already, so it cannot be created."""


class NoLedgerError(NoKeyError):
    """There is no ledger with this id."""


class LedgerExistsError(KeyExistsError):
    """There is a ledger with this id already."""
