"""The programs of bench/targets, which are run from the tree: they are no part of the package."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

# Last: a module of that folder stands for no other.
sys.path.append(str(Path(__file__).parents[3] / "bench"))

from batchkeeper.bench.target import Target
from batchkeeper.stores.registry import parse_url


@pytest.fixture(autouse=True)
def frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests' own objects stay frozen (see conftest.py)."""
    monkeypatch.setattr("gc.unfreeze", lambda: None)


@pytest.fixture
def limits(tmp_path: Path) -> Callable[..., int]:
    """Run the program with few operations and a new folder."""
    from targets.command import main  # noqa: PLC0415

    return lambda *arguments: main(["limits", *arguments, "--quick", "--dir", str(tmp_path)])


@pytest.fixture
def place(fresh_url: Callable[[str], str]) -> Callable[..., Target]:
    """Return a place in an empty store, in memory by default."""

    def make(store: str = "memory") -> Target:
        return Target(store, parse_url(fresh_url(store)), "/place", None, 10.0)

    return make
