"""Two runs, with a verdict for each line."""

from __future__ import annotations

import io
from collections import Counter

import pytest
from rich.console import Console

from batchkeeper.bench.results.compare import Comparison, compare, print_comparison
from batchkeeper.bench.results.runs import Run

from .made import noisy, open_loop, run, variant

RATES = {"single": 3e3, "default": 1e4, "max_ops=2": 4e3, "max_ops=4000": 1.5e4}


def with_peer(seed: int, rounds: int = 5, machine: float = 1.0, **factors: float) -> Run:
    rates = {n: r * machine * factors.get(n, 1.0) for n, r in RATES.items()}
    return noisy({**rates, "etcd3": 1e3 * machine}, rounds, 0.03, seed)


def verdicts(comparison: Comparison) -> dict[str, str]:
    return {line.name: line.verdict for line in comparison.lines}


def shown(comparison: Comparison, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    print_comparison(console, comparison)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_the_same_twice_is_the_same(seed: int) -> None:
    """Two runs of the same, on a machine that has become a third slower: nothing is slower."""
    found = compare(with_peer(seed), with_peer(seed + 100, machine=0.67))
    assert set(verdicts(found).values()) == {"the same"}
    assert found.exit_code == 0


@pytest.mark.slow
def test_a_slower_variant_is_found() -> None:
    """One that lost a third is slower, and one that won a half is faster, beyond doubt."""
    found = compare(with_peer(1), with_peer(2, machine=1.3, default=0.67, single=1.5))
    assert verdicts(found) == {
        "single": "faster",
        "default": "slower",
        "max_ops=2": "the same",
        "max_ops=4000": "the same",
    }
    assert found.exit_code == 1
    line = next(line for line in found.lines if line.name == "default")
    assert line.ratio.low < 0.67 < line.ratio.high < 1
    assert "etcd3" in " ".join(found.notes)


@pytest.mark.slow
def test_a_client_that_is_slower_as_a_whole_is_found_with_peers() -> None:
    """Peers show that it is not the machine."""
    found = compare(with_peer(1), with_peer(2, **dict.fromkeys(RATES, 0.6)))
    assert set(verdicts(found).values()) == {"slower"}


def test_without_peers_single_execution_takes_the_machine_away() -> None:
    """A slower machine slows down no setting; single execution itself is left open, or the same."""
    a = noisy(RATES, 5, 0.03, 1)
    b = noisy({name: rate * 0.75 for name, rate in RATES.items()}, 5, 0.03, 2)
    found = compare(a, b)
    assert found.exit_code == 0
    assert {v for n, v in verdicts(found).items() if n != "single"} == {"the same"}
    assert "relative to single execution" in " ".join(found.notes)
    worse = noisy({**RATES, "default": 6e3}, 5, 0.03, 2)
    assert verdicts(compare(a, worse))["default"] == "slower"


def test_false_alarms_are_rare() -> None:
    """Of 40 comparisons of the same with another machine, at most one in twenty finds a change."""
    alarms: Counter[str] = Counter()
    for seed in range(40):
        machine = 0.9 if seed % 2 else 1.1
        other = noisy({n: r * machine for n, r in RATES.items()}, 4, 0.05, seed + 1000)
        found = compare(noisy(RATES, 4, 0.05, seed), other)
        alarms["slower"] += found.exit_code
    assert alarms["slower"] <= 2


def test_one_round_cannot_tell() -> None:
    """With one round on either side, there is no noise to compare with."""
    found = compare(with_peer(1, rounds=1), with_peer(2, rounds=1, default=0.1))
    assert set(verdicts(found).values()) == {"cannot tell"}
    assert found.exit_code == 0
    assert "(?)" in shown(found)


def test_open_loops_are_compared_by_p99() -> None:
    """A p99 that doubled is slower, whatever the rate."""
    a, b = (
        open_loop(
            1e3,
            None,
            variant("single", [1e3] * 5, p99=0.004),
            variant("default", [1e3] * 5, p99=p99),
        )
        for p99 in (0.003, 0.006)
    )
    found = compare(a, b)
    assert found.figure == "p99 ms"
    assert verdicts(found)["default"] == "slower"
    assert "6.00" in shown(found)
    assert verdicts(compare(b, a))["default"] == "faster"


def test_a_peer_with_a_backlog_is_no_reference() -> None:
    """Its latencies are those of a queue, and say nothing of the machine."""
    single, default = variant("single", [1e3] * 5), variant("default", [1e3] * 5)
    for rate, reference in ((1e3, "taken away by etcd3"), (5e2, "relative to single execution")):
        peer = variant("etcd3", [rate] * 5)
        found = open_loop(1e3, None, single, default, peer)
        assert reference in " ".join(compare(found, found).notes)


def test_an_open_and_a_closed_loop_cannot_be_compared() -> None:
    """Nor two rates: the figures are of different loads, and the difference is named."""
    a = noisy(RATES, 5, 0.03)
    b = open_loop(1e3, None, *noisy(RATES, 5, 0.03).variants)
    found = compare(a, b)
    assert set(verdicts(found).values()) == {"cannot tell"}
    assert "rate: none, then 1000.0" in found.differences


def test_what_differs_is_named() -> None:
    """Another server, another number of processors, another mix; not another port or load."""
    rates = variant("default", [1e4] * 3), variant("single", [1e3] * 3)
    a = run(*rates)
    b = run(
        *rates,
        conditions={"server": "3.5.0", "cpus": 64, "store": "etcd://127.0.0.1:7", "busy": 0.9},
        load={"mix": {"name": "hub", "reads": 0.9}},
    )
    assert compare(a, a).differences == []
    assert compare(a, b).differences == [
        "cpus: 2, then 64",
        "server: 3.6.1, then 3.5.0",
        "mix: reads: 0.4, then 0.9",
    ]
    assert "warning: the runs differ in cpus: 2, then 64" in shown(compare(a, b))


def test_variants_of_one_run_only_are_named() -> None:
    """The comparison names what it cannot compare: other names, and broken runs."""
    a = run(variant("default", [1e4] * 3), variant("max_ops=2", [1e4] * 3))
    b = run(variant("default", [1e4] * 3), variant("max_ops=4", [1e4] * 3), broken="no server")
    notes = " ".join(compare(a, b).notes)
    assert "Only in the first run: max_ops=2." in notes
    assert "Only in the second run: max_ops=4." in notes
    assert "The second run ended early: no server" in notes
    assert "share neither peers nor single execution" in notes
    gone = run(variant("default", []), variant("max_ops=2", [1e4] * 3))
    assert "Not measured to the end in one of the runs: default." in compare(a, gone).notes
    assert "no variant in common" in shown(compare(run(), a))


@pytest.mark.parametrize("width", [60, 80])
def test_the_table_fits(width: int) -> None:
    """No line is wider than the console, and the verdicts are whole."""
    long = "max_ops=1000, max_delay=0.25ms, max_in_flight=256, max_bytes=1048576"
    found = run(variant("single", [1.0e6] * 3), variant(long, [1.2e6] * 3))
    text = shown(compare(found, found), width)
    assert all(len(line) <= width for line in text.splitlines())
    assert "the same" in text
    assert "1,200,000" in text
