"""Messages on standard error."""

from __future__ import annotations

import sys

__all__ = ["tell"]


def tell(message: str) -> None:
    """Write a message to standard error, as one line."""
    sys.stderr.write(f"batchkeeper: {' '.join(message.splitlines())}\n")
