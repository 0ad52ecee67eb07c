"""Records and operations as lines of JSON, which the command reads and prints.

``load`` reads records, and values are printed in this form::

    {"path": "/topics/t1", "value": "stored as UTF-8"}
    {"path": "/topics/t2", "value": {"base64": "AAEC"}}

A value may also be a JSON object without the field ``base64``, or an array. Its JSON text is
stored, without spaces and in UTF-8.

``txn`` reads the operations of a transaction::

    {"op": "check", "path": "/owner", "expected_version": 3}
    {"op": "put", "path": "/state", "value": "done", "expected_version": "absent"}
    {"op": "delete", "path": "/task", "expected_revision": 17}
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from typing import Any, Final

from .operations import ABSENT, Check, Delete, Part, Put

__all__ = ["json_value", "parse_part", "parse_record"]

# The fields of each kind of operation in a transaction, besides `op`.
_CONDITIONS: Final = frozenset({"path", "expected_version", "expected_revision"})
_PARTS: Final[Mapping[str, frozenset[str]]] = {
    "check": _CONDITIONS,
    "put": _CONDITIONS | {"value"},
    "delete": _CONDITIONS,
}


def parse_record(line: bytes, expected_version: int | None = None) -> Put:
    """Return the put that a line describes. Fields other than ``path`` and ``value`` are ignored.

    Raises:
        ValueError: the line is invalid. The message says why. ``InvalidPathError`` is a subclass.
    """
    record = _parsed(line)
    if not {"path", "value"} <= record.keys():
        raise ValueError('not a record with "path" and "value"')
    return Put(record["path"], _value(record["value"]), expected_version)


def parse_part(line: bytes) -> Part:
    """Return the operation of a transaction that a line describes.

    ``expected_version`` may be ``"absent"``. Unknown fields are refused: a misspelt condition would
    not be checked.

    Raises:
        ValueError: the line is invalid. The message says why.
    """
    record = _parsed(line)
    kind = record.pop("op", None)
    if not isinstance(kind, str) or kind not in _PARTS:
        raise ValueError(f'"op" must be one of {", ".join(map(repr, _PARTS))}, not {kind!r:.80}')
    if unknown := record.keys() - _PARTS[kind]:
        known = ", ".join(sorted(_PARTS[kind]))
        raise ValueError(f"a {kind} has no field {min(unknown)!r:.80} (known: {known})")
    for name in ("path", "value") if kind == "put" else ("path",):
        if name not in record:
            raise ValueError(f'a {kind} needs "{name}"')
    for name in ("expected_version", "expected_revision"):
        if name in record and record[name] is None:
            raise ValueError(f'"{name}" must not be null; leave it out for no condition')
    version, revision = record.get("expected_version"), record.get("expected_revision")
    if version == "absent":
        version = ABSENT
    if kind == "check":
        return Check(record["path"], version, expected_revision=revision)
    if kind == "delete":
        return Delete(record["path"], version, expected_revision=revision)
    value = _value(record["value"])
    return Put(record["path"], value, version, expected_revision=revision)


def _parsed(line: bytes) -> dict[str, Any]:
    try:
        # Some editors and spreadsheets begin a file with a byte order mark.
        text = line.decode().removeprefix("\ufeff")
        record = json.loads(text, object_pairs_hook=_fields)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg} (column {error.colno})") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8: {error.reason} (byte {error.start + 1})") from None
    except RecursionError:
        raise ValueError("not a record: nested too deeply") from None
    return record if isinstance(record, dict) else {}


def _fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the fields of an object; ``json`` would keep the last of two with the same name."""
    fields = dict(pairs)
    if len(fields) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the field {twice!r:.80} comes twice")
    return fields


def _value(spelled: object) -> bytes:
    match spelled:
        case str(text):
            try:
                return text.encode()
            except UnicodeEncodeError:
                raise ValueError(
                    "the value has a lone surrogate, which UTF-8 cannot encode"
                ) from None
        case {"base64": str(text), **others} if not others:
            try:
                return base64.b64decode(text, validate=True)
            except binascii.Error as error:
                raise ValueError(f"not base64: {error}") from None
        case list() | dict() if "base64" not in spelled:
            return _text(spelled)
        case _:
            raise ValueError(
                '"value" must be a string or {"base64": "..."}, or else an object without the '
                'field "base64", or an array, whose JSON text is stored'
            )


def _text(value: object) -> bytes:
    """Return the JSON text of a value, without spaces and in UTF-8."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return text.encode()
    except UnicodeEncodeError:
        raise ValueError("the value has a lone surrogate, which UTF-8 cannot encode") from None
    except ValueError:  # such as 1e999
        raise ValueError("the value has a number that is none in JSON, or is too large") from None


def json_value(value: bytes) -> str | dict[str, str]:
    """Return a value in the form that :func:`parse_record` reads: a string if it is UTF-8."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": binascii.b2a_base64(value, newline=False).decode()}
