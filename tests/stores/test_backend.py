"""Which error a write ends with, decided once for all stores."""

from __future__ import annotations

import pytest

import batchkeeper as bk
from batchkeeper.stores.backend import refusal

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
