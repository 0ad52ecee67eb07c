"""One request at the back end: refusals, failures, and bugs of back ends."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import wait
from dataclasses import replace
from typing import Any

import pytest

from batchkeeper.batching import MetadataStore
from batchkeeper.ops import (
    AuthenticationError,
    IndeterminateError,
    MetadataStoreError,
    Put,
    StoreUnavailableError,
    ValueTooLargeError,
)
from batchkeeper.stores.backend import RequestRefusedError
from batchkeeper.testing.faults import Call, Fault, FaultyBackend

from .faulty import MakeBackend, OpenOn
from .waiting import PATIENCE, AnyFuture


def refuse(*culprits: str) -> Callable[[Call], Fault | None]:
    """Plan to refuse every request that has one of the paths in it."""

    def plan(call: Call) -> Fault | None:
        for path in call.paths:
            if path in culprits:
                return Fault(error=RequestRefusedError(AuthenticationError(f"not {path}")))
        return None

    return plan


def in_one_batch(
    store: MetadataStore, paths: list[str], method: Callable[[str], AnyFuture]
) -> list[AnyFuture]:
    futures = [method(path) for path in paths]
    store.flush()
    return futures


@pytest.fixture
def opened(open_on: OpenOn) -> Callable[[FaultyBackend], MetadataStore]:
    """Open a store that gathers until it is flushed."""
    return lambda backend: open_on(backend, linger="fixed", max_delay=60)


Opened = Callable[[FaultyBackend], MetadataStore]


@pytest.mark.parametrize("culprits", [["/5"], ["/0", "/9"], ["/3", "/4", "/8"]])
def test_a_refused_batch_is_halved_until_the_culprits_stand_alone(
    make_backend: MakeBackend, opened: Opened, culprits: list[str]
) -> None:
    """Only the operations to blame get the refusal's error; the others are executed once."""
    backend = make_backend(refuse(*culprits))
    store = opened(backend)
    paths = [f"/{number}" for number in range(10)]
    futures = in_one_batch(store, paths, lambda path: store.put(path, b""))
    for path, future in zip(paths, futures, strict=True):
        if path in culprits:
            error = future.exception(0)
            assert type(error) is AuthenticationError
            assert str(error) == f"not {path}"
        else:
            assert future.result(0).version == 0
    assert len(backend.calls[0].paths) == 10
    assert [path for c in backend.calls if len(c.paths) == 1 for path in c.paths].count(
        culprits[0]
    ) == 1
    store.flush()
    assert not store.put("/after", b"").cancelled()


def test_each_cut_counts_as_a_split(make_backend: MakeBackend, opened: Opened) -> None:
    """The metrics say how often a refused batch went in parts."""
    store = opened(make_backend(refuse("/2")))
    in_one_batch(store, [f"/{number}" for number in range(4)], lambda path: store.put(path, b""))
    assert store.metrics().splits == 2


@pytest.mark.slow
def test_what_has_ended_before_its_part_is_sent_is_never_sent(
    make_backend: MakeBackend, opened: Opened
) -> None:
    """A deadline that passes while the first half is under way spares the store the second."""

    def plan(call: Call) -> Fault | None:
        if call.number == 0:
            return Fault(error=RequestRefusedError(AuthenticationError("no")))
        return Fault(hold="before") if call.number == 1 else None

    backend = make_backend(plan)
    store = opened(backend)
    kept = [store.put(f"/{number}", b"") for number in range(2)]
    late = store.put("/late", b"", timeout=1.0)  # sent by then, on a slow machine too
    last = store.put("/last", b"")
    flushing = threading.Thread(target=store.flush)
    flushing.start()
    call = backend.wait_for_calls(2)[1]
    assert type(late.exception(PATIENCE)) is IndeterminateError
    call.release()
    flushing.join()
    assert [future.result(PATIENCE).version for future in (*kept, last)] == [0, 0, 0]
    assert [call.paths for call in backend.calls[1:]] == [["/0", "/1"], ["/last"]]
    again = store.put("/late", b"")
    store.flush()
    assert again.result(PATIENCE).version == 0


@pytest.mark.slow
@pytest.mark.parametrize("retriable", [True, False])
def test_after_the_first_deadline_only_what_was_not_sent_is_sent_again(
    make_backend: MakeBackend, opened: Opened, retriable: bool
) -> None:
    """An error that leaves the outcome open ends the others of its batch, too."""
    kind = StoreUnavailableError if retriable else IndeterminateError

    def plan(call: Call) -> Fault | None:
        if call.number:
            return None
        time.sleep(max(0.0, deadline - time.monotonic()))
        return Fault(error=kind("broken"))

    backend = make_backend(plan)
    store = opened(backend)
    deadline = time.monotonic() + 0.3
    late = store.put("/late", b"", timeout=0.2)
    other = store.put("/other", b"")
    store.flush()
    assert isinstance(late.exception(PATIENCE), StoreUnavailableError | IndeterminateError)
    assert type(other.exception(PATIENCE)) is (type(None) if retriable else IndeterminateError)
    assert [call.paths for call in backend.calls[1:]] == ([["/other"]] if retriable else [])


@pytest.mark.parametrize("applied", [True, False])
def test_a_close_keeps_that_a_write_is_known_to_have_happened(
    make_backend: MakeBackend, open_on: OpenOn, monkeypatch: pytest.MonkeyPatch, applied: bool
) -> None:
    """Otherwise, the write that the close has cut off names the close."""
    backend = make_backend()
    sent, closed, close = threading.Event(), threading.Event(), backend.close

    def write(requests: Any, deadline: float) -> Any:
        sent.set()
        closed.wait(PATIENCE)
        raise IndeterminateError("the answer was lost", applied=applied)

    monkeypatch.setattr(backend, "write", write)
    monkeypatch.setattr(backend, "close", lambda: (closed.set(), close()))
    store = open_on(backend)
    future = store.put("/a", b"")
    assert sent.wait(PATIENCE)
    store.close(0)
    found = future.exception(PATIENCE)
    assert isinstance(found, IndeterminateError)
    assert found.applied is applied
    assert ("the store was closed" in str(found)) is not applied


def test_refused_reads_are_halved_too(make_backend: MakeBackend, opened: Opened) -> None:
    """A refused request of reads is taken apart in the same way."""
    store = opened(make_backend(refuse("/2")))
    futures = in_one_batch(store, [f"/{number}" for number in range(5)], store.get)
    ends = [type(future.exception(0)) for future in futures]
    assert ends == [type(None), type(None), AuthenticationError, type(None), type(None)]


def test_an_operation_refused_alone_gets_the_error_of_the_refusal(
    make_backend: MakeBackend, opened: Opened
) -> None:
    """A refused request of one operation is not sent again."""
    backend = make_backend(refuse("/a"))
    store = opened(backend)
    (future,) = in_one_batch(store, ["/a"], store.get)
    assert type(future.exception(0)) is AuthenticationError
    assert len(backend.calls) == 1


def test_halves_do_not_share_their_fate(make_backend: MakeBackend, opened: Opened) -> None:
    """If one half of a refused batch fails for another reason, the other half is executed."""

    def plan(call: Call) -> Fault | None:
        match call.number:
            case 0:
                return Fault(error=RequestRefusedError(AuthenticationError("no")))
            case 1:
                return Fault(error=StoreUnavailableError("gone"))
            case _:
                return None

    store = opened(make_backend(plan))
    paths = [f"/{number}" for number in range(4)]
    futures = in_one_batch(store, paths, lambda path: store.put(path, b""))
    ends = [type(future.exception(0)) for future in futures]
    assert ends == [StoreUnavailableError, StoreUnavailableError, type(None), type(None)]


def test_each_operation_has_an_error_of_its_own(make_backend: MakeBackend, opened: Opened) -> None:
    """An error of a whole request ends each operation with a copy, with its path and the cause."""
    cause = ConnectionResetError("cut")
    error = IndeterminateError("the connection broke")
    error.__cause__ = cause
    store = opened(make_backend(lambda call: Fault(error=error)))
    paths = [f"/{number}" for number in range(3)]
    futures = in_one_batch(store, paths, lambda path: store.put(path, b""))
    errors = [future.exception(0) for future in futures]
    assert len({id(found) for found in (error, *errors)}) == 4
    for path, found in zip(paths, errors, strict=True):
        assert isinstance(found, IndeterminateError)
        assert (str(found), found.path, found.outcome) == ("the connection broke", path, "unknown")
        assert found.__cause__ is cause
    assert error.path is None


def test_tracebacks_do_not_grow_into_each_other(make_backend: MakeBackend, opened: Opened) -> None:
    """Raising one operation's error leaves the others' tracebacks alone."""
    store = opened(make_backend(lambda call: Fault(error=StoreUnavailableError("gone"))))
    one, two = in_one_batch(store, ["/1", "/2"], store.get)
    with pytest.raises(StoreUnavailableError):
        one.result(0)
    error = two.exception(0)
    assert error is not None
    assert error.__traceback__ is None


@pytest.mark.parametrize("bug", [ValueError("a bug"), SystemExit("a bug")])
def test_a_bug_in_a_back_end_leaves_the_engine_alive(
    make_backend: MakeBackend,
    opened: Opened,
    bug: BaseException,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A foreign exception of a back end ends the operations, is logged, and does no more harm."""

    def plan(call: Call) -> None:
        if call.number < 10:
            raise bug

    backend = make_backend(plan)
    store = opened(backend)
    # More often than there are senders, to see that none of them is lost.
    for number in range(5):
        with caplog.at_level(logging.ERROR, "batchkeeper.engine"):
            writes: dict[str, AnyFuture] = {
                f"/{number}": store.put(f"/{number}", b""),
                "/b": store.delete("/b"),
            }
            read: AnyFuture = store.get(f"/{number}/read")
            store.flush()
        for path, future in writes.items():
            error = future.exception(0)
            assert type(error) is IndeterminateError
            assert error.outcome == "unknown"
            assert error.__cause__ is bug
            assert error.path == path
            assert "a bug" in str(error)
        error = read.exception(0)
        assert type(error) is MetadataStoreError
        assert error.outcome == "not_applied"
    assert len(backend.calls) == 10
    assert "the back end failed" in caplog.text
    futures = in_one_batch(store, ["/0", "/b"], lambda path: store.put(path, b""))
    assert [future.result(0).version for future in futures] == [0, 0]
    assert store.metrics().writes.in_flight == 0


@pytest.mark.parametrize("answers", [[], [None], [None, None, None], None])
def test_a_wrong_number_of_answers_is_a_bug(
    make_backend: MakeBackend, opened: Opened, answers: Any
) -> None:
    """Answers that do not fit the request are discarded."""
    backend = make_backend()
    backend.write = lambda requests, deadline: answers  # type: ignore[method-assign]
    store = opened(backend)
    futures = in_one_batch(store, ["/1", "/2"], lambda path: store.put(path, b""))
    assert [type(future.exception(0)) for future in futures] == [IndeterminateError] * 2
    assert wait([store.get("/1")], 0) is not None


def test_limits_that_shrink_cap_what_follows(make_backend: MakeBackend, open_on: OpenOn) -> None:
    """When the back end finds that its server takes less, batches and checks follow at once.

    What was queued by then is executed all the same, an operation above the new limit by itself.
    """

    def learn(call: Call) -> None:
        if call.number == 0:
            backend.allowed = replace(  # type: ignore[attr-defined]
                backend.limits, write_ops=3, read_ops=2, request_bytes=200, value_bytes=50
            )

    backend = make_backend(learn)
    store = open_on(backend, linger="fixed", max_delay=60, max_ops=10, max_in_flight=1)
    futures = [store.put(f"/{number}", b"") for number in range(10)]
    futures += [store.put("/large", bytes(300))]
    futures += [store.put(f"/{number}", b"") for number in range(10, 17)]
    store.flush()
    reads = [store.get(f"/{number}") for number in range(10, 16)]
    store.flush()
    assert all(future.result(PATIENCE).version == 0 for future in futures)
    assert all(future.result(PATIENCE) is not None for future in reads)
    assert [len(call.paths) for call in backend.calls] == [10, 1, 3, 3, 1, 2, 2, 2]
    for refused in (Put("/a", bytes(51)), Put("/" + "p" * 200, b"")):
        with pytest.raises(ValueTooLargeError):
            store.put(refused.path, refused.value)
        with pytest.raises(ValueTooLargeError):
            store.submit(refused)
        (outcome,) = store.apply([refused])
        assert isinstance(outcome.error, ValueTooLargeError)


def test_a_refused_batch_is_cut_to_what_the_back_end_has_learned(
    make_backend: MakeBackend, opened: Opened
) -> None:
    """A batch of sixteen for a server that takes three goes in threes, not in halves."""

    def learn(call: Call) -> Fault | None:
        if len(call.paths) <= 3:
            return None
        backend.allowed = replace(backend.limits, write_ops=3)  # type: ignore[attr-defined]
        return Fault(error=RequestRefusedError(ValueTooLargeError("too many")))

    backend = make_backend(learn)
    store = opened(backend)
    paths = [f"/{number}" for number in range(16)]
    futures = in_one_batch(store, paths, lambda path: store.put(path, b""))
    assert [future.result(0).version for future in futures] == [0] * 16
    assert [len(call.paths) for call in backend.calls] == [16, 3, 3, 3, 3, 3, 1]
    assert store.metrics().splits == 1
