"""What readers report beside values: keys that are not valid paths, prefixes without values."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import closing
from typing import Final, TypeVar

from .. import MetadataStore
from ..ops.errors import NotFoundError
from ..ops.log import get_logger
from ..ops.results import ForeignKeys, ScanPage, StatPage

__all__ = ["check_there", "counted", "nothing_at", "warn_of_foreign"]

_log: Final = get_logger(__name__)

_Page = TypeVar("_Page", bound=ScanPage | StatPage)


def counted(pages: Iterable[_Page], foreign: ForeignKeys) -> Generator[_Page, None, None]:
    """Yield the pages of a scan, and add their foreign keys to ``foreign``."""
    for page in pages:
        foreign.add(page.foreign)
        yield page


def warn_of_foreign(foreign: ForeignKeys, what: str) -> None:
    """Log the number of foreign keys, if there are any.

    Args:
        foreign: the keys.
        what: what happened to them, for the message.
    """
    if foreign.count:
        keys = "keys that may not be read or" if foreign.unreadable else "keys that"
        _log.warning(
            f"{keys} are not valid paths: {what}", count=foreign.count, first=foreign.names()
        )


def nothing_at(path: str) -> NotFoundError:
    """Return the error for a path that has no value at or below it."""
    return NotFoundError(
        f"no value is at or below {path!r}: check the path, and the prefix or chroot in the "
        "store's URL",
        path=path,
    )


def check_there(store: MetadataStore, path: str, revision: int | None = None) -> None:
    """Raise ``NotFoundError`` if a store has no key at or below a path, valid or not."""
    with closing(store.scan_pages(path, revision=revision, values=False)) as pages:
        if not any(len(page) or page.foreign for page in pages):
            raise nothing_at(path)
