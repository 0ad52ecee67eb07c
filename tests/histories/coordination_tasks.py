"""What the tasks of processes do with locks and elections: the same as the threads of others."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import batchkeeper as bk
from batchkeeper.coordination.async_elections import AsyncElection
from batchkeeper.coordination.async_fencing import async_fenced
from batchkeeper.coordination.async_locks import AsyncLock

from .coordination import Fenced, Hold
from .coordination_recorder import LOOK, Me, outcome_of, term_look

__all__ = ["TASKS", "play_tasks"]


async def _rest(me: Me, longest: float) -> None:
    await asyncio.sleep(me.dice.uniform(0.0, longest))


async def hold_lock(me: Me) -> None:
    """Hold a lock for a while, again and again, and put fenced values. Some waits are cancelled."""
    lock = AsyncLock(me.store, "/lock", me.name.encode())
    for number in itertools.count():
        if me.stopping.is_set():
            return
        try:
            async with asyncio.timeout(me.dice.choice([me.dice.uniform(0.0, 1.0), 3.0])):
                await lock.acquire(timeout=1.0)
        except (TimeoutError, bk.MetadataStoreError):
            await _rest(me, 0.1)
            continue
        hold = Hold("/lock", me.name, lock.fencing_token, time.monotonic())
        with me.holding(hold, lambda: (lock.held, lock.held_until())):
            await _put_fenced(me, lock, f"{me.name}-{number}", me.dice.choice([1, 1, 1, 10]))
        try:
            await lock.release()
        except bk.MetadataStoreError:
            await _rest(me, 0.1)


async def _put_fenced(me: Me, lock: AsyncLock, name: str, times: int) -> None:
    token = lock.fencing_token
    try:
        store = async_fenced(me.store, lock)
    except bk.MetadataStoreError:
        return
    for turn in range(times):
        write = Fenced("/fenced", f"{name}-{turn}", token)
        number = me.report(write)
        try:
            stat = await store.put(write.path, write.value.encode())
            write.version, write.outcome = stat.version, "done"
        except bk.MetadataStoreError as error:
            write.outcome = outcome_of(error)
        me.report(write, number)
        await _rest(me, 0.02)


async def lead(me: Me) -> None:
    """Lead for a while, again and again."""
    election = AsyncElection(me.store, "/election", me.name.encode())
    last = 0
    while not me.stopping.is_set():
        try:
            async with asyncio.timeout(me.dice.choice([me.dice.uniform(0.0, 1.0), 3.0])):
                await election.campaign(timeout=1.0)
            token = election.fencing_token
            acquired = time.monotonic()
        except (TimeoutError, bk.MetadataStoreError):
            await _rest(me, 0.1)
            continue
        if token == last:  # The clock had ended it, and the election had not noticed yet.
            await _rest(me, 0.1)
            continue
        look = term_look(election, token)
        with me.holding(Hold("/election", me.name, token, acquired), look):
            for _ in range(me.dice.choice([1, 1, 12])):
                await _rest(me, 0.05)
                if not look()[0]:
                    break
        last = token
        if look()[0] or me.dice.random() < 0.5:
            with suppress(bk.MetadataStoreError):
                await election.resign()
    with suppress(bk.MetadataStoreError):
        await election.close()


#: What a task can do.
TASKS: dict[str, Callable[[Me], Awaitable[None]]] = {"lock": hold_lock, "lead": lead}


async def play_tasks(me: Me, roles: list[str], *store: Any, **options: Any) -> None:
    """Play roles until the signal to stop, on a store of their own."""
    async with bk.open_async_store(*store, **options) as me.store, asyncio.TaskGroup() as group:
        looking = group.create_task(_look(me))
        await asyncio.gather(*(TASKS[role](me) for role in roles))
        looking.cancel()


async def _look(me: Me) -> None:
    while True:
        me.look_once()
        await asyncio.sleep(LOOK)
