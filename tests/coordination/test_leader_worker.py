"""The example of a worker that leads, and the examples of the document."""

from __future__ import annotations

import ast
import os
import re
import runpy
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import batchkeeper as bk
from batchkeeper.coordination import Election
from batchkeeper.ops.errors import TransactionRefusedError

from ..waiting import PATIENCE, until

ROOT = Path(__file__).parent.parent.parent
WORKER = ROOT / "examples" / "leader_worker.py"


def reported(store: bk.MetadataStore) -> int:
    found = store.get("/jobs/report").result(PATIENCE)
    return 0 if found is None else int(found.value)


@pytest.fixture
def worker() -> dict[str, Any]:
    """The names of the example."""
    return runpy.run_path(str(WORKER))


def test_the_examples_of_the_document_run(capsys: pytest.CaptureFixture[str]) -> None:
    """The first example runs unchanged without a server, and prints what happens."""
    text = (ROOT / "docs" / "elections.md").read_text()
    first, *others = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    exec(compile(first, "docs/elections.md", "exec"), {})
    printed = capsys.readouterr().out.splitlines()
    assert [line for line in printed if "hub-1 is" not in line] == ["b'hub-1'", "b'hub-2' False"]
    for other in others:
        compile(other, "docs/elections.md", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


def test_a_worker_alone(worker: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    """It runs without a server, works as often as it was asked to, and ends."""
    assert worker["main"](["--rounds", "3", "--period", "0"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if "run" in line] == [f"worker-1: run {n}" for n in (1, 2, 3)]


def test_a_worker_that_has_been_replaced_writes_nothing(worker: dict[str, Any]) -> None:
    """The result of a job that began in an earlier term is refused."""
    with (
        bk.open_store("memory://jobs-replaced") as store,
        Election(store, "/jobs/leader") as old,
        Election(store, "/jobs/leader") as new,
    ):
        old.campaign(PATIENCE)
        assert worker["run_job"](store, old) == 1
        get = store.get

        def stop(path: str) -> Any:
            found = get(path)
            old.resign()
            new.campaign(PATIENCE)
            return found

        store.get = stop  # type: ignore[method-assign, assignment]
        with pytest.raises(TransactionRefusedError):
            worker["run_job"](store, old)
        store.get = get  # type: ignore[method-assign]
        assert worker["run_job"](store, new) == 2


@pytest.mark.server
def test_the_next_worker_goes_on(fresh_url: Callable[[str], str]) -> None:
    """After the leader is killed, the other worker leads, and goes on with the count."""
    url = fresh_url("etcd")
    command = [sys.executable, str(WORKER), url, "--session", "2", "--period", "0.02"]
    workers = [
        subprocess.Popen([*command, "--name", name], stdout=subprocess.PIPE, text=True)
        for name in ("worker-1", "worker-2")
    ]
    try:
        with bk.open_store(url) as store, Election(store, "/jobs/leader") as election:
            until(lambda: reported(store) >= 2)  # So the first run has been printed.
            leader = election.leader()
            assert leader is not None
            first = int(leader.decode()[-1]) - 1
            os.kill(workers[first].pid, signal.SIGKILL)
            runs = [line for line in workers[first].stdout or () if "run" in line]
            last = int(runs[-1].split()[-1])
            output = workers[1 - first].stdout
            assert output is not None
            went_on = next(line for line in output if "run" in line)
            # One more result may have been written that the killed worker has not printed.
            assert int(went_on.split()[-1]) in {last + 1, last + 2}
    finally:
        for process in workers:
            process.kill()
            process.communicate()
