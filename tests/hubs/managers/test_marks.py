"""Consume marks: few writes, a bound for what is delivered again, and never backwards."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import batchkeeper as bk
from batchkeeper.hubs.errors import IllegalOperationError, NoSubscriptionStateError
from batchkeeper.hubs.managers import (
    AsyncConsumeMarks,
    ConsumeMarks,
    MessageSeqId,
    SubscriptionData,
    SubscriptionDataManager,
    SubscriptionPreferences,
    SubscriptionState,
    async_open_managers,
    open_managers,
)
from batchkeeper.hubs.managers._sync import marks as marks_module
from batchkeeper.hubs.tables import DamagedRecordError, Version

from ...background import working
from ...forks import holds_in_a_child
from ...waiting import PATIENCE, result, until

NEVER = 3600.0  # seconds: within a test, no interval passes


@pytest.fixture(params=["paths", "tables"])
def subscriptions(
    store: bk.MetadataStore, request: pytest.FixtureRequest
) -> Iterator[SubscriptionDataManager]:
    """A manager of subscriptions, in each layout."""
    with open_managers(store, "/region", request.param) as managers:
        yield managers.subscriptions


@pytest.fixture
def memory(fresh_url: Callable[[str], str]) -> Iterator[bk.MetadataStore]:
    """An empty store where its kind does not matter."""
    with bk.open_store(fresh_url("memory")) as store:
        yield store


@pytest.fixture
def quick(memory: bk.MetadataStore) -> Iterator[SubscriptionDataManager]:
    """A manager of subscriptions in it."""
    with open_managers(memory) as managers:
        yield managers.subscriptions


class Writes:
    """Counts the writes of marks, and can hold them up or let them fail."""

    def __init__(self, manager: SubscriptionDataManager) -> None:
        self.manager = manager
        self.written: list[list[tuple[str, str, int]]] = []
        self.free = threading.Event()
        self.free.set()
        self.error: bk.MetadataStoreError | None = None

    def advance_marks(self, marks: Any, beside: Any) -> Any:
        self.written.append([(topic, subscriber, mark.local) for topic, subscriber, mark in marks])
        assert self.free.wait(PATIENCE)
        if self.error is not None:
            raise self.error
        return self.manager.advance_marks(marks, beside)


def subscribe(manager: SubscriptionDataManager, *names: str, topic: str = "t") -> None:
    for name in names:
        manager.create_subscription_data(topic, name, SubscriptionData())


def stored(manager: SubscriptionDataManager, name: str = "s", topic: str = "t") -> int | None:
    found = manager.read_subscription_data(topic, name)
    state = found.value.state if found else None
    return None if state is None else state.mark.local


def at(number: int) -> MessageSeqId:
    return MessageSeqId(number)


# --- the manager


def test_marks_only_move_forward(subscriptions: SubscriptionDataManager) -> None:
    """Each mark has the version or the error of its own; the other part of a subscription stays."""
    subscribe(subscriptions, "s", "new")
    preferences = SubscriptionPreferences(message_filter="f")
    state = SubscriptionState(at(5), unknown={"window": 3})
    subscriptions.replace_subscription_data(
        "t", "s", SubscriptionData(preferences, state), Version.ANY
    )
    ended = subscriptions.advance_marks(
        [("t", "s", at(7)), ("t", "new", at(0)), ("t", "gone", at(7)), ("u", "s", at(7))]
    )
    found = subscriptions.read_subscription_data("t", "s")
    assert found is not None
    assert found.version == ended[0]
    assert found.value.preferences == preferences
    assert found.value.state == SubscriptionState(at(7), unknown={"window": 3})
    assert stored(subscriptions, "new") == 0
    assert [type(one) for one in ended[2:]] == [NoSubscriptionStateError] * 2
    for number in (7, 6):
        assert subscriptions.advance_marks([("t", "s", at(number))]) == [None]
    with pytest.raises(IllegalOperationError, match=r"key 's' .* occurs twice"):
        subscriptions.advance_marks([("t", "s", at(8)), ("t", b"s", at(9))])
    assert stored(subscriptions) == 7
    assert subscriptions.advance_marks([]) == []


def test_marks_meet_other_writers(subscriptions: SubscriptionDataManager) -> None:
    """Whatever the order in which they arrive, the greatest stays, and no preferences are lost."""
    subscribe(subscriptions, "s")
    with ThreadPoolExecutor(8) as pool:
        numbers = [number * 7 % 41 for number in range(41)]
        jobs = [pool.submit(subscriptions.advance_marks, [("t", "s", at(n))]) for n in numbers]
        jobs += [
            pool.submit(
                subscriptions.update_subscription_data,
                *("t", "s", SubscriptionData(SubscriptionPreferences()), Version.ANY),
            )
        ]
        ended = [job.result(PATIENCE) for job in jobs]
    assert not [one for one in ended if isinstance(one, bk.MetadataStoreError)]
    assert stored(subscriptions) == 40
    found = subscriptions.read_subscription_data("t", "s")
    assert found is not None
    assert found.value.preferences == SubscriptionPreferences()


def test_bad_marks_are_refused(
    store: bk.MetadataStore, subscriptions: SubscriptionDataManager
) -> None:
    """An invalid name or mark is refused at once; a damaged subscription is an error of its own."""
    subscribe(subscriptions, "s")
    for bad in (("", "s", at(1)), ("t", b"", at(1)), (5, "s", at(1)), ("t", "s", 1)):
        with pytest.raises(IllegalOperationError):
            subscriptions.advance_marks([("t", "s", at(1)), bad])  # type: ignore[list-item]
        with pytest.raises(IllegalOperationError), ConsumeMarks(subscriptions) as marks:
            marks.consumed(*bad)  # type: ignore[arg-type]
    assert stored(subscriptions) is None
    (path,) = [found.path for found in store.scan("/region") if found.path.endswith("/s")]
    result(store.put(path, b"damaged"))
    (ended,) = subscriptions.advance_marks([("t", "s", at(1))])
    assert isinstance(ended, DamagedRecordError)


# --- the marks


def test_many_marks_are_one_write(subscriptions: SubscriptionDataManager) -> None:
    """Closing writes the newest mark of each subscriber, all of them together."""
    names = [f"s{number}" for number in range(20)]
    subscribe(subscriptions, *names)
    writes = Writes(subscriptions)
    with ConsumeMarks(writes, interval=NEVER) as marks:  # type: ignore[arg-type]
        for number in range(100):
            for name in names:
                marks.consumed("t", name, at(number))
        assert writes.written == []
    assert writes.written == [[("t", name, 99) for name in names]]
    assert {stored(subscriptions, name) for name in names} == {99}


def test_a_mark_is_written_in_time(quick: SubscriptionDataManager) -> None:
    """Nobody has to call anything; a later mark is written in its turn."""
    subscribe(quick, "s")
    with ConsumeMarks(quick, interval=0.01) as marks:
        for number in (3, 4):
            marks.consumed("t", "s", at(number))
            until(lambda n=number: stored(quick) == n, "the mark was not written")  # type: ignore[misc]


def test_half_of_the_bound_is_written_early(quick: SubscriptionDataManager) -> None:
    """Long before the interval, and without a call that waits."""
    subscribe(quick, "s", "other")
    with ConsumeMarks(quick, most=10, interval=NEVER) as marks:
        marks.consumed("t", "other", at(7))
        for number in range(5):
            marks.consumed("t", "s", at(number))
        until(lambda: stored(quick) == 4, "the mark was not written")
        assert stored(quick, "other") == 7  # It goes along.


def test_nobody_gets_further_ahead_than_the_bound(quick: SubscriptionDataManager) -> None:
    """While the store is slow, a call beyond the bound returns only when its mark is stored."""
    subscribe(quick, "s", "other")
    writes = Writes(quick)
    writes.free.clear()
    marks = ConsumeMarks(writes, most=4, interval=NEVER)  # type: ignore[arg-type]
    for number in range(4):
        marks.consumed("t", "s", at(number))
    with ThreadPoolExecutor(3) as pool:
        beyond = pool.submit(marks.consumed, "t", "s", at(4))
        jump = pool.submit(marks.consumed, "t", "s", at(900))
        until(lambda: len(writes.written) == 1, "no write began")
        old = pool.submit(marks.consumed, "t", "s", at(3))
        marks.consumed("t", "other", at(1))  # Others are not held up.
        assert stored(quick) is None
        assert not any(waiting.done() for waiting in (beyond, jump, old))
        writes.free.set()
        beyond.result(PATIENCE)
        assert (stored(quick) or 0) >= 4
        for waiting in (jump, old):
            waiting.result(PATIENCE)
        assert stored(quick) == 900
    marks.close()


def test_the_first_mark_may_be_far_ahead(quick: SubscriptionDataManager) -> None:
    """Nothing is known of the stored mark, so the call waits until this one is stored."""
    subscribe(quick, "s")
    with ConsumeMarks(quick, most=10, interval=NEVER) as marks:
        marks.consumed("t", "s", at(900))
        assert stored(quick) == 900
        marks.consumed("t", "s", at(904))
        assert stored(quick) == 900
        marks.release("t")
        assert stored(quick) == 904
        marks.consumed("t", "s", at(950))
        assert stored(quick) == 950


def test_what_half_of_the_bound_finds_under_way(quick: SubscriptionDataManager) -> None:
    """It is written early, too, when the write that is under way has ended."""
    subscribe(quick, "s")
    writes = Writes(quick)
    writes.free.clear()
    marks = ConsumeMarks(writes, most=10, interval=NEVER)  # type: ignore[arg-type]
    marks.consumed("t", "s", at(4))
    until(lambda: len(writes.written) == 1, "no write began")
    marks.consumed("t", "s", at(9))
    writes.free.set()
    until(lambda: stored(quick) == 9, "the mark was not written")
    marks.close()


def test_an_old_mark_is_ignored(quick: SubscriptionDataManager) -> None:
    """It neither goes back, nor is it written; so it is with one that is behind the store."""
    subscribe(quick, "s")
    quick.advance_marks([("t", "s", at(50))])
    writes = Writes(quick)
    marks = ConsumeMarks(writes, interval=NEVER)  # type: ignore[arg-type]
    marks.consumed("t", "s", at(9))
    marks.consumed("t", "s", at(8))
    marks.consumed("t", "s", at(9))
    marks.flush()
    marks.consumed("t", "s", at(9))
    marks.flush()
    assert writes.written == [[("t", "s", 9)]]
    assert stored(quick) == 50
    marks.close()


def test_flush_and_release_are_for_one_topic(quick: SubscriptionDataManager) -> None:
    """Both return when the marks of the topic are stored; those of others wait."""
    for topic in ("a", "b", "c"):
        subscribe(quick, "s", topic=topic)
    marks = ConsumeMarks(quick, interval=NEVER)
    for topic in ("a", b"b", "c"):
        marks.consumed(topic, "s", at(1))
    marks.flush("a")
    marks.release("b")
    assert [stored(quick, topic=topic) for topic in ("a", "b", "c")] == [1, 1, None]
    marks.consumed("b", "s", at(0))  # as if by another owner's client: the store decides
    marks.flush()
    assert [stored(quick, topic=topic) for topic in ("a", "b", "c")] == [1, 1, 1]
    marks.close()


def test_a_failed_write_is_tried_again(quick: SubscriptionDataManager) -> None:
    """Its error goes to those who wait; nothing is lost when the store is back."""
    subscribe(quick, "s", "gone")
    writes = Writes(quick)
    writes.error = bk.StoreUnavailableError("no answer")
    marks = ConsumeMarks(writes, most=10, interval=0.01)  # type: ignore[arg-type]
    marks.consumed("t", "s", at(1))
    until(lambda: len(writes.written) > 1, "it was not tried again")
    with pytest.raises(bk.StoreUnavailableError):
        marks.flush()
    for _ in range(2):
        with pytest.raises(bk.StoreUnavailableError):
            marks.consumed("t", "s", at(99))
    with pytest.raises(bk.StoreUnavailableError):
        marks.release("other"), marks.flush()
    writes.error = None
    until(lambda: stored(quick) == 99, "the mark was not written")
    marks.close()


def test_a_release_that_fails_forgets_the_topic(quick: SubscriptionDataManager) -> None:
    """Its marks do not come back later, when another hub has the topic."""
    subscribe(quick, "s")
    writes = Writes(quick)
    writes.error = bk.StoreUnavailableError("no answer")
    marks = ConsumeMarks(writes, interval=NEVER)  # type: ignore[arg-type]
    marks.consumed("t", "s", at(1))
    with pytest.raises(bk.StoreUnavailableError):
        marks.release("t")
    writes.error = None
    marks.close()
    assert stored(quick) is None


def test_marks_of_a_deleted_subscription_are_dropped(quick: SubscriptionDataManager) -> None:
    """They are no error, and are not tried again; those beside them are written."""
    subscribe(quick, "s")
    writes = Writes(quick)
    with ConsumeMarks(writes, interval=NEVER) as marks:  # type: ignore[arg-type]
        marks.consumed("t", "gone", at(1))
        marks.consumed("t", "s", at(1))
        marks.flush()
        marks.flush()
    assert writes.written == [[("t", "gone", 1), ("t", "s", 1)]]
    assert stored(quick) == 1


def test_a_subscription_that_begins_anew(quick: SubscriptionDataManager) -> None:
    """A mark that was forgotten is not written into it, and its own marks count from its start."""
    subscribe(quick, "s")
    with ConsumeMarks(quick, most=10_000, interval=NEVER) as marks:
        marks.consumed("t", "s", at(500))
        marks.forget("t", "s")
        quick.delete_subscription_data("t", "s", Version.ANY)
        subscribe(quick, "s")
        marks.flush()
        assert stored(quick) is None
        marks.consumed("t", "s", at(7))
        marks.flush()
        assert stored(quick) == 7


def test_a_mark_that_meets_a_new_subscription(quick: SubscriptionDataManager) -> None:
    """If it is set while the write finds no subscription, it is written later."""
    writes = Writes(quick)
    writes.free.clear()
    marks = ConsumeMarks(writes, most=10, interval=NEVER)  # type: ignore[arg-type]
    marks.consumed("t", "s", at(1))
    with ThreadPoolExecutor(1) as pool:
        flush = pool.submit(marks.flush)
        until(lambda: len(writes.written) == 1, "no write began")
        marks.consumed("t", "s", at(2))
        writes.free.set()
        flush.result(PATIENCE)
    subscribe(quick, "s")
    marks.close()
    assert stored(quick) == 2


def test_a_damaged_subscription_holds_up_no_others(
    memory: bk.MetadataStore, quick: SubscriptionDataManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its error is raised, and the marks of all others are stored, even in later batches."""
    monkeypatch.setattr(marks_module, "_PAGE", 3)
    names = [f"s{number}" for number in range(10)]
    subscribe(quick, *names)
    writes = Writes(quick)
    result(memory.put("/hedwig/region/topics/t/subscribers/s0", b"damage"))
    marks = ConsumeMarks(writes, interval=NEVER)  # type: ignore[arg-type]
    for name in names:
        marks.consumed("t", name, at(1))
    with pytest.raises(DamagedRecordError):
        marks.release("t")
    assert [stored(quick, name) for name in names[1:]] == [1] * 9
    assert len(writes.written) == 4
    marks.close()


def test_what_was_not_written_is_not_written_after_a_release(
    quick: SubscriptionDataManager,
) -> None:
    """A write that waited meanwhile leaves out what the release has forgotten."""
    subscribe(quick, "s")
    writes = Writes(quick)
    writes.free.clear()
    writes.error = bk.StoreUnavailableError("no answer")
    marks = ConsumeMarks(writes, interval=NEVER)  # type: ignore[arg-type]
    marks.consumed("t", "s", at(1))
    with ThreadPoolExecutor(2) as pool:
        release = pool.submit(marks.release, "t")
        until(lambda: len(writes.written) == 1, "no write began")
        flush = pool.submit(marks.flush)
        marks.flush("other")
        writes.free.set()
        assert isinstance(release.exception(PATIENCE), bk.StoreUnavailableError)
        assert flush.exception(PATIENCE) in (None, writes.error)
    writes.error = None
    marks.close()
    assert stored(quick) is None


def test_a_writer_that_failed_begins_again(
    quick: SubscriptionDataManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a missing thread nor an unexpected exception ends the writing for good."""
    subscribe(quick, "s")
    writes = Writes(quick)
    marks = ConsumeMarks(writes, interval=0.01)  # type: ignore[arg-type]

    def no_thread(*_: Any) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(marks_module, "spawn", no_thread)
        marks.consumed("t", "s", at(1))
    writes.error = KeyError("unexpected")  # type: ignore[assignment]
    marks.consumed("t", "s", at(1))
    until(lambda: writes.written and not working("consume marks"), "the writer did not end")
    writes.error = None
    marks.consumed("t", "s", at(1))
    until(lambda: stored(quick) == 1, "the mark was not written")
    marks.close()


def test_marks_in_a_forked_process(quick: SubscriptionDataManager) -> None:
    """Its calls are refused, also if a write was under way, and a close does nothing."""
    subscribe(quick, "s")
    writes = Writes(quick)
    writes.free.clear()
    marks = ConsumeMarks(writes, interval=NEVER)  # type: ignore[arg-type]
    marks.consumed("t", "s", at(1))
    with ThreadPoolExecutor(1) as pool:
        flush = pool.submit(marks.flush)
        until(lambda: len(writes.written) == 1, "no write began")

        def refused() -> bool:
            for call in (
                lambda: marks.consumed("t", "s", at(2)),
                marks.flush,
                lambda: marks.release("t"),
                lambda: marks.forget("t", "s"),
            ):
                with pytest.raises(bk.StoreClosedError):
                    call()
            marks.close()
            return True

        assert holds_in_a_child(refused)
        writes.free.set()
        flush.result(PATIENCE)
    marks.close()


def test_closed_marks_take_no_more(quick: SubscriptionDataManager) -> None:
    """A second close does no harm."""
    marks = ConsumeMarks(quick)
    marks.close()
    marks.close()
    with pytest.raises(bk.StoreClosedError):
        marks.consumed("t", "s", at(1))


@pytest.mark.parametrize(
    "settings", [{"most": 0}, {"most": True}, {"interval": 0}, {"interval": -1}]
)
def test_bad_settings_of_marks(quick: SubscriptionDataManager, settings: Any) -> None:
    """They are named in the error."""
    with pytest.raises(bk.InvalidSettingError, match=next(iter(settings))):
        ConsumeMarks(quick, **settings)


def test_tasks_share_marks(fresh_url: Callable[[str], str]) -> None:
    """Many tasks set marks; a cancelled one leaves nothing locked."""

    async def run() -> int | None:
        async with (
            bk.open_async_store(fresh_url("memory")) as store,
            await async_open_managers(store) as managers,
            AsyncConsumeMarks(managers.subscriptions, most=3, interval=NEVER) as marks,
        ):
            await managers.subscriptions.create_subscription_data("t", "s", SubscriptionData())
            calls = [asyncio.create_task(marks.consumed("t", "s", at(n))) for n in range(200)]
            calls[199].cancel()
            await asyncio.wait(calls, timeout=PATIENCE)
            assert [call.exception() for call in calls[:199]] == [None] * 199
            async with asyncio.timeout(PATIENCE):
                await marks.flush()
            found = await managers.subscriptions.read_subscription_data("t", "s")
            assert found is not None
            assert found.value.state is not None
            return found.value.state.mark.local

    assert asyncio.run(run()) == 198


def test_marks_of_one_subscriber_and_of_one_topic(quick: SubscriptionDataManager) -> None:
    """One mark can be written alone, and those of a topic be forgotten without a write."""
    subscribe(quick, "a", "b")
    subscribe(quick, "c", topic="u")
    writes = Writes(quick)
    with ConsumeMarks(writes, interval=NEVER) as marks:  # type: ignore[arg-type]
        for name, topic in (("a", "t"), ("b", "t"), ("c", "u")):
            marks.consumed(topic, name, at(3))
        marks.flush("t", "a")
        marks.flush("t", "nobody")
        assert writes.written[0] == [("t", "a", 3)]
        marks.consumed("t", "a", at(4))
        marks.forget("t")
    assert [stored(quick, "a"), stored(quick, "b"), stored(quick, "c", "u")] == [3, None, 3]
