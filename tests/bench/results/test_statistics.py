"""What a run says beyond its noise."""

from __future__ import annotations

import math
import random

import pytest

from batchkeeper.bench.results import figures
from batchkeeper.bench.results.runs import Run
from batchkeeper.bench.results.statistics import (
    MARGIN,
    Comparisons,
    Estimate,
    confidence,
    estimate,
    stable,
    student,
    studentized_range,
    survivors,
)

from .made import measured, noisy, open_loop, run, variant


def same(found: Run, a: str, b: str) -> bool:
    """Whether two variants cannot be told apart; peers are left out of the others' noise."""
    rivals = figures.rivals(found)
    of_rivals = {a, b} <= {one.name for one in rivals}
    return Comparisons(found, variants=rivals if of_rivals else None).same(a, b)


EQUAL = {"default": 1e4, **{f"max_ops={2**n}": 1e4 for n in range(1, 8)}}


def test_few_rounds_have_their_range_as_interval() -> None:
    """Up to five rounds, a bootstrap cannot leave out the least and the greatest."""
    for rounds in range(2, 6):
        found = estimate([float(n) for n in range(1, rounds + 1)])
        assert found is not None
        # Medians of an even number are averages of two, one of which may be inside.
        assert (found.low, found.high) == (1.0, float(rounds))
    assert [round(confidence(n), 3) for n in (0, 1, 2, 3, 4, 5, 6, 10)] == [
        0, 0, 0.5, 0.75, 0.875, 0.938, 0.95, 0.95
    ]  # fmt: skip


def test_more_rounds_have_a_narrower_interval() -> None:
    """The interval of the median narrows, and one far round does not move it."""
    found = estimate([10.0, 10.1, 10.2, 10.3, 10.4, 10.5, 10.6, 10.7, 10.8, 99.0])
    assert found is not None
    assert 10.0 < found.low < found.median < found.high < 11.0
    assert found == estimate([10.0, 10.1, 10.2, 10.3, 10.4, 10.5, 10.6, 10.7, 10.8, 99.0])


def test_one_round_has_an_unknown_interval() -> None:
    """One value says nothing about its own spread, and none has no median."""
    assert estimate([7.0]) == Estimate(7.0, 0.0, math.inf)
    assert estimate([7.0]).spread == math.inf  # type: ignore[union-attr]
    assert estimate([]) is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("groups", "freedom", "published"),
    [(2, 1, 17.97), (3, 2, 8.33), (3, 10, 3.88), (5, 40, 4.04), (10, 20, 5.01), (20, 120, 5.13)],
)
def test_the_studentized_range_is_that_of_tables(
    groups: int, freedom: int, published: float
) -> None:
    """The quantiles are those of the printed tables, within half a percent."""
    assert studentized_range(groups, freedom) == pytest.approx(published, rel=0.005)


def test_students_factor_is_that_of_tables() -> None:
    """The same for t, with Bonferroni's correction for several comparisons."""
    assert student(4) == pytest.approx(2.776, rel=0.005)
    assert student(10, comparisons=5) == pytest.approx(3.169, rel=0.005)


def test_variants_are_compared_within_rounds() -> None:
    """A machine that changes its speed threefold does not hide a difference of a fifth."""
    machine = [1.0, 3.0, 2.0]
    found = run(
        variant("default", [1000 * m for m in machine]),
        variant("max_ops=16", [1201 * m for m in machine]),
        variant("max_ops=64", [1199 * 1.01**n * m for n, m in enumerate(machine)]),
    )
    assert not same(found, "max_ops=16", "default")
    assert same(found, "max_ops=16", "max_ops=64")
    ratio = Comparisons(found).ratio("max_ops=16", "default")
    assert ratio is not None
    assert ratio.median == pytest.approx(1.201)
    assert 1.1 < ratio.low < ratio.median < ratio.high < 1.3


def test_only_shared_rounds_are_compared() -> None:
    """A variant that left early is compared in its rounds, not with faster ones after it."""
    found = run(
        variant("default", [100, 100, 300, 300]),
        variant("max_ops=2", [101, 99.5]),
        variant("max_ops=4", [50, 50.2, 150, 151]),
    )
    ratio = Comparisons(found).ratio("max_ops=2", "default")
    assert ratio is not None
    assert ratio.median == pytest.approx(1.0025, rel=1e-4)
    assert 0.9 < ratio.low < 1 < ratio.high < 1.1
    assert same(found, "max_ops=2", "default")
    assert Comparisons(found).ranked(["max_ops=4", "max_ops=2"]) == ["max_ops=2", "max_ops=4"]


def test_a_difference_below_the_margin_is_none() -> None:
    """Variants within 5 % are the same, even if ten quiet rounds show the difference."""
    quiet = [1.0, 1.001, 0.999, 1.0, 1.002, 1.0, 0.998, 1.001, 1.0, 0.999]
    for ratio, expected in ((1 + 0.8 * MARGIN, True), (1 + 1.3 * MARGIN, False)):
        found = run(
            variant("default", [1e4] * 10), variant("max_ops=2", [1e4 * ratio * q for q in quiet])
        )
        assert same(found, "default", "max_ops=2") is expected
        assert same(found, "max_ops=2", "default") is expected


def test_one_round_tells_nothing() -> None:
    """After one round, variants with tenfold rates cannot be told apart."""
    found = run(variant("default", [100]), variant("max_ops=2", [1000]), variant("max_ops=4", [1]))
    assert same(found, "default", "max_ops=2")
    assert not Comparisons(found).known


def test_what_broke_off_does_not_count() -> None:
    """Rounds that broke off, or without operations, are in no comparison."""
    broken = variant("max_ops=2", [1e4, 1e4, 1e4])
    broken.rounds[1] = measured(1, 5.0, broken="the server went away")
    broken.rounds[2] = measured(2, 0.0)
    found = run(variant("default", [1e4, 1e4, 1e4]), broken, variant("max_ops=4", [9e3] * 3))
    assert len(figures.usable(broken)) == 1
    assert same(found, "max_ops=2", "default")
    assert Comparisons(found).ratio("max_ops=2", "default") == Estimate(1.0, 0.0, math.inf)
    assert Comparisons(found).ratio("absent", "default") is None
    assert same(found, "absent", "default")


def test_a_noisy_variant_is_not_judged_by_its_quiet_neighbours() -> None:
    """Where two variants differ more from round to round than others, their own noise counts."""
    quiet = {f"max_ops={n}": [1e4, 1.002e4, 0.999e4] for n in range(2, 30)}
    found = run(
        variant("default", [1e4, 1e4, 1e4]),
        variant("max_ops=1000", [1e4, 1.9e4, 1.2e4]),
        *(variant(name, rates) for name, rates in quiet.items()),
    )
    assert same(found, "max_ops=1000", "default")


def test_peers_do_not_make_settings_noisy() -> None:
    """The noise of a peer is not that of this client."""
    rates = {"default": [1e4, 1.01e4, 1e4], "max_ops=2": [1.2e4, 1.21e4, 1.19e4]}
    found = run(
        *(variant(name, values) for name, values in rates.items()),
        variant("etcd3", [100, 900, 300]),
    )
    assert not same(found, "max_ops=2", "default")
    assert not same(found, "etcd3", "default")


@pytest.mark.slow
@pytest.mark.parametrize("noise", [0.05, 0.1])
@pytest.mark.parametrize("rounds", [3, 5])
def test_equal_variants_have_no_winner(noise: float, rounds: int) -> None:
    """Of 100 runs with equal variants, no more than one in twenty names a faster one."""
    false = 0
    for seed in range(100):
        found = Comparisons(noisy(EQUAL, rounds, noise, seed))
        best = found.ranked(EQUAL)[0]
        false += found.above(best, "default")
    assert false <= 5


def test_a_real_difference_is_found() -> None:
    """30 % is found by three quiet rounds nearly always; 20 % by three noisy ones hardly ever."""
    rates = {**EQUAL, "max_ops=2": 1.3e4}
    runs = [Comparisons(noisy(rates, 3, 0.05, seed)) for seed in range(60)]
    assert sum(found.above("max_ops=2", "default") for found in runs) >= 48


def test_stable_needs_three_rounds_and_little_noise() -> None:
    """Narrow intervals are stable; wide ones are not, nor are two rounds."""
    rates = {"single": 3e3, **EQUAL, "max_ops=999": 2e4}
    assert stable(noisy(rates, 5, 0.005), 0.05)
    assert not stable(noisy(rates, 2, 0.0001), 0.05)
    assert not stable(noisy(rates, 5, 0.1), 0.05)
    assert stable(noisy(rates, 5, 0.1), 1.0)
    assert not stable(run(), 0.05)


def test_dropped_variants_do_not_hinder_stability() -> None:
    """A variant that was dropped after two rounds gets no more of them."""
    found = noisy(EQUAL, 5, 0.005)
    found.variants[-1].rounds = found.variants[-1].rounds[:2]
    assert stable(found, 0.05)


def test_an_open_loop_is_stable_when_its_p99_is() -> None:
    """Rates are what was asked for, so they decide nothing."""
    quiet = open_loop(1e3, 0.01, variant("default", [1e3] * 5), variant("max_ops=2", [1e3] * 5))
    assert stable(quiet, 0.05)
    for number, found in enumerate(quiet.variants[1].rounds):
        quiet.variants[1].rounds[number] = measured(
            found.round, 1e3, asked_rate=1e3, p99=0.004 * (1 + number)
        )
    assert not stable(quiet, 0.05)


def test_the_better_half_survives() -> None:
    """Half of the settings go; default, single and peers stay whatever their rates are."""
    rates = {"single": 1e2, "default": 2e2}
    rates |= {f"max_ops={n}": 1e3 * 1.5**n for n in range(1, 7)}
    found = noisy(rates, 2, 0.01)
    found.variants.append(variant("etcd3", [1.0, 1.0]))
    assert survivors(found) == ["single", "default", "max_ops=4", "max_ops=5", "max_ops=6", "etcd3"]


def test_what_may_be_as_good_survives() -> None:
    """A setting that cannot be told apart from the last survivor stays, too."""
    rates = {"default": 1e4, "max_ops=1": 3e4, "max_ops=2": 2e4, "max_ops=3": 1.98e4}
    rates |= {"max_ops=4": 1e3}
    assert survivors(noisy(rates, 3, 0.02)) == ["default", "max_ops=1", "max_ops=2", "max_ops=3"]


def test_nobody_goes_after_one_round() -> None:
    """One round has no noise to compare with."""
    names = {"default": 1.0, "max_ops=1": 1e3, "max_ops=2": 1e6}
    assert survivors(noisy(names, 1)) == list(names)


def test_dropped_variants_stay_dropped() -> None:
    """A variant without the last round is no survivor, and does not count for the half."""
    rates = {"default": 1e4, **{f"max_ops={n}": 1e3 * 2**n for n in range(1, 5)}}
    found = noisy(rates, 3, 0.01)
    found.variants[1].rounds = found.variants[1].rounds[:2]
    found.variants[2].rounds = found.variants[2].rounds[:2]
    assert survivors(found) == ["default", "max_ops=4"]


def test_interleaving_does_not_change_the_result() -> None:
    """The order of variants has no influence on what is the same."""
    found = noisy({**EQUAL, "max_ops=2": 1.3e4}, 5)
    before = {v.name: same(found, v.name, "default") for v in found.variants}
    random.Random(3).shuffle(found.variants)
    assert {v.name: same(found, v.name, "default") for v in found.variants} == before
