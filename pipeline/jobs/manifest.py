"""The manifest of an export: its source, its counts and its files.

It is written last, so a folder without it is not an export, or an unfinished one. The files lie in
``data/``, the manifest beside that folder.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Self

import pyarrow as pa
from pyspark.sql import SparkSession

from .folder import FileState, Folder
from .inputs import Batches
from .spark_session import JobError

__all__ = [
    "DATA",
    "MANIFEST",
    "NAMED",
    "Manifest",
    "PartFile",
    "file_states",
    "is_manifest",
    "read_manifest",
    "verify",
]

MANIFEST: Final = "manifest.json"
DATA: Final = "data"
#: The final name of a file of an export, and what makes it one of this export alone. Earlier
#: versions gave it nothing of the kind.
NAMED: Final = re.compile(r"part-\d{5,}(-[0-9a-f]{32})?\.parquet")
#: The version of the manifest and of the files' columns. A change that older readers cannot read
#: increases it. Version 1 had no foreign keys.
SCHEMA_VERSION: Final = 2
_KNOWN: Final = (1, SCHEMA_VERSION)

_FORMAT: Final = "batchkeeper-export"


@dataclass(frozen=True, slots=True)
class PartFile:
    """One file of an export.

    Attributes:
        name: its name in ``data/``.
        rows: the number of its rows, which are sorted by path.
        first, last: the first and the last path; ``None`` if it has no rows.
        length: its length in bytes.
        sha256: the SHA-256 of its content, in hexadecimal.
    """

    name: str
    rows: int
    first: str | None
    last: str | None
    length: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """The manifest of an export.

    Attributes:
        url: the URL of the store, without its query.
        prefix: the path that was exported, with all values below it.
        revision: the revision of the store at the start of the export.
        snapshot: whether all rows are of that revision. Only etcd keeps old revisions.
        changed_meanwhile: the number of rows that were written after that revision; 0 for a
            snapshot.
        rows: the number of rows in all files.
        ephemeral: the number of ephemeral rows.
        exported: the time when the export began, in UTC, in the format of ISO 8601.
        files: all files of the export.
        foreign_keys: the number of keys left out of the export because they are not valid paths;
            ``None`` if they were not counted, as in exports of schema version 1.
        first_foreign_keys: the first of these keys, as text.
    """

    url: str
    prefix: str
    revision: int
    snapshot: bool
    changed_meanwhile: int
    rows: int
    ephemeral: int
    exported: str
    files: Sequence[PartFile]
    foreign_keys: int | None = None
    first_foreign_keys: Sequence[str] = ()

    def dumps(self) -> bytes:
        """Return the manifest as JSON."""
        fields = {"format": _FORMAT, "schema_version": SCHEMA_VERSION, **asdict(self)}
        return (json.dumps(fields, ensure_ascii=False, indent=2) + "\n").encode()

    @classmethod
    def loads(cls, data: bytes) -> Self:
        """Parse a manifest from JSON.

        Raises:
            ValueError: it is not a manifest, is inconsistent, or has an unknown version.
        """
        try:
            fields: dict[str, Any] = json.loads(data)
            if fields.pop("format") != _FORMAT:
                raise ValueError("it is not a manifest of an export")
            if (found := fields.pop("schema_version")) not in _KNOWN:
                known = " and ".join(map(str, _KNOWN))
                raise ValueError(f"its schema version is {found!r}, but only {known} are supported")
            files = [PartFile(**file) for file in fields.pop("files")]
            manifest = cls(**fields, files=files)
            manifest._check()
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"it is not a manifest of an export ({error})") from error
        return manifest

    def _check(self) -> None:
        if not self.files:  # Each range has a file, and there is at least one range.
            raise ValueError("it names no file")
        rows = sum(file.rows for file in self.files)
        if rows != self.rows or not 0 <= self.ephemeral <= rows:
            raise ValueError(
                f"it states {self.rows} rows, {self.ephemeral} of them ephemeral, but {rows} rows "
                f"for its files"
            )


def is_manifest(data: bytes) -> bool:
    """Say whether ``data`` is the manifest of an export, of any version, usable or not."""
    try:
        fields = json.loads(data)
    except ValueError:
        return False
    return isinstance(fields, dict) and fields.get("format") == _FORMAT


def read_manifest(folder: Folder) -> Manifest:
    """Return the manifest of an export.

    Raises:
        JobError: the folder has no manifest, or the manifest cannot be used.
    """
    data = folder.read(MANIFEST)
    if data is None:
        unfinished = "an unfinished export: " if folder.names(DATA) else "not an export: "
        raise JobError(f"{folder.uri} is {unfinished}it has no {MANIFEST}", "InputError")
    try:
        return Manifest.loads(data)
    except ValueError as error:
        raise JobError(f"{folder.uri}/{MANIFEST} cannot be used: {error}", "InputError") from error


def verify(spark: SparkSession, folder: Folder, manifest: Manifest) -> None:
    """Check the files of an export against its manifest.

    Raises:
        JobError: a file is missing, has changed, or does not belong there.
    """
    expected = {file.name: FileState(file.length, file.sha256) for file in manifest.files}
    found = file_states(spark, folder, sorted(expected))
    for name, state in expected.items():
        there = found.get(name)
        if there is None:
            raise _unlike(folder, name, "is missing")
        if there.length != state.length:
            raise _unlike(folder, name, f"has {there.length} bytes instead of {state.length}")
        if there != state:
            raise _unlike(folder, name, "has changed: its checksum differs")
    for name in part_names(folder):
        # What an export that was interrupted has left is not read, and the next one removes it.
        own = NAMED.fullmatch(name)
        if name not in expected and not (own and own[1]):
            raise _unlike(folder, name, "does not belong to it")


def _unlike(folder: Folder, name: str, what: str) -> JobError:
    return JobError(f"{folder.uri} does not match its manifest: {DATA}/{name} {what}", "InputError")


def part_names(folder: Folder) -> Sequence[str]:
    """Return the names of the files with rows. Spark leaves other files beside them."""
    return [name for name in folder.names(DATA) if name.endswith(".parquet")]


def file_states(
    spark: SparkSession, folder: Folder, names: Sequence[str]
) -> Mapping[str, FileState]:
    """Return the lengths and checksums of files in ``data/``. Missing files are left out.

    Spark's tasks read the files, several at a time.
    """
    if not names:
        return {}
    uri = folder.uri

    def task(batches: Batches) -> Iterator[pa.RecordBatch]:
        there = Folder(uri)
        for batch in batches:
            for place in batch.column("id").to_pylist():
                state = there.state(f"{DATA}/{names[place]}")
                if state is not None:
                    yield pa.RecordBatch.from_pylist([{"name": names[place], **state._asdict()}])

    tasks = spark.range(0, len(names), 1, min(len(names), 64))
    found = tasks.mapInArrow(task, "name string, length bigint, sha256 string").collect()
    return {row.name: FileState(row.length, row.sha256) for row in found}
