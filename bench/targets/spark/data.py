"""The rows to load: prepared before the clock starts, and checked afterwards."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from batchkeeper.bench.target import Target
from batchkeeper.bench.workload import WrongAnswerError, put_value
from batchkeeper.ops.operations import Get, GetChildren, Operation
from batchkeeper.ops.results import GetResult

from ..work import VALUE_BYTES

# The paths of one folder. The check lists its names, and ZooKeeper's answers have at most 1 MiB.
_FOLDER: Final = 1000
# The rows of one Parquet file, as an earlier job might write them.
_FILE_ROWS: Final = 100_000
# All paths are read back, but only one in this number of values.
_SAMPLED: Final = 97


def rows(root: str, numbers: Sequence[int]) -> Iterator[tuple[str, bytes]]:
    """Yield a path in a folder below ``root`` for each number, each with a different value."""
    for number in numbers:
        yield f"{_folder(root, number)}/{number}", put_value(number, VALUE_BYTES)


def _folder(root: str, number: int) -> str:
    return f"{root}/{number // _FOLDER:04d}"


def write_parquet(directory: Path, root: str, count: int) -> Path:
    """Write rows as ``path string, value binary``, in at least two files; return the directory."""
    directory.mkdir(parents=True)
    size = max(1, min(_FILE_ROWS, -(-count // 2)))
    for start in range(0, count, size):
        paths, values = zip(*rows(root, range(start, min(start + size, count))), strict=True)
        table = pa.table({"path": pa.array(paths, pa.string()), "value": pa.array(values)})
        pq.write_table(table, directory / f"part-{start:09d}.parquet")
    return directory


def check_loaded(there: Target, count: int) -> None:
    """Check that the store holds exactly ``count`` rows below the root.

    Raises:
        WrongAnswerError: a row is missing or unexpected, or a value or version is wrong.
    """
    starts = range(0, count, _FOLDER)
    lists: list[Operation] = [GetChildren(_folder(there.root, start)) for start in starts]
    sampled = range(0, count, _SAMPLED)
    gets: list[Operation] = [Get(path) for path, _ in rows(there.root, sampled)]
    with there.open() as store:
        store.sync()
        for start, outcome in zip(starts, store.apply(lists), strict=True):
            numbers = range(start, min(start + _FOLDER, count))
            names = outcome.result if outcome.ok else outcome.error
            if names != sorted(map(str, numbers)):
                raise WrongAnswerError(
                    f"{len(numbers)} rows below {_folder(there.root, start)}: found {names!r:.200}"
                )
        for number, outcome in zip(sampled, store.apply(gets), strict=True):
            found = outcome.result
            if (
                not isinstance(found, GetResult)
                or found.value != put_value(number, VALUE_BYTES)
                or found.stat.version != 0
            ):
                raise WrongAnswerError(f"row {number} was put once: found {outcome!r:.200}")
