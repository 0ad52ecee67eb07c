"""Records as lines of JSON: ``load`` reads them, and the command prints values in this form.

::

    {"path": "/topics/t1", "value": "stored as UTF-8"}
    {"path": "/topics/t2", "value": {"base64": "AAEC"}}
"""

from __future__ import annotations

import base64
import binascii
import json

from .operations import Put

__all__ = ["json_value", "parse_record"]


def parse_record(line: bytes, expected_version: int | None = None) -> Put:
    """Return the put that a line describes. Fields other than ``path`` and ``value`` are ignored.

    Raises:
        ValueError: the line is invalid. The message says why. ``InvalidPathError`` is a subclass.
    """
    try:
        record = json.loads(line.decode())
        if not isinstance(record, dict) or not {"path", "value"} <= record.keys():
            raise ValueError('not a record with "path" and "value"')
        return Put(record["path"], _value(record["value"]), expected_version)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg} (column {error.colno})") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8: {error.reason} (byte {error.start + 1})") from None
    except RecursionError:
        raise ValueError("not a record: nested too deeply") from None


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
        case _:
            raise ValueError('"value" must be a string or {"base64": "..."}')


def json_value(value: bytes) -> str | dict[str, str]:
    """Return a value in the form that :func:`parse_record` reads: a string if it is UTF-8."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}
