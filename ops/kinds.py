"""The kinds of operations. Each has a row with everything that the engine needs to know."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType, NoneType
from typing import Final, Literal, TypeAlias, get_args

from .operations import Kind, ReadKind, WriteKind
from .results import GetResult, Stat

__all__ = ["BRINGS_VALUES", "KINDS", "KindRow", "LaneName"]

LaneName: TypeAlias = Literal["reads", "writes"]


@dataclass(frozen=True, slots=True)
class KindRow:
    """One kind of operations.

    Attributes:
        lane: the queue in which its operations wait.
        writes: whether its operations change anything. If so, a lost answer leaves the outcome
            unknown, and no other operation on the same path is sent at the same time.
        results: the types of its results. An answer whose type is in no row counts as an error.
    """

    lane: LaneName
    writes: bool
    results: tuple[type, ...]


KINDS: Final[Mapping[Kind, KindRow]] = MappingProxyType(
    {
        "put": KindRow("writes", writes=True, results=(Stat,)),
        "get": KindRow("reads", writes=False, results=(GetResult, NoneType)),
        "delete": KindRow("writes", writes=True, results=(NoneType,)),
        "get_children": KindRow("reads", writes=False, results=(list,)),
        "exists": KindRow("reads", writes=False, results=(bool,)),
        "transaction": KindRow("writes", writes=True, results=(list,)),
    }
)
if unmatched := KINDS.keys() ^ {*get_args(ReadKind), *get_args(WriteKind)}:
    raise AssertionError(f"kinds without a row, or rows without a kind: {sorted(unmatched)}")

#: The kinds whose results contain values, and may be large.
BRINGS_VALUES: Final = frozenset(kind for kind, row in KINDS.items() if GetResult in row.results)
