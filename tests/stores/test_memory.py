"""The particulars of the store in memory; the common contract is in conformance."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest

import batchkeeper as bk
from batchkeeper.ops import (
    ABSENT,
    BadVersionError,
    Delete,
    Exists,
    Get,
    GetChildren,
    IndeterminateError,
    InvalidSettingError,
    OperationTimeoutError,
    Put,
    StoreClosedError,
    StoreUnavailableError,
)
from batchkeeper.stores import Backend, ConnectOptions, connect, memory

from ..waiting import PATIENCE, soon
from .calls import read, write


def opened(name: str, query: str = "") -> Backend:
    return connect(f"memory://{name}{query}", ConnectOptions())


@pytest.fixture
def name() -> str:
    return uuid.uuid4().hex


def test_a_name_is_shared_within_the_process(name: str) -> None:
    """Two openers of one name see each other's values; another name is another store."""
    one, two, other = opened(name), opened(name), opened(name + "-other")
    (stat,) = write(one, Put("/a", b"1"))
    (found,) = read(two, Get("/a"))
    assert found == (b"1", stat)
    assert read(other, Get("/a")) == [None]
    for backend in (one, two, other):
        backend.close()


def test_the_last_closer_drops_the_values(name: str) -> None:
    """The values live until the last client closes, even if another one closes several times."""
    one, two = opened(name), opened(name)
    write(one, Put("/a", b"1"))
    one.close()
    one.close()
    assert read(two, Exists("/a")) == [True]
    two.close()
    again = opened(name)
    assert read(again, Exists("/a")) == [False]
    again.close()


def test_a_closed_opener_is_refused_while_others_go_on(name: str) -> None:
    """After its close an opener gets StoreClosedError for reads and writes."""
    one, two = opened(name), opened(name)
    one.close()
    with pytest.raises(StoreClosedError, match=name):
        write(one, Put("/a", b"1"))
    with pytest.raises(StoreClosedError, match=name):
        read(one, Get("/a"))
    assert write(two, Put("/a", b"1"))
    two.close()


def test_one_call_has_one_revision_and_the_next_a_higher_one(name: str) -> None:
    """Paths changed in one call share a revision, and revisions grow from call to call."""
    backend = opened(name)
    first, second = write(backend, Put("/a", b""), Put("/b", b""))
    (third,) = write(backend, Put("/a", b""))
    assert first.revision == second.revision < third.revision
    assert (first.version, third.version) == (0, 1)
    assert third.created == first.created
    assert third.modified >= first.modified
    backend.close()


def test_a_name_lasts_while_anything_lies_at_or_below_it(name: str) -> None:
    """A child is listed for values at it and below it, once, and goes with the last of them."""
    backend = opened(name)
    write(backend, Put("/a/b/c", b""), Put("/a/b", b""), Put("/a/z", b""), Put("/a!", b""))
    assert read(backend, GetChildren("/"), GetChildren("/a"), GetChildren("/a/b")) == [
        ["a", "a!"],
        ["b", "z"],
        ["c"],
    ]
    write(backend, Delete("/a/b/c"))
    assert read(backend, GetChildren("/a"), GetChildren("/a/b")) == [["b", "z"], []]
    write(backend, Delete("/a/b"), Delete("/a/z"), Delete("/a!"))
    assert read(backend, GetChildren("/a"), GetChildren("/")) == [[], []]
    backend.close()


def test_a_refused_write_changes_nothing(name: str) -> None:
    """A put whose version does not hold is an answer, and leaves its path and its parents alone."""
    backend = opened(name)
    refused, made = write(backend, Put("/a/b", b"", 3), Put("/c", b"", ABSENT))
    assert isinstance(refused, BadVersionError)
    assert (refused.expected, refused.actual) == (3, ABSENT)
    assert made.version == 0
    assert read(backend, GetChildren("/")) == [["c"]]
    backend.close()


def test_a_call_that_cannot_start_by_its_deadline_changes_nothing(name: str) -> None:
    """While another call holds the store, a write ends at its deadline and is never applied."""
    backend = opened(name)
    begun, go_on = threading.Event(), threading.Event()

    class Slow:
        """A put whose value comes late."""

        kind, path, expected_version, options, session = "put", "/slow", None, None, None

        @property
        def value(self) -> bytes:
            begun.set()
            assert go_on.wait(PATIENCE)
            return b""

    with ThreadPoolExecutor(1) as pool:
        other: Any = pool.submit(backend.write, [cast("Any", Slow())], soon())
        assert begun.wait(PATIENCE)
        with pytest.raises(OperationTimeoutError, match=name):
            backend.write([Put("/a", b"")], time.monotonic())
        go_on.set()
        other.result(PATIENCE)
    assert read(backend, Exists("/a")) == [False]
    backend.close()


def test_the_value_limit_is_an_option(name: str) -> None:
    """A value may have 16 MiB unless the URL says otherwise."""
    usual, small = opened(name), opened(name, "?max_value_bytes=10")
    assert usual.limits.value_bytes == 16 * 1024 * 1024
    assert small.limits.value_bytes == 10
    usual.close()
    small.close()


@pytest.mark.parametrize(
    "url",
    ["memory://", "memory://a/b", "memory://a,b", "memory://a?x=1", "memory://a?max_value_bytes=0"],
)
def test_a_url_that_names_no_memory_store_is_refused(url: str) -> None:
    """A memory URL has one name, no path, and known options; the message repeats the URL."""
    with pytest.raises(InvalidSettingError) as caught:
        connect(url, ConnectOptions())
    assert url in str(caught.value)


def test_a_delete_that_fails_half_way_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """A close in the midst of a recursive delete leaves its outcome open."""
    monkeypatch.setattr(memory, "_PAGE", 2)
    backend: Any = connect("memory://half-way", ConnectOptions())
    backend.write([Put(f"/{number}", b"") for number in range(6)], soon())
    remove = backend._space.remove

    def closing(path: str, commit: Any) -> None:
        remove(path, commit)
        backend._closed = path == "/1"

    monkeypatch.setattr(backend._space, "remove", closing)
    with pytest.raises(IndeterminateError, match="2 values were removed"):
        backend.delete_recursive("/", 1.0)


def test_a_sequence_passes_over_a_path_of_the_same_call(name: str) -> None:
    """Two changes of one path in one call would have one revision."""
    backend = opened(name)
    first, named, put = write(
        backend,
        Put("/q/n-", b"", sequential=True),
        Put("/q/n-0000000001", b""),
        Put("/q/n-", b"", sequential=True),
    )
    assert (first.path, named.version, put.path) == (
        "/q/n-0000000000",
        0,
        "/q/n-0000000002",
    )
    backend.close()


def test_the_thread_that_reports_changes_ends_with_the_last_watch(name: str) -> None:
    """A process that watches now and then does not gather threads."""
    backend = opened(name)
    assert backend.watches is not None
    before = {*threading.enumerate()}
    handles = [backend.watches.watch("/a", None, print, print, soon()) for _ in range(2)]
    (thread,) = {*threading.enumerate()} - before
    handles[0].close()
    assert thread.is_alive()
    handles[1].close()
    thread.join(PATIENCE)
    assert not thread.is_alive()
    backend.close()


def test_what_threads_meet_does_not_end_them(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that cannot start at first, and a log filter that raises, do no lasting harm."""
    start, lacking = threading.Thread.start, [None]

    def fail_once(thread: threading.Thread) -> None:
        if lacking and thread.name == "batchkeeper-watches":
            lacking.clear()
            raise RuntimeError("can't start new thread")
        start(thread)

    def refuse(_: logging.LogRecord) -> bool:
        raise ValueError("the application's own fault")

    monkeypatch.setattr(threading.Thread, "start", fail_once)
    logger = logging.getLogger("batchkeeper.engine")
    monkeypatch.setattr(logger, "filters", [refuse])
    logger.setLevel(logging.DEBUG)
    try:
        with bk.open_store(f"memory://{name}") as store:
            with pytest.raises(StoreUnavailableError, match="can't start"):
                store.watch("/a")
            with store.watch("/a") as watch:
                store.put("/a", b"").result(PATIENCE)
                event = watch.next_event(PATIENCE)
                assert event is not None
                assert event.path == "/a"
    finally:
        logger.setLevel(logging.NOTSET)
