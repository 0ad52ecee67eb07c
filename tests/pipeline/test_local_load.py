"""The lines of a file that is loaded, without a store."""

from __future__ import annotations

import io

import pytest

from batchkeeper.pipeline import local_load


def test_the_rest_of_an_overlong_line_is_no_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its beginning stands for it, so that the memory is bounded, and the next line is the next."""
    monkeypatch.setattr(local_load, "LONGEST_LINE", 10)
    file = io.BufferedReader(io.BytesIO(b"x" * 25 + b"\nshort\n" + b"y" * 30))  # type: ignore[arg-type]
    assert [*local_load.lines(file)] == [b"x" * 10, b"short\n", b"y" * 10]
