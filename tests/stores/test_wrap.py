"""Wrappers around a back end: their order, their close, and refused ones."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

import batchkeeper as bk
from batchkeeper.stores import Answer, Backend, Limits, PassingBackend, Request
from batchkeeper.testing.faults import FaultyBackend

from ..waiting import soon

# The attributes of every back end.
PUBLIC = {name for name in dir(PassingBackend) if not name.startswith("_")}


class Noting(PassingBackend):
    """Notes when it is called and closed."""

    def __init__(self, backend: Backend, name: str, notes: list[str]) -> None:
        super().__init__(backend)
        self._name = name
        self._notes = notes

    def write(self, requests: Sequence[Request], deadline: float) -> Sequence[Answer]:
        self._notes.append(f"{self._name} writes")
        return super().write(requests, deadline)

    def close(self) -> None:
        self._notes.append(f"{self._name} closes")
        super().close()


def noting(name: str, notes: list[str]) -> bk.Wrapper:
    return lambda backend: Noting(backend, name, notes)


# Both faces, as a function that opens a store, puts once and closes it.


def put_with_threads(url: str, wrap: Any, value: bytes = b"1") -> None:
    with bk.open_store(url, wrap=wrap) as store:
        store.put("/a", value).result()


def put_with_tasks(url: str, wrap: Any, value: bytes = b"1") -> None:
    async def main() -> None:
        async with bk.open_async_store(url, wrap=wrap) as store:
            await store.put("/a", value)

    asyncio.run(main())


@pytest.fixture(params=[put_with_threads, put_with_tasks])
def put(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Open a store with wrappers, put once, and close it: on both faces."""
    found: Callable[..., None] = request.param
    return found


@pytest.fixture
def url() -> Iterator[str]:
    """A store in memory, and a check that it is closed at the end."""
    name = f"memory://{uuid.uuid4().hex}"
    yield name
    with bk.open_store(name) as store:
        assert store.exists("/a").result() is False, "the back end was not closed"


def test_the_first_wrapper_is_next_to_the_store(put: Callable[..., None], url: str) -> None:
    """Wrappers are applied in order, so calls meet the last one first; each is closed once."""
    notes: list[str] = []
    put(url, [noting("inner", notes), noting("outer", notes)])
    assert notes == ["outer writes", "inner writes", "outer closes", "inner closes"]


def test_one_wrapper_needs_no_list(put: Callable[..., None], url: str) -> None:
    """A single wrapper needs no list; None and an empty list change nothing."""
    notes: list[str] = []
    put(url, noting("only", notes))
    put(url, ())
    assert notes == ["only writes", "only closes"]


def test_a_wrapper_s_limits_hold(put: Callable[..., None], url: str) -> None:
    """The engine follows the attributes of the wrapper."""

    class Small(PassingBackend):
        @property
        def limits(self) -> Limits:
            return replace(super().limits, value_bytes=7)

    put(url, [Small, PassingBackend], bytes(7))
    with pytest.raises(bk.ValueTooLargeError):
        put(url, [Small, PassingBackend], bytes(8))


@pytest.mark.parametrize(
    "bad",
    [
        None,
        7,
        "wrap",
        "",
        b"",
        bytearray(),
        memoryview(b""),
        range(0),
        [None],
        [FaultyBackend, 7],
        {FaultyBackend},
    ],
)
def test_what_is_no_wrapper_is_refused_by_the_call(bad: Any) -> None:
    """Before anything is opened, on both faces, with what was given."""
    for open_one in (bk.open_store, bk.open_async_store):
        with pytest.raises(
            bk.InvalidSettingError, match="wrap must be a function from back end to"
        ):
            open_one("memory://never", wrap=bad)


@pytest.mark.parametrize("made", [None, object()])
def test_a_wrapper_that_gives_no_back_end_is_refused(
    put: Callable[..., None], url: str, made: Any
) -> None:
    """A wrapper that is not a back end is refused, and the back end is closed."""
    notes: list[str] = []
    with pytest.raises(bk.InvalidSettingError, match="which has no 'limits'"):
        put(url, [noting("inner", notes), lambda _: made])
    assert notes == ["inner closes"]


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_a_wrapper_must_have_every_attribute_of_a_back_end(
    put: Callable[..., None], url: str, name: str
) -> None:
    """A wrapper that passes on less than the whole protocol is refused when it is opened."""
    notes: list[str] = []

    def partial(backend: Backend) -> Any:
        return SimpleNamespace(**{kept: getattr(backend, kept) for kept in PUBLIC - {name}})

    with pytest.raises(bk.InvalidSettingError, match=f"which has no '{name}'"):
        put(url, [noting("inner", notes), partial])
    assert notes == ["inner closes"]


def test_a_wrapper_that_fails_closes_what_is_open(put: Callable[..., None], url: str) -> None:
    """A wrapper's error reaches the caller unchanged, and no back end or wrapper stays open."""
    notes: list[str] = []

    def fail(backend: Backend) -> Backend:
        backend.write([bk.Put("/a", b"")], soon())
        raise RuntimeError("not today")

    with pytest.raises(RuntimeError, match="not today"):
        put(url, [noting("inner", notes), fail, noting("outer", notes)])
    assert notes == ["inner writes", "inner closes"]


def test_an_error_while_closing_does_not_replace_the_wrapper_s(
    put: Callable[..., None], url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The caller receives the error of the wrapper; that of closing is logged with its trace."""

    class Unclosable(PassingBackend):
        def close(self) -> None:
            super().close()
            raise ValueError("stuck")

    def fail(_: Backend) -> Backend:
        raise RuntimeError("not today")

    with pytest.raises(RuntimeError, match="not today"):
        put(url, [Unclosable, fail])
    (record,) = (record for record in caplog.records if record.name == "batchkeeper.opening")
    assert "backend='Unclosable'" in record.getMessage()
    assert "ValueError: stuck" in record.getMessage()


def test_a_wrapped_store_can_do_what_its_kind_can(store_url: str) -> None:
    """Wrappers pass scans and history on by themselves, and change nothing that is stated."""
    with bk.open_store(store_url, wrap=[PassingBackend, FaultyBackend]) as store:
        assert store.capabilities == bk.store_kind(store_url).capabilities
        before = store.revision()
        store.put("/a", b"1").result()
        assert [found.path for found in store.scan("/")] == ["/a"]
        if "history" in store.capabilities:
            changes = store.changes("/", before, store.revision())
            assert [found.path for found in changes] == ["/a"]


def test_a_wrapper_that_fails() -> None:
    """A view whose store raises what no store should ends with that, and does not try for ever."""

    class Broken(PassingBackend):
        @property
        def scans(self) -> Any:
            return SimpleNamespace()

    with (
        bk.open_store(f"memory://{uuid.uuid4()}", wrap=Broken) as store,
        pytest.raises(bk.MetadataStoreError, match="no attribute 'scan'"),
    ):
        store.view("/a", timeout=10.0)
