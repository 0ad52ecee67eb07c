"""The rows to load: prepared before the clock starts, and checked afterwards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from ...ops.operations import Get, GetChildren
from ...ops.results import GetResult
from ..limits.work import VALUE_BYTES
from ..target import Target
from ..workload import WrongAnswerError, put_path, put_value

__all__ = ["check_flat", "check_loaded", "flat_rows", "rows", "write_parquet"]

# The paths of one folder. The check lists its names, and ZooKeeper's answers have at most 1 MiB.
_FOLDER: Final = 1000
# The rows of one Parquet file, as an earlier job might write them.
_FILE_ROWS: Final = 100_000
# All paths are read back, but only one in this number of values.
_SAMPLED: Final = 97


def rows(root: str, count: int) -> Iterator[tuple[str, bytes]]:
    """Yield ``count`` paths in folders below ``root``, each with a different value."""
    for number in range(count):
        yield _path(root, number), put_value(number, VALUE_BYTES)


def flat_rows(root: str, count: int) -> Iterator[tuple[str, bytes]]:
    """Yield ``count`` rows directly below ``root``. kazoo's ``create`` makes no parent folders."""
    for number in range(count):
        yield put_path(root, number), put_value(number, VALUE_BYTES)


def _path(root: str, number: int) -> str:
    return f"{_folder(root, number // _FOLDER)}/{number}"


def _folder(root: str, number: int) -> str:
    return f"{root}/{number:04d}"


def write_parquet(directory: Path, found: Iterator[tuple[str, bytes]], count: int) -> Path:
    """Write rows as ``path string, value binary``, in at least two files; return the directory."""
    directory.mkdir(parents=True)
    each = max(1, min(_FILE_ROWS, -(-count // 2)))
    for number, start in enumerate(range(0, count, each)):
        size = min(each, count - start)
        paths, values = zip(*(next(found) for _ in range(size)), strict=True)
        table = pa.table({"path": pa.array(paths, pa.string()), "value": pa.array(values)})
        pq.write_table(table, directory / f"part-{number:05d}.parquet")
    return directory


def check_loaded(there: Target, count: int) -> None:
    """Check that the store holds exactly the rows of ``rows(there.root, count)``.

    Raises:
        WrongAnswerError: a row is missing or unexpected, or a value or version is wrong.
    """
    folders = {
        _folder(there.root, first // _FOLDER): range(first, min(first + _FOLDER, count))
        for first in range(0, count, _FOLDER)
    }
    _check_names(there, folders)
    numbers = range(0, count, _SAMPLED)
    _check_values(there, {_path(there.root, number): number for number in numbers})


def check_flat(there: Target, count: int) -> None:
    """Check that the store holds exactly the rows of ``flat_rows(there.root, count)``."""
    _check_names(there, {there.root: range(count)})
    numbers = range(0, count, _SAMPLED)
    _check_values(there, {put_path(there.root, number): number for number in numbers})


def _check_names(there: Target, folders: Mapping[str, range]) -> None:
    with there.open() as store:
        store.sync()
        outcomes = store.apply([GetChildren(folder) for folder in folders])
        for (folder, numbers), outcome in zip(folders.items(), outcomes, strict=True):
            names = outcome.result if outcome.ok else outcome.error
            if names != sorted(map(str, numbers)):
                raise WrongAnswerError(f"{len(numbers)} rows below {folder}: found {names!r:.200}")


def _check_values(there: Target, numbers: Mapping[str, int]) -> None:
    with there.open() as store:
        store.sync()
        gets = [Get(path) for path in numbers]
        for number, outcome in zip(numbers.values(), store.apply(gets), strict=True):
            found = outcome.result
            right = (
                isinstance(found, GetResult)
                and found.value == put_value(number, VALUE_BYTES)
                and found.stat.version == 0
            )
            if not right:
                raise WrongAnswerError(f"row {number} was put once: found {outcome!r:.200}")
