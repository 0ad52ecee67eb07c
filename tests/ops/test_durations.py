"""Durations as people write them."""

from __future__ import annotations

import pytest

from batchkeeper.ops.durations import parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("5", 5),
        ("0.25", 0.25),
        ("-1", -1),
        ("5s", 5),
        ("100ms", 0.1),
        ("500us", 0.0005),
        ("2m", 120),
        (".5h", 1800),
        ("1m30s", 90),
        ("1h1ms", 3600.001),
    ],
)
def test_a_duration_is_in_seconds(text: str, seconds: float) -> None:
    """A number without a unit is in seconds; parts with units are added."""
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text", ["", "s", "5 s", "5x", "5sm", "-5s", "1e3s", "5S", "\N{ARABIC-INDIC DIGIT FIVE}s"]
)
def test_what_is_no_duration(text: str) -> None:
    """The message has the text and examples."""
    with pytest.raises(ValueError, match=f"not a duration such as 10s.*: {text!r}"):
        parse_duration(text)
