"""Sequential puts whose paths another client may create, and scans, on a real HBase."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any

import pytest

import batchkeeper as bk
from batchkeeper.stores.hbase.requests import Ended, Requests
from batchkeeper.stores.hbase.wire.connection import LostError
from batchkeeper.stores.hbase.writes import Writer

from ...hbase import Tables
from ...waiting import PATIENCE, error, result


def test_a_path_that_another_client_has_created_meanwhile(
    hbase_tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A put that has its number but was not sent is the same put when it is sent again."""
    url = hbase_tables.next()
    act = Requests.act
    lost: list[bytes] = []
    with (
        bk.open_store(url, connect_timeout=PATIENCE) as store,
        bk.open_store(url, connect_timeout=PATIENCE) as other,
        ThreadPoolExecutor() as beside,
    ):

        def lose_first(
            requests: Requests, keys: Sequence[bytes], build: Callable[[int, Any], Any], by: float
        ) -> list[Ended]:
            if not lost and keys[0].startswith(b"/n/x-"):
                lost.extend(keys)
                # To take the next number, it first creates what has the numbers before.
                put = beside.submit(lambda: result(other.put("/n/y-", b"", sequential=True)))
                assert put.result(PATIENCE).path == "/n/y-0000000001"
                return [LostError("cannot be reached", sent=False)] * len(keys)
            return act(requests, keys, build, by)

        monkeypatch.setattr(Requests, "act", lose_first)
        assert result(store.put("/n/x-", b"", sequential=True)).path == "/n/x-0000000000"
        assert lost == [b"/n/x-0000000000"]
        assert result(store.get_children("/n")) == ["x-0000000000", "y-0000000001"]


def test_numbers_that_another_call_takes(
    hbase_tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A put waits for the call before it until its own deadline, and was then not applied."""
    take, going_on, stuck = Writer._take_numbers, Event(), Event()

    def wait(writer: Writer, above: str, puts: list[Any], deadline: float) -> list[Any]:
        if not stuck.is_set():
            stuck.set()
            going_on.wait(PATIENCE)
        return take(writer, above, puts, deadline)

    monkeypatch.setattr(Writer, "_take_numbers", wait)
    with bk.open_store(hbase_tables.next(), operation_timeout=0.5) as store:
        first = store.put("/n/x-", b"", sequential=True)
        assert stuck.wait(PATIENCE)
        late = error(store.put("/n/y-", b"", sequential=True))
        assert (type(late), late.path) == (bk.OperationTimeoutError, "/n/y-")
        assert error(first).outcome == "unknown"
        going_on.set()
        assert not result(store.exists("/n/y-0000000000"))


def test_what_is_left_of_deleted_paths_is_passed_over(hbase_tables: Tables) -> None:
    """A scan that finds nothing else for long goes on where the server says, and ends."""
    with bk.open_store(hbase_tables.next(), connect_timeout=PATIENCE) as store:
        paths = [f"/gone/{number:05}" for number in range(3_000)]
        assert all(outcome.ok for outcome in store.apply([bk.Put(path, b"") for path in paths]))
        assert all(outcome.ok for outcome in store.apply([bk.Delete(path) for path in paths]))
        assert list(store.scan_pages("/gone")) == []
        assert result(store.get_children("/gone")) == []
