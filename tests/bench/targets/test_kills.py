"""The writes that a kill catches, measured on real servers."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from targets.kills import Findings, measure

from ...histories.nemesis import forgets, server_to_hurt

# They measure the project, and not what its users get.
pytestmark = pytest.mark.full


@pytest.mark.full
@pytest.mark.server
@pytest.mark.parametrize("kind", ["etcd", "zookeeper"])
def test_what_a_kill_catches_is_settled(kind: str, tmp_path: Path) -> None:
    """No write that a kill catches stays unknown, and no outcome is false."""
    with server_to_hurt(kind, tmp_path) as server:
        forgetful = forgets(server)
        report = measure(server, kills=2, threads=2)
    assert len(report.kills) == 2
    assert all(kill.total() for kill in report.kills)
    assert report.caught["indeterminate"] == 0
    assert len(report.acknowledged) > 1000
    assert report.false_conflicts == []
    assert report.false_failures == 0
    assert not report.missing or forgetful


def test_the_share_is_of_all_kills() -> None:
    """Late and unknown writes count as not settled, whichever kill caught them."""
    report = Findings([Counter(settled=90), Counter(settled=5, indeterminate=5)])
    assert report.share == 0.95
    assert Findings().share == 0.0
