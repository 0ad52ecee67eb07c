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

# These depend on the arguments alone: only other arguments help. `outcome` and `retriable` are the
# same for them as for the refusals of a store: nothing was changed, and a repetition is of no use.
# So only the class shows whose fault it is.
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
        error: the error; only if it is known no more exactly, as from another process, its class.
    """
    if passes(error):
        return NO_CONNECTION
    kind = error if isinstance(error, type) else type(error)
    return BAD_INPUT if issubclass(kind, _BAD_INPUT) else REFUSED
