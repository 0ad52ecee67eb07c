"""Faults on purpose: takes a back end and gives a back end whose calls can be held or fail.

For tests of what stands above it. A plan looks at each call as it arrives and says what is to
happen to it; a held call waits until the test releases it, so tests wait for events and never
sleep, and answers come in any order that a test wants.

::

    backend = FaultyBackend(store, lambda call: Fault(hold="before") if call.number == 0 else None)
    ...                                  # something submits
    (call,) = backend.wait_for_calls(1)
    call.release()
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeAlias

from ..ops.errors import (
    IndeterminateError,
    MetadataStoreError,
    OperationTimeoutError,
    StoreClosedError,
)
from .backend import Answer, Backend, PassingBackend, ReadRequest, Request, WriteRequest

__all__ = ["Call", "Fault", "FaultyBackend", "Plan"]


@dataclass(frozen=True, slots=True)
class Fault:
    """What is to happen to one call.

    Attributes:
        hold: wait for :meth:`Call.release` before the call is applied, or after it was applied and
            before its answers are given. A call's deadline and ``close`` end the wait.
        error: is raised in place of the answers.
        applied: whether the call is applied before ``error`` is raised.
    """

    hold: Literal["before", "after"] | None = None
    error: MetadataStoreError | None = None
    applied: bool = False


class Call:
    """One call that reached the back end: what it asked for, and the handle that lets it go."""

    def __init__(
        self, number: int, method: Literal["write", "read"], requests: Sequence[Request]
    ) -> None:
        #: Counts the calls of the back end, reads and writes together, from 0.
        self.number = number
        self.method = method
        self.kinds = [request.kind for request in requests]
        self.paths = [request.path for request in requests]
        self._released = threading.Event()
        self._closed = False

    def release(self) -> None:
        """Let the call go on if it is held, and when it comes to be held."""
        self._released.set()

    def _wait(self, applied: bool, deadline: float) -> None:
        released = self._released.wait(max(0.0, deadline - time.monotonic()))
        if released and not self._closed:
            return
        if applied and self.method == "write":
            raise IndeterminateError("held by a fault until the deadline, or until the close")
        if self._closed:
            raise StoreClosedError("closed while held by a fault")
        raise OperationTimeoutError("held by a fault until the deadline")

    def _close(self) -> None:
        self._closed = True
        self._released.set()


#: Says what happens to a call, ``None`` for nothing. Runs on the thread that makes the call.
Plan: TypeAlias = Callable[[Call], Fault | None]


class FaultyBackend(PassingBackend):
    """A back end that passes its calls on to ``backend``, as far as ``plan`` lets it.

    ``calls`` are all the calls so far, in the order of their arrival. Tests may replace ``plan``
    between calls.
    """

    def __init__(self, backend: Backend, plan: Plan | None = None) -> None:
        super().__init__(backend)
        self.plan = plan
        self.calls: list[Call] = []
        self._closed = False
        self._arrived = threading.Condition()  # guards calls and _closed

    def write(self, requests: Sequence[WriteRequest], deadline: float) -> Sequence[Answer]:
        return self._run("write", requests, deadline, partial(super().write, requests, deadline))

    def read(self, requests: Sequence[ReadRequest], deadline: float) -> Sequence[Answer]:
        return self._run("read", requests, deadline, partial(super().read, requests, deadline))

    def close(self) -> None:
        with self._arrived:
            self._closed = True
            calls = list(self.calls)
        for call in calls:
            call._close()
        super().close()

    def wait_for_calls(self, count: int, timeout: float = 10.0) -> list[Call]:
        """Return the calls so far as soon as there are ``count`` of them.

        Raises:
            TimeoutError: if there are fewer after ``timeout`` seconds.
        """
        with self._arrived:
            if not self._arrived.wait_for(lambda: len(self.calls) >= count, timeout):
                raise TimeoutError(f"{len(self.calls)} calls instead of {count} in {timeout} s")
            return list(self.calls)

    def _run(
        self,
        method: Literal["write", "read"],
        requests: Sequence[Request],
        deadline: float,
        forward: Callable[[], Sequence[Answer]],
    ) -> Sequence[Answer]:
        with self._arrived:
            if self._closed:
                raise StoreClosedError("closed")
            call = Call(len(self.calls), method, requests)
            self.calls.append(call)
            self._arrived.notify_all()
        fault = (self.plan(call) if self.plan else None) or Fault()
        if fault.hold == "before":
            call._wait(applied=False, deadline=deadline)
        if fault.error is not None and not fault.applied:
            if fault.hold == "after":
                call._wait(applied=False, deadline=deadline)
            raise fault.error
        answers = forward()
        if fault.hold == "after":
            call._wait(applied=True, deadline=deadline)
        if fault.error is not None:
            raise fault.error
        return answers
