"""What to set, in words and as a line to paste.

A run has one goal. A closed loop asks for the most throughput. An open loop asks for the least CPU
that keeps a budget for the 99th percentile at the asked rate or, without a budget, for the lowest
99th percentile.

Advice has to hold when the run is repeated. So it names a setting other than the default only if
that setting is better beyond doubt (see ``statistics``). Among settings that cannot be told apart
and whose medians are within ``MARGIN``, it chooses by what a repetition does not change: the fewest
fields to set, and then the order of the run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

from ...batching import BatchingConfig
from ..figures import scipy_stats
from . import figures
from .figures import rate, usable, values
from .runs import Run, Variant
from .statistics import MARGIN, Comparisons, Estimate, estimate, times_default, verdict
from .wording import count, interval, listed, milliseconds, number, share, times

Goal = Literal["throughput", "budget", "latency"]

_MORE: Final = "Measure with --rounds 10 or --until-stable."
#: The chance to call a budget kept whose median round misses it. Five rounds are the fewest for it.
_DOUBT: Final = 0.05
_FEWEST_FOR_BUDGET: Final = 5
#: The advice names an open question if a setting may be faster than the default by more than this.
_WORTH_MORE_ROUNDS: Final = 2 * MARGIN


@dataclass(frozen=True, slots=True)
class Advice:
    """What to set.

    Attributes:
        goal: ``throughput``, ``budget`` or ``latency``.
        variant: the name of the advised variant; ``None`` if nothing is advised.
        line: the line to paste, with the fields that differ from the default; ``None`` likewise.
        sentences: the reasons, and what to do if nothing is advised.
    """

    goal: Goal
    variant: str | None
    line: str | None
    sentences: Sequence[str]


def advise(run: Run) -> Advice:
    """Return advice for the goal of a run."""
    asked, budget = run.load.get("rate"), run.schedule.get("p99_budget")
    goal: Goal = "throughput" if asked is None else "latency" if budget is None else "budget"
    chosen: Variant | None = None
    sentences = list(_obstacles(run))
    if not sentences:
        choose = {"throughput": _throughput, "budget": _budget, "latency": _latency}[goal]
        chosen, sentences = choose(run)
        if goal == "throughput" and budget is not None:
            sentences.append(
                "A budget for the p99 needs a rate, because latency at saturation is that of a "
                "queue: add --rate."
            )
    return Advice(
        goal,
        chosen.name if chosen else None,
        line_to_paste(chosen.settings) if chosen else None,
        sentences,
    )


def changes(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a ``BatchingConfig`` that differ from the default."""
    default = BatchingConfig()
    if settings.get("enabled") is False:
        # Nothing else has an effect then, but for what limits single executions.
        settings = {
            name: settings[name] for name in settings if name in ("enabled", "max_in_flight")
        }
    return {
        name: value
        for name, value in settings.items()
        if not hasattr(default, name) or value != getattr(default, name)
    }


def line_to_paste(settings: Mapping[str, Any]) -> str:
    """Return the call of ``BatchingConfig`` with the fields that differ from the default."""
    fields = ", ".join(f"{name}={value!r}" for name, value in changes(settings).items())
    return f"BatchingConfig({fields})"


def _obstacles(run: Run) -> Iterator[str]:
    """Yield why a run is no ground for advice."""
    if run.broken is not None:
        yield f"Nothing is advised: the run ended early ({run.broken}). Measure again."
        return
    rivals = figures.rivals(run)
    if not any(usable(variant) for variant in rivals):
        yield "Nothing is advised: no measurement ran to its end. Measure again."
    elif len(rivals) < 2:
        yield "Nothing is advised: one setting alone has none to be compared with."
    elif not Comparisons(run, variants=rivals).known:
        yield (
            f"Nothing is advised: {count(figures.finished(run), 'round')} cannot tell a difference "
            f"from noise. {_MORE}"
        )


def _throughput(run: Run) -> tuple[Variant | None, list[str]]:
    rivals = figures.rivals(run)
    found = Comparisons(run, variants=rivals)
    best, *others = found.ranked(variant.name for variant in rivals)
    top = [best, *(name for name in others if found.same(name, best))]
    default, single = (_of(rivals, name) for name in ("default", "single"))
    if default is not None and default.name in top:
        return default, [*_as_good(found, default, top), *_left_open(run, found, best)]
    # A setting that beats the default only by chance is as good as the best, but no reason for a
    # change.
    sure = [name for name in top if default is None or found.above(name, default.name)]
    if default is not None and not sure:
        # The best by the rounds of all is not ahead in those that it shares with the default.
        return default, list(_as_good(found, default, top))
    close = _close(found, sure, best) or sure
    if single is not None and single.name in close:
        return single, list(_no_batching(run, found, single))
    chosen = _simplest(run, close)
    than_default = _times(found, chosen.name, "default", ", {} times the default ({})")
    sentences = [
        f"For the most throughput: {chosen.name} handles {_per_second(chosen)}{than_default}."
    ]
    same = [name for name in top if name != chosen.name]
    if same:
        sentences.append(
            f"As fast, as far as the rounds can tell: {listed(same)}. Of those within "
            f"{share(MARGIN)} of the best, the advised one sets the fewest fields, or comes first."
        )
    if than_single := _times(found, chosen.name, "single", "It is {} times single execution ({})."):
        sentences.append(than_single)
    return chosen, sentences


def _as_good(found: Comparisons, default: Variant, top: Sequence[str]) -> Iterator[str]:
    yield (
        f"The default is as good: no setting is faster beyond doubt. It handles "
        f"{_per_second(default)}."
    )
    if "single" in top:
        yield (
            "Batching does not help here, as far as the rounds can tell: single execution cannot "
            "be told apart from the default."
        )
    elif than_single := _times(found, "default", "single", "It is {} times single execution ({})."):
        yield than_single


def _left_open(run: Run, found: Comparisons, best: str) -> Iterator[str]:
    ratio = found.ratio(best, "default")
    if best == "default" or ratio is None or ratio.high <= 1 + _WORTH_MORE_ROUNDS:
        return
    rounds = count(figures.finished(run), "round").capitalize()
    if math.isinf(ratio.high):
        yield f"{rounds} cannot rule out that another one is faster. {_MORE}"
    elif ratio.low > 1 / (1 + _WORTH_MORE_ROUNDS) or ratio.median > 1:
        yield (
            f"{rounds} with a noise of {share(found.noise or 0)} cannot rule out that "
            f"{best} is up to {share(ratio.high - 1)} faster. {_MORE}"
        )


def _no_batching(run: Run, found: Comparisons, single: Variant) -> Iterator[str]:
    batching = [variant for variant in run.variants if variant.kind == "batching"]
    best = found.ranked(variant.name for variant in batching)[0]
    relation = "cannot be told apart" if found.same(best, "single") else "is slower"
    (setting,) = (variant for variant in batching if variant.name == best)
    than_default = _times(found, "single", "default", ", {} times the default ({})")
    yield (
        f"Batching does not help here: single execution handles {_per_second(single)}"
        f"{than_default}. The best batch setting, {best}, handles {_per_second(setting)}, and "
        f"{relation}."
    )


def _budget(run: Run) -> tuple[Variant | None, list[str]]:
    budget, asked = run.schedule["p99_budget"], run.load["rate"]
    goal = f"a p99 of {milliseconds(budget)} ms at {number(asked)} operations per second"
    reaching, sentences = _reaching(run)
    if not reaching:
        return None, sentences
    judged = {variant.name: _keeps(variant, budget) for variant in reaching}
    keeping = [variant for variant in reaching if judged[variant.name] is True]
    unsure = [variant for variant in reaching if judged[variant.name] is None]
    if unsure:
        few = min(len(usable(variant)) for variant in unsure) < _FEWEST_FOR_BUDGET
        why = (
            f"the budget needs {_FEWEST_FOR_BUDGET} rounds"
            if few
            else "some of their rounds keep the budget, and some do not"
        )
        sentences.append(f"Not decided for {listed(_with_p99(unsure))}: {why}. {_MORE}")
    default = figures.named(run, "default")
    if keeping:
        chosen = default if default in keeping else _cheapest(run, keeping)
        assert chosen is not None
        who = "The default" if chosen is default else f"With the least CPU, {chosen.name}"
        sentences.append(f"{who} keeps {goal}: its p99 is {_p99_words(chosen)}.")
        if others := [variant.name for variant in keeping if variant is not chosen]:
            sentences.append(f"So do {listed(others)}.")
        if default is not None and judged.get("default") is False:
            sentences.append(f"The default does not keep it: its p99 is {_p99_words(default)}.")
        return chosen, sentences
    if not unsure:
        lowest = min(reaching, key=lambda variant: _p99(variant).median)
        sentences.append(
            f"Nothing keeps {goal}. The lowest p99 is that of {_with_p99([lowest])[0]}: ask "
            f"for a lower rate, or allow more time."
        )
    return None, sentences


def _latency(run: Run) -> tuple[Variant | None, list[str]]:
    reaching, sentences = _reaching(run)
    if not reaching:
        return None, sentences
    at = f"at {number(run.load['rate'])} operations per second"
    found = Comparisons(run, figures.p99, reaching)
    default = _of(reaching, "default")
    lowest = found.ranked(variant.name for variant in reaching)[::-1]
    if not lowest:
        return None, [*sentences, "No measurement has latencies."]
    top = [name for name in lowest if found.same(name, lowest[0])]
    if default is not None and default.name in top:
        sentences.append(
            f"The default is as good {at}: no p99 is lower beyond doubt than its "
            f"{_p99_words(default)}."
        )
        return default, sentences
    sure = [name for name in top if default is None or not found.same(name, default.name)]
    chosen = _simplest(run, _close(found, sure, lowest[0]) or top)
    sentences.append(f"For the lowest p99 {at}: {chosen.name}, with {_p99_words(chosen)}.")
    if default is not None:
        sentences.append(f"That of the default is {_p99_words(default)}.")
    return chosen, sentences


def _reaching(run: Run) -> tuple[list[Variant], list[str]]:
    """Return the variants that keep up with the asked rate, and what was reached by the others."""
    asked = f"{number(run.load['rate'])} operations per second"
    rivals = [variant for variant in figures.rivals(run) if usable(variant)]
    # In most rounds, so that one stall of the machine does not decide.
    reaching = [v for v in rivals if sum(map(figures.reached, usable(v))) * 2 > len(usable(v))]
    missing = [variant for variant in rivals if variant not in reaching]
    reached = {v.name: _estimate(v, rate).median for v in missing}
    if not reaching:
        best = max(reached, key=lambda name: reached[name])
        sentence = (
            f"No setting reaches {asked}: the most is {number(reached[best])}, with {best}. Ask "
            f"for a lower rate, or for more load generators with --processes if the client's CPU "
            f"is the limit."
        )
        return [], [sentence]
    if not missing:
        return reaching, []
    others = [f"{name} ({number(median)})" for name, median in reached.items()]
    return reaching, [f"{asked} are not reached by {listed(others)}."]


def _keeps(variant: Variant, budget: float) -> bool | None:
    """Return whether the median round keeps rate and budget; ``None`` if that is undecided.

    A round keeps both or it does not. If the median did not, half of all rounds would fail. That as
    few fail as were seen has then a probability that the binomial distribution gives.
    """
    rounds = usable(variant)
    kept = sum(
        figures.reached(measured) and (figures.p99(measured) or math.inf) <= budget
        for measured in rounds
    )
    if _tail(len(rounds), len(rounds) - kept) <= _DOUBT:
        return True
    return False if _tail(len(rounds), kept) <= _DOUBT else None


def _tail(rounds: int, most: int) -> float:
    """Return the probability of at most this many heads when coins are thrown for all rounds."""
    return float(scipy_stats().binom.cdf(most, rounds, 0.5))


def _cheapest(run: Run, variants: Sequence[Variant]) -> Variant:
    """Return the variant with the least CPU per operation; among equals, the simplest."""
    found = Comparisons(run, figures.cpu, variants)
    ranked = found.ranked(variant.name for variant in variants)[::-1]
    equal = [name for name in ranked if found.same(name, ranked[0])]
    if not equal:
        return _simplest(run, [variant.name for variant in variants])
    return _simplest(run, _close(found, equal, ranked[0]))


def _close(found: Comparisons, names: Sequence[str], best: str) -> list[str]:
    """Return those whose median is within ``MARGIN`` of the best."""
    ratios = {name: found.ratio(name, best) for name in names}
    return [n for n, r in ratios.items() if r and 1 / (1 + MARGIN) <= r.median <= 1 + MARGIN]


def _simplest(run: Run, names: Sequence[str]) -> Variant:
    """Return the variant that sets the fewest fields; among equals, the first of the run."""
    return min(
        (variant for variant in run.variants if variant.name in names),
        key=lambda variant: len(changes(variant.settings)),
    )


def _of(variants: Sequence[Variant], name: str) -> Variant | None:
    """Return the variant with this name, if it was measured to its end."""
    return next((v for v in variants if v.name == name and usable(v)), None)


def _estimate(variant: Variant, figure: figures.Figure) -> Estimate:
    return estimate(values(variant, figure)) or Estimate(math.inf, 0.0, math.inf)


def _p99(variant: Variant) -> Estimate:
    return _estimate(variant, figures.p99)


def _p99_words(variant: Variant) -> str:
    found = _p99(variant)
    return (
        f"{milliseconds(found.median)} ms ({milliseconds(found.low)} to {milliseconds(found.high)})"
    )


def _with_p99(variants: Sequence[Variant]) -> list[str]:
    return [f"{variant.name} ({milliseconds(_p99(variant).median)} ms)" for variant in variants]


def _per_second(variant: Variant) -> str:
    return f"{number(_estimate(variant, rate).median)} operations per second"


def _times(found: Comparisons, a: str, b: str, words: str) -> str:
    """Return words with the ratio of two variants; none if they share no round."""
    ratio = found.ratio(a, b)
    return words.format(times(ratio.median), interval(ratio)) if ratio else ""


def summary(run: Run) -> dict[str, Any]:
    """Return medians with their intervals, and the advice, in a form that JSON can take.

    An end of an interval that is not known is ``None``.
    """
    ratios = times_default(run)

    def of(variant: Variant) -> dict[str, Any]:
        ratio, same = ratios.get(variant.name, (None, None))
        medians = {name: _plain(estimate(values(variant, figure))) for name, figure in _SUMMARY}
        latencies = {
            name: _plain(estimate(values(variant, figures.percentile(name))))
            for name in figures.PERCENTILES
        }
        return {
            "rounds": len(usable(variant)),
            "times_default": _plain(ratio),
            "same_as_default": same,
            "verdict": verdict(ratio) if ratio else None,
            "latency_seconds": latencies,
            **medians,
        }

    return {
        "noise": Comparisons(run, variants=figures.rivals(run)).noise,
        "variants": {variant.name: of(variant) for variant in run.variants},
        "advice": asdict(advise(run)),
    }


_SUMMARY: Final = (
    ("rate", rate),
    ("operations_per_batch", figures.operations_per_batch),
    ("client_cpu_seconds_per_operation", figures.client_cpu),
    ("server_cpu_seconds_per_operation", figures.server_cpu),
)


def _plain(found: Estimate | None) -> dict[str, float | None] | None:
    if found is None:
        return None
    unknown = math.isinf(found.high)
    return {
        "median": found.median,
        "low": None if unknown else found.low,
        "high": None if unknown else found.high,
    }
