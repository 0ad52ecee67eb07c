"""What a run says beyond its noise.

Two questions need two methods.

**How large is a figure?** :func:`estimate` gives the median of the rounds with a bootstrap interval
of 95 %. With five rounds or fewer, a bootstrap of the median can say no more than the least and the
greatest round. These hold the true median with a confidence of 75 % for three rounds, 88 % for four
and 94 % for five; :func:`confidence` says which one applies.

**Which of two variants is faster?** Here the interval of one variant does not help: a shared
machine changes its speed from round to round, for all variants alike. So :class:`Comparisons` looks
at ratios within a round. Three ratios are too few to show how much they vary, but a round measures
many variants, and all of them tell about the noise: what is left of a logarithm after the average
of its variant and that of its round are taken away. The noise of all variants together, with its
degrees of freedom, goes into Tukey's test for all pairs: it allows for looking at the best of
twenty variants. Where two variants differ more from round to round than the others do, their own
noise counts instead.

A difference is stated only if it is beyond this noise **and** beyond ``MARGIN``.

What comes of it, by simulation. The machine varies by 10 % from round to round and each measurement
by the given noise (lognormal); in the last part every second variant has 10 %. A false winner is a
variant said to be faster than the default, of truly equal variants. All figures are of 2000 runs:

======== ========= ====== ============ ====== ====== ====== ======
                                       a difference to the default
                                       is found, if it is
-------- --------- ------ ------------ ---------------------------
variants noise     rounds false winner 10 %   20 %   30 %   50 %
======== ========= ====== ============ ====== ====== ====== ======
2        5 %       3      1.6 %        27 %   65 %   87 %   99 %
2        5 %       5      1.4 %        62 %   99 %   100 %  100 %
2        5 %       10     1.1 %        95 %   100 %  100 %  100 %
8        5 %       3      0.2 %        14 %   66 %   94 %   100 %
8        5 %       5      0.6 %        34 %   95 %   100 %  100 %
8        5 %       10     0.5 %        78 %   100 %  100 %  100 %
20       5 %       3      0.2 %        7 %    60 %   93 %   100 %
20       5 %       5      0.1 %        20 %   92 %   100 %  100 %
20       5 %       10     0.2 %        66 %   100 %  100 %  100 %
2        10 %      3      2.3 %        10 %   26 %   43 %   71 %
2        10 %      5      2.5 %        21 %   59 %   87 %   100 %
2        10 %      10     2.3 %        46 %   96 %   100 %  100 %
8        10 %      3      0.2 %        2 %    12 %   33 %   77 %
8        10 %      5      0.6 %        4 %    31 %   71 %   98 %
8        10 %      10     0.5 %        13 %   73 %   99 %   100 %
20       10 %      3      0.2 %        0 %    6 %    23 %   72 %
20       10 %      5      0.1 %        1 %    18 %   57 %   96 %
20       10 %      10     0.2 %        6 %    59 %   96 %   100 %
2        5 or 10 % 3      2.3 %        15 %   36 %   58 %   86 %
2        5 or 10 % 5      2.8 %        31 %   77 %   97 %   100 %
2        5 or 10 % 10     1.9 %        65 %   99 %   100 %  100 %
8        5 or 10 % 3      1.8 %        4 %    25 %   55 %   92 %
8        5 or 10 % 5      1.2 %        9 %    56 %   91 %   100 %
8        5 or 10 % 10     0.9 %        28 %   95 %   100 %  100 %
20       5 or 10 % 3      0.8 %        1 %    15 %   48 %   92 %
20       5 or 10 % 5      0.7 %        3 %    39 %   84 %   100 %
20       5 or 10 % 10     0.4 %        16 %   88 %   100 %  100 %
======== ========= ====== ============ ====== ====== ====== ======

``tests/bench/results/test_statistics.py`` repeats a part of it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from typing import Final, Literal

from ..figures import scipy_stats
from . import figures
from .figures import Figure
from .runs import Run, Variant

#: The confidence of intervals and of differences. A run without true differences names a winner in
#: one of twenty cases at most.
LEVEL: Final = 0.95

#: Variants within 5 % are the same, however many rounds were measured. Effects of this size come
#: and go with the layout of code in memory, with the state of caches and with the order of
#: measuring, and another run has others. Nor is less worth a setting of one's own.
MARGIN: Final = 0.05
#: Figures whose difference may be greater than this are not called the same.
_WIDEST_SAME: Final = 0.25

Verdict = Literal["faster", "slower", "the same", "cannot tell"]

_RESAMPLES: Final = 4000
_PASSES: Final = 100
_MOST: Final = 700.0  # of the logarithms of floats
# Of medians of a few numbers: more rounds than this have a bootstrap that differs from the range.
_RANGE_ONLY: Final = 5
# With fewer rounds, a chance agreement can look like a figure that is known well.
_FEWEST_STABLE: Final = 3


@dataclass(frozen=True, slots=True)
class Estimate:
    """A median with its interval. After one round, the interval is from 0 to infinity."""

    median: float
    low: float
    high: float

    @property
    def spread(self) -> float:
        """How far the interval reaches from the median, as a share of it."""
        if not self.median or math.isinf(self.median):
            return math.inf
        return max(self.high - self.median, self.median - self.low) / self.median


def estimate(values: Sequence[float]) -> Estimate | None:
    """Return the median of a figure with its bootstrap interval; ``None`` without values."""
    if not values:
        return None
    if len(values) == 1:
        return Estimate(values[0], 0.0, math.inf)
    return Estimate(statistics.median(values), *_interval(tuple(sorted(values))))


def confidence(rounds: int) -> float:
    """Return the confidence of the interval of :func:`estimate` after this number of rounds."""
    if rounds > _RANGE_ONLY:
        return LEVEL
    return 1 - 2.0 ** (1 - rounds) if rounds else 0.0


@lru_cache(maxsize=4096)
def _interval(values: tuple[float, ...]) -> tuple[float, float]:
    # With a seed, equal figures have equal intervals.
    found = scipy_stats().bootstrap(
        (values,),
        import_module("numpy").median,
        confidence_level=LEVEL,
        n_resamples=_RESAMPLES,
        method="percentile",
        rng=len(values),
    )
    low, high = found.confidence_interval
    return float(low), float(high)


def verdict(ratio: Estimate) -> Verdict:
    """Return what a ratio of two rates says about them."""
    practically = 1 / (1 + MARGIN) <= ratio.median <= 1 + MARGIN
    if not ratio.low <= 1 <= ratio.high:
        if practically:
            return "the same"
        return "faster" if ratio.median > 1 else "slower"
    if ratio.low >= 1 / (1 + _WIDEST_SAME) and ratio.high <= 1 + _WIDEST_SAME:
        return "the same"
    return "cannot tell"


class Comparisons:
    """Compares the variants of a run by one figure, in the rounds that both took part in.

    Args:
        run: the run, as it stands now.
        figure: the figure; more is greater, whether that is good or not.
        variants: the variants to compare; all of the run by default. A smaller number of them has
            tighter limits.
    """

    def __init__(
        self, run: Run, figure: Figure = figures.rate, variants: Iterable[Variant] | None = None
    ) -> None:
        self._logarithms = {
            variant.name: found
            for variant in (run.variants if variants is None else variants)
            if (found := logarithms_of(variant, figure))
        }
        left, self._freedom = left_over(self._logarithms)
        self._noise = root_mean_square(left.values(), self._freedom) if self._freedom else 0.0
        self._factor = (
            studentized_range(len(self._logarithms), min(self._freedom, 500)) / math.sqrt(2)
            if self._freedom
            else math.inf
        )

    @property
    def known(self) -> bool:
        """Whether there were enough rounds to learn the noise."""
        return self._freedom > 0

    @property
    def noise(self) -> float | None:
        """The noise of one measurement, as a share; ``None`` if it is not known."""
        return math.exp(self._noise) - 1 if self._freedom else None

    def ratio(self, a: str, b: str) -> Estimate | None:
        """Return how many times the figure of ``b`` that of ``a`` is; ``None`` without a round."""
        differences = self._differences(a, b)
        if not differences:
            return None
        median = statistics.median(differences)
        count = len(differences)
        if a == b:
            return Estimate(1.0, 1.0, 1.0)
        if not self._freedom or count < 2:
            return Estimate(math.exp(median), 0.0, math.inf)
        error = max(self._noise * math.sqrt(2), statistics.stdev(differences)) / math.sqrt(count)
        mean = statistics.fmean(differences)
        reach = self._factor * error
        return Estimate(
            math.exp(median),
            math.exp(min(mean - reach, median)),
            math.exp(min(max(mean + reach, median), _MOST)),
        )

    def same(self, a: str, b: str) -> bool:
        """Return whether two variants cannot be told apart."""
        ratio = self.ratio(a, b)
        if ratio is None or ratio.low <= 1 <= ratio.high:
            return True
        return 1 / (1 + MARGIN) <= ratio.median <= 1 + MARGIN

    def above(self, a: str, b: str) -> bool:
        """Return whether the figure of ``a`` is greater than that of ``b`` beyond doubt."""
        ratio = self.ratio(a, b)
        return ratio is not None and ratio.median > 1 and not self.same(a, b)

    def ranked(self, names: Iterable[str]) -> list[str]:
        """Return those of the names that have the figure, the greatest first.

        Variants of fewer rounds are placed by their difference from the average of these rounds.
        """
        known = [name for name in names if name in self._logarithms]
        effects, _ = fit(self._logarithms)
        return sorted(known, key=lambda name: -effects[name])

    def _differences(self, a: str, b: str) -> list[float]:
        mine, other = self._logarithms.get(a, {}), self._logarithms.get(b, {})
        return [mine[number] - other[number] for number in mine if number in other]


def logarithms_of(variant: Variant, figure: Figure) -> dict[int, float]:
    """Return the logarithms of a figure by round."""
    found = {}
    for measured in figures.usable(variant):
        value = figure(measured)
        if value is not None and value > 0:
            found[measured.round] = math.log(value)
    return found


def fit(logarithms: Mapping[str, Mapping[int, float]]) -> tuple[dict[str, float], dict[int, float]]:
    """Return the effects of variants and of rounds that explain the logarithms best."""
    if not logarithms:
        return {}, {}
    numpy = import_module("numpy")
    rounds = sorted({number for found in logarithms.values() for number in found})
    table = numpy.array(
        [[found.get(number, math.nan) for number in rounds] for found in logarithms.values()]
    )
    # Averages in turn. Complete rounds are explained after one pass, and the second one changes
    # nothing; variants that were dropped make a few more necessary.
    of_variants = numpy.zeros(len(table))
    for _ in range(_PASSES):
        before = of_variants
        of_rounds = numpy.nanmean(table - before[:, None], axis=0)
        of_variants = numpy.nanmean(table - of_rounds, axis=1)
        if numpy.allclose(before, of_variants, rtol=0, atol=1e-9):
            break
    return (
        dict(zip(logarithms, of_variants.tolist(), strict=True)),
        dict(zip(rounds, of_rounds.tolist(), strict=True)),
    )


def left_over(logarithms: Mapping[str, Mapping[int, float]]) -> tuple[dict[str, list[float]], int]:
    """Return what variants and rounds do not explain, by variant, and its degrees of freedom."""
    of_variants, of_rounds = fit(logarithms)
    left = {
        name: [value - of_variants[name] - of_rounds[number] for number, value in found.items()]
        for name, found in logarithms.items()
    }
    count = sum(map(len, left.values()))
    return left, count - len(of_variants) - len(of_rounds) + 1 if count else 0


def root_mean_square(left: Iterable[Iterable[float]], freedom: float) -> float:
    """Return the noise that is left over, with its degrees of freedom."""
    return math.sqrt(math.fsum(x * x for found in left for x in found) / freedom)


@lru_cache(maxsize=1024)
def studentized_range(groups: int, freedom: int) -> float:
    """Return the quantile of the studentized range of ``groups`` normal values."""
    return float(scipy_stats().studentized_range.ppf(LEVEL, groups, freedom))


def student(freedom: int, comparisons: int = 1) -> float:
    """Return the factor of a standard error that as many comparisons together keep to ``LEVEL``."""
    return float(scipy_stats().t.ppf(1 - (1 - LEVEL) / max(1, comparisons) / 2, freedom))


def times_default(run: Run) -> dict[str, tuple[Estimate, bool]]:
    """Return how many times the default each variant is, and whether it cannot be told apart."""
    rivals, everything = Comparisons(run, variants=figures.rivals(run)), Comparisons(run)
    found = {}
    for variant in run.variants:
        comparisons = everything if variant.kind == "peer" else rivals
        ratio = comparisons.ratio(variant.name, "default")
        if ratio is not None:
            found[variant.name] = ratio, comparisons.same(variant.name, "default")
    return found


def stable(run: Run, tolerance: float) -> bool:
    """Return whether more rounds would change nothing that matters.

    That is so when, among the variants still measured, the best throughput is decided (each of the
    others is slower beyond doubt, or known to be within ``tolerance``), and when all ratios to
    ``default`` are known within ``tolerance``. An open loop, whose throughput is what was asked
    for, is stable when the 99th percentiles are. Three rounds are the least.

    The width of an interval does not depend on who is ahead. So a run that ends when its intervals
    are narrow names no more false winners than one whose length was fixed before.

    Args:
        run: the run, as it stands now.
        tolerance: a share, such as 0.05.
    """
    measured = [variant for variant in run.variants if _active(run, variant)]
    counts = [len(figures.usable(variant)) for variant in measured]
    if not counts or min(counts) < _FEWEST_STABLE:
        return False
    figure = figures.rate if run.load.get("rate") is None else figures.p99
    found = Comparisons(run, figure, measured)
    names = [variant.name for variant in measured]
    if "default" in names and any(
        _reach(found.ratio(name, "default")) > tolerance for name in names
    ):
        return False
    best = found.ranked(v.name for v in measured if v.kind != "peer")[:1]
    return all(
        not found.same(name, best[0]) or _reach(found.ratio(name, best[0])) <= tolerance
        for name in names
        if best
    )


def _reach(ratio: Estimate | None) -> float:
    return math.inf if ratio is None else ratio.spread


def survivors(run: Run) -> list[str]:
    """Return the names of the variants that stay when the slower half is dropped.

    Of the batch settings that took part in the last round, the better half by throughput stays,
    with all that cannot be told apart from the last of this half. ``default``, ``single`` and peers
    always stay. After one round nothing can be told apart, so all stay.
    """
    active = [variant for variant in run.variants if _active(run, variant)]
    rivals = [v.name for v in active if v.kind == "batching" and v.name != "default"]
    found = Comparisons(run, variants=figures.rivals(run))
    ranked = found.ranked(rivals)
    keep = set(ranked[: math.ceil(len(ranked) / 2)])
    if keep:
        edge = ranked[len(keep) - 1]
        keep |= {name for name in ranked if found.same(name, edge)}
    return [v.name for v in active if v.name in keep or v.name not in rivals]


def _active(run: Run, variant: Variant) -> bool:
    """Return whether a variant took part in the last round."""
    last = max((m.round for v in run.variants for m in v.rounds), default=0)
    return any(measured.round == last for measured in variant.rounds)
