"""What a run advises to set."""

from __future__ import annotations

import dataclasses
import json

import pytest

from batchkeeper import BatchingConfig
from batchkeeper.bench.results.advice import Advice, advise, changes, line_to_paste, summary
from batchkeeper.bench.results.runs import Run

from .made import measured, noisy, open_loop, run, variant

pytestmark = pytest.mark.slow


def text(advice: Advice) -> str:
    return " ".join(advice.sentences)


def test_the_line_has_only_what_differs() -> None:
    """The line can be pasted: it makes the settings that were measured."""
    config = BatchingConfig(max_ops=16, max_delay=0.001, linger="fixed")
    line = line_to_paste(dataclasses.asdict(config))
    assert line == "BatchingConfig(max_ops=16, max_delay=0.001, linger='fixed')"
    assert eval(line) == config
    assert line_to_paste(dataclasses.asdict(BatchingConfig())) == "BatchingConfig()"
    single = dataclasses.asdict(BatchingConfig(enabled=False, max_ops=5))
    assert line_to_paste(single) == "BatchingConfig(enabled=False)"
    # A field of another version is no reason to fail.
    assert changes({"max_ops": 1000, "later": 3}) == {"later": 3}


def test_a_faster_setting_is_advised() -> None:
    """Beyond doubt faster than the default: its name, ratio, line, and equally fast ones."""
    rates = {"single": 3e3, "default": 1e4, "max_ops=16, max_delay=1ms": 1.5e4}
    rates |= {"max_ops=64": 1.49e4, "max_ops=4": 5e3}
    advice = advise(noisy(rates, 5, 0.02))
    assert advice.goal == "throughput"
    # Of the two that cannot be told apart, it sets fewer fields.
    assert advice.variant == "max_ops=64"
    assert advice.line == "BatchingConfig(max_ops=64)"
    assert "times the default (1." in text(advice)
    assert "max_ops=16, max_delay=1ms" in text(advice)
    assert "times single execution" in text(advice)
    assert "max_ops=4" not in text(advice).replace("max_ops=64", "")


def test_the_default_is_as_good() -> None:
    """A setting that is ahead by chance changes nothing."""
    rates = {"single": 3e3, "default": 1e4, "max_ops=16": 1.02e4, "max_ops=4": 5e3}
    advice = advise(noisy(rates, 5, 0.02))
    assert (advice.variant, advice.line) == ("default", "BatchingConfig()")
    assert advice.sentences[0].startswith("The default is as good")
    assert "--rounds" not in text(advice)


def test_what_the_rounds_leave_open_is_said() -> None:
    """If noise may hide a much faster setting, the advice names it and the remedy."""
    rates = {"default": 1e4, "max_ops=16": 1.2e4, "max_ops=4": 1e4}
    found = next(
        advice
        for seed in range(20)
        if (advice := advise(noisy(rates, 3, 0.15, seed))).variant == "default"
    )
    assert "cannot rule out that max_ops=16" in text(found)
    assert "--rounds 10 or --until-stable" in text(found)


@pytest.mark.parametrize("seed", range(20))
def test_advice_holds_when_the_run_is_repeated(seed: int) -> None:
    """Repetitions of a run advise the same; equal settings crown nobody."""
    equal = {"default": 1e4, **{f"max_ops={n}": 1e4 for n in (2, 4, 8, 16)}}
    assert advise(noisy(equal, 5, 0.08, seed)).variant == "default"
    better = {"single": 2e3, "default": 1e4, "max_ops=2": 4e3, "max_ops=4000": 1.5e4}
    assert advise(noisy(better, 5, 0.05, seed)).line == "BatchingConfig(max_ops=4000)"


def test_batching_that_does_not_help_is_said() -> None:
    """Single execution is advised where it is faster than every batch setting."""
    advice = advise(noisy({"single": 2e4, "default": 1e4, "max_ops=16": 1.2e4}, 5, 0.02))
    assert advice.line == "BatchingConfig(enabled=False)"
    assert advice.sentences[0].startswith("Batching does not help here: single execution handles")
    assert "max_ops=16" in advice.sentences[0]
    assert "is slower" in advice.sentences[0]


def test_single_execution_as_good_as_the_best_setting() -> None:
    """It is advised if the default is slower than both."""
    advice = advise(noisy({"single": 2e4, "default": 1e4, "max_ops=16": 2e4}, 5, 0.02))
    assert advice.line == "BatchingConfig(enabled=False)"
    assert "cannot be told apart" in advice.sentences[0]


def test_single_execution_as_good_as_the_default() -> None:
    """Nobody has a reason to change the default then, but it is said."""
    advice = advise(noisy({"single": 1e4, "default": 1e4, "max_ops=1": 5e3}, 5, 0.02))
    assert advice.variant == "default"
    assert "Batching does not help here" in text(advice)


def nothing() -> dict[str, Run]:
    late = variant("max_ops=2", [1e4, 1e4])
    late.rounds = [dataclasses.replace(m, broken="it went away") for m in late.rounds]
    return {
        "ended early (the store went away)": run(
            variant("default", [1e4] * 5),
            variant("max_ops=2", [2e4] * 5),
            broken="the store went away",
        ),
        "1 round cannot tell": run(variant("default", [1e4]), variant("max_ops=2", [2e4])),
        "no measurement ran to its end": run(variant("default", [0.0]), late),
        "has none to be compared with": run(variant("default", [1e4] * 5)),
        "no measurement ran to its end. Measure": run(),
    }


@pytest.mark.parametrize("said", nothing())
def test_nothing_is_advised_without_ground(said: str) -> None:
    """Broken runs, single rounds and single settings: no line, and the reason."""
    advice = advise(nothing()[said])
    assert (advice.variant, advice.line) == (None, None)
    assert said in text(advice)
    assert json.dumps(summary(nothing()[said]))


def test_a_default_that_broke_off_is_no_obstacle() -> None:
    """The best of the others is advised, without a ratio to the default."""
    found = noisy({"default": 1e4, "max_ops=2": 1e4, "max_ops=4": 2e4}, 5, 0.02)
    found.variants[0].rounds = [
        dataclasses.replace(m, broken="x") for m in found.variants[0].rounds
    ]
    assert advise(found).line == "BatchingConfig(max_ops=4)"
    assert "default" not in text(advise(found))


def test_the_default_keeps_the_budget() -> None:
    """It is advised although another one has a lower p99: the simplest that keeps it."""
    advice = advise(
        open_loop(
            1e3,
            0.005,
            variant("single", [600] * 5, p99=0.5),
            variant("default", [1e3] * 5, p99=0.004),
            variant("max_ops=2", [1e3] * 5, p99=0.002),
        )
    )
    assert (advice.goal, advice.line) == ("budget", "BatchingConfig()")
    assert "1,000 operations per second are not reached by single (600)" in text(advice)
    assert "The default keeps a p99 of 5.00 ms at 1,000" in text(advice)
    assert "So do max_ops=2" in text(advice)


def test_the_least_cpu_that_keeps_the_budget() -> None:
    """If the default does not keep it, the setting with the least CPU that does is advised."""
    advice = advise(
        open_loop(
            1e3,
            0.005,
            variant("default", [1e3] * 5, p99=0.009),
            variant("max_ops=2", [1e3] * 5, p99=0.003, client_cpu=0.4),
            variant("max_ops=4", [1e3] * 5, p99=0.0049, client_cpu=0.1),
            variant("max_ops=8", [1e3] * 5, p99=0.0051, client_cpu=0.01),
        )
    )
    assert advice.line == "BatchingConfig(max_ops=4)"
    assert "The default does not keep it: its p99 is 9.00 ms" in text(advice)


def test_a_budget_needs_five_rounds() -> None:
    """Four rounds that keep it may be chance, and so may one of five that does not."""
    few = open_loop(1e3, 0.005, variant("default", [1e3] * 4), variant("max_ops=2", [1e3] * 4))
    assert advise(few).line is None
    assert "the budget needs 5 rounds" in text(advise(few))
    assert "--rounds 10" in text(advise(few))
    mixed = open_loop(1e3, 0.005, variant("default", [1e3] * 5), variant("max_ops=2", [1e3] * 5))
    for found in mixed.variants:
        found.rounds[2] = measured(2, 1e3, asked_rate=1e3, p99=0.006)
    assert advise(mixed).line is None
    assert "some of their rounds keep the budget" in text(advise(mixed))


def test_a_budget_that_nothing_keeps() -> None:
    """The lowest p99 is named."""
    found = open_loop(
        1e3,
        0.001,
        variant("default", [1e3] * 5, p99=0.004),
        variant("max_ops=2", [1e3] * 5, p99=0.003),
    )
    assert advise(found).line is None
    assert "Nothing keeps a p99 of 1.00 ms" in text(advise(found))
    assert "max_ops=2 (3.00 ms)" in text(advise(found))


def test_a_rate_that_nothing_reaches() -> None:
    """The advice names the rate that was reached, and calls no latency of a backlog kept."""
    found = open_loop(1e6, 9.0, variant("default", [1e3] * 5), variant("max_ops=2", [2e3] * 5))
    assert advise(found).line is None
    assert "No setting reaches 1,000,000 operations per second" in text(advise(found))
    assert "the most is 2,000, with max_ops=2" in text(advise(found))


def test_without_a_budget_the_lowest_p99_is_advised() -> None:
    """At a rate, the goal is the latency; the default is as good if it cannot be told apart."""
    lower = open_loop(
        1e3,
        None,
        variant("default", [1e3] * 5, p99=0.004),
        variant("max_ops=2", [1e3] * 5, p99=0.002),
    )
    assert (advise(lower).goal, advise(lower).line) == ("latency", "BatchingConfig(max_ops=2)")
    same = open_loop(1e3, None, variant("default", [1e3] * 5), variant("max_ops=2", [1e3] * 5))
    assert advise(same).line == "BatchingConfig()"
    assert "The default is as good at 1,000" in text(advise(same))


def test_a_budget_without_a_rate_is_explained() -> None:
    """Latency at saturation is that of a queue."""
    found = noisy({"default": 1e4, "max_ops=2": 2e4}, 5, 0.02)
    found.schedule = {**found.schedule, "p99_budget": 0.005}
    assert "add --rate" in text(advise(found))


def test_the_summary_is_json_with_medians() -> None:
    """Each variant has its medians with intervals; an unknown end is null."""
    found = noisy({"default": 1e4, "max_ops=2": 2e4}, 5, 0.02)
    found.variants.append(variant("etcd3", [1e3], server_cpu=None))
    made = json.loads(json.dumps(summary(found), allow_nan=False))
    fast, peer = made["variants"]["max_ops=2"], made["variants"]["etcd3"]
    assert fast["rate"]["low"] < fast["rate"]["median"] < fast["rate"]["high"]
    assert fast["times_default"]["median"] == pytest.approx(2, rel=0.1)
    assert fast["same_as_default"] is False
    assert fast["latency_seconds"]["p99"]["median"] == 0.004
    assert peer["rate"] == {"median": 1e3, "low": None, "high": None}
    assert peer["server_cpu_seconds_per_operation"] is None
    assert made["advice"]["line"] == "BatchingConfig(max_ops=2)"
    assert 0 < made["noise"] < 0.1


def test_a_setting_that_may_be_no_faster_is_not_advised() -> None:
    """It sets fewer fields and cannot be told apart from the best, but neither from the default."""
    slow = {f"max_ops={n}": [5e3, 5.01e3, 4.99e3, 5e3, 5e3] for n in range(100, 120)}
    found = run(
        variant("default", [1e4] * 5),
        variant("max_ops=2", [1.3e4, 0.8e4, 1.28e4, 2.0e4, 1.29e4]),
        variant("max_ops=16, max_delay=1ms", [1.3e4] * 5),
        *(variant(name, rates) for name, rates in slow.items()),
    )
    assert advise(found).line == "BatchingConfig(max_ops=16, max_delay=0.001)"
    assert "As fast, as far as the rounds can tell: max_ops=2" in text(advise(found))


def test_a_budget_is_not_kept_below_the_rate() -> None:
    """A round that fell behind its rate does not keep the budget, however low its p99."""
    found = open_loop(1e3, 0.005, variant("default", [1e3] * 5), variant("max_ops=2", [1e3] * 5))
    for each in found.variants:
        each.rounds[:2] = [measured(n, 500.0, asked_rate=1e3) for n in range(2)]
    assert advise(found).line is None


def test_simplicity_costs_no_more_than_the_margin() -> None:
    """A simpler setting that cannot be told apart, but looks 10 % slower, is not preferred."""
    machine = [1.0, 1.12, 0.9]
    found = run(
        variant("default", [1e4, 1e4, 1e4]),
        variant("max_ops=4", [2e4 * m for m in machine]),
        variant("max_ops=2, max_delay=1ms", [2.2e4, 2.2e4, 2.2e4]),
    )
    assert "max_ops=4" in text(advise(found))
    assert advise(found).line == "BatchingConfig(max_ops=2, max_delay=0.001)"
