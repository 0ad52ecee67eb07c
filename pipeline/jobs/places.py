"""Decides whether a name on the command line stands for a store or a folder."""

from __future__ import annotations

from typing import Final, NamedTuple

from ..options import SourceOptions

__all__ = ["FOLDER_SCHEMES", "Store", "is_store"]

#: Schemes of URIs that name folders and never stores.
FOLDER_SCHEMES: Final = ("file", "hdfs", "viewfs", "s3", "s3a", "gs", "gcs", "abfs", "abfss")


def is_store(name: str) -> bool:
    """Say whether a name is a store's URL. All other names are folders."""
    scheme, separator, _ = name.partition("://")
    return bool(separator) and scheme.lower() not in FOLDER_SCHEMES


class Store(NamedTuple):
    """A store's options, parsed and checked, and in the form that the data source takes."""

    options: SourceOptions
    given: dict[str, object]
