"""The memory of a long stream of puts.

Puts are streamed through one store with ``apply_stream``, and the memory of the process is watched.
The length of the stream should not matter, because operations wait in bounded queues and their
outcomes are delivered as they arrive. The store in memory is not suitable, because it keeps the
values.
"""

from __future__ import annotations

import gc
import sys
import time
from importlib import import_module
from typing import Final

from batchkeeper.bench.target import Target
from batchkeeper.ops.operations import Put

_MIB: Final = 1 << 20
_VALUE: Final = b"." * 100
# The number of outcomes between two looks at the memory, for several looks in each second.
_LOOK_EVERY: Final = 2_000
_FOLDER: Final = 1000


def resident_bytes() -> int:
    """Return the resident memory of this process in bytes."""
    return int(import_module("psutil").Process().memory_info().rss)


def stream_puts(target: Target, puts: int, limit: int) -> bool:
    """Stream puts of new paths through one store; say whether the process stays within the limit.

    Whatever ends it, it prints the growth of the process in MiB, from before the first put, with
    the store open, to the most from then on.

    Raises:
        MetadataStoreError: a put failed.
    """
    with target.open() as store:
        gc.collect()
        begun = time.monotonic()
        before = most = resident_bytes()
        stream = (Put(f"{target.root}/{n // _FOLDER}/{n}", _VALUE) for n in range(puts))
        done = 0
        try:
            for done, outcome in enumerate(store.apply_stream(stream), 1):
                if outcome.error is not None:
                    raise outcome.error
                if done % _LOOK_EVERY == 0:
                    most = max(most, resident_bytes())
        finally:
            most = max(most, resident_bytes())
            seconds = time.monotonic() - begun
            grown = (most - before) / _MIB
            kept = grown <= limit
            sys.stdout.write(
                f"{done} puts in {seconds:.1f} s ({done / seconds:,.0f} per second)\n"
                f"the process grew by {grown:.1f} MiB, from {before / _MIB:.1f} MiB; "
                f"limit {limit} MiB: {'kept' if kept else 'exceeded'}\n"
            )
    return kept
