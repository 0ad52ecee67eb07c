"""Hubs for the tests: in one process, each with a store and so a session of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pytest

import batchkeeper as bk
from batchkeeper.hubs import (
    ComparedOwnership,
    EphemeralOwnership,
    FileLogs,
    HubSettings,
    TopicHub,
)
from batchkeeper.testing import FaultInjector
from batchkeeper.testing.servers import LocalServer

R = "/hedwig/eu"

# What keeps the owners in each mode: all hubs call these methods, so a test can replace one.
OWNERSHIPS: Final[dict[str, type]] = {
    "ephemeral": EphemeralOwnership,
    "compared": ComparedOwnership,
}


Started = tuple[TopicHub, bk.MetadataStore, FaultInjector]


class Hubs:
    """Starts hubs, and knows the store of each, and what lets that store fail."""

    def __init__(self, start: Callable[..., Started]) -> None:
        self._start = start
        self._started: dict[TopicHub, Started] = {}

    def __call__(self, address: str, **how: Any) -> TopicHub:
        """Start a hub."""
        started = self._start(address, **how)
        self._started[started[0]] = started
        return started[0]

    def store(self, hub: TopicHub) -> bk.MetadataStore:
        """Return the store of a hub."""
        return self._started[hub][1]

    def faults(self, hub: TopicHub) -> FaultInjector:
        """Return what lets the store of a hub fail, and notes its requests."""
        return self._started[hub][2]


@pytest.fixture(params=["ephemeral", "compared"])
def ownership(request: pytest.FixtureRequest) -> str:
    """Each of the modes."""
    found: str = request.param
    return found


@pytest.fixture
def logs(tmp_path: Path) -> FileLogs:
    """The logs of the messages, which all hubs share."""
    return FileLogs(tmp_path / "logs", sync=False)


@pytest.fixture
def layout(ownership: str) -> str:
    """Where the metadata is. The layouts are tested with the managers."""
    return "tables" if ownership == "compared" else "paths"


@pytest.fixture
def hub(ownership: str, layout: str, store_url: str, logs: FileLogs) -> Iterator[Hubs]:
    """Start a hub; on stores that several clients can have, with a store of its own."""
    opened: list[tuple[bk.MetadataStore, FaultInjector]] = []
    with ExitStack() as stack:

        def start(address: str, **settings: Any) -> Started:
            if not opened or not bk.store_kind(store_url).local_directory:
                faults = FaultInjector()
                store = stack.enter_context(bk.open_store(store_url, wrap=faults))
                opened.append((store, faults))
            store, faults = opened[-1]
            chosen = HubSettings(ownership=ownership, **settings)  # type: ignore[arg-type]
            made = TopicHub(store, R, address, logs, chosen, layout)  # type: ignore[arg-type]
            return stack.enter_context(made), store, faults

        yield Hubs(start)


@pytest.fixture(params=["etcd", "zookeeper"])
def server(request: pytest.FixtureRequest) -> LocalServer:
    """A server of each kind, of this test alone."""
    started: LocalServer = request.getfixturevalue(f"own_{request.param}")()
    return started
