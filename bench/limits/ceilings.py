"""The raw speed of each store: a bare loop that replays prepared requests.

A ceiling knows all requests and answers in advance. It has no futures, no queue, no order to keep
and no callers. It is the code that a good engineer would write for exactly this one task. If there
are several ways to write it, all are tried first, and the best is measured.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TypeAlias

from ..target import Target
from .work import Figures

__all__ = ["Ceiling", "ceilings"]

#: The ways to measure a ceiling, by name.
Ceiling: TypeAlias = Mapping[str, Callable[[Target, int], Figures]]


def ceilings(store: str) -> Mapping[str, Ceiling]:
    """Return the ceilings of a kind of store: ``puts``, ``conditional puts`` and ``gets``.

    The other kinds' puts are creations, too. etcd has ``creates`` of its own.

    It imports the store's module only now, so the packages of other stores may be missing.
    """
    found: Mapping[str, Ceiling] = import_module(f".raw_{store}", __package__).CEILINGS
    return found
