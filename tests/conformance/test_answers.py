"""The same answers on every store: versions, deletes, parents, children, values, times."""

from __future__ import annotations

import time

import pytest

import batchkeeper as bk

from ..contents import put_all
from ..waiting import PATIENCE, error, result

# --- versions


def test_versions_count_the_puts_of_a_path(store: bk.MetadataStore) -> None:
    """The version is 0 after the creation and grows by one with every put."""
    for version in range(4):
        stat = result(store.put("/a", b"%d" % version))
        assert (stat.path, stat.version, stat.ephemeral) == ("/a", version, False)
        found = result(store.get("/a"))
        assert found is not None
        assert found.value == b"%d" % version
        assert (found.stat.version, found.stat.revision) == (version, stat.revision)


def test_a_put_may_expect_absence(store: bk.MetadataStore) -> None:
    """ABSENT holds only for a path without a value."""
    assert result(store.put("/a", b"first", expected_version=bk.ABSENT)).version == 0
    refused = error(store.put("/a", b"second", expected_version=bk.ABSENT))
    assert isinstance(refused, bk.BadVersionError)
    assert (refused.path, refused.expected) == ("/a", bk.ABSENT)
    assert refused.actual in {0, None}
    assert refused.outcome == "not_applied"
    assert result(store.get("/a")).value == b"first"


def test_a_put_may_expect_a_version(store: bk.MetadataStore) -> None:
    """An expected version has to be the path's own, not an earlier or a later one."""
    result(store.put("/a", b"0"))
    assert result(store.put("/a", b"1", expected_version=0)).version == 1
    for expected in (0, 2, 2**31 - 1):
        refused = error(store.put("/a", b"no", expected_version=expected))
        assert isinstance(refused, bk.BadVersionError)
        assert (refused.path, refused.expected) == ("/a", expected)
        assert refused.actual in {1, None}
    assert result(store.get("/a")).value == b"1"
    assert result(store.put("/a", b"2", expected_version=1)).version == 2


def test_a_missing_path_has_no_version(store: bk.MetadataStore) -> None:
    """A put that expects a version of a path that is missing is refused, and makes nothing."""
    refused = error(store.put("/a/b", b"", expected_version=0))
    assert isinstance(refused, bk.BadVersionError)
    assert (refused.path, refused.expected) == ("/a/b", 0)
    assert refused.actual in {bk.ABSENT, None}
    assert result(store.get("/a/b")) is None
    assert result(store.get_children("/")) == []


def test_versions_start_again_after_a_delete(store: bk.MetadataStore) -> None:
    """A path that was deleted and is put again is new: version 0, and ABSENT holds."""
    for _ in range(2):
        result(store.put("/a", b"0"))
    result(store.delete("/a"))
    assert result(store.put("/a", b"1", expected_version=bk.ABSENT)).version == 0


# --- deletes


def test_a_delete_removes_the_value(store: bk.MetadataStore) -> None:
    """After a delete, which gives None, the path is missing."""
    result(store.put("/a", b""))
    assert result(store.delete("/a")) is None
    assert result(store.get("/a")) is None
    assert result(store.exists("/a")) is False
    assert result(store.get_children("/")) == []


def test_a_delete_may_expect_a_version(store: bk.MetadataStore) -> None:
    """A delete that expects another version is refused, and the value stays."""
    result(store.put("/a", b""))
    stat = result(store.put("/a", b""))
    for expected in (0, 2):
        refused = error(store.delete("/a", expected_version=expected))
        assert isinstance(refused, bk.BadVersionError)
        assert (refused.path, refused.expected) == ("/a", expected)
        assert refused.actual in {1, None}
    assert result(store.exists("/a")) is True
    result(store.delete("/a", expected_version=stat.version))
    assert result(store.exists("/a")) is False


@pytest.mark.parametrize("expected", [None, 0, 3])
def test_a_delete_of_a_missing_path_finds_nothing(
    store: bk.MetadataStore, expected: int | None
) -> None:
    """Deleting a missing path raises NotFoundError, whatever version is expected."""
    refused = error(store.delete("/a/b", expected_version=expected))
    assert type(refused) is bk.NotFoundError
    assert (refused.path, refused.outcome) == ("/a/b", "not_applied")


def test_a_delete_spares_what_has_values_below(store: bk.MetadataStore) -> None:
    """A delete raises NotEmptyError as long as values lie below the path, at any depth."""
    result(store.put("/a", b"kept"))
    result(store.put("/a/b/c/d", b""))
    for expected in (None, 0):
        refused = error(store.delete("/a", expected_version=expected))
        assert type(refused) is bk.NotEmptyError
        assert refused.path == "/a"
    assert isinstance(error(store.delete("/a", expected_version=5)), bk.BadVersionError)
    assert result(store.get("/a")).value == b"kept"
    result(store.delete("/a/b/c/d"))
    for parent in ("/a/b/c", "/a/b"):  # where they are nodes that stay (ZooKeeper)
        store.delete(parent).exception(PATIENCE)
    result(store.delete("/a"))
    assert result(store.exists("/a")) is False


@pytest.mark.parametrize("expected", [None, 0, 5])
def test_a_parent_without_a_value_is_not_deleted_from_above_its_children(
    store: bk.MetadataStore, expected: int | None
) -> None:
    """A delete of a path that only has values below it is NotEmptyError: it has no version."""
    result(store.put("/a/b", b""))
    assert type(error(store.delete("/a", expected_version=expected))) is bk.NotEmptyError
    assert result(store.exists("/a/b")) is True


# --- parents


def test_missing_parents_are_no_obstacle_and_hold_no_value(store: bk.MetadataStore) -> None:
    """A put makes its path at any depth; what is above it is listed, and holds nothing."""
    assert result(store.put("/a/b/c/d", b"deep")).version == 0
    for parent in ("/a", "/a/b", "/a/b/c"):
        assert result(store.get(parent)) is None
        assert result(store.exists(parent)) is False
    assert result(store.get_children("/a/b")) == ["c"]


def test_a_parent_without_a_value_is_absent(store: bk.MetadataStore, on_zookeeper: bool) -> None:
    """A path that was only a parent has no version to expect; its first put creates it.

    The first exception on ZooKeeper: the node is there already, so this put gives version 1.
    """
    result(store.put("/a/b", b""))
    refused = error(store.put("/a", b"no", expected_version=0))
    assert isinstance(refused, bk.BadVersionError)
    assert refused.actual in {bk.ABSENT, None}
    first = result(store.put("/a", b"yes", expected_version=bk.ABSENT))
    assert first.version == (1 if on_zookeeper else 0)
    assert result(store.get("/a")).value == b"yes"
    again = error(store.put("/a", b"no", expected_version=bk.ABSENT))
    assert isinstance(again, bk.BadVersionError)
    assert result(store.put("/a", b"on", expected_version=first.version)).version == (
        first.version + 1
    )


def test_an_unconditional_put_gives_a_parent_a_value(
    store: bk.MetadataStore, on_zookeeper: bool
) -> None:
    """An unconditional put gives a path that was only a parent a value, even an empty one."""
    result(store.put("/a/b", b""))
    assert result(store.put("/a", b"")).version == (1 if on_zookeeper else 0)
    assert result(store.get("/a")).value == b""
    assert result(store.exists("/a")) is True


def test_a_value_stays_when_its_children_go(store: bk.MetadataStore) -> None:
    """A value is never removed because the paths below it are deleted."""
    result(store.put("/a", b""))
    result(store.put("/a/b", b""))
    result(store.delete("/a/b"))
    assert result(store.get("/a")).value == b""
    assert result(store.get_children("/")) == ["a"]


def test_a_parent_goes_with_its_last_child(store: bk.MetadataStore, on_zookeeper: bool) -> None:
    """A path that only was a parent is not listed once nothing is below it.

    The second exception on ZooKeeper: it is listed until it is deleted, which succeeds once.
    """
    result(store.put("/a/b", b""))
    result(store.delete("/a/b"))
    assert result(store.exists("/a")) is False
    if on_zookeeper:
        assert result(store.get_children("/")) == ["a"]
        result(store.delete("/a"))
    assert result(store.get_children("/")) == []
    assert type(error(store.delete("/a"))) is bk.NotFoundError


# --- children


def test_children_are_sorted_names(store: bk.MetadataStore) -> None:
    """The children of a path are the names right below it, once each, in the order of UTF-8."""
    names = ["a", "B", "10", "9", "a-", "a.b", "a0", "é", "中", "\uff41", "!", "~"]
    for future in [store.put(f"/p/{name}", b"") for name in names]:
        result(future)
    for deep in ("/p/a/x/1", "/p/a/x/2", "/p/only-below/1", "/p2/x"):
        result(store.put(deep, b""))
    assert result(store.get_children("/p")) == sorted(
        [*names, "only-below"], key=lambda name: name.encode()
    )
    assert result(store.get_children("/p/a")) == ["x"]
    assert result(store.get_children("/p/a/x")) == ["1", "2"]
    assert result(store.get_children("/")) == ["p", "p2"]


def test_nothing_is_below_a_leaf_or_a_missing_path(store: bk.MetadataStore) -> None:
    """A path without anything below it has no children, whether it is there or not."""
    assert result(store.get_children("/")) == []
    result(store.put("/a", b""))
    assert result(store.get_children("/a")) == []
    assert result(store.get_children("/missing/too")) == []


def test_many_children_are_listed(store: bk.MetadataStore) -> None:
    """All of 2,000 children are listed."""
    names = [f"child-{number:05}" for number in range(2000)]
    put_all(store, {f"/many/{name}": b"" for name in names})
    assert result(store.get_children("/many")) == names


# --- values and paths


def test_an_empty_value_is_a_value(store: bk.MetadataStore) -> None:
    """An empty value is there, unlike a missing path, and can be overwritten either way."""
    assert result(store.get("/a")) is None
    result(store.put("/a", b""))
    found = result(store.get("/a"))
    assert found is not None
    assert found.value == b""
    assert result(store.exists("/a")) is True
    assert result(store.put("/a", b"full")).version == 1
    result(store.put("/a", b""))
    assert result(store.get("/a")).value == b""


def test_values_come_back_as_they_were(store: bk.MetadataStore) -> None:
    """Any bytes come back equal, as bytes."""
    for value in (
        bytes(range(256)),
        b"\x00",
        bytearray(b"array"),
        memoryview(b"a view")[2:],
        b"x" * 500_000,
    ):
        result(store.put("/a", value))
        found = result(store.get("/a"))
        assert type(found.value) is bytes
        assert found.value == bytes(value)


def test_a_value_is_taken_at_the_call(store: bk.MetadataStore) -> None:
    """Changes to the caller's buffer after the call do not affect the put."""
    buffer = bytearray(b"before")
    future = store.put("/a", buffer)
    buffer[:] = b"after!"
    result(future)
    assert result(store.get("/a")).value == b"before"


UNUSUAL = (
    "/ä/中文/русский",
    "/with space",
    "/...",
    "/.hidden/..x",
    "/a.b-c_d~e!f$g&h'i(j)k*l+m,n;o=p:q@r%20s?t#u[v]w",
    "/back\\slash/and\"quotes'",
    "/\u00a0/\ud7ff/\uf900/\uffef",
    "/" + "long" * 500,
    "/" + "/".join("deep" for _ in range(60)),
    "/zookeeper2/zookeeper",
)


def test_unusual_paths_are_paths(store: bk.MetadataStore) -> None:
    """Whatever the path rule allows works for every operation."""
    for path in UNUSUAL:
        stat = result(store.put(path, b"1", expected_version=bk.ABSENT))
        assert stat.path == path
        found = result(store.get(path))
        assert (found.value, found.stat.path) == (b"1", path)
        parent, name = path.rsplit("/", 1)
        assert name in result(store.get_children(parent or "/"))
        result(store.delete(path, expected_version=0))
        assert result(store.exists(path)) is False


def test_paths_are_not_normalized(store: bk.MetadataStore) -> None:
    """Paths that look alike but differ in their characters are different paths."""
    composed, decomposed = "/\u00e9", "/e\u0301"
    result(store.put(composed, b"composed"))
    result(store.put(decomposed, b"decomposed"))
    result(store.put("/E", b"upper"))
    assert result(store.get(composed)).value == b"composed"
    assert result(store.get(decomposed)).value == b"decomposed"
    assert result(store.get("/e")) is None


# --- times and revisions


def test_times_are_kept_where_the_store_keeps_them(store: bk.MetadataStore) -> None:
    """created stays, modified moves, both in milliseconds; None where the store keeps none."""
    before = time.time() * 1000
    result(store.put("/a", b"1"))
    first = result(store.get("/a")).stat
    result(store.put("/a", b"2"))
    second = result(store.get("/a")).stat
    if "times" not in store.capabilities:
        assert (first.created, first.modified, second.modified) == (None, None, None)
        return
    assert before - 60_000 < first.created == first.modified < before + 60_000
    assert second.created == first.created
    assert second.modified >= first.modified


def test_revisions_are_fencing_tokens(store: bk.MetadataStore) -> None:
    """The revision of a path grows with each change, over a delete too, and with no refusal."""
    revisions = []
    for _ in range(2):
        revisions.append(result(store.put("/a", b"")).revision)
        revisions.append(result(store.put("/a", b"")).revision)
        assert isinstance(
            error(store.put("/a", b"", expected_version=bk.ABSENT)), bk.BadVersionError
        )
        assert result(store.get("/a")).stat.revision == revisions[-1]
        result(store.delete("/a"))
    assert revisions == sorted(set(revisions))
