"""The threads of a server's requests."""

from __future__ import annotations

import threading

import pytest

from batchkeeper.hubs.serving import workers

from ...waiting import until


def test_each_call_runs_at_once_and_none_is_lost_while_threads_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Threads that find no call end at once here, in the moment in which they may be given one."""
    monkeypatch.setattr(workers, "_IDLE", 0.0)
    made = workers.Workers()
    for _ in range(300):
        together = threading.Barrier(3, timeout=30.0)
        ended = [made.submit(together.wait) for _ in range(3)]
        assert sorted(one.result(30.0) for one in ended) == [0, 1, 2]


def test_a_thread_is_used_again_also_after_a_call_that_fails() -> None:
    made = workers.Workers()
    failed = made.submit(int, "no number")
    with pytest.raises(ValueError, match="no number"):
        failed.result(30.0)
    until(lambda: made._idle)
    used = {made.submit(threading.get_ident).result(30.0)}
    until(lambda: made._idle)
    assert {made.submit(threading.get_ident).result(30.0)} == used
