"""Checks that refuse an operation before it is queued, with an exception from the call itself."""

from __future__ import annotations

from typing import Final, assert_never, get_args

from ..ops.capabilities import Capability
from ..ops.errors import InvalidSettingError, UnsupportedError, ValueTooLargeError
from ..ops.operations import Delete, Exists, Get, GetChildren, Operation, Put, PutOptions

__all__ = ["check_capability", "check_operation", "check_size", "check_supported"]

# Every store accepts these.
_ALWAYS_ACCEPTED: Final = (Get, Delete, Exists, GetChildren)
_OPERATIONS: Final[tuple[type, ...]] = get_args(Operation)


def check_capability(
    needed: Capability, asked: str, stated: frozenset[Capability], store: str
) -> None:
    """Refuse a call that needs a capability that the store does not state.

    Args:
        needed: the capability.
        asked: the call that needs it, for the message.
        stated: the store's capabilities.
        store: the store's URL, for the message.

    Raises:
        UnsupportedError: the capability is missing.
    """
    if needed not in stated:
        raise UnsupportedError(
            f"{asked} needs the capability {needed!r}, which {store} lacks "
            f"(it has: {', '.join(sorted(stated)) or 'none'})"
        )


def check_supported(options: PutOptions, stated: frozenset[Capability], store: str) -> None:
    """Refuse a put whose options the store does not support.

    Raises:
        UnsupportedError: a capability that the put needs is missing.
    """
    if options.ephemeral:
        check_capability("ephemerals", "an ephemeral put", stated, store)
    if options.sequential:
        check_capability("sequences", "a sequential put", stated, store)


def check_size(path: str, value: bytes, value_bytes: int) -> None:
    """Refuse a value that is too large for the store.

    Raises:
        ValueTooLargeError: the value exceeds the limit. The message names both sizes.
    """
    if len(value) > value_bytes:
        raise ValueTooLargeError(
            f"the value for {path!r} has {len(value)} bytes; the store accepts at most "
            f"{value_bytes}",
            path=path,
        )


def check_operation(
    op: Operation, value_bytes: int, stated: frozenset[Capability], store: str
) -> None:
    """Refuse an operation that this store does not accept.

    The constructor of the operation has already checked the rules of all stores.

    Raises:
        InvalidSettingError: the object is not an operation.
        ValueTooLargeError: its value exceeds the limit. The message names both sizes.
        UnsupportedError: it needs a capability that the store does not state.
    """
    if isinstance(op, Put):
        if op.options is not None:
            check_supported(op.options, stated, store)
        if len(op.value) > value_bytes:
            check_size(op.path, op.value, value_bytes)
    elif not isinstance(op, _ALWAYS_ACCEPTED):
        if not isinstance(op, _OPERATIONS):
            raise InvalidSettingError(f"not an operation: {op!r:.80}")
        assert_never(op)
