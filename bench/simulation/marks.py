"""Reads the stored consume marks while they change."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from ...hubs import MetadataManagers
from ...ops.errors import MetadataStoreError
from .events import Recorder
from .plan import Plan

__all__ = ["recorded_marks"]

# Seconds between two readings.
_PAUSE: Final = 1.0


@contextmanager
def recorded_marks(managers: MetadataManagers, plan: Plan, record: Recorder) -> Iterator[None]:
    """Record each stored mark that is seen, on a thread. The last reading follows the context."""
    seen: dict[tuple[str, str], int] = {}
    end = threading.Event()

    def read() -> None:
        for topic in plan.topic_names:
            try:
                found = managers.subscriptions.read_subscriptions(topic)
            except MetadataStoreError:
                continue  # The next reading sees more.
            for name, (data, _) in found.items():
                mark = 0 if data.state is None else data.state.mark.local
                if mark != seen.get((topic, name)):
                    seen[topic, name] = mark
                    record("mark", topic=topic, subscriber=name, mark=mark)

    def run() -> None:
        while not end.wait(_PAUSE):
            read()

    thread = threading.Thread(target=run, name="simulation-marks")
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()
        read()
