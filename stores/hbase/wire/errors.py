"""What a failed call means: the one table of HBase's exceptions."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

from ....ops.errors import (
    AuthenticationError,
    IndeterminateError,
    MetadataStoreError,
    StoreUnavailableError,
    UnsupportedError,
    ValueTooLargeError,
)
from .connection import LostError, RemoteError

__all__ = ["TOO_BIG", "Meaning", "error_of", "meaning_of", "repeatable"]

#: ``moved``: another server has the region, so nothing was applied. ``busy``: the server has not
#: begun with it. ``lost``: nobody knows. ``refused``: nothing was applied, nor will be.
Meaning: TypeAlias = Literal["moved", "busy", "lost", "refused"]

TOO_BIG: Final = "RequestTooBigException"  # of a message: the server has read its header alone

# The region is not, or not yet, at that server.
_MOVED: Final = frozenset(
    {
        "MasterNotRunningException",
        "NotServingRegionException",
        "PleaseHoldException",
        "RegionInRecoveryException",
        "RegionMovedException",
        "RegionOfflineException",
        "RegionOpeningException",
        "RegionServerAbortedException",
        "RegionServerStoppedException",
        "ServerNotRunningYetException",
        "UnknownRegionException",
        "WrongRegionException",
    }
)
_BUSY: Final = frozenset(
    {
        "CallDroppedException",
        "CallQueueTooBigException",
        "MultiActionResultTooLarge",  # The others are in the answer.
        "RegionTooBusyException",
        "RpcThrottlingException",
        "ServerTooBusyException",
    }
)
_REFUSED: Final = frozenset(
    {
        TOO_BIG,
        "AccessDeniedException",
        "DoNotRetryIOException",
        "FailedSanityCheckException",
        "NamespaceNotFoundException",
        "NoSuchColumnFamilyException",
        "NoSuchMethodException",
        "SpaceLimitingException",  # of a quota
        "TableExistsException",
        "TableNotEnabledException",
        "TableNotFoundException",
        "UnknownProtocolException",
        "UnknownServiceException",
        "UnsupportedOperationException",
    }
)


def meaning_of(error: LostError | RemoteError) -> Meaning:
    """Say what a failed call means for its request."""
    if isinstance(error, LostError):
        return "lost" if error.sent else "moved"
    if error.kind in _MOVED:
        return "moved"
    if error.kind in _BUSY:
        return "busy"
    return "refused" if error.kind in _REFUSED else "lost"


def error_of(error: LostError | RemoteError, path: str | None = None) -> MetadataStoreError:
    """Return the error for a caller, of a request that will not be sent again."""
    if isinstance(error, LostError):
        if error.refused == "client":
            return AuthenticationError(f"HBase: {error}", path=path)
        if error.sent:
            return IndeterminateError(f"HBase: {error}", path=path)
        return StoreUnavailableError(f"HBase: {error}", path=path)
    meaning = meaning_of(error)
    if meaning in {"moved", "busy"}:
        return StoreUnavailableError(f"HBase: {error}", path=path)
    if meaning == "lost":
        return IndeterminateError(f"HBase: {error}", path=path)
    if error.kind == "AccessDeniedException":
        return AuthenticationError(f"HBase refuses this client: {error.text}", path=path)
    if error.kind in {"TableNotEnabledException", "TableNotFoundException"}:
        return StoreUnavailableError(f"HBase: {error.text}", path=path)
    if error.kind == TOO_BIG:
        return ValueTooLargeError(f"HBase: {error.text}", path=path)
    if "exceeds limit" in error.text or "KeyValue size too large" in error.text:
        return ValueTooLargeError(f"HBase: {error.text} (hbase.server.keyvalue.maxsize)", path=path)
    return UnsupportedError(f"HBase refuses the request: {error}", path=path)


def repeatable(error: LostError | RemoteError) -> MetadataStoreError:
    """Return the error for a caller, of a request that changes nothing that callers see."""
    found = error_of(error)
    if found.outcome == "unknown":
        return StoreUnavailableError(str(found))
    return found
