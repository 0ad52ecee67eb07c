"""Histories: the operations that clients submitted and their outcomes, with times."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

__all__ = ["Kind", "Op", "Outcome"]

#: A ``check`` is only a part of a transaction.
Kind = Literal["put", "delete", "get", "exists", "transaction", "check"]

#: How an operation ended. ``done``: with a result. ``refused``: its condition did not hold.
#: ``not_applied``: with another error that promises that nothing is or will be changed.
#: ``unknown``: it may have been applied. ``pending``: it has not ended; in the end, none may be.
Outcome = Literal["pending", "done", "refused", "not_applied", "unknown"]


@dataclass(slots=True)
class Op:
    """One operation of a history. All times are seconds of the same monotonic clock.

    A ``chain`` consists of the operations submitted through one store. Its operations on one path
    are in the history in the order of submission. No value is put twice.

    Attributes:
        invoked: the time just before the call.
        completed: the time just after the end was known. A write with an unknown outcome may take
            effect until then. If a server may still execute it, the time stays infinite.
        error: the class of the error with which it ended.
        version: the version in the ``Stat`` that a put or a get returned.
        actual: the version that a conflict reported.
        found: the value that a get returned.
        there: the result of ``exists``.
        applied: whether a write with an unknown outcome is known to have been applied.
        parts: the operations of a transaction. They have its times and its outcome. Its path is
            that of the first.
        refused_at: the index of the part because of which a transaction was refused.
    """

    chain: str
    kind: Kind
    path: str
    value: bytes | None = None
    expected: int | None = None
    invoked: float = 0.0
    completed: float = math.inf
    outcome: Outcome = "pending"
    error: str = ""
    version: int | None = None
    revision: int | None = None
    actual: int | None = None
    found: bytes | None = None
    there: bool | None = None
    applied: bool = False
    parts: list[Op] = field(default_factory=list)
    refused_at: int | None = None

    @property
    def writes(self) -> bool:
        return self.kind in {"put", "delete", "transaction"}

    @property
    def paths(self) -> list[str]:
        """The paths of the operation."""
        return [part.path for part in self.parts] or [self.path]

    def end(self, outcome: Outcome, completed: float = math.inf) -> None:
        """Record the end of the operation, and of its parts."""
        for op in (self, *self.parts):
            op.outcome, op.completed = outcome, completed

    def __str__(self) -> str:
        asked = self.kind
        if self.value is not None:
            asked += f" {self.value.decode()}"
        if self.expected is not None:
            asked += f" if at {self.expected}"
        if self.kind == "get":
            said = "nothing" if self.found is None else self.found.decode()
        elif self.kind == "exists":
            said = str(self.there)
        else:
            said = self.outcome
        if self.outcome != "done":
            said = f"{self.outcome} {self.error}"
        if self.version is not None:
            said += f", version {self.version}, revision {self.revision}"
        if self.actual is not None:
            said += f", actual {self.actual}"
        if self.parts:
            asked += "".join(
                f"\n          {number} {part}" for number, part in enumerate(self.parts)
            )
        if self.refused_at is not None:
            said += f" at {self.refused_at}"
        where = f"{self.chain}: {self.path}"
        return f"{where}: {asked} -> {said} [{self.invoked:.6f}, {self.completed:.6f}]"
