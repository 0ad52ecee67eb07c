"""What is sent: a change of one row, on the condition that its state is the one that was read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from ...ops.operations import ABSENT
from .layout import FAMILY, STATE, TOMBSTONE_MS, VALUE, VERSION_AT, Row
from .wire.fields import Encoded, field, number, varint
from .wire.messages import MESSAGES

__all__ = ["STATES", "STATES_AND_VALUES", "gets", "multi", "put", "remove", "scan"]

_PUT: Final = number(2, 2)
_DELETE: Final = number(2, 3)
_UP_TO: Final = number(4, 1)  # deletes all versions up to a time
_ATOMIC: Final = number(2, 1)
_FAMILY: Final = field(1, FAMILY)
_STATE_CELL: Final = field(1, STATE)
_VALUE_CELL: Final = field(1, VALUE)
_TTL: Final = field(5, field(1, b"_ttl") + field(2, TOMBSTONE_MS.to_bytes(8)))
_COMPARATOR: Final = field(1, b"org.apache.hadoop.hbase.filter.BinaryComparator")
_EQUAL: Final = 2
# The server passes over what is left of deleted paths: their version is -1.
_COMPONENT: Final = field(1, ABSENT.to_bytes(8, signed=True)) + number(2, VERSION_AT)
_IS_NOT: Final = number(3, 3) + field(
    4,
    field(1, b"org.apache.hadoop.hbase.filter.BinaryComponentComparator") + field(2, _COMPONENT),
)
_LIVING: Final = field(
    5,
    field(1, b"org.apache.hadoop.hbase.filter.SingleColumnValueFilter")
    + field(2, field(1, FAMILY) + field(2, STATE) + _IS_NOT + number(5, 1)),
)
# And it says how far it came, where it did so for long (field 24).
_CURSOR: Final = varint(24 << 3) + varint(1)
_CLOSED: Final = number(5, 1)
_CONDITION: Final = field(2, FAMILY) + field(3, STATE) + number(4, _EQUAL)

#: The columns of a read without values, and with them.
STATES: Final = (MESSAGES.Column(family=FAMILY, qualifier=[STATE]),)
STATES_AND_VALUES: Final = (MESSAGES.Column(family=FAMILY, qualifier=[STATE, VALUE]),)


def put(region: bytes, key: bytes, before: Row, after: Row, value: bytes) -> bytes:
    """Return the action that puts a value.

    Args:
        region: the field with the region, as :attr:`.cluster.Region.field` has it.
        key: the key of the row.
        before: the row as it was read.
        after: the row as it becomes.
        value: the value.
    """
    when = number(3, after.time)
    cells = field(2, _STATE_CELL + field(2, after.state) + when) + field(
        2, _VALUE_CELL + field(2, value) + when
    )
    return _action(region, key, before, [_mutation(_PUT, key, cells)])


def remove(region: bytes, key: bytes, before: Row, after: Row) -> bytes:
    """Return the action that removes a value.

    The state that is put in its place is removed some time later. What it hides must not appear
    again then, so it is removed now.
    """
    left = field(2, _STATE_CELL + field(2, after.state) + number(3, after.time))
    until = number(3, before.time) + _UP_TO
    gone = field(2, _STATE_CELL + until) + field(2, _VALUE_CELL + until)
    return _action(
        region, key, before, [_mutation(_PUT, key, left) + _TTL, _mutation(_DELETE, key, gone)]
    )


def gets(region: bytes, keys: Sequence[bytes], columns: Sequence[Any]) -> bytes:
    """Return the actions that get columns of rows, as one of their region."""
    wanted = b"".join(field(2, column.SerializeToString()) for column in columns)
    actions = [
        field(3, number(1, index) + field(3, field(1, key) + wanted))
        for index, key in enumerate(keys)
    ]
    return b"".join((region, *actions))


def scan(
    region: bytes, start: bytes, end: bytes, columns: Sequence[Any], rows: int, size: int
) -> Encoded:
    """Return the request of the first ``rows`` values of a stretch, in about ``size`` bytes."""
    wanted = b"".join(field(1, column.SerializeToString()) for column in columns)
    stretch = field(3, start) + field(4, end) + _LIVING + number(10, size) + _CURSOR
    return Encoded(region + field(2, wanted + stretch) + number(4, rows) + _CLOSED)


def multi(actions: Iterable[bytes]) -> Encoded:
    """Return the request of actions."""
    return Encoded(b"".join([field(1, action) for action in actions]))


def _mutation(kind: bytes, key: bytes, cells: bytes) -> bytes:
    return field(1, key) + kind + field(3, _FAMILY + cells)


def _action(region: bytes, key: bytes, before: Row, mutations: Sequence[bytes]) -> bytes:
    # An empty content stands for a missing one.
    comparable = field(1, field(1, before.state))
    condition = field(1, key) + _CONDITION + field(5, _COMPARATOR + field(2, comparable))
    actions = [
        field(3, number(1, index) + field(2, mutation)) for index, mutation in enumerate(mutations)
    ]
    return b"".join((region, _ATOMIC, *actions, field(4, condition)))
