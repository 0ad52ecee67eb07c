"""Hooks: their calls, their thread, and the effect of an exception in one."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

import batchkeeper as bk
from batchkeeper.batching import AsyncMetadataStore, BatchingConfig, MetadataStore

from .live import STATED, PlayedBackend
from .waiting import until

URL = "memory://hooked"


class Recorder:
    """Keeps its calls, with the name of the thread."""

    def __init__(self) -> None:
        self.told: list[tuple[str, Any, str]] = []

    def on_batch_sent(self, batch: bk.Batch) -> None:
        self.add("sent", batch)

    def on_batch_ended(self, ended: bk.EndedBatch) -> None:
        self.add("ended", ended)

    def on_conflict(self, conflict: bk.Conflict) -> None:
        self.add("conflict", conflict)

    def on_session(self, change: bk.SessionChange) -> None:
        self.add("session", change)

    def add(self, name: str, what: Any) -> None:
        self.told.append((name, what, threading.current_thread().name))

    def of(self, name: str) -> list[Any]:
        return [what for said, what, _ in self.told if said == name]


@pytest.fixture
def recorder() -> Recorder:
    """A hook for everything."""
    return Recorder()


@pytest.fixture
def store(recorder: Recorder) -> Iterator[MetadataStore]:
    """A store with that hook."""
    with bk.open_store(URL, hooks=recorder) as store:
        yield store


def conflicts(store: MetadataStore) -> None:
    """Make one conflict of each kind, and a success."""
    store.put("/a/b", b"1")
    for future in (store.put("/a/b", b"", 7), store.delete("/missing"), store.delete("/a")):
        assert isinstance(future.exception(), bk.MetadataStoreError)


def test_a_batch_is_told_when_it_is_sent_and_when_it_has_ended(
    store: MetadataStore, recorder: Recorder
) -> None:
    """Each batch comes twice, first sent and then ended, and all its operations are counted."""
    store.apply([bk.Put(f"/{n}", b"value") for n in range(300)] + [bk.Get("/1")] * 2)
    store.flush()
    sent, ended = recorder.of("sent"), recorder.of("ended")
    assert {id(batch) for batch in sent} == {id(end.batch) for end in ended}
    assert sorted(batch.number for batch in sent) == list(range(1, len(sent) + 1))
    kinds: Counter[str] = sum((Counter(batch.kinds) for batch in sent), Counter())
    assert kinds == {"put": 300, "get": 2}
    metrics = store.metrics()
    assert sum(batch.bytes for batch in sent) == metrics.writes.bytes + metrics.reads.bytes
    causes = Counter(batch.cause for batch in sent if batch.lane == "writes")
    assert causes == metrics.writes.causes
    assert {batch.store for batch in sent} == {URL}
    assert all(end.seconds > 0 and end.errors == {} for end in ended)


def test_conflicts_are_told_as_often_as_the_metrics_count_them(
    store: MetadataStore, recorder: Recorder
) -> None:
    """Each conflict comes with its path and the error that its caller gets."""
    conflicts(store)
    store.flush()
    told = recorder.of("conflict")
    assert {(conflict.kind, conflict.path, type(conflict.error)) for conflict in told} == {
        ("put", "/a/b", bk.BadVersionError),
        ("delete", "/missing", bk.NotFoundError),
        ("delete", "/a", bk.NotEmptyError),
    }
    assert len(told) == store.metrics().conflicts == 3
    errors: Counter[str] = sum((Counter(end.errors) for end in recorder.of("ended")), Counter())
    assert errors == store.metrics().errors


def test_hooks_of_batches_run_on_the_sender_without_the_engine_s_lock(
    store: MetadataStore, recorder: Recorder
) -> None:
    """They run on the thread that sends, while other threads may use the store."""
    looked: list[bk.Metrics] = []

    class Looks:
        def on_batch_sent(self, _: bk.Batch) -> None:
            # Takes the lock, on another thread.
            thread = threading.Thread(target=lambda: looked.append(looking.metrics()))
            thread.start()
            thread.join()

    conflicts(store)
    with bk.open_store("memory://looking", hooks=[Looks(), Looks()]) as looking:
        looking.put("/a", b"").result()
    assert len(looked) == 2
    names = {name for said, _, name in recorder.told if said != "session"}
    assert names
    assert all(name.startswith(("batchkeeper-writes-", "batchkeeper-reads-")) for name in names)


def test_a_failing_hook_is_logged_once_and_hurts_nobody(caplog: pytest.LogCaptureFixture) -> None:
    """Its operations have their results, other hooks are called, and the log has one error."""
    others = Recorder()

    class Fails:
        def on_batch_sent(self, _: bk.Batch) -> None:
            raise SystemExit

        def on_batch_ended(self, _: bk.EndedBatch) -> None:
            raise LookupError("of the test")

    with bk.open_store("memory://failing", hooks=[Fails(), others]) as store:
        for n in range(5):
            assert store.put("/a", b"").result().version == n
        store.flush()
    assert len(others.of("ended")) == 5
    errors = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert [vars(record)["hook"].rpartition(".")[2] for record in errors] == [
        "on_batch_sent",
        "on_batch_ended",
    ]
    assert all(record.exc_info for record in errors)


def test_events_of_the_session_come_on_the_thread_of_callbacks(recorder: Recorder) -> None:
    """They come in order, and a hook that fails is logged once."""
    backend = PlayedBackend()
    store = MetadataStore(backend, BatchingConfig(), 60.0, URL, STATED, [recorder])
    backend.own_session.happen("connection_lost", "reconnected")
    until(lambda: len(recorder.told) == 2, "not all came")
    store.close(0)
    assert recorder.of("session") == [
        bk.SessionChange(URL, "connection_lost"),
        bk.SessionChange(URL, "reconnected"),
    ]
    assert {name for *_, name in recorder.told} == {"batchkeeper-callbacks"}


def test_hooks_without_on_session_begin_no_session() -> None:
    """Only a hook for the session makes a back end begin one."""
    backend = PlayedBackend()

    class OnlyBatches:
        def on_batch_sent(self, _: bk.Batch) -> None: ...

    MetadataStore(backend, BatchingConfig(), 60.0, URL, STATED, [OnlyBatches()]).close(0)
    assert backend.own_session.listens == []


def test_a_store_for_tasks_tells_batches_on_its_senders_and_sessions_on_the_loop(
    recorder: Recorder,
) -> None:
    """The loop is not held up by hooks of batches."""

    async def use() -> None:
        backend = PlayedBackend()
        loop = asyncio.get_running_loop()
        told = asyncio.Event()

        class Tells:
            def on_session(self, _: bk.SessionChange) -> None:
                told.set()

        hooks = [recorder, Tells()]
        store = AsyncMetadataStore(backend, BatchingConfig(), 60.0, URL, loop, STATED, hooks)
        backend.own_session.happen("connection_lost")
        await told.wait()
        await store.close(0)
        async with bk.open_async_store("memory://tasks", hooks=recorder) as other:
            await other.put("/a", b"")

    asyncio.run(use())
    threads = {said: name for said, _, name in recorder.told}
    assert threads["session"] == threading.current_thread().name
    assert threads["sent"].startswith("batchkeeper-writes-")
    assert threads["ended"].startswith("batchkeeper-writes-")


@pytest.mark.parametrize(
    "hooks",
    [
        object(),
        [Recorder(), None],
        "on_batch_sent",
        type("Value", (), {"on_conflict": 3})(),
        type("Coroutine", (), {"on_session": asyncio.sleep})(),
    ],
    ids=["nothing", "none among them", "text", "no method", "coroutine"],
)
def test_what_can_never_be_told_anything_is_refused(hooks: Any) -> None:
    """A hook without a method that can be called is a mistake, and the message has its name."""
    with pytest.raises(bk.InvalidSettingError, match="on_"):
        bk.open_store("memory://refused", hooks=hooks)
    with pytest.raises(bk.InvalidSettingError, match="on_"):
        bk.open_async_store("memory://refused", hooks=hooks)
