"""Reads the stored consume marks while they change."""

from __future__ import annotations

import threading
from typing import Final, Self

from ...hubs import MetadataManagers
from ...ops.errors import MetadataStoreError
from .events import Recorder
from .plan import Plan

__all__ = ["MarkReader"]

# Seconds between two readings.
_PAUSE: Final = 1.0


class MarkReader:
    """Records each stored mark that it sees, on a thread of its own. A context manager.

    The last reading begins when the context ends.
    """

    def __init__(self, managers: MetadataManagers, plan: Plan, record: Recorder) -> None:
        self._managers = managers
        self._topics = plan.topic_names
        self._record = record
        self._seen: dict[tuple[str, str], int] = {}
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="simulation-marks")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()
        self._read()

    def _run(self) -> None:
        while not self._end.wait(_PAUSE):
            self._read()

    def _read(self) -> None:
        for topic in self._topics:
            try:
                found = self._managers.subscriptions.read_subscriptions(topic)
            except MetadataStoreError:
                continue  # The next reading sees more.
            for name, (data, _) in found.items():
                mark = 0 if data.state is None else data.state.mark.local
                if mark != self._seen.get((topic, name)):
                    self._seen[topic, name] = mark
                    self._record("mark", topic=topic, subscriber=name, mark=mark)
