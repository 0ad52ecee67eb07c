"""Imports the packages of extras, which not every installation has."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from ..ops.errors import UnsupportedError

__all__ = ["import_of_extra"]


def import_of_extra(module: str, extra: str) -> Any:
    """Import a module that an extra installs.

    Raises:
        UnsupportedError: it cannot be imported. The message says how to install it.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise UnsupportedError(
            f"the package {module.partition('.')[0]!r} cannot be imported ({error}): "
            f"pip install 'batchkeeper[{extra}]'"
        ) from error
