"""A call that reached a back end, and the fault that happens to it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from ...ops.errors import (
    IndeterminateError,
    MetadataStoreError,
    OperationTimeoutError,
    StoreClosedError,
)
from ...stores.backend import Request

__all__ = ["CHANGING", "Call", "Fault", "Method", "Plan"]

#: The methods. Each page of ``scan``, ``scan_stats`` or ``changes`` is a call of its own.
Method: TypeAlias = Literal[
    "write",
    "read",
    "scan",
    "scan_stats",
    "split",
    "delete_recursive",
    "revision",
    "changes",
    "watch",
    "sync",
]

#: The methods that change the store. An answer that they lose leaves the outcome unknown.
CHANGING: Final = frozenset({"write", "delete_recursive"})


@dataclass(frozen=True, slots=True)
class Fault:
    """The fault of one call.

    Attributes:
        hold: wait for :meth:`Call.release` before the call is applied, or after it was applied and
            before its answers are returned. The call's deadline and ``close`` end the wait.
        seconds: release a held call by itself after this time; ``None`` for never.
        error: the error to raise instead of the answers.
        applied: whether the call is applied before ``error`` is raised, or before ``cut``.
        cut: whether the connection is cut at this call. The call then waits, like all others, until
            it is restored.
        refused: the operations of a read or write that were not executed, by their places in the
            request, and the errors returned for them. The others are executed.
    """

    hold: Literal["before", "after"] | None = None
    error: MetadataStoreError | None = None
    applied: bool = False
    seconds: float | None = None
    cut: bool = False
    refused: Mapping[int, MetadataStoreError] = field(default_factory=dict)


class Call:
    """One call that reached the back end. A test can release it.

    Attributes:
        number: the number of the call, over all methods of the back end, from 0.
        method: the method.
        kinds: the kinds of the operations of a read or a write; empty for other methods.
        paths: the paths of these operations; for other methods, their prefix, if they have one.
        requests: the operations themselves; empty for other methods.
    """

    def __init__(
        self,
        number: int,
        method: Method,
        kinds: Sequence[str],
        paths: Sequence[str],
        requests: Sequence[Request] = (),
    ) -> None:
        self.number = number
        self.method = method
        self.kinds = list(kinds)
        self.paths = list(paths)
        self.requests = requests
        self._released = threading.Event()
        self._closed = False

    def release(self) -> None:
        """Let the call continue, even if it is held only later."""
        self._released.set()

    def _wait(self, applied: bool, deadline: float, seconds: float | None = None) -> None:
        patience = deadline - time.monotonic()
        if seconds is not None and seconds < patience:
            self._released.wait(seconds)
            self._released.set()
        released = self._released.wait(max(0.0, patience))
        if released and not self._closed:
            return
        if applied and self.method in CHANGING:
            raise IndeterminateError(
                "a fault held the call until the deadline, or until the store was closed"
            )
        if self._closed:
            raise StoreClosedError("the store was closed while a fault held the call")
        raise OperationTimeoutError("a fault held the call until the deadline")

    def _close(self) -> None:
        self._closed = True
        self._released.set()


#: Returns the fault of a call, or ``None``. Runs on the thread that makes the call.
Plan: TypeAlias = Callable[[Call], Fault | None]
