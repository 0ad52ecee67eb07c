"""Which topics a hub gives up."""

from __future__ import annotations

import random

import pytest

import batchkeeper as bk
from batchkeeper.hubs import Hub, HubInfo, HubLoad, HubSettings, Planned, choose
from batchkeeper.hubs.serving.shedding import Held, to_shed, unused

SETTINGS = HubSettings(tolerance=0.1, most_shed=5)


def hubs(*loads: HubLoad) -> dict[str, Hub]:
    return {f"h{n}": Hub(HubInfo(f"h{n}", 1), load) for n, load in enumerate(loads)}


def idle(count: int) -> list[Held]:
    return [Held(f"t{n}") for n in range(count)]


def test_a_hub_sheds_down_to_the_average() -> None:
    """The number at a time is limited; the average is over all hubs that take topics."""
    load = HubLoad(30)
    others = hubs(load, HubLoad(24), HubLoad(24))
    assert len(to_shed("h0", load, others, idle(30), SETTINGS)) == 4
    others = hubs(load, HubLoad(0), HubLoad(0))
    assert len(to_shed("h0", load, others, idle(30), SETTINGS)) == 5
    others["h1"] = others["h1"]._replace(draining=True)
    others["h2"] = others["h2"]._replace(eligible=False)
    assert to_shed("h0", load, others, idle(30), SETTINGS) == []


def test_the_load_of_now_counts() -> None:
    """The hub's own report is older than its current load."""
    others = hubs(HubLoad(0), HubLoad(10))
    assert len(to_shed("h0", HubLoad(20), others, idle(20), SETTINGS)) == 5
    others = hubs(HubLoad(20), HubLoad(10))
    assert to_shed("h0", HubLoad(10), others, idle(10), SETTINGS) == []


@pytest.mark.parametrize("loads", [(10, 10), (11, 9, 10), (1, 0), (1, 0, 0, 0)])
def test_what_is_about_even_stays(loads: tuple[int, ...]) -> None:
    """A hub within the tolerance sheds nothing, nor one that would only swap places."""
    load = HubLoad(loads[0])
    found = to_shed("h0", load, hubs(*map(HubLoad, loads)), idle(loads[0]), SETTINGS)
    assert found == []


def test_hot_topics_go_first() -> None:
    """One that is heavier than the whole surplus stays, because it would move for ever."""
    held = [Held("hot", 2_000.0), Held("warm", 300.0), Held("busy", 0.0, 100), *idle(10)]
    load = HubLoad(13, 2_300.0, 100)  # 37
    others = hubs(load, HubLoad(27))  # on average 32
    assert to_shed("h0", load, others, held, SETTINGS) == ["warm", "t9"]
    others = hubs(load, HubLoad(0))
    assert to_shed("h0", load, others, [Held("hot", 3_600.0)], SETTINGS) == []


def test_capacity_counts() -> None:
    """A hub of twice the capacity keeps twice as much."""
    load = HubLoad(20, capacity=2.0)
    assert to_shed("h0", load, hubs(load, HubLoad(10)), idle(20), SETTINGS) == []
    load = HubLoad(20, capacity=1.0)
    assert to_shed("h0", load, hubs(load, HubLoad(10, capacity=2.0)), idle(20), SETTINGS)


def test_a_new_hub_fills_up_without_ping_pong() -> None:
    """Hubs shed and choose by reports from the previous round; each topic moves at most once."""
    random.seed(7)
    names = [f"h{n}" for n in range(4)]
    owners = {f"t{n}": names[n % 3] for n in range(90)}
    moves = dict.fromkeys(owners, 0)
    reported = {name: HubLoad(30) for name in names[:3]} | {"h3": HubLoad(0)}
    for number in range(60):
        counts = {name: [*owners.values()].count(name) for name in names}
        view = {n: Hub(HubInfo(n, 1), reported[n], report=number) for n in names}
        planned = Planned()
        for name in names:
            held = [Held(topic) for topic, owner in owners.items() if owner == name]
            load = HubLoad(counts[name])
            for topic in to_shed(name, load, view, held, SETTINGS):
                owners[topic] = choose(view, planned=planned).address
                moves[topic] += 1
        reported = {name: HubLoad(counts[name]) for name in names}
    final = [[*owners.values()].count(name) for name in names]
    assert min(final) >= 18, final
    assert max(final) <= 27, final
    assert sum(moves.values()) <= 45, moves


def test_topics_that_nobody_uses_go() -> None:
    """A topic with subscribers is in use; each claim ends after its time all the same."""
    settings = HubSettings(retention_after_access=10.0, retention_after_claim=100.0)
    held = [
        Held("idle", used=80.0, claimed=80.0),
        Held("subscribed", used=80.0, claimed=80.0, connections=1),
        Held("used", used=85.0, claimed=80.0),
        Held("old", used=90.0, claimed=-10.0, connections=1),
    ]
    assert unused(held, settings, 90.0) == ["idle", "old"]
    assert unused(held, HubSettings(), 1e9) == []


def test_a_hub_keeps_at_most_so_many_topics() -> None:
    """It gives up those that were used least recently, beside those that go anyway."""
    settings = HubSettings(max_topics=2, retention_after_access=50.0)
    held = [Held("a", used=3.0), Held("b", used=90.0), Held("c", used=80.0), Held("d", used=99.0)]
    assert unused(held, settings, 100.0) == ["a", "c"]
    assert unused(held[:2], settings, 10.0) == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"ownership": "shared"},
        {"strategy": "best"},
        {"capacity": -1.0},
        {"capacity": float("inf")},
        {"max_topics": 0},
        {"window": True},
        {"most_shed": 1.5},
        {"mark_interval": 0},
        {"mark_interval": None},
        {"shed_interval": -1.0},
        {"tolerance": float("nan")},
        {"retention_after_claim": "1"},
    ],
)
def test_settings_are_checked(wrong: dict[str, object]) -> None:
    """The error names the setting and the value."""
    (name,) = wrong
    with pytest.raises(bk.InvalidSettingError, match=name):
        HubSettings(**wrong)  # type: ignore[arg-type]
    assert HubSettings(shed_interval=None, max_topics=None) == HubSettings(shed_interval=None)
