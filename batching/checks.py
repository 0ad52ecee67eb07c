"""Checks that refuse an operation before it is queued, with an exception from the call itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Final, Never, NoReturn, get_args

from ..ops.capabilities import STORES_WITH, Capability
from ..ops.errors import InvalidSettingError, UnsupportedError, ValueTooLargeError
from ..ops.kinds import KINDS
from ..ops.operations import (
    ConditionOptions,
    Delete,
    Exists,
    Get,
    GetChildren,
    Operation,
    Put,
    PutOptions,
    Transaction,
    TransactionOptions,
)
from ..stores.backend import Limits

__all__ = [
    "check_capability",
    "check_operation",
    "check_size",
    "check_supported",
    "check_transaction",
]

# Every store accepts these. Another kind needs a capability: a store of another package that knows
# two kinds of writes would take it for the second.
_ALWAYS_ACCEPTED: Final = (Get, Exists, GetChildren)
if writing := [op.__name__ for op in _ALWAYS_ACCEPTED if KINDS[op.kind].writes]:
    raise AssertionError(f"kinds of writes without a capability: {writing}")
_OPERATIONS: Final[tuple[type, ...]] = get_args(Operation)

# For each option of an operation on one path, the capability that it needs, and its name.
# A store would ignore an option that it does not know. So each option needs a capability, and never
# reaches a store that does not state it, one of another package included.
_NEEDS: Final[Mapping[str, tuple[Capability, str]]] = {
    "ephemeral": ("ephemerals", "an ephemeral put"),
    "sequential": ("sequences", "a sequential put"),
    "expected_revision": ("expected_revisions", "expected_revision"),
}
if unmatched := _NEEDS.keys() ^ {
    option.name for options in (PutOptions, ConditionOptions) for option in fields(options)
}:
    raise AssertionError(f"options without a capability, or the reverse: {sorted(unmatched)}")
_ALL_NEEDED: Final = frozenset(needed for needed, _ in _NEEDS.values())


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
            f"(it has: {', '.join(sorted(stated)) or 'none'}; stores with this one: "
            f"{', '.join(STORES_WITH[needed])})"
        )


def check_supported(
    options: PutOptions | ConditionOptions, stated: frozenset[Capability], store: str
) -> None:
    """Refuse an operation on one path whose options the store does not support.

    Raises:
        UnsupportedError: a capability that the operation needs is missing.
    """
    if stated >= _ALL_NEEDED:
        return  # Most stores. The loop takes five times as long.
    for option, (needed, asked) in _NEEDS.items():
        # All options have an attribute for each of them. What is not chosen is false or None.
        if getattr(options, option):
            check_capability(needed, asked, stated, store)


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


def check_transaction(
    options: TransactionOptions, limits: Limits, stated: frozenset[Capability], store: str
) -> None:
    """Refuse a transaction that this store does not accept.

    Raises:
        UnsupportedError: it needs a capability that the store does not state.
        InvalidSettingError: it has more operations than the store accepts in one.
        ValueTooLargeError: one of its values exceeds the limit.
    """
    check_capability("transactions", "a transaction", stated, store)
    parts, plain = options.parts, options.by_version
    most, weight = limits.transaction_ops, len(parts)
    if weight <= most and limits.weigh is not None and not plain:
        weight = limits.weigh(parts)
    if weight > most:
        counted = f", which count as {weight}" if weight != len(parts) else ""
        raise InvalidSettingError(
            f"the transaction has {len(parts)} operations{counted}; {store} accepts at most {most}"
        )
    if plain and options.largest <= limits.value_bytes:
        return
    for part in parts:
        if part.options is not None:
            check_supported(part.options, stated, store)
        if part.value is not None:
            check_size(part.path, part.value, limits.value_bytes)


def check_operation(
    op: Operation, limits: Limits, stated: frozenset[Capability], store: str
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
        if len(op.value) > limits.value_bytes:
            check_size(op.path, op.value, limits.value_bytes)
    elif isinstance(op, Delete):
        if op.options is not None:
            check_supported(op.options, stated, store)
    elif isinstance(op, Transaction):
        check_transaction(op.options, limits, stated, store)
    elif not isinstance(op, _ALWAYS_ACCEPTED):
        if not isinstance(op, _OPERATIONS):
            raise InvalidSettingError(f"not an operation: {op!r:.80}")
        _undecided(op, store)


def _undecided(op: Never, store: str) -> NoReturn:
    """Refuse a kind that ``check_operation`` does not know; mypy names the call."""
    raise UnsupportedError(f"{store} does not know the operation {type(op).__name__}")
