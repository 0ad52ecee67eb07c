"""Views: that reads at the same time lose nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable

import batchkeeper as bk
from batchkeeper.hubs.topics._sync.views import View
from batchkeeper.testing import FaultInjector

from ...waiting import PATIENCE, result, until


def test_reads_at_the_same_time_lose_nothing(fresh_url: Callable[[str], str]) -> None:
    """A change that arrives during a refresh is in the view, and the refreshed path, too."""
    url, faults = fresh_url("memory"), FaultInjector()
    with bk.open_store(url) as other, bk.open_store(url, wrap=faults) as store:
        view: View[bytes, dict[str, bytes]] = View(
            store, "/x", lambda _path, found: found.value, dict
        )
        result(other.put("/x/a", b"1"))
        result(other.put("/x", b"not below it"))
        assert view.get() == {"/x/a": b"1"}
        held = faults.delay("get", "/x/a")
        refreshing = threading.Thread(target=view.refresh, args=("/x/a",))
        refreshing.start()
        faults.wait_for_hits(1, PATIENCE)
        events = store.metrics().watch_events
        result(other.put("/x/b", b"2"))
        until(lambda: store.metrics().watch_events > events)
        held.release()
        refreshing.join(PATIENCE)
        until(lambda: view.get() == {"/x/a": b"1", "/x/b": b"2"})
        result(other.delete("/x/a"))
        until(lambda: view.get() == {"/x/b": b"2"})
        # One that ends during a refresh begins anew with its next use, and is not left as it was.
        held = faults.delay("get", "/x/b")
        faults.refuse(bk.AuthenticationError("no permission for the range"), "scan")
        refreshing = threading.Thread(target=view.refresh, args=("/x/b",))
        refreshing.start()
        held.wait(timeout=PATIENCE)
        faults.end_watches(bk.AuthenticationError("no permission for the range"), "/x")
        until(lambda: view.latest() == {})
        held.release()
        refreshing.join(PATIENCE)
        result(other.put("/x/b", b"3"))
        until(lambda: _shown(view) == {"/x/b": b"3"})
        view.close()


def _shown(view: View[bytes, dict[str, bytes]]) -> dict[str, bytes] | None:
    try:
        return view.get()
    except bk.AuthenticationError:  # The next use begins anew.
        return None
