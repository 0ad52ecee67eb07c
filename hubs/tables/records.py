"""Values with named fields, as bytes.

A record is a JSON object in UTF-8::

    {"v": 1, "fields": {"owner": "hub-1:4080", "digest": ["base64", "AAEC"]}}

``v`` is the version of this format. A field whose bytes are text in UTF-8 is a string; another one,
or one with control characters that JSON would write in six bytes each, is a list of the word
``base64`` and its bytes in that encoding. ``g`` is the generation of the key (see
``async_states``); without it, that is 0.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Collection, Mapping
from typing import Any, Final, NamedTuple

from ...ops.errors import ValueDecodeError
from ...ops.results import GetResult
from ..errors import IllegalOperationError

__all__ = ["Record", "check_fields", "check_value", "decoded", "encoded", "merged"]

_FORMAT: Final = 1
_CONTROL: Final = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f]")


class Record(NamedTuple):
    """What a key holds.

    Attributes:
        fields: the bytes of each field, by name.
        generation: grows when a key is put that was removed before, on stores that need it.
    """

    fields: dict[str, bytes]
    generation: int = 0


def check_value(value: object) -> dict[str, bytes | None]:
    """Return the fields of a value, in a dict of their own.

    Raises:
        IllegalOperationError: it is no mapping from names to bytes or ``None``.
    """
    if not isinstance(value, Mapping):
        raise IllegalOperationError(
            f"a value must be a mapping from field names to bytes, not {value!r:.80}"
        )
    return {check_field(name): _check_bytes(name, found) for name, found in value.items()}


def check_fields(fields: object) -> frozenset[str] | None:
    """Return the names of the fields to read; ``None`` for all.

    Raises:
        IllegalOperationError: they are no names.
    """
    if fields is None:
        return None
    if isinstance(fields, str | bytes) or not isinstance(fields, Collection):
        raise IllegalOperationError(f"fields must be a list of names or None, not {fields!r:.80}")
    return frozenset(map(check_field, fields))


def check_field(name: object) -> str:
    """Return the name of a field.

    Raises:
        IllegalOperationError: it is none.
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
    raise IllegalOperationError(f"field {name!r} must be bytes or None, not {value!r:.80}")


def merged(fields: Mapping[str, bytes], changes: Mapping[str, bytes | None]) -> dict[str, bytes]:
    """Return fields with changes: ``None`` removes one."""
    both = {**fields, **changes}
    return {name: value for name, value in both.items() if value is not None}


def encoded(record: Record) -> bytes:
    """Return a record as bytes."""
    shown: dict[str, Any] = {"v": _FORMAT}
    if record.generation:
        shown["g"] = record.generation
    shown["fields"] = {name: _shown(value) for name, value in record.fields.items()}
    return json.dumps(shown, ensure_ascii=False, separators=(",", ":")).encode()


def _shown(value: bytes) -> str | list[str]:
    if not _CONTROL.search(value):
        try:
            return value.decode()
        except UnicodeDecodeError:
            pass
    return ["base64", base64.b64encode(value).decode("ascii")]


def decoded(found: GetResult) -> Record:
    """Return the record that a path holds.

    Raises:
        ValueDecodeError: its bytes are none, or of a later format.
    """
    try:
        shown = json.loads(found.value)
        if shown["v"] != _FORMAT:
            raise ValueError(f"format {shown['v']!r:.20}; this program knows format {_FORMAT}")
        fields = {str(name): _bytes(value) for name, value in shown["fields"].items()}
        generation = shown.get("g", 0)
        if type(generation) is not int:
            raise ValueError(f"generation {generation!r:.20}")
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ValueDecodeError(
            f"{found.stat.path} holds no record of a table: {error!r:.200}",
            path=found.stat.path,
            version=found.stat.version,
        ) from error
    return Record(fields, generation)


def _bytes(shown: Any) -> bytes:
    if isinstance(shown, str):
        return shown.encode()
    word, value = shown
    if word != "base64":
        raise ValueError(f"encoding {word!r:.20}")
    return base64.b64decode(value, validate=True)
