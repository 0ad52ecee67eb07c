"""The figures of hubs, with few operations: each run checks what it measures."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from targets.limits import hubs
from targets.limits.variants import VARIANTS

from batchkeeper.bench.target import Target
from batchkeeper.bench.workload import WrongAnswerError
from batchkeeper.hubs import ConsumeMarks, SubscriptionDataManager

# They measure the project, and not what its users get.
pytestmark = pytest.mark.full

CLAIMS = [name for name in VARIANTS if "claim" in name]


@pytest.fixture
def there(place: Callable[..., Target]) -> Target:
    """A place in memory."""
    return place()


@pytest.mark.parametrize("name", CLAIMS)
def test_claims_that_are_not_the_first_end_the_run(name: str, there: Target) -> None:
    """A figure of first claims is one of topics that nobody has claimed before."""
    measured = VARIANTS[name].measure
    with there.open():
        assert measured(there, 40)["rate"] > 0
        with pytest.raises(WrongAnswerError, match="claimed for the first time"):
            measured(there, 40)


def test_marks_that_are_not_stored_end_the_run(
    there: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stored marks are compared with those that were set."""
    assert hubs.mark_updates(there, 1_234)["rate"] > 0
    monkeypatch.setattr(ConsumeMarks, "consumed", lambda *_: None)
    with pytest.raises(WrongAnswerError, match="should be at 102"):
        hubs.mark_updates(there, 1_234)


def test_subscriptions_that_are_missing_end_the_run(
    there: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The subscriptions that were read are counted."""
    assert hubs.subscriptions_read(there, 30)["seconds"] > 0
    monkeypatch.setattr(SubscriptionDataManager, "read_subscriptions", lambda *_: {})
    with pytest.raises(WrongAnswerError, match="0 answers to 30 operations"):
        hubs.subscriptions_read(there, 30)
