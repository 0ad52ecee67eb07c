# async:
# `_sync/served.py` is generated from this file: after a change, run `python tools/faces.py`.
# end
"""The topics that a hub serves, and a lock for each topic.

For each topic, one call at a time may claim or release it: the call that has locked it. A topic
that the hub serves accepts messages and subscribers without this lock. The rules:

- One mutex guards topics and their locks, so a claim sees both at the same moment. No code under
  this mutex awaits, or calls another part.
- Only the call that has locked a topic adds or removes the topic.
- A function with a lock runs to its end even if the caller is cancelled, and then unlocks.

This module knows neither the store nor the session.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from typing import ParamSpec, TypeVar

from ...batching.async_background import AsyncSignal, async_finish
from ...ops.operations import ABSENT, Check
from ..names import escaped, name_text
from ..topics.region import Claim
from .async_owned import AsyncOwnedTopic

__all__ = ["AsyncServedTopics"]

_P = ParamSpec("_P")
_T = TypeVar("_T")


class AsyncServedTopics:
    """The topics of one hub, by name.

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
        """Return the current topics."""
        with self._lock:
            return [*self._by_name.values()]

    def claims(self) -> dict[str, Claim]:
        """Return the claims of the current topics."""
        with self._lock:
            return {name: topic.claim for name, topic in self._by_name.items()}

    def has(self, topic: AsyncOwnedTopic) -> bool:
        """Return whether this very claim of a topic is served, not a later one."""
        with self._lock:
            return self._by_name.get(topic.claim.topic) is topic

    def checks(self, topic: str | bytes) -> tuple[Check]:
        """Return the condition for writing marks: that the hub still owns the topic."""
        with self._lock:
            found = self._by_name.get(name_text(topic))
        if found is not None:
            return (found.claim.check,)
        # The topic has an epoch, so this never holds.
        return (Check(f"{self._region}/topics/{escaped(topic)}/epoch", ABSENT),)

    def add(self, topic: AsyncOwnedTopic) -> None:
        """Start to serve a topic. The caller has locked it."""
        with self._lock:
            self._by_name[topic.claim.topic] = topic

    def remove(self, topic: AsyncOwnedTopic) -> None:
        """Stop serving a topic. The caller has locked it."""
        with self._lock:
            del self._by_name[topic.claim.topic]

    # Locks

    async def settled(self, name: str) -> AsyncOwnedTopic | None:
        """Return a topic if the hub serves it, after the release of any current lock."""
        while True:
            with self._lock:
                found, held = self._by_name.get(name), self._locks.get(name)
            if held is None:
                return found
            await held.wait()

    async def all_settled(self) -> None:
        """Return when all current locks have been released."""
        with self._lock:
            locks = [*self._locks.values()]
        for held in locks:
            await held.wait()

    def try_lock(self, name: str) -> AsyncSignal | None:
        """Lock a topic, unless it is already locked or served."""
        with self._lock:
            if name in self._locks or name in self._by_name:
                return None
            mine = self._locks[name] = AsyncSignal()
        return mine

    async def lock(self, name: str) -> AsyncSignal:
        """Wait until no other call claims or releases a topic."""
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
        """Call a function with the lock of a topic, then release it, despite any cancellation."""

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
