"""What a program can see of the package's background work: its threads, by their names."""

from __future__ import annotations

import threading

__all__ = ["working"]


def working(name: str) -> bool:
    """Say whether a thread of the package whose name has this in it is alive."""
    return any(
        thread.name.startswith("batchkeeper-") and name in thread.name
        for thread in threading.enumerate()
    )
