"""What is refused before it is queued: by an exception from the call itself, with the reason."""

from __future__ import annotations

from ..ops.errors import InvalidSettingError, UnsupportedError, ValueTooLargeError
from ..ops.operations import Delete, Exists, Get, GetChildren, Operation, Put, PutOptions

__all__ = ["check_operation", "check_size", "check_supported"]

_OTHERS = (Get, Delete, Exists, GetChildren)


def check_supported(options: PutOptions | None, store: str) -> None:
    """Refuse what no store can do yet.

    Raises:
        UnsupportedError: with what was asked for.
    """
    if options is not None:
        asked = "ephemeral" if options.ephemeral else "sequential"
        raise UnsupportedError(f"{asked} puts are not supported: {store}")


def check_size(path: str, value: bytes, value_bytes: int) -> None:
    """Refuse a value that the store does not take.

    Raises:
        ValueTooLargeError: with the size and the limit.
    """
    if len(value) > value_bytes:
        raise ValueTooLargeError(
            f"the value for {path!r} has {len(value)} bytes, the store takes {value_bytes}",
            path=path,
        )


def check_operation(op: Operation, value_bytes: int, store: str) -> None:
    """Refuse an operation that this store does not take.

    What every store refuses was refused when the operation was made.

    Raises:
        InvalidSettingError: it is not an operation.
        ValueTooLargeError: with the size and the limit.
        UnsupportedError: it asks for what no store can do yet.
    """
    if isinstance(op, Put):
        if op.options is not None:
            check_supported(op.options, store)
        if len(op.value) > value_bytes:
            check_size(op.path, op.value, value_bytes)
    elif not isinstance(op, _OTHERS):
        raise InvalidSettingError(f"not an operation: {op!r:.80}")
