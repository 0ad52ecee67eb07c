"""The figures of hubs, with few operations: each run checks what it measures."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from batchkeeper.bench.limits import claims, recovery, subscribers
from batchkeeper.bench.limits.work import Figures
from batchkeeper.bench.target import Target
from batchkeeper.bench.workload import WrongAnswerError
from batchkeeper.hubs import ConsumeMarks, SubscriptionDataManager
from batchkeeper.stores.registry import parse_url

CLAIMS = [
    claims.claims_in_paths,
    claims.claims_in_tables,
    claims.ephemeral_claims,
    claims.compared_claims,
    claims.publishes_that_claim,
]


@pytest.fixture(autouse=True)
def frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests' own objects stay frozen (see conftest.py)."""
    monkeypatch.setattr("gc.unfreeze", lambda: None)


@pytest.fixture
def there(fresh_url: Callable[[str], str]) -> Target:
    """A place in memory."""
    return _place(fresh_url, "memory")


def _place(fresh_url: Callable[[str], str], store: str) -> Target:
    return Target(store, parse_url(fresh_url(store)), "/place", None, None, 10.0)


@pytest.mark.parametrize("measured", CLAIMS)
def test_claims_that_are_not_the_first_end_the_run(
    measured: Callable[[Target, int], Figures], there: Target
) -> None:
    """A figure of first claims is one of topics that nobody has claimed before."""
    with there.open():
        assert measured(there, 40)["rate"] > 0
        with pytest.raises(WrongAnswerError, match="claimed for the first time"):
            measured(there, 40)


def test_marks_that_are_not_stored_end_the_run(
    there: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stored marks are compared with those that were set."""
    assert subscribers.mark_updates(there, 1_234)["rate"] > 0
    monkeypatch.setattr(ConsumeMarks, "consumed", lambda *_: None)
    with pytest.raises(WrongAnswerError, match="should be at 102"):
        subscribers.mark_updates(there, 1_234)


def test_subscriptions_that_are_missing_end_the_run(
    there: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The subscriptions that were read are counted."""
    assert subscribers.subscriptions_read(there, 30)["seconds"] > 0
    monkeypatch.setattr(SubscriptionDataManager, "read_subscriptions", lambda *_: {})
    with pytest.raises(WrongAnswerError, match="0 answers to 30 operations"):
        subscribers.subscriptions_read(there, 30)


@pytest.mark.parametrize("name", ["etcd", "zookeeper"])
def test_topics_that_nobody_owns_end_the_run(
    fresh_url: Callable[[str], str], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The topics of the hubs are counted, before the kill and after the last client is served."""
    monkeypatch.setattr(recovery, "line_of", lambda _process: "7 0.5\n")
    with pytest.raises(WrongAnswerError, match="7 of 20 topics are owned"):
        recovery.ephemeral_recovery(_place(fresh_url, name), 20)
