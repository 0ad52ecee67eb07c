"""The settings of the batching engine."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from batchkeeper.batching import BatchingConfig
from batchkeeper.batching.settings import check_seconds
from batchkeeper.ops import InvalidSettingError

# For values that a type checker would refuse.
make: Callable[..., BatchingConfig] = BatchingConfig

INTS = {
    "max_ops": (1, 1_000_000),
    "max_bytes": (1, 1024**3),
    "read_queue_size": (1, 10_000_000),
    "write_queue_size": (1, 10_000_000),
    "max_queued_bytes": (1, 1024**4),
    "max_in_flight": (1, 256),
    "max_singles": (0, 1024),
}


def test_the_names_are_those_of_the_design() -> None:
    """The settings that callers may rely on, and no others."""
    assert {field.name for field in dataclasses.fields(BatchingConfig)} == {
        "enabled",
        "max_delay",
        "on_full",
        "linger",
        *INTS,
    }


@pytest.mark.parametrize("name", INTS)
def test_a_number_is_taken_within_its_range(name: str) -> None:
    """Both ends of a range belong to it; what is beyond is refused with the range and the value."""
    lowest, highest = INTS[name]
    for value in (lowest, highest):
        assert getattr(make(**{name: value}), name) == value
    for value in (lowest - 1, highest + 1):
        message = f"{name} must be an int from {lowest} to {highest}, not {value}$"
        with pytest.raises(InvalidSettingError, match=message):
            make(**{name: value})


@pytest.mark.parametrize("name", INTS)
@pytest.mark.parametrize("value", [1.0, "5", True, [1]])
def test_a_number_is_an_int(name: str, value: Any) -> None:
    """Neither floats nor strings nor bools are numbers of operations or bytes."""
    with pytest.raises(InvalidSettingError, match=f"{name} must be an int .*not "):
        make(**{name: value})


def test_only_max_in_flight_may_be_left_to_the_store() -> None:
    """None means the store's own choice for max_in_flight, and nothing for the others."""
    assert BatchingConfig(max_in_flight=None).max_in_flight is None
    for name in INTS.keys() - {"max_in_flight"}:
        with pytest.raises(InvalidSettingError, match="not None"):
            make(**{name: None})


@pytest.mark.parametrize("value", [0, 0.0, 0.005, 60])
def test_max_delay_is_seconds_up_to_a_minute(value: float) -> None:
    """From 0 (no waiting for company) to 60 s."""
    assert BatchingConfig(max_delay=value).max_delay == value


@pytest.mark.parametrize("value", [-0.001, 60.1, float("nan"), float("inf"), "1", None, True])
def test_a_wrong_max_delay_is_refused(value: Any) -> None:
    """Values other than a number of seconds from 0 to 60 are refused."""
    with pytest.raises(
        InvalidSettingError,
        match=f"max_delay must be from 0 to 60 seconds, not {value}"
        if not isinstance(value, str)
        else "max_delay must be .* seconds",
    ):
        make(max_delay=value)


@pytest.mark.parametrize(
    ("name", "choices"),
    [("on_full", ["single", "block", "raise"]), ("linger", ["adaptive", "fixed"])],
)
def test_a_choice_is_one_of_its_words(name: str, choices: list[str]) -> None:
    """The known words are accepted; any other value is refused with the list of them."""
    for choice in choices:
        assert getattr(make(**{name: choice}), name) == choice
    for wrong in ("", "Single", None, 1, ["single"]):
        with pytest.raises(
            InvalidSettingError, match=f"{name} must be one of {', '.join(choices)}, not"
        ):
            make(**{name: wrong})


@pytest.mark.parametrize("value", [1, 0, None, "yes"])
def test_enabled_is_a_bool(value: Any) -> None:
    """Numbers and words do not pass for True and False."""
    with pytest.raises(InvalidSettingError, match="enabled must be True or False, not"):
        make(enabled=value)


def test_settings_are_given_by_name() -> None:
    """Positions and unknown names are refused."""
    with pytest.raises(TypeError):
        make(True)
    with pytest.raises(TypeError, match="max_opps"):
        make(max_opps=5)


def test_settings_are_values() -> None:
    """Settings compare, hash, copy and pickle by value, and cannot be changed."""
    config = BatchingConfig(max_ops=5, on_full="block")
    assert config == BatchingConfig(max_ops=5, on_full="block") != BatchingConfig()
    assert len({config, copy.copy(config), pickle.loads(pickle.dumps(config))}) == 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.max_ops = 6  # type: ignore[misc]
    with pytest.raises(InvalidSettingError):
        dataclasses.replace(config, max_ops=0)


@pytest.mark.parametrize("value", [1e-9, 1, 30.0, 366 * 24 * 3600])
def test_a_duration_is_taken_up_to_a_year(value: float) -> None:
    """Seconds, whole or not, from more than 0 to a year."""
    assert check_seconds("timeout", value) == value


@pytest.mark.parametrize("value", [0, -1, 1e9, float("nan"), float("inf"), True, "1", None])
def test_a_wrong_duration_is_refused(value: Any) -> None:
    """A value that is not a duration is refused with the argument's name and the value."""
    with pytest.raises(
        InvalidSettingError, match="session_timeout must be a number of seconds, more than 0"
    ) as c:
        check_seconds("session_timeout", value)
    assert repr(value) in str(c.value)
