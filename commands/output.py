"""Writes what the commands print: data to standard output, messages to standard error.

Data is written in UTF-8, whatever the locale. A message is one line.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, Literal, TextIO, TypeAlias

from ..ops.exit_codes import BAD_INPUT, NO_CONNECTION, OK, REFUSED
from ..ops.json_lines import json_value
from ..ops.results import ForeignKeys, Stat
from ..pipeline.foreign import nothing_at

__all__ = [
    "Format",
    "drop",
    "json_line",
    "one_line",
    "plain_stat",
    "readable_stat",
    "readable_time",
    "tell",
    "tell_foreign",
    "tell_nothing",
    "with_value",
    "worst",
    "write",
    "write_json",
    "write_record",
    "write_rows",
    "write_table",
]

#: The values of ``--output``.
Format: TypeAlias = Literal["table", "json", "jsonl"]

# Several operations of one command may fail in different ways. Its exit code is the first of these
# that occurred: a script that sees 2 can try again, and then learns of the others.
_WORST: Final = (NO_CONNECTION, BAD_INPUT, REFUSED)

# ``json.dumps`` would create an encoder for each line.
_line: Final = json.JSONEncoder(ensure_ascii=False).encode
# The characters of rows to write at once: Python's own 8 KiB make a large scan a tenth slower.
_AT_ONCE: Final = 1 << 16
_FLAGS: Final = ("false", "true")


def tell(message: str) -> None:
    """Write a message to standard error, as one line."""
    try:
        print(f"batchkeeper: {' '.join(message.splitlines())}", file=sys.stderr, flush=True)
    except OSError:
        drop(sys.stderr)  # The exit code still reports the error.


def drop(stream: TextIO) -> None:
    """Discard what is left in the buffer of a stream that cannot be written."""
    # At its end, Python would try again to write the rest of the buffer, and report the failure.
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def worst(codes: Iterable[int]) -> int:
    """Return the exit code of a command whose parts have ended with these codes."""
    found = set(codes)
    return next((code for code in _WORST if code in found), OK)


def tell_foreign(foreign: ForeignKeys, what: str, *, allowed: bool) -> int:
    """Report foreign keys, and return the exit code that they cause.

    Args:
        foreign: the keys.
        what: what the command did with them, for the message.
        allowed: whether the user expects them. They are reported in any case.
    """
    if not foreign.count:
        return OK
    names = ", ".join(foreign.names())
    more = ", ..." if foreign.count > len(foreign.first) else ""
    keys = "key that is not a valid path" if foreign.count == 1 else "keys that are not valid paths"
    keys += ", or may not be read" * foreign.unreadable
    tell(f"{what} {foreign.count:,} {keys} (see scan --foreign-keys): {names}{more}")
    return OK if allowed else REFUSED


def tell_nothing(path: str) -> int:
    """Report that a path has no value at or below it, and return the exit code that it causes."""
    tell(str(nothing_at(path)))
    return REFUSED


def write(data: bytes) -> None:
    """Write bytes as they are."""
    sys.stdout.buffer.write(data)


def write_json(value: Any, output: Format) -> None:
    """Write JSON: a line, or with ``json`` an indented text."""
    text = json.dumps(value, ensure_ascii=False, indent=2) if output == "json" else _line(value)
    write(f"{text}\n".encode())


def write_record(plain: Mapping[str, Any], readable: Mapping[str, Any], output: Format) -> None:
    """Write one record, as lines of name and value or as JSON."""
    if output == "table":
        width = max(map(len, readable))
        rows = [f"{name:<{width}}  {value}\n" for name, value in readable.items()]
        write("".join(rows).encode())
    else:
        write_json(plain, output)


def write_rows(rows: Iterable[tuple[Mapping[str, Any], str]], output: Format) -> None:
    """Write records as they arrive: as lines of text, as lines of JSON, or as one JSON array.

    Args:
        rows: each record, as fields for JSON and as text for a line. Without fields, the text is
            the line in any case.
        output: the format.
    """
    if output != "json":
        lines: list[str] = []
        size = 0
        try:
            for fields, text in rows:
                lines.append(_line(fields) if fields and output == "jsonl" else text)
                size += len(lines[-1]) + 1
                if size > _AT_ONCE:
                    lines, full, size = [], lines, 0
                    write("\n".join([*full, ""]).encode())
        finally:  # The rows that came before an error or Ctrl-C are written, too.
            write("\n".join([*lines, ""]).encode())
    else:
        before = "[\n"
        for fields, _ in rows:
            indented = json.dumps(fields, ensure_ascii=False, indent=2).replace("\n", "\n  ")
            write(f"{before}  {indented}".encode())
            before = ",\n"
        write(b"[]\n" if before == "[\n" else b"\n]\n")


def write_table(
    titles: Sequence[str],
    shown: Sequence[Mapping[str, Any]],
    rows: Sequence[Mapping[str, Any]],
    output: Format,
) -> None:
    """Write rows: for a table, those columns of ``shown`` that have titles."""
    if output != "table":
        write_rows(((row, "") for row in rows), output)
        return
    lines = [titles, *([str(row.get(title, "")) for title in titles] for row in shown)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = (f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True))
        write(f"{'  '.join(cells).rstrip()}\n".encode())


def plain_stat(stat: Stat) -> dict[str, Any]:
    """Return the fields of a stat for JSON."""
    return {
        "path": stat.path,
        "version": stat.version,
        "revision": stat.revision,
        "created": stat.created,
        "modified": stat.modified,
        "ephemeral": stat.ephemeral,
        "owned": stat.owned,
    }


def with_value(stat: Stat, value: bytes) -> dict[str, Any]:
    """Return a path with its value and stat, as ``load`` reads it."""
    return {**plain_stat(stat), "value": json_value(value)}


def json_line(stat: Stat, value: bytes) -> str:
    """Return :func:`with_value` as a line of JSON, in a sixth of the time for binary values.

    The encoder would look at each character of their base64, and at the name of each field.
    """
    found = json_value(value)
    text = _line(found) if isinstance(found, str) else f'{{"base64": "{found["base64"]}"}}'
    path, version, revision, created, modified, ephemeral, owned = stat
    since = "null" if created is None else created
    changed = "null" if modified is None else modified
    return (
        f'{{"path": {_line(path)}, "version": {version}, "revision": {revision}, '
        f'"created": {since}, "modified": {changed}, "ephemeral": {_FLAGS[ephemeral]}, '
        f'"owned": {_FLAGS[owned]}, "value": {text}}}'
    )


def readable_stat(stat: Stat) -> dict[str, Any]:
    """Return the fields of a stat for a table."""
    created, modified = readable_time(stat.created), readable_time(stat.modified)
    readable = {**plain_stat(stat), "created": created, "modified": modified}
    del readable["owned"]  # This session ends with the command.
    if not readable.pop("ephemeral"):
        return readable
    return {**readable, "ephemeral": "yes"}


def readable_time(at: int | None) -> str:
    """Return a time of a stat as text."""
    return "unknown" if at is None else datetime.fromtimestamp(at / 1000, UTC).isoformat()


def one_line(value: bytes) -> str:
    """Return a value as text for one line of a table.

    Backslashes, and everything that cannot be printed, become the escapes of a C string. A value
    that is not UTF-8 is no text, so all its bytes beyond ASCII are escaped.
    """
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return _escaped(value)
    if text.isprintable() and "\\" not in text:
        return text
    if text.isascii():
        return _escaped(value)
    return "".join(
        character if character.isprintable() and character != "\\" else _escaped(character.encode())
        for character in text
    )


def _escaped(value: bytes) -> str:
    # Python's own text of bytes has the same escapes, and takes a fiftieth of the time. In single
    # quotes, it also escapes these.
    shown = repr(value)
    return shown[2:-1].replace("\\'", "'") if shown[1] == "'" else shown[2:-1]
