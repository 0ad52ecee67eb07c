"""Values with named fields, as bytes.

A record is a JSON object in UTF-8 (see ``hubs.formats``)::

    {"v": 1, "fields": {"owner": "hub-1:4080", "digest": ["base64", "AAEC"]}}

``life`` is present only on ZooKeeper (see ``async_generations``).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from ...ops.errors import ValueDecodeError, shape
from ...ops.results import GetResult
from ..errors import IllegalOperationError
from ..formats import bytes_of, dumped, dumped_bytes, loaded, shown

__all__ = [
    "DAMAGED",
    "Record",
    "StoredRecord",
    "check_fields",
    "check_value",
    "decoded",
    "encoded",
    "merged",
]


_NO_OTHERS: Final[Mapping[str, Any]] = MappingProxyType({})


class Record(NamedTuple):
    """The record of a key.

    Attributes:
        fields: the bytes of each field, by name.
        life: distinguishes it from all earlier records of its key, where that is needed.
        others: the members that this program does not know. They are kept.
    """

    fields: dict[str, bytes]
    life: int = 0
    others: Mapping[str, Any] = _NO_OTHERS


class StoredRecord(NamedTuple):
    """A record as it was read.

    Attributes:
        found: the content of its path.
        generation: the version of its generation, read before the record (see
            ``async_generations``).
    """

    found: GetResult
    generation: int = 0


#: Stands for a path whose content is not a record. No real record has its life.
DAMAGED: Final = Record({}, -2)


def check_value(value: object) -> dict[str, bytes | None]:
    """Return the fields of a value, in a new dict.

    Raises:
        IllegalOperationError: it is not a mapping from names to bytes or ``None``.
    """
    if not isinstance(value, Mapping):
        raise IllegalOperationError(
            f"a value must be a mapping from field names to bytes, not {shape(value)}"
        )
    return {check_field(name): _check_bytes(name, found) for name, found in value.items()}


def check_fields(fields: object) -> frozenset[str] | None:
    """Return the names of the fields to read; ``None`` for all.

    Raises:
        IllegalOperationError: they are not names.
    """
    if fields is None:
        return None
    if isinstance(fields, str | bytes) or not isinstance(fields, Collection):
        raise IllegalOperationError(f"fields must be a list of names or None, not {shape(fields)}")
    return frozenset(map(check_field, fields))


def check_field(name: object) -> str:
    """Return the name of a field.

    Raises:
        IllegalOperationError: the name is invalid.
    """
    if not isinstance(name, str) or not name:
        raise IllegalOperationError(f"a field's name must be a str that is not empty, not {name!r}")
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise IllegalOperationError(f"a field's name must be text: {error}") from None
    return name


def _check_bytes(name: str, value: object) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    raise IllegalOperationError(f"field {name!r} must be bytes or None, not {shape(value)}")


def merged(fields: Mapping[str, bytes], changes: Mapping[str, bytes | None]) -> dict[str, bytes]:
    """Return fields with changes: ``None`` removes one."""
    both = {**fields, **changes}
    return {name: value for name, value in both.items() if value is not None}


def encoded(record: Record) -> bytes:
    """Return a record as bytes."""
    if record.others:
        fields = {name: shown(value) for name, value in record.fields.items()}
        life = {"life": record.life} if record.life else {}
        return dumped({**record.others, **life, "fields": fields})
    if record.life:
        return dumped_bytes("fields", record.fields, life=record.life)
    return dumped_bytes("fields", record.fields)


def decoded(found: GetResult) -> Record:
    """Return the record at a path.

    Raises:
        ValueDecodeError: the path has something else, or a record with a newer format.
    """
    try:
        members = loaded(found.value)
        fields = {
            check_field(name): bytes_of(value) for name, value in members.pop("fields").items()
        }
        life = members.pop("life", 0)
        if type(life) is not int or life < 0:
            raise ValueError(f"life {life!r:.20}")
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ValueDecodeError(
            f"{found.stat.path} holds no record of a table: {error!r:.200}",
            path=found.stat.path,
            version=found.stat.version,
        ) from error
    return Record(fields, life, members or _NO_OTHERS)
