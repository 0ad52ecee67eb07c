"""The error of a write, decided once for all stores."""

from __future__ import annotations

import pytest

import batchkeeper as bk
from batchkeeper.ops.steps import At, Effect, PutValue, Step, step_of
from batchkeeper.stores.refusals import State, decide

ABSENT = bk.ABSENT
PUT = PutValue(b"", ephemeral=False)


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
    found = decide(step_of(bk.Put("/a", b"", expected)), State(actual, occupied=True))

    assert (None if found is None else type(found)) is error
    if isinstance(found, bk.BadVersionError):
        assert (found.path, found.expected, found.actual) == ("/a", expected, actual)


def test_a_delete_says_the_version_first_then_values_below_then_absence() -> None:
    """The same order of errors on every store."""
    errors = {  # by the expected and the actual version, and whether there are values below
        (None, 3, False): None,
        (3, 3, False): None,
        (None, ABSENT, False): bk.NotFoundError,
        (0, ABSENT, False): bk.NotFoundError,
        (3, 4, False): bk.BadVersionError,
        (3, 4, True): bk.BadVersionError,
        (3, 3, True): bk.NotEmptyError,
        (None, 3, True): bk.NotEmptyError,
        (None, ABSENT, True): bk.NotEmptyError,
        (0, ABSENT, True): bk.NotEmptyError,
    }
    found = {}
    for expected, actual, occupied in errors:
        error = decide(step_of(bk.Delete("/a", expected)), State(actual, occupied=occupied))
        found[expected, actual, occupied] = None if error is None else type(error)
    assert found == errors


@pytest.mark.parametrize("effect", [PUT, "delete", "nothing"])
def test_a_revision_counts_after_the_version_and_before_values_below(effect: Effect) -> None:
    """The error of a revision has the revisions, unless the version is already wrong."""
    step = Step("/a", At(3, 7), effect)
    version = decide(step, State(4, 8, occupied=True))
    revision = decide(step, State(3, 8, occupied=True))

    assert isinstance(version, bk.BadVersionError)
    assert (version.expected, version.actual, version.expected_revision) == (3, 4, None)
    assert isinstance(revision, bk.BadVersionError)
    assert (revision.expected_revision, revision.actual_revision) == (7, 8)
    assert decide(step, State(3, 7)) is None


def test_a_revision_without_a_version_needs_a_value() -> None:
    """A missing path has no revision; a delete says that there is nothing to delete."""
    step = Step("/a", At(None, 7), PUT)
    missing = decide(step, State(ABSENT))

    assert isinstance(missing, bk.BadVersionError)
    assert (missing.actual, missing.expected_revision, missing.actual_revision) == (ABSENT, 7, None)
    assert isinstance(decide(step._replace(effect="delete"), State(ABSENT)), bk.NotFoundError)
    assert decide(step, State(0, 7)) is None


def test_a_put_can_need_that_its_path_exists() -> None:
    """Any version is as expected then; a missing path is NotFoundError."""
    step = Step("/a", "exists", PUT)

    assert isinstance(decide(step, State(ABSENT, occupied=True)), bk.NotFoundError)
    assert decide(step, State(0)) is None
