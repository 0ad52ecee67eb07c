"""The process of a hub: ``python -m batchkeeper.bench.simulation.hub JSON``."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from ... import open_async_store
from ...hubs import (
    AsyncFileLogs,
    AsyncHubServer,
    AsyncTopicHub,
    Claim,
    HubSettings,
    StaleEpochError,
)
from ...stores.backend import Answer, Backend, PassingBackend, ReadRequest, WriteRequest
from ...testing.servers.processes import HOST
from .events import Recorder
from .plan import Plan, task

# Seconds between two records of a hub's store operations.
_SAMPLE: Final = 0.25
# Seconds that a hub waits for the end of its predecessor at the same address.
_PATIENCE: Final = 60.0


class _RecordedLogs(AsyncFileLogs):
    """The logs of a hub, with a record of each epoch that begins and of each append."""

    def __init__(self, directory: str, record: Recorder) -> None:
        super().__init__(directory, sync=False)
        self._record = record
        self.appended = 0

    async def begin(self, claim: Claim) -> int:
        begun = time.monotonic()
        last = await super().begin(claim)
        self._record("began", topic=claim.topic, epoch=claim.epoch, begun=begun)
        return last

    async def append(self, claim: Claim, bodies: Sequence[bytes]) -> int:
        begun = time.monotonic()
        try:
            last = await super().append(claim, bodies)
        except StaleEpochError:
            self._record("refused", topic=claim.topic, epoch=claim.epoch, begun=begun)
            raise
        self._record("appended", topic=claim.topic, epoch=claim.epoch, begun=begun, last=last)
        self.appended += len(bodies)
        return last


class _Counting(PassingBackend):
    """Counts the operations that the store has received, by their subject. Thread-safe."""

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        self._lock = threading.Lock()  # guards the field
        self._counts: Counter[str] = Counter()

    def counts(self) -> dict[str, int]:
        with self._lock:
            return dict(self._counts)

    def write(self, requests: Sequence[WriteRequest], deadline: float) -> Sequence[Answer]:
        self._count(requests)
        return super().write(requests, deadline)

    def read(self, requests: Sequence[ReadRequest], deadline: float) -> Sequence[Answer]:
        self._count(requests)
        return super().read(requests, deadline)

    def _count(self, requests: Sequence[ReadRequest] | Sequence[WriteRequest]) -> None:
        with self._lock:
            self._counts.update(map(_about, requests))


def _about(request: ReadRequest | WriteRequest) -> str:
    """Return the subject: hubs and loads, subscriptions and marks, or topics and all else."""
    parts = () if request.options is None else request.options.parts
    paths = [part.path for part in parts] or [request.path]
    if any("/hosts" in path for path in paths):
        return "hosts"
    return "subscriptions" if any("/subscribers" in path for path in paths) else "topics"


async def _serve(
    plan: Plan, url: str, region: str, port: int, directory: str, record: Recorder
) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    wrapped: list[_Counting] = []

    def wrap(backend: Backend) -> Backend:
        wrapped.append(_Counting(backend))
        return wrapped[0]

    logs = _RecordedLogs(directory, record)
    server = AsyncHubServer()
    address = f"{HOST}:{port}"
    async with open_async_store(
        url,
        connect_timeout=_PATIENCE,
        session_timeout=plan.session_timeout,
        operation_timeout=2 * plan.session_timeout,
        wrap=wrap,
    ) as store:
        # A short simulation shows effects that otherwise take minutes.
        settings = HubSettings(
            ownership=plan.ownership, most_redelivered=100, mark_interval=0.5, shed_interval=2.0
        )
        hub = AsyncTopicHub(store, region, address, logs, settings)

        async def acquired(claim: Claim) -> None:
            record(
                "acquired",
                topic=claim.topic,
                epoch=claim.epoch,
                hub=address,
                incarnation=claim.owner.incarnation,
            )

        async def lost(claim: Claim) -> None:
            record("lost", topic=claim.topic, epoch=claim.epoch)

        hub.add_listener(acquired, lost)
        await hub.start(_PATIENCE)
        try:
            record("serving", hub=address, incarnation=hub.info.incarnation)
            # Not before it has registered, which may take as long as the session of the previous
            # process: refused clients ask another hub at once.
            await server.listen(HOST, port)
            server.serve(hub)
            while not stop.is_set():
                record(
                    "sample",
                    hub=address,
                    incarnation=hub.info.incarnation,
                    until=hub.valid_until(),
                    topics=len(hub.topics),
                    appended=logs.appended,
                    asked=wrapped[0].counts(),
                )
                try:
                    async with asyncio.timeout(_SAMPLE):
                        await stop.wait()
                except TimeoutError:
                    pass
            record("stopping", hub=address)
        finally:
            await hub.stop()
            await server.stop()
    record("stopped", hub=address)


def main() -> None:
    """Run a hub until SIGTERM."""
    given = task()
    record = Recorder(Path(given.pop("events")))
    asyncio.run(_serve(**given, record=record))


if __name__ == "__main__":
    main()
