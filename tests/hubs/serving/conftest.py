"""Hubs for the tests: in one process, each with a store and so a session of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import batchkeeper as bk
from batchkeeper.hubs import FileLogs, HubSettings, TopicHub
from batchkeeper.testing.servers import LocalServer

R = "/hedwig/eu"

MakeHub = Callable[..., TopicHub]


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
def hub(ownership: str, store_url: str, logs: FileLogs) -> Iterator[MakeHub]:
    """Start a hub; on stores that several clients can have, with a store of its own."""
    shared: list[bk.MetadataStore] = []
    with ExitStack() as stack:

        def make(address: str, **settings: Any) -> TopicHub:
            if not shared or not bk.store_kind(store_url).local_directory:
                shared.append(stack.enter_context(bk.open_store(store_url)))
            chosen = HubSettings(ownership=ownership, **settings)  # type: ignore[arg-type]
            # The layouts are tested with the managers.
            layout = "tables" if ownership == "compared" else "paths"
            made = TopicHub(shared[-1], R, address, logs, chosen, layout)  # type: ignore[arg-type]
            return stack.enter_context(made)

        yield make


@pytest.fixture(params=["etcd", "zookeeper"])
def server(request: pytest.FixtureRequest) -> LocalServer:
    """A server of each kind, of this test alone."""
    started: LocalServer = request.getfixturevalue(f"own_{request.param}")()
    return started
