"""The results for a terminal, and as CSV."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping

import pytest
from rich.console import Console

from batchkeeper.bench.results.runs import Run
from batchkeeper.bench.results.tables import as_csv, columns_of, print_run

from .made import measured, noisy, open_loop, run, variant

LONG = (
    "max_ops=1000, max_delay=0.25ms, max_in_flight=256, linger=adaptive, max_bytes=1048576, "
    "max_queued_bytes=67108864"
)


def shown(found: Run, width: int = 80, *, terminal: bool = False) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=terminal, color_system=None)
    print_run(console, found)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def with_names(names: int) -> Run:
    """A run whose names have this many settings, with figures as wide as they come."""
    long = ", ".join(LONG.split(", ")[:names])
    return run(
        variant("single", [1_234_567.0] * 5, p50=1.2345, p99=98.7654),
        variant("default", [1_234_567.0] * 5, client_cpu=123456.0),
        variant(long, [7_654_321.0] * 5),
        variant("etcd3 with 64 threads", [76_543.0] * 5, causes={}),
    )


@pytest.mark.slow
@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("names", [2, pytest.param(4, marks=pytest.mark.full), 6])
def test_every_figure_is_whole_at_every_width(names: int, width: int, *, terminal: bool) -> None:
    """No line is wider than the console, no figure is cut, and names are whole when unwrapped."""
    text = shown(with_names(names), width, terminal=terminal)
    lines = text.splitlines()
    # A line to paste may be longer, because it has to stay one line.
    assert all(len(line) <= width for line in lines if "BatchingConfig(" not in line)
    assert "…" not in text
    for figure in ("1,234,567", "7,654,321", "76,543", "1,234", "98,765"):
        assert re.search(rf"(?<![\d,.]){figure}(?![\d,.])", text), figure
    # Names are wrapped, but not into single letters.
    for name in ("single", "default", "etcd3 with"):
        assert re.search(rf"^ ?{name}\b", text, re.MULTILINE), name
    joined = "".join(text.split())
    # A long name is spread over the lines of its cell, in order.
    at = 0
    for piece in LONG.split(", ")[:names]:
        at = joined.find(piece[:12], at)
        assert at >= 0, piece


@pytest.mark.slow
def test_rows_of_a_pipe_are_columns() -> None:
    """Without a terminal, a row is a line of cells with spaces between."""
    lines = shown(noisy({"single": 3e3, "default": 1e4, "max_ops=16": 2e4}, 5, 0.0)).splitlines()
    (row,) = [line for line in lines if line.startswith("max_ops=16")][:1]
    assert re.split(r"\s{2,}", row.strip())[3:] == [
        "2.00", "1.00", "4.00", "10.0", "40", "60"
    ]  # fmt: skip


def test_a_ratio_that_is_noise_has_a_sign() -> None:
    """An equals sign says the same as the default, a question mark that nobody knows."""
    rates = {"default": 1e4, "max_ops=16": 1e4, "max_ops=1": 2e3}

    def ratios(rounds: int, noise: float) -> Mapping[str, str]:
        found = noisy(rates, rounds, noise)
        (column,) = [column for column in columns_of(found) if column.head == "x def."]
        return dict(zip(rates, column.cells, strict=True))

    assert re.fullmatch(r"=(0\.9|1\.0)\d", ratios(5, 0.03)["max_ops=16"])
    assert re.fullmatch(r"0\.\d\d", ratios(5, 0.03)["max_ops=1"])
    assert {text[0] for text in list(ratios(3, 0.8).values())[1:]} == {"?"}


def test_a_batch_that_the_client_has_cut_has_a_sign() -> None:
    """Where most batches left before they were full, max_ops did not set their size."""
    cut = variant("default", [1e3] * 3, causes={"ops": 1, "delay": 1, "idle": 1})
    full = variant("max_ops=16", [1e3] * 3, causes={"ops": 2, "delay": 1})
    (column,) = [column for column in columns_of(run(cut, full)) if column.head == "batch"]
    assert [cell[0] for cell in column.cells] == ["~", "1"]


def test_the_confidence_is_told() -> None:
    """Three rounds have 75 %, and one round has none."""
    assert "75% confidence after 3 rounds" in " ".join(
        shown(noisy({"default": 1e4, "max_ops=16": 1e4}, 3)).split()
    )
    assert "not known after one round" in shown(noisy({"default": 1e4, "max_ops=16": 1e4}, 1))


def test_conditions_load_peers_and_counts_are_shown() -> None:
    """The measurement, its place, and the other counts."""
    found = run(
        variant("single", [1e3] * 3),
        variant("default", [1e4] * 3, fall_backs=5, conflicts=7, errors={"QueueFullError": 2}),
        variant("etcd3", [500.0] * 3, causes={}),
        conditions={"warnings": ["the machine is not quiet"]},
    )
    text = " ".join(shown(found).split())
    for part in (
        "etcd://127.0.0.1:2379, version 3.6.1",
        "2 processors",
        "ext4; an fsync takes 2.10 ms",
        "mix hub, a closed loop of 256 operations in flight, seed 1",
        "3 interleaved rounds of 1 s",
        "warning: the machine is not quiet",
        "default is 20.0 times etcd3",
        "default: QueueFullError 6",
        "fall-backs",
        "900 paths that were read back",
        "p99.99",
    ):
        assert part in text, part


def test_doubts_are_told() -> None:
    """A run that ended early, a round that broke off, and a rate that was not reached."""
    slow, cut = variant("single", [600.0] * 3), variant("max_ops=2", [1e3] * 3)
    found = open_loop(1e3, None, slow, variant("default", [1e3] * 3), cut, broken="no server")
    cut.rounds[1] = measured(1, 3.0, broken="the connection was lost")
    text = " ".join(shown(found).split())
    assert "the run ended early, and shows what was measured until then: no server" in text
    reached = "the asked rate of 1,000 operations per second was not reached by single (600 in 3 of"
    assert f"{reached} 3 rounds). Their latencies" in text
    assert "left out: max_ops=2, round 2: the connection was lost" in text


@pytest.mark.parametrize("rates", [[], [0.0], [1e3]])
def test_little_is_shown_without_error(rates: list[float]) -> None:
    """A run without rounds, without operations, or with one round."""
    text = shown(run(variant("single", rates), variant("default", rates)))
    assert "Nothing is advised" in text


def test_the_advice_comes_last() -> None:
    """The line to paste is the last one, whole."""
    text = shown(noisy({"default": 1e4, LONG: 2e4}, 5, 0.02), 60)
    last = text.splitlines()[-1].strip()
    assert last.startswith("BatchingConfig(max_bytes=1048576, max_delay=0.00025, max_in_flight")
    assert last.endswith(")")


def test_csv_has_a_row_for_each_round() -> None:
    """One row per variant and round, with settings in columns of their own."""
    found = run(variant("default", [1e4, 2e4]), variant("max_ops=16", [3e4]))
    found.variants[1].rounds[0] = measured(0, 3e4, broken="gone, with a comma")
    rows = list(csv.DictReader(io.StringIO(as_csv(found))))
    assert [(row["variant"], row["round"]) for row in rows] == [
        ("default", "0"), ("default", "1"), ("max_ops=16", "0")
    ]  # fmt: skip
    assert float(rows[1]["rate"]) == 2e4
    assert float(rows[0]["p99"]) == 0.004
    assert float(rows[0]["operations_per_batch"]) == 10
    assert rows[2]["broken"] == "gone, with a comma"
    assert rows[2]["setting_max_ops"] == "16"
