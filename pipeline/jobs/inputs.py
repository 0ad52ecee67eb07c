"""The input of ``load``: JSON lines, CSV or Parquet, checked row by row before anything is written.

Every format is parsed into the same batches of ``path``, ``value`` and ``bad``, which is the reason
why a row cannot be written, or null. A first pass counts the bad rows and notes their places.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (Spark's own custom)
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from ...ops.json_lines import parse_record
from ...ops.paths import check_path
from ..load_limits import LONGEST_LINE, MOST_REPORTED
from .folder import PATTERN
from .spark_session import JobError

__all__ = [
    "BadRow",
    "Batches",
    "Checked",
    "Input",
    "check",
    "check_files",
    "for_spark",
    "format_of",
    "listed",
    "read",
]

_CORRUPT: Final = "_corrupt_record"
_REPLACEMENT: Final = "\ufffd"

_ENDINGS: Final = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".csv": "csv",
    ".parquet": "parquet",
}

#: The Arrow batches that a task receives or yields.
Batches: TypeAlias = Iterator[pa.RecordBatch]

# A block is the part of a file that one task reads. Its first byte identifies it.
_ROWS: Final = pa.schema(
    [
        ("path", pa.string()),
        ("value", pa.binary()),
        ("bad", pa.string()),
        ("file", pa.string()),
        ("block", pa.int64()),
    ]
)
_COUNTS_DDL: Final = (
    "file string, block bigint, rows bigint, good bigint, bad bigint, "
    "examples array<struct<row: bigint, reason: string>>"
)
_COUNTS: Final = pa.schema(
    [
        ("file", pa.string()),
        ("block", pa.int64()),
        ("rows", pa.int64()),
        ("good", pa.int64()),
        ("bad", pa.int64()),
        ("examples", pa.list_(pa.struct([("row", pa.int64()), ("reason", pa.string())]))),
    ]
)


class Input(NamedTuple):
    """Files as Spark reads them, and the function that parses them into rows, in the tasks.

    ``parse`` yields batches of ``path``, ``value``, ``bad``, ``file`` and ``block``. An empty line
    is a row of nulls. A task's own function calls it, so that the rows pass through only one Python
    process.
    """

    raw: DataFrame
    parse: Callable[[Batches], Batches]


class BadRow(NamedTuple):
    """A row that cannot be written: its file, its number in that file from 1, and the reason."""

    file: str
    row: int
    reason: str


class Checked(NamedTuple):
    """The result of the first pass: the numbers of good and bad rows, and the first bad ones."""

    rows: int
    bad: int
    examples: Sequence[BadRow]


def format_of(name: str) -> str:
    """Return the format of a file, from the ending of its name.

    Raises:
        JobError: the ending does not show a format.
    """
    bare = name.rstrip("/").removesuffix(".gz").removesuffix(".bz2")
    for ending, found in _ENDINGS.items():
        if bare.endswith(ending):
            return found
    raise JobError(f"{name}: the name does not show the format; pass --format", "InputError")


def check_files(names: Sequence[str]) -> None:
    """Check that files of this machine exist. Patterns, and URIs of other places, are left out.

    Raises:
        JobError: one is missing, or Spark would not read it.
    """
    for name in names:
        path = _readable(name) if name.startswith("file:") else name
        if "://" in path:
            continue
        if not PATTERN.search(path) and not os.path.exists(path):
            raise JobError(f"{name} cannot be read: Path does not exist", "InputError")
        if os.path.basename(path).startswith(("_", ".")) and os.path.isfile(path):
            raise JobError(
                f"{name} cannot be read: Spark skips files whose names begin with _ or .: rename "
                "it, or use `batchkeeper load`",
                "InputError",
            )


def for_spark(name: str) -> str:
    """Return the name of a file or a pattern for Spark, whose working directory may be another.

    A file of this machine is meant by its name, whatever characters of patterns that has.
    """
    if "://" in name:
        return name
    path = str(Path(name).absolute())
    return PATTERN.sub(r"\\\g<0>", path) if os.path.lexists(path) else path


def read(spark: SparkSession, names: Sequence[str], kind: str) -> Input:
    """Return the input for files of one format. Spark reads the rows later.

    Raises:
        JobError: a column is missing or has the wrong type.
        PySparkException: a file is missing or cannot be read.
    """
    readers: dict[str, Callable[[SparkSession, Sequence[str]], Input]] = {
        "jsonl": _json_lines,
        "csv": _csv,
        "parquet": _parquet,
    }
    return readers[kind](spark, names)


def check(given: Input) -> Checked:
    """Check every row without writing any."""
    parse = given.parse
    blocks = given.raw.mapInArrow(lambda batches: _count(parse(batches)), _COUNTS_DDL).collect()
    # Tasks number rows within their block: add the rows of the blocks before it in the same file.
    before: Counter[str] = Counter()
    examples = []
    for block in sorted(blocks, key=lambda found: (found.file, found.block)):
        for example in block.examples:
            row = before[block.file] + example.row
            examples.append(BadRow(_readable(block.file), row, example.reason))
        before[block.file] += block.rows
    good, bad = (sum(block[name] for block in blocks) for name in ("good", "bad"))
    return Checked(good, bad, examples[:MOST_REPORTED])


def _json_lines(spark: SparkSession, names: Sequence[str]) -> Input:
    # Read lines as bytes: as text, Spark replaces invalid UTF-8 with replacement characters.
    lines = spark.read.text(list(names), lineSep="\n").select(
        F.col("value").cast("binary").alias("line"),
        F.col("_metadata.file_path").alias("file"),
        F.col("_metadata.file_block_start").alias("block"),
    )
    return Input(lines, _parse_lines)


def _csv(spark: SparkSession, names: Sequence[str]) -> Input:
    # Fields may contain line breaks, so one task reads a whole file. `""` in a field is a quote.
    options: dict[str, Any] = {"header": True, "multiLine": True, "escape": '"', "emptyValue": ""}
    header = spark.read.csv(list(names), **options, enforceSchema=False).schema
    _need_columns(header, names)
    schema = StructType([StructField(name, StringType()) for name in header.names])
    schema.add(StructField(_CORRUPT, StringType()))
    records = (
        spark.read.option("columnPruning", False)  # Otherwise Spark checks only the two columns.
        .csv(
            list(names),
            schema=schema,
            columnNameOfCorruptRecord=_CORRUPT,
            mode="PERMISSIVE",
            enforceSchema=False,
            **options,
        )
        .select(
            F.col("path"),
            F.col("value"),
            F.col(_CORRUPT).isNotNull().alias("corrupt"),
            F.col("_metadata.file_path").alias("file"),
        )
    )
    return Input(records, _check_records)


def _parquet(spark: SparkSession, names: Sequence[str]) -> Input:
    table = spark.read.parquet(*names)
    _need_columns(table.schema, names)
    for name, allowed in (("path", (StringType,)), ("value", (StringType, BinaryType))):
        kind = table.schema[name].dataType
        if not isinstance(kind, allowed):
            wanted = " or ".join(one().simpleString() for one in allowed)
            raise JobError(
                f"{listed(names)}: the column {name!r} is {kind.simpleString()}, not {wanted}",
                "InputError",
            )
    records = table.select(
        F.col("path"),
        F.col("value").cast("binary").alias("value"),
        F.col("_metadata.file_path").alias("file"),
        F.col("_metadata.file_block_start").alias("block"),
    )
    return Input(records, _check_table)


def _need_columns(schema: StructType, names: Sequence[str]) -> None:
    for name in ("path", "value"):
        if name not in schema.names:
            found = ", ".join(map(repr, schema.names)) or "none"
            raise JobError(
                f"{listed(names)}: no column {name!r}; its columns are {found}", "InputError"
            )


# --- in the tasks


def _parse_lines(batches: Batches) -> Batches:
    for batch in batches:
        rows = [_parsed(line) for line in batch.column("line").to_pylist()]
        yield _batch(rows, batch.column("file"), batch.column("block"))


def _parsed(line: bytes) -> tuple[str | None, bytes | None, str | None]:
    if not line or line.isspace():
        return None, None, None  # An empty line is not an error, but counts as a line.
    if len(line) >= LONGEST_LINE:
        return None, None, f"longer than {LONGEST_LINE} bytes"
    try:
        put = parse_record(line)
    except ValueError as error:
        return None, None, str(error)
    return put.path, put.value, None


def _check_records(batches: Batches) -> Batches:
    for batch in batches:
        rows = [
            _checked(path, value, corrupt)
            for path, value, corrupt in zip(
                batch.column("path").to_pylist(),
                batch.column("value").to_pylist(),
                batch.column("corrupt").to_pylist(),
                strict=True,
            )
        ]
        yield _batch(rows, batch.column("file"), pa.array([0] * len(rows), pa.int64()))


def _checked(
    path: str | None, value: str | None, corrupt: bool
) -> tuple[str | None, bytes | None, str | None]:
    # CSV does not distinguish an empty field from a missing one.
    value = value or ""
    if corrupt:
        return (
            None,
            None,
            "the number of fields differs from the header's, or a quote is open",
        )
    if _REPLACEMENT in value or _REPLACEMENT in (path or ""):
        return None, None, "not UTF-8"
    if reason := _bad_path(path):
        return None, None, reason
    return path, value.encode(), None


def _check_table(batches: Batches) -> Batches:
    for batch in batches:
        rows = [
            (None, None, reason) if (reason := _bad_path(path, value)) else (path, value, None)
            for path, value in zip(
                batch.column("path").to_pylist(), batch.column("value").to_pylist(), strict=True
            )
        ]
        yield _batch(rows, batch.column("file"), batch.column("block"))


def _bad_path(path: str | None, value: bytes | None = b"") -> str | None:
    if path is None:
        return "no path"
    if value is None:
        return f"no value for {path!r}"
    try:
        check_path(path)
    except ValueError as error:
        return str(error)
    return None


def _batch(rows: Sequence[tuple[Any, Any, Any]], file: pa.Array, block: pa.Array) -> pa.RecordBatch:
    paths, values, bad = zip(*rows, strict=True) if rows else ((), (), ())
    return pa.RecordBatch.from_arrays(
        [
            pa.array(paths, pa.string()),
            pa.array(values, pa.binary()),
            pa.array(bad, pa.string()),
            file,
            block,
        ],
        schema=_ROWS,
    )


def _count(batches: Batches) -> Batches:
    """Count the good and bad rows of each block, and keep the numbers of its first bad rows."""
    rows: Counter[tuple[str, int]] = Counter()
    good: Counter[tuple[str, int]] = Counter()
    bad: Counter[tuple[str, int]] = Counter()
    examples: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for batch in batches:
        columns = (batch.column(name).to_pylist() for name in ("file", "block", "path", "bad"))
        for file, block, path, reason in zip(*columns, strict=True):
            place = (file, block)
            rows[place] += 1
            if path is not None:
                good[place] += 1
            elif reason is not None:
                bad[place] += 1
                reported = examples.setdefault(place, [])
                if len(reported) < MOST_REPORTED:
                    reported.append({"row": rows[place], "reason": reason})
    found = [
        {
            "file": place[0],
            "block": place[1],
            "rows": count,
            "good": good[place],
            "bad": bad[place],
            "examples": examples.get(place, []),
        }
        for place, count in rows.items()
    ]
    yield pa.RecordBatch.from_pylist(found, schema=_COUNTS)


def _readable(file: str) -> str:
    """Return a file's name as a user writes it. Spark reports a URI with quoted characters."""
    parts = urlsplit(file)
    return unquote(parts.path) if parts.scheme == "file" else unquote(file)


def listed(names: Sequence[str]) -> str:
    """Return a name for these files, for messages."""
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
