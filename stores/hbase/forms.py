"""What is sent: a change of one row, on the condition that its state is the one that was read."""

from __future__ import annotations

from typing import Any, Final

from .layout import FAMILY, STATE, TOMBSTONE_MS, VALUE, Row
from .wire.messages import MESSAGES

__all__ = ["STATES", "STATES_AND_VALUES", "put", "remove"]

_PUT: Final = 2
_DELETE: Final = 3
_UP_TO: Final = 1  # deletes all versions up to a time
_EQUAL: Final = 2
_COMPARATOR: Final = "org.apache.hadoop.hbase.filter.BinaryComparator"
_TTL: Final = "_ttl"

#: The columns of a read without values, and with them.
STATES: Final = (MESSAGES.Column(family=FAMILY, qualifier=[STATE]),)
STATES_AND_VALUES: Final = (MESSAGES.Column(family=FAMILY, qualifier=[STATE, VALUE]),)


def put(key: bytes, before: Row, after: Row, value: bytes, region: Any) -> Any:
    """Return the action that puts a value."""
    cells = [
        MESSAGES.QualifierValue(qualifier=qualifier, value=content, timestamp=after.time)
        for qualifier, content in ((STATE, after.state), (VALUE, value))
    ]
    return _action(key, before, region, _mutation(_PUT, key, cells))


def remove(key: bytes, before: Row, after: Row, region: Any) -> Any:
    """Return the action that removes a value.

    The state that is put in its place is removed some time later. What it hides must not appear
    again then, so it is removed now.
    """
    left = MESSAGES.QualifierValue(qualifier=STATE, value=after.state, timestamp=after.time)
    gone = [
        MESSAGES.QualifierValue(qualifier=qualifier, timestamp=before.time, delete_type=_UP_TO)
        for qualifier in (STATE, VALUE)
    ]
    ttl = MESSAGES.NameBytesPair(name=_TTL, value=TOMBSTONE_MS.to_bytes(8))
    return _action(
        key,
        before,
        region,
        _mutation(_PUT, key, [left], ttl),
        _mutation(_DELETE, key, gone),
    )


def _mutation(kind: int, key: bytes, cells: list[Any], *attributes: Any) -> Any:
    return MESSAGES.MutationProto(
        row=key,
        mutate_type=kind,
        column_value=[MESSAGES.ColumnValue(family=FAMILY, qualifier_value=cells)],
        attribute=attributes,
    )


def _action(key: bytes, before: Row, region: Any, *mutations: Any) -> Any:
    # An empty content stands for a missing one.
    comparator = MESSAGES.BinaryComparator(comparable=MESSAGES.Comparable(value=before.state))
    return MESSAGES.RegionAction(
        region=region,
        atomic=True,
        action=[
            MESSAGES.Action(index=index, mutation=mutation)
            for index, mutation in enumerate(mutations)
        ],
        condition=MESSAGES.Condition(
            row=key,
            family=FAMILY,
            qualifier=STATE,
            compare_type=_EQUAL,
            comparator=MESSAGES.Comparator(
                name=_COMPARATOR, serialized_comparator=comparator.SerializeToString()
            ),
        ),
    )
