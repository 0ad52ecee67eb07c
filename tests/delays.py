"""Delays threads at their seams, to find tests, and code, that rely on which thread is first.

``./run test -- --delays SEED``, or the same with a folder of tests, takes up to twice as long. A
test that fails in such a run, and passes alone, waits for too little, or has found a fault: one had
a member of a group keep itself from its name. Before a release, run it with a few seeds.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from batchkeeper.batching.feeds import Feed
from batchkeeper.stores.memory import _MemoryBackend
from batchkeeper.stores.zookeeper.backend import ZooKeeperBackend

__all__ = ["install"]

# Seconds: the longest pause of a thread that begins or delivers events, and of one that goes on.
_LONG: Final = 0.05
_SHORT: Final = 0.02


def install(seed: int) -> None:
    """Delay what runs in this process from now on."""
    dice = random.Random(seed)

    def nap(share: float, longest: float) -> None:
        if dice.random() < share:
            time.sleep(dice.random() * longest)

    def around(owner: Any, name: str, before: float, after: float, longest: float) -> None:
        real: Callable[..., Any] = getattr(owner, name)

        def late(*args: Any, **options: Any) -> Any:
            nap(before, longest)
            result = real(*args, **options)
            nap(after, longest)
            return result

        setattr(owner, name, late)

    around(threading.Thread, "run", 0.3, 0.0, _LONG)
    around(threading.Event, "wait", 0.0, 0.1, _SHORT)
    around(asyncio.base_events.BaseEventLoop, "call_soon_threadsafe", 0.1, 0.0, _SHORT)
    around(Feed, "deliver", 0.5, 0.0, _LONG)
    for backend in (_MemoryBackend, ZooKeeperBackend):
        for call in ("read", "write"):
            around(backend, call, 0.15, 0.15, _SHORT)
