"""The example of a job queue, run as its users run it."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

import batchkeeper as bk

from ..programs import run_python

EXAMPLE = str(Path(__file__).parents[2] / "examples" / "job_queue.py")


@pytest.mark.slow
def test_the_demonstration() -> None:
    """Without arguments it runs in memory: two jobs are done, one fails three times."""
    ended = run_python(EXAMPLE, check=True)
    *lines, last = ended.stdout.splitlines()
    assert sorted(lines) == [
        "attempt 1 failed: an empty mail",
        "attempt 2 failed: an empty mail",
        "attempt 3 failed: an empty mail",
        "delivered one",
        "delivered two",
    ]
    assert last == "5 jobs begun"


@pytest.mark.server
def test_workers_of_a_server(fresh_url: Callable[[str], str]) -> None:
    """Jobs are put by one process and done by another, and a bad one is put aside."""
    url = fresh_url("etcd")
    run_python(EXAMPLE, url, "put", "a", "b", "c", "", check=True)
    ended = run_python(EXAMPLE, url, "work", "--rate", "50", check=True)
    assert {f"delivered {text}" for text in "abc"} <= {*ended.stdout.splitlines()}
    with bk.open_store(url) as store:
        assert len(store.get_children("/mail/failed").result()) == 1
        assert store.get_children("/mail/queue/jobs").result() == []


def test_the_rate(fresh_url: Callable[[str], str], monkeypatch: pytest.MonkeyPatch) -> None:
    """In each second, all together begin at most as many jobs as the rate allows."""
    spec = importlib.util.spec_from_file_location("job_queue", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    job_queue = importlib.util.module_from_spec(spec)  # It does not stay among the modules.
    spec.loader.exec_module(job_queue)
    now = 1000.25
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        nonlocal now
        slept.append(seconds)
        now += seconds

    clock = SimpleNamespace(time=lambda: now, sleep=sleep)
    monkeypatch.setattr(job_queue, "time", clock)
    with bk.open_store(fresh_url("memory")) as store:
        rates = [job_queue.Rate(store, "/rate", 3) for _ in range(2)]
        begun = []
        for turn in range(8):
            rates[turn % 2].wait()
            begun.append(int(now))
        assert begun == [1000] * 3 + [1001] * 3 + [1002] * 2
        assert slept == [0.75, 1.0]
