"""The process of the clients: ``python -m batchkeeper.bench.simulation.clients JSON``.

Each topic has one publisher and some subscribers. The publisher sends its next message once the
previous one is accepted. A subscriber confirms each message, and restarts from its stored mark from
time to time. The process ends when the publishing time is over and every subscriber has consumed
all accepted messages.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from ...hubs import AsyncHubConnections, AsyncReader, AsyncTopicClient
from ...ops.errors import MetadataStoreError
from .events import Recorder
from .plan import Plan, task

# Seconds for one request to a hub, which may be suspended.
_REQUEST: Final = 2.0
# Seconds for one call of a client, despite all faults.
_CALL: Final = 60.0
# Seconds after which a subscriber checks whether it is done.
_LOOK: Final = 0.5
# Seconds after the end of publishing within which subscribers must have all messages.
_PATIENCE: Final = 60.0


class _Clients:
    def __init__(self, client: AsyncTopicClient, plan: Plan, record: Recorder) -> None:
        self._client = client
        self._plan = plan
        self._record = record
        self._dice = random.Random(plan.seed)
        self._accepted = dict.fromkeys(plan.topic_names, 0)  # the last message of each topic
        self._publishing = plan.topics

    async def run(self) -> None:
        """Publish for the planned time, and let the subscribers finish."""
        plan = self._plan
        async with asyncio.TaskGroup() as tasks:
            for topic in plan.topic_names:
                ready = [asyncio.Event() for _ in range(plan.subscribers)]
                for number, event in enumerate(ready):
                    tasks.create_task(self._subscribe(f"subscriber-{number}", topic, event))
                tasks.create_task(self._publish(topic, ready))

    async def _publish(self, topic: str, ready: Sequence[asyncio.Event]) -> None:
        for event in ready:  # Every subscriber must get every message.
            await event.wait()
        pause = self._plan.topics / self._plan.rate
        self._record("publishing", topic=topic)
        end = time.monotonic() + self._plan.seconds
        due = time.monotonic() + self._dice.uniform(0, pause)
        sequence = 0
        while due < end:
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            sequence += 1
            begun = time.monotonic()
            try:
                done = await self._client.publish(topic, topic, b"%d" % sequence, _CALL)
            except (MetadataStoreError, OSError) as error:
                self._record("failed", topic=topic, sequence=sequence, begun=begun, why=repr(error))
            else:
                self._record(
                    "accepted",
                    topic=topic,
                    sequence=sequence,
                    number=done.number,
                    hub=done.hub.address,
                    begun=begun,
                )
                self._accepted[topic] = max(self._accepted[topic], done.number)
            # There is no catching up after an outage: it would look like a burst of load.
            due = max(due + pause, time.monotonic())
        self._publishing -= 1

    async def _subscribe(self, name: str, topic: str, started: asyncio.Event) -> None:
        consumed = 0
        end = time.monotonic() + self._plan.seconds + _CALL + _PATIENCE
        while time.monotonic() < end:
            reader = await self._client.subscribe(name, topic, timeout=_CALL)
            self._record("subscribed", topic=topic, subscriber=name)
            started.set()
            # The first time, each subscriber stays until there is a mark to restart from.
            stay = time.monotonic() + self._dice.expovariate(1 / (4 * self._plan.kill_every)) + 2.0
            async with reader:
                while time.monotonic() < min(stay, end):
                    consumed = max(consumed, await self._take(reader, name, topic))
                    if not self._publishing and consumed >= self._accepted[topic]:
                        self._record("finished", topic=topic, subscriber=name, consumed=consumed)
                        return

    async def _take(self, reader: AsyncReader, name: str, topic: str) -> int:
        messages = await reader.take(timeout=_LOOK)
        if not messages:
            return 0
        # In this order: a message is recorded as taken before it is recorded as consumed.
        self._record(
            "taken",
            topic=topic,
            subscriber=name,
            messages=[(message.number, int(message.body)) for message in messages],
        )
        await reader.consumed(messages[-1].number)
        return messages[-1].number


async def _run(plan: Plan, hubs: Sequence[str], record: Recorder) -> None:
    async with AsyncHubConnections(_REQUEST) as connections:
        await _Clients(AsyncTopicClient(connections, hubs), plan, record).run()


def main() -> None:
    """Run the clients to their end."""
    given = task()
    record = Recorder(Path(given.pop("events")))
    try:
        asyncio.run(_run(**given, record=record))
    except BaseException as error:
        record("broken", why=repr(error))
        raise


if __name__ == "__main__":
    main()
