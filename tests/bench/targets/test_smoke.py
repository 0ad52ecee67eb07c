"""A short run, which shows that the programs fit the package as it is now."""

from __future__ import annotations

import math
import signal
from collections.abc import Callable

import pytest
from targets.rows import Figures, Results


@pytest.mark.slow
def test_the_table_has_a_line_for_each_row(
    limits: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    """The table has the figures, the ratio, the target and the verdict."""
    assert limits("rocksdb", "--only", "puts", "--only", "threads", "--rounds", "2") == 0
    out = capsys.readouterr().out
    puts, threads = (line for line in out.splitlines() if line.startswith(("puts ", "threads ")))
    assert puts.split()[-5:-1] == ["0.5", "x", "0.7", "x"]
    assert threads.split()[-5:-1] == ["3", "x", "5", "x"]
    assert {puts.split()[-1], threads.split()[-1]} <= {"goal", "target", "missed"}
    for row in (puts, threads):  # the CPU of the client, and of no server
        assert all(0 < float(cost) < math.inf for cost in row.split()[-7:-5])
    assert "2 interleaved rounds" in out


def test_a_run_that_is_interrupted_shows_what_it_measured(
    limits: Callable[..., int], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row has the rounds of both its variants; a row without a figure is left out."""
    add, left = Results.add, [None] * 3

    def interrupted(results: Results, variant: str, figures: Figures) -> None:
        if not left:
            signal.raise_signal(signal.SIGTERM)
        left.pop()
        add(results, variant, figures)

    monkeypatch.setattr(Results, "add", interrupted)
    assert limits("rocksdb", "--only", "puts", "--only", "threads") == 143
    out = capsys.readouterr().out
    assert [line.split()[-5] for line in out.splitlines() if line.startswith("puts ")] == ["0.5"]
    assert "\nthreads " not in out
    assert "warning: the run ended early: interrupted\n" in out
