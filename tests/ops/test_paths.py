"""The one path rule of all stores."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchkeeper import InvalidPathError
from batchkeeper.ops.paths import all_reachable, check_parent, check_path, parent

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
    "/é/中",
    "/ ",
]

BAD = [
    ("", "starts with"),
    ("a", "starts with"),
    ("a/b", "starts with"),
    ("/", "root"),
    ("/a/", "does not end"),
    ("//", "does not end"),
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
    """Many paths are looked at together, with the answer that each gives by itself."""
    assert all_reachable(GOOD)
    for place in range(len(GOOD) + 1):
        assert not all_reachable([*GOOD[:place], bad, *GOOD[place:]])


@pytest.mark.parametrize("path", GOOD)
def test_a_good_path_is_returned_as_it_is(path: str) -> None:
    """What keeps the rule passes, unchanged."""
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
    """Bytes are no path either: their encoding is not ours to guess."""
    with pytest.raises(InvalidPathError, match="a path is a str"):
        check_path(path)  # type: ignore[arg-type]


def test_the_root_has_children_and_no_value() -> None:
    """The root is a parent only; every other parent keeps the rule of paths."""
    assert check_parent("/") == "/"
    with pytest.raises(InvalidPathError):
        check_parent("/a/")


def test_the_parent_of_a_path_is_what_is_above_it() -> None:
    """At the top that is the root."""
    assert (parent("/a/b"), parent("/a")) == ("/a", "/")


@given(st.text(alphabet=st.sampled_from("/.ab\x1f\ue000"), max_size=8))
def test_the_pattern_says_what_the_rule_says(path: str) -> None:
    """The one pattern of the hot path and the rule spelled out part by part never differ."""
    parts = path.split("/")
    keeps_the_rule = (
        len(parts) > 1
        and parts[0] == ""
        and all(part not in {"", ".", ".."} for part in parts[1:])
        and not re.search("[\x1f\ue000]", path)
    )
    try:
        check_path(path)
    except InvalidPathError:
        assert not keeps_the_rule
    else:
        assert keeps_the_rule


def test_every_character_is_either_allowed_or_refused_with_its_number() -> None:
    """The set of allowed characters and that of forbidden ones, and the slash, make up them all."""
    for number in range(0x110000):
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
