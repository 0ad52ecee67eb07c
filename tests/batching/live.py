"""A back end whose watches and session a test plays: it delivers events and errors on request."""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Sequence

from batchkeeper.ops import MetadataStoreError, SessionEvent, SessionState, WatchEvent
from batchkeeper.stores import ConnectOptions, connect
from batchkeeper.stores.backend import PassingBackend, Session, Watches

#: What the kind of such a store states.
STATED = frozenset({"watches", "history", "ephemerals"})


def created(*paths: str) -> list[WatchEvent]:
    return [WatchEvent("created", path, 0, 1) for path in paths]


class Played:
    """One watch as the back end has it."""

    def __init__(
        self,
        prefix: str,
        after: int | None,
        deliver: Callable[[Sequence[WatchEvent]], None],
        fail: Callable[[MetadataStoreError], None],
        deadline: float,
    ) -> None:
        self.prefix = prefix
        self.after = after
        self.deliver = deliver
        self.fail = fail
        self.deadline = deadline
        self.closes = 0

    def close(self) -> None:
        self.closes += 1


class PlayedSession:
    """A session whose events a test raises."""

    def __init__(self) -> None:
        self.id: str | None = "0xabc"
        self.timeout = 30.0
        self.number = 1
        self.state: SessionState = "connected"
        self.listens: list[Callable[[SessionEvent], None]] = []
        self.error: MetadataStoreError | None = None

    def valid_until(self) -> float:
        return -math.inf

    def listen(self, callback: Callable[[SessionEvent], None]) -> None:
        if self.error is not None:
            raise self.error
        self.listens.append(callback)

    def happen(self, *events: SessionEvent) -> None:
        (callback,) = self.listens
        for event in events:
            callback(event)


class PlayedBackend(PassingBackend):
    """Values in memory; watches and a session that the test plays.

    ``before`` runs in each call of ``watch``, before it returns.
    """

    def __init__(self) -> None:
        super().__init__(connect(f"memory://{uuid.uuid4().hex}", ConnectOptions()))
        self.played: list[Played] = []
        self.before: Callable[[Played], None] = lambda watch: None
        self.own_session = PlayedSession()

    @property
    def watches(self) -> Watches:
        return self

    @property
    def session(self) -> Session:
        return self.own_session

    def watch(
        self,
        prefix: str,
        after: int | None,
        deliver: Callable[[Sequence[WatchEvent]], None],
        fail: Callable[[MetadataStoreError], None],
        deadline: float,
    ) -> Played:
        watch = Played(prefix, after, deliver, fail, deadline)
        self.played.append(watch)
        self.before(watch)
        return watch
