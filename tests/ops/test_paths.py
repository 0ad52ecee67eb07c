"""The one path rule of all stores."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchkeeper import InvalidPathError
from batchkeeper.ops.paths import all_reachable, check_parent, check_path, parent, reachable

GOOD = [
    "/a",
    "/a/b",
    "/a.b/..c/d..",
    "/.a",
    "/...",
    "/zookeeper2",
    "/a/zookeeper",
    "/.batchkeepers",
    "/a/x.batchkeeper",
    "/a/x.batchkeeper-",
    "/é/中",
    "/ ",
]

BAD = [
    ("", "must start with"),
    ("a", "must start with"),
    ("a/b", "must start with"),
    ("/", "root"),
    ("/a/", "must not end"),
    ("//", "must not end"),
    ("//a", "empty part"),
    ("/a//b", "empty part"),
    ("/.", r"'\.' or '\.\.'"),
    ("/a/./b", r"'\.' or '\.\.'"),
    ("/a/..", r"'\.' or '\.\.'"),
    ("/zookeeper", "reserved"),
    ("/zookeeper/quota", "reserved"),
    ("/.batchkeeper", "reserved"),
    ("/.batchkeeper/x", "reserved"),
    ("/a/.batchkeeper", "reserved"),
    ("/.batchkeeper-x", "reserved"),
    ("/a/.batchkeeper-/x", "reserved"),
    ("/a/.batchkeeper/x", "reserved"),
    ("/a\0", r"U\+0000"),
    ("/a\n", r"U\+000A"),
    ("/\x7f", r"U\+007F"),
    ("/\x9f", r"U\+009F"),
    ("/\ud800", r"U\+D800"),
    ("/\uf8ff", r"U\+F8FF"),
    ("/\ufff0", r"U\+FFF0"),
    ("/\U0001f600", r"U\+1F600"),
]


@pytest.mark.parametrize("bad", [path for path, _ in BAD] + ["/a\n/b", "\n", "/a\n"])
def test_one_unreachable_path_among_many_is_found(bad: str) -> None:
    """Checking many paths together gives the same answer as checking each of them."""
    assert all_reachable(GOOD)
    for place in range(len(GOOD) + 1):
        assert not all_reachable([*GOOD[:place], bad, *GOOD[place:]])


@pytest.mark.parametrize("path", GOOD)
def test_a_good_path_is_returned_as_it_is(path: str) -> None:
    """A valid path passes unchanged."""
    assert check_path(path) is path


@pytest.mark.parametrize(("path", "reason"), BAD)
def test_a_bad_path_is_refused_with_the_reason(path: str, reason: str) -> None:
    """The message holds the path and the part of the rule that it breaks."""
    with pytest.raises(InvalidPathError, match=reason) as caught:
        check_path(path)
    assert caught.value.path == path
    assert repr(path) in str(caught.value)


@pytest.mark.parametrize("path", [None, 7, b"/a", ["/a"]])
def test_what_is_no_string_is_refused(path: object) -> None:
    """Bytes are not a path, because their encoding is unknown."""
    with pytest.raises(InvalidPathError, match="a path must be a str"):
        check_path(path)  # type: ignore[arg-type]


def test_the_root_has_children_and_no_value() -> None:
    """The root is only a parent; every other parent must be a valid path."""
    assert check_parent("/") == "/"
    with pytest.raises(InvalidPathError):
        check_parent("/a/")


def test_the_parent_of_a_path_is_what_is_above_it() -> None:
    """The parent of a path at the top is the root."""
    assert (parent("/a/b"), parent("/a")) == ("/a", "/")


def keeps_the_rule(path: str) -> bool:
    """The rule of paths once more, part by part and character by character, with no pattern."""
    first, *parts = path.split("/")
    if first or not parts or parts[0] == "zookeeper":
        return False
    return all(
        part not in {"", ".", "..", ".batchkeeper"}
        and not part.startswith(".batchkeeper-")
        and all(map(allowed, part))
        for part in parts
    )


def allowed(character: str) -> bool:
    """Whether a part of a path may have a character, from ZooKeeper's list of those it refuses."""
    number = ord(character)
    refused = ((0x00, 0x1F), (0x7F, 0x9F), (0xD800, 0xF8FF), (0xFFF0, 0x10FFFF))
    return not any(first <= number <= last for first, last in refused)


# Paths that nearly keep the rule, or do: what breaks it stands anywhere, also twice.
PARTS = st.sampled_from(
    [
        "a",
        "b.c",
        "",
        ".",
        "..",
        "...",
        ".batchkeeper",
        ".batchkeepers",
        ".batchkeeper-",
        "zookeeper",
        "zookeeper1",
    ]
) | st.text(alphabet=st.sampled_from("./ab\n\x1f\x7f\xa0\ud7ff\ud800\uf8ff\uf900\uffef\ufff0😀"))
PATHS = st.lists(PARTS, max_size=6).map("/".join) | st.lists(PARTS, min_size=1, max_size=6).map(
    lambda parts: "/" + "/".join(parts)
)


@settings(max_examples=5 * settings.default.max_examples)
@given(PATHS)
def test_the_pattern_says_what_the_rule_says(path: str) -> None:
    """The pattern of the hot path and the rule spelled out never differ, on any Python."""
    try:
        check_path(path)
    except InvalidPathError:
        assert not keeps_the_rule(path)
    else:
        assert keeps_the_rule(path)
    assert reachable(path) is keeps_the_rule(path)


@settings(max_examples=2 * settings.default.max_examples)
@given(st.lists(PATHS, max_size=8))
def test_many_paths_are_judged_as_each_by_itself(paths: list[str]) -> None:
    """A page of a scan is checked at once, with the same result as checking each path."""
    assert all_reachable(paths) is all(map(keeps_the_rule, paths))


@pytest.mark.slow
def test_a_long_path_is_judged_in_time() -> None:
    """The pattern reads a path only once, even if it fails, and needs no stack for its parts."""
    for path in ("/" + "a" * 1_000_000, "/a" * 500_000):
        assert check_path(path) is path
        for bad in (path + "/", path + "\0", path + "/.."):
            assert not reachable(bad)
            assert not all_reachable([path, bad])


def test_every_character_is_either_allowed_or_refused_with_its_number() -> None:
    """The allowed characters, the forbidden ones and the slash together are all characters.

    Each around the edges of the rule, and every 61st of the others.
    """
    for number in {*range(0x1000), *range(0xD000, 0x11000), *range(0, 0x110000, 61)}:
        character = chr(number)
        forbidden = (
            number < 0x20
            or 0x7F <= number < 0xA0
            or 0xD800 <= number < 0xF900
            or number >= 0xFFF0
            or character == "/"
        )
        try:
            check_path(f"/a{character}b{character}")
        except InvalidPathError:
            assert forbidden, hex(number)
        else:
            assert not forbidden, hex(number)
