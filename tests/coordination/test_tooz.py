"""The driver for tooz: tooz's own tests, and what they do not ask."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import tooz
from tooz.coordination import Characteristics, MemberNotJoined, ToozConnectionError, get_coordinator

import batchkeeper as bk
from batchkeeper.coordination import tooz_driver
from batchkeeper.testing.servers import LocalServer

from ..forks import holds_in_a_child
from ..programs import run_python
from ..waiting import PATIENCE

#: tooz's tests name classes of these drivers, whose packages are not needed here.
STUBS = """\
import sys, types
for name in ("etcd3gw.Etcd3", "ipc.IPC", "memcached.Memcached", "redis.Redis"):
    module, kind = name.split(".")
    stub = sys.modules[f"tooz.drivers.{module}"] = types.ModuleType(module)
    setattr(stub, f"{kind}Driver", type(kind, (), {}))
"""
#: What a run without --full takes of them: no processes, and no unreachable server.
PART = ("group", "election", "broken", "shared", "twice", "capabilities")

Fresh = Callable[[str], str]
Open = Callable[..., Any]


@pytest.fixture
def coordinator(fresh_url: Fresh) -> Iterator[Open]:
    """Start coordinators, in memory unless the test has another URL."""
    memory = fresh_url("memory")
    with ExitStack() as stack:

        def start(member: Any, url: str = memory, **options: Any) -> Any:
            made = get_coordinator(f"batchkeeper+{url}", member, **options)
            made.start()
            stack.callback(lambda: made.stop() if made.is_started else None)
            return made

        yield start


@pytest.mark.parametrize("kind", ["etcd", "zookeeper"])
def test_its_own_tests_pass(
    kind: str, fresh_url: Fresh, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    """All of them with ``--full``, as ``python -m unittest`` runs them."""
    (tmp_path / "sitecustomize.py").write_text(STUBS)
    path = f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    variables = {"PYTHONPATH": path, "TOOZ_TEST_URL": f"batchkeeper+{fresh_url(kind)}"}
    chosen = [] if pytestconfig.option.full else [f"-k={word}" for word in PART]
    tests = ("-W", "ignore", "-m", "unittest", *chosen, "tooz.tests.test_coordination")
    done = run_python(*tests, env={**os.environ, **variables})
    assert done.returncode == 0, done.stderr
    assert int(*re.findall(r"Ran (\d+) tests", done.stderr)) > (40 if chosen else 75)


def test_ids_are_any_bytes(coordinator: Open) -> None:
    """Ids and names that no path can hold stay apart, and come back as they were."""
    ids = [b"a/b", b"a%2Fb", b".", b".batchkeeper", b"\xff\x00", "é".encode()]
    members = [coordinator(name) for name in ids]
    for group in ids:
        members[0].create_group(group).get()
        for member in members:
            member.join_group(group).get()
        assert members[0].get_members(group).get() == set(ids)
    assert set(members[0].get_groups().get()) == set(ids)
    assert all(members[0].get_lock(name).acquire(blocking=False) for name in ids)
    assert coordinator("é").member_id == ids[-1]


def test_what_came_later_stays(coordinator: Open) -> None:
    """A membership or a hold that has ended removes and changes nobody else's."""
    one, two = coordinator(b"name"), coordinator(b"name")
    one.join_group_create(b"g")
    two.leave_group(b"g").get()  # tooz lets any client with the id do that.
    two.join_group(b"g", {"by": 2}).get()
    for attempt in (one.leave_group(b"g"), one.update_capabilities(b"g", {"by": 1})):
        with pytest.raises(MemberNotJoined):
            attempt.get()
    one.stop()
    assert two.get_member_capabilities(b"g", b"name").get() == {"by": 2}

    lock = two.get_lock(b"lock")
    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(lock.acquire).result()
        assert lock.break_()
        assert lock.acquire(blocking=False)
        assert not thread.submit(lock.release).result()
    assert lock.is_still_owner()


def test_what_a_url_says(monkeypatch: pytest.MonkeyPatch, fresh_url: Fresh) -> None:
    """The driver takes the login and its own options; the rest is for the store."""
    asked = []

    def opens(url: str, **options: Any) -> bk.MetadataStore:
        asked.append((url, *map(options.get, ("session_timeout", "username", "password"))))
        return bk.open_store(fresh_url("memory"))

    monkeypatch.setattr(tooz_driver, "open_store", opens)
    url = "batchkeeper+etcds://me:p%40ss@h1:1,h2:2/app?timeout=5&lock_timeout=7&ca=%2Fa"
    made = get_coordinator(url, b"a", [Characteristics.LINEARIZABLE])
    made.start()
    made.stop()
    assert asked == [("etcds://h1:1,h2:2/app?ca=%2Fa", time, "me", "p@ss") for time in (5.0, 7.0)]
    for scheme, wrong in ("zookeeper", "LINEARIZABLE"), ("memory", "DISTRIBUTED_ACROSS_PROCESSES"):
        with pytest.raises(tooz.coordination.ToozDriverChosenPoorly):
            get_coordinator(f"batchkeeper+{scheme}://a", b"a", [Characteristics[wrong]])


def test_an_outage(server: LocalServer, coordinator: Open) -> None:
    """Calls fail as tooz says. A lock that is released meanwhile is free afterwards."""
    one = coordinator(b"one", server.url, timeout=1, lock_timeout=60)
    lock = one.get_lock(b"lock")
    assert lock.acquire()
    token = lock.fencing_token
    server.kill()
    with pytest.raises(ToozConnectionError):
        one.get_members(b"g").get()
    assert lock.release()
    server.start()
    two = coordinator(b"two", server.url, timeout=30).get_lock(b"lock")
    assert two.acquire(timeout=PATIENCE)
    assert (two.fencing_token or 0) > (token or math.inf)


@pytest.mark.server
def test_a_fork(fresh_url: Fresh, coordinator: Open) -> None:
    """A child begins anew with ``stop`` and ``start``, and leaves its parent's things alone."""
    parent = coordinator(b"a", fresh_url("zookeeper"))
    parent.join_group_create(b"g")
    lock = parent.get_lock(b"lock")
    assert lock.acquire()

    def in_a_child() -> bool:
        with pytest.raises(tooz.ToozError, match="forked"):
            parent.get_members(b"g").get()
        parent.stop()
        parent.start()
        free = parent.get_lock(b"lock").acquire(blocking=False)
        return not free and bool(parent.get_members(b"g").get() == {b"a"})

    assert holds_in_a_child(in_a_child)
    assert lock.release()
