"""Watches on RocksDB: what they report, when, and how they end."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from batchkeeper.ops import (
    Check,
    Delete,
    IndeterminateError,
    MetadataStoreError,
    OperationTimeoutError,
    Put,
    StoreClosedError,
    StoreUnavailableError,
    Transaction,
    WatchEvent,
)

from ...waiting import PATIENCE, soon, until
from ..calls import write
from .opening import opened
from .test_backend import Watched


class Seen:
    """Watches a prefix of a back end, and keeps its events."""

    def __init__(self, backend: Any, prefix: str = "/") -> None:
        self.events: list[WatchEvent] = []
        self.errors: list[MetadataStoreError] = []
        self.threads: set[str] = set()
        self.handle = backend.watches.watch(prefix, None, self._take, self.errors.append, soon())

    def _take(self, events: Any) -> None:
        self.threads.add(threading.current_thread().name)
        self.events += events

    def wait(self, number: int) -> list[WatchEvent]:
        """Return the events when there are exactly ``number``."""
        until(lambda: len(self.events) >= number, f"only {self.events}")
        assert len(self.events) == number
        return self.events


def test_each_change_is_reported_once_in_order(backend: Any) -> None:
    """Creations, changes and deletes of all kinds of writes are reported, and refusals are not."""
    seen, below = Seen(backend), Seen(backend, "/a")
    write(backend, Put("/a", b""), Put("/a-", b""))
    write(backend, Put("/a", b"", 7), Put("/a", b"", 0), Delete("/a-"), Delete("/none"))
    write(backend, Put("/a/e", b"", ephemeral=True), Put("/q/n-", b"", sequential=True))
    write(
        backend,
        Transaction([Check("/a", 1), Put("/a/e", b""), Put("/a/t", b""), Delete("/a/e/x")]),
        Transaction([Check("/a", 1), Put("/a/e", b""), Delete("/q/n-0000000000"), Put("/z", b"")]),
    )
    backend.scans.delete_recursive("/a", PATIENCE)
    everything = [
        ("created", "/a", 0, 1),
        ("created", "/a-", 0, 1),
        ("modified", "/a", 1, 2),
        ("deleted", "/a-", None, 2),
        ("created", "/a/e", 0, 3),
        ("created", "/q/n-0000000000", 0, 3),
        ("modified", "/a/e", 1, 4),
        ("deleted", "/q/n-0000000000", None, 4),
        ("created", "/z", 0, 4),
        ("deleted", "/a", None, 5),
        ("deleted", "/a/e", None, 5),
    ]
    assert seen.wait(11) == everything
    assert below.wait(6) == [
        event for event in everything if event[1] == "/a" or event[1].startswith("/a/")
    ]
    assert seen.threads == below.threads == {"batchkeeper-watches"}


def test_an_event_comes_after_its_batch_is_on_the_disk(backend: Any) -> None:
    """Nothing is reported that a power cut could still undo."""
    seen = Seen(backend)
    watched = Watched(backend)
    watched.go_on.clear()
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write, backend, Put("/a", b""))
        assert watched.syncing.wait(PATIENCE)
        flag = threading.Event()
        backend.watches.watch("/b", None, lambda _: flag.set(), lambda _: None, soon())
        # An event of the same thread would have come after that of the batch.
        backend._commits.watches.publish([WatchEvent("created", "/b", 0, 9)])
        assert flag.wait(PATIENCE)
        assert [event.path for event in seen.events] == ["/b"]
        watched.go_on.set()
        writing.result(PATIENCE)
    assert [event.path for event in seen.wait(2)] == ["/b", "/a"]


def test_a_watch_reports_no_change_from_before_it(backend: Any) -> None:
    """A batch that waits for the disk when a watch begins, and could be read, is not reported."""
    watched = Watched(backend)
    watched.go_on.clear()
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write, backend, Put("/a", b""))
        assert watched.syncing.wait(PATIENCE)
        seen = Seen(backend)
        watched.go_on.set()
        writing.result(PATIENCE)
    write(backend, Put("/a", b""))
    assert seen.wait(1) == [("modified", "/a", 1, 2)]


def test_events_come_in_the_order_of_batches(backend: Any) -> None:
    """Batches of many threads that share syncs are reported in the order of their revisions."""
    seen = Seen(backend)
    with ThreadPoolExecutor(4) as pool:
        calls = [
            pool.submit(write, backend, *(Put(f"/{thread}/{n}/{k}", b"") for k in range(5)))
            for n in range(50)
            for thread in range(4)
        ]
        for call in calls:
            call.result(PATIENCE)
    events = seen.wait(1000)
    revisions = [event.revision for event in events]
    assert revisions == sorted(revisions, key=lambda revision: revision or 0)
    assert len(set(revisions)) == 200
    assert len({event.path for event in events}) == 1000


def test_watches_begin_between_commits(backend: Any) -> None:
    """A watch that begins beside a busy writer reports all changes after some moment, each once."""
    done = threading.Event()

    def busy() -> int:
        number = 0
        while not done.is_set():
            number += 1
            write(backend, Put("/a", b""))
        return number

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(busy)
        watches = []
        for _ in range(50):
            (stat,) = write(backend, Put("/mark", b""))
            watches.append((stat.revision, Seen(backend, "/")))
        done.set()
        writing.result(PATIENCE)
    (last,) = write(backend, Put("/end", b""))
    for before, seen in watches:
        until(lambda seen=seen: seen.events and seen.events[-1].revision == last.revision)
        first = seen.events[0].revision
        assert first is not None
        assert first > before
        # The writer goes on while a watch begins, so it may have missed a few, but in one piece.
        assert [event.revision for event in seen.events] == list(range(first, last.revision + 1))


def test_a_failed_sync_ends_the_watches(backend: Any) -> None:
    """Changes that may be lost are not reported; the watch fails once, and no new one begins."""
    seen = Seen(backend)
    write(backend, Put("/a", b""))
    watched = Watched(backend)
    watched.sync_failure = "IO error: fdatasync"
    with pytest.raises(IndeterminateError):
        write(backend, Put("/b", b""))
    until(lambda: seen.errors)
    assert [event.path for event in seen.events] == ["/a"]
    with pytest.raises(StoreUnavailableError, match=r"open it again.*fdatasync"):
        Seen(backend)
    (error,) = seen.errors
    assert isinstance(error, StoreUnavailableError)
    assert not error.retriable
    assert not backend._commits.watches.needed


def test_a_watch_that_begins_during_a_failing_sync_fails(
    backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is refused, although the other watches already have the event."""
    commits = backend._commits
    begin = commits.watches.watch

    def begin_late(*arguments: Any) -> Any:
        commits._sync_failure = OSError("fdatasync")
        return begin(*arguments)

    monkeypatch.setattr(commits.watches, "watch", begin_late)
    with pytest.raises(StoreUnavailableError, match="fdatasync"):
        Seen(backend)
    assert not commits.watches.needed


def test_without_sync_events_come_at_once(directory: Path) -> None:
    """With sync=false, a change is reported when it has been written."""
    with closing(opened(directory, "?sync=false")) as backend:
        seen = Seen(backend)
        for _ in range(3):
            write(backend, Put("/a", b""))
        assert [event.version for event in seen.wait(3)] == [0, 1, 2]


def test_a_slow_reader_holds_up_neither_writers_nor_reads(backend: Any) -> None:
    """Writes are answered while a watch has not returned from its events."""
    go_on = threading.Event()
    taken: list[WatchEvent] = []

    def slow(events: Any) -> None:
        assert go_on.wait(PATIENCE)
        taken.extend(events)

    backend.watches.watch("/", None, slow, lambda _: None, soon())
    for n in range(20):
        write(backend, Put(f"/{n}", b""))
    assert taken == []
    go_on.set()
    until(lambda: len(taken) == 20)


def test_nothing_is_reported_after_the_end_of_a_watch(backend: Any) -> None:
    """A closed watch gets no further event; others go on; the thread ends with the last."""
    first, second = Seen(backend), Seen(backend)
    write(backend, Put("/a", b""))
    first.wait(1)
    first.handle.close()
    first.handle.close()
    write(backend, Put("/b", b""))
    second.wait(2)
    assert len(first.events) == 1
    second.handle.close()
    write(backend, Put("/c", b""))
    third = Seen(backend)
    write(backend, Put("/d", b""))
    assert [event.path for event in third.wait(1)] == ["/d"]


def test_a_watch_that_closes_itself_gets_nothing_more(backend: Any) -> None:
    """Events that wait for the thread that delivers are dropped when their watch is closed."""
    go_on = threading.Event()
    taken: list[WatchEvent] = []

    def once(events: Any) -> None:
        assert go_on.wait(PATIENCE)
        taken.extend(events)
        handle.close()

    handle = backend.watches.watch("/", None, once, lambda _: None, soon())
    other = Seen(backend)
    write(backend, Put("/a", b""))
    write(backend, Put("/b", b""))
    go_on.set()
    other.wait(2)
    assert [event.path for event in taken] == ["/a"]


def test_a_close_of_the_store_ends_its_watches(backend: Any) -> None:
    """No event comes after it, not even of the removal of ephemeral values."""
    seen = Seen(backend)
    write(backend, Put("/e", b"", ephemeral=True))
    seen.wait(1)
    backend.close()
    assert not backend._commits.watches.needed
    assert len(seen.events) == 1
    with pytest.raises(StoreClosedError):
        Seen(backend)


def test_a_watch_that_cannot_begin_by_its_deadline_raises(backend: Any) -> None:
    """While a call decides for too long, no watch begins."""
    with backend._commits._write_lock, pytest.raises(OperationTimeoutError):
        backend.watches.watch("/", None, print, print, soon(0.01))
    assert not backend._commits.watches.needed
