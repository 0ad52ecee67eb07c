"""Filters as bounds: no path that passes a filter is left out, whatever the filter's text."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchkeeper.ops.errors import InvalidPathError
from batchkeeper.ops.paths import check_path
from batchkeeper.ops.results import Range
from batchkeeper.pipeline.bounds import Bounds

# Few characters, so that texts and paths often agree; among them the first and the last that paths
# may have, neighbours of the slash, and such as no path may have.
ALPHABET = " -./0ab~\ud7ff\uf900\uffef\x00\uffff"
TEXTS = st.text(ALPHABET, max_size=6)
PATHS = st.lists(st.text("ab -.0~\ud7ff\uf900\uffef", min_size=1, max_size=2), min_size=1).map(
    lambda parts: "/" + "/".join(parts)
)

FILTERS: dict[str, tuple[Callable[[Bounds, str], Bounds], Callable[[str, str], bool]]] = {
    "from": (Bounds.from_, lambda path, text: path >= text),
    "up to": (Bounds.up_to, lambda path, text: path <= text),
    "starts": (Bounds.starting_with, lambda path, text: path.startswith(text)),
    "below": (Bounds.below, lambda path, text: path == text or path.startswith(f"{text}/")),
}


def is_path(text: str) -> bool:
    try:
        check_path(text)
    except InvalidPathError:
        return False
    return True


def scanned(bounds: Bounds, path: str) -> bool:
    """Say whether a scan within the bounds would find a path."""
    under = bounds.prefix in {"/", path} or path.startswith(f"{bounds.prefix}/")
    return under and path in Range(bounds.start, bounds.end)


@pytest.mark.parametrize("name", FILTERS)
@given(path=PATHS.filter(is_path), texts=st.lists(TEXTS, min_size=1, max_size=3))
def test_no_path_that_passes_is_left_out(name: str, path: str, texts: list[str]) -> None:
    """Every path that passes a chain of filters lies within their bounds."""
    narrow, passes = FILTERS[name]
    bounds = Bounds("/")
    for text in (*texts, path):
        if passes(path, text) and (name != "below" or is_path(text)):
            bounds = narrow(bounds, text)
    assert scanned(bounds, path)
    for bound in (bounds.start, bounds.end):
        assert bound is None or is_path(bound)


def test_bounds_are_as_narrow_as_valid_paths_allow() -> None:
    """Usual filters leave out everything else."""
    assert Bounds("/").from_("/a").up_to("/b") == Bounds("/", "/a", "/b ")
    assert Bounds("/").starting_with("/topics/a") == Bounds("/topics", "/topics/a", "/topics/b")
    assert Bounds("/").starting_with("/topics/") == Bounds("/topics", "/topics", "/topics0")
    assert Bounds("/topics").starting_with("/t") == Bounds("/topics", "/t", "/u")
    assert Bounds("/topics").below("/other") == Bounds("/topics")


def test_ranges_are_cut_to_the_bounds() -> None:
    """Of a store's ranges, only the parts within the bounds are read, and no empty ones."""
    ranges = [Range(None, "/b"), Range("/b", "/d"), Range("/d", None)]
    assert Bounds("/", "/a", "/c").within(ranges) == [Range("/a", "/b"), Range("/b", "/c")]
    assert Bounds("/", "/x", "/c").within(ranges) == []
    assert Bounds("/").within(ranges) == ranges
