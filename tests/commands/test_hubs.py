"""Commands for message hubs: which there are, who owns what, and what changes."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import batchkeeper as bk
from batchkeeper.hubs import FileLogs, HubSettings, OwnershipMode, TopicHub
from batchkeeper.hubs.serving._sync.upkeep import Upkeep

from ..programs import COMMAND
from ..waiting import until
from .conftest import Run

R = "/hedwig/eu"


@contextmanager
def hub(
    store: bk.MetadataStore,
    directory: Path,
    address: str = "hub-1:4080",
    mode: OwnershipMode = "ephemeral",
    region: str = R,
) -> Iterator[TopicHub]:
    """A hub that serves in this process."""
    settings = HubSettings(ownership=mode, report_interval=0.05)
    layout = "tables" if mode == "compared" else "paths"
    with TopicHub(store, region, address, FileLogs(directory), settings, layout) as made:  # type: ignore[arg-type]
        yield made


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[bk.MetadataStore]:
    """A store in memory that commands find in the environment, open for the whole test."""
    monkeypatch.setenv("BATCHKEEPER_STORE", "memory://hubs")
    with bk.open_store("memory://hubs") as store:
        yield store


def test_hubs_are_listed(run: Run, memory: bk.MetadataStore, tmp_path: Path) -> None:
    """Serving hubs have a load; stopped hubs are still members."""
    with hub(memory, tmp_path) as one:
        one.publish("p", "orders", b"", True)
        until(lambda: one.hosts.hubs()[one.address].load.topics == 1)
        with hub(memory, tmp_path, "hub-2:4080"):
            pass
        code, out, errors = run("hubs", "list", "--region", R)
        assert (code, errors[1:]) == (0, [])
        header, first, second = out.decode().splitlines()
        assert header.split()[:3] == ["hub", "state", "topics"]
        assert first.split()[:3] == ["hub-1:4080", "serves", "1"]
        assert second.split() == ["hub-2:4080", "gone"]
        one.hosts.set_eligible(one.address, False)
        code, out, _ = run("hubs", "list", "--region", R, "-o", "jsonl")
        first, second = map(json.loads, out.splitlines())
        assert first["alive"] is True
        assert first["eligible"] is False
        assert first["incarnation"] == one.info.incarnation
        assert second == {
            "hub": "hub-2:4080",
            "alive": False,
            "eligible": True,
            "draining": False,
        }


@pytest.mark.parametrize("mode", ["ephemeral", "compared"])
def test_topics_are_listed(
    mode: OwnershipMode, run: Run, memory: bk.MetadataStore, tmp_path: Path
) -> None:
    """In both modes and layouts, with any name; a topic without an owner is shown as such."""
    with hub(memory, tmp_path, mode=mode) as one:
        for topic in ("a/b", "orders"):
            one.publish("p", topic, b"", True)
        one.release("orders")
        code, out, _ = run("hubs", "topics", "--region", R)
        assert code == 0
        assert [line.split() for line in out.decode().splitlines()] == [
            ["topic", "hub", "epoch"],
            ["a/b", "hub-1:4080", "1"],
            ["orders", "-", "1"],
        ]
        code, out, _ = run("hubs", "topics", "--region", R, "-o", "json")
        assert json.loads(out) == [
            {
                "topic": "a/b",
                "hub": "hub-1:4080",
                "incarnation": one.info.incarnation,
                "epoch": 1,
            },
            {"topic": "orders", "hub": None, "incarnation": None, "epoch": 1},
        ]


def test_a_region_that_is_not_there(run: Run, memory: bk.MetadataStore) -> None:
    """Nothing is written; the message says how to name another one."""
    code, out, errors = run("hubs", "topics")
    assert (code, out) == (1, b"")
    assert "no region is at /hedwig/region: name it with --region" in errors[-1]
    code, out, errors = run("hubs", "list", "-o", "json")
    assert (code, json.loads(out)) == (1, [])
    assert (
        errors[-1] == "batchkeeper: no hub belongs to /hedwig/region: name the region with --region"
    )
    assert list(memory.scan("/")) == []
    code, _, errors = run("hubs", "drain", "hub-9:1")
    assert code == 1
    assert "no hub 'hub-9:1'" in errors[-1]
    code, _, errors = run("hubs", "list", "--region", "no/path")
    assert code == 3


def test_a_hub_drains(run: Run, memory: bk.MetadataStore, tmp_path: Path) -> None:
    """With --wait, until its topics are gone; --undo lets it get topics again."""
    with hub(memory, tmp_path) as one:
        one.publish("p", "orders", b"", True)
        until(lambda: one.hosts.hubs()[one.address].load.topics == 1)
        code, _, _ = run("hubs", "drain", one.address, "--region", R, "--wait", "60s")
        assert code == 0
        assert one.topics == {}
        _, out, _ = run("hubs", "list", "--region", R)
        assert out.decode().splitlines()[1].split()[:2] == [one.address, "drains"]
        code, _, _ = run("hubs", "drain", one.address, "--region", R, "--undo")
        assert code == 0
        until(lambda: one.hosts.hubs()[one.address].draining is False)


def test_a_hub_that_keeps_its_topics(
    run: Run, memory: bk.MetadataStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wait ends with 2, and a message that says how many there are."""
    monkeypatch.setattr(Upkeep, "_follow_membership", lambda self: None)
    with hub(memory, tmp_path) as one:
        one.publish("p", "orders", b"", True)
        until(lambda: one.hosts.hubs()[one.address].load.topics == 1)
        code, _, errors = run("hubs", "drain", one.address, "--region", R, "--wait", "10ms")
        assert code == 2
        assert errors[-1] == "batchkeeper: hub-1:4080 still has 1 topics"


@pytest.mark.parametrize("name", ["etcd", "zookeeper"])
def test_changes_are_watched(name: str, fresh_url: Callable[[str], str], tmp_path: Path) -> None:
    """Hubs that join and leave, memberships, claims and releases, as lines of JSON."""
    url = fresh_url(name)
    with bk.open_store(url) as store:
        store.put(f"{R}/x", b"").result()
        command = [*COMMAND, "--store", url, "hubs", "watch", "--region", R]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            try:
                assert "watching" in process.stderr.readline()
                with hub(store, tmp_path) as one:
                    one.publish("p", "a/b", b"", True)
                    me = one.info
                    one.hosts.set_draining(one.address, True)
                seen: list[dict[str, Any]] = []
                while not seen or seen[-1]["event"] != "left":
                    seen.append(json.loads(process.stdout.readline()))
                process.send_signal(signal.SIGINT)
                assert process.wait() == 130
            finally:
                process.kill()
    assert {"event": "joined", "hub": "hub-1:4080"} in seen
    assert seen[-1] == {"event": "left", "hub": "hub-1:4080"}
    assert {
        "event": "claimed",
        "topic": "a/b",
        "hub": "hub-1:4080",
        "incarnation": me.incarnation,
        "epoch": 1,
    } in seen
    assert {"event": "released", "topic": "a/b"} in seen
    drains = {"event": "membership", "hub": "hub-1:4080", "eligible": True, "draining": True}
    assert drains in seen
