"""Provides a separate place for each measurement, under the same conditions as all others."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

from ...stores.registry import parse_url
from ..target import Target

__all__ = ["fresh_place"]


@contextmanager
def fresh_place(target: Target, label: str) -> Iterator[Target]:
    """Yield the target with an empty root.

    On a server, the root is a folder. Data of earlier measurements slows both sides of a ratio
    alike, because they take turns. An embedded store gets a separate directory, which is removed
    afterwards, because its data would slow only the side that put it there.
    """
    if not target.kind.local_directory:
        yield replace(target, root=f"{target.root}/{label}")
        return
    directory = Path(target.url.path).parent / label
    directory.mkdir()
    try:
        yield replace(
            target, url=parse_url(f"{target.kind.scheme}://{quote(str(directory / 'store'))}")
        )
    finally:
        shutil.rmtree(directory, ignore_errors=True)
