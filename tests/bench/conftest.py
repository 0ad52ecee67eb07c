"""A store in memory for the tests of the bench, and their peace from the garbage collector."""

from __future__ import annotations

import gc
import uuid
from collections.abc import Iterator

import pytest

import batchkeeper as bk


@pytest.fixture
def store() -> Iterator[bk.MetadataStore]:
    with bk.open_store(f"memory://{uuid.uuid4().hex}") as opened:
        yield opened


@pytest.fixture(autouse=True)
def frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave frozen what the collection of tests has made, when a measurement ends.

    A collection would walk over all tests again, half a second each time, in every later test.
    """
    monkeypatch.setattr(gc, "unfreeze", lambda: None)
