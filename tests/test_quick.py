"""The tests that a quick run leaves out, and that no other can start a server."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from batchkeeper.testing.servers import releases

from .conftest import NOWHERE, PLACES

TESTS = Path(__file__).parent


def collected(*options: str) -> set[str]:
    """Return the names of the tests that a run of some files takes, each with its parameters."""
    files = ("conformance/test_bulk.py", "stores/etcd/test_txn.py")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"),
            *("-o", "addopts=--import-mode=importlib", f"--confcutdir={TESTS}", *options),
            *(str(TESTS / file) for file in files),
        ],
        cwd=TESTS.parent,
        capture_output=True,
        text=True,
        check=True,
    )
    return {line.rpartition("::")[2] for line in done.stdout.splitlines() if "::" in line}


@pytest.mark.full
@pytest.mark.slow
def test_a_quick_run_takes_the_tests_that_need_no_server() -> None:
    """It leaves out servers, by a fixture, a parameter or a mark, RocksDB, and drawn inputs."""
    everything = collected()
    left_out = everything - collected("--quick")
    kinds = re.compile(r"[\[-](etcd|rocksdb|zookeeper)[\]-]")
    of_kinds = set(filter(kinds.search, everything))
    assert left_out == of_kinds | collected("-m", "hypothesis")
    assert any("[memory" in name for name in everything)


def test_a_server_that_a_quick_run_does_not_expect_cannot_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A search for etcd, ZooKeeper or Spark fails at once, with the reason."""
    for place in PLACES:
        monkeypatch.setenv(place, NOWHERE)
    for find in (releases.find_etcd, releases.find_zookeeper_jars):
        with pytest.raises(releases.ServerMissingError, match="lacks the mark `server`"):
            find()
    started = subprocess.run(
        [sys.executable, "-c", "import pyspark; pyspark.SparkContext()"],
        env=os.environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert started.returncode != 0
    assert NOWHERE in started.stderr
