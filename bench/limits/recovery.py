"""A hub with 10,000 topics that is killed: how soon the other hubs own them all.

Each hub is a process with a store of its own. When the first is killed, a client for each of its
topics subscribes again at once, at one of the other hubs, as the readers of an application would.
The clients live in the processes of these hubs, and reach the other one over TCP.

As a process, ``python -m batchkeeper.bench.limits.recovery URL REGION OWNERSHIP DIRECTORY MODE
FIRST STEP COUNT`` is a hub whose clients subscribe to the topics FIRST, FIRST + STEP, ... below
COUNT. It prints ``ready``, waits for a line, lets the clients begin, and prints ``done`` when all
have subscribed. After another line, it prints the number of topics that it owns, and the seconds of
CPU that this took. Then it waits for the end of its input.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack, ExitStack
from typing import Final, cast

from ... import open_async_store
from ...hubs import (
    AsyncFileLogs,
    AsyncHubConnection,
    AsyncHubConnections,
    AsyncHubServer,
    AsyncTopicClient,
    AsyncTopicHub,
    HubSettings,
    OwnershipMode,
    SubscribeMode,
)
from ..target import Target
from ..workload import WrongAnswerError
from .processes import Process, await_go, begin, line_of, other_process, say
from .work import Figures, parts

__all__ = ["compared_recovery", "ephemeral_recovery"]

# Seconds: ten ticks of the bench's ZooKeeper.
_SESSION: Final = 5.0
_PATIENCE: Final = 120.0
_SURVIVORS: Final = 2
_OF_ONE_CLIENT: Final = 500


def ephemeral_recovery(there: Target, count: int) -> Figures:
    """Measure the time from the kill until all topics are claimed, beyond the session timeout."""
    return _recovery(there, count, "ephemeral")


def compared_recovery(there: Target, count: int) -> Figures:
    """Measure the same in the mode ``"compared"``."""
    return _recovery(there, count, "compared")


def _recovery(there: Target, count: int, ownership: OwnershipMode) -> Figures:
    with ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory())

        def hub(mode: SubscribeMode, first: int, step: int) -> Process:
            arguments = there.url.text, there.root, ownership, directory, mode, first, step, count
            return stack.enter_context(other_process(__name__, *map(str, arguments)))

        owner = hub("create", 0, 1)
        begin(owner)
        line_of(owner)
        _check([owner], count)
        others = [hub("attach", number, _SURVIVORS) for number in range(_SURVIVORS)]
        owner.kill()
        killed = time.perf_counter()
        for other in others:
            begin(other)
        for other in others:
            line_of(other)
        seconds = time.perf_counter() - killed
        cpu = _check(others, count)
    return {"rate": count / seconds, "after": max(0.001, seconds - _SESSION), "cpu": cpu / count}


def _check(hubs: Sequence[Process], count: int) -> float:
    """Check the number of topics that hubs own, and return the CPU that they have used."""
    for hub in hubs:
        begin(hub)
    found = [line_of(hub).split() for hub in hubs]
    if (owned := sum(int(topics) for topics, _ in found)) != count:
        raise WrongAnswerError(f"{owned} of {count} topics are owned although all have clients")
    return sum(float(cpu) for _, cpu in found)


# In the process of a hub:


async def _serve(
    url: str,
    region: str,
    ownership: OwnershipMode,
    directory: str,
    mode: SubscribeMode,
    topics: Sequence[str],
) -> None:
    # No topic moves for other reasons than the kill, so that their number can be checked.
    settings = HubSettings(ownership=ownership, shed_interval=None)
    logs, server = AsyncFileLogs(directory, sync=False), AsyncHubServer()
    address = await server.listen()
    async with (
        open_async_store(url, session_timeout=_SESSION) as store,
        AsyncTopicHub(store, region, address, logs, settings) as hub,
        AsyncExitStack() as stack,
    ):
        server.serve(hub)

        async def client() -> AsyncTopicClient:
            connections = await stack.enter_async_context(AsyncHubConnections())

            async def connect(to: str) -> AsyncHubConnection:
                return hub if to == address else await connections(to)

            return AsyncTopicClient(connect, [address], timeout=_PATIENCE)

        # A connection has a limit of subscriptions.
        clients = [(await client(), some) for some in parts(topics, _OF_ONE_CLIENT)]
        if await asyncio.to_thread(await_go):
            begun = time.process_time()
            await asyncio.gather(
                *(one.subscribe("reader", topic, mode) for one, some in clients for topic in some)
            )
            cpu = time.process_time() - begun
            say("done\n")
            await asyncio.to_thread(sys.stdin.readline)
            say(f"{len(hub.topics)} {cpu}\n")
            await asyncio.to_thread(sys.stdin.readline)
        await server.stop()


def _main(argv: Sequence[str]) -> int:
    url, region, ownership, directory, mode, first, step, count = argv
    topics = [f"topic-{number}" for number in range(int(first), int(count), int(step))]
    # Both are checked by the hub.
    owned, wanted = cast("OwnershipMode", ownership), cast("SubscribeMode", mode)
    asyncio.run(_serve(url, region, owned, directory, wanted, topics))
    return 0


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
