"""Puts the contents of a store, and reads them back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import batchkeeper as bk

__all__ = ["contents", "put_all"]


def put_all(store: bk.MetadataStore, values: Mapping[str, bytes]) -> None:
    """Put values. All puts must succeed."""
    for outcome in store.apply([bk.Put(path, value) for path, value in values.items()]):
        assert outcome.ok, outcome


def contents(store: bk.MetadataStore, prefix: str = "/", **options: Any) -> dict[str, bytes]:
    """Return the values at and below a path; ``options`` go to the scan."""
    return {path: value for path, value, _ in store.scan(prefix, **options)}
