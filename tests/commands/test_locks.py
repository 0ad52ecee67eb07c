"""The command ``locks``: the line of a lock, as it is."""

from __future__ import annotations

import json

import pytest

import batchkeeper as bk

from ..waiting import PATIENCE
from .conftest import Run


@pytest.mark.parametrize("store_url", ["memory", "etcd", "zookeeper"], indirect=True)
def test_the_line_of_a_lock(run: Run, store_url: str) -> None:
    """Holders come first; without any, the exit code is 1, and nothing is created."""
    with bk.open_store(store_url) as store:
        code, _, errors = run("locks", "/a", "--store", store_url)
        assert (code, errors[-1]) == (1, "batchkeeper: nobody holds '/a' or waits for it")
        assert store.get_children("/").result(PATIENCE) == []
        with bk.Lock(store, "/a", b"10.0.0.1\n") as lock:
            name = "fedcba9876543210-x-0000000001"  # one that waits
            store.put(f"/a/{name}", b"\xff", ephemeral=True).result(PATIENCE)
            code, output, _ = run("locks", "/a", "--store", store_url)
            rows = [(*line.split()[:2], line.split()[-1]) for line in output.decode().splitlines()]
            assert (code, rows[0]) == (0, ("state", "value", "name"))
            assert rows[1][:2] == ("holds", "10.0.0.1\\n")
            assert rows[2] == ("waits", "\\xff", name)
            found = json.loads(run("locks", "/a", "--store", store_url, "-o", "json")[1])
            assert [(one["path"], one["holds"]) for one in found] == [
                (one.path, one.holds) for one in lock.contenders()
            ]
            assert [one["value"] for one in found] == ["10.0.0.1\n", {"base64": "/w=="}]
