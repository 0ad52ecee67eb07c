"""Subscribers: their consume marks, and all subscriptions of a topic read at once."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from ...hubs import (
    ConsumeMarks,
    MessageSeqId,
    SubscriptionData,
    SubscriptionDataManager,
    open_managers,
)
from ..target import Target
from ..workload import WrongAnswerError
from .ours import check_count
from .work import Figures, Stopwatch

__all__ = ["mark_updates", "subscriptions_read"]

_SUBSCRIBERS: Final = 10_000
# Of one topic.
_NEIGHBOURS: Final = 100
_THREADS: Final = 64
_DATA: Final = SubscriptionData()


def mark_updates(there: Target, count: int) -> Figures:
    """Measure ``ConsumeMarks.consumed`` of up to 10,000 subscribers in turn, until all is stored.

    Each subscriber gets a hundred marks or more, so most of them never reach the store.
    """
    subscribers = [
        (f"topic-{number // _NEIGHBOURS}", f"subscriber-{number % _NEIGHBOURS}")
        for number in range(max(1, min(_SUBSCRIBERS, count // 100)))
    ]
    last, rest = divmod(count, len(subscribers))
    with there.open() as store, open_managers(store, there.root) as managers:
        _create(managers.subscriptions, subscribers)
        with Stopwatch(there) as watch, ConsumeMarks(managers.subscriptions) as marks:
            for number in range(1, last + 1):
                mark = MessageSeqId(number)
                for topic, subscriber in subscribers:
                    marks.consumed(topic, subscriber, mark)
            for topic, subscriber in subscribers[:rest]:
                marks.consumed(topic, subscriber, MessageSeqId(last + 1))
        for topic, subscriber in (subscribers[0], subscribers[-1]):
            found = managers.subscriptions.read_subscription_data(topic, subscriber)
            state = None if found is None else found.value.state
            if state is None or state.mark.local < last:
                raise WrongAnswerError(f"{subscriber} of {topic} should be at {last}, not {state}")
    return watch.figures(count)


def subscriptions_read(there: Target, count: int) -> Figures:
    """Measure ``read_subscriptions`` of a topic with so many subscribers: ``seconds`` for all."""
    with there.open() as store, open_managers(store, there.root) as managers:
        subscriptions = managers.subscriptions
        _create(subscriptions, [("topic", f"subscriber-{number}") for number in range(count)])
        subscriptions.read_subscriptions("topic")  # The warm-up.
        with Stopwatch(there) as watch:
            begun = time.perf_counter()
            found = subscriptions.read_subscriptions("topic")
            seconds = time.perf_counter() - begun
    check_count(len(found), count)
    return {**watch.figures(count), "seconds": seconds}


def _create(subscriptions: SubscriptionDataManager, subscribers: list[tuple[str, str]]) -> None:
    def create(subscriber: tuple[str, str]) -> None:
        subscriptions.create_subscription_data(*subscriber, _DATA)

    with ThreadPoolExecutor(_THREADS) as pool:
        for _ in pool.map(create, subscribers):
            pass
