# async:
# `_sync/served.py` is generated from this file: after a change, run `python tools/faces.py`.
# end
"""The topics that a hub serves, and a lock for each topic.

For each topic, one call at a time claims it or gives it up: the call that has locked it. A topic
that the hub serves needs no lock to take messages and subscribers. The rules:

- One mutex guards topics and their locks, so a claim sees both at the same moment. Nothing is
  awaited, and no other part is called, under this mutex.
- Only the call that has locked a topic adds or removes the topic.
- What runs with a lock goes on to its end also if the caller is cancelled, and unlocks then.

This module knows neither the store nor the session.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from typing import ParamSpec, TypeVar

from ...coordination.async_background import AsyncSignal, async_finish
from ...ops.operations import ABSENT, Check
from ..names import escaped, name_text
from ..topics.region import Claim
from .async_owned import AsyncOwnedTopic

__all__ = ["AsyncServedTopics"]

_P = ParamSpec("_P")
_T = TypeVar("_T")


class AsyncServedTopics:
    """The topics of one hub, by their names.

    Args:
        region: the path of the region.
    """

    def __init__(self, region: str) -> None:
        self._region = region
        self._lock = threading.Lock()  # guards the following fields
        self._by_name: dict[str, AsyncOwnedTopic] = {}
        self._locks: dict[str, AsyncSignal] = {}

    def get(self, name: str) -> AsyncOwnedTopic | None:
        """Return a topic, locked or not; ``None`` if the hub does not serve it."""
        with self._lock:
            return self._by_name.get(name)

    def all(self) -> list[AsyncOwnedTopic]:
        """Return the topics of this moment."""
        with self._lock:
            return [*self._by_name.values()]

    def claims(self) -> dict[str, Claim]:
        """Return the claims of the topics of this moment."""
        with self._lock:
            return {name: topic.claim for name, topic in self._by_name.items()}

    def has(self, topic: AsyncOwnedTopic) -> bool:
        """Say whether this very topic is served, and not a later claim of its name."""
        with self._lock:
            return self._by_name.get(topic.claim.topic) is topic

    def checks(self, topic: str | bytes) -> tuple[Check]:
        """Return the condition of the writes of marks: that the hub still owns the topic."""
        with self._lock:
            found = self._by_name.get(name_text(topic))
        if found is not None:
            return (found.claim.check,)
        # It has an epoch, so this never holds.
        return (Check(f"{self._region}/topics/{escaped(topic)}/epoch", ABSENT),)

    def add(self, topic: AsyncOwnedTopic) -> None:
        """Serve a topic from now on. The caller has locked it."""
        with self._lock:
            self._by_name[topic.claim.topic] = topic

    def remove(self, topic: AsyncOwnedTopic) -> None:
        """Serve a topic no more. The caller has locked it."""
        with self._lock:
            del self._by_name[topic.claim.topic]

    # Locks

    async def settled(self, name: str) -> AsyncOwnedTopic | None:
        """Return a topic if the hub serves it. If it is locked, that is waited for."""
        while True:
            with self._lock:
                found, held = self._by_name.get(name), self._locks.get(name)
            if held is None:
                return found
            await held.wait()

    async def all_settled(self) -> None:
        """Return when all locks of this moment were released."""
        with self._lock:
            locks = [*self._locks.values()]
        for held in locks:
            await held.wait()

    def try_lock(self, name: str) -> AsyncSignal | None:
        """Lock a topic, unless it is locked or served already."""
        with self._lock:
            if name in self._locks or name in self._by_name:
                return None
            mine = self._locks[name] = AsyncSignal()
        return mine

    async def lock(self, name: str) -> AsyncSignal:
        """Wait until nobody else claims a topic or gives it up."""
        while True:
            with self._lock:
                held = self._locks.get(name)
                if held is None:
                    mine = self._locks[name] = AsyncSignal()
                    return mine
            await held.wait()

    async def run_locked(
        self,
        name: str,
        held: AsyncSignal,
        call: Callable[_P, Awaitable[_T]],
        *args: _P.args,
        **kwargs: _P.kwargs,
    ) -> _T:
        """Call a function with the lock of a topic, which it releases, whatever the caller does."""

        async def run() -> _T:
            try:
                return await call(*args, **kwargs)
            finally:
                self._unlock(name, held)

        return await async_finish(run)

    def _unlock(self, name: str, held: AsyncSignal) -> None:
        with self._lock:
            del self._locks[name]
        held.set()
