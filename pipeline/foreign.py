"""Counts the keys that are not valid paths while a store is read, and logs a warning."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import Final, TypeVar

from ..ops.log import get_logger
from ..ops.results import ForeignKeys, ScanPage, StatPage

__all__ = ["counted", "warn_of_foreign"]

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
