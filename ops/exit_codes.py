"""The exit codes of the commands, and the code for each error."""

from __future__ import annotations

from typing import Final

from .errors import (
    InvalidPathError,
    InvalidSettingError,
    MetadataStoreError,
    RevisionCompactedError,
    UnsupportedError,
    ValueTooLargeError,
    passes,
)

__all__ = ["BAD_INPUT", "NO_CONNECTION", "OK", "REFUSED", "exit_code"]

OK: Final = 0
REFUSED: Final = 1
NO_CONNECTION: Final = 2
BAD_INPUT: Final = 3

# These depend on the arguments alone: only other arguments help.
_BAD_INPUT: Final = (
    InvalidPathError,
    InvalidSettingError,
    RevisionCompactedError,
    UnsupportedError,
    ValueTooLargeError,
)


def exit_code(kind: type[MetadataStoreError]) -> int:
    """Return the exit code of a command that ends with an error of this class."""
    if passes(kind):
        return NO_CONNECTION
    return BAD_INPUT if issubclass(kind, _BAD_INPUT) else REFUSED
