"""Expected revisions: a put or a delete goes only if its path has not changed in any way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import batchkeeper as bk

from ..contents import contents
from ..waiting import PATIENCE, error, result

pytestmark = pytest.mark.needs("expected_revisions")

Opens = Callable[[], bk.MetadataStore]


def refused(future: Any, path: str, expected: int, actual: int | None) -> bk.BadVersionError:
    """Return the error of a write whose expected revision must not hold."""
    found = error(future)
    assert isinstance(found, bk.BadVersionError)
    assert (found.path, found.outcome, found.retriable) == (path, "not_applied", False)
    assert (found.expected_revision, found.actual_revision) == (expected, actual)
    assert str(expected) in str(found)
    assert actual is None or str(actual) in str(found)
    return found


def test_a_put_at_its_revision(store: bk.MetadataStore) -> None:
    """A put that expects the path's revision goes, and gives a greater one."""
    stat = result(store.put("/a", b"0"))
    for value in (b"1", b"2"):
        later = result(store.put("/a", value, expected_revision=stat.revision))
        assert later.version == stat.version + 1
        assert later.revision > stat.revision
        stat = later
    assert result(store.get("/a")) == bk.GetResult(b"2", stat)


def test_a_put_at_another_revision(store: bk.MetadataStore) -> None:
    """A put that expects an earlier or a later revision is refused, and changes nothing."""
    old = result(store.put("/a", b"0")).revision
    new = result(store.put("/a", b"1")).revision
    for expected in (old, new + 1, 2**63 - 1):
        refused(store.put("/a", b"x", expected_revision=expected), "/a", expected, new)
    assert contents(store) == {"/a": b"1"}


def test_a_re_created_path_has_another_revision(store: bk.MetadataStore) -> None:
    """After a delete and a new put, the version is the same and the revision is not."""
    old = result(store.put("/a", b"old"))
    result(store.delete("/a"))
    new = result(store.put("/a", b"new"))
    assert (old.version, new.version) == (0, 0)
    refused(store.put("/a", b"x", expected_revision=old.revision), "/a", old.revision, new.revision)
    refused(store.delete("/a", expected_revision=old.revision), "/a", old.revision, new.revision)
    found = store.put("/a", b"x", 0, expected_revision=old.revision)
    refused(found, "/a", old.revision, new.revision)
    assert contents(store) == {"/a": b"new"}


def test_a_change_elsewhere_does_not_matter(store: bk.MetadataStore) -> None:
    """The revision is the path's own: other paths, children included, may change."""
    stat = result(store.put("/a", b""))
    for path in ("/b", "/a/b", "/a-b"):
        result(store.put(path, b""))
    assert result(store.put("/a", b"", expected_revision=stat.revision)).version == 1


def test_a_missing_path_has_no_revision(store: bk.MetadataStore) -> None:
    """A put of a missing path is BadVersionError, a delete NotFoundError; neither makes any."""
    revision = result(store.put("/b", b"")).revision
    refused(store.put("/a/b", b"", expected_revision=revision), "/a/b", revision, None)
    missing = error(store.delete("/a/b", expected_revision=revision))
    assert type(missing) is bk.NotFoundError
    assert missing.path == "/a/b"
    assert result(store.get_children("/")) == ["b"]


def test_a_delete_at_its_revision(store: bk.MetadataStore) -> None:
    """A delete goes if its path has the expected revision, and is refused otherwise."""
    old = result(store.put("/a", b"")).revision
    new = result(store.put("/a", b"")).revision
    refused(store.delete("/a", expected_revision=old), "/a", old, new)
    result(store.delete("/a", expected_revision=new))
    assert contents(store) == {}


def test_a_delete_spares_what_has_values_below(store: bk.MetadataStore) -> None:
    """A delete at the right revision is still NotEmptyError above values."""
    revision = result(store.put("/a", b"")).revision
    result(store.put("/a/b", b""))
    assert type(error(store.delete("/a", expected_revision=revision))) is bk.NotEmptyError
    refused(
        store.delete("/a", expected_revision=revision + 1_000), "/a", revision + 1_000, revision
    )


def test_version_and_revision_must_both_hold(store: bk.MetadataStore) -> None:
    """If both are expected, one that does not hold is enough to refuse."""
    result(store.put("/a", b"0"))
    stat = result(store.put("/a", b"1"))
    right, wrong = stat.revision, stat.revision + 7
    by_version = error(store.put("/a", b"x", 0, expected_revision=right))
    assert isinstance(by_version, bk.BadVersionError)
    assert (by_version.expected, by_version.actual) in {(0, 1), (0, None)}
    refused(store.put("/a", b"x", 1, expected_revision=wrong), "/a", wrong, right)
    assert isinstance(error(store.delete("/a", 0, expected_revision=right)), bk.BadVersionError)
    refused(store.delete("/a", 1, expected_revision=wrong), "/a", wrong, right)
    assert result(store.put("/a", b"2", 1, expected_revision=right)).version == 2
    assert contents(store) == {"/a": b"2"}


def test_gets_and_scans_tell_the_revision_to_expect(store: bk.MetadataStore) -> None:
    """The revision of a get, of a scan or of another client's get is the one that holds."""
    result(store.put("/a", b""))
    for _ in range(3):
        found = result(store.get("/a")).stat.revision
        (scanned,) = store.scan("/a")
        assert scanned.stat.revision == found
        result(store.put("/a", b"", expected_revision=found))


def test_one_of_many_wins(store: bk.MetadataStore, another: Opens) -> None:
    """Of concurrent puts that expect one revision, exactly one goes."""
    clients = [store, another()]
    revision = result(store.put("/a", b"")).revision
    for turn in range(5):
        futures = [
            clients[n % 2].put("/a", b"%d" % n, expected_revision=revision) for n in range(20)
        ]
        won = [future for future in futures if future.exception(PATIENCE) is None]
        assert len(won) == 1
        stat = result(won[0])
        assert stat.version == turn + 1
        for future in futures:
            if future is not won[0]:
                refused(future, "/a", revision, stat.revision)
        revision = stat.revision


def test_a_counter(store: bk.MetadataStore, another: Opens) -> None:
    """Threads that read, add one and put at the revision they read lose no addition."""
    clients = [store, another()]
    result(store.put("/counter", b"0"))

    def add(thread: int) -> None:
        client = clients[thread % 2]
        for _ in range(15):
            while True:
                value, stat = result(client.get("/counter"))
                new = b"%d" % (int(value) + 1)
                try:
                    result(client.put("/counter", new, expected_revision=stat.revision))
                    break
                except bk.BadVersionError:
                    continue

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(add, range(4)))
    assert contents(store) == {"/counter": b"60"}


def test_neighbours_in_a_batch(store: bk.MetadataStore) -> None:
    """Refused ones among many in one bulk call cost the others nothing."""
    outcomes = store.apply([bk.Put(f"/{n}", b"") for n in range(90)])
    revisions = [outcome.result.revision for outcome in outcomes]
    ops: list[bk.Operation] = []
    for n, revision in enumerate(revisions):
        if n % 3 == 0:
            ops.append(bk.Put(f"/{n}", b"new", expected_revision=revision))
        elif n % 3 == 1:
            ops.append(bk.Delete(f"/{n}", expected_revision=revision))
        else:
            ops.append(bk.Put(f"/{n}", b"no", expected_revision=revision + 1_000))
    for n, outcome in enumerate(store.apply(ops)):
        if n % 3 == 2:
            assert isinstance(outcome.error, bk.BadVersionError)
        else:
            assert outcome.ok
    kept = {f"/{n}": b"" if n % 3 else b"new" for n in range(90) if n % 3 != 1}
    assert contents(store) == kept


@pytest.mark.call
@pytest.mark.parametrize("bad", [0, -1, True, "1", 1.0, 2**63])
def test_revisions_begin_at_one(store: bk.MetadataStore, bad: Any) -> None:
    """Anything but an int from 1 to 2**63 - 1 is refused by the call."""
    for call in (
        lambda: store.put("/a", b"", expected_revision=bad),
        lambda: store.delete("/a", expected_revision=bad),
        lambda: bk.Put("/a", b"", expected_revision=bad),
        lambda: bk.Delete("/a", expected_revision=bad),
        lambda: bk.Check("/a", expected_revision=bad),
    ):
        with pytest.raises(bk.InvalidSettingError, match="expected_revision"):
            call()
    assert contents(store) == {}


@pytest.mark.needs("ephemerals")
def test_an_ephemeral_value_has_one_too(store: bk.MetadataStore) -> None:
    """A put at the revision of an ephemeral value goes, and leaves it ephemeral."""
    revision = result(store.put("/a", b"", ephemeral=True)).revision
    stat = result(store.put("/a", b"1", expected_revision=revision))
    assert (stat.version, stat.ephemeral, stat.owned) == (1, True, True)
    assert type(error(store.put("/a", b"2", expected_revision=revision))) is bk.BadVersionError


def test_tasks(store_url: str, batching: bk.BatchingConfig) -> None:
    """The asynchronous face expects revisions, and raises from the await if they do not hold."""

    async def main() -> None:
        async with asyncio.timeout(PATIENCE):
            async with bk.open_async_store(store_url, batching=batching) as store:
                stat = await store.put("/a", b"")
                later = await store.put("/a", b"", expected_revision=stat.revision)
                with pytest.raises(bk.BadVersionError) as caught:
                    await store.delete("/a", expected_revision=stat.revision)
                assert caught.value.actual_revision == later.revision
                await store.delete("/a", expected_revision=later.revision)
                assert await store.get("/a") is None

    asyncio.run(main())
