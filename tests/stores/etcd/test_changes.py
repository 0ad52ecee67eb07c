"""The history of changes on a real etcd: each change once, and a certain end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import aclosing, closing
from typing import Any

import pytest

from batchkeeper import MetadataStore, open_async_store, open_store
from batchkeeper.ops import (
    AuthenticationError,
    Change,
    Delete,
    InvalidSettingError,
    OperationTimeoutError,
    Put,
    RevisionCompactedError,
)
from batchkeeper.stores.etcd.watches import changes as module
from batchkeeper.stores.etcd.watches.messages import create_request
from batchkeeper.stores.etcd.wire.members import tells_progress
from batchkeeper.testing.servers import EtcdServer

from ...proxy import Proxy
from ..foreign import etcd_client, put_raw
from ..secured import secured
from .opening import accept_answers, opened


def now(store: MetadataStore) -> int:
    """Return the revision of an unrelated change made now."""
    stat = store.put("/now", b"").result()
    return stat.revision


def brief(changes: Iterator[Change]) -> list[tuple[str, str, bytes | None, int | None]]:
    """Return the changes without their revisions, which must be in order."""
    found = list(changes)
    revisions = [change.revision for change in found]
    assert revisions == sorted(revisions)
    return [(change.path, change.op, change.value, change.version) for change in found]


@pytest.fixture(params=["as it is", "all keys"])
def store(
    request: pytest.FixtureRequest,
    url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[MetadataStore]:
    """An empty store, on its etcd as it is, and as if that reported no progress."""
    if request.param == "all keys":
        monkeypatch.setattr(module, "tells_progress", lambda _: False)
    with open_store(url) as opened:
        yield opened


def test_every_change_is_told_once_in_order(store: MetadataStore) -> None:
    """Puts and deletes of a path and those below it, with what they left behind."""
    before = now(store)
    store.put("/a", b"own").result()
    store.put("/a/b", b"1").result()
    store.put("/a-b", b"a neighbour").result()
    store.put("/ab", b"another").result()
    store.put("/a/b", b"2").result()
    store.delete("/a/b").result()
    after = now(store)
    store.put("/a/c", b"later").result()
    assert brief(store.changes("/a", before, after)) == [
        ("/a", "put", b"own", 0),
        ("/a/b", "put", b"1", 0),
        ("/a/b", "put", b"2", 1),
        ("/a/b", "delete", None, None),
    ]


def test_a_part_is_the_same_whenever_it_is_asked_for(store: MetadataStore) -> None:
    """Consecutive parts together have the changes of the whole, at any time."""
    first = now(store)
    for i in range(20):
        store.put(f"/a/{i % 3}", b"%d" % i).result()
    last = now(store)
    whole = list(store.changes("/", first, last))
    store.apply([Delete(f"/a/{i}") for i in range(3)])
    middle = (first + last) // 2
    parts = [*store.changes("/", first, middle), *store.changes("/", middle, last)]
    assert parts == whole
    assert len(whole) == 21


def test_it_ends_where_nothing_has_changed(store: MetadataStore) -> None:
    """No change under the prefix, though many elsewhere: the iterator ends by itself."""
    before = now(store)
    store.apply([Put(f"/elsewhere/{i}", b"") for i in range(100)])
    assert list(store.changes("/a", before, now(store))) == []
    assert list(store.changes("/a", before, before)) == []


def test_one_transaction_is_not_torn(
    store: MetadataStore, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    """The changes of one revision are in one page, even if the server has split them."""
    # As if every answer that etcd does not divide were too large.
    request, sent = create_request, []

    def divided(*args: Any, fragment: bool, **more: Any) -> bytes:
        sent.append(fragment)
        return request(*args, fragment=True, **more)

    monkeypatch.setattr(module, "create_request", divided)
    before = now(store)
    ops = [Put(f"/a/{i}", b"%d" % i * 20_000) for i in range(300)]
    assert all(outcome.ok for outcome in store.apply(ops))
    with opened(url) as backend:
        assert backend.history is not None
        pages = list(backend.history.changes("/a", before, now(store), 60.0))
    found = [change for page in pages for change in page]
    assert {change.path: change.value for change in found} == {op.path: op.value for op in ops}
    assert len(found) == len(ops)
    revisions = [{change.revision for change in page} for page in pages]
    assert sum(map(len, revisions)) == len(set().union(*revisions))
    assert len(pages) > 1
    assert sent == [False]


def test_an_answer_that_is_too_large_is_divided(
    fresh_url: Callable[[str], str], etcd_server: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only then does etcd divide it, because that costs etcd far more; nothing is lost by it."""
    accept_answers(monkeypatch, 4 << 20)
    url = fresh_url("etcd")
    with open_store(url) as store, opened(url) as backend:
        before = now(store)
        ops = [Put(f"/a/{i}", b"%d" % i * 20_000) for i in range(300)]
        assert all(outcome.ok for outcome in store.apply(ops))
        assert backend.history is not None
        pages = list(backend.history.changes("/a", before, now(store), 60.0))
    found = {change.path: change.value for page in pages for change in page}
    assert found == {op.path: op.value for op in ops}
    assert sum(map(len, pages)) == len(ops)


@pytest.mark.server
def test_what_the_client_keeps_for_itself_is_left_out(fresh_url: Callable[[str], str]) -> None:
    """Neither internal keys nor keys that are not valid paths are reported."""
    url = fresh_url("etcd")
    with open_store(url) as store:
        before = now(store)
        put_raw(url, dict.fromkeys((b"/.batchkeeper/x", b"//", b"/a//b", b"/a/"), b""))
        store.put("/a", b"").result()
        assert brief(store.changes("/", before, now(store))) == [
            ("/a", "put", b"", 0),
            ("/now", "put", b"", 1),
        ]


def test_compacted_history_is_refused(own_etcd: Callable[..., EtcdServer]) -> None:
    """Compacted changes are refused, with the revision after which changes are kept."""
    server = own_etcd()
    with open_store(server.url) as store:
        revisions = [store.put("/a", b"").result().revision for _ in range(9)]
        with etcd_client(server.url) as (client, _):
            client.compact(revisions[4])
        for after in (0, revisions[0], revisions[3]):
            said = f"compacted at revision {revisions[4]} and"
            with pytest.raises(RevisionCompactedError, match=said) as caught:
                list(store.changes("/a", after, revisions[-1]))
            assert caught.value.oldest == revisions[4]
        assert len(list(store.changes("/a", revisions[4], revisions[-1]))) == 4


def test_a_revision_to_come_is_refused(store: MetadataStore) -> None:
    """A future revision is refused, because waiting for it might never end."""
    last = store.put("/a", b"").result().revision
    with pytest.raises(InvalidSettingError, match="does not exist yet"):
        list(store.changes("/a", last, last + 1_000_000))
    with pytest.raises(InvalidSettingError, match="does not exist yet"):
        list(store.changes("/a", last + 1_000_000, last + 1_000_001))


@pytest.mark.parametrize(("after", "until"), [(-1, 2), (2, 1), (True, 2), ("1", 2)])
def test_what_is_no_range_of_revisions_is_refused(
    after: Any, until: Any, store: MetadataStore
) -> None:
    """The call itself refuses it, before anything is asked."""
    with pytest.raises(InvalidSettingError):
        store.changes("/", after, until)


def test_it_goes_on_where_the_line_was_cut(
    own_etcd: Callable[..., EtcdServer], proxy: Callable[[str], Proxy]
) -> None:
    """A broken connection loses no change and repeats none."""
    server = own_etcd()
    line = proxy(server.address)
    with open_store(server.url) as direct:
        before = now(direct)
        # More than etcd hands over at a time: a thousand revisions.
        for i in range(1500):
            direct.put(f"/a/{i % 7}", b"%d" % i)
            direct.flush()
        last = now(direct)
        expected = list(direct.changes("/a", before, last))
    assert len(expected) == 1500
    with open_store(f"etcd://{line.address}") as store:
        changes = store.changes("/a", before, last)
        found = [next(changes)]
        line.cut()
        found += changes
        assert store.metrics().reconnects == 1
    assert found == expected


def test_a_server_that_falls_silent_is_given_up(own_etcd: Callable[..., EtcdServer]) -> None:
    """Silence for the length of the timeout ends the iterator with an error."""
    server = own_etcd()
    with open_store(server.url) as store:
        before = now(store)
        # etcd sends a thousand revisions at a time. The next ones are more than a connection holds,
        # so the server still has them, however late it stops.
        for number in range(1100):
            store.put("/a", bytes(100_000 if number >= 1000 else 1))
            store.flush()
        changes = store.changes("/a", before, now(store), timeout=1.0)
        with closing(changes):
            next(changes)
            server.pause()
            try:
                with pytest.raises(OperationTimeoutError):
                    list(changes)
            finally:
                server.resume()


def test_closing_it_early_leaves_the_store_usable(store: MetadataStore) -> None:
    """An iterator that is not read to its end is closed like any other."""
    before = now(store)
    store.apply([Put(f"/a/{i}", b"") for i in range(10)])
    with closing(store.changes("/a", before, now(store))) as changes:
        next(changes)
    assert store.exists("/a/1").result()


@pytest.mark.server
def test_changes_with_asyncio(fresh_url: Callable[[str], str]) -> None:
    """The asynchronous iterator gives the same, and may be left early."""
    url = fresh_url("etcd")

    async def main(before: int, last: int) -> tuple[list[Change], Change]:
        async with asyncio.timeout(60), open_async_store(url) as store:
            found = [change async for change in store.changes("/a", before, last)]
            async with aclosing(store.changes("/a", before, last)) as changes:
                return found, await anext(changes)

    with open_store(url) as store:
        before = now(store)
        store.apply([Put(f"/a/{i}", b"") for i in range(10)])
        last = now(store)
        expected = list(store.changes("/a", before, last))
    assert asyncio.run(main(before, last)) == (expected, expected[0])
    assert len(expected) == 10


@pytest.mark.parametrize(
    ("version", "true"),
    [
        ("3.4.30", False),
        ("3.4.31", True),
        ("3.5.1", False),
        ("3.5.12", False),
        ("3.5.13", True),
        ("3.5.30-rc.1", True),
        ("3.6.0", True),
        ("4.0.0", True),
        ("3.3.27", False),
        ("not one", False),
    ],
)
def test_progress_is_trusted_where_it_is_true(version: str, true: bool) -> None:
    """Etcd's answers are in order with the changes from 3.4.31 and 3.5.13 on."""
    assert tells_progress(version) is true


def test_a_watch_needs_permission(
    own_etcd: Callable[..., EtcdServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On an etcd where all keys must be watched, a user who may not read them gets an error."""
    monkeypatch.setattr(module, "tells_progress", lambda _: False)
    server = own_etcd()
    with open_store(f"{server.url}/ok") as store:
        before, last = now(store), now(store)
    secured(server)
    asked = {"username": "limited", "password": "limited's"}
    with (
        open_store(f"{server.url}/ok", **asked) as store,
        pytest.raises(AuthenticationError, match=r"refused .* before 3\.5\.13, and behind a"),
    ):
        list(store.changes("/", before, last))
