"""Sequential puts whose paths another client may create, and scans, on a real HBase."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import batchkeeper as bk
from batchkeeper.stores.hbase.requests import Ended, Requests
from batchkeeper.stores.hbase.wire.connection import LostError

from ...hbase import Tables
from ...waiting import PATIENCE, result


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


def test_what_is_left_of_deleted_paths_is_passed_over(hbase_tables: Tables) -> None:
    """A scan that finds nothing else for long goes on where the server says, and ends."""
    with bk.open_store(hbase_tables.next(), connect_timeout=PATIENCE) as store:
        paths = [f"/gone/{number:05}" for number in range(3_000)]
        assert all(outcome.ok for outcome in store.apply([bk.Put(path, b"") for path in paths]))
        assert all(outcome.ok for outcome in store.apply([bk.Delete(path) for path in paths]))
        assert list(store.scan_pages("/gone")) == []
        assert result(store.get_children("/gone")) == []
