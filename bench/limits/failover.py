"""Elections: how soon after the kill of a leader's process the next candidate leads.

As a process, ``python -m batchkeeper.bench.limits.failover URL ROOT COUNT`` leads COUNT elections
below ROOT, each with a store of its own, until it is killed.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Final

from ... import open_store
from ...coordination import Election
from ..target import Target
from ..workload import WrongAnswerError
from .processes import await_go, other_process
from .work import Figures

__all__ = ["failovers"]

# Seconds. The bench's ZooKeeper accepts no less than two of its ticks.
_SESSION: Final = 5.0
# The time within which a client shows that it lives, as a part of the session. The stores of the
# process begin spread over it, as those of different processes would.
_SPREAD: Final = _SESSION / 3
_LEADER: Final = b"leader"
_PATIENCE: Final = 60.0
_BETWEEN_LOOKS: Final = 0.02
_ATTEMPTS: Final = 3


def failovers(there: Target, count: int) -> Figures:
    """Measure the time from the kill to the next leader, beyond the session timeout: the median."""
    for attempt in range(_ATTEMPTS):
        seconds = _seconds(there, f"{there.root}/{attempt}", count)
        if min(seconds) > 0:
            return {
                "rate": count / max(seconds),
                "after": max(0.001, statistics.median(seconds) - _SESSION),
            }
        # The machine has stood still for longer than the session, so that the leader lost it.
    raise WrongAnswerError("time and again, another candidate led before the leader was killed")


def _seconds(there: Target, root: str, count: int) -> list[float]:
    with there.open() as store, ThreadPoolExecutor(count) as pool, ExitStack() as stack:
        elections = [Election(store, path, b"next") for path in _paths(root, count)]
        for election in elections:
            stack.enter_context(election)
        with other_process(__name__, there.url.text, root, str(count)) as process:
            led = [pool.submit(_lead, election) for election in elections]
            while not any(future.done() for future in led) and any(
                len(store.get_children(election.path).result()) < 2 for election in elections
            ):
                time.sleep(_BETWEEN_LOOKS)
            process.kill()
            killed = time.perf_counter()
        return [future.result() - killed for future in led]


def _lead(election: Election) -> float:
    election.campaign(timeout=_PATIENCE)
    return time.perf_counter()


def _paths(root: str, count: int) -> list[str]:
    return [f"{root}/{number}" for number in range(count)]


def _main(argv: Sequence[str]) -> int:
    url, root, count = argv
    with ExitStack() as stack:
        for path in _paths(root, int(count)):
            store = stack.enter_context(open_store(url, session_timeout=_SESSION))
            stack.enter_context(Election(store, path, _LEADER)).campaign(timeout=_PATIENCE)
            time.sleep(_SPREAD / int(count))
        await_go()
    return 0


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
