"""Measures another client of the same server, in a separate process, while this one saturates it.

As a process, ``python -m batchkeeper.bench.limits.neighbour URL ROOT COUNT`` puts with the store's
plain client, one value after the other. It puts a few values on the idle server, prints ``ready``,
waits for a line, and puts COUNT more. It ends with a line of JSON: the latencies in nanoseconds of
the puts ``alone`` and ``beside`` others.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import time
from array import array
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import IO, Final

from ...ops.errors import StoreUnavailableError
from ...stores.registry import parse_url, store_kind
from ..baseline import PLAIN_CLIENTS
from ..figures import histogram, percentiles
from ..target import Target
from ..workload import put_path, put_value
from .ours import saturate
from .work import VALUE_BYTES, Figures

__all__ = ["neighbours_puts"]

_READY: Final = "ready\n"
_ALONE: Final = 100
_WARM_UP: Final = 20
_UNTIL_SATURATED: Final = 0.3


def neighbours_puts(there: Target, count: int) -> Figures:
    """Return the ``p99`` of the neighbour's puts in seconds, and that of its puts ``alone``."""
    command = [sys.executable, "-m", __name__, there.url.text, f"{there.root}/other", str(count)]
    # Leaving the block closes the pipes, which ends the process, and waits for its end.
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        if process.stdout.readline() != _READY:
            raise StoreUnavailableError("the other client has failed to put")
        with there.open() as store, ThreadPoolExecutor(1) as pool:
            ended = Event()
            said = pool.submit(_beside, process.stdin, process.stdout, ended)
            saturate(store, f"{there.root}/ours", ended)
    if not said.result():
        raise StoreUnavailableError("the other client has failed to put beside others")
    latencies = json.loads(said.result())
    alone, beside = (array("q", latencies[name]) for name in ("alone", "beside"))
    return {
        "rate": len(beside) / sum(beside) * 1e9,
        "p99": percentiles(histogram(beside))["p99"],
        "alone": percentiles(histogram(alone))["p99"],
    }


def _beside(stdin: IO[str], stdout: IO[str], ended: Event) -> str:
    """Start the neighbour's puts once the server is saturated, and return its line of JSON."""
    try:
        time.sleep(_UNTIL_SATURATED)
        stdin.write("go\n")
        stdin.flush()
        return stdout.readline()
    finally:
        ended.set()


def _main(argv: Sequence[str]) -> int:
    url, root, count = parse_url(argv[0]), argv[1], int(argv[2])
    with PLAIN_CLIENTS[store_kind(url).scheme].connect(url, root) as put:
        numbers = itertools.count()

        def put_some(count: int) -> list[int]:
            latencies = []
            for number in itertools.islice(numbers, count):
                begun = time.perf_counter_ns()
                put(put_path(root, number), put_value(number, VALUE_BYTES))
                latencies.append(time.perf_counter_ns() - begun)
            return latencies

        put_some(_WARM_UP)
        alone = put_some(_ALONE)
        sys.stdout.write(_READY)
        sys.stdout.flush()
        if not sys.stdin.readline():
            return 1  # the parent has gone
        sys.stdout.write(json.dumps({"alone": alone, "beside": put_some(count)}) + "\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
