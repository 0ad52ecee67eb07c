"""Choosing a hub: the score, the strategies, and outdated loads."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import get_args

import pytest

import batchkeeper as bk
from batchkeeper.hubs import Hub, HubInfo, HubLoad, NoHubError, Planned, Strategy, choose, score

STRATEGIES = get_args(Strategy)


def hub(name: str, load: HubLoad | None = None, **flags: bool) -> Hub:
    return Hub(HubInfo(name, 1), load or HubLoad(), **flags)  # type: ignore[arg-type]


def region(*hubs: Hub) -> dict[str, Hub]:
    return {each.info.address: each for each in hubs}


def chosen(hubs: Mapping[str, Hub], strategy: Strategy, times: int = 2000) -> Counter[str]:
    source = random.Random(7)
    return Counter(choose(hubs, strategy, source).address for _ in range(times))


def test_a_score_counts_all_load_over_capacity() -> None:
    """Topics, messages and connections all raise it; capacity lowers it; without it, never."""
    idle = HubLoad()
    assert score(idle) == 0.0
    for load in (HubLoad(topics=1), HubLoad(message_rate=100.0), HubLoad(connections=100)):
        assert score(load) == 1.0
        assert score(replace(load, capacity=2.0)) == 0.5
    assert score(HubLoad(3, 200.0, 500, 2.0)) == 5.0
    assert score(HubLoad(topics=3), planned=2) == 5.0
    assert score(HubLoad(capacity=0.0)) == math.inf
    assert score(HubLoad(2**64 - 1, 1e18, 2**64 - 1, 5e-324)) == math.inf


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_no_hub_is_a_prompt_error(strategy: Strategy) -> None:
    """Without a hub that is eligible and does not drain, the error says what there is."""
    with pytest.raises(NoHubError, match="of 0 that are alive"):
        choose({}, strategy)
    hubs = region(hub("a", eligible=False), hub("b", draining=True))
    with pytest.raises(NoHubError, match="of 2 that are alive, 1 are not eligible, 1 drain"):
        choose(hubs, strategy)
    with pytest.raises(bk.InvalidSettingError, match="strategy"):
        choose(hubs, "best")  # type: ignore[arg-type]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_only_hubs_that_may_get_topics_are_chosen(strategy: Strategy) -> None:
    """The rest are never chosen, however idle; those without capacity only if all are."""
    busy = HubLoad(topics=10**6)
    others = [hub("b", eligible=False), hub("c", draining=True), hub("d", HubLoad(capacity=0.0))]
    assert chosen(region(hub("a", busy), *others), strategy, 200) == {"a": 200}
    assert chosen(region(*others), strategy, 200) == {"d": 200}
    none = [hub(name, HubLoad(capacity=0.0)) for name in "de"]
    assert set(chosen(region(*others, *none), strategy, 200)) == {"d", "e"}


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_ties_are_uniform(strategy: Strategy) -> None:
    """Of equal hubs, each is chosen about as often, whatever the order of the mapping."""
    for load in (HubLoad(), HubLoad(5, 1.0, 3), HubLoad(capacity=0.0)):
        counts = chosen(region(*(hub(name, load) for name in "dacb")), strategy, 4000)
        assert all(abs(counts[name] - 1000) < 150 for name in "abcd"), counts


def test_two_choices_takes_the_better_of_two() -> None:
    """The busiest of three is never chosen, the next one when it meets the busiest."""
    hubs = region(*(hub(name, HubLoad(topics=n)) for n, name in enumerate("abc")))
    counts = chosen(hubs, "two_choices", 3000)
    assert counts["c"] == 0
    assert abs(counts["a"] - 2000) < 150
    assert chosen(region(hubs["b"], hubs["c"]), "two_choices", 100) == {"b": 100}


def test_least_loaded_takes_the_best() -> None:
    """It is the hub with the lowest score, which is not always that with the fewest topics."""
    hubs = region(
        hub("few", HubLoad(topics=1, message_rate=1000.0)),
        hub("many", HubLoad(topics=8)),
        hub("big", HubLoad(topics=12, capacity=2.0)),
    )
    assert chosen(hubs, "least_loaded", 100) == {"big": 100}


def test_weighted_random_follows_the_room() -> None:
    """All are chosen, a hub of twice the capacity twice as often, and busier ones less often."""
    counts = chosen(region(hub("a", HubLoad(capacity=2.0)), hub("b")), "weighted_random", 3000)
    assert abs(counts["a"] - 2000) < 150
    counts = chosen(region(hub("a", HubLoad(topics=3)), hub("b")), "weighted_random", 3000)
    assert abs(counts["b"] - 2400) < 150
    huge = HubLoad(capacity=1.7e19)
    assert set(chosen(region(hub("a", huge), hub("b", huge), hub("c")), "weighted_random"))


def test_what_was_planned_counts_until_the_next_report() -> None:
    """A hub that was chosen counts as busier until it has reported, or lives again."""
    planned, source = Planned(), random.Random(7)
    hubs = region(*(hub(name) for name in "abc"))

    def choose_all() -> list[str]:
        return [choose(hubs, "least_loaded", source, planned).address for _ in range(3)]

    assert sorted(choose_all()) == sorted(choose_all()) == ["a", "b", "c"]
    assert planned.counts(list(hubs.values()), 3) == [6, 6, 6]
    hubs["b"] = hubs["b"]._replace(report=1)
    assert planned.counts(list(hubs.values()), 3) == [6, 0, 6]
    assert choose_all()[:2] == ["b", "b"]
    hubs["c"] = hubs["c"]._replace(info=HubInfo("c", 2))
    assert planned.counts([hubs["c"]], 1) == [0]


def busiest(
    strategy: Strategy, seed: int, *, choosers: int, at_once: bool, old: int = 200
) -> float:
    """Place 1,000 topics on 10 hubs; return the topics of the busiest over the average.

    Each hub reports its load every 200 topics: all of them at once, or one after the other.
    """
    source = random.Random(seed)
    names = [f"hub-{number}" for number in range(10)]
    topics = dict.fromkeys(names, 0)
    hubs = region(*(hub(name) for name in names))
    plans = [Planned() for _ in range(choosers)]
    for number in range(1000):
        for place, name in enumerate(names):
            if (number + (0 if at_once else place * old // 10)) % old == 0:
                load = HubLoad(topics=topics[name])
                hubs[name] = hubs[name]._replace(load=load, report=number)
        topics[choose(hubs, strategy, source, source.choice(plans)).address] += 1
    return max(topics.values()) / 100


@pytest.mark.slow
@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("choosers", [1, 10])
@pytest.mark.parametrize("strategy", ["two_choices", "least_loaded"])
def test_old_loads_do_not_send_everything_to_one_hub(
    strategy: Strategy, choosers: int, at_once: bool
) -> None:
    """With reports 200 topics old, the busiest of 10 hubs has at most 1.15 times the average."""
    for seed in range(5):
        assert busiest(strategy, seed, choosers=choosers, at_once=at_once) <= 1.15
