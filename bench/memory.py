"""Measures the memory of a long stream of puts: ``python -m batchkeeper.bench.memory``.

The benchmark streams puts through one store with ``apply_stream`` and watches the memory of the
process. The length of the stream should not matter, because operations wait in bounded queues and
their outcomes are delivered as they arrive. The store in memory is not suitable, because it keeps
the values.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from ..ops.errors import MetadataStoreError
from ..ops.operations import Put
from ..testing.servers import ServerStartError
from ..testing.servers.releases import ServerMissingError
from .target import Target, open_target

__all__ = ["main", "resident_bytes", "stream_puts"]

_MIB: Final = 1 << 20
_PUTS: Final = 2_000_000
_LIMIT_MIB: Final = 64
_VALUE: Final = b"." * 100
# The number of outcomes between two looks at the memory, for several looks in each second.
_LOOK_EVERY: Final = 2_000
_FOLDER: Final = 1000


def resident_bytes() -> int:
    """Return the resident memory of this process in bytes (Linux only)."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def stream_puts(target: Target, puts: int) -> tuple[int, int]:
    """Stream puts of new paths through one store.

    Returns:
        The resident memory of the process in bytes: before the first put, with the store open, and
        the most from then on.

    Raises:
        MetadataStoreError: a put failed.
    """
    with target.open() as store:
        gc.collect()
        before = most = resident_bytes()
        for number, outcome in enumerate(store.apply_stream(_puts(target.root, puts))):
            if outcome.error is not None:
                raise outcome.error
            if number % _LOOK_EVERY == 0:
                most = max(most, resident_bytes())
        return before, max(most, resident_bytes())


def _puts(root: str, count: int) -> Iterator[Put]:
    for number in range(count):
        yield Put(f"{root}/{number // _FOLDER}/{number}", _VALUE)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return 0, or 1 if the process grew by too much, or 2 if the store failed."""
    parser = argparse.ArgumentParser("python -m batchkeeper.bench.memory", description=__doc__)
    parser.add_argument("target", nargs="?", default="rocksdb", metavar="URL")
    parser.add_argument("--dir", type=Path, default=Path(".scratch"))
    parser.add_argument("--puts", type=int, default=_PUTS, metavar="N")
    parser.add_argument("--limit", type=int, default=_LIMIT_MIB, metavar="MIB")
    arguments = parser.parse_args(argv)
    try:
        with open_target(arguments.target, arguments.dir, _tell) as target:
            begun = time.monotonic()
            before, most = stream_puts(target, arguments.puts)
            seconds = time.monotonic() - begun
    except (MetadataStoreError, ServerMissingError, ServerStartError) as error:
        _tell(str(error))
        return 2
    grown = (most - before) / _MIB
    fine = grown <= arguments.limit
    sys.stdout.write(
        f"{arguments.puts} puts in {seconds:.1f} s ({arguments.puts / seconds:,.0f} per second)\n"
        f"the process grew by {grown:.1f} MiB, from {before / _MIB:.1f} MiB; "
        f"limit {arguments.limit} MiB: {'kept' if fine else 'exceeded'}\n"
    )
    return 0 if fine else 1


def _tell(message: str) -> None:
    sys.stderr.write(f"{message}\n")


if __name__ == "__main__":
    sys.exit(main())
