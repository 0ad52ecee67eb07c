# async:
# `_sync/served.py` is generated from this file: after a change, run `python tools/faces.py`.
# end
"""The topics that a hub serves, and whose turn each topic is.

For each topic, one call at a time claims it or gives it up: whoever has its *turn*. A topic that
the hub serves needs no turn to take messages and subscribers. The rules:

- One lock guards topics and turns, so a claim sees both at the same moment. Nothing is awaited, and
  no other part is called, under this lock.
- Only the call that has the turn of a topic adds or removes the topic.
- What runs in a turn goes on to its end also if the caller is cancelled, and the turn ends with it.

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
        self._turns: dict[str, AsyncSignal] = {}

    def get(self, name: str) -> AsyncOwnedTopic | None:
        """Return a topic, whoever has its turn; ``None`` if the hub does not serve it."""
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
        """Serve a topic from now on. The caller has its turn."""
        with self._lock:
            self._by_name[topic.claim.topic] = topic

    def remove(self, topic: AsyncOwnedTopic) -> None:
        """Serve a topic no more. The caller has its turn."""
        with self._lock:
            del self._by_name[topic.claim.topic]

    # Turns

    async def settled(self, name: str) -> AsyncOwnedTopic | None:
        """Return a topic if the hub serves it. If somebody has its turn, that is waited for."""
        while True:
            with self._lock:
                found, turn = self._by_name.get(name), self._turns.get(name)
            if turn is None:
                return found
            await turn.wait()

    async def all_settled(self) -> None:
        """Return when all turns of this moment have ended."""
        with self._lock:
            turns = [*self._turns.values()]
        for turn in turns:
            await turn.wait()

    def turn_to_claim(self, name: str) -> AsyncSignal | None:
        """Take the turn of a topic, unless somebody else has it, or the topic is served already."""
        with self._lock:
            if name in self._turns or name in self._by_name:
                return None
            mine = self._turns[name] = AsyncSignal()
        return mine

    async def take_turn(self, name: str) -> AsyncSignal:
        """Wait until nobody else claims a topic or gives it up."""
        while True:
            with self._lock:
                turn = self._turns.get(name)
                if turn is None:
                    mine = self._turns[name] = AsyncSignal()
                    return mine
            await turn.wait()

    async def in_turn(
        self,
        name: str,
        turn: AsyncSignal,
        call: Callable[_P, Awaitable[_T]],
        *args: _P.args,
        **kwargs: _P.kwargs,
    ) -> _T:
        """Call a function in the turn of a topic, which ends with it, whatever the caller does."""

        async def run() -> _T:
            try:
                return await call(*args, **kwargs)
            finally:
                self._end_turn(name, turn)

        return await async_finish(run)

    def _end_turn(self, name: str, turn: AsyncSignal) -> None:
        with self._lock:
            del self._turns[name]
        turn.set()
