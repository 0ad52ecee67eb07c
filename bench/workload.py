"""Shared by all loads: how puts are written, and the error for a wrong answer."""

from __future__ import annotations


class WrongAnswerError(Exception):
    """An answer of a store contradicts an acknowledged write. The message names the path."""


def put_path(root: str, number: int) -> str:
    """Return the path of a plain put."""
    return f"{root}/{number}"


def put_value(number: int, size: int) -> bytes:
    """Return the value of a plain put: a number, padded to a size."""
    return (b"%d " % number).ljust(size, b".")[:size]
