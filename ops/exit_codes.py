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

# Only other arguments help against these. Their `outcome` and `retriable` are those of a store's
# refusal: nothing was changed, and a repetition is of no use. Only the class distinguishes the two.
_BAD_INPUT: Final = (
    InvalidPathError,
    InvalidSettingError,
    RevisionCompactedError,
    UnsupportedError,
    ValueTooLargeError,
)


def exit_code(error: MetadataStoreError | type[MetadataStoreError]) -> int:
    """Return the exit code of a command that ends with this error.

    ``outcome`` and ``retriable`` decide whether another attempt may help. If it may not, the class
    decides between bad input and a refusal.

    Args:
        error: the error, or its class if nothing else is known, as of an error of another process.
    """
    if passes(error):
        return NO_CONNECTION
    kind = error if isinstance(error, type) else type(error)
    return BAD_INPUT if issubclass(kind, _BAD_INPUT) else REFUSED
