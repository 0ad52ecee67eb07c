"""Whether a request may have been executed, for each of ZooKeeper's errors."""

from __future__ import annotations

import pytest
from kazoo import exceptions as kazoo

from batchkeeper.ops import AuthenticationError, UnsupportedError, ValueTooLargeError
from batchkeeper.stores.zookeeper.wire.errors import Fate, code, fate, refused


def test_every_code_has_its_place_in_the_table() -> None:
    """No code that a server can send, as far as kazoo knows them, is left to the default: LOST."""
    lost = {error for error in kazoo.EXCEPTIONS.values() if fate(error()) is Fate.LOST}
    assert lost == {
        kazoo.APIError,
        kazoo.ConnectionLoss,
        kazoo.DataInconsistency,
        kazoo.OperationTimeoutError,
        kazoo.RequestTimeoutError,
        kazoo.RolledBackError,
        kazoo.RuntimeInconsistency,
        kazoo.SessionExpiredError,
        kazoo.SystemZookeeperError,
        kazoo.UnknownSessionError,
    }


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (kazoo.ConnectionLoss(), Fate.LOST),
        (kazoo.SessionExpiredError(), Fate.LOST),
        (kazoo.OperationTimeoutError(), Fate.LOST),
        (kazoo.ThrottledOpError(), Fate.LATER),
        (kazoo.SessionMovedError(), Fate.LATER),
        (kazoo.BadVersionError(), Fate.REFUSED),
        (kazoo.AuthFailedError(), Fate.LOCKED_OUT),
        (RuntimeError("never heard of"), Fate.LOST),
    ],
)
def test_what_is_known_of_a_request(error: Exception, expected: Fate) -> None:
    """Only requests that the server refused or ignored are known not to be applied."""
    assert fate(error) is expected


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (kazoo.NoAuthError(), AuthenticationError),
        (kazoo.NoChildrenForEphemeralsError(), UnsupportedError),
        (kazoo.QuotaExceededError(), ValueTooLargeError),
    ],
)
def test_refusals_by_name(error: Exception, expected: type) -> None:
    """A refusal has the error of its kind, with the path, and is definite."""
    answer = refused(code(error), "/a")

    assert type(answer) is expected
    assert answer.path == "/a"
    assert answer.outcome == "not_applied"
