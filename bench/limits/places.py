"""A place of its own for each measurement, equal to all others."""

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
    """Give the target with a root that holds nothing yet.

    On a server it is a folder: what other measurements left behind slows both sides of a ratio
    alike, as they take turns. An embedded store lies in a directory of its own, which is removed
    afterwards: what is in it would slow only the side that put it there.
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
