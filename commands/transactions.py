"""The command ``txn``: executes the operations of a file together, or none of them."""

from __future__ import annotations

import argparse
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from .. import Stat, Transaction, TransactionRefusedError
from ..ops.exit_codes import OK, exit_code
from ..ops.json_lines import parse_part
from ..ops.operations import Part
from ..pipeline.load_limits import LONGEST_LINE
from ..pipeline.local_load import lines, opened
from .arguments import Add, InputError, open_named
from .output import Format, plain_stat, tell, write_rows

__all__ = ["declare"]

_FORMAT: Final = """\
FILE holds the operations, in order, as JSON lines:
  {"op": "check", "path": "/owner", "expected_version": 3}
  {"op": "put", "path": "/state", "value": "done", "expected_version": "absent"}
  {"op": "delete", "path": "/task", "expected_revision": 17}
A value is a text, {"base64": "AAEC"}, or any other JSON, as for load. A check needs a condition; a
put and a delete may have one.
The results are lines of JSON in the same order, or with -o json one array. If an operation does
not hold, nothing is changed, and the message names it.
"""


def declare(add: Add) -> None:
    """Declare the command."""
    txn = add("txn", _txn, "execute the operations of a file together, or none of them")
    txn.epilog = f"{_FORMAT}\n{txn.epilog}"
    txn.add_argument("file", metavar="FILE", help="JSON lines; '-' reads standard input")


def _txn(arguments: argparse.Namespace) -> int:
    numbered = _parts(arguments.file)
    parts = [part for _, part in numbered]
    transaction = Transaction(parts)
    with open_named(arguments) as store:
        try:
            results = store.submit(transaction).result()
        except TransactionRefusedError as error:
            number, _ = numbered[error.index]
            tell(f"{arguments.file}:{number}: {error}")
            return exit_code(error)
    output: Format = "json" if arguments.output == "json" else "jsonl"
    write_rows(((row, "") for row in _rows(parts, results)), output)
    return OK


def _parts(name: str) -> list[tuple[int, Part]]:
    """Return the operations of a file, with the numbers of their lines."""
    found = []
    number = 0
    with opened(name) as (file, _, _):
        try:
            for number, line in enumerate(lines(file), start=1):
                if line.isspace():
                    continue
                if len(line) >= LONGEST_LINE:
                    raise InputError(f"{name}:{number}: longer than {LONGEST_LINE} bytes")
                try:
                    found.append((number, parse_part(line)))
                except ValueError as error:
                    raise InputError(f"{name}:{number}: {error}") from None
        except (OSError, EOFError, zlib.error) as error:
            raise InputError(f"{name}: unreadable after line {number}: {error}") from error
    return found


def _rows(parts: Sequence[Part], results: Sequence[Stat | None]) -> Iterator[Mapping[str, Any]]:
    for part, stat in zip(parts, results, strict=True):
        fields = {"path": part.path} if stat is None else plain_stat(stat)
        yield {"op": part.kind, **fields}
