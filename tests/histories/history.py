"""What was asked of stores and what they said, with times: the material of the checker."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

__all__ = ["Kind", "Op", "Outcome"]

Kind = Literal["put", "delete", "get", "exists"]

#: How an operation ended. ``done``: with a result. ``refused``: its condition did not hold.
#: ``not_applied``: some other error that says that nothing was changed, and never will be.
#: ``unknown``: it may have happened. ``pending``: it has not ended, which no operation may stay.
Outcome = Literal["pending", "done", "refused", "not_applied", "unknown"]


@dataclass(slots=True)
class Op:
    """One operation of a history. Times are of one monotonic clock, in seconds.

    Operations of one ``chain`` (those submitted through one store) on one path stand in a history
    in the order of their submission. No value is put twice.

    Attributes:
        invoked: taken before the call.
        completed: taken after its end was known; a write whose outcome is unknown may take effect
            until then, so for one that a living server may still carry out it stays infinite.
        error: the class of the error that it ended with.
        version: of the ``Stat`` that a put or a get returned.
        actual: the version that a conflict named.
        found: the value that a get returned.
        there: whether ``exists`` said so.
        applied: whether an unknown write is known to have happened.
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

    @property
    def writes(self) -> bool:
        return self.kind in {"put", "delete"}

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
        return f"{self.chain}: {asked} -> {said} [{self.invoked:.6f}, {self.completed:.6f}]"
