"""Which error a write ends with, decided once for all stores; and back ends around others."""

from __future__ import annotations

import time
from typing import Any, cast

import pytest

import batchkeeper as bk
from batchkeeper.ops import Range
from batchkeeper.stores import ConnectOptions, connect
from batchkeeper.stores.backend import PassingBackend, ScanningBackend, refusal

ABSENT = bk.ABSENT


@pytest.mark.parametrize(
    ("expected", "actual", "error"),
    [
        (None, ABSENT, None),
        (None, 3, None),
        (ABSENT, ABSENT, None),
        (ABSENT, 0, bk.BadVersionError),
        (0, ABSENT, bk.BadVersionError),
        (3, 3, None),
        (3, 4, bk.BadVersionError),
    ],
)
def test_a_put_holds_at_its_version(
    expected: int | None, actual: int, error: type[Exception] | None
) -> None:
    """A put fails for its version alone, with both versions in the error."""
    found = refusal(bk.Put("/a", b"", expected), actual, occupied=True)

    assert (None if found is None else type(found)) is error
    if isinstance(found, bk.BadVersionError):
        assert (found.path, found.expected, found.actual) == ("/a", expected, actual)


@pytest.mark.parametrize(
    ("expected", "actual", "occupied", "error"),
    [
        (None, 3, False, None),
        (3, 3, False, None),
        (None, ABSENT, False, bk.NotFoundError),
        (0, ABSENT, False, bk.NotFoundError),
        (3, 4, False, bk.BadVersionError),
        (3, 4, True, bk.BadVersionError),
        (3, 3, True, bk.NotEmptyError),
        (None, 3, True, bk.NotEmptyError),
        (None, ABSENT, True, bk.NotEmptyError),
        (0, ABSENT, True, bk.NotEmptyError),
    ],
)
def test_a_delete_says_the_version_first_then_values_below_then_absence(
    expected: int | None, actual: int, occupied: bool, error: type[Exception] | None
) -> None:
    """The same order of errors on every store."""
    found = refusal(bk.Delete("/a", expected), actual, occupied)
    assert (None if found is None else type(found)) is error


class Unscanned:
    """A back end that cannot be scanned."""


def test_a_wrapped_back_end_is_scanned_as_such() -> None:
    """Who stands around a back end passes scans on, and says so where there are none."""
    inner = connect("memory://wrapped", ConnectOptions())
    outer = PassingBackend(inner)
    assert isinstance(outer, ScanningBackend)
    inner.write([bk.Put("/a", b"1"), bk.Put("/b", b"2")], time.monotonic() + 60)
    pages = list(outer.scan("/", Range(), None, 60))
    assert [found.path for page in pages for found in page] == ["/a", "/b"]
    stats = outer.scan_stats("/", Range(), None, 60)
    assert [page.paths for page in stats] == [("/a", "/b")]
    assert outer.revision(60) == 1
    assert [part.start for part in outer.split("/", 2, 60)] == [None, "/b"]
    assert outer.delete_recursive("/a", 60) == 1
    inner.close()
    blind: Any = PassingBackend(cast("Any", Unscanned()))
    for call in (
        lambda: blind.scan("/", Range(), None, 60),
        lambda: blind.scan_stats("/", Range(), None, 60),
        lambda: blind.split("/", 2, 60),
        lambda: blind.delete_recursive("/", 60),
        lambda: blind.revision(60),
    ):
        with pytest.raises(bk.UnsupportedError, match="cannot be scanned"):
            call()
