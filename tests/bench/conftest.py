"""A store in memory for the tests of the bench."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

import batchkeeper as bk


@pytest.fixture
def store() -> Iterator[bk.MetadataStore]:
    with bk.open_store(f"memory://{uuid.uuid4().hex}") as opened:
        yield opened
